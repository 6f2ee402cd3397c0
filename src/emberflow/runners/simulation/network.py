"""Virtual time, and FIFO links with random delays. The same seed gives the same run."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from random import Random

from xxhash import xxh3_64

from emberflow.runners.simulation.options import Options

#: A run that has not drained after this many events never will.
EVENTS_MAX = 2_000_000


class DoesNotDrainError(Exception):
    """The network has calmed down, and yet events keep causing events."""


class Network:
    """A queue of future events. Draws all randomness of a simulation, in the order of events."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.now = 0
        self.events = 0
        self._random = Random(f"emberflow network {options.seed}")
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._arrival_last: dict[tuple[str, str], int] = {}
        self._slow: dict[object, bool] = {}
        self._interruptions: list[tuple[int, Callable[[], None]]] = []
        self._digest = xxh3_64()

    @property
    def trace(self) -> str:
        """A digest of everything noted: equal for equal runs, in every process."""
        return self._digest.hexdigest()

    def note(self, *what: object) -> None:
        self._digest.update(f"{self.now} {what}\n".encode())

    @property
    def calm(self) -> bool:
        return self.now >= self.options.calm_after_ticks

    def later(self, ticks: int, action: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._agenda, (self.now + ticks, self._number, action))

    def send(
        self, source: str, target: str, action: Callable[[], None], *, most: int | None = None
    ) -> None:
        """Deliver after a random delay, but never before an earlier message on the same link."""
        delay = self.ticks(self.options.delay_ticks_max if most is None else most)
        if self.is_slow(("link", source, target), self.options.slow_links):
            delay *= self.options.slowness
        if self.calm:
            delay = 1
        link = (source, target)
        arrival = max(self.now + delay, self._arrival_last.get(link, 0))
        self._arrival_last[link] = arrival
        self.later(arrival - self.now, action)

    def ticks(self, most: int) -> int:
        return 1 if self.calm else self._random.randint(1, most)

    def count(self, most: int) -> int:
        return self._random.randint(1, most)

    def chance(self, likely: float) -> bool:
        return self._random.random() < likely

    def interrupt(self, events: int, action: Callable[[], None]) -> None:
        """Run an action after this many more events, or when no events are left."""
        self._interruptions.append((self.events + events, action))
        self._interruptions.sort(key=itemgetter(0), reverse=True)

    def is_slow(self, what: object, share: float) -> bool:
        """Whether this link, worker or front is a slow one. Drawn at the first call."""
        if what not in self._slow:
            self._slow[what] = self._random.random() < share
        return self._slow[what]

    def run(self) -> None:
        """Run until no events are left."""
        interruptions = self._interruptions
        while self._agenda or interruptions:
            if interruptions and (not self._agenda or interruptions[-1][0] <= self.events):
                interruptions.pop()[1]()
                continue
            self.events += 1
            if self.events > EVENTS_MAX:
                raise DoesNotDrainError(f"after {EVENTS_MAX:,} events there is still more to do")
            self.now, _, action = heappop(self._agenda)
            action()
