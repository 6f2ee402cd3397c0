"""Grouping with replay: buckets sorted by place, and tombstones for tuples that became wrong.

What is guaranteed: once all items have arrived, the tuples sent and not taken back are those that
the reference runner sends. After *every* batch they are those of the items that are there.

- An item that is the greatest of its bucket, as all are where the input is in order, costs one
  comparison.
- An item that belongs further ahead is inserted there. Each of the next ``window - 1`` items has sent a
  tuple that lacks it. The machine takes these back and sends the right ones.
- A tombstone removes its item, and the machine corrects the next tuples in the same way.

A batch is applied as a whole. The machine sends the difference between the tuples of the bucket before
and after, all tombstones first (see `net` for why).

**Expiry.** In a grouping that ``expires``, no tuple reaches over a gap of so much time between two items. The
items stay where they are, so a late one closes a gap and opens others like any other change.

A tuple has the place and the mark of its last item. Grouping adds no child id, because it makes one tuple
of one item.

**Trimming.** Nothing below the minimal time can arrive any more, so of the items below it only the
last ``window - 1`` can ever be part of another tuple. The others are dropped when `trimming` says so.

**Cuts.** A cut needs the same ``window - 1`` items below its moment, and nothing else. A bucket that is
not yet full knows at which length it has to be noted (``note_at``): once it is in a cut, at the next one.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.machines.barrier import lost_tombstone
from emberflow.engine.machines.net import NetOutput
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import Moment
from emberflow.errors import StepError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Group
from emberflow.values.hashing import key_hash
from emberflow.values.item import FlatItem, Place
from emberflow.values.times import has_expired

_place_of = itemgetter(0)
_row_place_of = attrgetter("place")


class GroupBucket:
    """The items of a key, as three lists of one length: then a tuple is one slice of payloads."""

    __slots__ = ("key", "marks", "note_at", "payloads", "places")

    def __init__(self, key: Any, note_at: int) -> None:
        self.key = key
        self.note_at = note_at
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


class GroupMachine(Trimmed[GroupBucket]):
    """The machine of a grouping."""

    is_inherited = True

    def __init__(self, node: Group) -> None:
        super().__init__(node.name, kept=node.window - 1)
        self.node = node
        self.window = node.window
        self.expires = node.expires
        self.buckets: dict[Any, GroupBucket] = {}
        self.replays = 0
        self._key: Callable[[Any], Any] = node.key.function
        self._balance = balance_of(node, node.key)

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        append = output.append
        window, key_of, buckets, expires = self.window, self._key, self.buckets, self.expires
        for item in items:
            place, mark, payload = item
            try:
                bucket = buckets[key_of(payload)]
                places = bucket.places
                if places[-1] < place and not mark & 1:
                    # In order: one comparison.
                    places.append(place)
                    bucket.marks.append(mark)
                    payloads = bucket.payloads
                    payloads.append(payload)
                    if len(places) == bucket.note_at:
                        self._note(bucket)
                    if expires is None:
                        append((place, mark, tuple(payloads[-window:])))
                    else:
                        append((place, mark, self._last_tuple(bucket)))
                    continue
            except Exception:  # a new key, or a key function that fails
                pass
            if not self._begin(item, output):
                return [self._process_slowly(items, output, failed)]
        return [output]

    def _begin(self, item: FlatItem, output: list[FlatItem]) -> bool:
        """Begin a bucket with this item, if there is none for its key and nothing goes wrong."""
        place, mark, payload = item
        try:
            key = self._key(payload)
            if key in self.buckets or mark & 1:
                return False
            key_hash(key)  # a key that has no stable hash is refused, below
        except Exception:
            return False
        bucket = self._new_bucket(key, place)
        bucket.places.append(place)
        bucket.marks.append(mark)
        bucket.payloads.append(payload)
        self._note(bucket)
        output.append((place, mark, (payload,)))
        return True

    def _process_slowly(
        self, items: list[FlatItem], output: list[FlatItem], failed: list[FlatItem]
    ) -> list[FlatItem]:
        """The rest of a batch, from the first item on that is not in order or goes wrong.

        Every item ahead of it gave one output, so the length of ``output`` tells where it is. The rest is
        sorted first: items that are only out of order among themselves then cost nothing more.
        """
        changed: dict[int, _Change] = {}
        window, key_of, buckets, expires = self.window, self._key, self.buckets, self.expires
        append = output.append
        rest = items[len(output) :]
        sort_by_place(rest)
        for item in rest:
            place, mark, payload = item
            try:
                bucket = buckets[key_of(payload)]
            except Exception:  # a new key, or a key function that fails
                try:
                    bucket = self._bucket(payload, place)
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            places = bucket.places
            if not mark & 1 and (not places or places[-1] < place) and id(bucket) not in changed:
                places.append(place)
                bucket.marks.append(mark)
                payloads = bucket.payloads
                payloads.append(payload)
                if expires is None:
                    append((place, mark, tuple(payloads[-window:])))
                else:
                    append((place, mark, self._last_tuple(bucket)))
            else:
                self._change(bucket, item, changed)
            if len(places) <= window:
                self._note(bucket)
        return self._replayed(changed, output) if changed else output

    def _note(self, bucket: GroupBucket) -> None:
        """Note that a bucket which holds no more than a window has changed."""
        if len(bucket.places) == self.window:
            self.touched.append(bucket)
        elif self.changes is not None:
            self.changes.note(bucket)
        bucket.note_at = self.window

    def _last_tuple(self, bucket: GroupBucket) -> tuple[Any, ...]:
        """The tuple of the last item of a bucket."""
        start = max(0, len(bucket.places) - self.window)
        return _since_gap(bucket.places[start:], bucket.payloads[start:], self.expires)

    def _new_bucket(self, key: Any, place: Place) -> GroupBucket:
        bucket = self.buckets[key] = GroupBucket(key, self.window)
        if self.expires is not None:
            self.end_later(bucket, place[0])
        return bucket

    def _bucket(self, payload: Any, place: Place) -> GroupBucket:
        try:
            bucket = self.buckets.get(self._key(payload))
        except Exception:
            bucket = None
        if bucket is None:
            key, _ = self._balance(payload, (place[0], place[1]))
            bucket = self._new_bucket(key, place)
        return bucket

    def _change(self, bucket: GroupBucket, item: FlatItem, changed: dict[int, _Change]) -> None:
        """Put an item into its bucket, or take it out, and remember how the bucket was."""
        place, mark, payload = item
        position = bucket.find(place, mark & ~1)
        change = changed.get(id(bucket))
        if change is None:
            change = changed[id(bucket)] = _Change(bucket)
        change.remember(position, place)
        if not mark & 1:
            bucket.places.insert(position, place)
            bucket.marks.insert(position, mark)
            bucket.payloads.insert(position, payload)
        elif (
            position == len(bucket.places)
            or bucket.places[position] != place
            or bucket.marks[position] != mark ^ 1
        ):
            raise lost_tombstone(place, str(self.node))
        else:
            del bucket.places[position], bucket.marks[position], bucket.payloads[position]

    def _replayed(self, changed: dict[int, _Change], output: list[FlatItem]) -> list[FlatItem]:
        """All that this batch sends; ``output`` is what it has sent in order so far."""
        key_of = self._key
        net = NetOutput(
            output,
            [key_of(window[-1]) for _, _, window in output],
            {change.bucket.key for change in changed.values()},
        )
        for change in changed.values():
            bucket = change.bucket
            before, after = (self._tuples(*run) for run in change.runs(self.window - 1))
            for identity, window in before.items():
                if not _same(window, after.get(identity)):
                    self.replays += 1
                    net.take_back(*identity, bucket.key, window)
            for identity, window in after.items():
                if not _same(window, before.get(identity)):
                    net.items.append((*identity, window))
            self._forget_if_empty(bucket)
        return net.all()

    def _tuples(
        self,
        lead: tuple[list[Place], list[Any]],
        places: list[Place],
        marks: list[int],
        payloads: list[Any],
    ) -> dict[tuple[Place, int], tuple[Any, ...]]:
        """The tuple that ends at each of these items, by place and mark; ``lead`` came before."""
        window, shift = self.window, len(lead[0]) + 1
        all_places, run = lead[0] + places, lead[1] + payloads
        if self.expires is None:
            return {
                identity: tuple(run[max(0, number + shift - window) : number + shift])
                for number, identity in enumerate(zip(places, marks, strict=True))
            }

        def ending(end: int) -> tuple[Any, ...]:
            start = max(0, end - window)
            return _since_gap(all_places[start:end], run[start:end], self.expires)

        return {
            identity: ending(number + shift)
            for number, identity in enumerate(zip(places, marks, strict=True))
        }

    def _forget_if_empty(self, bucket: GroupBucket) -> None:
        if not bucket.places and self.buckets.get(bucket.key) is bucket:
            del self.buckets[bucket.key]

    def trim_one(self, bucket: GroupBucket, minimal: Moment) -> bool:
        """Drop what no tuple can need any more; whether there will be more to drop."""
        final = bisect_left(bucket.places, minimal)
        drop = final - self.kept
        if drop > 0:
            del bucket.places[:drop], bucket.marks[:drop], bucket.payloads[:drop]
            if not self.kept:
                self._forget_if_empty(bucket)
        return len(bucket.places) > self.kept

    def last_time(self, bucket: GroupBucket) -> int | None:
        return bucket.places[-1][0] if bucket.places else None

    def forget(self, bucket: GroupBucket) -> None:
        if self.buckets.get(bucket.key) is bucket:
            del self.buckets[bucket.key]

    def sizes(self) -> list[int]:
        return [len(bucket.places) for bucket in self.buckets.values()]

    def those_since(self, touched: list[GroupBucket], begun: Moment) -> list[GroupBucket]:
        return [bucket for bucket in touched if bucket.places and bucket.places[0] < begun]

    def goes_on(self, bucket: GroupBucket, moment: Moment) -> bool:
        places = bucket.places
        if len(places) < self.window:
            bucket.note_at = len(places) + 1
        return bool(places) and places[-1] >= moment

    def rows_of(self, bucket: GroupBucket, moment: Moment, since: Moment) -> list[Row]:
        places = bucket.places
        end = bisect_left(places, moment)
        if end == 0 or places[end - 1] < since:
            return []
        operation, key, hashed = self.operation, bucket.key, key_hash(bucket.key)
        return [
            Row(operation, hashed, key, places[position], bucket.payloads[position])
            for position in range(max(0, end - self.kept), end)
        ]

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        if self.changes is None:
            self.changes = Changes(moment)
        for row in sorted(rows, key=_row_place_of):
            bucket = self.buckets.get(row.key)
            if bucket is None:
                bucket = self._new_bucket(row.key, row.place)
            bucket.places.append(row.place)
            bucket.marks.append(0)
            bucket.payloads.append(row.payload)
            bucket.note_at = len(bucket.places) + 1

    def inherit(self, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        if not isinstance(other, GroupMachine) or other.window != self.window:
            return False
        if other.expires is not None or self.expires is not None:
            return False
        self.inherit_left(other)
        for bucket in other.those_at(moment):
            if not bucket.places or bucket.places[-1] < moment:
                continue
            end = bisect_left(bucket.places, moment)
            del bucket.places[end:], bucket.marks[end:], bucket.payloads[end:]
            bucket.note_at = min(end + 1, self.window)
            other._forget_if_empty(bucket)
        self.buckets = other.buckets
        self.touched = [bucket for bucket in other.touched if bucket.places]
        self.touched_earlier = [bucket for bucket in other.touched_earlier if bucket.places]
        return True


def _since_gap(places: list[Place], payloads: list[Any], expires: int | None) -> tuple[Any, ...]:
    """The payloads of items in a row, from the last gap of so much time between two of them on."""
    if expires is not None:
        for position in range(len(places) - 1, 0, -1):
            if has_expired(places[position - 1][0], expires, places[position][0]):
                return tuple(payloads[position:])
    return tuple(payloads)


#: The places and payloads of what came before, then places, marks and payloads.
_Run: TypeAlias = tuple[tuple[list[Place], list[Any]], list[Place], list[int], list[Any]]


class _Change:
    """How a bucket was, from the first change on, before a batch changed it.

    Nothing ahead of the position ``start`` changed, and no item behind the place ``last``.
    """

    __slots__ = ("bucket", "last", "marks", "payloads", "places", "start")

    def __init__(self, bucket: GroupBucket) -> None:
        self.bucket = bucket
        self.start = len(bucket.places)
        self.last: Place = ()
        self.places: list[Place] = []
        self.marks: list[int] = []
        self.payloads: list[Any] = []

    def remember(self, position: int, place: Place) -> None:
        """Keep what is from this position on, before it changes; once for each item."""
        bucket, start = self.bucket, self.start
        if position < start:
            self.places = bucket.places[position:start] + self.places
            self.marks = bucket.marks[position:start] + self.marks
            self.payloads = bucket.payloads[position:start] + self.payloads
            self.start = position
        if place > self.last:
            self.last = place

    def runs(self, reach: int) -> tuple[_Run, _Run]:
        """The items whose tuples may differ, before and after. A tuple reaches back ``reach`` items."""
        bucket, start = self.bucket, self.start
        ahead = slice(max(0, start - reach), start)
        lead = bucket.places[ahead], bucket.payloads[ahead]
        before = bisect_right(self.places, self.last) + reach
        after = bisect_right(bucket.places, self.last) + reach
        return (
            (lead, self.places[:before], self.marks[:before], self.payloads[:before]),
            (
                lead,
                bucket.places[start:after],
                bucket.marks[start:after],
                bucket.payloads[start:after],
            ),
        )


def _same(window: tuple[Any, ...], other: tuple[Any, ...] | None) -> bool:
    """Whether two tuples hold the very same payloads."""
    return other is not None and len(window) == len(other) and all(map(operator.is_, window, other))
