"""Live: transactions that read four rows, decide, and update all four; 40 rows, so most of them conflict.

It is the handler of a ledger: an amount moves between two accounts and between two entries of a book,
if both sources have enough. Its reads follow each other, so a transaction takes several hops between
two workers, and depends on the transactions before it. One worker has none of these hops.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks

ROWS = 20
COUNTS = (250, 1_000, 4_000, 8_000)
ASKED = 3.0


def decided(read: Any) -> list[tuple[str, int, int]]:
    ((((source, target, entry, other, amount), account), received), booked), other_booked = read
    if account < amount or booked < amount:
        return []
    return [
        ("account", source, account - amount),
        ("account", target, received + amount),
        ("book", entry, booked - amount),
        ("book", other, other_booked + amount),
    ]


def ledger() -> ef.Flow:
    flow = ef.Flow("ledger")
    accounts, book = flow.state("accounts", default=100), flow.state("book", default=100)
    with flow.front("transfers").transaction() as tx:
        one = tx.key_by(lambda transfer: transfer[0]).read(accounts)
        both = one.key_by(lambda read: read[0][1]).read(accounts)
        entry = both.key_by(lambda read: read[0][0][2]).read(book)
        read = entry.key_by(lambda read: read[0][0][0][3]).read(book)
        updates = read.flat_map(decided)
        for name, state in (("account", accounts), ("book", book)):
            own = updates.filter(lambda update, name=name: update[0] == name)
            own.key_by(lambda update: update[1]).update(state, lambda old, update: update[2])
    tx.committed.sink("done")
    return flow


def transfers(count: int) -> list[tuple[int, ...]]:
    dice = random.Random(3)
    return [
        (*dice.sample(range(ROWS), 2), *dice.sample(range(ROWS), 2), dice.randrange(1, 60))
        for _ in range(count)
    ]


def seconds(spark: SparkSession, count: int, workers: int) -> float:
    """From the first element that is read, in a worker, to the last output, in the driver.

    Both are processes of this machine, and its monotonic clock is the same for all.
    """
    stored: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / "begun"

        def given() -> Iterator[tuple[int, ...]]:
            begun.write_text(repr(time.monotonic()))
            yield from transfers(count)

        query = (
            ledger()
            .live(spark)
            .read(transfers=fronts.Iterable(given))
            .write(done=sinks.Callback(lambda bundle: stored.append(time.monotonic())))
            .option("workers", workers)
            .start()
        )
        try:
            assert query.awaitTermination(600)
        finally:
            query.stop()
        return stored[-1] - float(begun.read_text())


def main(spark: SparkSession, *, quick: bool) -> None:
    counts = (100, 200) if quick else COUNTS
    print(
        f"{'live, a ledger of 40 rows':28}{'1 worker, s':>14}{'2 workers, s':>14}{'times':>8}{'asked':>8}"
        f"{'ms each':>10}"
    )
    seconds(spark, 100, 2)  # starts the processes
    for count in counts:
        one, two = (
            min(seconds(spark, count, workers) for _ in range(1 if quick else 2))
            for workers in (1, 2)
        )
        asked = f"{ASKED:.0f}" if count == 4_000 else ""
        print(
            f"  {f'{count:,} transfers':26}{one:>14.2f}{two:>14.2f}{two / one:>8.1f}{asked:>8}"
            f"{1_000 * two / count:>10.2f}",
            flush=True,
        )
