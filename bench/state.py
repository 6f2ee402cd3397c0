"""Memory a key: of a running count, a state of transactions, windows and lists, against a dict of the same counts.

    python bench/state.py [--keys 100000 1000000 5000000]

One worker, no network. Every key has 17 characters and comes three times, in another order each time, as
a string of its own, as one that came over the wire has. When all is final and trimmed, the resident memory
has grown by so many bytes a key. A dict of the same keys and their counts is filled in the same way. Each
figure is of a process of its own, so that nothing is left of the one before. Windows and lists are measured with
up to a million keys. What the machine has not enough memory for is left out.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker

KEYS = (100_000, 1_000_000, 5_000_000)
#: Millions of keys, and gigabytes for state.
MILLIONS = {"1": (1,), "5": (1,), "20": (1, 4)}
#: How many keys `transformWithState` has: it does some thousand elements a second.
SPARK_KEYS = 200_000
PARTS = ("memory", *MILLIONS, "cuts", "restore", "spark")
ROUNDS = 3
BATCH = 2_000
#: A run is left out where fewer bytes a key are available than this.
BYTES_MOST = 2_000
#: Odd numbers that share no factor with the numbers of keys: each gives an order of its own.
STEPS = (1, 611_953, 7_368_787)


def dict_of_counts(keys: int) -> tuple[int, float]:
    counts: dict[str, int] = {}
    before = resident()
    begin = time.perf_counter()
    for batch in batches(keys):
        for key in batch:
            counts[key] = counts.get(key, 0) + 1
    seconds = time.perf_counter() - begin
    del batch, key
    assert len(counts) == keys
    return resident() - before, seconds


def running_count() -> ef.Flow:
    flow = ef.Flow("running count")
    flow.front("in").key_by(lambda key: key).count().sink("out")
    return flow


def state_of_transactions() -> ef.Flow:
    flow = ef.Flow("state")
    state = flow.state("counts", default=0)
    with flow.front("in").transaction() as tx:
        tx.key_by(lambda key: key).update(state, lambda count, key: count + 1)
    tx.committed.sink("out")
    return flow


def closed_windows() -> ef.Flow:
    flow = ef.Flow("windows")
    keyed = flow.front("in").key_by(lambda key: key)
    keyed.window(ef.Tumbling(10), emit="close").count().sink("out")
    return flow


def open_sessions() -> ef.Flow:
    flow = ef.Flow("sessions")
    keyed = flow.front("in").key_by(lambda key: key)
    keyed.window(ef.Session(1 << 40), emit="close").count().sink("out")
    return flow


def lists() -> ef.Flow:
    flow = ef.Flow("lists")
    flow.front("in").key_by(lambda key: key).fold(
        initial=ef.PersistentList(), combine=lambda known, key: known.append(len(known))
    ).sink("out")
    return flow


FLOWS = {
    "running count": running_count,
    "state of transactions": state_of_transactions,
    "closed windows": closed_windows,
    "open sessions": open_sessions,
    "lists of three": lists,
}
#: These take long to fill.
LARGE = frozenset(("closed windows", "open sessions", "lists of three"))
LARGE_KEYS_MAX = 1_000_000


def engine(keys: int, flow: ef.Flow) -> tuple[int, float]:
    graph = flow.graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    front = graph.fronts["in"].id
    before = resident()
    at = 0
    begin = time.perf_counter()
    for batch in batches(keys):
        elements = [((at + number, 0), key) for number, key in enumerate(batch)]
        at += len(batch)
        effects = worker.enter(front, elements, {0: (at, 0)})
        while effects.ack:
            effects = worker.progress(acker.receive(effects.ack))
        worker.tidy()
    seconds = time.perf_counter() - begin
    del elements, effects, batch
    worker.trim()
    machines = [machine for machine in worker.machines.stateful.values() if machine.kept]
    assert [len(machine.sizes()) for machine in machines] == [keys]
    return resident() - before, seconds


def batches(keys: int) -> Iterator[list[str]]:
    """Every key so many times, a batch at a time."""
    for step in STEPS[:ROUNDS]:
        for start in range(0, keys, BATCH):
            numbers = range(start, min(start + BATCH, keys))
            yield [f"key-{number * step % keys:013d}" for number in numbers]


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Figure(NamedTuple):
    bytes_a_key: float
    elements_a_second: float


def measured(what: str, keys: int) -> Figure:
    command = [sys.executable, __file__, "--measure", what, "--keys", str(keys)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Figure(float(told[0]), float(told[1]))


def measure(what: str, keys: int) -> None:
    """In a process of its own, which keeps its objects as a worker does."""
    gc.set_threshold(100_000, 20, 100)
    size, seconds = dict_of_counts(keys) if what == "dict" else engine(keys, FLOWS[what]())
    print(size / keys, ROUNDS * keys / seconds)


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def main(parts: Sequence[str] = PARTS, *, quick: bool = False) -> None:
    """All parts, or some: memory a key; more keys than fit, for so many millions of keys; how long cuts take, and
    what waits for them; the time to the first output of a restart; and PySpark's `transformWithState`."""
    import cold

    if "memory" in parts:
        memory(KEYS[:1] if quick else KEYS)
    for millions, gigabytes in MILLIONS.items():
        if millions in parts:
            keys = int(millions) * (10_000 if quick else 1_000_000)
            cold.main((keys,), tuple(each << (20 if quick else 30) for each in gigabytes))
    if "cuts" in parts:
        import cuts

        if quick:
            cuts.main(20_000, pairs=1, intervals_ms=(500,))
        else:
            cuts.main()
    if "restore" in parts:
        import restore

        restore.main((20_000,) if quick else restore.KEYS)
    if "spark" in parts:
        cold.beside_spark(10_000 if quick else SPARK_KEYS)


def memory(keys: tuple[int, ...] = KEYS) -> None:
    if not Path("/proc/self/statm").exists():
        print("Only Linux has /proc, which says what is resident.")
        return
    print(f"{'bytes a key':>24}" + "".join(f"{count:>22,}" for count in keys))
    rows: dict[str, list[Any]] = {}
    for what in ("dict", *FLOWS):
        figures = [
            measured(what, count)
            if available() > BYTES_MOST * count and (what not in LARGE or count <= LARGE_KEYS_MAX)
            else None
            for count in keys
        ]
        rows[what] = figures
        told = (
            f"{'not measured':>22}"
            if figure is None
            else f"{figure.bytes_a_key:>8,.0f}{figure.elements_a_second:>10,.0f}/s  "
            for figure in figures
        )
        print(f"{what:>24}" + "".join(told), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--measure", choices=("dict", *FLOWS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        measure(given.measure, given.keys[0])
    else:
        memory(tuple(given.keys))
