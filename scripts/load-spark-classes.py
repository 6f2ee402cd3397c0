"""Starts Spark and runs one small job, so that the JVM loads the classes that every session needs.

`scripts/brief-jvms` calls it, and has the JVM archive them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def as_they_are(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
words = spark.createDataFrame([(0, "a"), (1, "b")], "time long, word string")
passed = words.repartition(2, "word").sortWithinPartitions("time")
passed.mapInArrow(as_they_are, words.schema).collect()
jvm = spark.sparkContext._gateway.proc
spark.stop()
# The JVM writes the archive when it ends, and it ends with its standard input.
jvm.stdin.close()
jvm.wait()
