"""Marker workers, two of them over links that the test moves by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.arrival.channels import Channels
from emberflow.engine.arrival.outputs import SnapshotGoneError
from emberflow.engine.arrival.worker import MarkerWorker
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Effects, Frame
from emberflow.errors import InternalError, OutputError


class Pair:
    """Two workers; frames wait in ``links[sender, receiver]`` until they are moved."""

    def __init__(self, flow: ef.Flow) -> None:
        self.graph = flow.graph()
        self.workers = [MarkerWorker(Layout(self.graph), index, 2) for index in range(2)]
        self.links: dict[tuple[int, int], list[Frame]] = {(0, 1): [], (1, 0): []}
        self.entries: dict[Any, int] = {}

    def do(self, sender: int, effects: Effects) -> None:
        for destination, frame in effects.frames:
            self.links[sender, destination].append(frame)
        for moment, xor in effects.ack.anywhere.items():
            self.entries[moment] = self.entries.get(moment, 0) ^ xor

    def enter(self, worker: int, *payloads: Any) -> None:
        (front,) = self.graph.fronts.values()
        items = [((number, worker), 0, payload) for number, payload in enumerate(payloads)]
        self.do(worker, self.workers[worker].enter_items(front.id, items, {}))

    def inject(self, worker: int, number: int = 1) -> None:
        self.do(worker, self.workers[worker].inject(number, full=True))

    def move(self, sender: int) -> None:
        frames = self.links[sender, 1 - sender]
        self.links[sender, 1 - sender] = []
        self.do(1 - sender, self.workers[1 - sender].deliver(frames))

    def move_all(self) -> None:
        while any(self.links.values()):
            self.move(0)
            self.move(1)

    def saved(self, number: int = 1) -> tuple[dict[Any, Any], list[Scheduled]]:
        """The states of both workers by key, and what was saved of output and logs."""
        states: dict[Any, Any] = {}
        others: list[Scheduled] = []
        for worker in self.workers:
            capture = worker.begin_cut((number, 0), BEFORE_ALL)
            while (rows := capture.next(100)) is not None:
                states |= {row.key: row.payload for row in rows if isinstance(row, Row)}
                others += [row for row in rows if isinstance(row, Scheduled)]
        return states, others

    @property
    def in_flight(self) -> bool:
        return any(self.entries.values())


def counting() -> ef.Flow:
    flow = ef.Flow("count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


WORDS = [f"word {number}" for number in range(20)]


def test_what_follows_a_marker_waits_for_it_on_the_other_channels() -> None:
    pair = Pair(counting())
    pair.enter(0, *WORDS)
    pair.inject(0)
    pair.enter(0, *WORDS)  # behind the marker
    pair.move_all()
    assert pair.workers[1].buffered > 0
    assert pair.in_flight
    assert all(worker.complete_snapshot() is None for worker in pair.workers)
    pair.enter(1, *WORDS)  # ahead of the marker of this worker
    pair.inject(1)
    pair.move_all()
    assert [worker.buffered for worker in pair.workers] == [0, 0]
    assert not pair.in_flight
    states, saved = pair.saved()
    assert states == dict.fromkeys(WORDS, 2)  # one of each worker
    # And the output of the epoch is what led there.
    assert sorted(payload for row in saved for payload in row.payload) == sorted(
        (word, count) for word in WORDS for count in (1, 2)
    )


def test_output_leaves_with_the_commit_as_one_bundle_of_its_epoch() -> None:
    pair = Pair(counting())
    pair.enter(0, *WORDS)
    pair.inject(0)
    pair.inject(1)
    pair.move_all()
    pair.saved()
    (host,) = (worker for worker in pair.workers if worker.held_items)
    assert not host.owes(1)
    assert host.owes(2)
    (bundle,) = host.committed(1)
    assert (bundle.last, len(bundle.items)) == ((1, 0), len(WORDS))
    assert host.committed(1) == []
    assert not host.owes(2)


def test_an_increment_holds_what_changed_as_of_its_marker() -> None:
    pair = Pair(counting())
    pair.enter(0, *WORDS)
    pair.inject(0)
    pair.inject(1)
    pair.move_all()
    pair.saved()
    pair.enter(0, WORDS[3])
    for worker in (0, 1):
        pair.do(worker, pair.workers[worker].inject(2, full=False))
    pair.enter(0, WORDS[3], WORDS[5])
    pair.move_all()
    assert pair.saved(2)[0] == {WORDS[3]: 2}


def looping() -> ef.Flow:
    flow = ef.Flow("rounds")
    again = flow.loop()
    entering = flow.front("numbers").map(lambda number: (3, number))
    grouped = ef.merge(entering, again).key_by(lambda pair: pair[0] + pair[1]).group(window=1)
    turned = grouped.map(lambda last: last[0])
    again.close(turned.flat_map(lambda pair: [(pair[0] - 1, pair[1])] if pair[0] else []))
    turned.sink("out")
    return flow


def test_a_back_edge_log_holds_what_goes_round_and_nothing_else() -> None:
    pair = Pair(looping())
    pair.enter(0, *range(20))  # some of it is now on its way to the other worker
    pair.inject(0)
    pair.inject(1)
    pair.move_all()
    _, saved = pair.saved()
    (merge,) = {edge.number for edge in pair.workers[0].channels.edges if edge.is_back}
    logged = [item for row in saved if row.origin == (~merge, 0) for item in row.payload]
    output = [payload for row in saved if row.origin[0] >= 0 for payload in row.payload]
    assert logged
    assert len(output) < 20 * 4  # four rounds a number, of which some are to come
    again = Pair(looping())
    for index, worker in enumerate(again.workers):
        again.do(index, worker.restore_in_flight(1, saved))
    again.move_all()
    again.inject(0, 2)
    again.inject(1, 2)
    again.move_all()
    _, rest = again.saved(2)
    output += [payload for row in rest for payload in row.payload]
    assert sorted(output) == sorted((left, number) for left in range(4) for number in range(20))


def test_a_flow_without_a_cycle_has_no_back_edge_even_if_workers_send_to_each_other() -> None:
    channels = Channels(Layout(counting().graph()), 0, 2)
    assert not channels.back
    assert any(edge.crosses for edge in channels.edges)


def test_one_snapshot_comes_after_another() -> None:
    pair = Pair(counting())
    pair.inject(0)
    with pytest.raises(InternalError, match="met marker 2 while snapshot 1 was under way"):
        pair.inject(0, 2)


def test_a_sink_that_is_ahead_of_the_snapshot_is_refused() -> None:
    with pytest.raises(SnapshotGoneError, match="the output of snapshot 7, and the newest"):
        MarkerWorker(Layout(counting().graph()), 0, 1, delivered={("counts", 0): (7, 0)})


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda number: 1 // number, ef.FunctionError),
        (lambda number: ef.At(9, number), OutputError),
    ],
)
def test_what_fails_ends_the_run_at_once(
    function: Callable[[int], Any], error: type[Exception]
) -> None:
    flow = ef.Flow("fails")
    flow.front("numbers").map(function).sink("out")
    pair = Pair(flow)
    with pytest.raises(error):
        pair.enter(0, 0)


def test_a_combine_that_raises_is_told_as_the_reference_tells_it() -> None:
    flow = ef.Flow("fails")
    flow.front("numbers").key_by(lambda number: 0).reduce(
        first=lambda number: number, combine=lambda held, number: held // number
    ).sink("out")
    with pytest.raises(ef.FunctionError) as expected:
        ef.run(flow, numbers=[1, 0])
    worker = MarkerWorker(Layout(flow.graph()), 0, 1)
    (front,) = flow.graph().fronts.values()
    with pytest.raises(ef.FunctionError) as found:
        worker.enter_items(front.id, [((0, 0), 0, 1), ((1, 0), 0, 0)], {})
    assert str(found.value) == str(expected.value)
