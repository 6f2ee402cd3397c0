"""The hottest loops of a state, apart from the rest, so that they can be compiled.

As in `loops.items`: each loop deals with accesses while they are as most are, and leaves all others
untouched to its caller, `machines.state`. In C they are ``_versions`` (see `emberflow.native`), and so is
the type of the buckets that they work on.

Most of the time of these loops is spent waiting for memory: each bucket is far from the next. So the
compiled loops look ahead, and have the processor fetch some buckets while they deal with others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from emberflow import native
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops.items import is_common
from emberflow.engine.messages import Moment
from emberflow.graph.transactions import COMMITTED, OUTPUT, RESULT
from emberflow.values.hashing import key_hash
from emberflow.values.item import At, FlatItem, Place

#: Place, mark, access, length of the identity, payload, value before, value, what failed.
AccessEntry: TypeAlias = tuple[Place, int, int, int, Any, Any, Any, Any]

#: The aborts of most keys, which have none, ever. Nothing is put into this one.
NO_ABORTS: dict[Place, int] = {}


class StateBucket:
    """The accesses of a key, and what the next one in order needs to know of the last group.

    Where the loops are compiled the buckets are of a type in C, with the same members; it keeps
    ``counts`` and ``noted`` as bools and takes nothing else for them. Each of the two unpickles what the
    other pickled.
    """

    __slots__ = ("aborts", "base", "counts", "entries", "key", "noted", "value")

    def __init__(self, key: Any, default: Any) -> None:
        self.key = key
        self.entries: list[AccessEntry] = []
        #: How many aborts there are at a place: one, or for a short while two, of two histories.
        self.aborts: dict[Place, int] = NO_ABORTS
        #: Of the last group: what it began with, what it left, and whether it counts.
        self.base = default
        self.value = default
        self.counts = True
        #: Whether the bucket is in the list of touched ones.
        self.noted = False

    @property
    def short(self) -> tuple[Place, Any] | None:
        """Place and value of the only entry, if no more is kept of it. In C, trims make buckets short, and
        a bucket makes its list of entries anew when somebody asks for that."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        members = {
            "entries": self.entries,
            "aborts": self.aborts,
            "value": self.value,
            "counts": self.counts,
            "noted": self.noted,
        }
        return self.__class__, (self.key, self.base), (None, members)


#: For tests, which hold the two to each other.
_StateBucket = StateBucket


class Use(NamedTuple):
    """An access as the machine uses it: its functions, and the ports that it sends to, -1 where nobody
    reads. The compiled loops know the fields by their order."""

    function: Callable[[Any, Any], Any] | None
    check: Callable[..., Any] | None
    #: Whether it is the only access of its transaction. Then its payload is (element, own payload).
    alone: bool
    #: Whether it sends nothing at all while it holds.
    silent: bool
    #: Whether it also votes yes: the closer cannot tell otherwise that there is such an access.
    tells_yes: bool
    #: Whether a vote for yes carries the value: some constraint needs it.
    tells_value: bool
    #: The number by which the closer knows its votes.
    number: int
    vote: int
    result: int
    committed: int
    output: int
    rejected: int
    #: The name of the check.
    name: str | None
    outcome: Callable[[Any, Any, Moment], tuple[Any, Any]]
    #: Whether the check gets the payload behind the new value.
    sees_payload: bool = False

    def holds(self, value: Any, own: Any) -> bool:
        """Whether the check holds, if there is one; ``own`` is the payload without the element."""
        if self.check is None:
            return True
        return bool(self.check(value, own) if self.sees_payload else self.check(value))

    @property
    def writes(self) -> bool:
        return self.function is not None


def _access_in_order(
    items: list[FlatItem],
    start: int,
    outputs: list[list[FlatItem]],
    buckets: dict[Any, StateBucket],
    uses: list[Use],
    touched: list[StateBucket],
    other_keys: set[Any],
    other_places: set[Place],
    expires: int | None,
) -> int:
    """Deal with accesses that hold, each later than all that its key has; the position of the first
    that is not so.

    Those of ``other_keys`` and ``other_places`` are left out: the caller deals with these itself. Where
    values ``expire``, so is an access behind one that does not surely count, or that came so long before.
    """
    for position in range(start, len(items)):
        place, mark, (key, access, length, payload) = items[position]
        if mark & 1 or access < 0 or key in other_keys or place in other_places:
            return position
        bucket = buckets.get(key)
        if bucket is None or not bucket.entries or bucket.aborts:
            return position
        ahead = bucket.entries[-1][0]
        # It is the first of its transaction if it is the first of its time.
        if not (ahead < place and ahead[0] != place[0]):
            return position
        if expires is not None and not (
            bucket.counts and uses[bucket.entries[-1][2]].writes and place[0] - ahead[0] < expires
        ):
            return position
        use = uses[access]
        before = bucket.value if bucket.counts else bucket.base
        own = payload[1] if use.alone else payload
        try:
            value = before if use.function is None else use.function(before, own)
            if not use.holds(value, own) or value.__class__ is At:
                return position
        except Exception:
            return position
        bucket.base = before
        bucket.value = value
        bucket.counts = True
        bucket.entries.append((place, mark, access, length, payload, before, value, None))
        if not bucket.noted:
            bucket.noted = True
            touched.append(bucket)
        if not use.silent:
            tell(use, place, mark, key, length, payload, value, outputs)
    return len(items)


