"""Rows in Parquet: the columns of a part, and what the parts of a chain hold together.

A part is one Parquet file. Its rows are sorted by operation and key hash, and each row group records the
least and the greatest hash in it, so a worker that restores a range of hashes reads little else. Keys and
payloads are pickled; all else has columns that Spark and pyarrow read:

=========  ============  =================================================================
operation  string        the name of the step
key_hash   int64         signed 32 bits: the place among the hash ranges
key        binary        pickle
time       int64         the place, in three columns: all null where the row says that the
front      int64         bucket is no more
child_ids  list<int64>   all that `item` makes fits: times, fronts, counts, and digests of 63 bits
payload    binary        pickle; see `lists`
follows    int64         the cut whose bucket of this key has the lists that the payload continues;
                         null where the payload stands alone
=========  ============  =================================================================

A part is written in *runs* (`cuts.parts.writer`): numbers of row groups, each sorted like that and recorded in
the file's metadata (``emberflow.runs``). A bucket never spans two of them.

**Reading** is a merge of all runs of all parts of a chain, by operation and hash. The reader looks at all
rows of one operation and hash together, so that newer buckets replace older ones. Two keys of one hash
stay apart, because the reader compares keys too, as Python compares them: the key of the newer bucket may
be ``1`` where the older one had ``True``.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from emberflow.checkpoint.cuts.arrays import int64s
from emberflow.checkpoint.cuts.lists import (
    List,
    SavedLists,
    Stored,
    has_lists,
    unpickled,
)
from emberflow.checkpoint.cuts.rows import Row
from emberflow.checkpoint.errors import DamagedCutError, UntrustedFileError
from emberflow.checkpoint.ranges import Ranges
from emberflow.values.item import Place

CHILD_IDS = pa.list_(pa.int64())
SCHEMA = pa.schema(
    [
        pa.field("operation", pa.string(), nullable=False),
        pa.field("key_hash", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("time", pa.int64()),
        pa.field("front", pa.int64()),
        pa.field("child_ids", CHILD_IDS),
        pa.field("payload", pa.binary()),
        pa.field("follows", pa.int64()),
    ]
)
RUNS = b"emberflow.runs"
_BATCH_ROWS = 1024
#: ``(operation, key hash, source, key, time, front, child ids, payload, follows)``
_Stored: TypeAlias = tuple[Any, ...]
_ORDER = itemgetter(0, 1, 2)
_TOGETHER = itemgetter(0, 1)


@dataclass(frozen=True, slots=True)
class Source:
    """A part to read: the cut that it belongs to, its name, and how to open it."""

    cut: int
    name: str
    open: Callable[[], Any]


def merged(
    sources: Sequence[Source],
    inside: Ranges,
    *,
    lists: SavedLists | None = None,
    left_out: Collection[str] = (),
) -> Iterator[Row]:
    """The rows of the buckets in ranges of hashes: of each key the newest bucket of the chain.

    ``sources`` are the parts of the chain, oldest first. The rows of some steps may be ``left_out``.
    """
    newest_first = list(reversed(sources))
    with ExitStack() as files:
        for stored in _together(newest_first, inside, files, left_out):
            row = stored[0]
            if (
                len(stored) == 1
                and row[4] is not None
                and row[8] is None
                and (lists is None or not has_lists(row[7]))
            ):
                # By far the usual case: a bucket of one row that no other part has.
                with damage_of(newest_first[row[2]]):
                    key, payload = pickle.loads(row[3]), pickle.loads(row[7])
                yield Row(row[0], row[1], key, _place_of(row), payload)
            else:
                for _, _, rows in newest_buckets(newest_first, stored, lists):
                    yield from rows


def united(sources: Sequence[Source], inside: Ranges, time: tuple[int, int]) -> Iterator[Row]:
    """The scheduled items in ranges of hashes that are at or above a global time, each once: rows with
    the origin for a key."""
    newest_first = list(reversed(sources))
    with ExitStack() as files:
        for stored in _together(newest_first, inside, files):
            seen: set[Place] = set()
            for row in stored:
                place = _place_of(row)
                if place not in seen and place[:2] >= time:
                    seen.add(place)
                    with damage_of(newest_first[row[2]]):
                        origin = pickle.loads(row[3])
                        (payload,), _ = unpickled([row[7]], ())
                    yield Row(row[0], row[1], origin, place, payload)


def _together(
    newest_first: Sequence[Source],
    inside: Ranges,
    files: ExitStack,
    left_out: Collection[str] = (),
) -> Iterator[list[_Stored]]:
    """All rows that share operation and hash: those of the newest source first."""
    runs = [
        run
        for number, source in enumerate(newest_first)
        for run in _runs_of(number, source, inside, files, left_out)
    ]
    for _, rows in itertools.groupby(heapq.merge(*runs, key=_ORDER), key=_TOGETHER):
        yield list(rows)


class damage_of:  # noqa: N801 (reads as a word of the language)
    """Turns any error inside into damage to this source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if isinstance(error, DamagedCutError):
            raise DamagedCutError(f"{self._source.name}: {error}") from error
        if isinstance(error, Exception) and not isinstance(error, UntrustedFileError):
            raise DamagedCutError(
                f"{self._source.name} of cut {self._source.cut} cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error


def _runs_of(
    number: int, source: Source, inside: Ranges, files: ExitStack, left_out: Collection[str]
) -> list[Iterator[_Stored]]:
    file, runs = opened_runs(source, rows_wanted(inside, left_out), files)
    found = [_run(number, source, file, groups, inside) for groups in runs]
    if left_out:
        found = [(row for row in run if row[0] not in left_out) for run in found]
    return found


def rows_wanted(inside: Ranges, left_out: Collection[str]) -> Callable[[Any], bool]:
    """Tells whether a row group may have rows in ranges of hashes, of steps that are not left out."""
    hash_column = SCHEMA.get_field_index("key_hash")
    operation_column = SCHEMA.get_field_index("operation")

    def may_have(group: Any) -> bool:
        operations = group.column(operation_column).statistics
        if operations.min == operations.max and operations.min in left_out:
            return False
        statistics = group.column(hash_column).statistics
        return inside.overlap(statistics.min, statistics.max)

    return may_have


def opened_runs(
    source: Source, may_have: Callable[[Any], bool], files: ExitStack
) -> tuple[pq.ParquetFile, list[list[int]]]:
    """A part, and for each of its runs the row groups that may have what is wanted, if there are any.

    The part is closed with ``files``, or at once if nothing in it is wanted.
    """
    with damage_of(source):
        handle = files.enter_context(source.open())
        file = files.enter_context(pq.ParquetFile(handle))
        groups = iter(range(file.num_row_groups))
        lengths = filter(None, file.metadata.metadata[RUNS].decode().split(","))
        of_runs = [list(itertools.islice(groups, int(length))) for length in lengths]
        wanted = [
            [group for group in own if may_have(file.metadata.row_group(group))] for own in of_runs
        ]
        runs = [own for own in wanted if own]
        if not runs:
            file.close()
            handle.close()
    return file, runs


def _run(
    number: int, source: Source, file: pq.ParquetFile, groups: list[int], inside: Ranges
) -> Iterator[_Stored]:
    with damage_of(source):
        for group in groups:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                wanted = inside.those(batch.column("key_hash").to_numpy().astype("int32"))
                if wanted is not None:
                    batch = batch.take(int64s(wanted.nonzero()[0]))
                operations, hashes, *others = (column.to_pylist() for column in batch.columns)
                yield from zip(operations, hashes, itertools.repeat(number), *others)


def _place_of(row: _Stored) -> Place:
    return (row[4], row[5], *row[6])


class _Bucket(NamedTuple):
    source: int
    rows: list[_Stored]


class NewestBucket(NamedTuple):
    """A bucket of a step, with its lists whole. Without rows, it is no more."""

    operation: str
    key: Any
    rows: list[Row]


def newest_buckets(
    sources: Sequence[Source],
    stored: list[_Stored],
    lists: SavedLists | None,
    *,
    continues: bool = False,
) -> Iterator[NewestBucket]:
    """The newest bucket of each key, of rows with one operation and hash.

    With ``continues``, it may continue lists of older parts, which ``lists`` has.
    """
    by_data: dict[bytes, tuple[Any, list[_Bucket]]] = {}
    by_key: dict[Any, list[_Bucket]] = {}
    for row in stored:
        number, data = row[2], row[3]
        known = by_data.get(data)
        if known is None:
            with damage_of(sources[number]):
                key = pickle.loads(data)
            known = by_data[data] = (key, by_key.setdefault(key, []))
        buckets = known[1]
        if not buckets or buckets[-1].source != number:
            buckets.append(_Bucket(number, []))
        buckets[-1].rows.append(row)
    for buckets in by_key.values():
        newest = buckets[0]
        operation, key = newest.rows[0][0], by_data[newest.rows[0][3]][0]
        older = lists.stored(operation, key) if continues and lists is not None else None
        rows: list[Row] = []
        found: list[List] = []
        if newest.rows[0][4] is not None:
            payloads, found = _decoded(sources, buckets, older)
            rows = [
                Row(row[0], row[1], key, _place_of(row), payload)
                for row, payload in zip(newest.rows, payloads, strict=True)
            ]
        if lists is not None:
            lists.restored(operation, key, sources[newest.source].cut, found)
        yield NewestBucket(operation, key, rows)


def _decoded(
    sources: Sequence[Source], buckets: list[_Bucket], known: Stored | None = None
) -> tuple[list[Any], list[List]]:
    """The payloads and lists of the first bucket, which may continue lists of those behind it, or those that
    are ``known`` of an older part."""
    needed = [buckets[0]]
    rest = iter(buckets[1:])
    lists: list[List] = []
    while True:
        newer = needed[-1]
        follows = {row[8] for row in newer.rows} - {None}
        if not follows:
            break
        with damage_of(sources[newer.source]):
            base = next((one for one in rest if {sources[one.source].cut} == follows), None)
            if base is None and known is not None and {known[0]} == follows:
                lists = list(known[1])
                break
            if base is None:
                raise DamagedCutError(
                    f"step {newer.rows[0][0]!r}: a bucket continues lists that are stored in cut "
                    f"{', '.join(map(str, follows))}, and no part of this cut has them."
                )
        needed.append(base)
    payloads: list[Any] = []
    for bucket in reversed(needed):
        with damage_of(sources[bucket.source]):
            payloads, lists = unpickled([row[7] for row in bucket.rows], lists)
    return payloads, lists
