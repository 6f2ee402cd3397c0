"""The window of transactions: how many elements may be under way in a region at once.

Transactions that touch the same rows depend on each other. Each reads what the one before it wrote, and
mostly reads it too early: then it computes again, and so do all behind it. Work and messages grow with
the square of how many are under way. One at a time would cost no replay, but a round trip to the acker
each.

So where transactions open, a worker lets in only so many elements above the minimal time of the region,
the least ones first, and finds out how many are best (`AdaptiveWindow`). It counts what an element costs:
items, replays, and events of the worker, each of which is a round of a loop and some messages. Replays
alone would not tell: those of transactions that are refused do not become fewer in a smaller window. What
waits is in flight (`patience` says how), and no output depends on when it is let in.

What is guaranteed: the least element always goes in, so the minimal time always moves; and of one place
and trace, items leave in the order they came (`hold`). What comes below an element that is already in
goes in at once: a tombstone follows its item, and a late element must not wait for later ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Protocol

from emberflow.engine.layout import Stateful
from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Frame, Moment
from emberflow.engine.speculation.hold import Hold
from emberflow.engine.speculation.judge import Judge
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)

#: The window when a worker begins.
_FIRST = 16
#: With so much room left, elements go in as they come, and are counted by batches.
_PLENTY = 512
#: A size is judged when so many elements have passed, or as many as may be under way.
_ELEMENTS_MIN = 64
#: With fewer replays than this for each item that came to the region's states, the window grows at once.
_FEW_REPLAYS = 0.04
#: A worker's event costs as much as so many items of a state: messages, and rounds of a loop.
_ITEMS_OF_EVENT = 3
#: With more than this, it is far too large, and is made smaller before all of it has passed.
_WASTED_REPLAYS = 4
#: When an element costs so many times as much as before, other elements have come, and what is known of
#: other sizes counts no more.
_CHANGED = 2.0
#: The sizes: two for each power of two.
_SIZES = (
    1,
    *(size for power in range(1, 14) for size in (1 << power, 3 << (power - 1))),
    1 << 14,
)


class WindowJudge(Protocol):
    """Decides how many elements may be under way."""

    @property
    def size(self) -> int:
        """How many."""

    def passed(self, elements: int, items: int, replays: int, events: int) -> None:
        """So many elements were done in so many events of the worker; the states got so many items and
        computed so many again."""


class AdaptiveWindow:
    """Finds the size at which an element costs least.

    Larger windows have more elements share an event, smaller ones have fewer replays. Where hardly
    anything is replayed, the window doubles. Otherwise it tries the next larger and the next smaller size
    in turns, and stays where an element costs least.

    >>> judge = AdaptiveWindow()
    >>> judge.passed(elements=100, items=600, replays=0, events=10)
    >>> judge.size
    32
    """

    __slots__ = (
        "_at",
        "_best",
        "_costs",
        "_elements",
        "_events",
        "_items",
        "_last",
        "_replays",
        "_step",
    )

    def __init__(self) -> None:
        self._at = self._best = _SIZES.index(_FIRST)
        #: What an element costs, by the index of the size.
        self._costs: dict[int, float] = {}
        #: What an element cost last, at any size.
        self._last: float | None = None
        #: In which direction it tries next.
        self._step = -1
        self._elements = self._items = self._replays = self._events = 0

    @property
    def size(self) -> int:
        return _SIZES[self._at]

    def passed(self, elements: int, items: int, replays: int, events: int) -> None:
        self._elements += elements
        self._items += items
        self._replays += replays
        self._events += events
        is_wasteful = self._replays > _WASTED_REPLAYS * self._items
        if self._elements < (_ELEMENTS_MIN if is_wasteful else max(_ELEMENTS_MIN, self.size)):
            return
        cost = (self._items + self._replays + _ITEMS_OF_EVENT * self._events) / self._elements
        has_few_replays = self._replays <= _FEW_REPLAYS * self._items
        self._elements = self._items = self._replays = self._events = 0
        last = self._costs.get(self._best, self._last)
        self._last = cost
        if has_few_replays:
            self._begin_at(self._at + 2)
        elif is_wasteful:
            self._begin_at(self._at - 4)
        elif self._at == self._best and last is not None and cost > _CHANGED * last:
            self._begin_at(self._at - 2)
        else:
            self._try_next(cost)

    def _begin_at(self, index: int) -> None:
        """Go on with another size, and know nothing of others."""
        self._costs.clear()
        self._step = 1 if index > self._at else -1
        self._at = self._best = _near(index)

    def _try_next(self, cost: float) -> None:
        """Note what this size costs, and go on with the best one or with one beside it."""
        costs = self._costs
        known = costs.get(self._at)
        costs[self._at] = cost if known is None else (known + cost) / 2
        if costs[self._at] <= costs.get(self._best, cost):
            self._best = self._at
        if self._at != self._best:
            self._step = -self._step
            self._at = self._best
            return
        if _near(self._best + self._step) == self._best:  # it is the first or the last
            self._step = -self._step
        self._at = self._best + self._step


def _nobody(items: int, replays: int) -> None:
    """Nobody hears of it."""


def _near(index: int) -> int:
    return min(max(index, 0), len(_SIZES) - 1)


class Window:
    """The window of the transactions that open at one node, on one worker."""

    __slots__ = (
        "_events",
        "_items",
        "_items_of",
        "_latest",
        "_let_in",
        "_machines",
        "_replays",
        "_through",
        "_under_way",
        "bound",
        "forwards_to",
        "frame",
        "hold",
        "is_host",
        "judge",
        "node",
        "own_stage",
        "passed",
        "patience",
        "stage",
    )

    def __init__(
        self,
        node: int,
        stages: tuple[int, int],
        machines: dict[int, Stateful],
        items_of: Mapping[int, int],
        judge: WindowJudge,
        patience: Judge,
    ) -> None:
        """``stages`` are those of the node and of the region. ``machines`` are the stateful nodes of the
        region, ``items_of`` what has come to each."""
        self.node = node
        self.own_stage, self.stage = stages
        self.judge = judge
        #: Whether the host of a gathered region waits for what may still come below.
        self.patience = patience
        self._latest: Place = ()
        self.is_host = False
        #: The host of a gathered region, if that is another worker: the elements go there.
        self.forwards_to: int | None = None
        #: Nothing from here on leaves: the arrangement is about to change.
        self.bound: Moment = AFTER_ALL
        #: Hears of items and of replays when elements have passed.
        self.passed: Callable[[int, int], None] = _nobody
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
        self._items = self._replays = self._events = 0

    def note_event(self) -> None:
        """The worker has dealt with an event."""
        if self._let_in:
            self._events += 1

    @property
    def level(self) -> int:
        """The level of what is held. A host lets it in itself; otherwise it may still go to another worker, and
        arrive at the node there."""
        return 2 * self.own_stage + (self.is_host and self.bound == AFTER_ALL)

    def close(self) -> Moment:
        """Let nothing in above the last element that has gone in, or to the host. Returns its time."""
        self.bound = (self._through[0], self._through[1] + 1)
        return self._through

    def open(self, *, forwards_to: int | None, is_host: bool) -> None:
        """Go by another arrangement."""
        self.bound = AFTER_ALL
        self.forwards_to, self.is_host = forwards_to, is_host

    def use(self, node: int, machine: Stateful) -> None:
        """From now on this is the machine of a node of the region."""
        self._machines[node] = machine
        self._replays = sum([own.replays for own in self._machines.values()])

    def add(self, items: list[FlatItem], minimal: Moment, complete: Moment) -> list[FlatItem]:
        """Items that came for the node; returns those that leave now, in order."""
        batch = list(items)
        sort_by_place(batch)
        place = batch[-1][0]
        if self.is_host and self.patience.patient:
            late = bisect_left(batch, self._latest, key=_place_of)
            self.patience.arrived(len(batch), late)
            self._latest = max(self._latest, place)
        if (
            not self.hold.count
            and self.forwards_to is None
            and self.judge.size - self._under_way >= _PLENTY + len(batch)
            and place < self._limit(complete)
        ):
            self._pass(minimal)
            self._note((place[0], place[1]), len(batch))
            return batch
        self.hold.add(batch)
        return self.due(minimal, complete)

    def due(self, minimal: Moment, complete: Moment) -> list[FlatItem]:
        """What leaves now that the minimal time of the region is this, and that nothing can come to this
        node below the other one."""
        self._pass(minimal)
        hold = self.hold
        if not hold.count:
            return []
        if self.forwards_to is not None:
            items = hold.take(self.bound)
            if items:
                place = items[-1][0]
                self._through = max(self._through, (place[0], place[1]))
            return items
        room = self.judge.size - self._under_way
        if room > 0:
            limit = self._limit(complete)
            for moment in hold.moments_after(self._through, room):
                if moment >= limit:
                    break
                self._note(moment, 1)
        return hold.take((self._through[0], self._through[1] + 1))

    def _limit(self, complete: Moment) -> Moment:
        """Nothing from here on goes in now."""
        # While the arrangement changes, what is held here may go to another node. So it would wait for itself.
        waits = self.is_host and self.patience.patient and self.bound == AFTER_ALL
        return complete if waits else self.bound

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
            came, wrong = items - self._items, replays - self._replays
            self.judge.passed(passed, came, wrong, self._events)
            self.passed(came, wrong)
            if self.is_host and not self.patience.patient:
                self.patience.computed(came, wrong)
            self._items, self._replays, self._events = items, replays, 0
