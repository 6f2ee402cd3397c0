"""Storage that survives every crash: cuts, front logs, sinks. In memory, with the faults of a disk.

Each store is as weak as a real one may be, and no weaker:

- A part of a cut may turn out to be torn after it was written. A manifest is written or it is not.
- A log takes a batch of entries; a crash may leave only the first few. It accepts writes only from
  the incarnation that opened it last.
- A sink stores a bundle as a whole or not at all, and only behind the bundle that the
  writer takes for the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from emberflow.engine.cuts.cut import Row, Scheduled, combined
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.worker.succession import StateAhead
from emberflow.errors import OnError
from emberflow.graph.nodes import Graph
from emberflow.runners.diversion import sink_partitions
from emberflow.values.hashing import HashRange
from emberflow.values.item import TIME_MIN, FlatItem


class Manifest(NamedTuple):
    """The record that commits a cut: which cut it builds on, and what its parts must contain."""

    number: int
    parent: int | None
    moment: Moment
    #: The name of each part and its number of rows, which serves as a checksum here.
    parts: tuple[tuple[str, int], ...]
    #: By partition of a front: how many of its elements are below the moment.
    positions: dict[int, int]
    #: The number of the version of the flow whose state it holds.
    version: int = 0


class Restorable(NamedTuple):
    """A cut that was found whole, combined with the cuts that it builds on."""

    manifest: Manifest
    rows: list[Row]
    scheduled: list[Scheduled]


class CutStorage:
    """Parts and manifests. A cut exists once its manifest does."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Row | Scheduled]] = {}
        self.manifests: list[Manifest] = []
        #: How many damaged cuts were skipped for the cut before them.
        self.passed_over = 0

    def write(self, name: str, rows: Sequence[Row | Scheduled]) -> None:
        self.parts[name] = list(rows)

    def tear(self, name: str) -> None:
        """Drop the second half of a part."""
        rows = self.parts[name]
        del rows[len(rows) // 2 :]

    def commit(self, manifest: Manifest) -> None:
        self.manifests.append(manifest)

    def newest(self) -> Restorable | None:
        """The last committed cut that is whole, and so are all cuts that it builds on."""
        for manifest in reversed(self.manifests):
            found = self.restorable(manifest)
            if found is not None:
                return found
            self.passed_over += 1
        return None

    def restorable(self, manifest: Manifest) -> Restorable | None:
        """A cut combined with those it builds on; None if any part is torn."""
        chain = self.chain(manifest)
        if not all(self.is_whole(name, rows) for link in chain for name, rows in link.parts):
            return None
        cuts = [[row for name, _ in link.parts for row in self.parts[name]] for link in chain]
        return Restorable(manifest, *combined(cuts, manifest.moment))

    def is_whole(self, name: str, rows: int) -> bool:
        return len(self.parts[name]) == rows

    def chain(self, manifest: Manifest) -> list[Manifest]:
        """A cut and those that it builds on, the oldest first."""
        by_number = {known.number: known for known in self.manifests}
        chain = [manifest]
        while chain[-1].parent is not None:
            chain.append(by_number[chain[-1].parent])
        return chain[::-1]


def copied_ahead(
    cuts: CutStorage,
    manifest: Manifest,
    steps: Collection[str],
    ranges: Sequence[HashRange],
    random: Random,
) -> list[list[Row]]:
    """What is read of steps in ranges of hashes by a worker that they will come to, as in a live query
    (`runners.live.cold.ahead`): first of some earlier cut of the chain, then of each one since."""
    chain = cuts.chain(manifest)
    first = random.randrange(len(chain))
    base = cuts.restorable(chain[first])
    assert base is not None  # the last cut is whole
    newer = [
        [row for name, _ in link.parts for row in cuts.parts[name] if isinstance(row, Row)]
        for link in chain[first + 1 :]
    ]
    return [
        [
            row
            for row in layer
            if row.operation in steps and any(row.key_hash in own for own in ranges)
        ]
        for layer in (base.rows, *newer)
    ]


def made_ahead(
    cuts: CutStorage,
    manifest: Manifest,
    ahead: StateAhead,
    arrives: Callable[[int], bool],
    owns: Callable[[int], bool],
    random: Random,
) -> None:
    """Make state of some earlier cut of the chain, and correct it with each one since, up to the last. The
    hashes that arrive are among those that the worker ``owns``."""
    chain = cuts.chain(manifest)
    first = random.randrange(len(chain))
    base = cuts.restorable(chain[first])
    assert base is not None  # the last cut is whole
    rows = (row for row in base.rows if row.operation in ahead.steps and arrives(row.key_hash))
    _replace(ahead, base.manifest.moment, rows, random)
    ahead.schedule(base.manifest.moment, (one for one in base.scheduled if owns(one.key_hash)))
    for link in chain[first + 1 :]:
        changed: list[Row] = []
        scheduled: list[Scheduled] = []
        for one in (one for name, _ in link.parts for one in cuts.parts[name]):
            if isinstance(one, Scheduled):
                scheduled.append(one)
            elif one.operation in ahead.steps and arrives(one.key_hash):
                changed.append(one)
        _replace(ahead, link.moment, changed, random)
        ahead.schedule(link.moment, (one for one in scheduled if owns(one.key_hash)))


def _replace(ahead: StateAhead, moment: Moment, rows: Iterable[Row], random: Random) -> None:
    """Let the buckets of these rows replace those that are there, some at a time."""
    by_step: dict[str, dict[Any, list[Row]]] = {}
    for row in rows:
        by_step.setdefault(row.operation, {}).setdefault(row.key, []).append(row)
    for step, buckets in by_step.items():
        keys, size = list(buckets), random.choice((1, 3, 1_000))
        for begin in range(0, len(keys), size):
            some = keys[begin : begin + size]
            ahead.replace(moment, step, some, [row for key in some for row in buckets[key]])


class FrontLog:
    """The times that a front has assigned, and the last promise that it may have reported."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.promise = TIME_MIN
        self._writer = 0.0

    def open(self, incarnation: int) -> None:
        """Refuse older incarnations from now on, including writes that they have sent already."""
        self._writer = max(self._writer, incarnation)

    def close(self, incarnation: int) -> None:
        """The writer was killed: refuse whatever it still has on its way."""
        if self._writer == incarnation:
            self._writer += 0.5

    def append(self, incarnation: int, times: Sequence[int], promise: int) -> bool:
        if incarnation != self._writer:
            return False
        self.times += times
        self.promise = max(self.promise, promise)
        return True


class SinkPartition:
    """Items and the global time of the last one, which change atomically."""

    def __init__(self) -> None:
        self.items: list[FlatItem] = []
        self.last: Moment = BEFORE_ALL
        #: What a crash left half written. No reader ever sees it.
        self.torn: list[FlatItem] = []

    def begin(self, items: list[FlatItem]) -> None:
        self.torn = items[: (len(items) + 1) // 2]

    def commit(self, after: Moment, items: list[FlatItem], last: Moment) -> bool:
        """Store a bundle, unless the last one stored did not end at ``after``."""
        if self.last != after:
            return False
        self.items += items
        self.last = last
        return True

    @property
    def payloads(self) -> list[Any]:
        return [payload for _, _, payload in self.items]


class Storage:
    """Everything that survives. ``incarnation`` counts up, also across crashes of the driver."""

    def __init__(self, graphs: Iterable[Graph], on_error: OnError = "fail") -> None:
        """``graphs`` are those of all versions: a sink goes on with what the version before it stored."""
        self.incarnation = 0
        self.cuts = CutStorage()
        #: By front index of a partition.
        self.logs: dict[int, FrontLog] = {}
        self.sinks = {
            key: SinkPartition() for graph in graphs for key in sink_partitions(graph, on_error)
        }

    def open_logs(self, fronts: Iterable[int]) -> None:
        self.logs = {front: FrontLog() for front in fronts}
