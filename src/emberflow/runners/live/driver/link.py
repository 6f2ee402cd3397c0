"""The link from the coordinator to a worker: all messages of a turn in one envelope.

What is guaranteed: **the coordinator never waits for a worker, and drops nothing that it sends.** While
a worker's function computes for long, its loop takes no messages, and the buffers between fill up. Then
messages wait here. Of progress that nothing else has followed only the last one waits, because it says
all; there is a bound for the rest.
"""

from __future__ import annotations

import time

import zmq

from emberflow.runners.live.wire.links import COORDINATOR, LinkError
from emberflow.runners.live.wire.sockets import Wire

#: Low-priority messages are piggybacked; sent alone after this time.
PIGGYBACK_SECONDS = 0.004
#: How long a link with full buffers waits before it tries again.
_FULL_SECONDS = 0.02
#: If so many messages wait for a worker, it is given up.
_WAITING_MAX = 100_000


class WorkerLink:
    """The link to one worker."""

    def __init__(self, wire: Wire, router: zmq.Socket[bytes], worker: int, identity: bytes) -> None:
        self.identity = identity
        #: How many envelopes were sent.
        self.sent = 0
        self._wire = wire
        self._router = router
        self._worker = worker
        self._outgoing: list[bytes] = []
        #: Whether the last of these may be replaced by the next of its kind.
        self._last_is_replaceable = False
        #: Low-priority messages, and since when they wait.
        self._later: list[bytes] = []
        self._later_since = 0.0
        self._tries_at = 0.0

    def send(self, message: bytes, *, replaces_last: bool = False) -> None:
        """Send a message with the next `flush`; in place of the last one, if both are replaceable."""
        if replaces_last and self._last_is_replaceable:
            self._outgoing[-1] = message
        else:
            self._outgoing.append(message)
        self._last_is_replaceable = replaces_last

    def send_later(self, message: bytes) -> None:
        """Send a message that the worker does not wait for: piggybacked, or soon alone."""
        if not self._later:
            self._later_since = time.monotonic()
        self._later.append(message)

    def flush(self, now: float) -> None:
        """Send what there is, unless the worker's buffers are full."""
        if self._later and (self._outgoing or now - self._later_since >= PIGGYBACK_SECONDS):
            self._outgoing += self._later
            self._later = []
            self._last_is_replaceable = False
        if not self._outgoing or now < self._tries_at:
            return
        parts = self._wire.envelope(COORDINATOR, self.sent, self._outgoing)
        try:
            self._router.send_multipart([self.identity, *parts], zmq.NOBLOCK)
        except zmq.Again:
            if len(self._outgoing) > _WAITING_MAX:
                raise LinkError(
                    f"worker {self._worker} has not taken {len(self._outgoing)} messages"
                ) from None
            self._tries_at = now + _FULL_SECONDS
            return
        except zmq.ZMQError as error:
            raise LinkError(
                f"the connection from the driver to worker {self._worker} broke: {error}"
            ) from error
        self.sent += 1
        self._outgoing = []
        self._last_is_replaceable = False
