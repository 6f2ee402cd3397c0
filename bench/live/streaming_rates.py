"""The running count in Structured Streaming: `transformWithState` and `applyInPandasWithState`.

Files of words, one batch each. The first batch starts Python and the state stores and does not
count. The rate is that of the later batches, by Spark's own clock. Their output goes to the driver
as an Arrow table, whose rows are counted. State is in RocksDB on both sides: `transformWithState`
has no other, and it keeps 50,000 keys out of the JVM's heap.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

#: Words per batch. State costs are per key and batch, so large batches are fast.
BATCHES = (50_000, 200_000)
#: How many batches count.
COUNTED = 2
_COUNTS = "word string, count long"
_SECONDS_MAX = 180.0


def _transform_with_state(by_word: GroupedData) -> DataFrame:
    counted = Row("word", "count")

    class Count(StatefulProcessor):  # defined in a function, so that it is pickled by value
        def init(self, handle):  # type: ignore[no-untyped-def]
            self.held = handle.getValueState("count", "count long")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def] # noqa: N802, N803
            held = self.held.get()
            count = 0 if held is None else held[0]
            word = key[0]
            for _ in rows:
                count += 1
                yield counted(word, count)
            self.held.update((count,))

        def close(self):  # type: ignore[no-untyped-def]
            pass

    return by_word.transformWithState(Count(), _COUNTS, "update", "none")


def _apply_in_pandas_with_state(by_word: GroupedData) -> DataFrame:
    def count(key, frames, state) -> Iterator[pd.DataFrame]:  # type: ignore[no-untyped-def]
        held = state.get[0] if state.exists else 0
        for frame in frames:
            more = len(frame)
            yield pd.DataFrame({"word": [key[0]] * more, "count": range(held + 1, held + more + 1)})
            held += more
        state.update((held,))

    return by_word.applyInPandasWithState(count, _COUNTS, "count long", "update", "NoTimeout")


def measured(spark: SparkSession, words: list[str]) -> Iterator[tuple[str, float]]:
    for batch in BATCHES:
        for label, counted in (
            ("transformWithState", _transform_with_state),
            ("applyInPandasWithState", _apply_in_pandas_with_state),
        ):
            rate = _rate(spark, words, batch, counted)
            yield f"PySpark, {label}, batches of {batch:,}", rate


def transform_with_state_rate(spark: SparkSession, words: list[str], batch: int) -> float:
    """Words a second, of the batches behind the first one."""
    return _rate(spark, words, batch, _transform_with_state)


def _rate(
    spark: SparkSession,
    words: list[str],
    batch: int,
    counted: Callable[[GroupedData], DataFrame],
) -> float:
    stored: list[int] = []

    def store(output: DataFrame, number: int) -> None:
        stored.append(output.toArrow().num_rows)

    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "words")
        given.mkdir()
        for number in range(COUNTED + 1):
            path = given / f"{number}.txt"
            path.write_text("\n".join(words[number * batch : (number + 1) * batch]) + "\n")
            os.utime(path, (number, number))  # Spark takes the oldest file first
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(given))
        query = (
            counted(lines.toDF("word").groupBy("word"))
            .writeStream.outputMode("update")
            .foreachBatch(store)
            .option("checkpointLocation", str(Path(folder, "checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        try:
            over = query.awaitTermination(_SECONDS_MAX)
            batches = [progress for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()
    if over:
        assert stored == [batch] * (COUNTED + 1), f"one record for each word, got {stored}"
    # On a machine too slow for all batches, those that were done count.
    later = batches[1:]
    seconds = sum(progress.durationMs["triggerExecution"] for progress in later) / 1_000
    return sum(progress.numInputRows for progress in later) / seconds if later else 0.0
