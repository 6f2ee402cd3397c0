"""A query that goes over to its next version at once, in a process of its own, which a test kills.

    python -m tests.faults.upgraded_program FOLDER GENERATION RATE [--last]

Prints 'running' before it asks for the next version. If that had taken over in a process before this one, it
prints 'refused' and ends. The last one stays at its version, and prints 'done' at the end of its input.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.errors import UnfitCutError
from tests.effort import SECONDS

NUMBERS = range(30_000)


def version(generation: int) -> ef.Flow:
    """Each generation has another name for its state."""
    flow = ef.Flow("versions")
    keyed = flow.front("numbers").key_by(lambda n: n % 50)
    totals = keyed.fold(
        initial=0, combine=lambda total, n: total + n + generation, name=name_of(generation)
    )
    totals.map(lambda total: (generation, total)).sink("totals")
    return flow


def name_of(generation: int) -> str:
    return f"totals {generation}"


def carry(generation: int) -> dict[str, str]:
    return {name_of(generation): name_of(generation - 1)}


def main(folder: Path, generation: int, rate: float, *, last: bool) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    builder = (
        version(generation)
        .live(spark)
        .read(numbers=fronts.Iterable(NUMBERS, rate=rate))
        .write(totals=sinks.Files(folder / "totals"))
        .option("workers", 2)
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", 200)
    )
    try:
        query = builder.start()
    except UnfitCutError:
        print("refused", flush=True)  # noqa: T201
        return
    deadline = time.monotonic() + SECONDS
    while not query.awaitTermination(0.02) and not (
        query.lastProgress and len(query.lastProgress["pids"]) == 2
    ):
        assert time.monotonic() < deadline, query.status
    print("running", flush=True)  # noqa: T201
    if not last:
        query.upgrade(version(generation + 1), carry=carry(generation + 1), timeout=SECONDS)
    query.awaitTermination()
    spark.stop()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), last="--last" in sys.argv)
