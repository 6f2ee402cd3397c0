"""The worker: the machines together, on one worker and over links that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Frame, Moment, Progress
from emberflow.engine.speculation import budget as budget_module
from emberflow.engine.worker.routing import barrier_host
from emberflow.engine.worker.worker import Worker
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.values.hashing import key_hash, owner
from tests.effort import examples, few
from tests.engine.fake_link import FakeLink, on_fake_link
from tests.strategies import Elements, random_flow

# --- One worker ------------------------------------------------------------------------------------


class Watched(Reference):
    """A reference run that knows whether anything was scheduled."""

    scheduled = False

    def _schedule(self, *item: Any) -> None:
        self.scheduled = True
        super()._schedule(*item)


def watched(graph: Graph, elements: Elements) -> Watched:
    reference = Watched(graph)
    for global_time, front, payload in timed_elements(graph, elements):
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference


def runs_of_one_front(
    graph: Graph, elements: Elements
) -> Iterator[tuple[Front, list[tuple[Moment, Any]]]]:
    """All elements in order, together where they are of one front."""
    for front, run in groupby(timed_elements(graph, elements), key=lambda element: element[1]):
        yield front, [(moment, payload) for moment, _, payload in run]


def test_in_order_one_worker_never_replays() -> None:
    """Random flows, also with loops that are not fused. Only what is scheduled can come too soon."""
    regions = without_schedule = 0
    seeds = few(150)
    for seed in range(seeds):
        flow, elements = random_flow(Random(f"in order {seed}"))
        graph = flow.graph()
        if seed % 2:
            graph = replace(graph, reductions=())
        reference = watched(graph, elements)
        worker = Worker(Layout(graph), 0, 1)
        outputs: dict[str, list[Any]] = {name: [] for name in graph.sinks}
        partitions: dict[str, list[Any]] = {name: [] for name in graph.sinks}
        for front, run in runs_of_one_front(graph, elements):
            effects = worker.enter(front.id, run, {front.index: AFTER_ALL})
            assert not effects.frames
            assert effects.ack.reports == {front.index: AFTER_ALL}
            if not reference.scheduled:
                # What stays on one worker costs no ack. A cycle may have held something back.
                assert not effects.ack.anywhere
                assert not effects.ack.ranges
            minimal = run[-1][0]
            for bundle in worker.progress(Progress(minimal, (minimal,))).bundles:
                partitions[bundle.sink] += bundle.items
        worker.trim()
        for bundle in worker.progress(Progress(AFTER_ALL, (AFTER_ALL,))).bundles:
            partitions[bundle.sink] += bundle.items
        for sink, items in partitions.items():
            outputs[sink] = [item[-1] for item in sorted(items, key=lambda item: item[0])]
        assert outputs == reference.outputs, f"seed {seed}: {flow.name}"
        statistics = worker.statistics()
        assert statistics.released == sum(map(len, outputs.values()))
        if not reference.scheduled:
            without_schedule += 1
            regions += any(unit.is_region for unit in worker.layout.units)
            assert statistics.replays == statistics.tombstones == 0, f"seed {seed}: {flow.name}"
            assert statistics.arrived == statistics.released
    assert without_schedule > seeds / 5
    assert regions > seeds / 10


def test_what_an_earlier_life_delivered_is_not_delivered_again() -> None:
    flow = ef.Flow("again")
    flow.front("in").map(lambda n: n).sink("out")
    worker = Worker(Layout(flow.graph()), 0, 1, delivered={("out", 0): (2, 0)})
    worker.enter(flow.graph().fronts["in"].id, [((time, 0), time) for time in range(5)], {})
    (bundle,) = worker.progress(Progress((4, 0), ((4, 0),))).bundles
    assert [item[-1] for item in bundle.items] == [3]
    assert bundle.last == (3, 0)


def test_what_schedules_what_was_scheduled_is_taken_back_from_its_own_history() -> None:
    """Seed 973 once: two histories, scheduled at different times, scheduled the same place.

    A tuple that grows makes its item come sooner. The new item overtakes the tombstone of the old
    one, and when both schedule for time 100, that tombstone must not take back the new one.
    """
    flow = ef.Flow("scheduled twice")
    direct, grouped = ef.merge(flow.front("one"), flow.front("two")).broadcast(2)
    tuples = grouped.key_by(lambda _: 0).group(window=2).with_time()
    sooner = tuples.map(lambda timed: ef.At(timed.time + 5 - len(timed.payload), timed.payload))
    both = ef.merge(direct.map(lambda name: (name,)), sooner)
    both.map(lambda names: ef.At(100, names)).sink("out")
    link = on_fake_link(flow, 1)
    link.enter("two", (10, "b"))
    link.enter("one", (5, "a"))
    link.finish("one")
    link.finish("two")
    link.drain()
    assert link.released_to("out") == ef.run(flow, one=[ef.At(5, "a")], two=[ef.At(10, "b")])["out"]


# --- Several workers -------------------------------------------------------------------------------


def moments_in(frame: Frame, sinks: set[int]) -> tuple[set[Moment], set[Moment]]:
    general: set[Moment] = set()
    bound: set[Moment] = set()
    for node, items in frame.parts:
        (bound if node in sinks else general).update(item[0][:2] for item in items)
    return general, bound


class Counting(FakeLink):
    """Counts how often each id shows up in acks, for each table and global time."""

    def deliver_frame(self, sender: int, receiver: int) -> None:
        self._check(self.frames[sender, receiver][0], receiver)
        super().deliver_frame(sender, receiver)

    def _check(self, frame: Frame, receiver: int) -> None:
        assert frame.id not in self.seen
        assert 0 < frame.id < 2**64
        self.seen.add(frame.id)
        assert receiver != frame.sender, "what stays on a worker is not sent"

    def __init__(self, graph: Graph, workers: int) -> None:
        super().__init__(graph, workers)
        self.seen: set[int] = set()


@given(st.randoms(use_true_random=False), st.integers(2, 4))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_arrives_when_the_output_is_the_reference(random: Random, workers: int) -> None:
    """Frames, acks, progress and elements in any order that the links allow."""
    flow, elements = random_flow(Random(random.randrange(400)))
    graph = flow.graph()
    link = Counting(graph, workers)
    waiting = {front.index: [] for front in graph.fronts.values()}
    for moment, front, payload in timed_elements(graph, elements):
        waiting[front.index].append((front.name, moment[0], payload))
    for front in graph.fronts.values():
        if not waiting[front.index]:
            link.finish(front.name)
    while any(waiting.values()):
        own = random.choice([elements for elements in waiting.values() if elements])
        name, time, payload = own.pop(0)
        link.enter(name, (time, payload))
        if not own:
            link.finish(name)
        for _ in range(random.randrange(4)):
            if choices := link._deliverable(frozenset()):
                random.choice(choices)()
    link.drain(random=random)
    assert link.acker.entries == 0
    assert link.failure is None
    for sink, payloads in ef.run(flow, **elements).items():
        released = [out for (name, _), out in link.released.items() if name == sink]
        if len(released) == 1:
            assert released[0] == payloads
        assert Counter(x for out in released for x in out) == Counter(payloads)


def test_an_ack_tells_all_that_its_event_finished_and_sent_at_once() -> None:
    """The xor of an ack, event by event, is the frames that came xor those that went."""
    flow = ef.Flow("acks")
    counted = flow.front("in").key_by(lambda n: n % 5).reduce(first=lambda n: n, combine=max)
    counted.key_by(lambda n: n % 3).group(window=2).sink("out")
    graph = flow.graph()
    link = FakeLink(graph, 3)
    sinks = {sink.id for sink in graph.sinks.values()} | {len(graph.nodes)}
    link.enter("in", *((time, time * 7 % 11) for time in range(40)))
    events = 0
    while links := [ends for ends, frames in link.frames.items() if frames]:
        ((sender, receiver), *_) = links
        came = link.frames[sender, receiver][0]
        sizes = {ends: len(frames) for ends, frames in link.frames.items()}
        link.acks[receiver].clear()
        link.deliver_frame(sender, receiver)
        (ack,) = link.acks[receiver]
        tables: dict[Any, dict[Moment, int]] = {}
        went = [
            (ends[1], frames[-1])
            for ends, frames in link.frames.items()
            if ends[0] == receiver and len(frames) > sizes.get(ends, 0)
        ]
        for destination, frame in [(receiver, came), *went]:
            general, bound = moments_in(frame, sinks)
            for table, moments in ((("level", frame.level), general), (destination, bound)):
                if moments:
                    entries = tables.setdefault(table, {})
                    entries[min(moments)] = entries.get(min(moments), 0) ^ frame.id
        assert ack.anywhere == tables.pop(("level", 0), {})
        levels = [key for key in tables if isinstance(key, tuple)]
        assert ack.deeper == {key[1]: tables.pop(key) for key in levels}
        assert ack.ranges == tables
        events += 1
    assert events > 2


#: Some are hashed by the compiled loops, some are remembered, and each has one that it is equal to.
KEYS: list[Any] = [7, 7.0, "seven", b"seven", ("seven", 7), ("seven", 7.0), None, True, 1, 1.5]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
def test_each_partition_has_one_host_and_what_is_for_it_comes_there(
    workers: int, partitions: int
) -> None:
    def key_of(n: int) -> Any:
        return KEYS[n] if n < len(KEYS) else n

    flow = ef.Flow("partitions")
    flow.front("in").key_by(key_of).sink("out", partitions=partitions)
    link = on_fake_link(flow, workers)
    (sink,) = link.graph.sinks.values()
    hosts = [barrier_host(sink, partition, workers) for partition in range(partitions)]
    for worker in link.workers:
        assert list(worker.barriers[sink.id]) == [
            partition for partition, host in enumerate(hosts) if host == worker.index
        ]
    assert hosts == sorted(hosts), "ranges of hashes, as those of workers"
    link.enter("in", *((time, time) for time in range(30)))
    link.finish("in")
    link.drain()
    for partition in range(partitions):
        assert link.released.get(("out", partition), []) == [
            n for n in range(30) if owner(key_hash(key_of(n)), partitions) == partition
        ]


def test_frames_of_workers_and_incarnations_never_share_an_id() -> None:
    flow = ef.Flow("ids")
    flow.front("in").key_by(lambda n: n).group(window=1).sink("out")
    layout = Layout(flow.graph())
    node = flow.graph().fronts["in"].id
    ids: list[int] = []
    for incarnation in range(3):
        for index in range(3):
            worker = Worker(layout, index, 3, incarnation=incarnation)
            for time in range(20):
                effects = worker.enter(node, [((time, 0), time)], {})
                ids += [frame.id for _, frame in effects.frames]
    assert len(ids) == len(set(ids)) > 50
    assert 0 not in ids


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_on_any_worker_is_told_by_the_first(late: bool) -> None:
    """Once a KeyError: the frame of a failure, for a node that no graph has."""
    flow = ef.Flow("failure")
    quotients = flow.front("in").key_by(lambda n: n).group(window=1).map(lambda ns: 1 // ns[0])
    quotients.sink("out")
    workers = 2 + owner(key_hash(0), 2)  # so that 0 is not of the first worker
    while owner(key_hash(0), workers) == 0:
        workers += 1
    link = on_fake_link(flow, workers)
    link.enter("in", (1, 5), (2, 0), (3, 0))
    link.finish("in")
    if late:
        link.drain(stuck=frozenset((worker, 0) for worker in range(workers)))
        assert link.failure is None
    link.drain()
    assert isinstance(link.failure, ef.FunctionError)
    assert link.failure.global_time == (2, 0)
    assert link.acker.progress.of_all() == (2, 0)  # so no output passes it
    assert link.acker.entries == 1


# --- Bounded speculation ---------------------------------------------------------------------------


def rounds(flow: ef.Flow, stream: ef.Stream[Any]) -> ef.Stream[Any]:
    """Three times round a loop, by another key each time."""
    again = flow.loop()
    entering = stream.map(lambda n: (3, n))
    tuples = ef.merge(entering, again).key_by(lambda pair: pair[1] % 3).group(window=2)
    changed = tuples.map(lambda pairs: (pairs[-1][0] - 1, sum(n for _, n in pairs) % 19))
    again.close(changed.filter(lambda pair: pair[0] > 0))
    return changed


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_cycle_holds_back_is_in_flight_and_goes_on_with_the_minimal_time(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(budget_module, "_REPLAYS_MAX", 0)
    flow = ef.Flow("rounds")
    rounds(flow, flow.front("in")).sink("out")
    link = on_fake_link(flow, workers)
    link.enter("in", *((time, 5 * time) for time in range(10)), promise=(0, 0))
    link.drain()
    # Nothing is known of the first element's end, so nothing may go on, and nothing is lost.
    assert any(worker.held() for worker in link.workers)
    assert link.acker.entries > 0
    assert not link.released
    link.finish("in")
    link.drain()
    assert not any(worker.held() for worker in link.workers)
    assert link.acker.entries == 0
    assert link.released_to("out") == ef.run(flow, **{"in": [5 * n for n in range(10)]})["out"]


def test_malformed_records_come_ahead_of_what_their_element_fails_with() -> None:
    """From a front on another worker than the barrier, acked as all that is bound for a sink."""
    flow = ef.Flow("malformed")
    flow.front("in").map(lambda number: 1 // number).sink("out")
    layout = Layout(flow.graph(), on_error="divert")
    barrier, front = (Worker(layout, index, 2) for index in range(2))
    record = ef.Diverted(5, 0, "front 'in'", "-", "line 1 is not JSON", "{oops")
    entered = front.enter(0, [((5, 0), 0)], {0: (6, 0)}, [((5, 0, -1), record)])
    ((destination, frame),) = [sent for sent in entered.frames if sent[0] == 0]
    assert destination == 0
    assert entered.ack.ranges[0][5, 0] == frame.id
    barrier.deliver([frame])
    assert barrier.progress(Progress((5, 0), ((5, 0), (5, 0)))).bundles == []
    (bundle,) = barrier.progress(Progress((6, 0), ((6, 0), (6, 0)))).bundles
    assert (bundle.sink, bundle.partition, bundle.last) == ("errors", 0, (5, 0))
    assert [payload.payload for _, _, payload in bundle.items] == ["{oops", 0]
