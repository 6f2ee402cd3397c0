"""The ticks of a cut as columns: they are decoded when they are due.

What is guaranteed: **a worker is ready before it has made the ticks of its windows.** To restore it reads what a cut
has scheduled, as bytes, and sorts it by time. A tick takes some 190 bytes of memory like that, and not 900. When a
global time is due, its ticks become what a restore would have made of them (`engine.cuts.resting`).

Only ticks that wait with their keys are at rest. A scheduled item that had to be sent to the worker of its key has
the hash of its place in a cut, in place of that of the key (`engine.cuts.pending`). So what has another hash than that
of its place is with its key. One whose key has by chance the hash of the place is made at once, like all others.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.arrays import int64s
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import KeptTicks, Scheduled
from emberflow.engine.messages import Moment
from emberflow.runners.live.cold.encoding import hashes_of
from emberflow.values.hashing import HashRange
from emberflow.values.item import Place

if TYPE_CHECKING:
    import pyarrow as pa

#: So many are decoded at once for whoever reads all of them.
_AT_ONCE = 4_096
#: And so many are looked at, to find those that are with their keys.
_LOOKED_AT = 1 << 16


class TicksOfCut:
    """The ticks that a cut has of one map, the rows of a table as `CheckpointStore.scheduled` gives them."""

    def __init__(self, table: pa.Table) -> None:
        import numpy as np

        times, fronts = table["time"].to_numpy(), table["front"].to_numpy()
        order = np.lexsort((fronts, times))
        self._table = table.take(int64s(order))
        self._times, self._fronts = times[order], fronts[order]
        self._next = 0

    @property
    def least(self) -> Moment | None:
        if self._next == len(self._times):
            return None
        return int(self._times[self._next]), int(self._fronts[self._next])

    def take(self, moment: Moment) -> Sequence[Scheduled]:
        begin = self._next
        self._next = max(begin, self._position_of(moment, behind=True))
        return list(_decoded(self._table, begin, self._next))

    def all(self) -> Iterator[Scheduled]:
        return _decoded(self._table, self._next, len(self._table))

    def kept(self, moment: Moment) -> KeptTicks:
        table, begin = self._table, max(self._next, self._position_of(moment, behind=False))
        return KeptTicks(lambda: _decoded(table, begin, len(table)))

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        import numpy as np

        table = self._table.slice(self._next)
        inside = Ranges(ranges).those(table["key_hash"].to_numpy().astype(np.int32))
        chosen = np.arange(len(table)) if inside is None else np.flatnonzero(inside)
        self._table = table.take(int64s(chosen))
        self._times, self._fronts = (
            column[self._next :][chosen] for column in (self._times, self._fronts)
        )
        self._next = 0

    def _position_of(self, moment: Moment, *, behind: bool) -> int:
        """The position of the first tick of a global time, or behind the last one."""
        low = int(self._times.searchsorted(moment[0], "left"))
        high = int(self._times.searchsorted(moment[0], "right"))
        side = "right" if behind else "left"
        return low + int(self._fronts[low:high].searchsorted(moment[1], side))


def divided_ticks(
    table: pa.Table, steps: Collection[str]
) -> tuple[dict[str, TicksOfCut], Iterator[Scheduled]]:
    """Of what a cut has scheduled: by map, the ticks of these steps that are with their keys; and all others."""
    import numpy as np
    import pyarrow.compute as pc

    is_with_key = np.zeros(len(table), np.bool_)
    for begin in range(0, len(table), _LOOKED_AT):
        some = table.slice(begin, _LOOKED_AT)
        hashes = np.array(hashes_of(_places(some)), np.int64)
        is_with_key[begin : begin + len(some)] = hashes != some["key_hash"].to_numpy()
    resting: dict[str, TicksOfCut] = {}
    rest = np.ones(len(table), np.bool_)
    for step in steps:
        is_of_step = pc.equal(table["operation"], step).to_numpy() & is_with_key
        rest &= ~is_of_step
        if is_of_step.any():
            resting[step] = TicksOfCut(table.take(int64s(np.flatnonzero(is_of_step))))
    others = table.take(int64s(np.flatnonzero(rest)))
    return resting, _decoded(others, 0, len(others), is_sorted=False)


def _places(table: pa.Table) -> list[Place]:
    columns = (table[name].to_pylist() for name in ("time", "front", "child_ids"))
    return [(time, front, *ids) for time, front, ids in zip(*columns, strict=True)]


def _decoded(
    table: pa.Table, begin: int, end: int, *, is_sorted: bool = True
) -> Iterator[Scheduled]:
    """The scheduled items of some rows. One that several parts of a chain have is given once."""
    seen: set[Any] = set()
    moment: Moment | None = None
    for first in range(begin, end, _AT_ONCE):
        some = table.slice(first, min(_AT_ONCE, end - first))
        names = ("operation", "key_hash", "key", "payload")
        columns = [some[name].to_pylist() for name in names]
        for operation, hashed, origin, payload, place in zip(*columns, _places(some), strict=True):
            if is_sorted and place[:2] != moment:
                moment = place[:2]
                seen.clear()
            if (operation, place) not in seen:
                seen.add((operation, place))
                yield Scheduled(
                    operation, hashed, pickle.loads(origin), place, pickle.loads(payload)
                )
