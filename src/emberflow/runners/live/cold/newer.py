"""The buckets of a part, many at once: for a worker that makes state of a cut, and corrects it with later ones.

What is guaranteed: **whoever takes the buckets of each part in the order of the chain, and lets each replace the one
of its key, has what `tables.merged` gives of the chain.** A cut has the whole bucket of each key that changed, and
a bucket is in one part of a cut, in one run.

So there is no merge, and nearly all rows stay columns until their keys and payloads are unpickled. A row takes the
slow way, by itself, if another one has its hash, if it says that its bucket is no more, or if it may have lists.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from emberflow.checkpoint.cuts.arrays import int64s
from emberflow.checkpoint.cuts.lists import SavedLists, has_lists
from emberflow.checkpoint.cuts.rows import Row
from emberflow.checkpoint.cuts.tables import (
    Source,
    damage_of,
    newest_buckets,
    opened_runs,
    rows_wanted,
)
from emberflow.checkpoint.ranges import Ranges

#: Rows that are read at once.
_BATCH_ROWS = 1_024

_loads = pickle.loads
_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)


class Buckets(NamedTuple):
    """Some buckets of one step: their keys, and their rows, those of each bucket one behind the other. A bucket
    without rows is no more."""

    operation: str
    keys: list[Any]
    rows: list[Row]


def newer_buckets(
    sources: Sequence[Source],
    inside: Ranges,
    lists: SavedLists,
    left_out: Collection[str] = (),
) -> Iterator[Buckets]:
    """The buckets of parts that go on from others, in the order of the chain: each is in place of the one of its
    key before. ``sources`` are these parts, oldest first.

    ``lists`` are those of the parts before them, and then those of these.
    """
    for source in sources:
        with ExitStack() as files:
            file, runs = opened_runs(source, rows_wanted(inside, left_out), files)
            for groups in runs:
                yield from _Run(source, lists).buckets(file, groups, inside, left_out)


class _Run:
    """A run that is being read. Its rows come by step and hash."""

    def __init__(self, source: Source, lists: SavedLists) -> None:
        self._source = source
        self._lists = lists
        #: The rows that share the last step and hash, of which more may come, as `tables` has them.
        self._held: list[tuple[Any, ...]] = []

    def buckets(
        self, file: pq.ParquetFile, groups: list[int], inside: Ranges, left_out: Collection[str]
    ) -> Iterator[Buckets]:
        # No row group ends a batch: Arrow lets none of the next one into it.
        batches = file.iter_batches(_BATCH_ROWS, row_groups=groups, use_threads=False)
        while True:
            with damage_of(self._source):
                batch = next(batches, None)
                found = None if batch is None else self._of_batch(batch, inside, left_out)
            if found is None:
                break
            yield from found
        if self._held:
            yield self._slowly(self._held)

    def _of_batch(
        self, batch: pa.RecordBatch, inside: Ranges, left_out: Collection[str]
    ) -> list[Buckets]:
        wanted = inside.those(batch.column("key_hash").to_numpy().astype("int32"))
        if wanted is not None:
            batch = batch.take(int64s(wanted.nonzero()[0]))
        found: list[Buckets] = []
        for operation, rows in _by_step(batch):
            if operation not in left_out:
                found += self._of_step(operation, rows)
        return found

    def _of_step(self, operation: str, rows: pa.RecordBatch) -> Iterator[Buckets]:
        hashes = rows.column("key_hash").to_numpy()
        begin, held = 0, self._held
        if held and held[0][:2] == (operation, hashes[0]):
            begin = int(hashes.searchsorted(hashes[0], "right"))
            held += _stored(rows.slice(0, begin))
            if begin == len(hashes):
                return
        if held:
            yield self._slowly(held)
        end = int(hashes.searchsorted(hashes[-1], "left"))
        self._held = _stored(rows.slice(end))
        if begin < end:
            yield from self._whole(operation, rows.slice(begin, end - begin), hashes[begin:end])

    def _whole(self, operation: str, rows: pa.RecordBatch, hashes: Any) -> Iterator[Buckets]:
        """The buckets of rows, of which no more will come."""
        plain = self._plain(operation, rows, hashes)
        if plain is None:
            yield _plain_buckets(operation, rows)
            return
        if plain.any():
            yield _plain_buckets(operation, rows.take(int64s(plain.nonzero()[0])))
        yield self._slowly(_stored(rows.take(int64s((~plain).nonzero()[0]))))

    def _plain(self, operation: str, rows: pa.RecordBatch, hashes: Any) -> Any:
        """Which of these rows are a bucket each, and have no lists; None if all are."""
        import numpy as np

        if self._lists.may_have(operation):
            return np.zeros(len(hashes), np.bool_)
        plain = np.ones(len(hashes), np.bool_)
        same = hashes[1:] == hashes[:-1]
        plain[1:] &= ~same
        plain[:-1] &= ~same
        for column, is_there in (("time", True), ("follows", False)):
            values = rows.column(column)
            if values.null_count != (0 if is_there else len(values)):
                there = values.is_valid().to_numpy(zero_copy_only=False)
                plain &= there if is_there else ~there
        payloads = rows.column("payload")
        if has_lists(payloads.buffers()[2].to_pybytes()):
            plain &= [data is not None and not has_lists(data) for data in payloads.to_pylist()]
        return None if plain.all() else plain

    def _slowly(self, stored: list[tuple[Any, ...]]) -> Buckets:
        keys: list[Any] = []
        rows: list[Row] = []
        for _, same in itertools.groupby(stored, key=lambda row: row[1]):
            for bucket in newest_buckets([self._source], list(same), self._lists, continues=True):
                keys.append(bucket.key)
                rows += bucket.rows
        return Buckets(stored[0][0], keys, rows)


def _by_step(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each step, which are together."""
    operations = batch.column("operation")
    begin, count = 0, len(operations)
    while begin < count:
        first = operations[begin].as_py()
        end = count
        if operations[count - 1].as_py() != first:
            names = operations.slice(begin).to_pylist()
            end = begin + next(at for at, name in enumerate(names) if name != first)
        yield first, batch.slice(begin, end - begin)
        begin = end


def _plain_buckets(operation: str, rows: pa.RecordBatch) -> Buckets:
    _, hashes, keys, times, fronts, child_ids, payloads, _ = rows.columns
    made = list(map(_loads, keys.to_pylist()))
    places: Any = zip(times.to_pylist(), fronts.to_pylist(), strict=True)
    if len(child_ids.flatten()):
        places = [(*place, *ids) for place, ids in zip(places, child_ids.to_pylist(), strict=True)]
    found = zip(
        itertools.repeat(operation),
        hashes.to_pylist(),
        made,
        places,
        map(_loads, payloads.to_pylist()),
    )
    return Buckets(operation, made, list(map(_row, found)))


def _stored(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows as `tables` has them, of one source."""
    operations, hashes, *others = (column.to_pylist() for column in rows.columns)
    return list(zip(operations, hashes, itertools.repeat(0), *others))
