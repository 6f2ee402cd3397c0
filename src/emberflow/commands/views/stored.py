"""A query as its checkpoint tells it: for the page, when nobody runs the query any more.

The page shows the steps, the cuts with their sizes, the lives and the versions, and reads the states as of
a cut. Nothing is written to the checkpoint, and no code of it is run unless its files belong to whoever
looks (`datasource.trust` says how to trust others).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.scan import Wanted as WantedRows
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.datasource.stored import alive_since, state_steps
from emberflow.datasource.trust import is_named
from emberflow.engine.queries.worker import StateInfo, in_key_order
from emberflow.errors import InputError, NotKeptError, shortened
from emberflow.runners.live.serving.reads import TooManyRowsError
from emberflow.runners.live.web.overview import ROW_NAMES, Overview
from emberflow.runners.questions import Answer, Scan, Wanted
from emberflow.values.hashing import key_hash
from emberflow.values.item import GlobalTime

#: A scan that wants the first rows in order sorts whenever it has so many more.
_SORTED_EVERY = 20_000
_LOOK_SECONDS = 5.0


class StoredQuery:
    """A checkpoint, as the page sees it."""

    overview: Overview | None = None

    def __init__(self, location: str) -> None:
        self._location = location if "://" in location else os.path.abspath(location)
        self.id = "checkpoint"
        self.reads = StoredReads(self._location)
        self._store = CheckpointStore(self._location)
        self._looked: tuple[float, list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.cut = self.reads.newest()

    def summary(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.cut.flow,
            "state": "Stored",
            "active": False,
            "error": None,
            "stored": self._location,
            "begun": 0,
            "elements": 0,
            "lagMs": 0.0,
            "recoveries": 0,
        }

    def message(self, since: dict[str, Any]) -> dict[str, Any]:
        cuts, events = self._looked_at()
        message: dict[str, Any] = {
            "query": self.id,
            "overview": self._overview(),
            "rows": [],
            "cuts": cuts,
            "events": events,
        }
        if not since:
            since["is_told"] = True
            message |= {
                "shape": shape_of(self.cut),
                "names": ROW_NAMES,
                "states": list(self.reads.states),
                "aside": [],
            }
        return message

    def _overview(self) -> dict[str, Any]:
        cut = self.cut
        return {
            **self.summary(),
            "at": time.time_ns() // 1_000_000,
            "version": 1,
            "progress": {},
            "workers": [],
            "steps": {},
            "fronts": [
                {
                    "front": front,
                    "partition": partition,
                    "index": -1,
                    "worker": None,
                    "waiting": None,
                    "ahead": None,
                    "reached": None,
                    "promised": cut.promised.get(front, {}).get(partition, (None,))[0],
                    "position": shortened(position, 80),
                    "late": cut.late.get(front, {}).get(partition, 0),
                    "lagMs": None,
                    "over": False,
                }
                for front, positions in cut.positions.items()
                for partition, position in positions.items()
            ],
            "sinks": [],
            "heldBack": None,
            "cuts": None,
        }

    def _looked_at(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The cuts and the events, looked up every few seconds: somebody may write there."""
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] > _LOOK_SECONDS:
            self._looked = now, self._cuts(), self._events()
        return self._looked[1:]

    def _cuts(self) -> list[dict[str, Any]]:
        return [
            {
                "at": _ms(self._store.committed_at(cut)),
                "number": cut.number,
                "time": cut.time[0],
                "ms": None,
                "rows": sum(part.rows for part in cut.parts if part.cut == cut.number),
                "bytes": sum(part.bytes for part in cut.parts if part.cut == cut.number),
                "whole": all(part.cut == cut.number for part in cut.parts),
            }
            for cut in self._store.cuts()
        ]

    def _events(self) -> list[dict[str, Any]]:
        found = [
            {
                "at": _ms(at),
                "kind": "begun",
                "life": life,
                "text": f"from cut {base}" if base else "with no state",
            }
            for life, base, at in self._store.lives()
        ]
        at = _ms(self._store.committed_at(self.cut))
        for version in self.cut.versions:
            text = f"version {version.number}"
            if version.begins is not None:
                text += f" from the time {version.begins[0]} on"
            found.append({"at": at, "kind": "upgraded", "life": self.cut.incarnation, "text": text})
        return found


