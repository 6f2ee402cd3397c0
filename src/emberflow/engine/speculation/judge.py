"""Judges of patience: whether a node waits until its input is complete (`patience`)."""

from __future__ import annotations

from typing import Protocol

#: A node becomes patient when more than one in so many items had to be computed again,
_REPLAYS_OF_ITEMS = 16
#: and when it was more than these: a few replays cost nothing.
_REPLAYS_MIN = 64
#: A node becomes eager when fewer than one in so many items came after a later one.
_LATE_OF_ITEMS = 128
#: Counts are halved when so many items have been seen: what was long ago counts for less.
_ITEMS_COUNTED = 8_192


class Judge(Protocol):
    """Decides for one node of one worker whether it is patient."""

    patient: bool

    def computed(self, items: int, replays: int) -> None:
        """The node computed so many items eagerly, and so many others again."""

    def arrived(self, items: int, late: int) -> None:
        """So many items arrived at the patient node, and so many of them below an earlier one."""


class Adaptive:
    """Eager while it is right, patient while it would not be.

    >>> judge = Adaptive()
    >>> judge.computed(items=1_000, replays=400)
    >>> judge.patient
    True
    """

    __slots__ = ("_items", "_wrong", "patient")

    def __init__(self) -> None:
        self.patient = False
        self._items = 0
        self._wrong = 0

    def computed(self, items: int, replays: int) -> None:
        self._items += items
        self._wrong += replays
        if self._wrong > _REPLAYS_MIN and self._wrong * _REPLAYS_OF_ITEMS > self._items:
            self._begin(patient=True)
        elif self._items > _ITEMS_COUNTED:
            self._items //= 2
            self._wrong //= 2

    def arrived(self, items: int, late: int) -> None:
        self._items += items
        self._wrong += late
        if self._items > _ITEMS_COUNTED:
            if self._wrong * _LATE_OF_ITEMS < self._items:
                self._begin(patient=False)
            self._items //= 2
            self._wrong //= 2

    def _begin(self, *, patient: bool) -> None:
        self.patient = patient
        self._items = self._wrong = 0


class Stubborn:
    """Always or never patient."""

    __slots__ = ("patient",)

    def __init__(self, patient: bool) -> None:
        self.patient = patient

    def computed(self, items: int, replays: int) -> None:
        """It makes no difference."""

    def arrived(self, items: int, late: int) -> None:
        """It makes no difference."""
