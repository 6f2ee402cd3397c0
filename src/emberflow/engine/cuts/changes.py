"""Which buckets may have changed since the last cut that was committed, at no cost to items in order.

The invariant: **every bucket that holds an item at or above the last committed cut is touched, or
noted here.** *Touched* is the list of `trimming`: a bucket enters it when it comes to hold more than it
must keep. When a trim takes a bucket off that list, it notes it here. A machine notes a bucket

- when it begins it;
- when an item enters it while it holds fewer items than it may keep; of a state, also when an abort
  enters an empty one;
- when it changes out of order.

An item in order that enters a full bucket meets none of these cases.

A key that is met often is noted once a cut, not once a trim: a trim notes only buckets whose first item
is below the last cut that has begun. A bucket whose first item is not below it has been noted already:
by the earlier trim that dropped the item below; or when the bucket was begun; or by the capture, which
found that the bucket goes on beyond its moment.

Noted means 'may have changed'. A capture looks at all buckets that are touched or noted, and takes the
rows of those that have changed. These stay noted until the cut is committed, so a cut that is lost loses
nothing. A bucket that still holds items at or above the cut is noted for the next one.

Before the first cut nothing is noted, so a query that never takes a cut pays nothing. The first cut looks
at every bucket.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Generic, TypeVar

from emberflow.engine.cuts.noted import fresh, no_addresses
from emberflow.engine.messages import Moment

B = TypeVar("B")

#: So many lists of buckets are freed at once.
_LET_GO = 2


class Changes(Generic[B]):
    """Buckets by their identity. A bucket that is noted is kept alive, so no other gets its identity."""

    __slots__ = (
        "_ahead",
        "_captured",
        "_noted",
        "_noted_in",
        "_outdated",
        "_seen",
        "_settled",
        "begun",
        "since",
    )

    def __init__(self, since: Moment) -> None:
        #: All buckets that changed at or after this are touched or noted.
        self.since = since
        self._noted: list[B] = []
        #: The same as sets of their identities.
        self._noted_in = no_addresses()
        #: Those of which the last cut has rows, as the capture found them.
        self._captured: list[list[B]] = []
        #: The same of a cut that is committed. They are let go a few at a time.
        self._settled: list[list[B]] = []
        #: The buckets that the capture under way has still to look at.
        self._ahead: list[list[B]] = []
        self._seen: list[Any] = []
        #: Sets of earlier captures. They are let go one at a time.
        self._outdated: list[Any] = []
        #: The moment of the last cut that has begun, whether it is committed or not.
        self.begun = since

    def note(self, bucket: B) -> None:
        self._noted += fresh([bucket], self._noted_in)

    def note_all(self, buckets: list[B]) -> None:
        """Note buckets that a trim takes and whose first item is below the last cut that has begun."""
        self._noted += fresh(buckets, self._noted_in)
        self._let_go()

    def begin(self, moment: Moment, more: list[B]) -> None:
        """Begin a capture of all noted buckets, and of more. The one before may have been lost half way."""
        self.begun = moment
        self._ahead += [more, self._noted, *self._captured]
        self._outdated += [*self._seen, *self._noted_in]
        self._seen, self._noted_in = no_addresses(), no_addresses()
        self._noted, self._captured = [], []

    def ahead(self, most: int) -> list[B]:
        """The next buckets for the capture to look at, ``most`` at most, each once; none when it is over.
        Others may be noted meanwhile."""
        found: list[B] = []
        while self._ahead and len(found) < most:
            source, left = self._ahead[-1], most - len(found)
            some = source[-left:]
            del source[-left:]
            if not source:
                self._ahead.pop()
            found += fresh(some, self._seen)
        self._let_go()
        return found

    def _let_go(self) -> None:
        """Free some of what is not needed any more: all of it at once would take long."""
        del self._settled[-_LET_GO:], self._outdated[-1:]
        if self._seen and not self._ahead:
            self._outdated += self._seen
            self._seen = []

    @property
    def is_under_way(self) -> bool:
        """Whether a capture still has buckets to look at."""
        return bool(self._ahead)

    def all(self) -> list[B]:
        """All buckets that are noted, some of them more than once."""
        return [*self._noted, *chain.from_iterable([*self._captured, *self._ahead])]

    def unseen(self, buckets: list[B]) -> list[B]:
        """Those of these buckets that the capture under way has not looked at; from now on it has.

        A bucket ahead was alive when the capture began, and stays alive until it is seen; so no bucket that was
        seen had its identity. A bucket that is begun later may have the identity of one that was seen, and is
        passed over: the cut needs nothing of it.
        """
        return fresh(buckets, self._seen)

    def captured(self, buckets: list[B]) -> None:
        """The cut has rows of these buckets, which the capture has seen just now."""
        if buckets:
            self._captured.append(buckets)

    def committed(self, moment: Moment) -> None:
        """The cut at this moment is committed. If another has begun since, this changes nothing."""
        if moment == self.begun and not self._ahead:
            self._settled += self._captured
            self._captured = []
            self.since = moment
