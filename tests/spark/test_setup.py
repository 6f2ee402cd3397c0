"""What `make test` installs is enough for Spark. Nothing is skipped: a missing Java is a failure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def prefix_of_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"prefix": [sys.prefix] * batch.num_rows})


def test_map_in_arrow_runs_in_the_virtual_environment(spark: SparkSession) -> None:
    rows = spark.range(4).mapInArrow(prefix_of_worker, "prefix string").collect()
    assert [row.prefix for row in rows] == [sys.prefix] * 4
