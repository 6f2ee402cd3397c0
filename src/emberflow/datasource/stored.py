"""The states of a checkpoint, as of any of its cuts.

A cut names the parts that it needs. A scan merges them by key hash, so a piece is a range of hashes,
and reads little else (`checkpoint.cuts.scan`). Hashes are spread evenly, so ranges of equal size have
about equally many rows.

**Cuts that are removed.** A query prunes its older cuts (``checkpointsKept``). A reader holds the cut
that it reads, for ``holdSeconds``, and each task renews that hold while it reads. If the reader may
not write to the checkpoint, or comes too late, the error says that the cut is gone, and what to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint import SCHEDULED, CheckpointError, DamagedCutError, Manifest, PartInfo
from emberflow.checkpoint.cuts.scan import ColumnPage, Counted, Wanted, shared_out, split
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import UntrustedFileError
from emberflow.datasource.filters import KeyFilters
from emberflow.datasource.options import as_of_numbers
from emberflow.datasource.pages import Piece
from emberflow.datasource.trust import HOW_TO_TRUST, is_named
from emberflow.errors import InputError
from emberflow.rows.state_columns import PageWriter, StateColumns, found_schema, key_type
from emberflow.values.hashing import HASH_MAX, HASH_MIN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as sql

_SAMPLE_ROWS = 1_000
_SAMPLE_HIGH = HASH_MIN + (1 << 32) // 64
_ROWS_A_PIECE = 250_000
_BYTES_A_PIECE = 32 << 20
_HASHES_A_PIECE = 1_000
_PIECES_MAX = 1_000


class StoredStates:
    """The states of the newest cut of a checkpoint, or of the newest at or below a time."""

    def __init__(self, location: str, *, as_of: str | None = None, hold_seconds: float) -> None:
        # Tasks may have another working directory.
        self._location = location if "://" in location else os.path.abspath(location)
        self._store = CheckpointStore(self._location)
        self._hold_seconds = hold_seconds
        self.cut = self._cut(as_of)

    def _cut(self, as_of: str | None) -> Manifest:
        choose = _not_above(as_of) if as_of is not None else (lambda manifest: True)
        cut = self._store.hold(self._hold_seconds, choose)
        if cut is not None:
            return cut
        cuts = self._store.cuts()
        if not cuts:
            raise InputError(
                f"{self._location} has no cut. Is it the checkpointLocation of a query, and has "
                f"that taken its first one?"
            )
        raise InputError(
            f"asOf {as_of}: no cut that old is kept at {self._location}. There are "
            f"{_listed(cuts)}. Set checkpointsKept of the query to keep more."
        )

    def cuts(self) -> list[Manifest]:
        return self._store.cuts()

    def steps(self) -> dict[str, str]:
        """The step that holds each state, by the state's name."""
        return state_steps(self.cut)

    def view(self, state: str | None) -> StoredView:
        steps = self.steps()
        step = steps.get(state) if state is not None else None
        if state in steps.values():
            step = state
        if state is None or step is None:
            problem = "which state?" if state is None else f"there is no state {state!r}."
            raise InputError(
                f"{self._location}: {problem} Flow {self.cut.flow!r} has "
                f'{", ".join(map(repr, steps)) or "none"}. Say .option("state", name).'
            )
        trusted = is_named(self._location)
        return StoredView(state, step, self._location, self.cut, self._hold_seconds, trusted)


def _not_above(as_of: str) -> Callable[[Manifest], bool]:
    """``'17'`` means any front at that time; ``'17,1'`` is a global time."""
    numbers = as_of_numbers(as_of)
    return lambda manifest: manifest.time[: len(numbers)] <= numbers


def _listed(cuts: list[Manifest]) -> str:
    shown = [f"cut {cut.number} at {cut.time[0]},{cut.time[1]}" for cut in cuts]
    if len(shown) > 10:
        shown = [*shown[:5], f"{len(shown) - 10} more", *shown[-5:]]
    return "; ".join(shown)


def state_steps(cut: Manifest) -> dict[str, str]:
    """The steps with state, by the names that users know.

    A state has its own name. The grouping of a reduce is called ``count/reduce/group``; the user
    knows it as ``count``.
    """
    names: dict[str, list[str]] = {}
    for step in cut.steps:
        if step.kind == "state":
            names.setdefault(step.name, []).append(step.name)
        elif step.kind == "group" and step.details.get("window", 2) > 1:
            short = step.name.removesuffix("/group").removesuffix("/reduce")
            names.setdefault(short, []).append(step.name)
    found = {}
    for short, steps in names.items():
        if len(steps) == 1:
            found[short] = steps[0]
        else:
            found.update({step: step for step in steps})
    return found


