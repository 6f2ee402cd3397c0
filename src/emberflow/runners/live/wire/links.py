"""Links: numbered envelopes from one process to another.

What is guaranteed: **a receiver processes a prefix of what its sender sent, in order, or this life
ends.** A connection that breaks loses what was on it, without an error on either side; ZeroMQ connects
again, and what follows may even overtake what came on the old connection. So a sender numbers its
envelopes, and a receiver that gets another number than the next one raises `LinkError`. The supervisor
then begins the next life, which computes the same output again from the last cut.

What was lost may have been the last envelope, with nothing behind it to show the gap. So the sender
watches its connection, and when it was made anew, sends an envelope with nothing in it (``SYNC``). A
connection that broke while nothing was on it costs nothing. One that cannot be made again is an error
after ``RECONNECT_SECONDS_MAX``.

Whatever else may happen to a frame, the coordinator notices that the minimal time stands still
(`driver.watchdog`).
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.sockets import Envelope, Wire, WireError

#: The link of the coordinator to a worker. Links of workers have the worker's number.
COORDINATOR = 2**32 - 1
#: The number of envelopes that nobody misses: heartbeats.
UNNUMBERED = 2**64 - 1

RECONNECT_SECONDS_MAX = 5.0
#: How often a link looks at its connection.
_LOOK_SECONDS = 0.05

#: Plain numbers: each operation on an enum calls functions in Python.
_ZMQ_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)

_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class LinkError(WireError):
    """Something was lost between two processes, or they cannot reach each other."""


def process_name(link: int) -> str:
    return "the driver" if link == COORDINATOR else f"worker {link}"


class Sender:
    """The sending end of a link."""

    def __init__(self, wire: Wire, socket: zmq.Socket[bytes], link: int, receiver: str) -> None:
        """``link`` is the number of the sending process."""
        self.socket = socket
        #: How many envelopes were sent.
        self.sent = 0
        self._wire = wire
        self._link = link
        self._receiver = receiver
        self._monitor = wire.monitor(socket, _EVENTS)
        self._looked_at = 0.0
        self._broken_at: float | None = None

    def send(self, messages: list[bytes]) -> None:
        """Send an envelope. Raises `LinkError` if the receiver takes none for too long."""
        parts = self._wire.envelope(self._link, self.sent, messages)
        try:
            self.socket.send_multipart(parts)
        except zmq.Again:
            raise LinkError(
                f"{self._receiver} has taken no message of {process_name(self._link)} for too long"
            ) from None
        self.sent += 1

    def look(self, now: float) -> None:
        """Look at the connection now and then. Raises `LinkError` if it was lost for good."""
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._broken_at = now
            elif self._broken_at is not None:
                self._broken_at = None
                self.send([self._wire.encode(protocol.SYNC, None)])
        if self._broken_at is not None and now - self._broken_at > RECONNECT_SECONDS_MAX:
            raise LinkError(
                f"the connection from {process_name(self._link)} to {self._receiver} broke and could "
                f"not be made again within {RECONNECT_SECONDS_MAX:.0f} s"
            )


class Receiver:
    """The receiving end of the links of several senders."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name
        #: By link: how many envelopes were received.
        self.received: dict[int, int] = {}

    def opened(self, parts: list[bytes]) -> Envelope | None:
        """The next envelope of its link; None for one of another incarnation.

        Raises `LinkError` if it is not the next one.
        """
        envelope = self._wire.opened(parts)
        if envelope is None or envelope.number == UNNUMBERED:
            return envelope
        expected = self.received.get(envelope.link, 0)
        if envelope.number != expected:
            raise LinkError(
                f"{self._name} got message {envelope.number} of {process_name(envelope.link)} and "
                f"expected message {expected}: the connection broke and "
                f"{'lost' if envelope.number > expected else 'repeated'} what was on it"
            )
        self.received[envelope.link] = expected + 1
        return envelope


def has_come(socket: zmq.Socket[Any]) -> bool:
    """Whether a message waits to be received."""
    return bool(int(socket.get(_ZMQ_EVENTS)) & _POLLIN)


def received_parts(socket: zmq.Socket[Any]) -> list[bytes] | None:
    """The parts of what has come, or None. Never waits."""
    # Mostly nothing has: to ask first takes a quarter of the time of an exception.
    if not has_come(socket):
        return None
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None  # a ping alone, at the beginning of a connection, looks like a message
