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
#: The window is judged when so many elements have passed it, or half of its size.
_ELEMENTS_MIN = 16
#: Replays for each item that came to the region's states: below the first the window grows, above the
#: second it shrinks.
_FEW_REPLAYS = 0.25
_MANY_REPLAYS = 1.0


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
        #: The global times that were let in and are not below the minimal time yet.
        self._let_in: deque[Moment] = deque()
        #: Everything up to this goes in at once.
        self._through: Moment = BEFORE_ALL
        self._items = self._replays = 0

    def add(self, items: list[FlatItem], minimal: Moment) -> list[FlatItem]:
        """Items that came for the node; returns those that go in now, in order."""
        self.hold.add(sorted(items, key=_place_of))
        return self.due(minimal)

    def due(self, minimal: Moment) -> list[FlatItem]:
        """What goes in now that the minimal time of the region is this."""
        self._pass(minimal)
        hold = self.hold
        if not hold.count:
            return []
        room = self.judge.size - len(self._let_in)
        if room > 0:
            moments = hold.moments_after(self._through, room)
            if moments:
                self._let_in.extend(moments)
                self._through = moments[-1]
        return hold.take((self._through[0], self._through[1] + 1))

    def _pass(self, minimal: Moment) -> None:
        let_in, passed = self._let_in, 0
        while let_in and let_in[0] < minimal:
            let_in.popleft()
            passed += 1
        if passed:
            items = sum([self._items_of[node] for node in self._machines])
            replays = sum([machine.replays for machine in self._machines.values()])
            self.judge.passed(passed, items - self._items, replays - self._replays)
            self._items, self._replays = items, replays
