"""Connections to a ZeroMQ socket from which no message has come: there are only so many.

A client without the token gets no message through. ZeroMQ closes its connection when the time for the
handshake is over, but does not limit how many there are, and each holds a file descriptor and what it
has sent. So the owner of the socket counts them. If there are too many, the one that has been there
longest is closed. A client with the token sends its first request at once and is a stranger no more.
"""

from __future__ import annotations

import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from emberflow.runners.live.wire.doorkeeper import shut_down


class Strangers:
    """Belongs to the thread that owns the socket. Make it before the socket is bound.

    ``monitor`` is readable when `count` has something to do.
    """

    def __init__(
        self, listening: zmq.Socket[bytes], *, connections_max: int, handshake_seconds: float
    ) -> None:
        self._listening = listening
        self._connections_max = connections_max
        self._handshake_seconds = handshake_seconds
        #: When each was accepted, by its file descriptor, in that order.
        self._accepted: dict[int, float] = {}
        self.monitor = listening.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def count(self, port: int) -> None:
        """Take note of connections that came and went, and close what is too much."""
        self._take_note()
        self._forget_old()
        while len(self._accepted) > self._connections_max:
            oldest = next(iter(self._accepted))
            del self._accepted[oldest]
            shut_down(oldest, port)

    def heard(self, descriptor: int) -> None:
        """A message has come over a connection.

        First take note of those that came and went: that this one was accepted may not be noted yet, and
        would make it a stranger again.
        """
        self._take_note()
        self._accepted.pop(descriptor, None)

    def _take_note(self) -> None:
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            descriptor = int(event["value"])
            self._accepted.pop(descriptor, None)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._accepted[descriptor] = time.monotonic()

    def close(self) -> None:
        self._listening.disable_monitor()
        self.monitor.close(linger=0)

    def _forget_old(self) -> None:
        """What is still open after the time for the handshake has completed it."""
        limit = time.monotonic() - self._handshake_seconds
        while self._accepted and next(iter(self._accepted.values())) < limit:
            del self._accepted[next(iter(self._accepted))]
