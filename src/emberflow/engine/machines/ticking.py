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
them, and the map's `PendingTicks` has them for cuts.

**Ticks go with their keys.** What a cut has of the ticks of a worker's own keys comes back as ticks that
wait, and not as items. When slices move, the ticks of keys that stay are kept in memory, and those of
keys that come are the ones of the cut. Those of keys that have left are dropped between other work, or when
they are due: whoever has the key has them too.

**Cold keys** keep their ticks: a tick that is due brings the bucket of its key back (`cold`), with those of
all other ticks of its time. The ticks themselves can be at rest until then (`cuts.resting`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from emberflow.engine.cuts.cut import Scheduled
from emberflow.engine.cuts.pending import IsOwn, PendingTicks
from emberflow.engine.cuts.resting import RestingTicks
from emberflow.engine.loops import items as loops
from emberflow.engine.machines.map import map_process
from emberflow.engine.machines.reduce import OUT, Absent, ReduceBucket, ReduceMachine
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.graph.calls import Balance
from emberflow.graph.nodes import Graph, Map, Reduction
from emberflow.values.hashing import key_hash, owner
from emberflow.values.item import FlatItem
from emberflow.values.owners import SLICES, Owners

_place_of = itemgetter(0)


class Ticks:
    """The ticks that wait, in a list for each global time.

    All windows of a time close at once, and their ticks are scheduled nearly in order. A heap of ticks
    would compare their places, which are long, a dozen times each. So the heap has the times, and a
    list is sorted once, when its ticks are due.
    """

    __slots__ = ("_at_rest", "_is_own", "_mixed", "_moments", "_of", "_pending", "_resting")

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._of: dict[Moment, list[FlatItem]] = {}
        #: What was here when slices left: some of it is of keys that have left.
        self._mixed: dict[Moment, list[FlatItem]] = {}
        self._is_own: IsOwn | None = None
        #: Those at rest, what they are pending at, and their least global time: the heap has no other of theirs.
        self._resting: RestingTicks | None = None
        self._pending: PendingTicks | None = None
        self._at_rest: Moment | None = None

    def rest(self, resting: RestingTicks | None, pending: PendingTicks) -> None:
        """Let ticks wait at rest, which become pending when they are due."""
        self._pending = pending
        if resting is not None and self._resting is None:
            self._resting = resting
            self._look_at_rest(resting)

    def _look_at_rest(self, resting: RestingTicks) -> None:
        least = self._at_rest = resting.least
        if least is not None and least not in self._of and least not in self._mixed:
            heappush(self._moments, least)

    @property
    def least(self) -> Moment | None:
        """The least global time that a tick has, or one that has left."""
        return self._moments[0] if self._moments else None

    @property
    def is_mixed(self) -> bool:
        return bool(self._mixed)

    def all(self) -> list[FlatItem]:
        """All that wait, in no particular order."""
        own = [tick for waiting in self._of.values() for tick in waiting]
        if self._resting is not None:
            own += [(tick.place, 0, tick.payload) for tick in self._resting.all()]
        return own + [tick for mixed in self._mixed.values() for tick in self._owned(mixed)]

    def leave(self, is_own: IsOwn) -> None:
        """From now on only those of own keys are here."""
        self.sift()
        self._mixed, self._of = self._of, {}
        self._is_own = is_own

    def sift(self, most: int | None = None) -> None:
        """Drop those that have left: look at so many, or at all."""
        while self._mixed and (most is None or most > 0):
            moment, waiting = self._mixed.popitem()
            looked_at = waiting[-(len(waiting) if most is None else most) :]
            del waiting[-len(looked_at) :]
            if waiting:
                self._mixed[moment] = waiting
            self._of.setdefault(moment, []).extend(self._owned(looked_at))
            if most is not None:
                most -= len(looked_at)

    def _owned(self, ticks: list[FlatItem]) -> list[FlatItem]:
        is_own = self._is_own
        assert is_own is not None
        return [tick for tick in ticks if is_own(tick[2][0])]

    def take_in(self, other: Ticks, moment: Moment) -> None:
        """Take all that another one has, of other keys. What is below a moment is over."""
        for at, waiting in other._of.items():
            if at < moment:
                continue
            known = self._of.get(at)
            if known is not None:
                known += waiting
                continue
            self._of[at] = waiting
            if at not in self._mixed and at != self._at_rest:
                heappush(self._moments, at)

    def add(self, ticks: list[FlatItem]) -> None:
        known = self._of
        for tick in ticks:
            place = tick[0]
            moment = (place[0], place[1])
            waiting = known.get(moment)
            if waiting is None:
                known[moment] = [tick]
                if moment not in self._mixed and moment != self._at_rest:
                    heappush(self._moments, moment)
            else:
                waiting.append(tick)

    def take(self) -> list[FlatItem]:
        """All ticks of the least global time, or none if all of them have left. They wait no longer."""
        moment = heappop(self._moments)
        taken = self._of.pop(moment, [])
        mixed = self._mixed.pop(moment, None)
        if mixed is not None:
            taken += self._owned(mixed)
        if moment == self._at_rest:
            resting, pending = self._resting, self._pending
            assert resting is not None
            assert pending is not None
            woken = resting.take(moment)
            pending.woken(woken)
            taken += [(tick.place, 0, tick.payload) for tick in woken]
            self._look_at_rest(resting)
        return taken


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
        pending: PendingTicks,
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
        #: The ticks that are not below the frontier, and what is pending of them.
        self.ticks = Ticks()
        self.pending = pending
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
                if self.cold_keys:
                    self.fetch(due)
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

    # Cuts, and slices that move.

    def put_back(self, moment: Moment, ticks: Iterable[Scheduled]) -> None:
        """Let the ticks that a cut at this moment has of own keys wait."""
        ticks = list(ticks)
        self.pending.restore(moment, ticks)
        self.ticks.add([(tick.place, 0, tick.payload) for tick in ticks])

    def rest(self, ticks: RestingTicks) -> None:
        """Let the other ticks that the same cut has of own keys be at rest. Call it once."""
        self.pending.resting = ticks
        self.ticks.rest(ticks, self.pending)

    def leave_behind(self, owners: Owners, worker: int) -> bool:
        if self.pending.resting is not None:
            self.pending.resting.keep_only(owners.ranges(worker))
        of_slice = owners.of_slice

        def is_own(key: object) -> bool:
            return of_slice[owner(key_hash(key), SLICES)] == worker

        self.ticks.leave(is_own)
        self.pending.leave(is_own)
        return super().leave_behind(owners, worker)

    @property
    def has_left(self) -> bool:
        return super().has_left or self.ticks.is_mixed or self.pending.is_mixed

    def drop_left(self, most: int | None = None) -> None:
        super().drop_left(most)
        self.ticks.sift(most)
        self.pending.sift(most)

    def inherit(self, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        if not super().inherit(other, moment, is_same=is_same):
            return False
        if is_same:
            assert isinstance(other, TickingMachine)
            self.ticks = other.ticks
            self.pending.inherit(other.pending, moment)
            self.ticks.rest(None, self.pending)
        return True

    def take_in(self, other: Trimmed[ReduceBucket], moment: Moment) -> None:
        super().take_in(other, moment)
        assert isinstance(other, TickingMachine)
        self.ticks.take_in(other.ticks, moment)
        self.pending.take_in(other.pending)
