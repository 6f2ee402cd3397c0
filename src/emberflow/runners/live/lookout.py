"""How a loop waits for its sockets: it goes on looking for a moment before it sleeps.

A thread that sleeps gives its processor away, and gets it back cold: where machines share a
processor, a hundred small items cost two to three times as much after a sleep of some milliseconds
as they do without one, and being woken takes its own time. What a loop does comes in steps, and between
two steps of the same items, on other workers or in the driver, there is less time than a sleep is
worth. So whoever has just worked looks again at once, for a short while, and gives way to any other
thread that wants the processor or the interpreter; whoever has nothing to do sleeps as ever.
"""

from __future__ import annotations

import os
import time
from typing import Any

import zmq


class Lookout:
    """A poller that sleeps only when there was no work for some time."""

    def __init__(self, poller: zmq.Poller, seconds: float) -> None:
        self._poller = poller
        self._seconds = seconds
        self._awake_until = 0.0

    def worked(self) -> None:
        """There was something to do just now."""
        self._awake_until = time.monotonic() + self._seconds

    def glance(self, ms: int) -> list[tuple[Any, int]]:
        """What is ready now; if there was no work lately, what is ready within so many milliseconds.

        For loops that have other things to look at, too.
        """
        if time.monotonic() >= self._awake_until:
            return self._poller.poll(ms)
        ready = self._poller.poll(0)  # without the interpreter: others may have it
        if not ready:
            _give_way()
        return ready

    def watch(self, ms: int) -> list[tuple[Any, int]]:
        """What is ready, as soon as anything is; nothing, if that takes longer."""
        while time.monotonic() < self._awake_until:
            if ready := self.glance(0):  # who is not awake any more waits below, once
                return ready
        return self._poller.poll(ms)


def _give_way() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)
