"""A live query with its checkpoint, front log and output on HDFS, as `spark-submit` runs it.

    program.py HDFS_FOLDER INPUT_FOLDER END

It needs nothing but emberflow, so it can be sent to a cluster as it is. Lines get the times of their
arrival, which only the front log knows. When there is a file END, the query stores what it has read and
stops.
"""

from __future__ import annotations

import os
import sys
import time

import emberflow as ef
from emberflow import fronts, sinks

PARTITIONS = 2


def flow() -> ef.Flow:
    """Numbered lines: how often each word has come, and which lines brought it."""
    flow = ef.Flow("words on HDFS")
    lines = flow.front("lines")
    words = lines.flat_map(lambda line: [(word, line["number"]) for word in line["words"]])
    counted = words.key_by(lambda pair: pair[0]).reduce(
        first=lambda pair: [pair[0], 1, pair[1]],
        combine=lambda held, pair: [held[0], held[1] + 1, held[2] + pair[1]],
    )
    counted.key_by(lambda held: held[0]).sink("counts", partitions=PARTITIONS)
    return flow


def main(folder: str, given: str, end: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    query = (
        flow()
        .live(spark)
        .read(lines=fronts.Files(given))
        .write(counts=sinks.Files(f"{folder}/counts"))
        .option("workers", 2)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("checkpointInterval", 1_000)
        .start()
    )
    while query.isActive:
        if os.path.exists(end):
            query.processAllAvailable()
            break
        time.sleep(0.1)
    query.stop()
    query.awaitTermination()  # raises the error, if there was one
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
