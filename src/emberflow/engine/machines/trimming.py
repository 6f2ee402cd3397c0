"""Trimming: when buckets drop what no tuple can need any more.

What is guaranteed: memory stays in proportion to the number of keys and to what is above the minimal
time, trimming costs each item a constant, and no bucket waits long for it.

A bucket that holds more than it must keep is *touched*: the machine appends it to a list, once, when that
begins. A trim looks at some touched buckets, those that have waited longest, and puts the ones that still
hold more at the end of the list. It looks at as many buckets as items have come.

- While the minimal time stands still, as it does where a scan keeps a moment, nothing can be trimmed, and
  no trim is made.
- While others wait for this worker it puts trims off, up to a bound. Trims are a fifth of its work, so a
  worker that was slow for a moment catches up by that. It makes up for missed looks bit by bit: a trim
  then looks at twice as many buckets as items have just come, or at a minimum number.
- When hardly any items come, each touched bucket is looked at once more, some of them at each progress.
  Otherwise they would never be trimmed, and every cut would visit them again.

**Expiry.** In a machine that ``expires``, a bucket ends when the minimal time is so much later than its last
entry. Nothing that is still to come can find anything in it, so the machine forgets it. Every bucket waits
in a slot for the time at which it ends if nothing comes. When that time is over, the machine looks whether
something came, and lets it wait again. So a bucket costs one look for each time that it may live, and is
forgotten a sixteenth of that time late at most. Nobody can tell: cuts and reads pass over what has ended
by their own moments, whether it is still there or not. A capture under way keeps the buckets that it has
still to look at.

**Slices that leave.** When slices of keys move to other workers (`values.owners`), their buckets stay for a
while: to look at all keys at once would hold everything up. No item comes to such a bucket any more, and what
it holds is below the moment of the move, so no cut that adds to another one takes a row of it. A worker
drops them between its rounds (`drop_left`). Whoever looks at all buckets, or goes on from them, drops
the rest of them first.

**Cuts.** A cut needs what buckets have below its moment, and the same list tells where to look (`cut`,
`changes`). Trims do not wait for it. A trim that goes beyond the moment of a cut first takes the rows that
the cut needs, of the buckets that it is about to trim and that the capture has not looked at; the capture
then skips these. So each bucket is looked at once for a cut, by the trim or by the capture, and before
anything that the cut needs is dropped. If trims waited for the cut, all that came meanwhile would have to
be trimmed at once when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, TypeVar

from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import KeptRows, Row
from emberflow.engine.cuts.packed import PackedRows
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.values.hashing import key_hash, owner
from emberflow.values.item import FRONT_MIN, FlatItem, Place
from emberflow.values.owners import SLICES, Owners

B = TypeVar("B")

_NOTHING: list[Row | KeptRows | None] = [None]
#: With fewer new items than this, a trim is not worth it.
_ITEMS_MIN = 512
#: Looks may be put off until so many items have come.
PUT_OFF_MAX = 32_768
#: The least number of items whose missing looks are made at once, however few items have just come.
_MADE_UP_FOR = 1_024
#: Fewer items than this between two progress messages are as good as none.
_FEW_ITEMS = 32
#: The number of buckets to look at, at each progress, while there are so few.
_LOOKS_AT_REST = 1_024
#: The number of slots in the time that a bucket lives.
_SLOTS = 16


class Looked(NamedTuple, Generic[B]):
    """What a capture finds in many buckets at once: the buckets of which a cut holds one row, and the
    rows; the buckets that go on beyond the moment; those that have to be looked at one by one; and rows that
    are packed, and how many they are, if plain rows are to be packed (`cuts.packed`)."""

    found: list[B]
    rows: list[Row]
    going_on: list[B]
    others: list[B]
    packed: bytes = b""
    packed_count: int = 0


class Trimmed(Generic[B]):
    """A machine that keeps ``kept`` final entries a bucket."""

    #: The number of buckets that a capture looks at in one go.
    captured_at_once = 1
    #: How long after its last entry a bucket ends; None if buckets stay.
    expires: int | None = None
    #: Whether another machine can inherit its buckets in memory.
    is_inherited = False
    buckets: dict[Any, B]

    def __init__(self, operation: str, kept: int) -> None:
        #: The name of the grouping, under which cuts know its buckets.
        self.operation = operation
        self.kept = kept
        self.touched: list[B] = []
        #: Buckets that have been touched for longer, the longest at the end.
        self.touched_earlier: list[B] = []
        #: None until the first cut.
        self.changes: Changes[B] | None = None
        #: The moment and the ``since`` of the cut begun last, and the rows that trims have taken for it
        #: and the capture has not passed on. They are no more than the cut holds, and refer to values that
        #: are in memory anyway.
        self._cut: tuple[Moment, Moment] = (BEFORE_ALL, BEFORE_ALL)
        self._taken_by_trims: list[Row | KeptRows] = []
        #: Whether that cut takes plain rows packed.
        self._packs = False
        #: The number of items for which no trim has made looks yet; the worker counts them.
        self.items_since = 0
        self._trimmed_below = BEFORE_ALL
        #: The same number at the last progress; and how many looks are still to be made while few items
        #: come, None while many do.
        self._counted = 0
        self._looks_left: int | None = None
        #: The buckets that end in each slot of time if nothing comes, the slots in order; and the buckets of
        #: the slot that is over.
        self._ends: dict[int, list[B]] = {}
        self._slots: list[int] = []
        self._ending: list[B] = []
        #: Keys that were here when slices left, and perhaps left with them; and the owner of each slice, and
        #: which of them this machine's worker is.
        self.left: list[Any] = []
        self._owned: tuple[Sequence[int], int] = ((), 0)

    @property
    def cold_keys(self) -> int:
        """The number of keys whose buckets are out of memory (`machines.cold`)."""
        return 0

    def fetch(self, items: list[FlatItem]) -> None:
        """Bring back the buckets that these items are for. Here none is out of memory."""

    def fetch_ahead(self, items: list[FlatItem]) -> None:
        """The same for all that waits, before it comes item by item."""

    def computed_from(self, place: Place) -> list[FlatItem]:
        """The items at or above a place, in order, that each item below would make it compute again.

        Here there are none: the number of replays for an item is bounded.
        """
        return []

    def trim_if_due(self, minimal: Moment, *, is_waited_for: bool = False) -> bool:
        """Trim, if enough items have come and more of them are final than the last time. False if the
        trim is put off because others wait for the worker."""
        came, self._counted = self.items_since - self._counted, self.items_since
        if is_waited_for and self.items_since <= PUT_OFF_MAX:
            return False
        if self.expires is not None:
            self.end_some(minimal, max(2 * came, _LOOKS_AT_REST))
        if self.items_since >= _ITEMS_MIN or came >= _FEW_ITEMS:
            self._looks_left = None
        if minimal <= self._trimmed_below:
            return True
        if self.items_since >= _ITEMS_MIN:
            due = min(self.items_since, max(2 * came, _MADE_UP_FOR))
            self.trim(minimal, due)
        elif came < _FEW_ITEMS:
            self._trim_at_rest(minimal)
        return True

    def _trim_at_rest(self, minimal: Moment) -> None:
        """Look at some of the touched buckets that are left. Each has its turn once."""
        if self._looks_left is None:
            self._looks_left = len(self.touched) + len(self.touched_earlier)
        looks = min(self._looks_left, _LOOKS_AT_REST)
        if looks:
            self._looks_left -= looks
            self.trim(minimal, looks)

    def trim(self, minimal: Moment, most: int | None = None) -> None:
        """Drop what is below the minimal time and no longer needed, in all touched buckets, or in
        ``most`` of them."""
        given = self.waiting_longest(most)
        changes = self.changes
        if changes is not None and changes.is_under_way and minimal > changes.begun:
            unseen = changes.unseen(given)
            self._taken_by_trims += [row for row in self._taken(unseen, changes) if row is not None]
        self.trim_all(given, minimal)
        self.trimmed(minimal, len(given), most)
        if self.expires is not None:
            self.end_some(minimal, most)

    # Expiry.

    def end_later(self, bucket: B, time: int) -> None:
        """Let a bucket end, if no entry comes after the one of this time. Each bucket waits once."""
        assert self.expires is not None
        slot = (time + self.expires) // self._slot_length + 1
        waiting = self._ends.get(slot)
        if waiting is None:
            self._ends[slot] = [bucket]
            heappush(self._slots, slot)
        else:
            waiting.append(bucket)

    @property
    def _slot_length(self) -> int:
        return max(1, (self.expires or 0) // _SLOTS)

    def end_some(self, minimal: Moment, most: int | None = None) -> None:
        """Forget the buckets that have ended below the minimal time: look at ``most`` of them, or at all."""
        assert self.expires is not None
        now, length, expires = minimal[0], self._slot_length, self.expires
        while most is None or most > 0:
            if not self._ending:
                if not self._slots or self._slots[0] * length > now:
                    return
                self._ending = self._ends.pop(heappop(self._slots))
            looked_at = self._ending[-(len(self._ending) if most is None else most) :]
            del self._ending[-len(looked_at) :]
            if most is not None:
                most -= len(looked_at)
            for bucket in looked_at:
                time = self.last_time(bucket)
                if time is None:
                    continue
                if time + expires <= now:
                    self.forget(bucket)
                else:
                    self.end_later(bucket, time)

    def last_time(self, bucket: B) -> int | None:
        """The time of the last entry of a bucket; None if it is empty, and forgotten already."""
        raise AssertionError("each machine that expires knows its buckets")

    def forget(self, bucket: B) -> None:
        """Forget a bucket that has ended."""
        raise AssertionError("each machine that expires knows its buckets")

    def trim_all(self, given: list[B], minimal: Moment) -> None:
        """Trim these buckets. Those that still hold more than they must keep are touched again."""
        trim_one = self.trim_one
        # A bucket that tombstones made smaller, and that grew again, is in the list twice.
        once = {id(bucket): bucket for bucket in given}.values()
        if self.changes is not None:
            self.changes.note_all(self.those_since(given, self.changes.begun))
        self.touched += [bucket for bucket in once if trim_one(bucket, minimal)]

    def waiting_longest(self, most: int | None) -> list[B]:
        """Take the buckets that have waited longest off the list: ``most`` of them, or all."""
        given: list[B] = []
        while (self.touched or self.touched_earlier) and (most is None or len(given) < most):
            if not self.touched_earlier:
                self.touched.reverse()
                self.touched_earlier, self.touched = self.touched, []
            # From the end of the list: taking from its beginning would move all the others.
            left = len(self.touched_earlier) if most is None else most - len(given)
            given += reversed(self.touched_earlier[-left:])
            del self.touched_earlier[-left:]
        return given

    def trimmed(self, minimal: Moment, looks: int, most: int | None) -> None:
        """Record that a trim has looked at so many buckets, where ``most`` was the limit."""
        self._trimmed_below = minimal
        all_seen = most is None or looks < most
        left = 0 if all_seen else max(0, self.items_since - looks)
        self.items_since = self._counted = left

    def capture(
        self, moment: Moment, since: Moment, *, packs: bool = False
    ) -> Iterator[Row | KeptRows | None]:
        """The rows of a cut, bucket by bucket; None for a bucket that the cut does not need. If it ``packs``,
        many plain rows may be one of them."""
        if not self.kept:
            return iter(())
        changes = self.changes
        # A cut of everything looks at everything, also if an earlier one was given up: what changed was noted for
        # the cuts since then, which may have been given up as well.
        if changes is None or since < changes.since or since == BEFORE_ALL:
            changes = self.changes = Changes(since)
            changes.begin(moment, self.all_buckets())
        else:
            changes.begin(moment, self.touched_earlier + self.touched)
        self._cut, self._taken_by_trims = (moment, self._alive_at(moment, since)), []
        self._packs = packs
        return self._captured(changes)

    def _alive_at(self, moment: Moment, since: Moment) -> Moment:
        """From when on rows are of a cut at this moment: rows from ``since`` on that have not expired."""
        return (
            since if self.expires is None else max(since, (moment[0] - self.expires + 1, FRONT_MIN))
        )

    def _captured(self, changes: Changes[B]) -> Iterator[Row | KeptRows | None]:
        while True:
            taken = self._taken(changes.ahead(self.captured_at_once), changes)
            taken += self._taken_by_trims
            self._taken_by_trims = []
            if not taken:
                return
            yield from taken

    def _taken(self, given: list[B], changes: Changes[B]) -> list[Row | KeptRows | None]:
        """The rows of the cut under way in these buckets, all at once: as soon as this returns, any of
        them may be trimmed beyond its moment. All of them are noted by then, because the cut may be given
        up."""
        moment, since = self._cut
        found, rows, going_on, others, packed, count = self.looked_at(
            given, moment, since, packs=self._packs
        )
        changes.note_all(going_on)
        changes.captured(found)
        taken: list[Row | KeptRows | None] = (
            [PackedRows(self.operation, packed, count)] if count else []
        )
        taken += rows
        taken += repeat(None, len(given) - len(rows) - len(others) - count)
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
        """The touched buckets among these that hold anything below a moment."""
        raise AssertionError("each machine knows its buckets")

    def all_buckets(self) -> list[B]:
        self.drop_left()
        return list(self.buckets.values())

    def looked_at(
        self, given: list[B], moment: Moment, since: Moment, *, packs: bool = False
    ) -> Looked[B]:
        """What a cut at this moment holds of many buckets, as far as it can be found quickly."""
        return Looked([], [], [], given)

    def rows_of(self, bucket: B, moment: Moment, since: Moment) -> list[Row]:
        """The rows of a cut at this moment in one bucket; none if all of them are below ``since``."""
        raise AssertionError("each machine knows its buckets")

    def rows_at(self, moment: Moment) -> Iterator[Row]:
        """The rows of a full cut at this moment. Nothing changes by it, and no trim may have gone beyond."""
        for bucket in self.all_buckets() if self.kept else ():
            yield from self.rows_of(bucket, moment, self._alive_at(moment, BEFORE_ALL))

    def goes_on(self, bucket: B, moment: Moment) -> bool:
        """Whether a bucket holds anything at or above the moment of a cut that looks at it."""
        raise AssertionError("each machine knows its buckets")

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        """Take over what a cut at this moment holds. May be called again with more of its rows."""
        raise AssertionError("each machine knows its buckets")

    def inherit(self, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        """Take over what a machine of an earlier version, in the same process, holds below a moment. With
        ``is_same``, it is of the same version.

        Returns whether it could: a machine of another kind, or one that keeps something else, gives rows.
        """
        return False

    def those_at(self, moment: Moment) -> Iterable[B]:
        """All buckets that hold anything at or above a moment of which a cut has begun, and others. With
        many keys it looks at few of them, by the invariant of `changes`."""
        changes = self.changes
        if changes is None or moment < changes.since:
            return self.all_buckets()
        touched = chain(self.touched, self.touched_earlier, changes.all())
        return {id(bucket): bucket for bucket in touched}.values()

    def give_away(self, owners: Owners, worker: int) -> bool:
        """From now on only keys of this worker's slices are its own, right before another machine inherits
        them. The cut at that moment has the others.

        Returns whether it could: otherwise all goes by way of rows.
        """
        return self.is_inherited and self.expires is None and self.leave_behind(owners, worker)

    def leave_behind(self, owners: Owners, worker: int) -> bool:
        """Note that buckets of others' slices are to be dropped."""
        self.drop_left()
        self.left = list(self.buckets)
        self._owned = owners.of_slice, worker
        return True

    def inherit_left(self, other: Trimmed[Any]) -> None:
        """Go on to drop what another machine, whose buckets this one has now, was to drop."""
        self.left, self._owned = other.left, other._owned

    def inherit_ends(self, other: Trimmed[B]) -> None:
        """Take over which buckets wait for their end, of a machine of the same version. Those that have ended
        are still to be forgotten."""
        self._ends, self._slots, self._ending = other._ends, other._slots, other._ending

    @property
    def has_left(self) -> bool:
        """Whether something of slices that have left may be here."""
        return bool(self.left)

    def take_in(self, other: Trimmed[B], moment: Moment) -> None:
        """Take what another machine has restored of a cut at this moment, which is of other keys."""
        if self.buckets:
            self.buckets.update(other.buckets)
        else:
            self.buckets = other.buckets
        for slot, waiting in other._ends.items():
            known = self._ends.get(slot)
            if known is None:
                self._ends[slot] = waiting
                heappush(self._slots, slot)
            else:
                known += waiting

    def drop_left(self, most: int | None = None) -> None:
        """Drop buckets of slices that have left: look at so many keys, or at all."""
        left = self.left
        if not left:
            return
        looked_at = left[-(len(left) if most is None else most) :]
        del left[-len(looked_at) :]
        buckets, (of_slice, worker) = self.buckets, self._owned
        for key in looked_at:
            if of_slice[owner(key_hash(key), SLICES)] != worker:
                buckets.pop(key, None)

    def sizes(self) -> list[int]:
        raise AssertionError("each machine knows its buckets")
