"""Spark reads the parts of a cut like any Parquet file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.values.hashing import key_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_the_parts_of_a_cut(spark: SparkSession, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    rows: list[Any] = [
        ("count", key_hash(key), key, (key, -7, 2**63 - 1, 0), {"n": key}) for key in range(100)
    ]
    for worker in (0, 1):
        store.write_part(1, worker, [rows[worker::2]], incarnation=1)
    (tmp_path / "parts" / ".half.parquet.12345678").write_bytes(b"half")
    table = spark.read.parquet(str(tmp_path / "parts"))
    assert dict(table.dtypes) == {
        "operation": "string",
        "key_hash": "bigint",
        "key": "binary",
        "time": "bigint",
        "front": "bigint",
        "child_ids": "array<bigint>",
        "payload": "binary",
        "follows": "bigint",
    }
    found = table.where("key_hash >= 0").orderBy("time").collect()
    assert [
        (
            row.operation,
            row.key_hash,
            pickle.loads(row.key),
            (row.time, row.front, *row.child_ids),
            pickle.loads(row.payload),
        )
        for row in found
    ] == [row for row in rows if row[1] >= 0]
