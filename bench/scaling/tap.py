"""Counts what a process sends, in a file that the driver maps too: envelopes, messages and bytes by kind.

A counter is a number in a mapped file, so whoever counts pays some hundred nanoseconds an envelope. What
encryption and TCP add is not counted; heartbeats are not, because they do not go by the links.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from emberflow.runners.live.wire import links, protocol, sockets

#: Who sends to whom.
PEER, TO_DRIVER, FROM_DRIVER = range(3)
DIRECTIONS = ("worker to worker", "worker to driver", "driver to worker")
KINDS = {
    value: name
    for name, value in vars(protocol).items()
    if isinstance(value, bytes) and len(value) == 1
}
#: Envelopes, then messages and bytes of each kind.
_PER_DIRECTION = 1 + 2 * 256
_STORED = _PER_DIRECTION * len(DIRECTIONS)
_LENGTH = _STORED + 1


class Sent(NamedTuple):
    """What went in one direction, by kind of message."""

    envelopes: int
    messages: dict[str, int]
    bytes: dict[str, int]


class Tap:
    """The counters of this process."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}.counts"
        path.write_bytes(bytes(8 * _LENGTH))
        with open(path, "r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def note(self, direction: int, messages: list[bytes]) -> None:
        counts, begin = self._counts, direction * _PER_DIRECTION
        counts[begin] += 1
        for message in messages:
            at = begin + 1 + 2 * message[0]
            counts[at] += 1
            counts[at + 1] += len(message)

    def note_stored(self, count: int) -> None:
        """Called by the threads of several writers: each of them has a counter of its own."""
        self._counts[_STORED] += count


def tapped(folder: Path) -> Tap:
    """Count in this process from now on."""
    tap = Tap(folder)
    given: Any = links.Sender.send
    original = getattr(given, "original", given)

    def send(sender: Any, messages: list[bytes]) -> None:
        tap.note(TO_DRIVER if sender._receiver == "the driver" else PEER, messages)
        original(sender, messages)

    replaced: Any = send
    replaced.original = original
    links.Sender.send = replaced
    return tap


def tapped_driver(folder: Path) -> None:
    """Count in the driver from now on."""
    tap = Tap(folder)
    given: Any = sockets.Wire.envelope
    original = getattr(given, "original", given)

    def envelope(wire: Any, link: int, number: int, messages: list[bytes]) -> Any:
        if link == links.COORDINATOR:
            tap.note(FROM_DRIVER, messages)
        return original(wire, link, number, messages)

    replaced: Any = envelope
    replaced.original = original
    sockets.Wire.envelope = replaced


def counted(folder: Path) -> tuple[int, list[Sent]]:
    """How many outputs were stored, and what was sent in each direction, by all processes so far."""
    sums = [0] * _LENGTH
    for path in folder.glob("*.counts"):
        own = memoryview(path.read_bytes()).cast("q")
        sums = [one + other for one, other in zip(sums, own, strict=True)]
    found = []
    for direction in range(len(DIRECTIONS)):
        begin = direction * _PER_DIRECTION
        messages: dict[str, int] = defaultdict(int)
        size: dict[str, int] = defaultdict(int)
        for kind in range(256):
            count = sums[begin + 1 + 2 * kind]
            if count:
                name = KINDS.get(bytes([kind]), repr(bytes([kind])))
                messages[name] += count
                size[name] += sums[begin + 2 + 2 * kind]
        found.append(Sent(sums[begin], messages, size))
    return sums[_STORED], found
