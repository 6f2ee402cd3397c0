"""The manifest of a cut: everything that a reader needs to know before it reads the rows.

It is JSON, written last. A cut exists when its manifest does. The manifest names every file that the
cut needs, of earlier cuts too, with length and checksum: so it alone tells whether a cut is whole. It
also carries a checksum of its own canonical form.

**Reading a manifest runs no code.** The positions of fronts and the last states of sinks have types
that the adapters choose. Values that JSON can represent exactly are stored as JSON, for people; others
are pickled. They are unpickled when somebody looks one up, which only the query does that restores the
cut. Who lists the cuts of a checkpoint unpickles nothing. And a manifest names files of its own
checkpoint only.

**Does a cut fit a flow?** The graph's fingerprint decides. That alone would be a poor message, so
the manifest also describes each step, and `check_fits` compares the descriptions and says what was
added, removed or changed.

**Versions.** A cut says of which version of the flow it is, and which versions there were, each with the
moment from which on it serves. A new version takes over from a cut. Before it lets anything out, the
driver commits that cut once more, with the new version as its *successor* and with what becomes of the
state. From then on the old version cannot go on from the cut, and the new one does with the same plan,
however often it has to.
"""

from __future__ import annotations

import base64
import json
import math
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
from xxhash import xxh64_hexdigest

from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.errors import CheckpointError, DamagedCutError, UnfitCutError
from emberflow.graph.description import Step, differences, steps_of
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry, CarryError, CarryPlan, Look, carry_plan
from emberflow.values.hashing import KEY_ENCODING_VERSION

FORMAT_VERSION = 1

