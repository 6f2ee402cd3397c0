"""Connections that break lose what is on them, and never silently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest
import zmq

from emberflow.runners.live.driver.watchdog import STALLED_SECONDS, StalledError, Watchdog
from emberflow.runners.live.wire import links, protocol
from emberflow.runners.live.wire.links import LinkError, Receiver, Sender, received_parts
from emberflow.runners.live.wire.plan import WorkerNews
from emberflow.runners.live.wire.sockets import Wire, WireKeys
from tests.effort import SECONDS, SOAK
from tests.live.proxy import Proxy


class Ends:
    """Two processes of a run, in one, and a proxy between them."""

    def __init__(self) -> None:
        keys = WireKeys.made()
        self._here, self._there = Wire(keys, 7), Wire(keys, 7)
        self._listening, address = self._there.listening(zmq.PULL, "127.0.0.1")
        self.proxy = Proxy(int(address.rpartition(":")[2]))
        connected = self._here.connected(zmq.PUSH, f"tcp://127.0.0.1:{self.proxy.port}")
        connected.linger = 0
        self.sender = Sender(self._here, connected, 0, "worker 1")
        self.receiver = Receiver(self._there, "worker 1")

    def send(self, number: int) -> None:
        self.sender.send([self._here.encode(protocol.FRAME, (number, bytes(5_000)))])

    def received(self) -> list[int]:
        """The numbers that have come by now."""
        got = []
        while (parts := received_parts(self._listening)) is not None:
            envelope = self.receiver.opened(parts)
            assert envelope is not None
            for kind, body in self._there.decoded(envelope.content):
                if kind == protocol.FRAME:
                    got.append(body[0])
        return got

    def close(self) -> None:
        self.proxy.close()
        self._here.close()
        self._there.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def heard(ends: Ends, count: int) -> list[int]:
    """Wait until so many are there."""
    got: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < deadline:
        ends.sender.look(time.monotonic())
        got += ends.received()
        time.sleep(0.001)
    return got


@pytest.mark.parametrize("seed", range(30 if SOAK else 5))
def test_a_connection_that_is_cut_under_load_shows_what_it_lost(seed: int, ends: Ends) -> None:
    """What is taken is a prefix of what was sent; where anything is missing, there is an error."""
    dice = Random(seed)
    sent, got = 0, list[int]()

    def send_and_cut() -> None:
        nonlocal sent
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for _ in range(dice.randint(1, 200)):
                ends.send(sent)
                sent += 1
            if dice.random() < 0.3:
                ends.proxy.cut()
            ends.sender.look(time.monotonic())
            got.extend(ends.received())
            assert got == list(range(len(got)))

    with pytest.raises(LinkError, match=r"the connection broke and (lost|repeated)"):
        send_and_cut()
    assert len(got) < sent


def test_the_loss_of_the_last_message_is_noticed_without_a_further_one(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent any more: the sender finds that its connection was made anew."""
    monkeypatch.setattr(links, "_LOOK_SECONDS", 0.0)
    ends.send(0)
    assert heard(ends, 1) == [0]

    def lose_the_last() -> None:
        for number in range(1, 100):
            # Cut right behind it, until it is one that was on its way.
            ends.send(number)
            ends.proxy.cut()
            assert heard(ends, 1) == [number]

    with pytest.raises(LinkError, match=r"worker 1 got message \d+ of worker 0 and expected"):
        lose_the_last()


def test_a_connection_that_breaks_while_nothing_is_on_it_costs_nothing(ends: Ends) -> None:
    for number in range(5):
        ends.send(number)
        assert heard(ends, 1) == [number]
        before = ends.sender.sent
        ends.proxy.cut()
        deadline = time.monotonic() + SECONDS
        while ends.sender.sent == before and time.monotonic() < deadline:
            ends.sender.look(time.monotonic())  # and says so, with an empty envelope
            time.sleep(0.01)
        assert ends.sender.sent == before + 1


def test_a_connection_that_cannot_be_made_again_is_an_error(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RECONNECT_SECONDS_MAX", 0.3)
    ends.send(0)
    assert heard(ends, 1) == [0]
    ends.proxy.close()
    with pytest.raises(LinkError, match="from worker 0 to worker 1 broke and could not be made"):
        heard(ends, 1)


# --- The watchdog ----------------------------------------------------------------------------------


def news(worker: int, sent: int, received: int, *, caught_up: bool = True) -> WorkerNews:
    other = 1 - worker
    return WorkerNews(
        worker=worker,
        statistics=None,
        waiting=0,
        unstored=0,
        halted=False,
        held=0,
        bucket_items=None,
        settled=0,
        latencies_ms=[],
        lag_ms=0.0,
        cpu_seconds=0.0,
        pid=1,
        chose=False,
        caught_up=caught_up,
        sent={other: (sent, "count 'words'")},
        received={other: received},
    )


def test_the_watchdog_names_the_link_that_lost_a_frame() -> None:
    dog = Watchdog(workers=2)
    dog.look(0.0, (5, 0))
    for _ in range(10):
        dog.hear(news(0, sent=8, received=3))
        dog.hear(news(1, sent=3, received=7))
    dog.look(STALLED_SECONDS - 1, (5, 0))
    with pytest.raises(StalledError) as raised:
        dog.look(STALLED_SECONDS + 1, (5, 0))
    assert "stood still at (5, 0)" in str(raised.value)
    assert (
        "worker 0 has sent 8 messages to worker 1, which got 7; the last one was bound for count "
        "'words'" in str(raised.value)
    )


@pytest.mark.parametrize("why", ["a worker computes", "time goes on", "only a front is behind"])
def test_the_watchdog_lets_those_be_that_have_a_reason(why: str) -> None:
    dog = Watchdog(workers=2)
    for second in range(200):
        least = None if why == "only a front is behind" else (5, 0)
        if why == "time goes on":
            least = (second // 10, 0)
        dog.hear(news(0, 8, 3))
        dog.hear(news(1, 3, 7, caught_up=why != "a worker computes"))
        dog.look(float(second), least)
