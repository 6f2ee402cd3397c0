"""A query in a process of its own, which tests kill as a whole and restart with the same command.

    python -m tests.faults.programs MASTER FOLDER-OR-URL COUNT RATE

Prints the workers' process ids whenever they change, and 'done' at the end.
"""

from __future__ import annotations

import os
import sys
import time

from emberflow import fronts, sinks
from tests.faults.flows import documents, index_flow


def main(master: str, folder: str, count: int, rate: float) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.log.level", "OFF")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(documents(count), rate=rate))
        .write(
            counts=sinks.Files(f"{folder}/counts"),
            pairs=sinks.Files(f"{folder}/pairs"),
            windows=sinks.Files(f"{folder}/windows"),
        )
        .option("workers", 2)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("checkpointInterval", 200)
        .start()
    )
    known: list[int] = []
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["elements"] and progress["pids"] != known:
            known = progress["pids"]
            print("running", *known, flush=True)  # noqa: T201
        time.sleep(0.05)
    query.awaitTermination()
    spark.stop()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
