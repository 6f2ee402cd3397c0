"""How long a query with many keys needs until its first output: when it is started again, and after a kill.

    python bench/restore.py [--keys 1000000 5000000 20000000] [--workers 2] [--state counts]

A checkpoint with one cut is written, all keys in it, each met once. ``--state`` says what is kept of them: the
``counts`` of all, ``windows`` that have closed, ``sessions`` that are open and have ticks, or ``lists``. Then a query begins from it, on
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
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from live.session import spark_session

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint import Manifest, Row
from emberflow.checkpoint.cuts.rows import BUCKET, SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.cuts.cut import Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.values.hashing import HashRange, hash_ranges, key_hash
from emberflow.values.persistent import PersistentList

KEYS = (1_000_000, 5_000_000, 20_000_000)
#: Keys of a query that is not counted: it starts Spark's Python.
FIRST = 1_000
RATE = 5_000
SECONDS = 10.0
SECONDS_MOST = 600


Made: TypeAlias = Callable[[int], ef.Flow]


def counting(keys: int) -> ef.Flow:
    flow = ef.Flow("running count")
    flow.front("in").key_by(lambda key: key).count().sink("out")
    return flow


def windows(keys: int) -> ef.Flow:
    flow = ef.Flow("windows")
    flow.front("in").key_by(lambda key: key).window(ef.Tumbling(10), emit="close").count().sink(
        "out"
    )
    return flow


def sessions(keys: int) -> ef.Flow:
    flow = ef.Flow("sessions")
    flow.front("in").key_by(lambda key: key).window(
        ef.Session(keys + 100), emit="close"
    ).count().sink("out")
    return flow


def lists(keys: int) -> ef.Flow:
    flow = ef.Flow("lists")
    grown = (
        flow.front("in")
        .key_by(lambda key: key)
        .fold(initial=ef.PersistentList(), combine=lambda known, key: known.append(len(known)))
    )
    grown.map(len).sink("out")
    return flow


FLOWS: dict[str, Made] = {
    "counts": counting,
    "windows": windows,
    "sessions": sessions,
    "lists": lists,
}


def name_of(number: int) -> str:
    return f"key-{number:013d}"


def write_cut(folder: str, keys: int, made: Made = counting) -> None:
    """A checkpoint of a query that has met every key once."""
    graph = made(keys).graph()
    store = CheckpointStore(folder)
    life = store.begin()
    parts = []
    first, second = kept_of_two(Layout(graph), keys)
    for worker, own in enumerate(hash_ranges(2)):
        for one, other in zip(first, second, strict=True):
            kind = SCHEDULED if isinstance(one, Scheduled) else BUCKET
            parts.append(
                store.write_part(
                    1,
                    worker,
                    chunked(likened(one, other, own, keys)),
                    incarnation=life.incarnation,
                    kind=kind,
                )
            )
    cut = Manifest.of(graph, number=1, incarnation=life.incarnation, time=(keys, 0), parts=parts)
    store.commit(cut)


def kept_of_two(layout: Layout, keys: int) -> list[list[Any]]:
    """What a worker has of each of the first two keys as of the end: rows, and what is scheduled."""
    found: list[list[Any]] = []
    for number in range(2):
        worker, acker = Worker(layout, 0, 1), Acker(workers=1, fronts=[0])
        front, element = layout.graph.fronts["in"].id, ((number, 0), name_of(number))
        effects = worker.enter(front, [element], {0: (keys, 0)})
        while effects.ack:
            effects = worker.progress(acker.receive(effects.ack))
        capture = worker.begin_cut((keys, 0), BEFORE_ALL)
        content: list[Any] = []
        while (some := capture.next(100)) is not None:
            for one in some:
                content += [one] if isinstance(one, Row | Scheduled) else list(one)
        found.append(content)
    return found


def likened(one: Any, other: Any, own: HashRange, keys: int) -> Iterator[Any]:
    """The same for all keys in a range of hashes, made from what there is of the first two."""
    low, high = own.low, own.high
    for number in range(keys):
        key = name_of(number)
        hashed = key_hash(key)
        if low <= hashed <= high:
            made = _like(one, other, number, key)
            yield made._replace(operation=one.operation, key_hash=hashed)


def _like(one: Any, other: Any, number: int, key: str) -> Any:
    """What differs between the first two is the key, or goes on with its number."""
    if isinstance(one, tuple):
        made = [_like(mine, its, number, key) for mine, its in zip(one, other, strict=True)]
        return one._make(made) if hasattr(one, "_make") else tuple(made)
    if one == other and one.__class__ is not PersistentList:
        return one
    if one.__class__ is int:
        return one + number * (other - one)
    return key if one.__class__ is str else PersistentList(one)


def chunked(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, 2_000)):
        yield chunk


def elements(keys: int) -> Iterator[ef.At[str]]:
    random = Random(keys)
    time_ = keys
    while True:
        time_ += 1
        yield ef.At(time_, name_of(random.randrange(keys)))


def measure(
    spark: Any, folder: str, keys: int, workers: int, made: Made = counting, *, is_told: bool = True
) -> None:
    outputs: list[tuple[float, int]] = []

    def store(bundle: Any) -> None:
        outputs.append((time.monotonic(), len(bundle.payloads)))

    begun = time.monotonic()
    query = (
        made(keys)
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


def main(
    keys: tuple[int, ...] = KEYS, workers: int = 2, states: Sequence[str] = ("counts",)
) -> None:
    print(f"{'':>10}{'keys':>12}{'start':>12}{'kill':>12}{'output':>14}{'memory':>13}", flush=True)
    with spark_session() as spark:
        for state, count in [(states[0], FIRST), *product(states, keys)]:
            with tempfile.TemporaryDirectory() as folder:
                write_cut(folder, count, FLOWS[state])
                if count != FIRST:
                    print(f"{state:>10}", end="", flush=True)
                measure(spark, folder, count, workers, FLOWS[state], is_told=count != FIRST)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", nargs="+", choices=FLOWS, default=["counts"])
    given = parser.parse_args()
    main(tuple(given.keys), given.workers, given.state)
