"""What outlives every crash: cuts, the logs of fronts, sinks. In memory, with the faults of a disk.

Each is as weak as the real thing may be, and no weaker. A part of a cut, once written, may turn out
to be torn; a manifest is there or not. A log takes a batch of entries, of which a crash may leave
the first few; it refuses a writer that is not the last to have opened it. A sink stores a bundle as
a whole or not at all, and only behind the bundle that the writer believes to be its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from emberflow.engine.cuts.cut import Row, Scheduled, combined
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import OnError
from emberflow.graph.nodes import Graph
from emberflow.runners.diversion import sink_partitions
from emberflow.values.item import TIME_MIN, FlatItem


class Manifest(NamedTuple):
    """What commits a cut: by its number, the one it adds to, and what its parts must look like."""

    number: int
    parent: int | None
    moment: Moment
    #: Names, each with the number of rows, which does here for a checksum.
    parts: tuple[tuple[str, int], ...]
    #: By front: how many of its elements are below the moment.
    positions: dict[int, int]


class Restorable(NamedTuple):
    """A cut that was found whole, put together with those it adds to."""

    manifest: Manifest
    rows: list[Row]
    scheduled: list[Scheduled]


class CutStorage:
    """Parts and manifests. A cut is there when its manifest is."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Row | Scheduled]] = {}
        self.manifests: list[Manifest] = []
        #: How often a cut was found damaged and the one before it used.
        self.passed_over = 0

    def write(self, name: str, rows: Sequence[Row | Scheduled]) -> None:
        self.parts[name] = list(rows)

    def tear(self, name: str) -> None:
        """A part loses its second half."""
        rows = self.parts[name]
        del rows[len(rows) // 2 :]

    def commit(self, manifest: Manifest) -> None:
        self.manifests.append(manifest)

    def newest(self) -> Restorable | None:
        """The last committed cut of which every part is whole, down to the one it began with."""
        for manifest in reversed(self.manifests):
            found = self.restorable(manifest)
            if found is not None:
                return found
            self.passed_over += 1
        return None

    def restorable(self, manifest: Manifest) -> Restorable | None:
        """A cut put together with those it adds to; None if a part of one of them is torn."""
        chain = self._chain(manifest)
        if not all(self.is_whole(name, rows) for link in chain for name, rows in link.parts):
            return None
        cuts = [[row for name, _ in link.parts for row in self.parts[name]] for link in chain]
        return Restorable(manifest, *combined(cuts, manifest.moment))

    def is_whole(self, name: str, rows: int) -> bool:
        return len(self.parts[name]) == rows

    def _chain(self, manifest: Manifest) -> list[Manifest]:
        by_number = {known.number: known for known in self.manifests}
        chain = [manifest]
        while chain[-1].parent is not None:
            chain.append(by_number[chain[-1].parent])
        return chain[::-1]


class FrontLog:
    """The times that a front has given, and the last promise that it may have reported."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.promise = TIME_MIN
        self._writer = 0.0

    def open(self, incarnation: int) -> None:
        """From now on nobody older may write, also not what is under way to the disk."""
        self._writer = max(self._writer, incarnation)

    def close(self, incarnation: int) -> None:
        """A writer was killed: nothing more comes from it."""
        if self._writer == incarnation:
            self._writer += 0.5

    def append(self, incarnation: int, times: Sequence[int], promise: int) -> bool:
        if incarnation != self._writer:
            return False
        self.times += times
        self.promise = max(self.promise, promise)
        return True


class SinkPartition:
    """Items and the global time of the last one, which change together."""

    def __init__(self) -> None:
        self.items: list[FlatItem] = []
        self.last: Moment = BEFORE_ALL
        #: What a crash left half written: nobody ever sees it.
        self.torn: list[FlatItem] = []

    def begin(self, items: list[FlatItem]) -> None:
        self.torn = items[: (len(items) + 1) // 2]

    def commit(self, after: Moment, items: list[FlatItem], last: Moment) -> bool:
        """Store a bundle behind the one that ended at ``after``; refused if that is not the last."""
        if self.last != after:
            return False
        self.items += items
        self.last = last
        return True

    @property
    def payloads(self) -> list[Any]:
        return [payload for _, _, payload in self.items]


class Storage:
    """All of it. ``incarnation`` counts up, also over crashes of the driver."""

    def __init__(self, graph: Graph, on_error: OnError = "fail") -> None:
        self.incarnation = 0
        self.cuts = CutStorage()
        self.logs = {front.index: FrontLog() for front in graph.fronts.values()}
        self.sinks = {key: SinkPartition() for key in sink_partitions(graph, on_error)}
