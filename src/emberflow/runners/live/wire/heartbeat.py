"""A worker's heartbeat: a thread that says that its process is alive.

The loop may be busy for long in one function of a user's, and that is no reason to give the worker
up. A process that is stopped, cut off or gone sends no beats. The thread has a socket of its own,
because a socket is for one thread.
"""

from __future__ import annotations

import contextlib
import threading

import zmq

from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.sockets import Wire

BEAT_SECONDS = 0.5


class Heartbeat:
    """Beats from `start` to `close`."""

    def __init__(self, wire: Wire, coordinator: str, worker: int) -> None:
        self._wire = wire
        self._worker = worker
        self._socket = wire.connected(zmq.DEALER, coordinator)
        self._socket.sndtimeo = 0  # a beat that nobody takes is no loss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """To be called before the wire is closed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(zmq.Again):
                self._socket.send(self._wire.encode(protocol.BEAT, self._worker))