def tell(
    use: Use,
    place: Place,
    mark: int,
    key: Any,
    length: int,
    payload: Any,
    value: Any,
    outputs: list[list[FlatItem]],
) -> None:
    """Send what an access that holds sends."""
    if use.alone:
        identity = place[:length]
        if use.committed >= 0:
            outputs[use.committed].append(((*identity, COMMITTED), mark, payload[0]))
        if use.output >= 0:
            outputs[use.output].append(((*identity, OUTPUT), mark, (payload[1], value)))
        return
    if use.vote >= 0 and use.tells_yes:
        told = value if use.tells_value else None
        outputs[use.vote].append((place, mark, (place[:length], use.number, key, None, told)))
    if use.result >= 0:
        outputs[use.result].append(((*place, RESULT), mark, (payload, value)))


def _trim_accesses(
    given: list[StateBucket],
    minimal: Moment,
    writes: tuple[bool, ...],
    stays: list[StateBucket],
    begun: Moment,
) -> tuple[list[StateBucket], list[StateBucket]]:
    """Drop what is superseded below the minimal time, where the last final version counts. Of that
    version keep the value, and drop what it was made of: objects that are dropped soon are still in the
    processor's cache, and what stays is small.

    Buckets that will hold more than one version that is final are appended to ``stays``. Returns the buckets
    that are not so simple, untouched; and those of several versions whose first one is older than ``begun``:
    one of a single older version has not changed since.
    """
    others: list[StateBucket] = []
    unnoted: list[StateBucket] = []
    for bucket in given:
        entries = bucket.entries
        if len(entries) > 1 and entries[0][0] < begun:
            unnoted.append(bucket)
        if bucket.aborts or not entries:
            others.append(bucket)
            continue
        if entries[min(1, len(entries) - 1)][0] >= minimal:
            stays.append(bucket)  # of the final versions the last is enough, and it is the only one
            continue
        final = len(entries) if entries[-1][0] < minimal else bisect_left(entries, (minimal,))
        if not surely_counts(entries, final, writes):
            others.append(bucket)
            continue
        entries[:final] = [settled(entries[final - 1])]
        if len(entries) > 1:
            stays.append(bucket)
        else:
            bucket.base, bucket.value, bucket.counts = None, entries[0][6], True
            bucket.noted = False
    return others, unnoted


def _last_versions(
    given: list[StateBucket],
    moment: Moment,
    since: Moment,
    writes: tuple[bool, ...],
    operation: str,
    packs: bool,
) -> tuple[list[StateBucket], list[Row], list[StateBucket], list[StateBucket], bytes, int]:
    """The rows of the last versions below a moment, where these count and are not below ``since``.

    Returns the buckets that have one, and the rows; the buckets that go on beyond the moment; the buckets
    that are not so simple, or whose key is of a rare type; and, if it ``packs``, what is compiled packs the rows
    that are plain (`cuts.packed`), and tells how many they are.
    """
    found: list[StateBucket] = []
    rows: list[Row] = []
    going_on: list[StateBucket] = []
    others: list[StateBucket] = []
    for bucket in given:
        entries = bucket.entries
        final = len(entries)
        if final and entries[-1][0] >= moment:
            going_on.append(bucket)
            final = bisect_left(entries, (moment,))
        if not final:
            continue
        if bucket.aborts or not surely_counts(entries, final, writes):
            others.append(bucket)
        elif entries[final - 1][0] >= since:
            if not is_common(bucket.key):
                others.append(bucket)
                continue
            last = entries[final - 1]
            found.append(bucket)
            rows.append(Row(operation, key_hash(bucket.key), bucket.key, last[0][:2], last[6]))
    return found, rows, going_on, others, b"", 0


def settled(entry: AccessEntry) -> AccessEntry:
    """A version that nothing can change any more, without what it was made of. Of its place the global time
    is left: all others of that time are final too."""
    place, _, access, _, _, _, value, _ = entry
    return place[:2], 0, access, 2, None, None, value, None


def surely_counts(entries: list[AccessEntry], final: int, writes: tuple[bool, ...]) -> bool:
    """Whether the last of the first ``final`` entries surely counts, where there are no aborts: it
    holds, it writes, and it is the only one of its group."""
    last = entries[final - 1]
    return (
        last[7] is None
        and writes[last[2]]
        and (final == 1 or entries[final - 2][0][0] != last[0][0])
    )


if native.versions is None:
    access_in_order, trim_accesses = _access_in_order, _trim_accesses
    last_versions = _last_versions
else:
    native.versions.prepare(Row, NO_ABORTS, At, (RESULT,), (COMMITTED,), (OUTPUT,))
    access_in_order, trim_accesses = native.versions.access_in_order, native.versions.trim_accesses
    last_versions = native.versions.last_versions
    if not TYPE_CHECKING:
        StateBucket = native.versions.StateBucket
