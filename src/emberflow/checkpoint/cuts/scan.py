"""Read one step's rows of a cut, a page of columns at a time, and little else of the files.

`cuts.tables.merged` reads all rows of a range, for a restore. A query needs one step, often a few
keys, and only the payloads of those. So a scan

- skips row groups of other steps and other hashes by their statistics;
- unpickles a key before its payload, and the payload only if the key passes;
- moves rows from columns to columns, without a tuple or a heap entry for each;
- verifies the blocks that it reads (`cuts.part_file`): damage elsewhere does not matter to it.

**The merge.** Every run is sorted by hash. The scan reads the next row group of each run, and takes
from all runs the rows up to the least of their ends. So all rows of a hash come together, with one
exception: the last hash of a row group may continue in the next one. These rows wait until that one is
read, or the run ends. The scan holds one row group per run in memory.

Within such a slice, if a hash belongs to one key, the rows of the newest part are the valid ones; the
scan decides that for all rows at once. It handles the others hash by hash, as `cuts.tables` does:
buckets that continue the lists of an older one, two keys of one hash, and one key that was pickled in
two ways.
"""

from __future__ import annotations

import itertools
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from emberflow.checkpoint.cuts.arrays import ints
from emberflow.checkpoint.cuts.tables import SCHEMA, Source, damage_of, newest_buckets, opened_runs
from emberflow.values.hashing import HASH_MAX, HASH_MIN

