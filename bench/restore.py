"""How long a query with many keys needs until its first output: when it is started again, and after a kill.

    python bench/restore.py [--keys 1000000 5000000 20000000] [--workers 2]

A checkpoint with one cut of a running count is written, all keys in it. Then a query begins from it, on
elements whose keys are drawn uniformly from all: the worst case, since a key out of memory is in any of the
row groups of the cut. When it has given output for some seconds, one of its workers is killed. The columns
have the seconds from the call of ``start()`` and from the kill to the first output of the new life; the
elements a second that it gives over the ten seconds behind the start, the first output included; and the
most memory that a worker had by then.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from live.session import spark_session

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint import Manifest, Row
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.layout import Layout
from emberflow.engine.worker.worker import Worker
from emberflow.values.hashing import hash_ranges, key_hash

KEYS = (1_000_000, 5_000_000, 20_000_000)
#: Keys of a query that is not counted: it starts Spark's Python.
FIRST = 1_000
RATE = 5_000
SECONDS = 10.0
SECONDS_MOST = 600


def counting() -> ef.Flow:
    flow = ef.Flow("running count")
    flow.front("in").key_by(lambda key: key).count().sink("out")
    return flow


def name_of(number: int) -> str:
    return f"key-{number:013d}"


def write_cut(folder: str, keys: int) -> None:
    """A checkpoint of a query that has counted every key once."""
    graph = counting().graph()
    (machine,) = Worker(Layout(graph), 0, 1).machines.stateful.values()
    store = CheckpointStore(folder)
    life = store.begin()
    parts = []
    for worker, own in enumerate(hash_ranges(2)):
        chunks = chunked(rows_in(own, keys, machine.operation))
        parts.append(store.write_part(1, worker, chunks, incarnation=life.incarnation))
    cut = Manifest.of(graph, number=1, incarnation=life.incarnation, time=(keys, 0), parts=parts)
    store.commit(cut)


def rows_in(own: Any, keys: int, operation: str) -> Iterator[Row]:
    low, high = own.low, own.high
    for number in range(keys):
        key = name_of(number)
        hashed = key_hash(key)
        if low <= hashed <= high:
            yield Row(operation, hashed, key, (number, 0), 1)


def chunked(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(islice(rows, 2_000)):
        yield chunk


def elements(keys: int) -> Iterator[ef.At[str]]:
    random = Random(keys)
    time_ = keys
    while True:
        time_ += 1
        yield ef.At(time_, name_of(random.randrange(keys)))


def measure(spark: Any, folder: str, keys: int, workers: int, *, is_told: bool = True) -> None:
    outputs: list[tuple[float, int]] = []

    def store(bundle: Any) -> None:
        outputs.append((time.monotonic(), len(bundle.payloads)))

    begun = time.monotonic()
    query = (
        counting()
        .live(spark)
        .read(**{"in": fronts.Iterable(lambda: elements(keys), rate=RATE)})
        .write(out=sinks.Callback(store))
        .option("workers", workers)
        .option("checkpointLocation", folder)
        .option("checkpointInterval", 1_000)
        .start()
    )
    memory = Peak(query)
    try:
        first = until_output(query, outputs, begun)
        time.sleep(SECONDS)
        given = sum(count for at, count in outputs if at <= begun + SECONDS) / SECONDS
        os.kill(query.lastProgress["pids"][-1], signal.SIGKILL)
        killed = time.monotonic()
        deadline = killed + SECONDS_MOST
        while not query.recoveries and time.monotonic() < deadline:
            time.sleep(0.005)
        lost = time.monotonic()
        again = until_output(query, outputs, lost) + lost - killed
    finally:
        query.stop()
        memory.end()
    if not is_told:
        return
    print(
        f"{keys:>12,}{first:>10.1f} s{again:>10.1f} s{given:>12,.0f}/s{memory.most >> 20:>10,} MB",
        flush=True,
    )


def until_output(query: Any, outputs: list[tuple[float, int]], begun: float) -> float:
    deadline = time.monotonic() + SECONDS_MOST
    while time.monotonic() < deadline:
        assert query.isActive, query.exception()
        found = next((at for at, _ in list(outputs) if at > begun), None)
        if found is not None:
            return found - begun
        time.sleep(0.005)
    raise TimeoutError("no output")


class Peak:
    """The most memory that any worker of a query has, without the pages of files."""

    def __init__(self, query: Any) -> None:
        self.most = 0
        self._query = query
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for pid in (self._query.lastProgress or {}).get("pids", ()):
                try:
                    _, pages, of_files, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                except (OSError, ValueError):
                    continue
                self.most = max(self.most, (int(pages) - int(of_files)) * os.sysconf("SC_PAGESIZE"))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def main(keys: tuple[int, ...] = KEYS, workers: int = 2) -> None:
    print(f"{'keys':>12}{'start':>12}{'kill':>12}{'output':>14}{'memory':>13}", flush=True)
    with spark_session() as spark:
        for count in (FIRST, *keys):
            with tempfile.TemporaryDirectory() as folder:
                write_cut(folder, count)
                measure(spark, folder, count, workers, is_told=count != FIRST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    main(tuple(given.keys), given.workers)
