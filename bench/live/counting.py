"""Runs the count of words live to its end, and tells when how much output was stored."""

from __future__ import annotations

import time
from typing import Any

import engine
from pyspark.sql import SparkSession

from emberflow import sinks


def counted(
    spark: SparkSession, front: Any, *, workers: int, count: int
) -> tuple[float, dict[str, Any]]:
    """Elements a second from the first output to the last, and the query's last progress."""
    seen: list[tuple[float, int]] = []

    def store(bundle: Any) -> None:
        seen.append((time.perf_counter(), len(bundle.payloads)))

    query = (
        engine.count_flow()
        .live(spark)
        .read(words=front)
        .write(counts=sinks.Callback(store))
        .option("workers", workers)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert sum(stored for _, stored in seen) == count
    progress = query.lastProgress
    assert progress is not None
    return (count - seen[0][1]) / (seen[-1][0] - seen[0][0]), progress