_OPERATION, _HASH = SCHEMA.get_field_index("operation"), SCHEMA.get_field_index("key_hash")
_CHILD_IDS = "child_ids"
#: The end of a run that is over, which no longer limits the others.
_NEVER = HASH_MAX + 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows to read: of one step, in a range of hashes, and only of ``hashes`` if not None."""

    operation: str
    low: int = HASH_MIN
    high: int = HASH_MAX
    #: Sorted, without duplicates.
    hashes: tuple[int, ...] | None = None
    #: Whether to read the child ids too: the rest of a place behind its global time.
    child_ids: bool = False

    def may_be_in(self, low: int, high: int) -> bool:
        """Whether any can be among rows with hashes from ``low`` to ``high``."""
        low, high = max(low, self.low), min(high, self.high)
        if self.hashes is None:
            return low <= high
        position = bisect_left(self.hashes, low)
        return position < len(self.hashes) and self.hashes[position] <= high


class ColumnPage(NamedTuple):
    """Columns of the same length. Rows of one key are adjacent, in the order of their places.

    ``child_ids`` is empty unless `Wanted.child_ids` is set.
    """

    keys: list[Any]
    times: list[int]
    fronts: list[int]
    child_ids: list[Sequence[int]]
    payloads: list[Any]

    def since(self, time: int | None) -> ColumnPage:
        """The rows of this time and of later ones; all if it is None."""
        if time is None or min(self.times, default=time) >= time:
            return self
        alive = [at >= time for at in self.times]
        columns: tuple[list[Any], ...] = self
        return ColumnPage(*(list(compress(column, alive)) for column in columns))

    @classmethod
    def empty(cls) -> ColumnPage:
        return cls([], [], [], [], [])

    @classmethod
    def of_first(cls, pages: Iterable[ColumnPage], count: int) -> ColumnPage:
        """The first ``count`` rows of these pages, or all if there are fewer."""
        found = cls.empty()
        columns: tuple[list[Any], ...] = found
        for page in pages:
            added: tuple[list[Any], ...] = page
            for own, more in zip(columns, added, strict=True):
                own.extend(more[: count - len(own)])
            if len(found.keys) == count:
                break
        return found


@dataclass(slots=True)
class Counted:
    """Counts what a scan has read: for tests, and to show what a filter saves."""

    groups: int = 0
    groups_skipped: int = 0
    rows: int = 0
    payloads: int = 0
    bytes: int = 0


KeyTest: TypeAlias = Callable[[Any], bool]


def scan(
    sources: Sequence[Source],
    wanted: Wanted,
    *,
    test: KeyTest | None = None,
    counted: Counted | None = None,
) -> Iterator[ColumnPage]:
    """The wanted rows, of keys that pass the test, from the parts of a chain.

    ``sources`` are the parts, oldest first.
    """
    newest_first = list(reversed(sources))
    counted = counted if counted is not None else Counted()
    with ExitStack() as files:
        runs = [
            run
            for number, source in enumerate(newest_first)
            for run in _runs_of(number, source, wanted, counted, files)
        ]
        while runs:
            slices = _next_slices(runs)
            yield from _pages(newest_first, slices, test, counted)
            runs = [run for run in runs if not run.is_over]


def _runs_of(
    number: int, source: Source, wanted: Wanted, counted: Counted, files: ExitStack
) -> list[_Run]:
    def may_have(group: Any) -> bool:
        operations = group.column(_OPERATION).statistics
        hashes = group.column(_HASH).statistics
        # If a group has several steps, its hashes are those of all of them.
        may = operations.min <= wanted.operation <= operations.max
        may = may and wanted.may_be_in(hashes.min, hashes.max)
        counted.groups_skipped += not may
        return may

    file, runs = opened_runs(source, may_have, files)
    return [_Run(number, source, file, groups, wanted, counted) for groups in runs]


class _Slice(NamedTuple):
    source: int
    rows: pa.Table
    hashes: list[int]


class _Run:
    """A run that is being read: its wanted rows, in order, a row group at a time."""

    def __init__(
        self,
        number: int,
        source: Source,
        file: pq.ParquetFile,
        groups: list[int],
        wanted: Wanted,
        counted: Counted,
    ) -> None:
        self._number, self._source, self._file = number, source, file
        self._groups = groups
        self._wanted, self._counted = wanted, counted
        self._columns = [name for name in SCHEMA.names if wanted.child_ids or name != _CHILD_IDS]
        self._value_set = None if wanted.hashes is None else ints(list(wanted.hashes))
        self._rows: pa.Table = SCHEMA.empty_table()
        self._hashes: list[int] = []

    @property
    def is_over(self) -> bool:
        return not self._groups and not self._hashes

    def end(self) -> int:
        """All rows with a smaller hash have been read. Reads row groups until it has such rows."""
        hashes = self._hashes
        while self._groups and (not hashes or hashes[0] == hashes[-1]):
            self._read_group(self._groups.pop(0))
            hashes = self._hashes
        return hashes[-1] if self._groups else _NEVER

    def below(self, end: int) -> _Slice | None:
        """Take the rows with a smaller hash; None if there are none."""
        count = bisect_left(self._hashes, end)
        if not count:
            return None
        taken = _Slice(self._number, self._rows.slice(0, count), self._hashes[:count])
        self._rows, self._hashes = self._rows.slice(count), self._hashes[count:]
        return taken

    def _read_group(self, group: int) -> None:
        wanted, counted = self._wanted, self._counted
        with damage_of(self._source):
            described = self._file.metadata.row_group(group)
            rows = self._file.read_row_group(group, columns=self._columns, use_threads=False)
        counted.groups += 1
        counted.rows += rows.num_rows
        counted.bytes += sum(
            described.column(number).total_compressed_size
            for number, name in enumerate(SCHEMA.names)
            if name in self._columns
        )
        hashes = rows.column("key_hash")
        fits = pc.equal(rows.column("operation"), wanted.operation)
        if self._value_set is not None:
            fits = pc.and_(fits, pc.is_in(hashes, value_set=self._value_set))
        if wanted.low > HASH_MIN or wanted.high < HASH_MAX:
            inside = pc.and_(
                pc.greater_equal(hashes, wanted.low), pc.less_equal(hashes, wanted.high)
            )
            fits = pc.and_(fits, inside)
        rows = rows.filter(fits)
        if self._hashes:
            rows = pa.concat_tables([self._rows, rows])
        self._rows, self._hashes = rows, rows.column("key_hash").to_pylist()


def _next_slices(runs: list[_Run]) -> list[_Slice]:
    end = min(run.end() for run in runs)
    return [taken for run in runs if (taken := run.below(end)) is not None]


def _pages(
    sources: Sequence[Source], slices: list[_Slice], test: KeyTest | None, counted: Counted
) -> Iterator[ColumnPage]:
    by_source: dict[int, set[int]] = {}
    for each in slices:
        by_source.setdefault(each.source, set()).update(each.hashes)
    entangled = _entangled(slices, by_source)
    newer: set[int] = set()
    # Slices are in the order of their sources, the newest first.
    for number, own in itertools.groupby(slices, key=itemgetter(0)):
        passed_over = entangled | (newer & by_source[number])
        newer |= by_source[number]
        for each in own:
            rows = each.rows
            counts = pc.is_valid(rows.column("time"))
            if passed_over:
                value_set = ints(list(passed_over))
                others = pc.is_in(rows.column("key_hash"), value_set=value_set)
                counts = pc.and_not(counts, others)
            if not pc.all(counts).as_py():
                rows = rows.filter(counts)
            if rows.num_rows:
                with damage_of(sources[number]):
                    page = _decoded(rows, test, counted)
                if page.keys:
                    yield page
    if entangled:
        page = _disentangled(sources, slices, entangled, test, counted)
        if page.keys:
            yield page


def _entangled(slices: list[_Slice], by_source: dict[int, set[int]]) -> set[int]:
    """The hashes for which it is not enough to take the rows of the newest part that has any.

    They have several keys, which may be equal though their bytes differ; or rows that continue lists
    of an older part.
    """
    entangled: set[int] = set()
    for each in slices:
        follows = each.rows.column("follows")
        if follows.null_count < len(follows):
            going_on = each.rows.column("key_hash").filter(pc.is_valid(follows))
            entangled.update(going_on.to_pylist())
    shared: set[int] = set()
    met: set[int] = set()
    for own in by_source.values():
        shared |= met & own
        met |= own
    if shared:
        value_set = ints(list(shared))
        rows = pa.concat_tables(each.rows.select(["key_hash", "key"]) for each in slices)
        rows = rows.filter(pc.is_in(rows.column("key_hash"), value_set=value_set))
        keys = rows.group_by(["key_hash", "key"]).aggregate([])
        of_hash = keys.group_by("key_hash").aggregate([([], "count_all")])
        several = of_hash.filter(pc.greater(of_hash.column("count_all"), 1))
        entangled.update(several.column("key_hash").to_pylist())
    return entangled


def _decoded(rows: pa.Table, test: KeyTest | None, counted: Counted) -> ColumnPage:
    keys = _unpickled(rows.column("key"))
    if test is not None:
        passed = list(map(test, keys))
        if not all(passed):
            keys = list(itertools.compress(keys, passed))
            rows = rows.filter(pa.array(passed))
    counted.payloads += len(keys)
    return ColumnPage(
        keys,
        rows.column("time").to_pylist(),
        rows.column("front").to_pylist(),
        _child_ids(rows),
        _unpickled(rows.column("payload")),
    )


def _child_ids(rows: pa.Table) -> list[Sequence[int]]:
    if _CHILD_IDS in rows.column_names:
        found: list[Sequence[int]] = rows.column(_CHILD_IDS).to_pylist()
        return found
    return [()] * rows.num_rows


def _unpickled(column: Any) -> list[Any]:
    return list(map(pickle.loads, column.to_pylist()))


def _disentangled(
    sources: Sequence[Source],
    slices: list[_Slice],
    hashes: set[int],
    test: KeyTest | None,
    counted: Counted,
) -> ColumnPage:
    """The buckets of these hashes: the newest of each key, with complete lists."""
    by_hash: dict[int, list[tuple[Any, ...]]] = {value: [] for value in sorted(hashes)}
    value_set = ints(list(by_hash))
    for each in slices:
        rows = each.rows.filter(pc.is_in(each.rows.column("key_hash"), value_set=value_set))
        # The order of `tables`: (operation, hash, source, key, time, front, child ids, payload,
        # follows)
        for row in zip(
            rows.column("operation").to_pylist(),
            rows.column("key_hash").to_pylist(),
            itertools.repeat(each.source),
            rows.column("key").to_pylist(),
            rows.column("time").to_pylist(),
            rows.column("front").to_pylist(),
            _child_ids(rows),
            rows.column("payload").to_pylist(),
            rows.column("follows").to_pylist(),
        ):
            by_hash[row[1]].append(row)
    page = ColumnPage.empty()
    for stored in by_hash.values():
        buckets = newest_buckets(sources, stored, None)
        for _, _, key, place, payload in chain.from_iterable(one.rows for one in buckets):
            counted.payloads += 1
            if test is None or test(key):
                page.keys.append(key)
                page.times.append(place[0])
                page.fronts.append(place[1])
                page.child_ids.append(place[2:])
                page.payloads.append(payload)
    return page


def split(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Split a range of hashes into ``count`` ranges of about equal size.

    >>> split(0, 9, 3)
    [(0, 2), (3, 5), (6, 9)]
    """
    size = high - low + 1
    count = max(1, min(count, size))
    bounds = [low + size * number // count for number in range(count + 1)]
    return [(first, beyond - 1) for first, beyond in itertools.pairwise(bounds)]


def shared_out(hashes: Sequence[int], low: int, high: int) -> tuple[int, ...]:
    """The hashes that are in a range. ``hashes`` are sorted.

    >>> shared_out((-5, 0, 7, 9), 0, 8)
    (0, 7)
    """
    return tuple(hashes[bisect_left(hashes, low) : bisect_right(hashes, high)])
