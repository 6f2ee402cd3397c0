"""A loop that has just worked does not sleep; one that has not does."""

from __future__ import annotations

import time

import pytest
import zmq

from emberflow.runners.live.lookout import Lookout


class Clock:
    """Goes on only when somebody waits, or looks in vain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Poller(zmq.Poller):
    """Notes how long it was told to wait, and is ready at some time."""

    def __init__(self, clock: Clock, ready_at: float = float("inf")) -> None:
        super().__init__()
        self.clock, self.ready_at = clock, ready_at
        self.waits: list[int] = []

    def poll(self, timeout: int | None = None) -> list[tuple[object, int]]:
        assert timeout is not None
        self.waits.append(timeout)
        wait = max(timeout / 1_000, 0.0001)
        self.clock.now = min(self.clock.now + wait, max(self.ready_at, self.clock.now))
        return [("socket", zmq.POLLIN)] if self.clock.now >= self.ready_at else []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_who_has_not_worked_sleeps(clock: Clock) -> None:
    poller = Poller(clock)
    lookout = Lookout(poller, 0.0005)
    assert lookout.glance(1) == []
    assert lookout.watch(5) == []
    assert poller.waits == [1, 5]


def test_who_has_just_worked_looks_again_for_a_while_and_then_sleeps(clock: Clock) -> None:
    poller = Poller(clock)
    lookout = Lookout(poller, 0.0005)
    lookout.worked()
    while not poller.waits or poller.waits[-1] == 0:
        assert lookout.glance(1) == []
    assert poller.waits == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("after", [0.0002, 0.003])
def test_what_comes_is_told_at_once_awake_or_asleep(clock: Clock, after: float) -> None:
    poller = Poller(clock, ready_at=clock.now + after)
    lookout = Lookout(poller, 0.0005)
    lookout.worked()
    assert lookout.watch(5) == [("socket", zmq.POLLIN)]
    assert clock.now == pytest.approx(100 + after)
    assert (5 in poller.waits) is (after > 0.0005)


def test_watching_ends_when_nothing_comes(clock: Clock) -> None:
    poller = Poller(clock)
    lookout = Lookout(poller, 0.0005)
    lookout.worked()
    assert lookout.watch(5) == []
    assert poller.waits[-1] == 5
    assert poller.waits.count(5) == 1
