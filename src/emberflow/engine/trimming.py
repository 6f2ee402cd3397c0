"""Trimming: the rhythm in which buckets lose what no tuple can need any more.

A bucket that holds more than it must keep is *touched*, and noted once when that begins. A trim goes
through the touched buckets and leaves those noted that still hold more. It is due when as many items
have come since the last one as buckets were left touched then, so it costs each item a constant, and
memory stays in proportion to keys and to what is above the minimal time.

A cut needs what buckets have below its moment, and the same notes tell it where to look (`cut`,
`changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from emberflow.engine.changes import Changes
from emberflow.engine.cut import Row
from emberflow.engine.messages import Moment

B = TypeVar("B")

#: Not worth a trim below so many items.
_ITEMS_MIN = 512


class Trimmed(Generic[B]):
    """A machine that keeps ``kept`` final entries a bucket."""

    def __init__(self, operation: str, kept: int) -> None:
        #: The name of the grouping, under which cuts know its buckets.
        self.operation = operation
        self.kept = kept
        self.touched: list[B] = []
        #: None until the first cut.
        self.changes: Changes[B] | None = None
        #: How many items have come since the last trim: counted by the worker.
        self.items_since = 0
        self._due = _ITEMS_MIN

    def trim_if_due(self, minimal: Moment) -> None:
        if self.items_since >= self._due:
            self.trim(minimal)

    def trim(self, minimal: Moment) -> None:
        """Drop what is below the minimal time and no longer needed, in all touched buckets."""
        trim_one = self.trim_one
        # A bucket that shrank by tombstones and grew again is noted twice.
        once = {id(bucket): bucket for bucket in self.touched}.values()
        if self.changes is not None:
            self.changes.note_all(self.touched_since(self.changes.begun))
        self.touched = [bucket for bucket in once if trim_one(bucket, minimal)]
        self.trimmed_at()

    def trimmed_at(self, due: int | None = None) -> None:
        """A trim is done; the next one is due after so many items: as many as were touched, if nothing
        is said."""
        self.items_since = 0
        self._due = max(_ITEMS_MIN, len(self.touched) if due is None else due)

    def capture(self, moment: Moment, since: Moment) -> Iterator[Row | None]:
        """The rows of a cut, bucket by bucket; None for one that the cut does not need."""
        if not self.kept:
            return iter(())
        changes = self.changes
        if changes is None or since < changes.since:
            changes = self.changes = Changes(since)
            changes.begin(moment, self.all_buckets())
        else:
            changes.begin(moment, list(self.touched))
        return self._captured(changes, moment, since)

    def _captured(self, changes: Changes[B], moment: Moment, since: Moment) -> Iterator[Row | None]:
        for bucket in changes.ahead():
            # Noted first: it may be given up at any yield.
            if self.goes_on(bucket, moment):
                changes.note(bucket)
            rows = self.rows_of(bucket, moment, since)
            if rows:
                changes.captured(bucket)
                yield from rows
            else:
                yield None

    def cut_committed(self, moment: Moment) -> None:
        if self.changes is not None:
            self.changes.committed(moment)

    def trim_one(self, bucket: B, minimal: Moment) -> bool:
        raise AssertionError("each machine knows its buckets")

    def touched_since(self, begun: Moment) -> list[B]:
        """The touched buckets that hold anything below a moment."""
        raise AssertionError("each machine knows its buckets")

    def all_buckets(self) -> list[B]:
        raise AssertionError("each machine knows its buckets")

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
