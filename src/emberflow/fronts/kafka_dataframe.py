"""A topic as a DataFrame, through Spark's Kafka connector: the elements that `fronts.Kafka` gives.

The columns are ``partition``, ``offset``, ``time`` and ``payload`` (pickled). The time of a record is
the greater of its own time and the time of the record before it plus one. Over a whole partition that
is *i* plus the greatest *timestamp - i* so far, where *i* is the number of a record in its partition. A
window function computes it, and Spark sorts as much as the disk holds.

Times from payloads are computed the same way. A malformed record has no time there and gets the least
free one: it adds nothing to the greatest so far.

With ``idle_ms`` a live front may have raised the time of a record that came later than it had promised.
Only the front's log has that. Where it matters, read with ``idle_ms=None``.

It needs ``spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:`` and Spark's version.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.fronts.kafka import Kafka

#: Below any time minus any number of a record, and far from the least int of 64 bits.
_NO_TIME = -(2**62)
_DECODED = "partition int, offset long, own long, payload binary"
_EARLIEST, _LATEST = -2, -1


def dataframe(
    spark: SparkSession, front: Kafka, *, end: Mapping[int, int] | None = None
) -> DataFrame:
    """The elements of a front up to where its topic ends now, or to offsets (not included).

    ``fronts.Kafka(...).position(offset, time)`` is where a live query goes on behind the last one.
    """
    if front.arrival:
        raise InputError(
            "a DataFrame of a topic has no times of arrival: nobody knows when a record would have "
            "arrived. Take fronts.Kafka(time='timestamp')."
        )
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    ours = {"kafka.isolation.level": "read_committed"}
    theirs = {f"kafka.{key}": str(value) for key, value in front.cluster.config.items()}
    records = (
        spark.read.format("kafka")
        .options(**{**ours, **theirs})
        .option("kafka.bootstrap.servers", front.cluster.servers)
        .option("subscribe", front.topic)
        .option("startingOffsets", _offsets(front, front.begin, _EARLIEST))
        .option("endingOffsets", _offsets(front, end or {}, _LATEST))
        .option("failOnDataLoss", "true")
        .load()
        # Not as a timestamp: Python would make it a local time.
        .select("partition", "offset", sql.unix_millis("timestamp").alias("ms"), "key", "value")
    )
    # The front travels to the workers in the closure of this function.
    decoded = records.mapInArrow(_decoder(front), _DECODED)
    in_order = Window.partitionBy("partition").orderBy("offset")
    number = sql.row_number().over(in_order)
    own = sql.coalesce("own", sql.when(sql.col("number") == 1, 0).otherwise(_NO_TIME))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    greatest = sql.max(own - sql.col("number")).over(so_far)
    return decoded.withColumn("number", number).select(
        "partition", "offset", (sql.col("number") + greatest).alias("time"), "payload"
    )


def _offsets(front: Kafka, given: Mapping[int, int], otherwise: int) -> str:
    offsets = {str(number): given.get(number, otherwise) for number in range(front.partitions)}
    return json.dumps({front.topic: offsets})


def _decoder(front: Kafka) -> Any:
    is_timestamp, scale = front.time == "timestamp", front.scale

    def decoded(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for batch in batches:
            partitions, offsets, times, keys, values = (
                batch.column(number).to_pylist() for number in range(5)
            )
            owns, payloads = [], []
            rows = zip(partitions, offsets, times, keys, values, strict=True)
            for partition, offset, ms, key, value in rows:
                try:
                    payload = front.payload(key, value)
                    own = ms * scale if is_timestamp else front.time_of(payload)
                except ValueError as error:
                    payload = front.malformed(partition, offset, value, error)
                    own = ms * scale if is_timestamp else None
                owns.append(own)
                payloads.append(pickle.dumps(payload))
            yield pyarrow.RecordBatch.from_arrays(
                [
                    pyarrow.array(partitions, pyarrow.int32()),
                    pyarrow.array(offsets, pyarrow.int64()),
                    pyarrow.array(owns, pyarrow.int64()),
                    pyarrow.array(payloads, pyarrow.binary()),
                ],
                names=["partition", "offset", "own", "payload"],
            )

    return decoded
