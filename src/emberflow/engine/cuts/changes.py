"""Which buckets may have changed since the last cut that was committed, at no cost to items in order.

The invariant: **every bucket that holds an item at or above the last committed cut is touched, or
noted here.** Trimming already notes a bucket when it comes to hold more than it must keep; when a
trim takes it off that list, it is noted here. So are buckets that are begun, that have fewer items
than they may keep and get another (or none, and an abort), or that change out of order. None of that is on the way of an
item in order to a bucket that is full.

A key that is met often is noted once a cut and not once a trim: a trim notes only buckets whose
first item is below the last cut that has begun. Where it is not, the one below was dropped by an
earlier trim, which noted the bucket, or the bucket was begun since, and noted then; or the capture
found the bucket to go on beyond its moment, and noted it.

Noted means 'may have changed': a capture looks at all that are touched or noted, and takes those
that have. What it took is noted until the cut is committed, so a cut that is lost loses nothing;
what still holds items at or above the cut is noted for the next one.

There is none of this before the first cut: who never cuts, pays nothing. That one looks at every
bucket.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from emberflow.engine.messages import Moment

B = TypeVar("B")


class Changes(Generic[B]):
    """Buckets by their identity; what is noted is also kept alive, so no identity comes again."""

    __slots__ = ("_ahead", "_captured", "_noted", "_seen", "begun", "since")

    def __init__(self, since: Moment) -> None:
        #: All buckets that changed at or after this are touched or noted.
        self.since = since
        self._noted: dict[int, B] = {}
        self._captured: dict[int, B] = {}
        #: What the capture under way has still to look at.
        self._ahead: list[dict[int, B] | list[B]] = []
        self._seen: set[int] = set()
        #: The moment of the last cut that has begun, whether it is committed or not.
        self.begun = since

    def note(self, bucket: B) -> None:
        self._noted[id(bucket)] = bucket

    def note_all(self, buckets: list[B]) -> None:
        """What a trim touches and has a first item below the last cut that has begun."""
        self._noted.update(zip(map(id, buckets), buckets, strict=True))

    def begin(self, moment: Moment, more: list[B]) -> None:
        """Begin a capture: of all that is noted, and of more. One before it may be lost half way."""
        self.begun = moment
        self._ahead += [more, self._noted, self._captured]
        self._seen = set()
        self._noted, self._captured = {}, {}

    def ahead(self, most: int) -> list[B]:
        """So many of those that the capture has still to look at, each once; none when it is over.
        Others may be noted all the while."""
        found: dict[int, B] = {}
        while self._ahead and len(found) < most:
            source, left = self._ahead[-1], most - len(found)
            if isinstance(source, dict):
                some = [source.popitem()[1] for _ in range(min(left, len(source)))]
            else:
                some = source[-left:]
                del source[-left:]
            if not source:
                self._ahead.pop()
            found.update(self._fresh(some))
        if not self._ahead:
            self._seen = set()
        return list(found.values())

    @property
    def is_under_way(self) -> bool:
        """Whether a capture has still to look at something."""
        return bool(self._ahead)

    def unseen(self, buckets: list[B]) -> list[B]:
        """Those of these that the capture under way has not come to: now it has."""
        return list(self._fresh(buckets).values())

    def _fresh(self, buckets: list[B]) -> dict[int, B]:
        """What is ahead was alive when the capture began, and is until it is seen: so no other bucket
        that was seen can have had its identity. One that is begun later may have that of one that was
        seen; there is nothing in it that the cut needs."""
        seen = self._seen
        fresh = {id(bucket): bucket for bucket in buckets if id(bucket) not in seen}
        seen.update(fresh)
        return fresh

    def captured(self, buckets: list[B]) -> None:
        self._captured.update(zip(map(id, buckets), buckets, strict=True))

    def committed(self, moment: Moment) -> None:
        """The cut at this moment is committed. Counts only if none has begun after it."""
        if moment == self.begun and not self._ahead:
            self._captured = {}
            self.since = moment