#: A chain with more links than this is worth a full cut: each link is one more file per worker to open.
LINKS_MAX = 16
#: But to open a file takes about as long as to read so many rows. Where the files of a chain cost less than its first
#: link, a full cut would mostly write again what is stored already, and the chain may have more links, so many at most.
ROWS_PER_FILE = 65_536
LONG_LINKS_MAX = 64
#: A chain with more stored rows than this per row that is still needed is worth a full cut, too.
ROWS_PER_LIVE_ROW_MAX = 2
_PART_PATH = re.compile(r"parts/[^/]+")


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A file of rows. ``low`` and ``high`` are the least and the greatest key hash in it.

    ``blocks`` are the checksums of its blocks of ``block_bytes`` bytes, for readers of a few of them;
    none if the whole file is one block.
    """

    kind: str
    cut: int
    worker: str
    path: str
    rows: int
    bytes: int
    checksum: str
    low: int
    high: int
    block_bytes: int = 0
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionNote:
    """A version of a flow, and the moment from which on it serves; None for the first one.

    ``told`` is what became of the state of the version before, for people.
    """

    number: int
    fingerprint: int
    begins: tuple[int, int] | None = None
    told: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "fingerprint": f"{self.fingerprint:016x}",
            "begins": None if self.begins is None else list(self.begins),
            "told": list(self.told),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> VersionNote:
        begins = body["begins"]
        return cls(
            body["number"],
            int(body["fingerprint"], 16),
            None if begins is None else (begins[0], begins[1]),
            tuple(body["told"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A cut. ``parts`` are all files that it needs, oldest first.

    ``positions[front][partition]`` is where the front continues to read. ``promised[front][partition]``
    is what its elements up to there have promised, and the tie of the last one: see
    `engine.progress.event_time`. ``late[front][partition]`` is how many were late. ``sinks`` has the last state of each sink, as its adapter reports it.
    """

    number: int
    incarnation: int
    time: tuple[int, int]
    flow: str
    fingerprint: int
    steps: tuple[Step, ...]
    parts: tuple[PartInfo, ...]
    positions: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    promised: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    late: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    sinks: Mapping[str, Any] = field(default_factory=dict)
    #: ``time`` for a cut at a global time, ``arrival`` for a snapshot by markers.
    ordering: str = "time"
    #: All versions up to that of this cut; none if it is of the first one. If it has a ``successor``,
    #: that is the last of them, and the cut is of the one before.
    versions: tuple[VersionNote, ...] = ()
    #: The plan by which the successor takes over: see `graph.versions`. None without one.
    successor: Any = None

    @property
    def version(self) -> int:
        """The number of the version whose state this is."""
        last = self.versions[-1].number if self.versions else 1
        return last if self.successor is None else last - 1

    def succeeded(
        self, graph: Graph, plan: CarryPlan, *, number: int, incarnation: int
    ) -> Manifest:
        """The same cut once more, with a version that takes over from it."""
        before = self.versions or (VersionNote(1, self.fingerprint),)
        note = VersionNote(before[-1].number + 1, graph.fingerprint, self.time, tuple(plan.lines()))
        return replace(
            self,
            number=number,
            incarnation=incarnation,
            versions=(*before, note),
            successor=encoded(plan),
        )

    @property
    def plan(self) -> CarryPlan:
        """How the successor takes over. Who asks runs code of whoever wrote the checkpoint."""
        plan = decoded(self.successor)
        assert isinstance(plan, CarryPlan)
        return plan

    @classmethod
    def of(
        cls,
        graph: Graph,
        *,
        number: int,
        incarnation: int,
        time: tuple[int, int],
        parts: Sequence[PartInfo | None],
        base: Manifest | None = None,
        positions: Mapping[str, Mapping[int, Any]] | None = None,
        promised: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
        late: Mapping[str, Mapping[int, int]] | None = None,
        sinks: Mapping[str, Any] | None = None,
        versions: tuple[VersionNote, ...] = (),
        steps: tuple[Step, ...] | None = None,
    ) -> Manifest:
        """The manifest of a cut with these new parts, and the parts of its base.

        ``steps`` are those of the graph, for a caller that makes many cuts of it.
        """
        return cls(
            number=number,
            incarnation=incarnation,
            time=time,
            flow=graph.flow,
            fingerprint=graph.fingerprint,
            steps=steps_of(graph) if steps is None else steps,
            parts=(*(base.parts if base else ()), *(part for part in parts if part is not None)),
            positions=positions or {},
            promised=promised or {},
            late=late or {},
            sinks=sinks or {},
            versions=versions,
        )

    def to_json(self) -> bytes:
        body: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "key_encoding": KEY_ENCODING_VERSION,
            "number": self.number,
            "incarnation": self.incarnation,
            "time": list(self.time),
            "ordering": self.ordering,
            "flow": self.flow,
            "fingerprint": f"{self.fingerprint:016x}",
            "steps": [
                {"kind": step.kind, "name": step.name, "details": dict(step.details)}
                for step in self.steps
            ],
            "parts": [
                {name: getattr(part, name) for name in PartInfo.__dataclass_fields__}
                for part in self.parts
            ],
            "positions": {
                front: {str(partition): encoded(at) for partition, at in partitions.items()}
                for front, partitions in self.positions.items()
            },
            "promised": {
                front: {
                    str(partition): list(promised) for partition, promised in partitions.items()
                }
                for front, partitions in self.promised.items()
            },
            "late": {
                front: {str(partition): count for partition, count in partitions.items()}
                for front, partitions in self.late.items()
            },
            "sinks": {name: encoded(value) for name, value in self.sinks.items()},
            "versions": [note.to_json() for note in self.versions],
            "successor": self.successor,
        }
        return json_with_checksum(body)

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Manifest:
        """Raises `DamagedCutError` if the data is not intact. ``name`` is for the message."""
        body = checked_json(data, name)
        for what, ours in (("format", FORMAT_VERSION), ("key_encoding", KEY_ENCODING_VERSION)):
            if body[what] != ours:
                raise CheckpointError(
                    f"{name} has version {body[what]} of the {what}, and this Emberflow knows "
                    f"version {ours}. Restore it with the Emberflow that wrote it."
                )
        return cls(
            number=body["number"],
            incarnation=body["incarnation"],
            time=(body["time"][0], body["time"][1]),
            flow=body["flow"],
            fingerprint=int(body["fingerprint"], 16),
            steps=tuple(Step(**step) for step in body["steps"]),
            parts=tuple(_part(part, name) for part in body["parts"]),
            positions={
                front: _Encoded({int(partition): at for partition, at in partitions.items()})
                for front, partitions in body["positions"].items()
            },
            promised={
                front: {int(partition): (at[0], at[1]) for partition, at in partitions.items()}
                for front, partitions in body.get("promised", {}).items()
            },
            late={
                front: {int(partition): count for partition, count in partitions.items()}
                for front, partitions in body.get("late", {}).items()
            },
            sinks=_Encoded(body["sinks"]),
            ordering=body.get("ordering", "time"),
            versions=tuple(map(VersionNote.from_json, body.get("versions", ()))),
            successor=body.get("successor"),
        )


