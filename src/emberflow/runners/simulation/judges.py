"""Judges of patience for the simulation: output must not depend on who decides, nor how.

=========  ========================================================================
adaptive   as in live queries
always     every stateful node waits for its frontier: then nothing is ever replayed
never      every node is eager, as in the papers
fickle     each node changes its mind at random, also while it holds items
=========  ========================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from emberflow.engine.speculation.patience import Adaptive, Judge

NAMES = ("adaptive", "always", "never", "fickle")


class Stubborn:
    """Always or never patient."""

    def __init__(self, patient: bool) -> None:
        self.patient = patient

    def computed(self, items: int, replays: int) -> None:
        """It makes no difference."""

    def arrived(self, items: int, late: int) -> None:
        """It makes no difference."""


class Fickle:
    """Changes its mind at random."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.patient = random.random() < 0.5

    def computed(self, items: int, replays: int) -> None:
        self._toss()

    def arrived(self, items: int, late: int) -> None:
        self._toss()

    def _toss(self) -> None:
        if self._random.random() < 0.2:
            self.patient = not self.patient


def judges(name: str, seed: str) -> Callable[[], Judge]:
    """What makes the judge of each node of a worker.

    >>> judges("always", "any seed")().patient, judges("never", "any seed")().patient
    (True, False)
    """
    if name == "adaptive":
        return Adaptive
    if name == "fickle":
        random = Random(f"emberflow fickle {seed}")
        return lambda: Fickle(random)
    return lambda: Stubborn(name == "always")
