"""Cold buckets: what nobody touched for a while, and is final, leaves the memory of a worker.

What is guaranteed: **nobody can tell which keys are cold.** Outputs, cuts, reads and the state that another
worker or version takes over are the same, whichever buckets are evicted and whenever.

A final bucket with one version is a *row*, the very row that a cut writes and a restore reads. So to evict
a bucket is to put its row into a store (`ColdRows`), and to fetch one is to restore it. The engine has no
files: the runner gives each machine a store and says when to evict, and how much. A key is in memory or in
the store, never in both.

**Fetching.** Before a machine processes a batch, it asks the store for all keys of the batch that are not
in memory, in one call (`Cooling.fetch`). Where a node is patient, or a region runs in slices, a batch is all
that waited there. A region that runs item by item asks once for all that waits (`Cooling.fetch_ahead`), and
then again only for what its items cause. A machine with ticks asks for the keys of those that are due, too.
A machine that has evicted nothing asks for nothing.

**Evicting.** A bucket may go if

1. *it is final*: it has one version, which is below the minimal time and below all that reads may ask
   for. So no item and no read can meet what is not in the row;
2. *the last cut that was committed has it*: its version is below the moment of that cut. So an incremental
   cut needs nothing from the store, and what is there unchanged is never encoded again. As long as no cut
   is committed, each cut holds everything, and whatever is below the one under way may go.

Among the buckets that are looked at, those go whose versions are the oldest. The place of a version tells
when its key was touched, so items in order pay nothing for it.

**Restoring.** A row of a cut at T is final, and the cut has it: both conditions hold, and what comes later
is at or above T. So a restore need not make a bucket of it. The runner may put the row into the store of
its machine (`Worker.cold_stores`), where it is as if it had been evicted: it becomes a bucket when it is
touched. No timer and no other work belongs to a bucket: the ticks of a window are with its key, and not in
its bucket (`ticking`). What has expired by T is told to the store. Which rows are left cold, all, none or
some of them, changes nothing. But each row has to be either in the store or a bucket: who forgets one has begun its
key anew.

**Cuts that hold everything** hold the rows of all cold keys, too: those that are in the store when the
capture begins. The capture hands them over together (`KeptRows`), and whoever writes the cut reads them: a
file of a cut has the bytes that the store has, so nobody decodes them. A key that is fetched meanwhile is
among them, so the capture passes its bucket over. A bucket that is evicted meanwhile was in memory when the
capture began, and the capture still has it.

**Expiry.** A row whose time is over is what a bucket is whose time is over: its next item begins anew,
whether the row is there or not. The store may drop it once the minimal time says so (`ColdRows.end`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar

from emberflow.engine.cuts.cut import KeptRows, Row
from emberflow.engine.loops import items as loops
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.values.hashing import HashRange
from emberflow.values.item import TIME_MIN, FlatItem
from emberflow.values.owners import Owners

B = TypeVar("B")


class ColdRows(Protocol):
    """The rows of a machine's cold keys: one of each key."""

    def __len__(self) -> int:
        """How many rows there are, perhaps with some that have ended."""

    def put(self, rows: list[Row]) -> Collection[int]:
        """Take rows of keys that are not here. Returns the numbers of those that it cannot take."""

    def take(self, keys: Collection[Any]) -> list[Row]:
        """The rows of those of these keys that are here, which are not here any more."""

    def find(self, keys: Collection[Any]) -> list[Row]:
        """The same rows, which stay."""

    def all(self) -> Iterator[Row]:
        """All rows that are here now, whatever is put or taken while they are read."""

    def kept(self, operation: str, since: Moment, below: Moment) -> KeptRows:
        """All rows that are here now, of places from ``since`` on, under the name of an operation."""

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        """Forget all rows whose hashes are in none of these ranges."""

    def end(self, time: int) -> None:
        """Rows of this time and before have ended: nobody is given them any more."""

    def close(self) -> None:
        """Nobody uses it any more."""


#: Makes the store of a machine.
ColdStores: TypeAlias = Callable[[], ColdRows]


