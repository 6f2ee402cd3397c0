"""A live query between two streaming queries, in a process of its own that tests kill as a whole.

    python -m tests.faults.structured_program NAME FOLDER

Prints the workers' process ids whenever they change. Ends when its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def word_flow() -> ef.Flow:
    """A running count of the words of lines."""
    flow = ef.Flow("words between streams")
    words = flow.front("lines").flat_map(str.split, name="words")
    words.key_by(lambda word: word).count().sink("counts")
    return flow


def lines_front() -> fronts.Structured:
    return fronts.Structured("value")


def started(spark: SparkSession, name: str, folder: Path) -> LiveQuery:
    """The query on two workers, from its checkpoint if there is one."""
    return (
        word_flow()
        .live(spark)
        .read(lines=lines_front())
        .write(counts=sinks.Structured("word string, n long"))
        .queryName(name)
        .option("workers", 2)
        .option("checkpointLocation", folder / "live")
        .option("checkpointInterval", 500)
        .option("keepFrontLogs", True)  # the test wants to know what went in, and when
        .start()
    )


def main(name: str, folder: Path) -> None:
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
    query = started(spark, name, folder)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    known: list[int] = []
    while query.isActive and not told.is_set():
        progress = query.lastProgress
        if progress is not None and len(progress["pids"]) == 2 and progress["pids"] != known:
            known = progress["pids"]
            print("running", *known, flush=True)  # noqa: T201
        time.sleep(0.05)
    query.stop()
    query.awaitTermination()
    spark.stop()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(sys.argv[1], Path(sys.argv[2]))
