"""Trimming: the rhythm in which buckets lose what no tuple can need any more.

A bucket that holds more than it must keep is *touched*, and noted once when that begins. A trim looks
at some touched buckets, those that have waited longest, and leaves those noted, at the end, that
still hold more. It looks at as many as items have come, so it costs each item a constant, and memory
stays in proportion to keys and to what is above the minimal time. While the minimal time stands, as it
does where a scan keeps a moment, there is nothing to look for; and while others wait for this worker
trims are put off, up to a bound: they are a fifth of its work, so a worker that has become slow for a
moment catches up by that. What is missed is made up for bit by bit, by looks at twice as many as have
just come, or some more. So nothing waits long for a trim, and it does not fall behind. When hardly
anything comes any more, all that is left is looked at once, some at each progress: else it would stay,
and every cut look at it in vain.

**Cuts.** A cut needs what buckets have below its moment, and the same notes tell it where to look
(`cut`, `changes`). Trims do not wait for it. A trim that goes beyond its moment first takes, of the
buckets that it is about to trim and the capture has not come to yet, what the cut needs of them; the
capture then passes them over. So each bucket is looked at once for a cut, by whoever comes first, and
just before anything that the cut needs is dropped at the latest. Were trims to wait, a cut would end
with all that has come meanwhile to be trimmed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Row
from emberflow.engine.messages import BEFORE_ALL, Moment

B = TypeVar("B")

_NOTHING: list[Row | None] = [None]
#: Not worth a trim below so many items.
_ITEMS_MIN = 512
#: For so many items that have come looks may be put off.
PUT_OFF_MAX = 32_768
#: For so many looks are made at once, if they are missing, however few have just come.
_MADE_UP_FOR = 1_024
#: Fewer items than this between two looks at the minimal time are as good as none.
_FEW_ITEMS = 32
#: Looks at a time while there are so few.
_LOOKS_AT_REST = 1_024


class Looked(NamedTuple, Generic[B]):
    """What a capture finds in many buckets at once: those of which a cut holds one row, and the rows;
    those that go on beyond the moment; and those that have to be looked at one by one."""

    found: list[B]
    rows: list[Row]
    going_on: list[B]
    others: list[B]


class Trimmed(Generic[B]):
    """A machine that keeps ``kept`` final entries a bucket."""

    #: Items for one look. A bucket is far from the next in memory: where a look finds more to drop, it
    #: pays to look less often.
    items_each = 1
    #: Buckets that a capture looks at in one go.
    captured_at_once = 1

    def __init__(self, operation: str, kept: int) -> None:
        #: The name of the grouping, under which cuts know its buckets.
        self.operation = operation
        self.kept = kept
        self.touched: list[B] = []
        #: Those that have been for longer, the one that has longest at the end.
        self.touched_earlier: list[B] = []
        #: None until the first cut.
        self.changes: Changes[B] | None = None
        #: The moment and the ``since`` of the cut begun last, and what trims have taken for it that the
        #: capture has not handed on: no more than the cut holds, and of values that are there anyway.
        self._cut: tuple[Moment, Moment] = (BEFORE_ALL, BEFORE_ALL)
        self._taken_by_trims: list[Row] = []
        #: How many items have come that no trim has made looks for: counted by the worker.
        self.items_since = 0
        self._trimmed_below = BEFORE_ALL
        #: Those that had come when a trim was last thought of; and how many looks are still to be made
        #: now that few come, None while many do.
        self._counted = 0
        self._looks_left: int | None = None

    def trim_if_due(self, minimal: Moment, *, is_waited_for: bool = False) -> bool:
        """Trim, if enough items have come and more of them are final than the last time. False if that
        is put off, because the worker is waited for."""
        came, self._counted = self.items_since - self._counted, self.items_since
        if is_waited_for and self.items_since <= PUT_OFF_MAX:
            return False
        if self.items_since >= _ITEMS_MIN or came >= _FEW_ITEMS:
            self._looks_left = None
        if minimal <= self._trimmed_below:
            return True
        if self.items_since >= _ITEMS_MIN:
            due = min(self.items_since, max(2 * came, _MADE_UP_FOR))
            self.trim(minimal, due // self.items_each)
        elif came < _FEW_ITEMS:
            self._trim_at_rest(minimal)
        return True

    def _trim_at_rest(self, minimal: Moment) -> None:
        """Some of the looks at all that is left: each bucket has its turn once."""
        if self._looks_left is None:
            self._looks_left = len(self.touched) + len(self.touched_earlier)
        looks = min(self._looks_left, _LOOKS_AT_REST)
        if looks:
            self._looks_left -= looks
            self.trim(minimal, looks)

    def trim(self, minimal: Moment, most: int | None = None) -> None:
        """Drop what is below the minimal time and no longer needed, in touched buckets: all of them,
        or so many at most."""
        given = self.waiting_longest(most)
        changes = self.changes
        if changes is not None and changes.is_under_way and minimal > changes.begun:
            unseen = changes.unseen(given)
            self._taken_by_trims += [row for row in self._taken(unseen, changes) if row is not None]
        self.trim_all(given, minimal)
        self.trimmed(minimal, len(given), most)

    def trim_all(self, given: list[B], minimal: Moment) -> None:
        """Trim these buckets; those that still hold more are touched again."""
        trim_one = self.trim_one
        # A bucket that shrank by tombstones and grew again is noted twice.
        once = {id(bucket): bucket for bucket in given}.values()
        if self.changes is not None:
            self.changes.note_all(self.those_since(given, self.changes.begun))
        self.touched += [bucket for bucket in once if trim_one(bucket, minimal)]

    def waiting_longest(self, most: int | None) -> list[B]:
        """Take so many touched buckets off the list, to trim them; all of them, if nothing is said."""
        given: list[B] = []
        while (self.touched or self.touched_earlier) and (most is None or len(given) < most):
            if not self.touched_earlier:
                self.touched.reverse()
                self.touched_earlier, self.touched = self.touched, []
            # From the end: whoever takes from the beginning touches all the others.
            left = len(self.touched_earlier) if most is None else most - len(given)
            given += reversed(self.touched_earlier[-left:])
            del self.touched_earlier[-left:]
        return given

    def trimmed(self, minimal: Moment, looks: int, most: int | None) -> None:
        """A trim has made so many looks, of so many at most."""
        self._trimmed_below = minimal
        all_seen = most is None or looks < most
        left = 0 if all_seen else max(0, self.items_since - looks * self.items_each)
        self.items_since = self._counted = left

    def capture(self, moment: Moment, since: Moment) -> Iterator[Row | None]:
        """The rows of a cut, bucket by bucket; None for one that the cut does not need."""
        if not self.kept:
            return iter(())
        changes = self.changes
        if changes is None or since < changes.since:
            changes = self.changes = Changes(since)
            changes.begin(moment, self.all_buckets())
        else:
            changes.begin(moment, self.touched_earlier + self.touched)
        self._cut, self._taken_by_trims = (moment, since), []
        return self._captured(changes)

    def _captured(self, changes: Changes[B]) -> Iterator[Row | None]:
        while True:
            taken = self._taken(changes.ahead(self.captured_at_once), changes)
            taken += self._taken_by_trims
            self._taken_by_trims = []
            if not taken:
                return
            yield from taken

    def _taken(self, given: list[B], changes: Changes[B]) -> list[Row | None]:
        """What the cut under way holds of these buckets, all at once: any of them may be trimmed beyond
        its moment as soon as this returns. And all is noted by then, because the cut may be given up."""
        moment, since = self._cut
        found, rows, going_on, others = self.looked_at(given, moment, since)
        changes.note_all(going_on)
        changes.captured(found)
        taken: list[Row | None] = [*rows, *repeat(None, len(given) - len(rows) - len(others))]
        for bucket in others:
            if self.goes_on(bucket, moment):
                changes.note(bucket)
            own = self.rows_of(bucket, moment, since)
            if own:
                changes.captured([bucket])
            taken += own or _NOTHING
        return taken

    def cut_committed(self, moment: Moment) -> None:
        if self.changes is not None:
            self.changes.committed(moment)

    def trim_one(self, bucket: B, minimal: Moment) -> bool:
        raise AssertionError("each machine knows its buckets")

    def those_since(self, touched: list[B], begun: Moment) -> list[B]:
        """Of some touched buckets those that hold anything below a moment."""
        raise AssertionError("each machine knows its buckets")

    def all_buckets(self) -> list[B]:
        raise AssertionError("each machine knows its buckets")

    def looked_at(self, given: list[B], moment: Moment, since: Moment) -> Looked[B]:
        """What a cut at this moment holds of many buckets, as far as that is quickly found."""
        return Looked([], [], [], given)

    def rows_of(self, bucket: B, moment: Moment, since: Moment) -> list[Row]:
        """What a cut at this moment holds of a bucket, if any of it is not below ``since``."""
        raise AssertionError("each machine knows its buckets")

    def goes_on(self, bucket: B, moment: Moment) -> bool:
        """Whether a bucket that a cut looks at holds anything at or above its moment."""
        raise AssertionError("each machine knows its buckets")

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        """Take over what a cut at this moment holds. May be called again with more of its rows."""
        raise AssertionError("each machine knows its buckets")

    def sizes(self) -> list[int]:
        raise AssertionError("each machine knows its buckets")
