"""Listeners can raise, hang and lag behind, and nothing else is affected."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.live.driver.listeners import EVENTS_MAX, Listeners, check_listener
from tests.effort import SECONDS


class Hearing(ef.LiveQueryListener):
    """Keeps the events that it gets."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.heard.append(event)


class Stuck:
    """Blocks at its first event until it is released."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.heard.append(event)
        self.entered.set()
        self.let_go.wait(SECONDS)


class Raising:
    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        raise LookupError(f"no dashboard for {event}")


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.let_go.set()


def test_events_are_heard_in_order_to_the_last() -> None:
    hearing = Hearing()
    listeners = Listeners([hearing])
    for number in range(EVENTS_MAX - 1):
        listeners.post("onQueryProgress", number)
    listeners.post("onQueryTerminated", None)
    listeners.close(SECONDS)
    assert hearing.heard == list(range(EVENTS_MAX - 1))
    assert listeners.dropped == 0
    assert not _threads()


def test_one_that_raises_is_named_and_hears_the_next_event_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hearing = Hearing()
    listeners = Listeners([Raising(), hearing])
    with caplog.at_level(logging.WARNING, "emberflow"):
        listeners.post("onQueryProgress", 1)
        listeners.post("onQueryProgress", 2)
        listeners.close(SECONDS)
    assert hearing.heard == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        f"listener Raising raised in onQueryProgress: LookupError: no dashboard for {number}. "
        f"The query goes on."
        for number in (1, 2)
    ]


def test_one_that_hangs_holds_up_nobody_and_loses_the_oldest(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    hearing = Hearing()
    listeners = Listeners([stuck, hearing])
    with caplog.at_level(logging.WARNING, "emberflow"):
        listeners.post("onQueryProgress", 0)
        assert stuck.entered.wait(SECONDS)
        for number in range(1, EVENTS_MAX + 6):  # five more than the queue holds
            listeners.post("onQueryProgress", number)
            _until_heard(hearing, number)
        assert listeners.dropped == 5
        stuck.let_go.set()
        listeners.close(SECONDS)
    assert hearing.heard == list(range(EVENTS_MAX + 6))
    assert stuck.heard == [0, *range(6, EVENTS_MAX + 6)]
    assert [record.getMessage() for record in caplog.records] == [
        "listener Stuck does not keep up: it is in onQueryProgress, 100 events wait for it, and "
        "the oldest ones are dropped from now on"
    ]


def test_the_end_does_not_wait_for_one_that_hangs(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = Listeners([stuck])
    with caplog.at_level(logging.WARNING, "emberflow"):
        listeners.post("onQueryProgress", 0)
        listeners.post("onQueryProgress", 1)
        assert stuck.entered.wait(SECONDS)
        listeners.close(0.01)
    assert "listener Stuck is still in onQueryProgress" in caplog.text
    (left,) = _threads()
    stuck.let_go.set()
    left.join(SECONDS)
    assert not left.is_alive()
    assert stuck.heard == [0], "what it had not heard by then is dropped"


def test_one_that_is_removed_hears_nothing_more() -> None:
    one, other = Hearing(), Hearing()
    listeners = Listeners([one])
    listeners.add(other)
    listeners.remove(one)
    listeners.post("onQueryProgress", 1)
    listeners.close(SECONDS)
    listeners.add(one)  # too late: no thread is started for it
    listeners.post("onQueryProgress", 2)
    assert (one.heard, other.heard) == ([], [1])
    deadline = time.monotonic() + SECONDS
    while _threads():  # the thread of a removed listener ends, although nothing waits for it
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_cannot_hear_is_refused() -> None:
    with pytest.raises(ef.InputError, match=r"at least one of the methods onQueryStarted, onQ"):
        check_listener(print)
    with pytest.raises(ef.InputError, match=r"write \.listener\(Hearing\(\)\)"):
        check_listener(Hearing)


def _until_heard(hearing: Hearing, number: int) -> None:
    deadline = threading.Event()
    for _ in range(int(SECONDS / 0.001)):
        if hearing.heard and hearing.heard[-1] == number:
            return
        deadline.wait(0.001)
    raise AssertionError(f"{number} was not heard")


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("emberflow listener")]