class RowsInMemory:
    """A store that is no colder than the rest: for tests and the simulation.

    >>> store = RowsInMemory()
    >>> store.put([Row("count", 1, "ada", (5, 0), 2)])
    ()
    >>> store.take(["ada", "bob"])
    [Row(operation='count', key_hash=1, key='ada', place=(5, 0), payload=2)]
    >>> len(store)
    0
    """

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {}
        self._ended = TIME_MIN - 1

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, rows: list[Row]) -> Collection[int]:
        for row in rows:
            self.rows[row.key] = row
        return ()

    def take(self, keys: Collection[Any]) -> list[Row]:
        found = self.find(keys)
        for key in keys:
            self.rows.pop(key, None)
        return found

    def find(self, keys: Collection[Any]) -> list[Row]:
        return self._alive([self.rows[key] for key in keys if key in self.rows])

    def all(self) -> Iterator[Row]:
        return iter(self._alive(self.rows.values()))

    def kept(self, operation: str, since: Moment, below: Moment) -> KeptRows:
        return _Kept(
            [
                row._replace(operation=operation)
                for row in self._alive(self.rows.values())
                if since <= row.place < below
            ]
        )

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        self.rows = {
            key: row for key, row in self.rows.items() if any(row.key_hash in own for own in ranges)
        }

    def end(self, time: int) -> None:
        self._ended = max(self._ended, time)

    def close(self) -> None:
        """There is nothing to end."""

    def _alive(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.place[0] > self._ended]


class _Kept(list[Row]):
    """Rows in memory, as they are."""

    looks = 0

    def as_written(self) -> Iterable[list[Row]]:
        return [self]


