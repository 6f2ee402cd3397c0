"""The queries in Structured Streaming.

*Throughput*: available-now over files of JSON Lines, a file for each micro-batch. The first batch starts the
state stores and compiles, and does not count. The rate is that of the others, by Spark's own clock. Their
output goes to the driver as an Arrow table, whose rows are counted.

*Latency*: lines come over a socket when they are due. Rows with a column ``end`` come when a window ends, and
their latency is from that time to when the driver has them. Of other queries it is that of the events, from when
an event is due to the end of its micro-batch, which the query's progress tells: the next moment at which its
output can be seen. Joins need further batches, so for these it is a lower bound.
"""

from __future__ import annotations

import logging
import re
import socket
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from nexmark.generator import BEGIN_MS, Event
from nexmark.rows import SIDE_INPUT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StreamingQuery

from nexmark_bench.given_events import line, write_batches
from nexmark_bench.spark_rows import rows_of
from nexmark_bench.spark_sql import COLUMNS, SCHEMA, SQL, UPDATED

SECONDS_MAX = 300.0

# It would print the plan of each query that Spark refuses.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


class Rate(NamedTuple):
    events_a_second: float
    rows: int
    #: Why there is none.
    refusal: str = ""


def rate(
    spark: SparkSession, query: str, events: list[Event], batch: int, *, by_row: bool = False
) -> Rate:
    """``by_row``: with a row for each bid, see `spark_rows`."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "events")
        write_batches(given, events, batch)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(given))
        rows: list[int] = []

        def store(output: DataFrame, number: int) -> None:
            rows.append(output.toArrow().num_rows)

        try:
            running = _started(
                spark, query, stream, folder, store, available_now=True, by_row=by_row
            )
            over = running.awaitTermination(SECONDS_MAX)
            batches = [one for one in running.recentProgress if one.numInputRows]
            running.stop()
        except Exception as error:  # what Spark cannot do is a result
            return Rate(0.0, 0, _told(error))
    later = batches[1:]
    if not over or not later:
        return Rate(0.0, sum(rows), f"not done after {SECONDS_MAX:.0f} s")
    seconds = sum(one.durationMs["triggerExecution"] for one in later) / 1_000
    # A query that reads the events twice also counts them twice.
    return Rate((len(events) - batch) / seconds, sum(rows))


def latencies(spark: SparkSession, query: str, events: list[Event]) -> tuple[list[float], str]:
    """In milliseconds, of each row of a window, or else of each event, but those of the first quarter; or why
    there is none."""
    rows: list[tuple[float, float]] = []

    def store(output: DataFrame, number: int) -> None:
        stored = output.toArrow()
        now = time.time()
        if "end" in stored.column_names:
            rows.extend((now, end.timestamp()) for end in stored.column("end").to_pylist())

    with Lines(events) as lines, tempfile.TemporaryDirectory() as folder:
        text = (
            spark.readStream.format("socket")
            .option("host", "127.0.0.1")
            .option("port", lines.port)
            .load()
        )
        stream = text.select(F.from_json("value", SCHEMA).alias("e")).select("e.*")
        try:
            running = _started(spark, query, stream, folder, store, available_now=False)
        except Exception as error:
            return [], _told(error)
        deadline = time.time() + (events[-1].date_time - BEGIN_MS) / 1_000 + 60
        ends: dict[int, float] = {}
        try:
            while max(ends, default=0) < len(events) and running.isActive:
                if time.time() > deadline:
                    break
                for one in running.recentProgress:
                    # Of rows, an offset of the socket counts each once, however often a query reads it.
                    read = int(one.sources[0].endOffset or -1) + 1
                    duration = one.durationMs["triggerExecution"] / 1_000
                    ends.setdefault(read, _seconds(one.timestamp) + duration)
                time.sleep(0.2)
            if failure := running.exception():
                return [], _told(failure)
        finally:
            running.stop()
        begin = lines.begin
    found: list[float] = []
    if rows:
        span = (events[-1].date_time - BEGIN_MS) / 1_000
        dues = [(now - begin, end - BEGIN_MS / 1_000) for now, end in rows]
        return [(now - due) * 1_000 for now, due in dues if span / 4 < due <= span], ""
    number = 0
    for read, end in sorted(ends.items()):
        batch = events[number:read]
        found += [(end - begin) * 1_000 - (event.date_time - BEGIN_MS) for event in batch]
        number = read
    if number < len(events):
        return [], f"did not keep up: {number:,} of {len(events):,} events"
    return found[len(events) // 4 :], ""


class Lines:
    """Serves events as lines to the first client, each when it is due."""

    def __init__(self, events: list[Event]) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.begin = 0.0
        self._events = [(event.date_time, f"{line(event)}\n".encode()) for event in events]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="lines", daemon=True)

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.listening.close()
        self._thread.join(10)

    def _serve(self) -> None:
        self.listening.settimeout(60)
        try:
            link, _ = self.listening.accept()
            with link:
                self.begin = time.time()
                for at, text in self._events:
                    wait = self.begin + (at - BEGIN_MS) / 1_000 - time.time()
                    if wait > 0.001 and self._over.wait(wait):
                        return
                    link.sendall(text)
                self._over.wait(SECONDS_MAX)  # the source fails when its server goes away
        except OSError:
            return  # the query is gone, and tells why itself


def _started(
    spark: SparkSession,
    query: str,
    stream: DataFrame,
    folder: str,
    store: Any,
    *,
    available_now: bool,
    by_row: bool = False,
) -> StreamingQuery:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    timed = stream.withColumn("dateTime", F.timestamp_millis("date_time"))
    events = timed.withWatermark("dateTime", "0 seconds")
    for view, columns in COLUMNS.items():
        events.where(F.col("kind") == view).selectExpr(
            *map(str.strip, columns.split(","))
        ).createOrReplaceTempView(view)
    side = spark.createDataFrame(list(SIDE_INPUT.items()), "key bigint, value string")
    F.broadcast(side).createOrReplaceTempView("side_input")
    output = rows_of(query, spark.table("bid")) if by_row else spark.sql(SQL[query])
    writer = (
        output.writeStream.outputMode("update" if query in UPDATED else "append")
        .foreachBatch(store)
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
    )
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def _told(error: BaseException) -> str:
    """The first sentence of Spark's refusal."""
    return re.split(r"(?<=[.;])\s", str(error), maxsplit=1)[0].strip(" .;")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
