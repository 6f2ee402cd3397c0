"""A bell: how any thread wakes one that waits for sockets.

A loop that polls its sockets hears at once what comes by them. What threads beside it have for it, an
element that was read, a log that is durable, a bundle that is stored, it would only see when the poll
has timed out; so they ring.

Ringing is for every element, so it must cost next to nothing while the loop is busy: a bell that has
been rung stays rung, and to ring it again does nothing, until the loop is about to wait, sees it and
looks again. **What was there before a ring is seen by a look after `still`**: the mark is taken off
last, so that a ring which found it came before that look.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable


def no_bell() -> None:
    """Where nobody waits for sockets."""


class Bell:
    """For many who ring and one who polls it.

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
        """Have the one who waits look. From any thread; nobody needs to wait."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):  # nobody waits any more
                self._rung.send(b"!")

    def fileno(self) -> int:
        """Readable while it is rung."""
        return self._heard.fileno()

    def heard_in(self, ready: Iterable[tuple[object, int]]) -> None:
        """Be `still`, if it is among what a poll has found ready."""
        if any(what == self.fileno() for what, _ in ready):
            self.still()

    def still(self) -> None:
        """Be not readable until it is rung again. Whoever asks for this looks afterwards."""
        with contextlib.suppress(BlockingIOError):
            self._heard.recv(64)
        self._is_rung = False

    def close(self) -> None:
        self._heard.close()
        self._rung.close()