class _Encoded(Mapping[Any, Any]):
    """Values that are decoded when they are looked up, and not before."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = values

    def __getitem__(self, key: Any) -> Any:
        return decoded(self._values[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{len(self)} encoded values>"  # a message must not unpickle


def _part(stored: dict[str, Any], name: str) -> PartInfo:
    part = PartInfo(**{**stored, "blocks": tuple(stored.get("blocks", ()))})
    if not _PART_PATH.fullmatch(part.path):
        raise DamagedCutError(f"{name} names a file that is none of its parts: {part.path!r}.")
    return part


def json_with_checksum(body: dict[str, Any]) -> bytes:
    """The body and a checksum of its canonical form, for people with a member a line.

    >>> print(json_with_checksum({"number": 7, "parts": [{"rows": 1}, {"rows": 2}]}).decode())
    {
     "number": 7,
     "parts": [
      {"rows": 1},
      {"rows": 2}
     ],
     "checksum": "be7c2b8d315a0b7e"
    }
    """
    members = {**body, "checksum": _checksum(body)}.items()
    return "{{\n{}\n}}".format(
        ",\n".join(f" {_dumps(name)}: {_lines(value)}" for name, value in members)
    ).encode()


#: With an ``indent``, the encoder is not the one in C: it takes ten times as long, and every cut waits for it.
_dumps = json.JSONEncoder().encode


def _lines(value: Any) -> str:
    if type(value) is not list or not any(type(each) is dict for each in value):
        return _dumps(value)
    return "[\n{}\n ]".format(",\n".join(f"  {_dumps(each)}" for each in value))


def checked_json(data: bytes, name: str) -> dict[str, Any]:
    """The inverse of `json_with_checksum`. Raises `DamagedCutError`; ``name`` is for the message."""
    try:
        body: dict[str, Any] = json.loads(data)
        checksum = body.pop("checksum")
        found = _checksum(body)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedCutError(f"{name} is not what was written: {error!r}.") from error
    if checksum != found:
        raise DamagedCutError(f"{name} has the checksum {found} and should have {checksum!r}.")
    return body


def _checksum(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return str(xxh64_hexdigest(canonical.encode()))


def encoded(value: Any) -> Any:
    """A value as JSON: unchanged if JSON has its type, tuples and dicts tagged, all else pickled.

    >>> encoded(("a", 1)), decoded(encoded(("a", 1)))
    ({'tuple': ['a', 1]}, ('a', 1))
    """
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [encoded(one) for one in value]
    if kind is tuple:
        return {"tuple": [encoded(one) for one in value]}
    if kind is dict:
        return {"dict": [[encoded(name), encoded(one)] for name, one in value.items()]}
    return {"pickle": base64.b64encode(cloudpickle.dumps(value, 5)).decode()}


def decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(decoded(one) for one in inner)
    if kind == "dict":
        return {decoded(name): decoded(one) for name, one in inner}
    return pickle.loads(base64.b64decode(inner))


def compaction_due(
    manifest: Manifest,
    *,
    live_rows: int | None = None,
    rows_per_live_row: float = ROWS_PER_LIVE_ROW_MAX,
) -> bool:
    """Whether the next cut should be a full one: ``base=None``, with the rows of all buckets.

    ``live_rows`` is the number of rows that a full cut would have. The default is the number of rows
    of the chain's first link. A chain may have ``rows_per_live_row`` times as many.
    """
    links = sorted({part.cut for part in manifest.parts})
    replaced = [part for part in manifest.parts if part.kind != SCHEDULED]
    if live_rows is None:
        live_rows = sum(part.rows for part in replaced if part.cut == links[0])
    rows = sum(part.rows for part in replaced)
    is_small = live_rows < ROWS_PER_FILE * len(manifest.parts)
    return len(links) > (LINKS_MAX if is_small else LONG_LINKS_MAX) or (
        len(links) > 1 and rows > rows_per_live_row * max(1, live_rows)
    )


def check_fits(manifest: Manifest, graph: Graph, *, ordering: str = "time") -> None:
    """Raises `UnfitCutError`, which says what differs, unless the cut is of this flow."""
    _check_ordering(manifest, graph, ordering)
    if manifest.fingerprint == graph.fingerprint and manifest.successor is None:
        return
    raise _unfit(manifest, graph)


def fitted(
    manifest: Manifest,
    graph: Graph,
    *,
    carry: Carry | None = None,
    ordering: str = "time",
    is_new: bool = False,
    look: Look | None = None,
) -> CarryPlan | None:
    """How a flow goes on from a cut: by a plan if the cut is of an earlier version, else as it is.

    With ``is_new`` the flow is known to be another version, also if only its functions are others. ``look``
    finds the cuts of backfills (`backfills.known_cut`).
    Raises `UnfitCutError` if it cannot go on.
    """
    _check_ordering(manifest, graph, ordering)
    if manifest.successor is not None:
        note = manifest.versions[-1]
        if note.fingerprint == graph.fingerprint:
            return manifest.plan
        raise UnfitCutError(
            f"flow {graph.flow!r} does not fit cut {manifest.number}: version {note.number} of the flow "
            f"took over at {note.begins}, and output may be its own since. Start that version."
        )
    if manifest.fingerprint == graph.fingerprint and not is_new:
        return None
    if ordering != "time":
        raise _unfit(manifest, graph)
    if not is_new and any(note.fingerprint == graph.fingerprint for note in manifest.versions):
        raise UnfitCutError(
            f"flow {graph.flow!r} is an earlier version of the flow that cut {manifest.number} is of: "
            f"version {manifest.version} took over at {manifest.versions[-1].begins}. Start that version."
        )
    try:
        return carry_plan(manifest.steps, graph, carry, at=manifest.time, look=look)
    except CarryError as error:
        raise UnfitCutError(f"{_unfit(manifest, graph)}\n{error}") from None


def _check_ordering(manifest: Manifest, graph: Graph, ordering: str) -> None:
    if manifest.ordering != ordering:
        raise UnfitCutError(
            f"cut {manifest.number} was taken with ordering={manifest.ordering!r}, and flow "
            f"{graph.flow!r} is started with ordering={ordering!r}. Their states and their output "
            f"differ: give this one a location, and sinks, of its own."
        )


def _unfit(manifest: Manifest, graph: Graph) -> UnfitCutError:
    found = differences(manifest.flow, manifest.steps, graph) or [
        "the fingerprints differ, and no step does: the cut is of another version of Emberflow"
    ]
    return UnfitCutError(
        f"flow {graph.flow!r} does not fit cut {manifest.number} (incarnation "
        f"{manifest.incarnation}), which holds the state of another flow or another version:\n"
        + "\n".join(f"  - {difference}" for difference in found)
        + "\nStart the flow that the cut is of, or give this one a location of its own."
    )
