"""Where cold keys could be: our sorted runs, RocksDB, LMDB, SQLite and Parquet files, doing what a worker needs.

    pip install --target build/stores lmdb rocksdict
    PYTHONPATH=build/stores python bench/stores.py [--keys 1000000] [--stores "sorted runs" LMDB ...]

A worker puts rows many at a time, takes some hundred in one call (a row that is taken is not there any more), and
puts them back, changed. So all keys are put once, 20,000 at a time; then keys that are drawn uniformly are taken, 500
at a time, and put back, 20,000 at a time. A figure is processor time of the thread that calls, in microseconds a key;
then that of all other threads, which merge, in microseconds for each of all keys; and bytes on disk a key in the end.
Nobody syncs: a store is a cache, and the last cut has what it holds.

Each store runs in a process of its own. Keys have 17 characters and a payload is a small number. All but the sorted
runs keep a row as they would best: the key as bytes, and the global time and the payload in the value. A library that
is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pickle
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from emberflow.engine.cuts.cut import Row
from emberflow.values.hashing import key_hash

KEYS, TAKEN = 1_000_000, 100_000
PUT_AT_ONCE, TAKEN_AT_ONCE = 20_000, 500
_TIMES = struct.Struct("<qq")


class Store(Protocol):
    def put(self, rows: list[Row]) -> None: ...

    def take(self, keys: list[str]) -> list[Row]: ...

    def close(self) -> None:
        """All work of threads is done, and all is on disk."""


def value_of(row: Row) -> bytes:
    return _TIMES.pack(*row.place) + pickle.dumps(row.payload, 5)


def row_of(key: str, value: bytes) -> Row:
    return Row("count", key_hash(key), key, _TIMES.unpack_from(value), pickle.loads(value[16:]))


class Runs:
    def __init__(self, folder: str) -> None:
        from emberflow.runners.live.cold.runs import SortedRuns

        self._store, self._folder = SortedRuns(folder), folder

    def put(self, rows: list[Row]) -> None:
        self._store.put(rows)

    def take(self, keys: list[str]) -> list[Row]:
        return self._store.take(keys)

    def close(self) -> None:
        self._store.settle(600)
        # Its files have no names, so they are written once more, to be counted.
        with open(f"{self._folder}/all", "wb") as file:
            for run in self._store._runs:
                for block, _, _ in run.slices(0, len(run)):
                    for column in (run.hashes, *block.columns):
                        file.write(memoryview(column).cast("B"))


class Lmdb:
    def __init__(self, folder: str) -> None:
        import lmdb

        self._store = lmdb.open(folder, map_size=8 << 30, writemap=True, sync=False, metasync=False)

    def put(self, rows: list[Row]) -> None:
        items = sorted((row.key.encode(), value_of(row)) for row in rows)
        with self._store.begin(write=True) as transaction:
            transaction.cursor().putmulti(items)

    def take(self, keys: list[str]) -> list[Row]:
        with self._store.begin(write=True) as transaction:
            found = [(key, transaction.pop(key.encode())) for key in sorted(keys)]
        return [row_of(key, value) for key, value in found if value is not None]

    def close(self) -> None:
        self._store.sync(True)


class Rocks:
    def __init__(self, folder: str) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        # Without a filter each run would be read for a key that is in another one.
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        self._batch: Callable[[], Any] = lambda: rocksdict.WriteBatch(raw_mode=True)
        self._store = rocksdict.Rdict(folder, options)
        writes = rocksdict.WriteOptions()
        writes.disable_wal = True
        self._store.set_write_options(writes)

    def put(self, rows: list[Row]) -> None:
        batch = self._batch()
        for row in rows:
            batch.put(row.key.encode(), value_of(row))
        self._store.write(batch)

    def take(self, keys: list[str]) -> list[Row]:
        given = [key.encode() for key in keys]
        found, batch = self._store.get(given), self._batch()
        for key in given:
            batch.delete(key)
        self._store.write(batch)
        return [
            row_of(key, value) for key, value in zip(keys, found, strict=True) if value is not None
        ]

    def close(self) -> None:
        self._store.flush()
        self._store.close()


class Sqlite:
    def __init__(self, folder: str) -> None:
        self._store = sqlite3.connect(f"{folder}/rows", isolation_level=None)
        for setting in ("journal_mode = off", "synchronous = off", "cache_size = -262144"):
            self._store.execute(f"pragma {setting}")
        self._store.execute("create table rows (key blob primary key, value blob) without rowid")

    def put(self, rows: list[Row]) -> None:
        items = sorted((row.key.encode(), value_of(row)) for row in rows)
        self._store.execute("begin")
        self._store.executemany("insert into rows values (?, ?)", items)
        self._store.execute("commit")

    def take(self, keys: list[str]) -> list[Row]:
        found, take = [], "delete from rows where key = ? returning value"
        self._store.execute("begin")
        for key in sorted(keys):
            found += [row_of(key, value) for (value,) in self._store.execute(take, [key.encode()])]
        self._store.execute("commit")
        return found

    def close(self) -> None:
        self._store.close()


class Parquet:
    """A file for each put, sorted by hash, in small row groups; hashes in memory, and who was taken. Files are never
    merged, so this is the least that it would take."""

    GROUP_ROWS = 1_024

    def __init__(self, folder: str) -> None:
        self._folder, self._numbers = folder, count()
        self._files: list[tuple[Any, Any, set[int]]] = []

    def put(self, rows: list[Row]) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = sorted(rows, key=lambda row: row.key_hash)
        columns = {
            "key": [row.key.encode() for row in rows],
            "value": [value_of(row) for row in rows],
        }
        path = f"{self._folder}/{next(self._numbers)}"
        table = pa.table(columns, schema=pa.schema(dict.fromkeys(columns, pa.binary())))
        pq.write_table(table, path, row_group_size=self.GROUP_ROWS, use_dictionary=False)
        hashes = np.array([row.key_hash for row in rows], np.int32)
        self._files.insert(0, (hashes, pq.ParquetFile(path), set()))

    def take(self, keys: list[str]) -> list[Row]:
        import numpy as np

        found: list[Row] = []
        left = {key.encode(): key for key in keys}
        for hashes, file, taken in self._files:
            wanted = np.array([key_hash(key) for key in left.values()], np.int32)
            begins = np.searchsorted(hashes, wanted)
            is_here = hashes[np.minimum(begins, len(hashes) - 1)] == wanted
            for group in np.unique(begins[is_here] // self.GROUP_ROWS).tolist():
                table = file.read_row_group(group)
                for number, own in enumerate(table["key"].to_pylist(), group * self.GROUP_ROWS):
                    key = left.get(own)
                    if key is not None and number not in taken:
                        value = table["value"][number - group * self.GROUP_ROWS].as_py()
                        found.append(row_of(left.pop(own), value))
                        taken.add(number)
        return found

    def close(self) -> None:
        """Nothing is left to do."""


STORES: dict[str, tuple[str, Callable[[str], Store]]] = {
    "sorted runs": ("emberflow", Runs),
    "LMDB": ("lmdb", Lmdb),
    "RocksDB": ("rocksdict", Rocks),
    "SQLite": ("sqlite3", Sqlite),
    "Parquet": ("pyarrow", Parquet),
}


class Figure(NamedTuple):
    put: float
    take: float
    put_back: float
    threads: float
    bytes_a_key: float


def measure(what: str, keys: int) -> Figure:
    seconds = dict.fromkeys(("put", "take", "put back"), 0.0)
    folder = tempfile.mkdtemp()
    try:
        store = STORES[what][1](folder)
        others = time.thread_time() - time.process_time()

        def timed(which: str, call: Callable[[], Any]) -> Any:
            begin = time.thread_time()
            result = call()
            seconds[which] += time.thread_time() - begin
            return result

        def put(which: str, rows: list[Row]) -> None:
            timed(which, lambda: store.put(rows))

        for numbers in some(range(keys), PUT_AT_ONCE):
            put("put", [new_row(name(number * 7_368_787 % keys)) for number in numbers])
        back: list[Row] = []
        taken = min(TAKEN, keys // 2)
        for numbers in some(Random(1).sample(range(keys), taken), TAKEN_AT_ONCE):
            given = [name(number) for number in numbers]
            rows = timed("take", lambda given=given: store.take(given))
            assert sorted(row.key for row in rows) == sorted(given)
            assert {row.payload for row in rows} == {1}
            back += [row._replace(place=(2, 0), payload=2) for row in rows]
            if len(back) >= PUT_AT_ONCE:
                put("put back", back)
                back = []
        put("put back", back)
        store.close()
        others += time.process_time() - time.thread_time()
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_blocks * 512 for path in files)
        own = (seconds["put"] / keys, seconds["take"] / taken, seconds["put back"] / taken)
        return Figure(*(each * 1e6 for each in (*own, max(0.0, others) / keys)), size / keys)
    finally:
        shutil.rmtree(folder)


def name(number: int) -> str:
    return f"key-{number:013d}"


def new_row(key: str) -> Row:
    return Row("count", key_hash(key), key, (1, 0), 1)


def some(numbers: Sequence[int], at_once: int) -> Iterator[Sequence[int]]:
    return (numbers[begin : begin + at_once] for begin in range(0, len(numbers), at_once))


def main(stores: list[str], keys: int) -> None:
    heads = f"{'put':>8}{'take':>8}{'put back':>10}{'threads':>9}{'bytes on disk':>15}"
    print(f"{f'{keys:,} keys':>16}{heads}")
    for what in stores:
        if importlib.util.find_spec(STORES[what][0]) is None:
            print(f"{what:>16}  needs {STORES[what][0]}", flush=True)
            continue
        command = [sys.executable, __file__, "--measure", what, "--keys", str(keys)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        own = Figure(*map(float, told.split()))
        times = f"{own.put:>8.1f}{own.take:>8.1f}{own.put_back:>10.1f}{own.threads:>9.1f}"
        print(f"{what:>16}{times}{own.bytes_a_key:>15.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--measure", choices=STORES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is None:
        main(given.stores, given.keys)
    else:
        print(*measure(given.measure, given.keys), flush=True)
        os._exit(0)  # threads of libraries are not waited for
