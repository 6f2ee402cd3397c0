"""Virtual time, and FIFO links with random delays. The same seed gives the same run.

Links number their messages, as those of live queries do. A connection that breaks loses some of what is
on it. The receiver takes nothing behind the gap (`takes_behind_a_gap`), and the breaker is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from operator import itemgetter
from random import Random

from xxhash import xxh3_64

from emberflow.runners.simulation.options import Options

#: A run that has not drained after this many events never will.
EVENTS_MAX = 2_000_000


class DoesNotDrainError(Exception):
    """The network has calmed down, and yet events keep causing events."""


def takes_behind_a_gap() -> bool:
    """Whether a receiver processes what comes after something that was lost. It must not."""
    return False


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
        #: By link: how many messages were sent, how many have arrived, and which were lost.
        self._sent: dict[tuple[str, str], int] = {}
        self._arrived: dict[tuple[str, str], int] = {}
        self._lost: dict[tuple[str, str], range] = {}
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
        number = self._sent[link] = self._sent.get(link, 0) + 1
        self.later(arrival - self.now, lambda: self._arrive(link, number, action))

    def _arrive(self, link: tuple[str, str], number: int, action: Callable[[], None]) -> None:
        self._arrived[link] = number
        lost = self._lost.get(link)
        if lost is None or number < lost.start or (number >= lost.stop and takes_behind_a_gap()):
            action()

    def break_link(self, link: tuple[str, str], random: Random) -> int:
        """Lose some of the messages that are on a link, up to the last; returns how many."""
        arrived, sent = self._arrived.get(link, 0), self._sent[link]
        first = random.randint(arrived, max(arrived, sent - 1)) + 1
        if link in self._lost:  # it is broken already, and nothing behind the first gap is taken
            first = min(first, self._lost[link].start)
        self._lost[link] = range(first, sent + 1)
        self.note("broken", link, self._lost[link])
        return len(self._lost[link])

    def links_of(self, names: Collection[str]) -> list[tuple[str, str]]:
        """The links between these processes, only those with something on them if there are any."""
        links = sorted(link for link in self._sent if link[0] in names and link[1] in names)
        loaded = [link for link in links if self._sent[link] > self._arrived.get(link, 0)]
        return loaded or links

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
