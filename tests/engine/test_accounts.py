"""Accounts: the minimal time passes nothing that is in flight, however late statements come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Ack,
    Dealt,
    Entries,
    Moment,
    Statement,
)
from emberflow.engine.progress.accounts import Account, Accounts
from emberflow.errors import InternalError
from emberflow.values.hashing import stable_id
from emberflow.values.item import Place
from tests.effort import examples


@dataclass
class Flight:
    """A frame on its way: bound for the barriers of its receiver, or to be processed there and to cause others."""

    id: int
    sender: int
    receiver: int
    is_bound: bool
    time: Place

    def enter(self, entries: Entries) -> None:
        table = entries.levels.setdefault(0, {})
        if self.is_bound:
            table = entries.ranges.setdefault(self.receiver, {})
        table[self.time] = table.get(self.time, 0) ^ self.id


@dataclass
class World:
    """Workers that send frames to each other at random. Links are FIFO, and each as slow as it likes."""

    random: Random
    workers: int
    entering: dict[int, list[Moment]]
    accounts: list[Account] = field(default_factory=list)
    flying: dict[tuple[int, int], deque[Flight]] = field(default_factory=dict)
    dealt: dict[tuple[int, int], deque[Dealt]] = field(default_factory=dict)
    statements: list[deque[Statement]] = field(default_factory=list)
    sent: list[dict[int, int]] = field(default_factory=list)
    causes_left: int = 60
    frames: int = 0

    def __post_init__(self) -> None:
        self.accounts = [Account(worker, self.workers) for worker in range(self.workers)]
        self.statements = [deque() for _ in range(self.workers)]
        self.sent = [{} for _ in range(self.workers)]

    def step(self, all_accounts: Accounts) -> bool:
        """Something happens, if anything can."""
        choices: list[tuple[str, object]] = [
            ("enter", f) for f, left in self.entering.items() if left
        ]
        choices += [("frame", link) for link, own in self.flying.items() if own]
        choices += [("dealt", link) for link, own in self.dealt.items() if own]
        choices += [("arrives", worker) for worker, own in enumerate(self.statements) if own]
        if not choices or self.random.random() < 0.3:
            choices += [("state", worker) for worker in range(self.workers)]
        kind, what = self.random.choice(choices)
        if kind == "enter":
            assert isinstance(what, int)
            moments = self.entering[what]
            own, moment = Entries.none(), moments.pop()
            self._send(what % self.workers, moment, own)
            promise = moments[-1] if moments else AFTER_ALL
            self._acked(what % self.workers, own, {}, {what: promise})
        elif kind == "frame":
            self._process(self.flying[what].popleft())  # type: ignore[index]
        elif kind == "dealt":
            self.accounts[what[1]].hear(self.dealt[what].popleft())  # type: ignore[index]
        elif kind == "arrives":
            all_accounts.receive(self.statements[what].popleft())  # type: ignore[call-overload]
            if self.random.random() < 0.7:
                all_accounts.settle()
            self._check(all_accounts)
        else:
            statement = self.accounts[what].statement()  # type: ignore[call-overload]
            if statement is not None:
                self.statements[statement.worker].append(statement)
            elif len(choices) == self.workers:  # nothing else is left
                return any(self._has_news(worker) for worker in range(self.workers))
        return True

    def _has_news(self, worker: int) -> bool:
        statement = self.accounts[worker].statement()
        if statement is not None:
            self.statements[worker].append(statement)
        return statement is not None

    def _process(self, frame: Flight) -> None:
        own, others = Entries.none(), Entries.none()
        frame.enter(own if frame.sender == frame.receiver else others)
        while not frame.is_bound and self.causes_left and self.random.random() < 0.6:
            self.causes_left -= 1
            later = self.random.random() < 0.3  # a scheduled item
            time = (frame.time[0] + 2, -1) if later else frame.time[:2]
            self._send(frame.receiver, time, own)
        self._acked(frame.receiver, own, {frame.sender: others} if others else {}, {})

    def _send(self, sender: int, time: Place, own: Entries) -> None:
        self.frames += 1
        receiver = self.random.randrange(self.workers)
        is_bound = self.random.random() < 0.4
        frame = Flight(stable_id("frame", self.frames), sender, receiver, is_bound, time)
        frame.enter(own)
        if is_bound:
            self.sent[sender] = {**self.sent[sender]}
            self.sent[sender][receiver] = self.sent[sender].get(receiver, 0) + 1
        self.flying.setdefault((sender, receiver), deque()).append(frame)

    def _acked(
        self, worker: int, own: Entries, others: dict[int, Entries], reports: dict[int, Moment]
    ) -> None:
        ack = Ack(worker, own.levels.get(0, {}), own.ranges, reports, dealt=others)
        ack = ack._replace(sent=self.sent[worker])
        for sender, dealt in self.accounts[worker].receive(ack):
            self.dealt.setdefault((worker, sender), deque()).append(dealt)

    def _check(self, all_accounts: Accounts) -> None:
        progress = all_accounts.progress
        for moments in self.entering.values():
            assert all(moment >= progress.anywhere for moment in moments)
        for frames in self.flying.values():
            for frame in frames:
                bound = progress.of_range(frame.receiver) if frame.is_bound else progress.turn
                assert frame.time >= bound
                assert frame.time >= progress.of_all()


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=examples(300), deadline=None)
def test_they_pass_nothing_in_flight_and_end_at_the_end(
    random: Random, workers: int, fronts: int
) -> None:
    entering = {
        front: [(time, front) for time in sorted(random.sample(range(12), 4), reverse=True)]
        for front in range(fronts)
    }
    all_accounts = Accounts(workers=workers, fronts=list(entering))
    world = World(random, workers, entering)
    before = BEFORE_ALL
    while world.step(all_accounts):
        minimal = all_accounts.progress.of_all()
        assert minimal >= before
        before = minimal
    all_accounts.settle()
    assert not all_accounts.waits
    assert all_accounts.entries == 0
    assert all_accounts.least_in_flight() is None
    assert all_accounts.progress.of_all() == AFTER_ALL
    counts = {
        to: {worker: own[to] for worker, own in enumerate(world.sent) if to in own}
        for to in range(workers)
    }
    assert all_accounts.progress.sent == {to: own for to, own in counts.items() if own}


def statement(account: Account) -> Statement:
    found = account.statement()
    assert found is not None
    return found


def sent(worker: int, moment: Moment, frame: int, **more: object) -> Ack:
    return Ack(worker, {moment: frame}, {}, {}, **more)  # type: ignore[arg-type]


def test_what_a_worker_has_heard_waits_for_what_came_of_it() -> None:
    """Worker 0 sends a frame to worker 1, which sends another one on. Nobody has anything in flight, it seems."""
    accounts, first, second = Accounts(workers=2, fronts=[0]), Account(0, 2), Account(1, 2)
    first.receive(Ack(0, {(1, 0): 77}, {}, {0: AFTER_ALL}))
    dealt = Entries({0: {(1, 0): 77}}, {}, {})
    ((_, told),) = second.receive(sent(1, (2, 0), 78, dealt={0: dealt}))
    first.hear(told)
    accounts.receive(statement(first))
    accounts.settle()
    assert accounts.waits
    assert accounts.progress.anywhere == BEFORE_ALL
    accounts.receive(statement(second))
    accounts.settle()
    assert not accounts.waits
    assert accounts.progress.anywhere == (2, 0)


def test_statements_that_follow_from_each_other_are_taken_together() -> None:
    """Each is about two acks, and each worker had heard of the other's."""
    accounts, first, second = Accounts(workers=2, fronts=[0]), Account(0, 2), Account(1, 2)
    first.receive(Ack(0, {(1, 0): 77}, {}, {0: AFTER_ALL}))
    ((_, told),) = second.receive(
        sent(1, (1, 0), 78, dealt={0: Entries({0: {(1, 0): 77}}, {}, {})})
    )
    first.hear(told)
    ((_, told),) = first.receive(sent(0, (3, 0), 79, dealt={1: Entries({0: {(1, 0): 78}}, {}, {})}))
    second.hear(told)
    accounts.receive(statement(first))
    accounts.settle()
    assert accounts.waits
    accounts.receive(statement(second))
    accounts.settle()
    assert accounts.progress.anywhere == (3, 0)


