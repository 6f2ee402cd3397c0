"""A reduction that sends itself ticks, with the loop that brings them back, run in one step.

A window that emits when it closes schedules an item for its end, a *tick*. A loop brings the tick back
into the bucket that it came from (`dsl.operators.windows.plain`). Run as nodes, the loop is a region: item by
item, and what a tick finds is wrong again with every element that comes ahead of it.

This machine runs the reduction and its loop as one. What is guaranteed: **it computes each item and each
tick once, in the order of their places.** For that it is always patient (`speculation.patience`): it
computes only what is below the frontier of its stage, where nothing can come from outside any more. Ticks
below the frontier run among the items, in their places. The others wait here, and are in flight like what
a node holds. A tick stays with its key, so no other worker can send one.

To wait costs nothing that a closed window would not have to wait for anyway: its output leaves when the
minimal time has passed its end.

Items leave with the places that the loop would have given them. Ticks have those that their map gives
them, and the map's `Pending` has them for cuts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from emberflow.engine.cuts.pending import Pending
from emberflow.engine.loops import items as loops
from emberflow.engine.machines.map import map_process
from emberflow.engine.machines.reduce import OUT, Absent, ReduceMachine
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.graph.calls import Balance
from emberflow.graph.nodes import Graph, Map, Reduction
from emberflow.values.item import FlatItem

_place_of = itemgetter(0)


class Ticks:
    """The ticks that wait, in a list for each global time.

    All windows of a time close at once, and their ticks are scheduled nearly in order. A heap of ticks
    would compare their places, which are long, a dozen times each. So the heap has the times, and a
    list is sorted once, when its ticks are due.
    """

    __slots__ = ("_moments", "_of")

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._of: dict[Moment, list[FlatItem]] = {}

    @property
    def least(self) -> Moment | None:
        """The least global time that a tick has."""
        return self._moments[0] if self._moments else None

    def all(self) -> list[FlatItem]:
        """All that wait, in no particular order."""
        return [tick for waiting in self._of.values() for tick in waiting]

    def add(self, ticks: list[FlatItem]) -> None:
        known = self._of
        for tick in ticks:
            place = tick[0]
            moment = (place[0], place[1])
            waiting = known.get(moment)
            if waiting is None:
                known[moment] = [tick]
                heappush(self._moments, moment)
            else:
                waiting.append(tick)

    def take(self) -> list[FlatItem]:
        """All ticks of the least global time. They wait no longer."""
        return self._of.pop(heappop(self._moments))


class TickingMachine(ReduceMachine):
    """The machine of a reduction and the loop of its ticks.

    ``ports`` are those of the broadcast behind the reduction: to the map of ticks, and out.
    """

    def __init__(
        self,
        graph: Graph,
        reduction: Reduction,
        balance: Balance,
        ports: tuple[int, int],
        pending: Pending,
        *,
        diverts: bool = False,
    ) -> None:
        super().__init__(graph, reduction, balance, keyed=False, diverts=diverts)
        assert reduction.ticks is not None
        ticks = graph.nodes[reduction.ticks]
        assert isinstance(ticks, Map)
        self._to_ticks, self._to_out = (ports[0],), (ports[1],)
        self._suffix = OUT + self._to_out
        #: It also says from which accumulators nothing follows, unless somebody has wrapped it.
        self._ticks_of: Callable[[Any], Any] = getattr(ticks.function, "follows", ticks.function)
        self._make_ticks = map_process(ticks, pending, diverts=diverts)
        #: The ticks that are not below the frontier.
        self.ticks = Ticks()
        #: Whoever runs the machine sets it first.
        self.frontier: Moment = BEFORE_ALL
        self.process = self._process_ticking

    def _process_ticking(
        self, items: list[FlatItem], failed: list[FlatItem]
    ) -> list[list[FlatItem]]:
        """Compute items, which are sorted and below the frontier, and the ticks below it."""
        output: list[FlatItem] = []
        ticks, frontier = self.ticks, self.frontier
        position, count = 0, len(items)
        while True:
            moment = ticks.least
            is_due = moment is not None and moment < frontier
            end = bisect_left(items, moment, lo=position, key=_place_of) if is_due else count
            if position < end:
                position = self._compute(items, position, end, output, failed)
            elif not is_due:
                return [output]
            else:
                due = ticks.take()
                # Ticks of a cut come as items, and may be among them.
                while position < count and items[position][0][:2] == moment:
                    due.append(items[position])
                    position += 1
                loops.sort_by_place(due)
                # What they schedule is later than all of them.
                done = 0
                while done < len(due):
                    done = self._compute(due, done, len(due), output, failed)

    def _compute(
        self,
        items: list[FlatItem],
        start: int,
        end: int,
        output: list[FlatItem],
        failed: list[FlatItem],
    ) -> int:
        """Compute the items up to a position, or to the first that schedules a tick which may come ahead of
        the next: up to which one."""
        ticking: list[FlatItem] = []
        position = loops.reduce_triples(
            items,
            start,
            end,
            output,
            self._combine,
            self.buckets,
            self.touched,
            self._suffix,
            Absent,
            None,
            self._ticks_of,
            ticking,
        )
        if ticking:
            self._schedule([(place + OUT, mark, sent) for place, mark, sent in ticking], failed)
        if position < end and not ticking:  # a new key, or something goes wrong
            (made,) = self._process_triples([items[position]], failed)
            self._schedule(made, failed)
            output += [(place + self._to_out, mark, sent) for place, mark, sent in made]
            position += 1
        return position

    def _schedule(self, made: list[FlatItem], failed: list[FlatItem]) -> None:
        """Have the map of ticks schedule what follows from accumulators."""
        port = self._to_ticks
        (scheduled,) = self._make_ticks(
            [(place + port, mark, payload) for place, mark, payload in made], failed
        )
        self.ticks.add(scheduled)
