"""A bell: any thread wakes a loop that polls sockets.

**What a thread did before it rang is visible to the loop after `still`.** The loop polls its sockets,
so it wakes at once for a message. Other threads have news for it too: an element was read, a log is
durable, a bundle is stored. The loop would see these only when the poll times out; so they ring.

Threads ring for every element, so ringing must cost next to nothing while the loop is busy: a bell
that was rung stays rung, and ringing it again does nothing, until the loop is about to wait, finds it
rung and looks for news. `still` resets the flag last, so a ring that found the flag set came before
the loop looks.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable


def no_bell() -> None:
    """For callers without a loop to wake."""


class Bell:
    """Any number of threads ring it, one polls it.

    >>> bell = Bell()
    >>> bell.ring(), bell.ring()
    (None, None)
    >>> bell.still()
    >>> bell.close()
    """

    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)
        self._is_rung = False

    def ring(self) -> None:
        """Wake the loop. Any thread may call this, whether or not the loop waits."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):  # the loop has ended
                self._rung.send(b"!")

    def fileno(self) -> int:
        """Readable while it is rung."""
        return self._heard.fileno()

    def heard_in(self, ready: Iterable[tuple[object, int]]) -> None:
        """Call `still` if a poll has found the bell ready."""
        if any(what == self.fileno() for what, _ in ready):
            self.still()

    def still(self) -> None:
        """Reset the bell until it is rung again. The loop looks for news afterwards."""
        with contextlib.suppress(BlockingIOError):
            self._heard.recv(64)
        self._is_rung = False

    def close(self) -> None:
        self._heard.close()
        self._rung.close()