@dataclass(frozen=True, slots=True)
class StoredView:
    """One state of one cut."""

    name: str
    step: str
    location: str
    cut: Manifest
    hold_seconds: float
    #: Whether the location is trusted whoever has written to it.
    trusted: bool

    def schema(self, *, raw: bool) -> sql.StructType:
        return found_schema(self.name, self.sample(), raw=raw)

    def key_type(self) -> sql.DataType | None:
        return key_type(self.sample().keys)

    def key_sample(self) -> Sequence[Any]:
        return self.sample().keys

    def sample(self) -> ColumnPage:
        """Some rows, to infer types from; empty only if the state has none."""
        # A scan opens every part with rows in its range, so try a small range first.
        sample = self._first_rows(_SAMPLE_HIGH)
        return sample if len(sample.keys) == _SAMPLE_ROWS else self._first_rows(HASH_MAX)

    def _first_rows(self, high: int) -> ColumnPage:
        piece = self._piece(Wanted(self.step, HASH_MIN, high))
        return ColumnPage.of_first(piece.pages(KeyFilters(), child_ids=False), _SAMPLE_ROWS)

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        parts = [part for part in self.cut.parts if part.kind != SCHEDULED]
        hashes = filters.hashes
        if count is None:
            rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
            count = max(-(-rows // _ROWS_A_PIECE), -(-size // _BYTES_A_PIECE), 1)
            if hashes is not None:
                count = min(count, -(-len(hashes) // _HASHES_A_PIECE))
        pieces: list[Piece] = []
        for low, high in split(HASH_MIN, HASH_MAX, min(count, _PIECES_MAX)):
            own = None if hashes is None else shared_out(hashes, low, high)
            piece = self._piece(Wanted(self.step, low, high, own))
            if piece.parts and own != ():
                pieces.append(piece)
        return pieces

    def _piece(self, wanted: Wanted) -> StoredPiece:
        parts = tuple(
            part
            for part in self.cut.parts
            if part.kind != SCHEDULED and wanted.may_be_in(part.low, part.high)
        )
        cut = self.cut
        return StoredPiece(
            self.location,
            cut.number,
            cut.incarnation,
            parts,
            wanted,
            self.hold_seconds,
            self.trusted,
            alive_since(self.cut, self.step),
        )


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A range of hashes of one state of one cut."""

    location: str
    cut: int
    incarnation: int
    parts: tuple[PartInfo, ...]
    wanted: Wanted
    hold_seconds: float
    trusted: bool
    #: Rows of earlier times had expired at the time of the cut; None if none ever does.
    alive_since: int | None = None

    def batches(self, columns: StateColumns, filters: KeyFilters) -> Iterator[pa.RecordBatch]:
        writer = PageWriter(columns)
        return map(writer.batch, self.pages(filters, child_ids=columns.raw))

    def pages(
        self, filters: KeyFilters, *, child_ids: bool, counted: Counted | None = None
    ) -> Iterator[ColumnPage]:
        store = CheckpointStore(self.location, own_files=not self.trusted)
        wanted = replace(self.wanted, child_ids=child_ids)
        try:
            renewed = self._renewed(store)
            for page in store.pages(self.parts, wanted, test=filters.test(), counted=counted):
                yield page.since(self.alive_since)
                if time.monotonic() - renewed > self.hold_seconds / 4:
                    renewed = self._renewed(store)
        except UntrustedFileError as error:
            raise InputError(f"{error} {HOW_TO_TRUST}") from error
        except DamagedCutError as error:
            if not store.renew(self.cut, self.incarnation, 0):
                raise self._gone() from error
            raise

    def _renewed(self, store: CheckpointStore) -> float:
        if not store.renew(self.cut, self.incarnation, self.hold_seconds):
            raise self._gone()
        return time.monotonic()

    def _gone(self) -> CheckpointError:
        return CheckpointError(
            f"{self.location}: cut {self.cut} was removed before it was read to the end, because the "
            f"query has made newer ones. load() again: a DataFrame stays with its first cut. If that "
            f"does not help, let readers write to the "
            f'checkpoint, so that they can hold a cut; raise .option("holdSeconds", '
            f"{self.hold_seconds:g}); or raise checkpointsKept of the query."
        )


def alive_since(cut: Manifest, step: str) -> int | None:
    """The first time whose rows of a step have not expired at the time of a cut. Rows of earlier times may
    still be in its files. None if the rows of the step never expire."""
    lives = (each.details.get("expires") for each in cut.steps if each.name == step)
    expires = next(lives, None)
    return None if expires is None else cut.time[0] - expires + 1


def listed_states(states: StoredStates) -> Iterator[tuple[str, str]]:
    yield from states.steps().items()


def listed_cuts(states: StoredStates) -> Iterator[tuple[int, int, int, int, int, int]]:
    for cut in states.cuts():
        parts: Mapping[str, PartInfo] = {part.path: part for part in cut.parts}
        rows = sum(part.rows for part in parts.values())
        size = sum(part.bytes for part in parts.values())
        yield cut.number, cut.time[0], cut.time[1], cut.incarnation, rows, size
