"""The baseline, simulated: marker workers, a coordinator, a disk and sinks on a fake network.

A run is a number of lives. A life has workers, links, an acker and a coordinator. All of them die
at a moment that the seed decides, and with them everything that is on links, half captured, not yet
committed or not yet stored. `Disk` survives: committed snapshots and the content of sinks. The last
life is spared and must come to its end.

Each life may have another number of workers. A front lives beside the worker that it feeds. Sinks
store after one delay and answer after another, so that a crash may come in between.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.arrival.worker import MarkerWorker
from emberflow.engine.cuts.cut import Capture, Row, Scheduled, owned
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Ack, Bundle, Effects, Frame, Moment
from emberflow.engine.progress.acker import Acker
from emberflow.runners.live.worker.store import Store
from emberflow.runners.simulation.network import Network
from emberflow.runners.simulation.options import Options
from emberflow.sinks.protocol import StoredBundle
from emberflow.values.owners import equal_owners
from tests.simulation.commutative import commutative_flow

CRASHES_MAX = 4
#: A life that is to be lost dies within this many ticks, unless it ends earlier.
LIFE_TICKS_MAX = (100, 400, 1_500)


class WrongError(AssertionError):
    """Something was lost, came twice, or never ended."""


@dataclass
class Disk:
    """What survives a life."""

    number: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    buckets: dict[tuple[str, Any], list[Row]] = field(default_factory=dict)
    saved: list[Scheduled] = field(default_factory=list)
    sinks: dict[tuple[str, int], tuple[Moment, list[Any]]] = field(default_factory=dict)
    #: For each snapshot: the positions, and all output of the epochs up to it, to be checked.
    committed: list[tuple[dict[str, int], Counter[tuple[str, Any]]]] = field(default_factory=list)
    #: The number of crashes, and of items in back-edge logs: shows that both were tested.
    crashes: int = 0
    logged: int = 0

    def commit(
        self,
        graph: ef.Graph,
        number: int,
        full: bool,
        positions: dict[str, int],
        rows: list[Row | Scheduled],
    ) -> None:
        if full:
            self.buckets = {}
        buckets: dict[tuple[str, Any], list[Row]] = {}
        self.saved = []
        for row in rows:
            if isinstance(row, Row):
                buckets.setdefault((row.operation, row.key), []).append(row)
            else:
                self.saved.append(row)
        self.buckets |= buckets
        self.number = number
        self.positions = positions
        outputs = Counter(self.committed[-1][1]) if self.committed else Counter()
        for row in self.saved:
            if row.origin[0] < 0:
                self.logged += len(row.payload)
            else:
                name = graph.nodes[row.origin[0]].name
                outputs.update((name, payload) for payload in row.payload)
        self.committed.append((positions, outputs))

    def last(self) -> dict[tuple[str, int], Moment]:
        return {key: last for key, (last, _) in self.sinks.items()}

    def store(self, bundle: StoredBundle) -> None:
        last, payloads = self.sinks.get((bundle.sink, bundle.partition), (BEFORE_ALL, []))
        if bundle.last <= last:
            raise WrongError(f"{bundle.sink} has {last} and was given {bundle.last}")
        self.sinks[bundle.sink, bundle.partition] = (bundle.last, [*payloads, *bundle.payloads])

    def outputs(self) -> Counter[tuple[str, Any]]:
        return Counter(
            (sink, payload) for (sink, _), (_, given) in self.sinks.items() for payload in given
        )


@dataclass(frozen=True)
class Case:
    """Everything that a seed draws."""

    seed: int
    flow: ef.Flow
    elements: dict[str, list[int]]
    cyclic: bool
    stops: bool
    interval: int
    crashes: int

    @classmethod
    def of(cls, seed: int, *, cyclic: bool | None = None, stops: bool | None = None) -> Case:
        random = Random(f"markers {seed}")
        is_cyclic = random.random() < 0.5 if cyclic is None else cyclic
        flow, elements = commutative_flow(random, cyclic=is_cyclic)
        return cls(
            seed=seed,
            flow=flow,
            elements=elements,
            cyclic=is_cyclic,
            stops=random.random() < 0.25 if stops is None else stops,
            interval=random.choice((5, 30, 100, 300)),
            crashes=random.randint(0, CRASHES_MAX),
        )


class _Crash(Exception):  # noqa: N818 - no error: it is what the simulation is about
    pass


class Life:
    """One life. `run` returns whether it came to its end."""

    def __init__(self, case: Case, disk: Disk, number: int, hosts: type[Host]) -> None:
        self.case, self.disk, self.number = case, disk, number
        self.random = Random(f"life {case.seed} {number}")
        options = Options.drawn(case.seed * 100 + number)
        self.network = Network(options)
        self.graph = case.flow.graph()
        self.workers = options.workers
        fronts = {name: node.index for name, node in self.graph.fronts.items()}
        self.acker = Acker(workers=self.workers, fronts=list(fronts.values()))
        self.snapshots = disk.number
        self.under_way: int | None = None
        self.full = True
        self.captured: dict[int, tuple[dict[str, int], list[Row | Scheduled]]] = {}
        self.ready: set[int] = set()
        self.paused: set[int] = set()
        self.waits_for_calm = False
        self.over: set[int] = set()
        self.ending = False
        self.done: set[int] = set()
        self.last_life = number >= case.crashes
        self.hosts = [hosts(self, index) for index in range(self.workers)]

    def run(self) -> bool:
        if not self.last_life:
            most = self.random.choice(LIFE_TICKS_MAX)
            self.network.later(self.random.randint(1, most), self._crash)
        for host in self.hosts:
            host.begin()
        try:
            self.network.run()
        except _Crash:
            return False
        if len(self.done) < self.workers:
            raise WrongError(f"life {self.number} stands still: {self.under_way} under way")
        return True

    def _crash(self) -> None:
        if len(self.done) < self.workers:
            raise _Crash

    # The coordinator.

    def _tell(self, index: int, action: Any) -> None:
        self.network.send("coordinator", f"worker {index}", action)

    def _snapshot(self) -> None:
        if self.ending:
            return
        if self.under_way is None:
            self._begin_snapshot()
        self.network.later(self.case.interval, self._snapshot)

    def _begin_snapshot(self) -> None:
        self.snapshots += 1
        self.under_way = self.snapshots
        # A full snapshot now and then starts a new chain of increments.
        self.full = self.disk.number == 0 or self.random.random() < 0.2
        self.captured, self.paused = {}, set()
        number, full = self.under_way, self.full
        for host in self.hosts:
            if self.case.stops:
                self._tell(host.index, host.pause)
            else:
                self._tell(host.index, lambda host=host: host.inject(number, full))
        self.waits_for_calm = self.case.stops

    def hear_ready(self, index: int) -> None:
        self.ready.add(index)
        if len(self.ready) == self.workers:
            for host in self.hosts:
                self._tell(host.index, host.feed)
            self.network.later(self.case.interval, self._snapshot)

    def hear_paused(self, index: int) -> None:
        self.paused.add(index)
        self._look()

    def hear_ack(self, ack: Ack) -> None:
        self.acker.receive(ack)
        self._look()

    def hear_over(self, index: int) -> None:
        self.over.add(index)
        self._look()

    def _look(self) -> None:
        """Check whether something waits for the moment when nothing is in flight, and go on if so."""
        if self.acker.entries:
            return
        if self.waits_for_calm and len(self.paused) == self.workers:
            self.waits_for_calm = False
            number, full = self.snapshots, self.full
            for host in self.hosts:
                self._tell(host.index, lambda host=host: host.snapshot_at_once(number, full))
        if len(self.over) == self.workers and self.under_way is None and not self.ending:
            self.ending = True
            self._begin_snapshot()

    def hear_captured(
        self, index: int, positions: dict[str, int], rows: list[Row | Scheduled]
    ) -> None:
        self.captured[index] = (positions, rows)
        if len(self.captured) == self.workers:
            self.network.later(self.network.ticks(20), self._commit)

    def _commit(self) -> None:
        number = self.under_way
        assert number is not None
        positions = {k: v for part, _ in self.captured.values() for k, v in part.items()}
        rows = [row for _, part in self.captured.values() for row in part]
        self.disk.commit(self.graph, number, self.full, positions, rows)
        self.under_way = None
        for host in self.hosts:
            self._tell(host.index, lambda host=host: host.committed(number))
        self._look()

    def hear_done(self, index: int) -> None:
        self.done.add(index)


class Host:
    """A worker, the fronts beside it, and the stores of its sinks."""

    def __init__(self, life: Life, index: int) -> None:
        self.life, self.index = life, index
        self.layout = Layout(life.graph, fuses_ticks=False)
        self.worker = self.made_worker()
        self.fronts = [
            name for name, node in life.graph.fronts.items() if node.index % life.workers == index
        ]
        self.next = {name: life.disk.positions.get(name, 0) for name in self.fronts}
        self.stores: dict[tuple[str, int], Store] = {}
        self.frames: list[Frame] = []
        self.order: int | None = None
        self.positions: dict[str, int] = {}
        self.capture: Capture | None = None
        self.rows: list[Row | Scheduled] = []
        self.is_paused = False
        self.told_over = False

    def made_worker(self, kind: type[MarkerWorker] = MarkerWorker) -> MarkerWorker:
        life = self.life
        return kind(
            self.layout,
            self.index,
            life.workers,
            incarnation=life.number,
            delivered=life.disk.last(),
            restored=life.disk.number,
        )

    def begin(self) -> None:
        disk, workers = self.life.disk, self.life.workers
        rows = [row for bucket in disk.buckets.values() for row in bucket]
        self.worker.restore(owned(rows, self.index, equal_owners(workers)))
        self.do(self.worker.restore_in_flight(disk.number, disk.saved))
        # Sent after the ack of what was in flight, on the same link.
        self.tell(lambda: self.life.hear_ready(self.index))

    # Events.

    def feed(self) -> None:
        """Take a few elements of each front, again and again."""
        network, graph = self.life.network, self.life.graph
        if not self.is_paused:
            for name in self.fronts:
                elements, first = self.life.case.elements[name], self.next[name]
                count = network.count(3)
                given = elements[first : first + count]
                self.next[name] = first + len(given)
                node = graph.fronts[name]
                items = [((first + n, node.index), 0, given[n]) for n in range(len(given))]
                promise = {node.index: (self.next[name], node.index)}
                self.do(self.worker.enter_items(node.id, items, promise))
            if all(self.next[name] >= len(self.life.case.elements[name]) for name in self.fronts):
                self.told_over = True
                self.tell(lambda: self.life.hear_over(self.index))
                return
        network.later(network.ticks(30), self.feed)

    def receive(self, frame: Frame) -> None:
        """Frames wait while the worker is busy, and are then processed together."""
        if not self.frames:
            self.life.network.later(self.life.network.ticks(20), self.work)
        self.frames.append(frame)

    def work(self) -> None:
        frames, self.frames = self.frames, []
        self.do(self.worker.deliver(frames))

    def inject(self, number: int, full: bool) -> None:
        self.begin_order(number)
        self.do(self.worker.inject(number, full=full))

    def begin_order(self, number: int) -> None:
        self.order = number
        self.positions = dict(self.next)

    def pause(self) -> None:
        self.is_paused = True
        self.tell(lambda: self.life.hear_paused(self.index))

    def snapshot_at_once(self, number: int, full: bool) -> None:
        self.begin_order(number)
        self.worker.snapshot_at_once(number, full=full)
        self.go_on()

    def committed(self, number: int) -> None:
        self.is_paused = False
        self.release(self.worker.committed(number))
        self.go_on()
        if self.life.ending and self.life.under_way is None:
            self.finish()

    # Effects.

    def tell(self, action: Any) -> None:
        self.life.network.send(f"worker {self.index}", "coordinator", action)

    def do(self, effects: Effects) -> None:
        life = self.life
        for destination, frame in effects.frames:
            host = life.hosts[destination]
            life.network.send(
                f"worker {self.index}",
                f"peer {destination}",
                lambda host=host, frame=frame: host.receive(frame),
            )
        if effects.ack:
            self.tell(lambda: life.hear_ack(effects.ack))
        self.release(effects.bundles)
        self.go_on()

    def go_on(self) -> None:
        """Begin to save a snapshot that is complete."""
        if self.order is None or self.capture is not None:
            return
        if self.worker.complete_snapshot() is not None:
            self.capture = self.worker.begin_cut((self.order, 0), BEFORE_ALL)
            self.rows = []
            self.life.network.later(1, self.save)

    def save(self) -> None:
        assert self.capture is not None
        rows = self.capture.next(3)
        if rows is not None:
            self.rows += rows
        if rows is not None or not self.may_tell_captured():
            self.life.network.later(self.life.network.ticks(5), self.save)
            return
        positions, saved = self.positions, self.rows
        self.capture, self.order = None, None
        self.tell(lambda: self.life.hear_captured(self.index, positions, saved))

    def may_tell_captured(self) -> bool:
        assert self.order is not None
        return not self.worker.owes(self.order) and not any(
            store.unstored for store in self.stores.values()
        )

    def release(self, bundles: list[Bundle]) -> None:
        for bundle in bundles:
            key = (bundle.sink, bundle.partition)
            store = self.stores.setdefault(key, Store(*key))
            store.add(bundle)
            self.store_next(store)

    def store_next(self, store: Store) -> None:
        bundle = None if store.is_under_way else store.next()
        if bundle is None:
            return
        network = self.life.network

        def stored() -> None:
            self.life.disk.store(bundle)
            network.later(network.ticks(20), acknowledged)

        def acknowledged() -> None:
            store.stored()
            self.store_next(store)

        network.later(network.ticks(40), stored)

    def finish(self) -> None:
        if any(store.unstored for store in self.stores.values()):
            self.life.network.later(5, self.finish)
        else:
            self.tell(lambda: self.life.hear_done(self.index))


def judged(case: Case, hosts: type[Host] = Host) -> Disk:
    """Run a case through all its lives and compare it with the reference. Raises `WrongError`."""
    disk = Disk()
    number = 0
    while not Life(case, disk, number, hosts).run():
        number += 1
        disk.crashes = number
    expected = _reference(case, {name: len(given) for name, given in case.elements.items()})
    found = disk.outputs()
    if found != expected:
        raise WrongError(
            f"seed {case.seed}, {case.flow.name!r}, {number} crashes: lost {expected - found}, "
            f"too much {found - expected}"
        )
    if not case.cyclic:
        for positions, outputs in disk.committed:
            if outputs != _reference(case, positions):
                raise WrongError(
                    f"seed {case.seed}, {case.flow.name!r}: the snapshot at {positions} is not "
                    f"consistent with its output"
                )
    return disk


def _reference(case: Case, positions: dict[str, int]) -> Counter[tuple[str, Any]]:
    given = {name: elements[: positions[name]] for name, elements in case.elements.items()}
    outputs = ef.run(case.flow, **given)
    return Counter((sink, payload) for sink, payloads in outputs.items() for payload in payloads)
