"""Cuts: whatever goes on meanwhile, they hold the state of the reference, and a run goes on from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow import native
from emberflow.engine.cuts.cut import Capture, Row, Scheduled, combined, owned
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Moment, Progress
from emberflow.engine.worker.worker import Worker
from emberflow.errors import InternalError
from emberflow.graph.nodes import Graph, Group, Sink
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import NestedPlace as ReferencePlace
from emberflow.runners.reference import Reference, Waiting
from emberflow.values.item import Place
from emberflow.values.owners import equal_owners
from emberflow.values.times import has_expired
from tests.effort import few, tried
from tests.engine.fake_link import FakeLink
from tests.engine.helpers import unpacked
from tests.strategies import Elements, random_flow


class Watched(Reference):
    """A reference run that remembers what every grouping and every sink has seen."""

    def __init__(self, graph: Graph) -> None:
        self.seen: dict[tuple[str, Any], list[tuple[Place, Any]]] = {}
        self.left: dict[str, list[tuple[Place, Any]]] = {name: [] for name in graph.sinks}
        super().__init__(graph)

    def _group(self, node: Group) -> Callable[[ReferencePlace, Any], Iterator[Waiting]]:
        group = super()._group(node)

        def watched(place: ReferencePlace, payload: Any) -> Iterator[Waiting]:
            bucket = self.seen.setdefault((node.name, node.key.function(payload)), [])
            bucket.append(((*place[0], *place[1]), payload))
            return group(place, payload)

        return watched

    def _sink(self, node: Sink) -> Callable[[ReferencePlace, Any], Iterator[Waiting]]:
        sink = super()._sink(node)

        def watched(place: ReferencePlace, payload: Any) -> Iterator[Waiting]:
            self.left[node.name].append(((*place[0], *place[1]), payload))
            return sink(place, payload)

        return watched

    def state(self, moment: Moment) -> dict[tuple[str, Any], list[tuple[Place, Any]]]:
        """What each bucket must keep as of a moment."""
        windows = {node.name: node.window for node in self.graph.nodes if isinstance(node, Group)}
        kept = {}
        for (operation, key), seen in self.seen.items():
            below = [entry for entry in seen if entry[0] < moment]
            below = below[max(0, len(below) - windows[operation] + 1) :]
            if below and windows[operation] > 1:
                kept[operation, key] = below
        return kept


def watched(graph: Graph, elements: Elements) -> Watched:
    reference = Watched(graph)
    for global_time, front, payload in timed_elements(graph, elements):
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference


def check_state(graph: Graph, rows: list[Row], reference: Watched, moment: Moment) -> None:
    fused = {graph.nodes[reduction.group].name for reduction in graph.reductions}
    held: dict[tuple[str, Any], list[tuple[Place, Any]]] = {}
    for row in sorted(rows, key=lambda row: row.place):
        held.setdefault((row.operation, row.key), []).append((row.place, row.payload))
    lives = {node.name: node.expires for node in graph.nodes if isinstance(node, Group)}

    def alive(
        buckets: dict[tuple[str, Any], list[tuple[Place, Any]]],
    ) -> dict[tuple[str, Any], list[tuple[Place, Any]]]:
        """Those that have not expired. A chain of cuts may still have others, from its older ones."""
        return {
            at: bucket
            for at, bucket in buckets.items()
            if not has_expired(bucket[-1][0][0], lives[at[0]], moment[0])
        }

    held, expected = alive(held), alive(reference.state(moment))
    assert held.keys() == expected.keys()
    for (operation, key), bucket in expected.items():
        if operation in fused:
            # The cycle holds the accumulator as a triple, behind the place of its mapped item.
            ((place, (_, is_accumulator, accumulator)),) = bucket
            ((row_place, payload),) = held[operation, key]
            assert is_accumulator
            assert (payload, row_place) == (accumulator, place[: len(row_place)])
        else:
            assert held[operation, key] == bucket


class CuttingLink(FakeLink):
    """Cuts travel behind the progress to their moment; captures go on a step at a time."""

    def __init__(self, graph: Graph, workers: int, random: Random) -> None:
        super().__init__(graph, workers)
        self.random = random
        self.captures: list[Capture | None] = [None] * workers
        self.parts: list[list[Row | Scheduled]] = [[] for _ in range(workers)]
        self.under_way: Moment | None = None
        self.lost = False
        self.committed: Moment = BEFORE_ALL
        self.cuts: list[tuple[Moment, list[Row | Scheduled]]] = []
        self.lost_cuts = 0

    def deliver_ack(self, worker: int) -> None:
        super().deliver_ack(worker)
        if self.under_way is None and self.random.random() < 0.3:
            self.begin_cut()

    def begin_cut(self) -> None:
        moment = self.acker.progress.of_all()
        if moment > self.committed:
            self.under_way = moment
            self.lost = self.random.random() < 0.3
            for waiting in self.progresses:
                waiting.append(("cut", moment, self.committed))  # type: ignore[arg-type]

    def deliver_progress(self, worker: int) -> None:
        message: Any = self.progresses[worker][0]
        machine = self.workers[worker]
        if isinstance(message, Progress):
            super().deliver_progress(worker)
            if self.random.random() < 0.5:
                machine.trim(self.random.choice([None, 1, 2]))
            return
        self.progresses[worker].popleft()
        if message[0] == "cut":
            self.parts[worker] = []
            self.captures[worker] = machine.begin_cut(message[1], message[2])
        else:
            machine.cut_committed(message[1])

    def capture(self, worker: int) -> None:
        capture = self.captures[worker]
        assert capture is not None
        rows = capture.next(self.random.randint(1, 3))
        if rows is not None:
            self.parts[worker] += unpacked(rows)
            if not self.lost or self.random.random() < 0.8:
                return
        self.captures[worker] = None
        if any(self.captures) or any(
            isinstance(message, tuple) and message[0] == "cut"
            for waiting in self.progresses
            for message in waiting
        ):
            return
        moment = self.under_way
        assert moment is not None
        self.under_way = None
        if self.lost:
            self.lost_cuts += 1
            return
        self.committed = moment
        self.cuts.append((moment, list(chain.from_iterable(self.parts))))
        for waiting in self.progresses:
            waiting.append(("committed", moment))  # type: ignore[arg-type]

    def _deliverable(self, stuck: frozenset[tuple[int, int]]) -> list[Callable[[], None]]:
        return super()._deliverable(stuck) + [
            lambda worker=worker: self.capture(worker)
            for worker, capture in enumerate(self.captures)
            if capture is not None
        ]

    def some(self, events: int) -> None:
        for _ in range(events):
            choices = self._deliverable(frozenset())
            if choices:
                self.random.choice(choices)()

    def enter_all(self, elements: Elements, least: Moment = BEFORE_ALL) -> None:
        """The elements from a moment on, each front on its own, while things happen."""
        own: dict[str, deque[tuple[int, Any]]] = {name: deque() for name in self.graph.fronts}
        for moment, front, payload in timed_elements(self.graph, elements):
            if moment >= least:
                own[front.name].append((moment[0], payload))
        ahead = list(own)
        while ahead:
            front = self.random.choice(ahead)
            if own[front]:
                self.enter(front, own[front].popleft())
            else:
                self.finish(front)
                ahead.remove(front)
            self.some(self.random.randint(0, 12))
        self.drain(random=self.random)


def case(seed: int) -> tuple[Random, Graph, Elements]:
    random = Random(f"cut {seed}")
    flow, elements = random_flow(random)
    graph = flow.graph()
    return random, replace(graph, reductions=()) if random.random() < 0.2 else graph, elements


def test_a_chain_of_cuts_is_the_state_of_the_reference() -> None:
    cuts = lost = scheduled = 0
    seeds = few(150)
    for seed in range(seeds):
        random, graph, elements = case(seed)
        reference = watched(graph, elements)
        link = CuttingLink(graph, random.randint(1, 4), random)
        link.enter_all(elements)
        for number, (moment, _) in enumerate(link.cuts):
            chain_ = [rows for _, rows in link.cuts[: number + 1]]
            rows, later = combined(chain_, moment)
            check_state(graph, rows, reference, moment)
            assert all(row.origin < moment <= row.place for row in later)
            assert len({row.place for row in later}) == len(later)
            scheduled += len(later)
        cuts += len(link.cuts)
        lost += link.lost_cuts
    assert cuts > 1.6 * seeds
    assert lost > seeds / 3
    assert scheduled > seeds / 2


def test_a_run_goes_on_from_a_cut_with_any_number_of_workers() -> None:
    resumed, seeds = 0, tried("runs that go on from a cut")
    for seed in range(150, 150 + seeds):
        random, graph, elements = case(seed)
        reference = watched(graph, elements)
        first = CuttingLink(graph, random.randint(1, 4), random)
        first.enter_all(elements)
        if not first.cuts:
            continue
        number = random.randrange(len(first.cuts))
        moment = first.cuts[number][0]
        rows, scheduled = combined([rows for _, rows in first.cuts[: number + 1]], moment)
        workers = random.randint(1, 5)
        second = CuttingLink(graph, workers, random)
        second.committed = moment
        owners = equal_owners(workers)
        released: dict[str, list[tuple[Place, Any]]] = {name: [] for name in graph.sinks}
        noted = second._effects

        def effects(
            worker: int, effects: Any, noted: Any = noted, released: Any = released
        ) -> None:
            for bundle in effects.bundles:
                released[bundle.sink] += [(place, payload) for place, _, payload in bundle.items]
            noted(worker, effects)

        second._effects = effects  # type: ignore[method-assign]
        for index, worker in enumerate(second.workers):
            second._effects(
                index,
                worker.restore(moment, owned(rows, index, owners), owned(scheduled, index, owners)),
            )
        for index in range(workers):  # before any front reports
            if second.acks[index]:
                second.deliver_ack(index)
        second.enter_all(elements, moment)
        for sink, left in reference.left.items():
            expected = [entry for entry in left if entry[0] >= moment]
            assert sorted(released[sink], key=lambda entry: entry[0]) == expected, f"seed {seed}"
        # The restored run has cuts of its own, which add to the one that it began with.
        so_far = [rows for _, rows in first.cuts[: number + 1]]
        for later, more in second.cuts:
            so_far.append(more)
            check_state(graph, combined(so_far, later)[0], reference, later)
        resumed += 1
    assert resumed > seeds / 2


# --- Increments ------------------------------------------------------------------------------------


def counting(keys: int) -> tuple[Worker, Callable[[int, Any], None], Callable[[Moment], None]]:
    """One worker that counts by key, and windows of three; how an element enters, and progress."""
    flow = ef.Flow("counting")
    one, two = flow.front("in").broadcast(2)
    one.key_by(lambda n: n % keys).count().sink("counts")
    two.key_by(lambda n: n % keys).group(window=3).sink("windows")
    return alone(flow)


def alone(flow: ef.Flow) -> tuple[Worker, Callable[[int, Any], None], Callable[[Moment], None]]:
    """One worker of a flow with one front; how an element enters, and progress."""
    graph = flow.graph()
    worker = Worker(Layout(graph), 0, 1)
    front = graph.fronts["in"].id

    def enter(time: int, payload: Any) -> None:
        worker.enter(front, [((time, 0), payload)], {0: (time + 1, 0)})

    return worker, enter, lambda moment: bool(worker.progress(Progress(moment, (moment,))))


def taken(capture: Capture, *, limit: int = 10) -> tuple[list[Row | Scheduled], int]:
    """All rows of a capture, and how many steps that took."""
    rows: list[Row | Scheduled] = []
    for steps in count():
        more = capture.next(limit)
        if more is None:
            return rows, steps
        rows += unpacked(more)
    raise AssertionError


def test_an_increment_looks_only_at_what_has_changed() -> None:
    worker, enter, progress = counting(keys=1000)
    for time in range(1000):
        enter(time, time)
    progress((1000, 0))
    rows, steps = taken(worker.begin_cut((1000, 0), BEFORE_ALL), limit=1)
    # One for each bucket, but for those that are looked at together and whose rows are packed.
    packed = 0 if native.loops is None else 1000 - 4
    assert (len(rows), steps) == (2000, 2000 - packed)
    worker.cut_committed((1000, 0))
    for round_ in range(1, 5):  # windows fill up, then overflow: each way of being noted
        for time in range(1000 + 10 * round_, 1005 + 10 * round_):
            enter(time, 7 * time)
        moment = (1010 + 10 * round_, 0)
        progress(moment)
        worker.trim()
        rows, steps = taken(worker.begin_cut(moment, (1000 + 10 * round_, 0)), limit=1)
        assert {row.key for row in rows} == {7 * (1000 + 10 * round_ + n) % 1000 for n in range(5)}
        assert steps <= 20
        worker.cut_committed(moment)
    progress((2000, 0))
    assert taken(worker.begin_cut((2000, 0), (1050, 0))) == ([], 0)


def test_a_key_that_stays_small_is_noted_again_for_every_cut() -> None:
    """A window of three that holds one item, then two: neither is ever touched by trimming."""
    worker, enter, progress = counting(keys=10)
    since = BEFORE_ALL
    for time in (10, 20, 30, 40, 50):
        enter(time, 3)
        progress((time + 5, 0))
        rows, _ = taken(worker.begin_cut((time + 5, 0), since))
        windows = [
            row.place[0]
            for row in rows
            if "group" in row.operation and "count" not in row.operation
        ]
        assert windows == [t for t in (time - 10, time) if t >= 10]
        worker.cut_committed((time + 5, 0))
        since = (time + 5, 0)


def test_what_a_lost_cut_held_is_in_the_next_one() -> None:
    worker, enter, progress = counting(keys=10)
    enter(1, 1)
    progress((5, 0))
    taken(worker.begin_cut((5, 0), BEFORE_ALL))
    worker.cut_committed((5, 0))
    enter(6, 2)
    enter(7, 3)
    progress((8, 0))
    lost = worker.begin_cut((8, 0), (5, 0))
    lost.next(1)  # half way
    enter(9, 4)
    progress((10, 0))
    worker.trim()
    rows, _ = taken(worker.begin_cut((10, 0), (5, 0)))
    assert {row.key for row in rows} == {2, 3, 4}
    # Nor is it committed: late, or never.
    worker.cut_committed((8, 0))
    progress((11, 0))
    rows, _ = taken(worker.begin_cut((11, 0), (8, 0)))
    assert {row.key for row in rows} == {4}
    with pytest.raises(InternalError, match="given up"):
        lost.next(1)


@pytest.mark.parametrize("key", [int, str, lambda n: (n,)], ids=["int", "str", "tuple"])
@pytest.mark.parametrize("steps", range(12))
def test_a_cut_can_be_given_up_at_any_step(key: Callable[[int], Any], steps: int) -> None:
    """Of a state, a reduce and a grouping, with keys that are looked at together and one by one."""
    flow = ef.Flow("three")
    accounts = flow.state("accounts", default=0)
    one, two, three = flow.front("in").broadcast(3)
    with one.transaction(name="deposit") as tx:
        tx.key_by(key).update(accounts, lambda balance, n: balance + n)
    tx.committed.sink("done")
    two.key_by(key).count().sink("counts")
    three.key_by(key).group(window=2).sink("windows")
    worker, enter, progress = alone(flow)
    enter(1, 0)
    progress((5, 0))
    taken(worker.begin_cut((5, 0), BEFORE_ALL))
    worker.cut_committed((5, 0))
    changed = range(1, 5)
    for number in changed:
        enter(10 + number, number)
    progress((20, 0))
    worker.trim()  # so that nothing but the lost cut knows of them
    lost = worker.begin_cut((20, 0), (5, 0))
    for _ in range(steps):
        lost.next(1)
    progress((21, 0))
    rows, _ = taken(worker.begin_cut((21, 0), (5, 0)))
    assert len(rows) == 3 * len(changed)
    assert {row.key for row in rows} == set(map(key, changed))


def test_trimming_goes_on_while_a_cut_is_under_way() -> None:
    worker, enter, progress = counting(keys=1)
    for time in range(5):
        enter(time, 0)
    progress((5, 0))
    capture = worker.begin_cut((5, 0), BEFORE_ALL)
    for time in range(5, 50):
        enter(time, 0)
        progress((time + 1, 0))
        worker.trim()
        sizes = [machine.sizes() for machine in worker.machines.stateful.values()]
        assert sorted(sizes) == [[1], [2]]
    rows, _ = taken(capture)
    assert sorted((row.operation, row.place[0]) for row in rows) == [
        ("count/reduce/group", 4),
        ("group", 3),
        ("group", 4),
    ]


def test_a_full_cut_can_be_taken_at_any_time() -> None:
    worker, enter, progress = counting(keys=10)
    since = BEFORE_ALL
    for time in range(10, 60, 10):
        enter(time, time // 10)
        progress((time + 5, 0))
        taken(worker.begin_cut((time + 5, 0), since))
        worker.cut_committed((time + 5, 0))
        since = (time + 5, 0)
    progress((70, 0))
    rows, _ = taken(worker.begin_cut((70, 0), BEFORE_ALL))
    assert {row.key for row in rows} == {1, 2, 3, 4, 5}


# --- Scheduled items -------------------------------------------------------------------------------


def reminding() -> tuple[Worker, Callable[..., Any], Callable[[Moment], Any]]:
    """Every element is reminded of after 10 and, by what reminds of it, once more after 10."""
    flow = ef.Flow("reminding")
    again = flow.loop()
    items = ef.merge(flow.front("in").map(lambda name: (name, 2)), again)
    now, later = items.key_by(lambda item: item[0]).group(window=1).map(lambda g: g[0]).broadcast(2)
    again.close(
        later.with_time().flat_map(
            lambda timed: (
                [ef.At(timed.time + 10, (timed.payload[0], timed.payload[1] - 1))]
                if timed.payload[1]
                else []
            ),
            name="remind",
        )
    )
    now.sink("out")
    graph = flow.graph()
    worker = Worker(Layout(graph), 0, 1)
    front = graph.fronts["in"].id

    def enter(time: int, payload: Any) -> Any:
        return worker.enter(front, [((time, 0), payload)], {0: (time + 1, 0)})

    return worker, enter, lambda moment: worker.progress(Progress(moment, (moment,)))


def test_a_cut_holds_what_was_scheduled_from_below_it_and_no_more() -> None:
    worker, enter, progress = reminding()
    enter(1, "a")
    enter(5, "b")
    enter(12, "c")
    progress((4, 0))
    rows, _ = taken(worker.begin_cut((4, 0), BEFORE_ALL))
    # Of a the first reminder alone: that schedules the second one anew. Of b and c nothing.
    assert [(row.operation, row.origin, row.place[0], row.payload) for row in rows] == [
        ("remind", (1, 0), 11, ("a", 1))
    ]
    worker.cut_committed((4, 0))
    progress((13, -1))
    rows, _ = taken(worker.begin_cut((13, -1), (4, 0)))
    # The first reminder of a was at 11, from where the second was scheduled: the global time of the
    # reminder is its origin.
    assert sorted((row.origin[0], row.place[0], row.payload) for row in rows) == [
        (5, 15, ("b", 1)),
        (11, 21, ("a", 0)),
        (12, 22, ("c", 1)),
    ]
    (front,) = {row.origin[1] for row in rows if row.origin[0] == 11}
    assert front < 0
    # In all, of this worker, as of now: also what is in the cut before it.
    worker.cut_committed((13, -1))
    rows, _ = taken(worker.begin_cut((13, -1), BEFORE_ALL))
    assert sorted(row.place[0] for row in rows) == [15, 21, 22]


def test_what_is_taken_back_is_not_scheduled() -> None:
    """A tombstone takes the scheduled item out of the cut, also while it is captured."""
    flow = ef.Flow("latest of two")
    numbers = ef.merge(flow.front("one"), flow.front("two")).key_by(lambda n: 0)
    tuples = numbers.group(window=2).with_time()
    tuples.map(lambda timed: ef.At(timed.time + 100, timed.payload), name="later").sink("out")
    graph = flow.graph()
    worker = Worker(Layout(graph), 0, 1)
    one, two = graph.fronts["one"], graph.fronts["two"]
    worker.enter(one.id, [((1, 0), 1), ((9, 0), 9)], {0: (10, 0)})
    worker.enter(two.id, [], {1: (5, 1)})
    worker.progress(Progress((5, 1), ((5, 1),)))
    capture = worker.begin_cut((5, 1), BEFORE_ALL)
    worker.enter(two.id, [((5, 1), 5)], {1: (20, 1)})  # now (1, 9) was wrong, and (5, 9) is right
    rows, _ = taken(capture, limit=1)
    assert [row.payload for row in rows if isinstance(row, Scheduled)] == [(1,)]
    worker.cut_committed((5, 1))
    worker.progress(Progress((10, 0), ((10, 0),)))
    rows, _ = taken(worker.begin_cut((10, 0), (5, 1)))
    assert sorted(row.payload for row in rows if isinstance(row, Scheduled)) == [(1, 5), (5, 9)]


def test_what_is_scheduled_does_not_pile_up() -> None:
    worker, enter, progress = reminding()
    for time in range(5_000):
        enter(time, time % 3)
        progress((time + 1, 0))
        worker.tidy()
    assert sum(map(len, worker.machines.pending.values())) < 1200


def test_a_cut_follows_the_progress_to_its_moment() -> None:
    worker, enter, progress = counting(keys=3)
    enter(1, 1)
    progress((2, 0))
    for moment in ((1, 0), (3, 0)):
        with pytest.raises(InternalError, match="told to cut at"):
            worker.begin_cut(moment, BEFORE_ALL)


def test_a_range_that_is_ahead_does_not_trim_what_the_next_cut_needs() -> None:
    """Early key availability: a worker's own range may be beyond the minimal time of all."""
    worker, enter, _ = counting(keys=1)
    for time in range(10):
        enter(time, 0)
    worker.workers = 2
    worker.progress(Progress((9, 0), ((9, 0), (4, 0))))
    worker.trim()
    rows, _ = taken(worker.begin_cut((4, 0), BEFORE_ALL))
    assert [row.place[0] for row in rows] == [3, 2, 3]


def test_state_of_another_flow_is_refused() -> None:
    worker, _, _ = counting(keys=1)
    with pytest.raises(InternalError, match="does not have: \\['other'\\]"):
        worker.restore((5, 0), [Row("other", 0, 1, (1, 0), 1)], [])
