"""A chain of objects that one writer at a time makes longer, without locks and without clocks.

Guarantees:

1. *The writer is the one that took the chain over last.* When `Chain.take_over` has returned, no other
   writer adds anything, however slow it is and whenever it wakes up. It gets `TakenError`.
2. *What was added is what the successor sees.* A record that a writer was told is stored is in the chain
   that the successor takes over. So is one whose writer died before it was told.

How: records are objects with numbers, and adding one creates the object of the next number. Who takes the
chain over gives that number to a *seal*, an empty object, and goes on in the next *epoch* from 0. The
writer before finds its number taken. If it is faster than its successor, the successor sees its record,
and tries the number behind it.

An epoch is its records and a seal behind them. Old records are removed, and seals are not: a writer only
ever adds at the number where the seal of its epoch is. Numbers below it were its own, and it does not come
back to them. So there is one small object for each time that the chain was taken over, or ended.

Each object has a note; that of a seal is the note of the last record before it. So the newest object tells
what was added last.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from emberflow.checkpoint.errors import CheckpointError, TakenError
from emberflow.checkpoint.objects import Objects

_NAME = re.compile(r"(\d{8})-(\d{10})")
_RECORD, _SEAL = "record", "seal"
_ATTEMPTS_MAX = 100


class Record(NamedTuple):
    """An object of the chain, by its full name."""

    name: str
    note: str


class Tail(NamedTuple):
    """The end of a chain: the note of its last record, None if there never was one, and that record, if
    it has not been removed."""

    note: str | None
    record: Record | None


class Chain:
    """The chain in a folder of objects. Take it over before you add to it."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self._objects = objects
        self._folder = folder
        self._epoch = 0
        self._number = 0
        #: The note of the last record; empty if there is none.
        self._note = ""
        self._removable: list[str] = []
        self._newest: str | None = None

    def take_over(self) -> Tail:
        """Become the writer. The records before may be removed with `remove_old` from now on."""
        for _ in range(_ATTEMPTS_MAX):
            places = [(epoch, number) for epoch, number in self._places()]
            record: tuple[int, int] | None = None
            note = ""
            epoch, number = 0, 0
            if places:
                newest = places[-1]
                kind, _, note = (self._objects.note(self._name(*newest)) or "").partition(" ")
                if kind == _SEAL:
                    epoch = newest[0] + 1
                elif kind == _RECORD:
                    epoch, number = newest[0], newest[1] + 1
                else:
                    continue  # it was removed while this looked
            records = list(_records(places, sealed=epoch))
            record = records[-1] if records else None
            try:
                self._objects.create(self._name(epoch, number), b"", note=f"{_SEAL} {note}")
            except TakenError:
                continue
            self._epoch, self._number, self._note = epoch + 1, 0, note
            self._removable = [self._name(*place) for place in records]
            self._newest = None
            tail = Record(self._name(*record), note) if record is not None else None
            return Tail(note or None, tail)
        raise CheckpointError(
            f"{self._objects.shown(self._folder)}: other writers were faster {_ATTEMPTS_MAX} times. Do "
            f"several queries write there?"
        )

    def add(self, data: bytes, note: str) -> str:
        """Add a record, and return the name of its object. Raises `TakenError` if there is a successor.

        After any other error it is unknown whether the record was added: take the chain over again.
        """
        name = self._name(self._epoch, self._number)
        self._objects.create(name, data, note=f"{_RECORD} {note}")
        if self._newest is not None:
            self._removable.append(self._newest)
        self._newest = name
        self._number += 1
        self._note = note
        return name

    @property
    def removable(self) -> int:
        """How many records could be removed: all that are not the last one of this writer."""
        return len(self._removable)

    def remove_old(self) -> None:
        names, self._removable = self._removable, []
        self._objects.remove(names)

    def end(self) -> None:
        """Seal it: this writer adds nothing more. Then remove all records."""
        with contextlib.suppress(TakenError):  # a successor has done so
            name = self._name(self._epoch, self._number)
            self._objects.create(name, b"", note=f"{_SEAL} {self._note}")
            if self._newest is not None:
                self._removable.append(self._newest)
            self.remove_old()

    def _name(self, epoch: int, number: int) -> str:
        return f"{self._folder}/{epoch:08d}-{number:010d}"

    def _places(self) -> Iterator[tuple[int, int]]:
        for meta in self._objects.metas(self._folder):
            match = _NAME.fullmatch(meta.name)
            if match is not None:
                yield int(match[1]), int(match[2])


def _records(places: list[tuple[int, int]], *, sealed: int) -> Iterator[tuple[int, int]]:
    """The places of records; in epochs below ``sealed`` the last place is that of the seal."""
    for epoch, own in groupby(places, key=lambda place: place[0]):
        found = list(own)
        yield from found[:-1] if epoch < sealed else found
