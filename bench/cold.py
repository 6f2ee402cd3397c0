"""A running count with more keys than the memory for state holds, against all in memory.

    python bench/cold.py [--keys 1000000 5000000 20000000] [--bytes 1073741824 ...]

One worker in one process, no network, no cuts. Every key comes once, in some order, and then a million
elements more, whose keys are drawn uniformly or by Zipf's law. A column has elements for each second of
processor time, its merges included, so that what else runs on the machine counts little; and what the
process has in memory in the end, without the pages of files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from typing import NamedTuple

from state import available, running_count

KEYS = (1_000_000, 5_000_000, 20_000_000)
MEASURED = 1_000_000
BATCH = 2_000
#: Keys come in this order: a number that shares no factor with the numbers of keys.
STEP = 7_368_787
#: What a run takes in memory a key, so that one that does not fit is left out.
BYTES_MOST = 250
SECONDS_MOST = 1_800


class Figure(NamedTuple):
    filling: float
    going_on: float
    gigabytes: float
    cold: int


def numbers(keys: int, law: str) -> Iterator[int]:
    random = Random(keys)
    while True:
        yield int(keys ** random.random()) if law == "zipf" else random.randrange(keys)


def measure(keys: int, law: str, memory: int) -> Figure:
    import numpy  # noqa: F401 - as every worker has
    import pyarrow  # noqa: F401

    from emberflow.engine.layout import Layout
    from emberflow.engine.progress.acker import Acker
    from emberflow.engine.worker.worker import Worker
    from emberflow.runners.live.cold.bound import StateBound, resident

    graph = running_count().graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    front = graph.fronts["in"].id
    before = resident()
    bound = StateBound(worker, memory, tempfile.gettempdir()) if memory else None
    at = 0

    def run(given: Iterable[int], count: int) -> float:
        nonlocal at
        given, making, begin = iter(given), 0.0, time.process_time()
        for _ in range(0, count, BATCH):
            making -= time.thread_time()
            batch = [f"key-{number * STEP % keys:013d}" for number in islice(given, BATCH)]
            elements = [((at + number, 0), key) for number, key in enumerate(batch)]
            at += len(batch)
            making += time.thread_time()
            effects = worker.enter(front, elements, {0: (at, 0)})
            while effects.ack:
                effects = worker.progress(acker.receive(effects.ack))
            worker.tidy()
            if bound is not None:
                bound.go_on(time.monotonic())
        return count / (time.process_time() - begin - making)

    filling = run(range(keys), keys)
    run(numbers(keys, law), MEASURED // 2)
    going_on = run(numbers(keys, law), MEASURED)
    assert worker.keys == keys
    worker.close_cold()
    return Figure(filling, going_on, (resident() - before) / (1 << 30), worker.cold_keys)


def measured(keys: int, law: str, memory: int) -> Figure | str:
    needed = memory or BYTES_MOST * keys
    if available() < 1.2 * needed:
        return "not enough memory"
    command = [sys.executable, __file__, "--measure", law, "--keys", str(keys)]
    try:
        told = subprocess.run(
            [*command, "--bytes", str(memory)],
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS_MOST,
        ).stdout.split()
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS_MOST} s"
    return Figure(float(told[0]), float(told[1]), float(told[2]), int(told[3]))


def main(keys: tuple[int, ...] = KEYS, memories: tuple[int, ...] = (1 << 30,)) -> None:
    print(
        f"{'keys':>12}{'law':>9}{'memory':>11}{'filling':>12}{'going on':>12}{'GB':>8}{'cold':>14}"
    )
    for count in keys:
        for law in ("uniform", "zipf"):
            for bytes_ in (0, *memories):
                figure = measured(count, law, bytes_)
                told = f"{count:>12,}{law:>9}{f'{bytes_ >> 20:,} MB' if bytes_ else 'all':>11}"
                if isinstance(figure, str):
                    print(f"{told}  {figure}", flush=True)
                    continue
                print(
                    f"{told}{figure.filling:>10,.0f}/s{figure.going_on:>10,.0f}/s"
                    f"{figure.gigabytes:>8.2f}{figure.cold:>14,}",
                    flush=True,
                )


def beside_spark(keys: int) -> None:
    """The same count in `transformWithState` of PySpark, with its state in RocksDB: uniform keys, of which
    the first batch, which does not count, has half. Beside it one worker without Spark and without a network."""
    from live.session import spark_session
    from live.streaming_rates import COUNTED, transform_with_state_rate

    batch = keys // 2
    drawn = numbers(keys, "uniform")
    words = [f"key-{number:013d}" for number in islice(drawn, (COUNTED + 1) * batch)]
    with spark_session() as spark:
        rate = transform_with_state_rate(spark, words, batch)
    own = measured(keys, "uniform", 1 << 30)
    assert isinstance(own, Figure), own
    print(f"{keys:,} keys, uniform, elements a second")
    print(f"{f'transformWithState, batches of {batch:,}':>44}{rate:>12,.0f}/s")
    print(f"{'one worker, alone':>44}{own.going_on:>12,.0f}/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=(1 << 30,), help="of memory for state"
    )
    parser.add_argument("--measure", choices=("uniform", "zipf"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(*measure(given.keys[0], given.measure, given.bytes[0]))
    else:
        main(tuple(given.keys), tuple(given.bytes))
