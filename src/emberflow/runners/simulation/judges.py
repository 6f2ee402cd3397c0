"""Judges of patience for the simulation: output must not depend on who decides, nor how.

=========  ========================================================================
adaptive   as in live queries
always     every stateful node waits for its frontier, so it replays nothing; transactions one by one,
           gathered on one worker
never      every node is eager, as in the papers; all transactions at once, never gathered
fickle     nodes, windows and regions change their minds at random, also while they hold items
=========  ========================================================================

Nor may it depend on which buckets are in memory, so `Evictions` draws that too: which are evicted, and
which rows of a cut are left cold by a restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.pending import is_with_its_key
from emberflow.engine.cuts.resting import TicksInMemory
from emberflow.engine.machines.cold import RowsInMemory
from emberflow.engine.speculation.judge import Stubborn
from emberflow.engine.speculation.patience import Judges
from emberflow.engine.worker.worker import Worker

NAMES = ("adaptive", "always", "never", "fickle")


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


class FixedWindow:
    """A window of one size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def passed(self, elements: int, items: int, replays: int, events: int) -> None:
        """It makes no difference."""


class FickleWindow:
    """A window of another size every time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.size = 1

    def passed(self, elements: int, items: int, replays: int, events: int) -> None:
        self.size = self._random.choice((1, 2, 3, 1_000))


class StubbornGathering:
    """Gathers as soon as it can, and never ends it; or never gathers."""

    waits = True

    def __init__(self, gathers: bool) -> None:
        self._gathers = gathers

    def passed(self, items: int, replays: int) -> bool:
        return self._gathers

    def hosted(self, items: int, fetched: int, rows: int) -> bool:
        return True

    def spread(self) -> None:
        """It makes no difference."""


class FickleGathering:
    """Gathers now and then, for a while."""

    def __init__(self, random: Random, of_waits: Random) -> None:
        self._random = random
        self._of_waits = of_waits
        self.waits = of_waits.random() < 0.5

    def passed(self, items: int, replays: int) -> bool:
        return self._random.random() < 0.5

    def hosted(self, items: int, fetched: int, rows: int) -> bool:
        self.waits = self._of_waits.random() < 0.5
        return self._random.random() < 0.8

    def spread(self) -> None:
        """It makes no difference."""


def judges(name: str, seed: str) -> Judges:
    """What makes the judges of a worker.

    >>> always, never = judges("always", "any seed"), judges("never", "any seed")
    >>> always.node().patient, never.node().patient, always.window().size
    (True, False, 1)
    """
    if name == "adaptive":
        return Judges()
    if name == "fickle":
        random, of_waits = Random(f"emberflow fickle {seed}"), Random(f"emberflow waits {seed}")
        return Judges(
            lambda: Fickle(random),
            lambda: FickleWindow(random),
            lambda: FickleGathering(random, of_waits),
        )
    patient = name == "always"
    return Judges(
        lambda: Stubborn(patient),
        lambda: FixedWindow(1 if patient else 1_000_000),
        lambda: StubbornGathering(patient),
    )


class Evictions:
    """Evicts buckets of one worker at random. It has random numbers of its own, so a run without evictions
    goes as it would with them."""

    def __init__(self, worker: Worker, probability: float, seed: str) -> None:
        self._worker = worker
        self._probability = probability
        self._random = Random(f"emberflow evictions {seed}")
        self._restores = Random(f"emberflow restores {seed}")
        self._rests = Random(f"emberflow rests {seed}")
        if probability:
            worker.keep_cold(RowsInMemory)

    def left_cold(self, rows: list[Row]) -> list[Row]:
        """Leave some rows of a cut cold, at random. Returns the others, which are to be restored."""
        stores = self._worker.cold_stores()
        share = self._restores.choice((0.0, 0.5, 1.0))
        restored: list[Row] = []
        for row in rows:
            if row.operation in stores and self._restores.random() < share:
                stores[row.operation].put([row])
            else:
                restored.append(row)
        return restored

    def at_rest(self, scheduled: list[Scheduled]) -> list[Scheduled]:
        """Leave some ticks of a cut at rest, at random. Returns what is to be restored."""
        worker, dice = self._worker, self._rests
        steps = worker.resting_steps() if self._probability else ()
        share = dice.choice((0.0, 0.5, 1.0))
        resting: dict[str, list[Scheduled]] = {}
        restored: list[Scheduled] = []
        for item in scheduled:
            can = item.operation in steps and is_with_its_key(item) and worker.owns(item.key_hash)
            if can and dice.random() < share:
                resting.setdefault(item.operation, []).append(item)
            else:
                restored.append(item)
        for operation, ticks in resting.items():
            worker.rest(operation, TicksInMemory(ticks))
        return restored

    def draw(self) -> None:
        if self._probability and self._random.random() < self._probability:
            self._worker.evict(self._random.choice((2, 5, 1_000)))


def drawn_steps(worker: Worker, random: Random) -> set[str]:
    """The steps of a worker that are copied ahead."""
    likely = random.choice((0.0, 0.5, 1.0))
    return {step for step in worker.cold_stores() if random.random() < likely}


def leave_cold(worker: Worker, layers: Sequence[Sequence[Row]]) -> None:
    """Put the rows where a worker looks for cold keys: the newest one of a key counts."""
    stores = worker.cold_stores()
    for row in (row for layer in layers for row in layer):
        stores[row.operation].take([row.key])
        stores[row.operation].put([row])
