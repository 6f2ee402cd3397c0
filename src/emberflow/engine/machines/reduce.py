"""The cycle of drifting state, run in one step.

`dsl.operators.reduce` composes a reduce of merge, grouping of window 2, combine map and broadcast. Run as
such, every element goes round the cycle: four operations and two tuples for one combine. This machine
does the same in one operation. A bucket holds the *versions* of a key, one for each mapped item,

::

    (place, mark, mapped item, accumulator after it)

sorted by place, and each accumulator is ``combine`` of the one before and the payload. Items leave with
the places that the cycle would have given them (``+ (0, 1)``: first image of the combine map, port 1 of
the broadcast), so nothing behind can tell the difference. A plain `reduce` has a map before the cycle,
from payload to triple, and one behind it, from triple to value. A *keyed* machine does their work too.

**Replay.** A late item, or a tombstone, changes all accumulators behind it. The cycle would take each of
them back and make it anew, item by item as they come round. This machine first puts all items and
tombstones that a batch has for a key in place, and then recomputes once, from the first change on. It
stops when an accumulator comes out as it was, because then so do all behind it. It sends the net effect
of the batch (`net`).

**Failures.** Where ``first`` or ``combine`` raises, there is no accumulator. As in the cycle, the versions
behind it then yield nothing; the failure itself is an item (see `map`). Where errors are diverted, the
version without an accumulator remembers the one before it, and the next element goes on from there. The
cycle does the same by sending that one round again.

**Trimming.** As in a grouping of window 2: below the minimal time the last version is enough.

**Expiry.** A version lives as long as its key from the time in its place on: the next item that comes later
begins anew, by ``first``. So the places that are there anyway say all, in a bucket and in a cut.

**Cuts.** A cut holds the last version below its moment. Its key, its accumulator and its global time are
enough, because no replay ever reaches that version. A restored version has the bucket's key in place of its
mapped item. In a keyed machine the buckets are compact where the loops are compiled: once a version is final
and the last of its key, no more than this is kept of it (`native/headers/history.h`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from operator import itemgetter
from typing import Any, TypeAlias, cast

from emberflow import native
from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops import items as loops
from emberflow.engine.loops.items import Restored
from emberflow.engine.machines.barrier import lost_tombstone
from emberflow.engine.machines.cold import Cooling
from emberflow.engine.machines.net import NetOutput
from emberflow.engine.machines.trimming import Looked
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import InternalError, OutputError, StepError
from emberflow.graph.calls import Balance, function_error, scheduled_time
from emberflow.graph.nodes import Graph, Group, Map, Reduction
from emberflow.values.functions import itself
from emberflow.values.hashing import key_hash
from emberflow.values.item import At, FlatItem, Place
from emberflow.values.times import has_expired

#: ``(place, mark, mapped item, accumulator)``. The mapped item is ``(key, False, payload)``; its own
#: key goes on with the accumulator, because equal keys need not look alike (``1`` and ``True``).
Version: TypeAlias = tuple[Place, int, Any, Any]
ReduceBucket: TypeAlias = list[Version]

#: First image of the combine map, port 1 of the broadcast.
OUT = (0, 1)
#: The same between the first image of the pair map and that of the value map.
_OUT_KEYED = (0, *OUT, 0)
#: With more buckets than this, only the touched ones are visited when the node becomes patient.
_VISITED_MAX = 1 << 17


_NO_ACCUMULATOR = object()
_NO_VERSION: Any = ((), 0, None, None)


class Absent:
    """In place of an accumulator: the function raised, or it is not computed yet.

    Where errors are diverted, the next element goes on from ``kept``.
    """

    __slots__ = ("error", "kept")

    def __init__(self, error: StepError | None, kept: Any = _NO_ACCUMULATOR) -> None:
        self.error = error
        self.kept = kept


_NOT_YET = Absent(None)
_NOTHING = Absent(None)  # behind a failure, where the cycle yields nothing
_OVER = Absent(None)  # of an item that comes when the time of its key is over

#: Equal values of these types are the same value; what other types call equal is their business.
_PLAIN = frozenset((int, str, bytes))


class ReduceMachine(Cooling[ReduceBucket]):
    """The machine of a reduction. ``keyed`` ones take payloads and give values, others triples."""

    captured_at_once = 256
    is_inherited = True

    def __init__(
        self,
        graph: Graph,
        reduction: Reduction,
        balance: Balance,
        keyed: bool,
        *,
        diverts: bool = False,
    ) -> None:
        super().__init__(graph.nodes[reduction.group].name, kept=1)
        self._diverts = diverts
        self.buckets: dict[Any, ReduceBucket] = {}
        self.replays = 0
        #: Up to which moments versions are those of earlier versions of the flow, and their key functions.
        self._earlier: list[tuple[Moment, Callable[[Any], Any]]] = []
        self._node = group = graph.nodes[reduction.group]
        assert isinstance(group, Group)
        self.expires = group.expires
        self._combine_node = _map_of(graph, reduction.combine)
        self._value_node = None if reduction.value is None else _map_of(graph, reduction.value)
        self._balance = balance
        self._first: Callable[[Any], Any] = reduction.first
        self._shown = reduction.shown
        self._combine: Callable[[Any, Any], Any] = reduction.combine_function
        if keyed:
            assert reduction.key is not None
            self._key_of: Callable[[Any], Any] = reduction.key
            self._payload_of: Callable[[Any], Any] = itself
            self._out: Place = _OUT_KEYED
            self._refused: type = At  # of triples, the map behind them refuses it
        else:
            self._key_of, self._payload_of = _first_of_three, _third_of_three
            self._out, self._refused = OUT, Absent
        #: Only the compiled loop of keyed machines knows histories. To others they would be slower lists.
        self._history = loops.history if keyed else _versions_of
        self._is_compact = keyed and native.loops is not None
        self._sent = payload_made_by(reduction, keyed)
        self._with_key = reduction.with_key
        self.process = self._process_keyed if keyed else self._process_triples

    def _process_keyed(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        append, position = output.append, 0
        given = (
            self._key_of,
            self._combine,
            self.buckets,
            self.touched,
            _OUT_KEYED,
            self._with_key,
            Absent,
            At,
            self.expires,
        )
        while (position := loops.reduce_in_order(items, position, output, *given)) < len(items):
            if not self._begin(items[position], append):
                return [self._process_slowly(items, output, failed)]
            position += 1
        return [output]

    def _process_triples(
        self, items: list[FlatItem], failed: list[FlatItem]
    ) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        append, position, count = output.append, 0, len(items)
        ticking: list[FlatItem] = []
        given = (
            count,
            output,
            self._combine,
            self.buckets,
            self.touched,
            OUT,
            Absent,
            self.expires,
            None,
            ticking,
        )
        while (position := loops.reduce_triples(items, position, *given)) < count:
            if not self._begin(items[position], append):
                return [self._process_slowly(items, output, failed)]
            position += 1
        return [output]

    def _begin(self, item: FlatItem, send: Callable[[FlatItem], None]) -> bool:
        """Begin a bucket with this item, if there is none for its key, or only one whose time is over, and
        nothing goes wrong."""
        place, mark, mapped = item
        try:
            key = self._key_of(mapped)
            versions = self.buckets.get(key)
            if mark & 1 or (versions is not None and not self._is_over(versions, place)):
                return False
            key_hash(key)  # a key that has no stable hash is refused, below
            accumulator = self._first(self._payload_of(mapped))
        except Exception:
            return False
        if accumulator.__class__ is self._refused:
            return False
        version = (place, mark, mapped, accumulator)
        if versions is None:
            versions = self.buckets[key] = self._history(key, version)
            self._is_new(versions)
        else:
            versions.append(version)
            if len(versions) == 2:
                self.touched.append(versions)
        send((place + self._out, mark, self._sent(key, accumulator)))
        return True

    def _is_over(self, versions: ReduceBucket, place: Place) -> bool:
        """Whether an item at this place is the latest of its key, and begins it anew."""
        last = versions[-1]
        # Behind a version that this batch has changed nothing is known yet.
        is_known = last[3].__class__ is not Absent
        return is_known and last[0] < place and has_expired(last[0][0], self.expires, place[0])

    def _is_new(self, versions: ReduceBucket) -> None:
        """Note a bucket that has its first version. A trim makes it small once that is final."""
        if self._is_compact:
            self.touched.append(versions)
        if self.changes is not None:
            self.changes.note(versions)
        if self.expires is not None:
            self.end_later(versions, versions[0][0][0])

    def _process_slowly(
        self, items: list[FlatItem], output: list[FlatItem], failed: list[FlatItem]
    ) -> list[FlatItem]:
        """The rest of a batch, from the first item on that is not in order or goes wrong.

        Every item ahead of it gave one output, so the length of ``output`` tells where it is. The rest is
        sorted first: items that are only out of order among themselves then cost nothing more.
        """
        key_of, payload_of, combine = self._key_of, self._payload_of, self._combine
        out, sent_of, buckets, touched = self._out, self._sent, self.buckets, self.touched
        refused, expires = self._refused, self.expires
        rest = items[len(output) :]
        loops.sort_by_place(rest)
        keys = [key_of(item[2]) for item in items[: len(output)]]  # of the outputs
        append, note = output.append, keys.append
        changed: dict[int, _Change] = {}
        for item in rest:
            place, mark, mapped = item
            versions = None
            try:
                key = key_of(mapped)
                versions = buckets[key]
                last = versions[-1]
                if last[0] < place and not mark & 1:
                    before = last[3]
                    if before is _NOT_YET:  # changed by this batch: computed in the replay
                        versions.append((place, mark, mapped, before))
                        if len(versions) == 2:
                            touched.append(versions)
                        changed[id(versions)].last = place
                        continue
                    if before.__class__ is not Absent and id(versions) not in changed:
                        if has_expired(last[0][0], expires, place[0]):
                            accumulator = self._first(payload_of(mapped))
                        else:
                            accumulator = combine(before, payload_of(mapped))
                        if accumulator.__class__ is not refused:
                            versions.append((place, mark, mapped, accumulator))
                            if len(versions) == 2:
                                touched.append(versions)
                            append((place + out, mark, sent_of(key, accumulator)))
                            note(key)
                            continue
            except Exception:
                pass
            if versions is None and self._begin(item, append):
                note(key_of(mapped))
                continue
            try:
                self._change(item, changed)
            except StepError as error:
                failed.append((place, mark, error))
        return self._replayed(changed, output, keys, failed)

    def _change(self, item: FlatItem, changed: dict[int, _Change]) -> None:
        """Put an item into its bucket, or take it out, and remember from where on to recompute."""
        place, mark, mapped = item
        try:
            key = self._key_of(mapped)
            versions = self.buckets.get(key)
        except Exception:
            versions = None
        if versions is None:
            key, _ = self._balance(mapped, (place[0], place[1]))
            versions = self.buckets[key] = self._history(key, _NO_VERSION)
            del versions[:]
        change = changed.get(id(versions))
        if change is None:
            change = changed[id(versions)] = _Change(key, versions)
        position = bisect_left(versions, (place, mark & ~1))
        if position < len(versions) and versions[position][2].__class__ is Restored:
            raise InternalError(
                f"{self._node}: an item at {place} came after the state of its key was restored as "
                f"of {versions[position][0]}: a front replays from below the cut, or the cut holds "
                f"what is at or above it"
            )
        if mark & 1:
            if position == len(versions) or versions[position][:2] != (place, mark & ~1):
                raise lost_tombstone(place, str(self._node))
            change.gone.append(versions.pop(position))
        else:
            versions.insert(position, (place, mark, mapped, _NOT_YET))
            if len(versions) == 2:
                self.touched.append(versions)
            elif len(versions) == 1:
                self._is_new(versions)
        if position < change.start:
            change.start = position
        if place > change.last:
            change.last = place

    def _replayed(
        self,
        changed: dict[int, _Change],
        output: list[FlatItem],
        keys: list[Any],
        failed: list[FlatItem],
    ) -> list[FlatItem]:
        """The net effect of a batch; ``output`` is what it sent in order, under these keys."""
        net = NetOutput(output, keys, {change.key for change in changed.values()})
        failures_back: list[FlatItem] = []
        failures: list[FlatItem] = []
        for change in changed.values():
            self._replay(change, net, failures_back, failures)
        failed[:0] = failures_back
        failed += failures
        return net.all()

    def _replay(
        self,
        change: _Change,
        net: NetOutput,
        failures_back: list[FlatItem],
        failures: list[FlatItem],
    ) -> None:
        key_of, payload_of, combine = self._key_of, self._payload_of, self._combine
        out, sent_of, refused, until = self._out, self._sent, self._refused, change.last
        versions, start, replays = change.versions, change.start, 0
        send, take_back, early = net.items.append, net.tombstones.append, net.early
        for version in change.gone:
            self._take_back(version, net, failures_back)
        before = versions[start - 1][3] if start else _NOT_YET
        expires, since = self.expires, versions[start - 1][0][0] if start else 0
        for position in range(start, len(versions)):
            place, mark, mapped, old = versions[position]
            if expires is not None:
                if position and has_expired(since, expires, place[0]):
                    before = _OVER
                since = place[0]
            try:
                if before.__class__ is Absent:
                    accumulator = self._accumulate(before, versions[position], position)
                else:
                    accumulator = combine(before, payload_of(mapped))
            except Exception:  # `_accumulate` calls it again and makes the failure
                accumulator = self._accumulate(before, versions[position], position)
            before = accumulator
            if accumulator is old or (
                accumulator.__class__ is old.__class__
                and accumulator.__class__ in _PLAIN
                and accumulator == old
            ):
                if place > until:
                    break  # nothing changed further on, so nothing else changes
                continue
            key, out_place = key_of(mapped), place + out
            if old is not _NOT_YET:
                replays += 1
                if old.__class__ is Absent or early:
                    self._take_back(versions[position], net, failures_back)
                else:
                    take_back((out_place, mark | 1, sent_of(key, old)))
            versions[position] = (place, mark, mapped, accumulator)
            if accumulator.__class__ is refused or accumulator.__class__ is Absent:
                before = self._refuse(versions, position, failures)
            else:
                send((out_place, mark, sent_of(key, accumulator)))
        self.replays += replays
        if not versions:
            del self.buckets[change.key]

    def _accumulate(self, before: Any, version: Version, position: int) -> Any:
        """An accumulator, or what stands in its place: the version's own if that is the same."""
        place, _, mapped, old = version
        payload = self._payload_of(mapped)
        if before.__class__ is Absent:
            if position and before is not _OVER and not self._diverts:
                return _NOTHING
            before = before.kept
        try:
            if before is _NO_ACCUMULATOR:
                return self._first(payload)
            return self._combine(before, payload)
        except Exception as error:
            moment = (place[0], place[1])
            failure = function_error(self._combine_node, error, self._shown(payload), moment)
            if not self._diverts:
                failure.__cause__ = (
                    error  # holds all that was on the stack, so only if the run ends
                )
        if (
            old.__class__ is Absent
            and old.error.__class__ is failure.__class__
            and _unchanged(old.kept, before)
        ):
            return old  # a pure function failed as it had failed before
        return Absent(failure, before)

    def _refuse(self, versions: ReduceBucket, position: int, failures: list[FlatItem]) -> Any:
        """A version without an accumulator, or with one that is an `At`, which only maps give."""
        place, mark, mapped, accumulator = versions[position]
        if accumulator.__class__ is self._refused and self._value_node is not None:
            try:
                scheduled_time(self._value_node, cast("At[Any]", accumulator), (place[0], place[1]))
            except OutputError as error:
                # In the cycle it goes round: the map behind the cycle refuses it.
                accumulator = Absent(error.with_traceback(None), accumulator)
            versions[position] = (place, mark, mapped, accumulator)
        if accumulator.__class__ is Absent and accumulator.error is not None:
            failures.append((place, mark, accumulator.error))
        return accumulator

    def _take_back(self, version: Version, net: NetOutput, failures_back: list[FlatItem]) -> None:
        place, mark, mapped, accumulator = version
        if accumulator.__class__ is not Absent:
            key = self._key_of(mapped)
            net.take_back(place + self._out, mark, key, self._sent(key, accumulator))
        elif accumulator.error is not None:
            failures_back.append((place, mark | 1, accumulator.error))

    def computed_from(self, place: Place) -> list[FlatItem]:
        visited: Iterable[ReduceBucket] = self.buckets.values()
        if len(self.buckets) > _VISITED_MAX:
            # A bucket that is not touched has one version, which is one replay.
            touched = (*self.touched, *self.touched_earlier)
            visited = {id(versions): versions for versions in touched}.values()
        found = [
            version[:3]
            for versions in visited
            if versions[-1][0] >= place
            for version in versions[bisect_left(versions, (place,)) :]
        ]
        return sorted(found, key=_place_of)

    def trim_all(self, given: list[ReduceBucket], minimal: Moment) -> None:
        changes = self.changes
        begun = BEFORE_ALL if changes is None else changes.begun
        # A mapped item of an earlier version of the flow has a key function of its own.
        key_of = None if self._earlier else self._key_of
        rest, unnoted = loops.trim_to_last(given, minimal, begun, key_of, Absent, Restored)
        if changes is not None:
            changes.note_all(unnoted)
        for versions in rest:
            if self.trim_one(versions, minimal) or self._is_compact:
                self.touched.append(versions)

    def trim_one(self, versions: ReduceBucket, minimal: Moment) -> bool:
        """Drop all versions below the minimal time but the last; whether more will follow."""
        drop = bisect_left(versions, (minimal,)) - 1
        if drop > 0:
            del versions[:drop]
        return len(versions) > 1

    def sizes(self) -> list[int]:
        return list(map(len, self.buckets.values()))

    def bucket_of(self, key: Any) -> ReduceBucket | None:
        return self.buckets.get(key)

    def row_at(self, versions: ReduceBucket, moment: Moment) -> tuple[Any, Any] | None:
        """Key and accumulator as of a moment that is final and not trimmed; None if there is none."""
        last = bisect_left(versions, (moment,)) - 1
        if last < 0:
            return None
        version = versions[last]  # a history makes it anew each time
        if has_expired(version[0][0], self.expires, moment[0]):
            return None
        accumulator = version[3]
        if accumulator.__class__ is Absent:
            accumulator = accumulator.kept  # the error was diverted, or the run ends
            if accumulator is _NO_ACCUMULATOR:
                return None
        return self._key_in(version), accumulator

    def goes_on(self, versions: ReduceBucket, moment: Moment) -> bool:
        return bool(versions) and versions[-1][0] >= moment

    def looked_at(
        self, given: list[ReduceBucket], moment: Moment, since: Moment, *, packs: bool = False
    ) -> Looked[ReduceBucket]:
        earlier = self._of_earlier_versions(given) if self._earlier else []
        if earlier:  # they are looked at one by one, because their keys are made by other functions
            known = set(map(id, earlier))
            given = [versions for versions in given if id(versions) not in known]
        looked = Looked(
            *loops.last_accumulators(
                given, moment, since, self._key_of, self.operation, Absent, Restored, packs
            )
        )
        return looked._replace(others=[*looked.others, *earlier]) if earlier else looked

    def _of_earlier_versions(self, given: list[ReduceBucket]) -> list[ReduceBucket]:
        """The buckets that still hold mapped items of an earlier version of the flow."""
        begun = self._earlier[-1][0]
        # A version that was restored is the first of its bucket, and may be ahead of such items.
        return [
            versions
            for versions in given
            if versions
            and versions[0][0] < begun
            and (
                versions[0][2].__class__ is not Restored
                or (len(versions) > 1 and versions[1][0] < begun)
            )
        ]

    def rows_of(self, versions: ReduceBucket, moment: Moment, since: Moment) -> list[Row]:
        last = bisect_left(versions, (moment,)) - 1
        if last < 0 or versions[last][0] < since:
            return []
        # A failure below a cut ends the run, so this cut will never be committed. If it was diverted,
        # the accumulator to save is the one that the next element goes on from.
        row = self.row_at(versions, moment)
        if row is None:
            return []
        place, (key, accumulator) = versions[last][0], row
        if self._earlier and place < self._earlier[-1][0]:
            versions[last] = (place, 0, Restored(key), versions[last][3])
        return [Row(self.operation, key_hash(key), key, place[:2], accumulator)]

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        super().restore(moment, rows)
        if self.changes is None:
            self.changes = Changes(moment)
        expires = self.expires
        for row in rows:
            if has_expired(row.place[0], expires, moment[0]):
                continue  # an older cut had it, and no later one that it is gone
            self.begin_from(row)

    def begin_from(self, row: Row) -> ReduceBucket:
        version = (row.place, 0, Restored(row.key), row.payload)
        versions = self.buckets[row.key] = self._history(row.key, version)
        if self.expires is not None:
            self.end_later(versions, row.place[0])
        return versions

    def keys_in(self, items: list[FlatItem]) -> Collection[Any]:
        key_of = self._key_of
        try:
            return {key_of(item[2]) for item in items}
        except Exception:
            keys = set()
            for item in items:
                with suppress(Exception):  # the item fails where it is processed
                    keys.add(key_of(item[2]))
            return keys

    def is_settled(self, bucket: ReduceBucket) -> bool:
        return len(bucket) == 1

    def is_in_memory(self, bucket: ReduceBucket) -> bool:
        return bool(bucket) and self.buckets.get(self._key_in(bucket[-1])) is bucket

    def last_time(self, bucket: ReduceBucket) -> int | None:
        return bucket[-1][0][0] if bucket else None

    def forget(self, bucket: ReduceBucket) -> None:
        key = self._key_in(bucket[-1])
        if self.buckets.get(key) is bucket:
            del self.buckets[key]

    def inherit(self, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        if not isinstance(other, ReduceMachine):
            return False
        # Keys are made of mapped items. Those of earlier versions have key functions of their own.
        self._earlier = other._earlier
        if not is_same:
            self._earlier = [*other._earlier, (moment, other._key_of)]
        self.inherit_left(other)
        for kept in other.those_at(moment):
            if not kept or kept[-1][0] < moment:
                continue
            key = other._key_in(kept[0])
            del kept[bisect_left(kept, (moment,)) :]
            if not kept and other.buckets.get(key) is kept:
                del other.buckets[key]
        if is_same:
            self.inherit_ends(other)
        elif other.expires is not None:
            ended = [
                key
                for key, kept in other.buckets.items()
                if has_expired(kept[-1][0][0], other.expires, moment[0])
            ]
            for key in ended:
                del other.buckets[key]
        self.buckets = other.buckets
        self.inherit_cold(other, moment)
        if self.expires is not None and not is_same:
            for kept in self.buckets.values():
                self.end_later(kept, kept[-1][0][0])
        self.touched = [kept for kept in other.touched if kept]
        self.touched_earlier = [kept for kept in other.touched_earlier if kept]
        return True

    def _key_in(self, version: Version) -> Any:
        """The key of a version, as the payload of its time had it."""
        mapped = version[2]
        if mapped.__class__ is Restored:
            return mapped.key
        for moment, key_of in self._earlier:
            if version[0] < moment:
                return key_of(mapped)
        return self._key_of(mapped)


def _versions_of(key: Any, version: Version) -> ReduceBucket:
    return [version]


_place_of = _first_of_three = itemgetter(0)
_third_of_three = itemgetter(2)


def _unchanged(one: Any, other: Any) -> bool:
    return one is other or (
        one.__class__ is other.__class__ and one.__class__ in _PLAIN and bool(one == other)
    )


def payload_made_by(reduction: Reduction, keyed: bool) -> Callable[[Any, Any], Any]:
    """The function that makes what leaves a reduction of key and accumulator."""
    if not keyed:
        return _triple
    return _pair if reduction.with_key else _second


def _triple(key: Any, accumulator: Any) -> Any:
    return key, True, accumulator


def _pair(key: Any, accumulator: Any) -> Any:
    return key, accumulator


def _second(key: Any, accumulator: Any) -> Any:
    return accumulator


def _map_of(graph: Graph, node: int) -> Map:
    found = graph.nodes[node]
    assert isinstance(found, Map)
    return found


class _Change:
    """What a batch changed in a bucket: from where to where, and what was removed."""

    __slots__ = ("gone", "key", "last", "start", "versions")

    def __init__(self, key: Any, versions: ReduceBucket) -> None:
        self.key = key
        self.versions = versions
        self.start = len(versions)
        self.last: Place = ()
        self.gone: list[Version] = []
