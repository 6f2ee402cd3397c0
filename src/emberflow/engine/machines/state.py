"""The machine of a state: for each key its accesses in order, and the value after each.

See `protocol` for the protocol. A bucket is a list of *entries*, sorted by place and mark,

::

    (place, mark, access, length, payload, before, value, failed)

where ``place[:length]`` is the transaction's identity, ``before`` the value that the access saw, and
``value`` the one it left. ``failed`` says why it does not hold: the name of its check, or the error that
a function raised; None if it holds. A read leaves the value it saw.

The entries of one transaction are neighbours, a *group*. A group counts for those behind it if none of
its entries failed and none is aborted. The state does not wait for the closer to learn that an entry of
its own failed: the closer can only say the same. That makes the fast path: a transaction of one access
never votes, and the state alone decides whether its group counts.

``before`` of a group's first entry is what the groups ahead of it left. So what a group leaves is known
without a look further back: its last value if it counts, its first ``before`` if not.

**In order** an access costs one comparison, one call of the update and one of its check. It leaves in the
bucket what the next one needs.

**Replay.** Buckets do not depend on each other. So only a bucket for which something unusual comes (a
late access, a tombstone, an abort) goes this way: the machine puts all that the rest of the batch has for
it in place, and then recomputes it from the first change on. An entry whose ``before`` is the same needs
no call. Behind the last change, a group whose ``before`` is the same ends the replay. The machine sends
the net effect of the batch, all tombstones first (see `net` for why).

**Trimming.** Below the minimal time all is decided: only the last version that counts is needed, and no
aborts. ``committed`` gives the last such version below any time that is not trimmed yet. A cut saves it,
and a query reads it (`queries.worker`); a worker trims no further than both allow.

**Expiry.** In a state that ``expires``, a group sees the default if the last version that counts ahead of it
is so much older. So ``before`` of a group depends on the time of that version too, and a replay goes on to
the end of the bucket: a version that left the same value at another time changes what later groups see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow import native
from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops.accesses import (
    NO_ABORTS,
    AccessEntry,
    StateBucket,
    Use,
    access_in_order,
    last_versions,
    settled,
    surely_counts,
    tell,
    trim_accesses,
)
from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.machines.barrier import lost_tombstone
from emberflow.engine.machines.cold import Cooling
from emberflow.engine.machines.trimming import Looked
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import InternalError, StepError
from emberflow.graph.nodes import Graph
from emberflow.graph.transaction_calls import outcome_of
from emberflow.graph.transactions import (
    COMMITTED,
    OUTPUT,
    REJECTED,
    RESULT,
    Access,
    Close,
    Rejected,
    State,
    Values,
    votes_aloud,
)
from emberflow.values.hashing import key_hash
from emberflow.values.item import At, FlatItem, Place
from emberflow.values.times import has_expired

_place_of = itemgetter(0)


class _Unknown:
    """In place of ``failed``: the entry is not computed yet."""


_UNKNOWN = _Unknown()

#: Equal values of these types are the same value; what other types call equal is their business.
_PLAIN = frozenset((int, str, bytes, bool, type(None)))


def same_value(one: Any, other: Any) -> bool:
    """Whether two values cannot be told apart."""
    return one is other or (
        one.__class__ is other.__class__ and one.__class__ in _PLAIN and one == other
    )


def use_of(graph: Graph, node: State, number: int) -> Use:
    """An access of a state as the machine uses it."""
    access = graph.nodes[node.accesses[number]]
    assert isinstance(access, Access)
    ports = {what: port for port, (own, what) in enumerate(node.outputs) if own == number}
    closers = [each for each in graph.nodes if isinstance(each, Close)]
    close = next((each for each in closers if each.transaction == access.transaction), None)
    vote, result = ports.get("vote", -1), ports.get("result", -1)
    tells_value = close is not None and bool(close.requires)
    tells_yes = close is not None and votes_aloud(graph, close, access)
    return Use(
        function=access.function,
        check=None if access.check is None else access.check.function,
        alone=access.alone,
        silent=not (access.alone or tells_yes or result >= 0),
        tells_yes=tells_yes,
        tells_value=tells_value,
        number=-1 if close is None or vote < 0 else close.voters.index(access.id),
        vote=vote,
        result=result,
        committed=ports.get("committed", -1),
        output=ports.get("output", -1),
        rejected=ports.get("rejected", -1),
        name=None if access.check is None else access.check.name,
        outcome=outcome_of(access),
        sees_payload=access.check is not None and access.check.sees_payload,
    )


#: What an entry sends: port and place, and the payload.
_Sent: TypeAlias = dict[tuple[int, Place], Any]


class AccessMachine(Cooling[StateBucket]):
    """The machine of a state."""

    captured_at_once = 256
    is_inherited = True

    def __init__(self, graph: Graph, node: State, *, diverts: bool = False) -> None:
        super().__init__(node.name, kept=1)
        self.node = node
        self.buckets: dict[Any, StateBucket] = {}
        self.replays = 0
        self.expires = node.expires
        self._default = node.default
        self._ports = node.ports
        self._uses = [use_of(graph, node, number) for number in range(len(node.accesses))]
        self._writes = tuple(use.writes for use in self._uses)
        #: An access that could have left a value that was read from a row.
        self._write = next((n for n, use in enumerate(self._uses) if use.writes), 0)
        #: By access: whether an error undoes its transaction, and so is a vote.
        self._votes_errors = [diverts and use.vote >= 0 for use in self._uses]

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        outputs: list[list[FlatItem]] = [[] for _ in range(self._ports)]
        buckets, uses, touched = self.buckets, self._uses, self.touched
        #: Accesses that are not in order or fail, and all that follow them at the same keys and places.
        others: list[FlatItem] = []
        other_keys: set[Any] = set()
        other_places: set[Place] = set()
        position, count = 0, len(items)
        while (
            position := access_in_order(
                items,
                position,
                outputs,
                buckets,
                uses,
                touched,
                other_keys,
                other_places,
                self.expires,
            )
        ) < count:
            item = items[position]
            position += 1
            place, mark, (key, access, _, _) = item
            if mark & 1 or access < 0 or key in other_keys or place in other_places:
                other_places.add(place)
            elif self._process_one(item, outputs):
                continue
            others.append(item)
            other_keys.add(key)
        return self._process_slowly(others, outputs, failed) if others else outputs

    def _process_one(self, item: FlatItem, outputs: list[list[FlatItem]]) -> bool:
        """Deal with an access that is not as most are: the first of its key, a further one of its
        transaction, one that does not hold. False if it is out of order or raises."""
        place, mark, (key, access, length, payload) = item
        bucket = self._bucket(key, place)
        entries = bucket.entries
        use = self._uses[access]
        # In order: the value is that of the last group, or of this one so far.
        counts, goes_on = True, False
        if entries:
            last = entries[-1]
            ahead = last[0]
            if ahead >= place:
                return False
            if ahead[0] == place[0] and ahead[: last[3]] == place[:length]:
                counts, goes_on = bucket.counts, True
        before = bucket.value if goes_on or bucket.counts else bucket.base
        if not goes_on and self._is_over(bucket, len(entries), place):
            before = self._default
        own = payload[1] if use.alone else payload
        try:
            value = before if use.function is None else use.function(before, own)
            why = None if use.holds(value, own) else use.name
            if value.__class__ is At:
                raise TypeError("the full error is made where it is called again")
        except Exception:
            return False
        if not goes_on:
            bucket.base = before
        bucket.value = value
        bucket.counts = counts and why is None and place not in bucket.aborts
        entries.append((place, mark, access, length, payload, before, value, why))
        if not bucket.noted and (
            native.versions is not None or len(entries) > 1 or why is not None or not use.writes
        ):  # where buckets can be short, a trim makes this one so once it is final
            bucket.noted = True
            self.touched.append(bucket)
        if why is None:
            tell(use, place, mark, key, length, payload, value, outputs)
        elif use.vote >= 0:
            outputs[use.vote].append((place, mark, (place[:length], use.number, key, why, value)))
        elif use.rejected >= 0:
            rejected = self._rejected(payload[0], why, key, value)
            outputs[use.rejected].append(((*place[:length], REJECTED), mark, rejected))
        return True

    def _is_over(self, bucket: StateBucket, end: int, place: Place) -> bool:
        """Whether what the first entries leave is forgotten at a place behind them."""
        if self.expires is None or not end:
            return False
        entry = self._last_counting(bucket, end)
        return entry is not None and has_expired(entry[0][0], self.expires, place[0])

    def _bucket(self, key: Any, place: Place) -> StateBucket:
        """The bucket of a key, for an access at a place. A bucket that is begun is noted for the next cut. So is one that has
        nothing but aborts: a capture finds it empty, and does not note it again."""
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = StateBucket(key, self._default)
            if self.expires is not None:
                self.end_later(bucket, place[0])
        if not bucket.entries and self.changes is not None:
            self.changes.note(bucket)
        return bucket

    def _rejected(self, element: Any, why: Any, key: Any, value: Any) -> Rejected[Any]:
        return Rejected(element, why, Values({(self.node.name, key): value}))

    # Out of order.

    def _process_slowly(
        self, items: list[FlatItem], outputs: list[list[FlatItem]], failed: list[FlatItem]
    ) -> list[list[FlatItem]]:
        """The part of a batch that is not in order or fails."""
        changed: dict[int, _Change] = {}
        for item in sorted(items, key=_place_of):
            self._change(item, changed)
        net = _Net(outputs)
        failures_back: list[FlatItem] = []
        failures: list[FlatItem] = []
        for change in changed.values():
            for entry in change.gone:
                self._take_back(entry, change.bucket.key, net, failures_back)
            self._replay(change, net, failures_back, failures)
        failed += failures_back
        failed += failures
        return net.all()

    def _change(self, item: FlatItem, changed: dict[int, _Change]) -> None:
        """Put an access or an abort into its bucket, or take it out."""
        place, mark, (key, access, length, payload) = item
        bucket = self._bucket(key, place)
        change = changed.get(id(bucket))
        if change is None:
            change = changed[id(bucket)] = _Change(bucket)
        entries = bucket.entries
        if access < 0:
            place = place[:-1]  # the place of its version
            position = bisect_left(entries, (place,))
        else:
            position = bisect_left(entries, (place, mark & ~1))
        change.start = min(change.start, position)
        change.last = max(change.last, place)
        if not bucket.noted:
            bucket.noted = True
            self.touched.append(bucket)
        if access < 0:
            if bucket.aborts is NO_ABORTS:
                bucket.aborts = {}
            there = bucket.aborts.get(place, 0)
            if mark & 1 and there == 1:
                del bucket.aborts[place]
            elif mark & 1 and not there:
                raise lost_tombstone(place, str(self.node))
            else:
                bucket.aborts[place] = there + (-1 if mark & 1 else 1)
        elif not mark & 1:
            entries.insert(position, (place, mark, access, length, payload, None, None, _UNKNOWN))
        elif position == len(entries) or entries[position][:2] != (place, mark ^ 1):
            raise lost_tombstone(place, str(self.node))
        else:
            change.gone.append(entries.pop(position))

    def _replay(
        self,
        change: _Change,
        net: _Net,
        failures_back: list[FlatItem],
        failures: list[FlatItem],
    ) -> None:
        """Recompute a bucket, from the group of the first change on."""
        bucket, last = change.bucket, change.last
        entries, aborts, uses = bucket.entries, bucket.aborts, self._uses
        position = _group_start(entries, change.start)
        base = self._left_ahead_of(bucket, position)
        identity: Place = ()
        counts, before = True, base
        while position < len(entries):
            place, mark, access, length, payload, saw, left, why = entries[position]
            own = place[:length]
            if own != identity:
                if identity:
                    base = before if counts else base
                if self._is_over(bucket, position, place):
                    base = self._default
                identity, counts, before = own, True, base
                if (
                    self.expires is None
                    and place > last
                    and last[:length]
                    != own  # an entry that left this very group may have aborted it
                    and why is not _UNKNOWN
                    and same_value(saw, base)
                ):
                    break  # nothing changed further on, so nothing else changes
            if why is _UNKNOWN or not same_value(saw, before):
                use = uses[access]
                try:
                    value, failed = use.outcome(
                        before, payload[1] if use.alone else payload, (place[0], place[1])
                    )
                except StepError as error:
                    # There is no value. It leaves what it saw, in a transaction that cannot commit.
                    value, failed = before, error
                old = entries[position]
                new = (place, mark, access, length, payload, before, value, failed)
                entries[position] = new
                self._put_right(old, new, bucket.key, net, failures_back, failures)
                left, why = value, failed
            if why is not None or place in aborts:
                counts = False
            before = left
            position += 1
        self._settle(bucket)

    def _put_right(
        self,
        old: AccessEntry,
        new: AccessEntry,
        key: Any,
        net: _Net,
        failures_back: list[FlatItem],
        failures: list[FlatItem],
    ) -> None:
        """Send the difference between two versions of an entry."""
        mark, was, now = new[1], old[7], new[7]
        steady: tuple[int, ...] = ()
        # So are most that are late: there was nothing yet, and it holds.
        if was is _UNKNOWN and now is None:
            tell(self._uses[new[2]], new[0], mark, key, new[3], new[4], new[6], net.items)
            return
        if was is not _UNKNOWN:
            self.replays += 1
            if same_value(was, now):
                if same_value(old[6], new[6]):
                    return
                if now is None:
                    # These ports are sent that it holds, but not the value.
                    use = self._uses[new[2]]
                    steady = (use.committed, -1 if use.tells_value else use.vote)
            self._fail(old, mark | 1, failures_back)
        self._fail(new, mark, failures)
        for (port, place), payload in self._sent(old, key).items():
            if port not in steady:
                net.take_back(port, place, mark, payload)
        for (port, place), payload in self._sent(new, key).items():
            if port not in steady:
                net.send(port, place, mark, payload)

    def _take_back(
        self, entry: AccessEntry, key: Any, net: _Net, failures_back: list[FlatItem]
    ) -> None:
        for where, payload in self._sent(entry, key).items():
            net.take_back(*where, entry[1], payload)
        self._fail(entry, entry[1] | 1, failures_back)

    def _fail(self, entry: AccessEntry, mark: int, failures: list[FlatItem]) -> None:
        """Send, or take back, the error of an entry, if it has one and no vote says so."""
        if isinstance(entry[7], StepError) and not self._votes_errors[entry[2]]:
            failures.append((entry[0], mark, entry[7]))

    def _sent(self, entry: AccessEntry, key: Any) -> _Sent:
        """What an entry has sent."""
        place, _, access, length, payload, _, value, why = entry
        if why is _UNKNOWN:
            return {}
        use, sent = self._uses[access], {}
        if use.alone:
            identity = place[:length]
            if why is None:
                sent[use.committed, (*identity, COMMITTED)] = payload[0]
                sent[use.output, (*identity, OUTPUT)] = (payload[1], value)
            elif not isinstance(why, StepError):
                rejected = self._rejected(payload[0], why, key, value)
                sent[use.rejected, (*identity, REJECTED)] = rejected
        else:
            if why is not None or use.tells_yes:
                told = value if why is not None or use.tells_value else None
                if isinstance(why, StepError) and not self._votes_errors[access]:
                    why = "an error"
                sent[use.vote, place] = (place[:length], use.number, key, why, told)
            if why is None:
                sent[use.result, (*place, RESULT)] = (payload, value)
        return {where: payload for where, payload in sent.items() if where[0] >= 0}

    def _left_ahead_of(self, bucket: StateBucket, position: int) -> Any:
        """What the groups ahead of this position leave. The position is the first of its group."""
        if position == 0:
            return self._default
        entries, aborts = bucket.entries, bucket.aborts
        start = _group_start(entries, position - 1)
        counts = all(
            entry[7] is None and entry[0] not in aborts for entry in entries[start:position]
        )
        return entries[position - 1][6] if counts else entries[start][5]

    def _settle(self, bucket: StateBucket) -> None:
        """Store in the bucket what the next access in order needs to know of the last group."""
        entries = bucket.entries
        if not entries:
            bucket.base = bucket.value = self._default
            bucket.counts = True
            if not bucket.aborts and self.buckets.get(bucket.key) is bucket:
                del self.buckets[bucket.key]
            return
        start, last = _group_start(entries, len(entries) - 1), entries[-1]
        bucket.base, bucket.value = entries[start][5], last[6]
        bucket.counts = all(
            entry[7] is None and entry[0] not in bucket.aborts for entry in entries[start:]
        )

    # What is final.

    def trim_all(self, given: list[StateBucket], minimal: Moment) -> None:
        begun = BEFORE_ALL if self.changes is None else self.changes.begun
        others, unnoted = trim_accesses(given, minimal, self._writes, self.touched, begun)
        if self.changes is not None:
            self.changes.note_all(unnoted)
        for bucket in others:
            if self.trim_one(bucket, minimal):
                self.touched.append(bucket)

    def trim_one(self, bucket: StateBucket, minimal: Moment) -> bool:
        """Drop what is decided and superseded. Whether there will be more to drop."""
        entries, aborts = bucket.entries, bucket.aborts
        final = bisect_left(entries, (minimal,))
        if final:
            kept = self._last_counting(bucket, final)
            entries[:final] = [] if kept is None else [settled(kept)]
        if aborts:
            left = {place: n for place, n in aborts.items() if place >= minimal}
            bucket.aborts = left or NO_ABORTS
        if not entries or (final and len(entries) == 1):
            self._settle(bucket)
        bucket.noted = (
            len(entries) > 1
            or bool(bucket.aborts)
            or any(entry[7] is not None or not self._uses[entry[2]].writes for entry in entries)
        )
        return bucket.noted

    def _last_counting(self, bucket: StateBucket, final: int) -> AccessEntry | None:
        """The last version of a committed transaction among the first entries."""
        entries, aborts = bucket.entries, bucket.aborts
        if final and not aborts and surely_counts(entries, final, self._writes):
            return entries[final - 1]
        end = final
        while end:
            start = _group_start(entries, end - 1)
            group = entries[start:end]
            if all(entry[7] is None and entry[0] not in aborts for entry in group):
                for entry in reversed(group):
                    if self._uses[entry[2]].writes:
                        return entry
            end = start
        return None

    def committed(self, below: Moment) -> Iterator[Row]:
        """The last committed version of each key below a time. The minimal time must have reached it, and
        no trim may have gone beyond it.
        """
        since = self._alive_at(below, BEFORE_ALL)
        for bucket in self.buckets.values():
            yield from self.rows_of(bucket, below, since)
        yield from self.all_cold(below)

    # Reads: see `queries.worker`.

    def bucket_of(self, key: Any) -> StateBucket | None:
        return self.buckets.get(key)

    def row_at(self, bucket: StateBucket, moment: Moment) -> tuple[Any, Any] | None:
        """Key and value as of a moment that is final and not trimmed; None if there is no value."""
        short = bucket.short
        if short is not None:
            place, value = short
            over = place >= moment or has_expired(place[0], self.expires, moment[0])
            return None if over else (bucket.key, value)
        entry = self._last_counting(bucket, bisect_left(bucket.entries, (moment,)))
        if entry is None or has_expired(entry[0][0], self.expires, moment[0]):
            return None
        return bucket.key, entry[6]

    # Cuts: see `cut`. The rows of a state are its committed versions, one for each key.

    def goes_on(self, bucket: StateBucket, moment: Moment) -> bool:
        if bucket.short is not None:
            return bucket.short[0] >= moment
        return bool(bucket.entries) and bucket.entries[-1][0] >= moment

    def rows_of(self, bucket: StateBucket, moment: Moment, since: Moment) -> list[Row]:
        if bucket.short is not None:
            place, value = bucket.short
            if not since <= place < moment:
                return []
            return [Row(self.operation, key_hash(bucket.key), bucket.key, place, value)]
        final = bisect_left(bucket.entries, (moment,))
        entry = self._last_counting(bucket, final)
        if entry is None or entry[0] < since:
            return []
        return [Row(self.operation, key_hash(bucket.key), bucket.key, entry[0][:2], entry[6])]

    def looked_at(
        self, given: list[StateBucket], moment: Moment, since: Moment, *, packs: bool = False
    ) -> Looked[StateBucket]:
        return Looked(*last_versions(given, moment, since, self._writes, self.operation, packs))

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        """Take over what a cut saved of the keys of this worker."""
        super().restore(moment, rows)
        if self.changes is None:
            self.changes = Changes(moment)
        for row in rows:
            if has_expired(row.place[0], self.expires, moment[0]):
                continue  # an older cut had it, and no later one that it is gone
            self.begin_from(row)

    # Rows that another worker computes: see `gathering.guests`.

    def writes(self, access: int) -> bool:
        """Whether an access may leave a value."""
        return self._writes[access]

    def begin_with(self, key: Any, place: Place, value: Any) -> None:
        """Begin the bucket of a key with a version that is older than all accesses."""
        self.begin_from(Row(self.operation, 0, key, (place[0], place[1]), value))

    def last_version(self, key: Any) -> tuple[Place, Any] | None:
        """Place and value of the last version of a row, where all are final; None if it has none."""
        bucket = self.buckets.get(key)
        if bucket is None or bucket.short is not None:
            return None if bucket is None else bucket.short
        entry = self._last_counting(bucket, len(bucket.entries))
        return None if entry is None else (entry[0], entry[6])

    def take_version(self, key: Any, place: Place, value: Any) -> None:
        """Append a version that is final. Where cuts and reads are concerned, it was computed here."""
        bucket = self._bucket(key, place)
        entries = bucket.entries
        if entries and entries[-1][0] >= place:
            raise InternalError(f"a version of {key!r} at {place} comes behind {entries[-1][0]}")
        before = bucket.value if bucket.counts else bucket.base
        entries.append((place, 0, self._write, len(place), None, before, value, None))
        bucket.base, bucket.value, bucket.counts = before, value, True
        if not bucket.noted:
            bucket.noted = True
            self.touched.append(bucket)

    # What is cold: see `cold`.

    def begin_from(self, row: Row) -> StateBucket:
        default, place = self._default, row.place
        bucket = self.buckets[row.key] = StateBucket(row.key, default)
        bucket.entries.append((place, 0, self._write, len(place), None, default, row.payload, None))
        self._settle(bucket)
        if self.expires is not None:
            self.end_later(bucket, place[0])
        return bucket

    def keys_in(self, items: list[FlatItem]) -> Collection[Any]:
        return {payload[0] for _, _, payload in items}

    def is_settled(self, bucket: StateBucket) -> bool:
        if bucket.noted or bucket.aborts:
            return False
        return bucket.short is not None or len(bucket.entries) == 1

    def is_in_memory(self, bucket: StateBucket) -> bool:
        return self.buckets.get(bucket.key) is bucket

    def inherit(self, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        if not isinstance(other, AccessMachine) or other._writes != self._writes:
            return False  # an entry says by a number which access wrote it
        if other.expires is not None or self.expires is not None:
            return False
        self.inherit_left(other)
        # All others have one entry, which is final and counts.
        for bucket in other.those_at(moment):
            if bucket.short is not None:
                continue
            entry = other._last_counting(bucket, bisect_left(bucket.entries, (moment,)))
            if entry is None:
                if other.buckets.get(bucket.key) is bucket:
                    del other.buckets[bucket.key]
                continue
            bucket.entries[:] = [settled(entry)]
            bucket.aborts, bucket.noted = NO_ABORTS, False
            self._settle(bucket)
        self.buckets = other.buckets
        self.inherit_cold(other, moment)
        return True

    def last_time(self, bucket: StateBucket) -> int | None:
        times = [place[0] for place in bucket.aborts]
        if bucket.short is not None:
            times.append(bucket.short[0][0])
        elif bucket.entries:
            times.append(bucket.entries[-1][0][0])
        return max(times, default=None)

    def forget(self, bucket: StateBucket) -> None:
        if self.buckets.get(bucket.key) is bucket:
            del self.buckets[bucket.key]

    def sizes(self) -> list[int]:
        return [
            (1 if bucket.short is not None else len(bucket.entries)) + len(bucket.aborts)
            for bucket in self.buckets.values()
        ]


def _group_start(entries: list[AccessEntry], position: int) -> int:
    """The first entry of the group that this entry is in."""
    if position >= len(entries):
        return position
    place, length = entries[position][0], entries[position][3]
    identity = place[:length]
    while position:
        ahead = entries[position - 1]
        if ahead[0][: ahead[3]] != identity:
            break
        position -= 1
    return position


class _Change:
    """What a batch changed in a bucket: from where to where, and what was removed."""

    __slots__ = ("bucket", "gone", "last", "start")

    def __init__(self, bucket: StateBucket) -> None:
        self.bucket = bucket
        self.start = len(bucket.entries)
        self.last: Place = ()
        self.gone: list[AccessEntry] = []


class _Net:
    """What a batch sends and takes back in all, by port: see `net`.

    ``early`` is what it sent in order before it came to a change. If the batch takes that back, it is not
    sent at all.
    """

    __slots__ = ("early", "items", "tombstones")

    def __init__(self, outputs: list[list[FlatItem]]) -> None:
        self.early = [
            {(place, mark): payload for place, mark, payload in output} if output else {}
            for output in outputs
        ]
        self.items: list[list[FlatItem]] = [[] for _ in outputs]
        self.tombstones: list[list[FlatItem]] = [[] for _ in outputs]

    def send(self, port: int, place: Place, mark: int, payload: Any) -> None:
        self.items[port].append((place, mark, payload))

    def take_back(self, port: int, place: Place, mark: int, payload: Any) -> None:
        if (place, mark) in self.early[port]:
            del self.early[port][place, mark]
        else:
            self.tombstones[port].append((place, mark | 1, payload))

    def all(self) -> list[list[FlatItem]]:
        """By port: tombstones, then items in order."""
        outputs: list[list[FlatItem]] = []
        for early, items, tombstones in zip(self.early, self.items, self.tombstones, strict=True):
            if early:
                items += [(place, mark, payload) for (place, mark), payload in early.items()]
            if len(items) > 1:
                sort_by_place(items)
            outputs.append(tombstones + items if tombstones else items)
        return outputs