class StoredReads:
    """Reads of the states of a checkpoint, each as of one cut."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._store = CheckpointStore(location, own_files=not is_named(location))

    def newest(self) -> Manifest:
        cut = self._store.latest()
        if cut is None:
            raise InputError(
                f"{self._location} has no cut. Is it the checkpointLocation of a query, and has "
                f"that taken its first one?"
            )
        return cut

    @property
    def states(self) -> dict[str, StateInfo]:
        return {
            name: StateInfo(name, "stored", -1, False, None) for name in state_steps(self.newest())
        }

    def read(
        self,
        wanted: Mapping[str, Wanted],
        *,
        default: bool,
        as_of: object,
        ordered: bool,
        timeout: float | None,
        first: int | None = None,
        rows_max: int | None = None,
    ) -> Answer:
        """Of the newest cut, or of the newest at or below a time. The cut has no defaults."""
        cut = self._cut(as_of)
        deadline = time.monotonic() + (timeout or 60.0)
        steps = state_steps(cut)
        found = {}
        for name, what in wanted.items():
            rows = self._rows(cut, steps[name], what, first, deadline)
            if rows_max is not None and len(rows) > rows_max:
                raise TooManyRowsError(f"an answer has at most {rows_max:,} rows.")
            found[name] = dict(rows)
        return Answer(found, as_of=GlobalTime(*cut.time))

    def _cut(self, as_of: object) -> Manifest:
        if as_of is None:
            return self.newest()
        numbers = as_of if isinstance(as_of, tuple) else (as_of,)
        if not all(type(number) is int for number in numbers) or len(numbers) not in (1, 2):
            raise InputError(f"'as_of' is a time, got {as_of!r}.")
        fitting = [cut for cut in self._store.cuts() if cut.time[: len(numbers)] <= numbers]
        if not fitting:
            kept = ", ".join(str(cut.time[0]) for cut in self._store.cuts())
            raise NotKeptError(f"no cut as old as {as_of} is kept; there are those at {kept}.")
        return fitting[-1]

    def _rows(
        self, cut: Manifest, step: str, what: Wanted, first: int | None, deadline: float
    ) -> list[tuple[Any, Any]]:
        found: dict[Any, Any] = {}
        for key, value in self._scanned(cut, step, what):
            found[key] = value  # the last row of a key is its newest
            if first is not None and len(found) > first + _SORTED_EVERY:
                found = dict(in_key_order(found.items())[:first])
            if time.monotonic() > deadline:
                raise InputError("the cut could not be read within the time limit.")
        rows = in_key_order(found.items())
        return rows if first is None else rows[:first]

    def _scanned(self, cut: Manifest, step: str, what: Wanted) -> Iterator[tuple[Any, Any]]:
        if isinstance(what, Scan):
            rows, low, high = WantedRows(step), what.low, what.high
            pages = self._store.pages(cut.parts, rows, test=lambda key: _is_within(key, low, high))
        else:
            keys = list(what)
            rows = WantedRows(step, hashes=tuple(sorted({key_hash(key) for key in keys})))
            pages = self._store.pages(cut.parts, rows, test=lambda key: key in keys)
        since = alive_since(cut, step)
        for page in pages:
            alive = page.since(since)
            yield from zip(alive.keys, alive.payloads, strict=True)


def _is_within(key: Any, low: Any, high: Any) -> bool:
    """Whether a key is from ``low`` on and below ``high``. One that does not compare is outside."""
    try:
        return (low is None or bool(low <= key)) and (high is None or bool(key < high))
    except TypeError:
        return False


def shape_of(cut: Manifest) -> dict[str, Any]:
    """The steps of a cut as the user named them, and what each of them reads."""
    steps: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str], None] = {}
    ids = {f"{step.kind} {step.name!r}": _id(step.kind, step.name) for step in cut.steps}
    for step in cut.steps:
        id = _id(step.kind, step.name)
        shown = steps.setdefault(
            id,
            {
                "id": id,
                "kind": step.kind,
                "name": id.partition(" ")[2] if step.kind in ("front", "sink") else id,
                "where": "",
                "functions": [],
            },
        )
        shown["functions"] += step.details.get("functions", [])
        for read in step.details.get("reads", []):
            origin = ids.get(re.sub(r" output \d+$", "", read))
            if origin is not None and origin != id:
                edges[origin, id] = None
    return {
        "flow": cut.flow,
        "steps": list(steps.values()),
        "edges": [{"from": origin, "to": reader, "key": None} for origin, reader in edges],
    }


def _id(kind: str, name: str) -> str:
    return f"{kind} {name}" if kind in ("front", "sink") else name.partition("/")[0]


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1_000)
