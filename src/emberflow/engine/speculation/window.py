"""The window of transactions: how many elements may be under way in a region at once.

Transactions that touch the same rows depend on each other. Each reads what the one before it wrote, and
mostly reads it too early: then it computes again, and so do all behind it. Work and messages grow with
the square of how many are under way. One at a time would cost no replay, but a round trip to the acker
each.

So where transactions open, a worker lets in only so many elements above the minimal time of the region,
the least ones first, and finds out how many are best (`AdaptiveWindow`): the window grows while hardly
anything is replayed, and shrinks when much is. What waits is in flight (`patience` says how), and no
output depends on when it is let in.

What is guaranteed: the least element always goes in, so the minimal time always moves; and of one place
and trace, items leave in the order they came (`hold`). What comes below an element that is already in
goes in at once: a tombstone follows its item, and a late element must not wait for later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import Protocol

from emberflow.engine.layout import Stateful
from emberflow.engine.messages import BEFORE_ALL, Frame, Moment
from emberflow.engine.speculation.hold import Hold
from emberflow.values.item import FlatItem

_place_of = itemgetter(0)

#: The window when a worker begins, and the largest one.
_FIRST = 64
_SIZE_MAX = 1 << 14
#: With so much room left, elements go in as they come, and are counted by batches.
_PLENTY = 512
#: The window is judged when so many elements have passed it, or half of its size.
_ELEMENTS_MIN = 32
#: Replays for each item that came to the region's states: below the first the window grows, above the
#: second it shrinks.
_FEW_REPLAYS = 0.04
_MANY_REPLAYS = 0.15


class WindowJudge(Protocol):
    """Decides how many elements may be under way."""

    size: int

    def passed(self, elements: int, items: int, replays: int) -> None:
        """So many elements were done; the states got so many items and computed so many again."""


class AdaptiveWindow:
    """Larger while hardly anything is replayed, smaller when much is.

    >>> judge = AdaptiveWindow()
    >>> judge.passed(elements=100, items=600, replays=5_000)
    >>> judge.size
    32
    """

    __slots__ = ("_elements", "_items", "_replays", "size")

    def __init__(self) -> None:
        self.size = _FIRST
        self._elements = self._items = self._replays = 0

    def passed(self, elements: int, items: int, replays: int) -> None:
        self._elements += elements
        self._items += items
        self._replays += replays
        if self._elements < max(_ELEMENTS_MIN, self.size // 2):
            return
        if self._replays <= _FEW_REPLAYS * self._items:
            self.size = min(2 * self.size, _SIZE_MAX)
        elif self._replays > _MANY_REPLAYS * self._items:
            self.size = max(self.size // 2, 1)
        self._elements = self._items = self._replays = 0


class Window:
    """The window of the transactions that open at one node, on one worker."""

    __slots__ = (
        "_items",
        "_items_of",
        "_let_in",
        "_machines",
        "_replays",
        "_through",
        "_under_way",
        "frame",
        "hold",
        "judge",
        "node",
        "stage",
    )

    def __init__(
        self,
        node: int,
        stage: int,
        machines: Mapping[int, Stateful],
        items_of: Mapping[int, int],
        judge: WindowJudge,
    ) -> None:
        """``machines`` are the stateful nodes of the region, ``items_of`` what has come to each."""
        self.node = node
        self.stage = stage
        self.judge = judge
        self.hold = Hold()
        #: What stands for the held items at the acker.
        self.frame: Frame | None = None
        self._machines = machines
        self._items_of = items_of
        #: What was let in and is not below the minimal time yet: the last global time of some
        #: elements, and how many they are. One by one, unless there is plenty of room.
        self._let_in: deque[tuple[Moment, int]] = deque()
        self._under_way = 0
        #: Everything up to this goes in at once.
        self._through: Moment = BEFORE_ALL
        self._items = self._replays = 0

    def add(self, items: list[FlatItem], minimal: Moment) -> list[FlatItem]:
        """Items that came for the node; returns those that go in now, in order."""
        batch = sorted(items, key=_place_of)
        if not self.hold.count and self.judge.size - self._under_way >= _PLENTY + len(batch):
            self._pass(minimal)
            place = batch[-1][0]
            self._note((place[0], place[1]), len(batch))
            return batch
        self.hold.add(batch)
        return self.due(minimal)

    def due(self, minimal: Moment) -> list[FlatItem]:
        """What goes in now that the minimal time of the region is this."""
        self._pass(minimal)
        hold = self.hold
        if not hold.count:
            return []
        room = self.judge.size - self._under_way
        if room > 0:
            for moment in hold.moments_after(self._through, room):
                self._note(moment, 1)
        return hold.take((self._through[0], self._through[1] + 1))

    def _note(self, last: Moment, count: int) -> None:
        if last > self._through:
            self._through = last
            self._let_in.append((last, count))
            self._under_way += count

    def _pass(self, minimal: Moment) -> None:
        let_in, passed = self._let_in, 0
        while let_in and let_in[0][0] < minimal:
            passed += let_in.popleft()[1]
        if passed:
            self._under_way -= passed
            items = sum([self._items_of[node] for node in self._machines])
            replays = sum([machine.replays for machine in self._machines.values()])
            self.judge.passed(passed, items - self._items, replays - self._replays)
            self._items, self._replays = items, replays