def test_a_front_may_not_end_while_the_statement_of_a_restore_waits() -> None:
    """Worker 0 has restored a scheduled item and has heard of worker 1, whose statement has not come. If the front
    of worker 2 began and ended now, nothing would seem to be in flight."""
    accounts = Accounts(workers=3, fronts=[2])
    restored, other, feeding = (Account(worker, 3) for worker in range(3))
    restored.receive(sent(0, (9, -1), 77))
    restored.receive(sent(0, (1, 0), 78))
    ((_, told),) = other.receive(Ack(1, {}, {}, {}, dealt={0: Entries({0: {(1, 0): 78}}, {}, {})}))
    restored.hear(told)
    accounts.receive(statement(restored))
    accounts.settle()
    assert accounts.waits  # so the coordinator does not let fronts begin
    feeding.receive(Ack(2, {}, {}, {2: AFTER_ALL}))
    accounts.receive(statement(feeding))
    accounts.settle()
    assert accounts.progress.of_all() == AFTER_ALL  # which is why
    accounts.receive(statement(other))
    with pytest.raises(InternalError, match="went back"):
        accounts.settle()


def test_counts_of_very_many_frames_are_left_out() -> None:
    """Then barriers wait for the minimal time of their range, as long as a hop takes."""
    accounts = Accounts(workers=1, fronts=[0])
    account = Account(0, 1)
    account.receive(Ack(0, {}, {}, {0: AFTER_ALL}, sent=dict.fromkeys(range(5_000), 1)))
    accounts.receive(statement(account))
    accounts.settle()
    assert accounts.progress.sent == {}
