"""The reference on hypothetical inputs: it compares its output with the observed one, and can rewind.

`Recorded` is the reference with every output recorded by channel, together with its place.

`Trial` is the reference under an assumption about the input. It differs in three ways:

1. *Elements enter in any order.* A scheduled item is processed once any element has reached its time;
   the order of places is not checked, as copies of elements break it.
2. *Outputs are compared, not recorded.* The first that differs from the channel's raises `Differs`.
3. *It can rewind.* An undo log has the previous content of each changed bucket; a `Bookmark` is a
   length of that log and a few numbers, and `rewind` undoes everything since. A bucket keeps only its
   last ``window - 1`` items: no tuple can need more. One that expires begins with the time of the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Node, Sink
from emberflow.guarantees.outputs import Observed, alike
from emberflow.runners.reference import NestedPlace, Reference, Waiting
from emberflow.values.item import GlobalTime
from emberflow.values.times import has_expired

_REWINDABLE = (Front, Map, Broadcast, Merge, Group, Sink)


class Differs(Exception):  # noqa: N818 - an answer, not an error
    """An output differs from the one that the sink holds there."""


class NotRewindable(Exception):  # noqa: N818 - an answer, not an error
    """The flow has a step whose state a trial cannot undo."""


class Recorded(Reference):
    """The reference, recording its outputs by channel, each with its place."""

    def __init__(self, graph: Graph, observed: Observed) -> None:
        self._observed = observed
        self.recorded: list[list[tuple[Any, NestedPlace]]] = [[] for _ in observed.channels]
        super().__init__(graph)

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        channelled, placed = self._observed.channelled(node), self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            if channelled is not None:
                number, stored = channelled(payload, place[0])
                self.recorded[number].append((stored, place))
            return iter(())

        return sink


class Bookmark(NamedTuple):
    """A state to rewind to."""

    undo_length: int
    at: tuple[int, ...]
    scheduled: tuple[Any, ...]
    reached: NestedPlace | None


class Trial(Reference):
    """See above. ``matched`` is the greatest number of outputs that a walk has explained, and the
    channel and position of the next one."""

    def __init__(self, graph: Graph, observed: Observed, *, finished: bool) -> None:
        self._observed = observed
        self._finished = finished
        self._held = [channel.held for channel in observed.channels]
        self._total = sum(map(len, self._held))
        self._at = [0] * len(self._held)
        self._undo_log: list[tuple[dict[Any, tuple[Any, ...]], Any, tuple[Any, ...]]] = []
        self._reached: NestedPlace | None = None
        self._snapshot: tuple[Any, ...] = ()
        self._is_scheduling_new = False
        self.matched = (-1, 0, 0)
        super().__init__(graph)

    def bookmark(self) -> Bookmark:
        if self._is_scheduling_new:
            self._snapshot = tuple(self._scheduled)
            self._is_scheduling_new = False
        return Bookmark(len(self._undo_log), tuple(self._at), self._snapshot, self._reached)

    def rewind(self, bookmark: Bookmark) -> None:
        undo_log = self._undo_log
        while len(undo_log) > bookmark.undo_length:
            bucket, key, before = undo_log.pop()
            bucket[key] = before
        self._at = list(bookmark.at)
        if self._is_scheduling_new or self._snapshot is not bookmark.scheduled:
            self._scheduled = list(bookmark.scheduled)
            self._snapshot = bookmark.scheduled
            self._is_scheduling_new = False
        self._reached = bookmark.reached

    def changed_since(self, bookmark: Bookmark) -> bool:
        """Whether there is any difference that an output could ever show."""
        if tuple(self._at) != bookmark.at or self._is_scheduling_new:
            return True
        if self._snapshot is not bookmark.scheduled:
            return True
        seen: set[tuple[int, Any]] = set()
        for bucket, key, before in self._undo_log[bookmark.undo_length :]:
            if (id(bucket), key) not in seen:
                seen.add((id(bucket), key))
                if not alike(before, bucket[key]):
                    return True
        return False

    def silent_since(self, bookmark: Bookmark) -> bool:
        return tuple(self._at) == bookmark.at

    @property
    def explains_all(self) -> bool:
        """Whether the trial has made every output that the channels hold."""
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

    def _schedule(
        self, place: NestedPlace, node: int, payload: Any, operation: str, origin: GlobalTime
    ) -> None:
        self._is_scheduling_new = True
        super()._schedule(place, node, payload, operation, origin)

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
        retained = node.window - 1
        undo_log = self._undo_log
        buckets: dict[Any, tuple[Any, ...]] = {}
        expires = node.expires

        def group(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            key, _ = balance(payload, place[0])
            before = buckets.get(key, ())
            tuple_ = (*before, payload)
            if retained:
                undo_log.append((buckets, key, before))
                buckets[key] = tuple_[-retained:]
            yield place, reader, tuple_

        def expiring(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            key, _ = balance(payload, place[0])
            time = place[0][0]
            before = buckets.get(key, ())
            is_new = not before or has_expired(before[0], expires, time)
            tuple_ = (payload,) if is_new else (*before[1:], payload)
            if retained:
                undo_log.append((buckets, key, before))
                buckets[key] = (time, *tuple_[-retained:])
            yield place, reader, tuple_

        return group if expires is None else expiring

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        channelled, placed = self._observed.channelled(node), self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            if channelled is not None:
                number, stored = channelled(payload, place[0])
                self._compare(number, stored)
            return iter(())

        return sink

    def _compare(self, number: int, stored: Any) -> None:
        held, at = self._held[number], self._at[number]
        if at < len(held):
            if not alike(stored, held[at]):
                self._differs(number)
            self._at[number] = at + 1
        elif self._finished:
            self._differs(number)
        # Else the run is not finished, and this output may still come.
