"""The reference, on elements that never came in this order: held against the output, and rewindable.

`Recorded` is the reference with every output kept by channel, together with its global time.

`Trial` is the reference under an assumption about the input. It differs in three ways:

1. *Elements come in any order.* What is scheduled happens once any element has reached its time; the
   order of places is not checked, as copies of elements break it.
2. *Outputs are compared, not kept.* The first that is not what the channel holds raises `Differs`.
3. *It goes back.* Whatever a bucket held before is in a journal; a `mark` is a length of the journal
   and a few numbers, and `rewind` undoes all that happened since. Of a bucket only the last
   ``window - 1`` items are kept: no more of it can ever be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Node, Sink
from emberflow.guarantees.outputs import Observed, alike
from emberflow.runners.reference import NestedPlace, Reference, Waiting
from emberflow.values.item import GlobalTime

_REWINDABLE = (Front, Map, Broadcast, Merge, Group, Sink)


class Differs(Exception):  # noqa: N818 - an answer, not an error
    """An output is not the one that the sink holds there."""


class NotRewindable(Exception):  # noqa: N818 - an answer, not an error
    """The flow has a step whose state a trial cannot undo."""


class Recorded(Reference):
    """The reference's outputs by channel, each with its place."""

    def __init__(self, graph: Graph, observed: Observed) -> None:
        self._observed = observed
        self.recorded: list[list[tuple[Any, NestedPlace]]] = [[] for _ in observed.channels]
        super().__init__(graph)

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        channelled, placed = self._observed.channelled(node), self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            if channelled is not None:
                number, kept = channelled(payload, place[0])
                self.recorded[number].append((kept, place))
            return iter(())

        return sink


class Bookmark(NamedTuple):
    """A moment to go back to."""

    journal: int
    at: tuple[int, ...]
    scheduled: tuple[Any, ...]
    reached: NestedPlace | None


class Trial(Reference):
    """See above. ``matched`` is the most outputs that any walk has explained, with what came next."""

    def __init__(self, graph: Graph, observed: Observed, *, finished: bool) -> None:
        self._observed = observed
        self._finished = finished
        self._held = [channel.held for channel in observed.channels]
        self._total = sum(map(len, self._held))
        self._at = [0] * len(self._held)
        self._journal: list[tuple[dict[Any, tuple[Any, ...]], Any, tuple[Any, ...]]] = []
        self._reached: NestedPlace | None = None
        self._snapshot: tuple[Any, ...] = ()
        self._is_scheduling_new = False
        self.matched = (-1, 0, 0)
        super().__init__(graph)

    def mark(self) -> Bookmark:
        if self._is_scheduling_new:
            self._snapshot = tuple(self._scheduled)
            self._is_scheduling_new = False
        return Bookmark(len(self._journal), tuple(self._at), self._snapshot, self._reached)

    def rewind(self, mark: Bookmark) -> None:
        journal = self._journal
        while len(journal) > mark.journal:
            bucket, key, before = journal.pop()
            bucket[key] = before
        self._at = list(mark.at)
        if self._is_scheduling_new or self._snapshot is not mark.scheduled:
            self._scheduled = list(mark.scheduled)
            self._snapshot = mark.scheduled
            self._is_scheduling_new = False
        self._reached = mark.reached

    def changed_since(self, mark: Bookmark) -> bool:
        """Whether anything that could ever be seen is different."""
        if tuple(self._at) != mark.at or self._is_scheduling_new:
            return True
        if self._snapshot is not mark.scheduled:
            return True
        seen: set[tuple[int, Any]] = set()
        for bucket, key, before in self._journal[mark.journal :]:
            if (id(bucket), key) not in seen:
                seen.add((id(bucket), key))
                if not alike(before, bucket[key]):
                    return True
        return False

    def silent_since(self, mark: Bookmark) -> bool:
        return tuple(self._at) == mark.at

    @property
    def explains_all(self) -> bool:
        """Whether every output that the channels hold was made."""
        return sum(self._at) == self._total

    def enter(self, global_time: GlobalTime, front: Front, payload: Any) -> None:
        place: NestedPlace = (global_time, ())
        if self._reached is None or place > self._reached:
            self._reached = place
        self._follow_scheduled(self._reached)
        self._follow((place, front.id, payload))

    def finish(self) -> None:
        super().finish()
        if not self.explains_all:
            lacking = next(n for n, held in enumerate(self._held) if self._at[n] < len(held))
            self._differs(lacking)

    def _follow_scheduled(self, until: NestedPlace | None) -> None:
        if self._scheduled and (until is None or self._scheduled[0][0] < until):
            self._is_scheduling_new = True
            super()._follow_scheduled(until)

    def _schedule(self, place: NestedPlace, node: int, payload: Any) -> None:
        self._is_scheduling_new = True
        super()._schedule(place, node, payload)

    def _in_order(self, place: NestedPlace, node: int) -> None:
        pass

    def _differs(self, number: int) -> None:
        matched = sum(self._at)
        if matched > self.matched[0]:
            self.matched = (matched, number, self._at[number])
        raise Differs

    def _processor(self, node: Node) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        if not isinstance(node, _REWINDABLE):
            raise NotRewindable(str(node))
        return super()._processor(node)

    def _group(self, node: Group) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        reader, _ = self.graph.readers[node.id][0]
        balance = balance_of(node, node.key)
        kept = node.window - 1
        journal = self._journal
        buckets: dict[Any, tuple[Any, ...]] = {}

        def group(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            key, _ = balance(payload, place[0])
            before = buckets.get(key, ())
            tuple_ = (*before, payload)
            if kept:
                journal.append((buckets, key, before))
                buckets[key] = tuple_[-kept:]
            yield place, reader, tuple_

        return group

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        channelled, placed = self._observed.channelled(node), self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            if channelled is not None:
                number, kept = channelled(payload, place[0])
                self._compare(number, kept)
            return iter(())

        return sink

    def _compare(self, number: int, kept: Any) -> None:
        held, at = self._held[number], self._at[number]
        if at < len(held):
            if not alike(kept, held[at]):
                self._differs(number)
            self._at[number] = at + 1
        elif self._finished:
            self._differs(number)
        # Else the run is not over, and this output may still come.
