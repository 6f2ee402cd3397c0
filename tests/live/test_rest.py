"""A worker that has nothing to do costs next to nothing, and is at once back at work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.worker import loop as loop_module
from emberflow.runners.live.worker.loop import WorkerLoop
from emberflow.runners.live.worker.machine.spare import Spare

QUIET, REST = loop_module._QUIET_ROUNDS, loop_module._REST_MS


class Watched:
    """A poller that tells how long it was allowed to wait, and does not."""

    def __init__(self, bell: Bell) -> None:
        self.waits: list[int] = []
        self._poller = zmq.Poller()
        self._poller.register(bell.fileno(), zmq.POLLIN)

    def poll(self, timeout: int) -> Any:
        self.waits.append(timeout)
        return self._poller.poll(0)


@pytest.fixture
def loop() -> Any:
    """As much of a loop as waits."""
    loop: Any = WorkerLoop.__new__(WorkerLoop)
    loop._bell = Bell()
    loop._poller = Watched(loop._bell)
    loop._link = SimpleNamespace(socket=None, has_news=False)
    loop._feeds = [SimpleNamespace(hurries=False)]
    loop._cut_writer = None
    loop._frames_in = None
    loop._spare = Spare()
    loop._quiet_rounds = 0
    yield loop
    loop._bell.close()


def waits(loop: Any, rounds: int) -> list[int]:
    loop._poller.waits.clear()
    for _ in range(rounds):
        loop._wait()
    found: list[int] = loop._poller.waits
    return found.copy()


def test_it_waits_longer_once_nothing_has_come_for_a_while(loop: Any) -> None:
    assert waits(loop, QUIET + 5) == [1] * QUIET + [REST] * 5


def test_what_comes_ends_the_rest(loop: Any) -> None:
    waits(loop, QUIET + 5)
    loop._bell.ring()
    assert waits(loop, QUIET + 2) == [REST] + [1] * QUIET + [REST]


@pytest.mark.parametrize(
    "busy",
    ["a front that is waited for", "a cut that is being stored", "a statement that is due"],
)
def test_it_does_not_rest_while_something_depends_on_its_rounds(loop: Any, busy: str) -> None:
    if busy == "a cut that is being stored":
        loop._cut_writer = SimpleNamespace(is_under_way=True)
    elif busy == "a statement that is due":
        loop._link.has_news = True
    else:
        loop._feeds.append(SimpleNamespace(hurries=True))
    assert set(waits(loop, 2 * QUIET)) == {1}


def test_a_link_is_judged_by_what_came_during_a_long_round(loop: Any) -> None:
    """Behind a round of many seconds the driver has been heard long ago, but for what waits."""
    done: list[str] = []
    loop._link = SimpleNamespace(
        has_news=False,
        has_received=False,
        flush=lambda: None,
        check=lambda now: done.append("link"),
    )
    loop._engine = SimpleNamespace(is_untidy=False)
    loop._frames_wait = loop._messages_wait = True
    loop._links_checked_at = 0.0
    loop._peers, loop._caught_up = {}, False
    loop._meter = loop._answering = None
    loop._take_messages = lambda: done.append("messages")
    loop._taken_frames = loop._take_elements = list
    for other in ("pass_time", "store", "evict", "go_on_with_twin", "answer"):
        setattr(loop, f"_{other}", lambda: None)
    for other in ("send_news", "send_dealt", "do", "go_on_with_cut"):
        setattr(loop, f"_{other}", lambda *_, **__: None)
    loop._round()
    assert done == ["messages", "link"]
