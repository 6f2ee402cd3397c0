"""A worker's heartbeat: a thread that reports that its process is alive.

A user's function may keep the loop busy for long, and that is no reason to give the worker up. A
process that is suspended, disconnected or dead sends no beats. The thread has a socket of its own,
because only one thread may use a socket.
"""

from __future__ import annotations

import contextlib
import threading

import zmq

from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.links import UNNUMBERED
from emberflow.runners.live.wire.sockets import Wire

BEAT_SECONDS = 0.5


class Heartbeat:
    """Beats from `start` to `close`."""

    def __init__(self, wire: Wire, coordinator: str, worker: int) -> None:
        self._wire = wire
        self._worker = worker
        self._socket = wire.connected(zmq.DEALER, coordinator)
        self._socket.sndtimeo = 0  # rather drop a beat than wait
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Call it before the wire is closed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            message = self._wire.encode(protocol.BEAT, None)
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(
                    self._wire.envelope(self._worker, UNNUMBERED, [message])
                )
