"""The acker: the minimal time passes nothing that is in flight, and in the end reaches the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Ack, Bound, Moment, Progress, Xors
from emberflow.engine.progress.acker import Acker
from emberflow.engine.progress.tables import AckTable
from emberflow.values.hashing import stable_id
from emberflow.values.item import Place
from tests.effort import examples

xors = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 1)), st.integers(0, 15))


@given(st.lists(xors))
@settings(max_examples=examples(100), deadline=None)
def test_the_table_is_the_least_time_whose_xor_is_not_zero(added: list[Xors]) -> None:
    table, plain = AckTable(), dict[Moment, int]()
    for entry in added:
        table.add(entry)
        for moment, xor in entry.items():
            plain[moment] = plain.get(moment, 0) ^ xor
        open_ = [moment for moment, xor in plain.items() if xor]
        assert table.minimum() == min(open_, default=AFTER_ALL)
        assert len(table) == len(open_)
        assert len(table._heap) == len(table._in_heap) <= len(plain)


@dataclass
class Flight:
    """A frame: bound for the barriers of a worker, or to be processed there and cause others.

    Its times are global times, or turns of them where it is to be processed.
    """

    id: int
    worker: int
    is_bound: bool
    times: set[Place]


@dataclass
class World:
    """Workers that send frames to each other at random, ack by the rules, and know all of it."""

    random: Random
    workers: int
    entering: dict[int, list[Moment]]
    flying: list[Flight] = field(default_factory=list)
    acks: list[deque[Ack]] = field(default_factory=list)
    causes_left: int = 40
    frames: int = 0

    def __post_init__(self) -> None:
        self.acks = [deque() for _ in range(self.workers)]

    def step(self, acker: Acker) -> bool:
        """Something happens, if anything can: an element enters, a frame or an ack arrives."""
        choices = [("enter", front) for front, moments in self.entering.items() if moments]
        choices += [("frame", number) for number in range(len(self.flying))]
        choices += [("ack", worker) for worker in range(self.workers) if self.acks[worker]]
        if not choices:
            return False
        kind, number = self.random.choice(choices)
        if kind == "enter":
            self._enter(number)
        elif kind == "frame":
            self._process(self.flying.pop(number))
        else:
            self._check(acker.receive(self.acks[number].popleft()))
        return True

    def _enter(self, front: int) -> None:
        moments = self.entering[front]
        moment = moments.pop()
        ack = Ack(front % self.workers, {}, {}, {front: moments[-1] if moments else AFTER_ALL})
        self._send({moment}, ack)
        self.acks[ack.worker].append(ack)

    def _process(self, frame: Flight) -> None:
        ack = Ack(frame.worker, {}, {}, {})
        self._note(ack, frame)
        if not frame.is_bound:
            for time in frame.times:
                if self.causes_left and self.random.random() < 0.8:
                    self.causes_left -= 1
                    # At the same time or a turn of it, and sometimes scheduled for a later time too.
                    child = (self.random.randrange(3),) if self.random.random() < 0.3 else ()
                    later = {(time[0] + 2, -1)} if self.random.random() < 0.3 else set()
                    self._send({time + child} | later, ack)
        self.acks[ack.worker].append(ack)

    def _send(self, times: set[Place], ack: Ack) -> None:
        self.frames += 1
        is_bound = self.random.random() < 0.4
        frame = Flight(
            stable_id("frame", self.frames),
            self.random.randrange(self.workers),
            is_bound,
            {time[:2] for time in times} if is_bound else times,
        )
        self._note(ack, frame)
        self.flying.append(frame)

    def _note(self, ack: Ack, frame: Flight) -> None:
        table = ack.ranges.setdefault(frame.worker, {}) if frame.is_bound else ack.anywhere
        for time in frame.times:
            table[time] = table.get(time, 0) ^ frame.id

    def _check(self, progress: Progress) -> None:
        for moments in self.entering.values():
            assert all(moment >= progress.anywhere for moment in moments)
        for frame in self.flying:
            bound = progress.of_range(frame.worker) if frame.is_bound else progress.turn
            assert min(frame.times) >= bound
            assert min(frame.times) >= progress.of_all()


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=examples(200), deadline=None)
def test_it_passes_nothing_in_flight_and_ends_at_the_end(
    random: Random, workers: int, fronts: int
) -> None:
    entering = {
        front: [(time, front) for time in sorted(random.sample(range(12), 4), reverse=True)]
        for front in range(fronts)
    }
    acker = Acker(workers=workers, fronts=list(entering))
    world = World(random, workers, entering)
    ranges = [BEFORE_ALL] * workers
    while world.step(acker):
        before, ranges = ranges, [acker.progress.of_range(worker) for worker in range(workers)]
        assert all(now >= then for now, then in zip(ranges, before, strict=True))
    assert acker.entries == 0
    nothing = (Bound(heard=0, entries=()),) * workers  # the acks of this world have no numbers
    assert acker.progress == Progress(AFTER_ALL, (AFTER_ALL,) * workers, bound=nothing)


def test_a_range_waits_for_what_may_go_anywhere_and_for_its_own() -> None:
    acker = Acker(workers=2, fronts=[0])
    acker.receive(Ack(0, {(3, 0): 7}, {1: {(1, 0): 9}}, {0: AFTER_ALL}))
    assert acker.progress.of_range(0) == (3, 0)
    assert acker.progress.of_range(1) == acker.progress.of_all() == (1, 0)


def test_a_turn_is_a_step_of_its_global_time() -> None:
    acker = Acker(workers=1, fronts=[0])
    acker.receive(Ack(0, {(3, 0): 7, (3, 0, 2): 8}, {}, {0: AFTER_ALL}))
    assert (acker.progress.anywhere, acker.progress.turn) == ((3, 0), (3, 0))
    acker.receive(Ack(0, {(3, 0): 7, (3, 0, 5): 9}, {}, {}))
    assert (acker.progress.anywhere, acker.progress.turn) == ((3, 0), (3, 0, 2))
    with pytest.raises(ef.InternalError, match="went back"):
        acker.receive(Ack(0, {(3, 0, 1): 6}, {}, {}))


def test_it_counts_what_is_open_and_what_it_was_told() -> None:
    acker = Acker(workers=2, fronts=[0])
    acker.receive(Ack(0, {(3, 0): 7, (4, 0): 0}, {0: {(1, 0): 9}, 1: {(1, 0): 9, (2, 0): 8}}, {}))
    assert (acker.entries, acker.acks) == (4, 1)
    acker.receive(Ack(0, {(3, 0): 7}, {1: {(1, 0): 9}}, {}))
    assert (acker.entries, acker.acks) == (2, 2)


def test_the_slowest_front_counts() -> None:
    acker = Acker(workers=1, fronts=[0, 1])
    acker.receive(Ack(0, {}, {}, {0: (100, 0)}))
    assert acker.progress.anywhere == BEFORE_ALL
    acker.receive(Ack(0, {}, {}, {1: (4, 1)}))
    assert acker.progress.anywhere == (4, 1)


def test_a_promise_that_is_taken_back_is_an_error_of_ours() -> None:
    acker = Acker(workers=1, fronts=[0])
    acker.receive(Ack(0, {}, {}, {0: (5, 0)}))
    with pytest.raises(ef.InternalError, match="promised"):
        acker.receive(Ack(0, {}, {}, {0: (4, 0)}))


def test_a_minimal_time_that_goes_back_is_an_error_of_ours() -> None:
    acker = Acker(workers=1, fronts=[0])
    acker.receive(Ack(0, {}, {}, {0: (5, 0)}))
    with pytest.raises(ef.InternalError, match="went back"):
        acker.receive(Ack(0, {(4, 0): 1}, {}, {}))
