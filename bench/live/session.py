"""The Spark session of the live benchmarks: local, quiet, and fit for Spark's own stateful operators."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

BUILD = Path(__file__).parent.parent.parent / "build"
_STATE_STORES = "spark.sql.streaming.stateStore"


@contextmanager
def spark_session(*, cores: int = 4) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "FATAL")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # transformWithState needs RocksDB. Spark's documentation advises, for low latency, to write
        # its changes instead of its files at the end of each batch.
        .config(
            f"{_STATE_STORES}.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config(f"{_STATE_STORES}.rocksdb.changelogCheckpointing.enabled", "true")
    )
    spark = _with_errors_in_file(builder, BUILD / "bench-live.log")
    try:
        yield spark
    finally:
        spark.stop()


def _with_errors_in_file(builder: SparkSession.Builder, path: Path) -> SparkSession:
    """Start Spark with stderr in a file, because transformWithState's workers are verbose."""
    path.parent.mkdir(exist_ok=True)
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with open(path, "wb") as log:
            os.dup2(log.fileno(), 2)
        return builder.getOrCreate()
    finally:
        os.dup2(ours, 2)
        os.close(ours)
