"""Trimming: the rhythm in which buckets lose what no tuple can need any more.

A bucket that holds more than it must keep is *touched*, and noted once when that begins. A trim goes
through the touched buckets and leaves those noted that still hold more. It is due when as many items
have come since the last one as buckets were left touched then, so it costs each item a constant, and
memory stays in proportion to keys and to what is above the minimal time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from emberflow.engine.messages import Moment

B = TypeVar("B")

#: Not worth a trim below so many items.
_ITEMS_MIN = 512


class Trimmed(Generic[B]):
    """A machine that keeps ``kept`` final entries a bucket."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.touched: list[B] = []
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
        self.touched = [bucket for bucket in once if trim_one(bucket, minimal)]
        self.trimmed_at()

    def trimmed_at(self) -> None:
        """A trim is done; the next one is due when it will have as much to do again."""
        self.items_since = 0
        self._due = max(_ITEMS_MIN, len(self.touched))

    def trim_one(self, bucket: B, minimal: Moment) -> bool:
        raise AssertionError("each machine knows its buckets")

    def sizes(self) -> list[int]:
        raise AssertionError("each machine knows its buckets")
