"""A topic as a DataFrame, through Spark's Kafka connector: the records that `fronts.Kafka` reads.

The columns are ``time`` (that of the record, before the rule of event time), ``_partition``,
``_position`` (the offset) and ``_payload`` (bytes that only Python reads). The front's rule of event time
travels in the metadata of ``_position``. So `Flow.batch` and `Flow.backfill` take the DataFrame as it is,
and give each record the global time that the live front gives it, or find it late
(`runners.batch.passes.stamping`).

With ``idle_ms`` a live front may have promised more than its records do, and a record that came later than
that was late. Only the front's log has that (`emberflow.front_log`). Where it matters, read with
``idle_ms=None``.

It needs ``spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:`` and Spark's version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from emberflow.errors import InputError
from emberflow.rows.codec import encode_all
from emberflow.rows.inputs import DEFAULT_TIME, RAW_PARTITION, RAW_POSITION, with_rule
from emberflow.rows.readers import RAW

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.fronts.kafka import Kafka

_SCHEMA = f"{DEFAULT_TIME} long, {RAW_PARTITION} int, {RAW_POSITION} long, {RAW} binary"
_EARLIEST, _LATEST = -2, -1


def dataframe(
    spark: SparkSession,
    front: Kafka,
    *,
    end: Mapping[int, int] | None = None,
    malformed: Literal["fail", "drop"] = "fail",
) -> DataFrame:
    """The records of a front up to where its topic ends now, or to offsets (not included).

    A batch has no sink for errors. ``malformed="drop"`` leaves out the records that a live query with
    ``onError`` diverts; otherwise they fail the job.
    """
    if front.arrival:
        raise InputError(
            "a DataFrame of a topic has no times of arrival: nobody knows when a record would have "
            "arrived. Take fronts.Kafka(time='timestamp')."
        )
    if malformed not in ("fail", "drop"):
        raise InputError(f"dataframe(malformed=) takes 'fail' or 'drop', got {malformed!r}.")
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
    decoded = records.mapInArrow(_decoder(front), _SCHEMA)
    return with_rule(decoded, front.event_time, drops_malformed=malformed == "drop")


def _offsets(front: Kafka, given: Mapping[int, int], otherwise: int) -> str:
    offsets = {str(number): given.get(number, otherwise) for number in range(front.partitions)}
    return json.dumps({front.topic: offsets})


def _decoder(front: Kafka) -> Any:
    is_timestamp, scale = front.is_stamped, front.scale

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
                payloads.append(payload)
            yield pyarrow.RecordBatch.from_arrays(
                [
                    pyarrow.array(owns, pyarrow.int64()),
                    pyarrow.array(partitions, pyarrow.int32()),
                    pyarrow.array(offsets, pyarrow.int64()),
                    pyarrow.array(encode_all(payloads), pyarrow.binary()),
                ],
                names=[DEFAULT_TIME, RAW_PARTITION, RAW_POSITION, RAW],
            )

    return decoded
