"""When to gather: transactions whose rows conflict are computed on one worker, while they do.

Where most transactions depend on the one before, two workers cost more than one: each row that is read
on the other worker is a message, and what was read too early is computed again. One worker computes all
of them in order, nothing again, and sends only what they leave. But it is one worker. So transactions
are gathered only where they conflict, and only while they touch few rows (`worker.gathering` says how).

What decides is what a worker sees. While each worker computes its own rows, it counts what it had to
compute again. The host of a gathered region counts the rows that it holds, and those that it had to
fetch: many rows hardly conflict. After that it takes a while before the worker tries again, each time
longer. No output depends on it. There is nothing to configure.
"""

from __future__ import annotations

from typing import Protocol

#: An attempt is made when more than one in so many items had to be computed again, of so many. They are
#: items of states, because one element may open many transactions. About as many keep a window from
#: growing (`window`), and in a small window conflicts cost messages rather than replays.
_REPLAYS_OF_ITEMS = 20
_ITEMS_MIN = 256
#: A host may hold so many rows,
_ROWS_MAX = 4_096
#: and of so many items, once as many have come, so many may ask for a row that it does not hold.
_ITEMS_COUNTED = 4_096
_FETCHED_MAX = 256
#: So many items come before the next attempt, at first and at the most.
_WAIT_FIRST = 1 << 16
_WAIT_MAX = 1 << 22


class GatheringJudge(Protocol):
    """Decides for one region, on one worker."""

    @property
    def waits(self) -> bool:
        """Whether the host begins nothing behind what waits for a row."""

    def passed(self, items: int, replays: int) -> bool:
        """Elements are done while each worker computes its own rows, with so many items of its states and so
        many that it computed again: whether to gather them here."""

    def hosted(self, items: int, fetched: int, rows: int) -> bool:
        """The host had so many items, fetched rows for them, and holds so many: whether to go on."""

    def spread(self) -> None:
        """The region is gathered no longer."""


class AdaptiveGathering:
    """Gathers where transactions conflict and touch few rows.

    >>> judge = AdaptiveGathering()
    >>> judge.passed(items=1_000, replays=20)
    False
    >>> judge.passed(items=1_000, replays=400)
    True
    """

    __slots__ = ("_fetched", "_is_warm", "_items", "_replays", "_wait", "_waits")

    #: What came of it would mostly be computed again.
    waits = True

    def __init__(self) -> None:
        self._items = self._replays = self._fetched = 0
        #: Whether the host has fetched the rows that it needs for most items.
        self._is_warm = False
        #: How long it waits the next time, and how long it still waits, in items.
        self._wait = _WAIT_FIRST
        self._waits = 0

    def passed(self, items: int, replays: int) -> bool:
        self._waits = max(self._waits - items, 0)
        self._items += items
        self._replays += replays
        if self._items < _ITEMS_MIN:
            return False
        conflicts = self._replays * _REPLAYS_OF_ITEMS > self._items
        self._begin()
        return conflicts and not self._waits

    def hosted(self, items: int, fetched: int, rows: int) -> bool:
        self._items += items
        self._fetched += fetched
        if self._items >= _ITEMS_COUNTED:
            has_many = self._is_warm and self._fetched > _FETCHED_MAX
            self._begin()
            self._is_warm = True
            if has_many:
                return False
        return rows <= _ROWS_MAX

    def spread(self) -> None:
        self._begin()
        self._waits, self._wait = self._wait, min(4 * self._wait, _WAIT_MAX)

    def _begin(self) -> None:
        self._items = self._replays = self._fetched = 0
        self._is_warm = False
