"""The inverted index in Structured Streaming: a plain micro-batch, and `transformWithState`.

Documents come over a socket, one per line, stamped when they are sent. Spark itself splits them
into words, which is faster than Python. The processor counts, and a batch's change records go to
the driver as an Arrow table: then all documents in it are stored. The `rate` source would not do:
it emits a second's rows only after that second. Nor would words in the query itself: a plan with
such a long literal overflows the stack of Spark's own regular expressions.

A micro-batch takes what came while the last one ran. So a query that is too slow for its input does
not fail: its batches grow, and with them its latencies. It kept up if the documents of the last
quarter waited at most one and a half times as long as those of the second quarter, and no batch
took longer than a quarter of the time; otherwise there would be too few batches to tell.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor

#: Documents before the clock starts: the first batch also starts Python and the state stores.
WARM_UP = 3
_START_SECONDS_MAX = 120.0
_DRAIN_SECONDS_MAX = 45.0
_CHANGES = "document int, at double, word string, count long"


class Run(NamedTuple):
    latencies: list[float]
    kept_up: bool
    story: str


class Server:
    """Sends documents at a steady rate to the first client, once it is told to."""

    def __init__(self, documents: list[list[str]], rate: float) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.go = threading.Event()
        self.over = threading.Event()
        self._documents, self._rate = documents, rate
        self._thread = threading.Thread(target=self._serve, name="documents", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self.go.set()
        self._thread.join(10)
        self.listening.close()

    def _serve(self) -> None:
        self.listening.settimeout(_START_SECONDS_MAX)
        try:
            link, _ = self.listening.accept()
            with link:
                for words in self._documents[:WARM_UP]:
                    link.sendall(_line(-1, words))
                self.go.wait(_START_SECONDS_MAX)
                begin = time.time()
                for number, words in enumerate(self._documents):
                    if self.over.wait(max(0.0, begin + number / self._rate - time.time())):
                        return
                    link.sendall(_line(number, words))
                self.over.wait(_START_SECONDS_MAX)  # the source fails when its server goes away
        except OSError:
            return  # the query is gone, and reports why itself


def _line(number: int, words: list[str]) -> bytes:
    return f"{number} {time.time()} {' '.join(words)}\n".encode()


def _words(spark: SparkSession, port: int) -> DataFrame:
    lines = (
        spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
    )
    fields = lines.select(F.split("value", " ", 3).alias("fields"))
    return fields.select(
        F.col("fields")[0].cast("int").alias("document"),
        F.col("fields")[1].cast("double").alias("at"),
        F.explode(F.split(F.col("fields")[2], " ")).alias("word"),
    )


def _counted(words: DataFrame) -> DataFrame:
    change = Row("document", "at", "word", "count")

    class Count(StatefulProcessor):  # defined in a function, so that it is pickled by value
        def init(self, handle):  # type: ignore[no-untyped-def]
            self.held = handle.getValueState("count", "count long")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def] # noqa: N802, N803
            held = self.held.get()
            count = 0 if held is None else held[0]
            word = key[0]
            for document, at, _ in rows:
                count += 1
                yield change(document, at, word, count)
            self.held.update((count,))

        def close(self):  # type: ignore[no-untyped-def]
            pass

    return words.groupBy("word").transformWithState(Count(), _CHANGES, "update", "none")


def measured(
    spark: SparkSession, documents: list[list[str]], rate: float, *, stateful: bool
) -> Run:
    server = Server(documents, rate)
    stored: dict[int, float] = {}

    def store(batch: DataFrame, number: int) -> None:
        table = batch.toArrow()
        now = time.time()
        for document, at in set(
            zip(table["document"].to_pylist(), table["at"].to_pylist(), strict=True)
        ):
            if document < 0:
                server.go.set()
            else:
                stored[document] = (now - at) * 1_000

    words = _words(spark, server.port)
    changes = _counted(words) if stateful else words
    with tempfile.TemporaryDirectory() as folder:
        query = (
            changes.writeStream.outputMode("update")
            .foreachBatch(store)
            .option("checkpointLocation", folder)
            .start()
        )
        try:
            _wait(server.go.is_set, query, _START_SECONDS_MAX)
            seconds = len(documents) / rate + _DRAIN_SECONDS_MAX
            _wait(lambda: len(stored) == len(documents), query, seconds)
            failure = query.exception()
            batches = [
                progress.durationMs["triggerExecution"] / 1_000
                for progress in query.recentProgress
                if progress.numInputRows
            ]
        finally:
            query.stop()
            server.close()
    return _judged(stored, len(documents), rate, batches, failure)


def _wait(done: Callable[[], bool], query: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and query.isActive and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.05)


def _judged(
    stored: dict[int, float], count: int, rate: float, batches: list[float], failure: object
) -> Run:
    if failure is not None:
        return Run([], False, f"failed: {str(failure).splitlines()[0]}")
    quarter = count // 4
    second, last = (
        [stored[number] for number in range(begin, begin + quarter) if number in stored]
        for begin in (quarter, 3 * quarter)
    )
    told = f"{len(batches)} batches of up to {max(batches, default=0):.1f} s"
    if len(stored) < count:
        return Run([], False, f"did not keep up: {len(stored)} of {count} documents, {told}")
    kept_up = (
        statistics.median(last) <= 1.5 * statistics.median(second)
        and max(batches[1:], default=0) <= count / rate / 4
    )
    latencies = [latency for number, latency in sorted(stored.items()) if number >= quarter]
    return Run(latencies, kept_up, f"{'kept' if kept_up else 'did not keep'} up, {told}")