class Cooling(Trimmed[B]):
    """A machine whose buckets can be cold."""

    buckets: dict[Any, B]
    #: None if the machine keeps all its buckets in memory.
    cold: ColdRows | None = None
    #: The moment of the last cut that is committed, of which all rows can be read again; None if there is
    #: none.
    _committed: Moment | None = None
    #: Keys that are nowhere, neither in memory nor in the store, as a look ahead has found.
    _nowhere: Collection[Any] = ()
    #: Where the next look for buckets to evict begins, among those in memory.
    _looked_up_to = 0
    #: Buckets that were evicted, and still wait for their end.
    _evicted_ahead = 0

    def keep_cold(self, stores: ColdStores) -> None:
        """Let this machine evict buckets."""
        if self.kept and self.cold is None:
            self.cold = stores()

    @property
    def cold_keys(self) -> int:
        return 0 if self.cold is None else len(self.cold)

    # Fetching.

    def fetch(self, items: list[FlatItem]) -> None:
        """Bring back the buckets that these items are for."""
        buckets, cold, nowhere = self.buckets, self.cold, self._nowhere
        assert cold is not None
        missing = [key for key in self.keys_in(items) if key not in buckets and key not in nowhere]
        if missing:
            self._take_in(cold.take(missing))

    def fetch_ahead(self, items: list[FlatItem]) -> None:
        """Bring back the buckets for all that waits, before it comes item by item."""
        if not self.cold_keys:
            return
        self._nowhere = ()
        self.fetch(items)
        self._nowhere = {key for key in self.keys_in(items) if key not in self.buckets}

    def _take_in(self, rows: list[Row]) -> None:
        changes = self.changes
        begun = [self.begin_from(row) for row in rows]
        if changes is None:
            return
        since = changes.since
        for row, bucket in zip(rows, begun, strict=True):
            if row.place >= since:
                changes.note(bucket)
        if changes.is_under_way:
            changes.unseen(begun)  # the capture has their rows, or needs none

    def rows_beside(self, keys: Collection[Any], moment: Moment) -> dict[Any, Row]:
        """The rows of cold keys as of a moment. They stay cold."""
        if not self.cold_keys:
            return {}
        assert self.cold is not None
        alive = self._alive_at(moment, BEFORE_ALL)
        return {
            row.key: row
            for row in self.cold.find(keys)
            if alive <= row.place and row.place < moment
        }

    def all_cold(self, moment: Moment, since: Moment = BEFORE_ALL) -> Iterator[Row]:
        """The rows of all keys that are cold now, as of a moment and from ``since`` on."""
        if not self.cold_keys:
            return iter(())
        assert self.cold is not None
        return self._named(self.cold.all(), moment, self._alive_at(moment, since))

    def _named(self, rows: Iterator[Row], moment: Moment, alive: Moment) -> Iterator[Row]:
        """Rows that were put when the machine was that of an earlier version have the name of its step."""
        operation = self.operation
        for row in rows:
            if alive <= row.place < moment:
                yield row if row.operation == operation else row._replace(operation=operation)

    # Evicting.

    def evict(self, looks: int, bound: Moment) -> int:
        """Look at so many buckets, and evict those of them that may go, but for the half that was touched
        last. Nothing at or above ``bound`` goes. Returns how many went."""
        cold, buckets, changes = self.cold, self.buckets, self.changes
        if cold is None or not buckets:
            return 0
        if self.left:  # what is not its own any more goes first, and into no store
            self.drop_left(looks)
            return 0
        if self._committed is not None:
            bound = min(bound, self._committed)
        elif changes is not None:
            bound = min(bound, changes.begun)
        self._looked_up_to, given = loops.some_values(buckets, self._looked_up_to, looks)
        settled = [bucket for bucket in given if self.is_settled(bucket)]
        found, rows, going_on, others, _, _ = self.looked_at(settled, bound, BEFORE_ALL)
        beyond = set(map(id, going_on))
        chosen = [row for row, bucket in zip(rows, found, strict=True) if id(bucket) not in beyond]
        for bucket in others:
            if not self.goes_on(bucket, bound):
                chosen += self.rows_of(bucket, bound, BEFORE_ALL)
        chosen.sort(key=_place_of)
        del chosen[(len(given) + 1) // 2 :]
        if not chosen:
            return 0
        self._nowhere = ()
        refused = cold.put(chosen)
        for number, row in enumerate(chosen):
            if number not in refused:
                del buckets[row.key]
        went = len(chosen) - len(refused)
        if self.expires is not None:
            self._let_go(went)
        return went

    def _let_go(self, went: int) -> None:
        """Buckets that wait for their end are kept alive. Drop those that went, now and then."""
        self._evicted_ahead += went
        if self._evicted_ahead * 2 > len(self.buckets):
            self._evicted_ahead = 0
            for waiting in (self._ending, *self._ends.values()):
                waiting[:] = filter(self.is_in_memory, waiting)

    # Cuts.

    def capture(
        self, moment: Moment, since: Moment, *, packs: bool = False
    ) -> Iterator[Row | KeptRows | None]:
        changes = self.changes
        committed = BEFORE_ALL if self._committed is None else self._committed
        holds_all = changes is None or since < max(changes.since, committed) or since == BEFORE_ALL
        if not holds_all or self.cold is None:
            return super().capture(moment, since, packs=packs)
        # What is in memory now, and what is not. A capture that was given up may have noted buckets that
        # went since, and perhaps came back as others, and so may trims.
        self.changes = None
        self.touched = list(filter(self.is_in_memory, self.touched))
        self.touched_earlier = list(filter(self.is_in_memory, self.touched_earlier))
        kept = self.cold.kept(self.operation, self._alive_at(moment, since), moment)
        return chain(super().capture(moment, since, packs=packs), [kept])

    def rows_at(self, moment: Moment) -> Iterator[Row]:
        return chain(super().rows_at(moment), self.all_cold(moment))

    def cut_committed(self, moment: Moment) -> None:
        super().cut_committed(moment)
        if self.changes is not None and self.changes.since == moment:
            self._committed = moment

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        """Take over what a cut holds; its other rows may be in the store."""
        self._committed = moment
        if self.cold is not None and self.expires is not None:
            self.cold.end(moment[0] - self.expires)

    def end_some(self, minimal: Moment, most: int | None = None) -> None:
        super().end_some(minimal, most)
        if self.cold is not None and self.expires is not None:
            self.cold.end(minimal[0] - self.expires)

    def leave_behind(self, owners: Owners, worker: int) -> bool:
        if self.cold is not None:
            self.cold.keep_only(owners.ranges(worker))
        return super().leave_behind(owners, worker)

    def inherit_cold(self, other: Cooling[B], moment: Moment) -> None:
        """Take over what is cold of the machine of an earlier version."""
        if other.cold is None:
            return
        self.cold = other.cold
        if other.expires is not None:
            self.cold.end(moment[0] - other.expires)

    def keys_in(self, items: list[FlatItem]) -> Collection[Any]:
        """The keys that these items are for, each once. An item that has none is left out."""
        raise AssertionError("each machine knows its items")

    def begin_from(self, row: Row) -> B:
        """The bucket of a key that is not in memory, which is there from now on."""
        raise AssertionError("each machine knows its buckets")

    def is_settled(self, bucket: B) -> bool:
        """Whether a bucket holds one version and nothing else."""
        raise AssertionError("each machine knows its buckets")

    def is_in_memory(self, bucket: B) -> bool:
        """Whether this is the bucket that the machine has of its key."""
        raise AssertionError("each machine knows its buckets")


def _place_of(row: Row) -> Any:
    return row.place
