"""Grouping with replay: buckets sorted by place, and tombstones for tuples that became wrong.

What is guaranteed: once all items have arrived, the tuples sent and not taken back are those that
the reference runner sends. After *every* batch they are those of the items that are there.

- An item that is the greatest of its bucket, the case of an input in order, costs one comparison.
- An item that belongs further ahead is inserted there. Each of the next ``window - 1`` items has a
  tuple that lacks it: those are taken back, and the right ones are sent.
- A tombstone removes its item, and likewise.

A batch is applied as a whole: what is sent is the difference between the tuples of the bucket
before and after (see `net` for why), all tombstones first.

A tuple has the place and the mark of its last item. Grouping adds no child id: it makes one of one.

**Trimming.** Nothing below the minimal time can arrive any more, so of the items below it only the
last ``window - 1`` can ever be part of another tuple. The rest is dropped, by the worker's rhythm.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from emberflow.calls import balance_of
from emberflow.engine.messages import Moment
from emberflow.engine.net import NetOutput
from emberflow.engine.trimming import Trimmed
from emberflow.errors import NondeterminismError, StepError
from emberflow.graph import Group
from emberflow.item import FlatItem, Place


class Bucket:
    """The items of a key, as three lists of one length, so that a tuple is one slice."""

    __slots__ = ("key", "marks", "payloads", "places")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.places: list[Place] = []
        self.marks: list[int] = []
        self.payloads: list[Any] = []

    def find(self, place: Place, mark: int) -> int:
        """Where an item is, or where it belongs: by place, then trace."""
        position = bisect_left(self.places, place)
        places, marks = self.places, self.marks
        while position < len(places) and places[position] == place and marks[position] < mark:
            position += 1
        return position


class Grouping(Trimmed[Bucket]):
    """The machine of a grouping."""

    def __init__(self, node: Group) -> None:
        super().__init__(kept=node.window - 1)
        self.node = node
        self.window = node.window
        self.buckets: dict[Any, Bucket] = {}
        self.replays = 0
        self._key: Callable[[Any], Any] = node.key.function
        self._balance = balance_of(node, node.key)

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        window, key_of, buckets = self.window, self._key, self.buckets
        changed: dict[int, _Change] = {}
        for item in items:
            place, mark, payload = item
            try:
                bucket = buckets[key_of(payload)]
            except Exception:  # a new key, or a key function that fails
                try:
                    bucket = self._bucket(payload, (place[0], place[1]))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            places = bucket.places
            if (
                not mark & 1
                and (not places or places[-1] < place)
                and not (changed and id(bucket) in changed)
            ):
                # In order: one comparison.
                places.append(place)
                bucket.marks.append(mark)
                payloads = bucket.payloads
                payloads.append(payload)
                output.append((place, mark, tuple(payloads[-window:])))
            else:
                self._change(bucket, item, changed)
            if len(places) == window:
                self.touched.append(bucket)
        return [self._replayed(changed, output) if changed else output]

    def _bucket(self, payload: Any, moment: Moment) -> Bucket:
        key, _ = self._balance(payload, moment)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(key)
        return bucket

    def _change(self, bucket: Bucket, item: FlatItem, changed: dict[int, _Change]) -> None:
        """Put an item into its bucket, or take it out, and remember how the bucket was."""
        place, mark, payload = item
        position = bucket.find(place, mark & ~1)
        change = changed.get(id(bucket))
        if change is None:
            change = changed[id(bucket)] = _Change(bucket)
        change.remember(position)
        if not mark & 1:
            bucket.places.insert(position, place)
            bucket.marks.insert(position, mark)
            bucket.payloads.insert(position, payload)
        elif (
            position == len(bucket.places)
            or bucket.places[position] != place
            or bucket.marks[position] != mark ^ 1
        ):
            raise lost_tombstone(str(self.node), place)
        else:
            del bucket.places[position], bucket.marks[position], bucket.payloads[position]

    def _replayed(self, changed: dict[int, _Change], output: list[FlatItem]) -> list[FlatItem]:
        """What this batch sends in all, given what it has sent in order so far."""
        net = NetOutput()
        key_of = self._key
        for place, mark, window in output:
            net.send(place, mark, key_of(window[-1]), window)
        for change in changed.values():
            bucket, start = change.bucket, change.start
            before = self._tuples(change.places, change.marks, change.payloads, change.lead)
            after = self._tuples(
                bucket.places[start:], bucket.marks[start:], bucket.payloads[start:], change.lead
            )
            for identity, window in before.items():
                if not _same(window, after.get(identity)):
                    self.replays += 1
                    net.take_back(*identity, bucket.key, window)
            for identity, window in after.items():
                if not _same(window, before.get(identity)):
                    net.send(*identity, bucket.key, window)
            self._forget_if_empty(bucket)
        return net.all()

    def _tuples(
        self, places: list[Place], marks: list[int], payloads: list[Any], lead: list[Any]
    ) -> dict[tuple[Place, int], tuple[Any, ...]]:
        """The tuple that ends at each of these items, by place and mark; ``lead`` came before."""
        window = self.window
        run = lead[len(lead) - (window - 1) :] if window - 1 < len(lead) else lead
        shift = len(run) + 1
        run = run + payloads
        return {
            identity: tuple(run[max(0, number + shift - window) : number + shift])
            for number, identity in enumerate(zip(places, marks, strict=True))
        }

    def _forget_if_empty(self, bucket: Bucket) -> None:
        if not bucket.places and self.buckets.get(bucket.key) is bucket:
            del self.buckets[bucket.key]

    def trim_one(self, bucket: Bucket, minimal: Moment) -> bool:
        """Drop what no tuple can need any more; whether there will be more to drop."""
        final = bisect_left(bucket.places, minimal)
        drop = final - self.kept
        if drop > 0:
            del bucket.places[:drop], bucket.marks[:drop], bucket.payloads[:drop]
            self._forget_if_empty(bucket)
        return len(bucket.places) > self.kept

    def sizes(self) -> list[int]:
        return [len(bucket.places) for bucket in self.buckets.values()]


class _Change:
    """How a bucket was, from the first change on, before a batch changed it.

    Ahead of ``start`` nothing changed. ``lead`` is the end of that part, as much of it as a tuple
    can reach back to.
    """

    __slots__ = ("bucket", "marks", "payloads", "places", "start")

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.start = len(bucket.places)
        self.places: list[Place] = []
        self.marks: list[int] = []
        self.payloads: list[Any] = []

    def remember(self, position: int) -> None:
        """All from this position on is about to change, if it has not already."""
        bucket, start = self.bucket, self.start
        if position < start:
            self.places = bucket.places[position:start] + self.places
            self.marks = bucket.marks[position:start] + self.marks
            self.payloads = bucket.payloads[position:start] + self.payloads
            self.start = position

    @property
    def lead(self) -> list[Any]:
        return self.bucket.payloads[: self.start]


def _same(window: tuple[Any, ...], other: tuple[Any, ...] | None) -> bool:
    """Whether two tuples hold the very same payloads."""
    return other is not None and len(window) == len(other) and all(map(operator.is_, window, other))


def lost_tombstone(step: str, place: Place) -> NondeterminismError:
    return NondeterminismError(
        f"{step}: a tombstone at {place} found no item to take back: a function before this step "
        f"gave another result when it was called again. emberflow.verify(flow, ...) finds it."
    )
