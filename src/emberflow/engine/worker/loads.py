"""How much work the slices of a worker make, by samples.

What is guaranteed:

- *No output depends on it.* A sample looks at an item after it was processed, and keeps numbers.
- *The items of all samples add up* to the items that ran, but for those since the last sample. A sample
  stands for itself and for the items since the one before it.
- *The cost is bounded.* A batch costs one subtraction and one comparison. The gaps between samples grow
  with the items of a report, so there are some dozens of samples a report, however many items there are.

Items are counted where they have come by their keys: at each node that has a key function, but for sinks,
which stay where they are. The gaps between samples are drawn, because what repeats itself in the input
would otherwise be met always, or never. The draw is a function of what was drawn before.

A sample takes the time of its batch, an item, and the replays of its batch, an item. The engine has no
clock: whoever wants loads brings one. Others wait for what comes of a batch, and nobody for its samples. So these
are only noted at first: their keys are found in `settle`, or in the report.

The keys of samples are counted too, so that a key can be told by name that is hot. `KEYS_MAX` keys at most
are known: when there are more, the lighter half is forgotten. So a key with a good part of the load is known,
and its share is rather underestimated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import nlargest
from operator import itemgetter
from typing import Any, NamedTuple

from emberflow.engine.layout import Layout, Stateful
from emberflow.engine.machines.map import Process
from emberflow.errors import shortened
from emberflow.graph.nodes import Sink
from emberflow.graph.transactions import Close
from emberflow.values.hashing import key_hash, owner
from emberflow.values.item import FlatItem
from emberflow.values.owners import SLICES

#: How many samples a report is to have, and how many more gaps are shorter than that would take.
SAMPLES_WANTED = 64
_SAMPLES_MAX = 4 * SAMPLES_WANTED
_GAP_MAX = 1 << 16

#: The keys that are known at most, and those of them that are told: the hottest, with so much of the load.
KEYS_MAX = 256
#: If so many samples are unsettled, they are settled at once.
_UNSETTLED_MAX = 2 * _SAMPLES_MAX
_TOLD_MAX = 3
_TOLD_FROM = 0.1
_TEXT_MAX = 80

_MULTIPLIER, _INCREMENT, _BITS = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class SliceLoad(NamedTuple):
    """What a slice has made a worker do."""

    items: float = 0.0
    replays: float = 0.0
    seconds: float = 0.0


class KeyLoad(NamedTuple):
    """A key of a step, and its share of what all samples of its worker took lately."""

    step: str
    key: str
    share: float


class Loads:
    """The samples of one worker since the last report. ``clock`` tells the time that it has worked."""

    def __init__(self, layout: Layout, clock: Callable[[], float]) -> None:
        self._key_of = _key_functions(layout)
        self._clock = clock
        #: By slice, since the last report.
        self._slices: dict[int, list[float]] = {}
        #: Samples whose keys are not looked at yet: node, payload, and what a `SliceLoad` has.
        self._unsettled: deque[tuple[int, Any, float, float, float]] = deque()
        #: Of all samples together.
        self.seconds = 0.0
        #: By node and key, fading; and that of all keys.
        self._keys: dict[tuple[int, Any], float] = {}
        self._keys_seconds = 0.0
        #: A step may be of several nodes.
        self._names = {
            node: layout.graph.nodes[node].name.partition("/")[0] for node in self._key_of
        }
        self._mean_gap = 1
        self._drawn = self._left = 1
        self._number = 0
        self._samples = 0

    @property
    def nodes(self) -> list[int]:
        """The nodes whose items are counted."""
        return list(self._key_of)

    @property
    def unsampled(self) -> int:
        """The items since the last sample."""
        return self._drawn - self._left

    def is_due(self, node: int, count: int) -> bool:
        """Whether one of so many items, which are about to run at a node, is a sample."""
        if node not in self._key_of:
            return False
        self._left -= count
        return self._left <= 0

    def run(
        self,
        node: int,
        process: Process,
        machine: Stateful | None,
        items: list[FlatItem],
        failed: list[FlatItem],
    ) -> list[list[FlatItem]]:
        """Process a batch that has samples, and take these."""
        replays = 0 if machine is None else machine.replays
        begun = self._clock()
        outputs = process(items, failed)
        seconds = self._clock() - begun
        replays = 0 if machine is None else machine.replays - replays
        count = len(items)
        position = count - 1 + self._left
        while position < count:
            part = self._drawn / count
            sample = node, items[position][2], self._drawn, part * replays, part * seconds
            self._unsettled.append(sample)
            self.seconds += part * seconds
            self._samples += 1
            if self._samples > _SAMPLES_MAX:  # many more items come than before
                self._samples, self._mean_gap = 0, min(2 * self._mean_gap, _GAP_MAX)
            self._drawn = self._gap()
            position += self._drawn
        self._left = position - count + 1
        if len(self._unsettled) > _UNSETTLED_MAX:
            self.settle()
        return outputs

    def settle(self, most: int = _UNSETTLED_MAX) -> None:
        """Look at the keys of so many samples."""
        unsettled = self._unsettled
        while unsettled and most > 0:
            most -= 1
            self._settle(*unsettled.popleft())

    def _settle(
        self, node: int, payload: Any, items: float, replays: float, seconds: float
    ) -> None:
        try:
            key = self._key_of[node](payload)
            number = owner(key_hash(key), SLICES)
            known = self._keys.get((node, key), 0.0)
        except Exception:  # it has failed where it ran
            return
        self._keys[node, key] = known + seconds
        self._keys_seconds += seconds
        if len(self._keys) > KEYS_MAX:
            self._keys = dict(nlargest(KEYS_MAX // 2, self._keys.items(), key=_second))
        figures = self._slices.get(number)
        if figures is None:
            self._slices[number] = [items, replays, seconds]
        else:
            figures[0] += items
            figures[1] += replays
            figures[2] += seconds

    def _gap(self) -> int:
        """The number of items up to the next sample, that one included."""
        self._number = (self._number * _MULTIPLIER + _INCREMENT) & _BITS
        return 1 + (self._number >> 33) % (2 * self._mean_gap - 1)

    def report(self) -> dict[int, SliceLoad]:
        """By slice: what it has made this worker do since the last report."""
        self.settle(len(self._unsettled))
        reported = {number: SliceLoad(*figures) for number, figures in self._slices.items()}
        self._slices = {}
        items = int(sum(load.items for load in reported.values()))
        self._mean_gap = max(1, min(items // SAMPLES_WANTED, _GAP_MAX))
        self._samples = 0
        too_far = self._left - 2 * self._mean_gap
        if too_far > 0:  # fewer items come than before
            self._left -= too_far
            self._drawn -= too_far
        return reported

    def hot_keys(self, fading: float) -> tuple[KeyLoad, ...]:
        """The keys that took the most, the hottest first. From now on what is known counts ``fading`` as much."""
        self.settle(len(self._unsettled))
        total = self._keys_seconds
        hottest = nlargest(_TOLD_MAX, self._keys.items(), key=_second) if total > 0 else []
        told = tuple(
            KeyLoad(self._names[node], shortened(key, _TEXT_MAX), seconds / total)
            for (node, key), seconds in hottest
            if seconds >= _TOLD_FROM * total
        )
        self._keys = {each: seconds * fading for each, seconds in self._keys.items()}
        self._keys_seconds *= fading
        return told


_second = itemgetter(1)


def _key_functions(layout: Layout) -> dict[int, Callable[[Any], Any]]:
    """By node: the key function of what slices bring there.

    Closers are left out: a transaction goes to one by its time, which all slices share alike.
    """
    found = {}
    for node in layout.nodes:
        balance = layout.balance_of(node)
        known = layout.graph.nodes[node]
        if balance is not None and not isinstance(known, Sink | Close):
            found[node] = balance[0]
    return found
