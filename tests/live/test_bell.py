"""A thread's ring wakes a polling loop: no ring is lost, and rings are not counted twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pytest
import zmq

from emberflow.runners.live.wire.bell import Bell

_SECONDS_MAX = 30.0


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


def is_rung(bell: Bell) -> bool:
    poller = zmq.Poller()
    poller.register(bell.fileno(), zmq.POLLIN)
    return bool(poller.poll(0))


def test_it_is_rung_once_however_often_and_still_until_it_is_rung_again(bell: Bell) -> None:
    assert not is_rung(bell)
    for _ in range(100_000):  # more than any socket buffer holds
        bell.ring()
    assert is_rung(bell)
    bell.still()
    assert not is_rung(bell)
    bell.ring()
    assert is_rung(bell)


def test_who_rings_need_not_know_that_nobody_waits_any_more(bell: Bell) -> None:
    bell.close()
    bell.ring()


def test_who_looks_after_every_ring_misses_nothing(bell: Bell) -> None:
    """Without a timeout of its own: a lost ring would leave it waiting."""
    given: deque[int] = deque()
    count = 20_000

    def give() -> None:
        for number in range(count):
            given.append(number)
            bell.ring()

    giving = threading.Thread(target=give, daemon=True)
    giving.start()
    poller = zmq.Poller()
    poller.register(bell.fileno(), zmq.POLLIN)
    taken: list[int] = []
    while len(taken) < count:
        assert poller.poll(_SECONDS_MAX * 1_000), f"not woken after {len(taken)}"
        bell.still()
        while given:
            taken.append(given.popleft())
    giving.join(_SECONDS_MAX)
    assert taken == list(range(count))
