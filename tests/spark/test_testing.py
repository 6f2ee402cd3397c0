"""`emberflow.testing` in a live query: what strikes changes nothing of the output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow.testing import Crash, Pause, Raise, Recorder, Repeat, Script
from tests.effort import SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.query import LiveQuery


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


def test_a_script_with_a_crash_and_a_sink_that_fails_give_the_reference(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = word_count()
    script = Script(
        ["ash", "ember", "ash", Pause(0.2), Crash(), "flint", Repeat(2)], folder=tmp_path
    )
    recorder = Recorder(fail_before={0}, fail_after={1})
    query = (
        flow.live(spark)
        .read(words=script)
        .write(counts=recorder)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 50)
        .start()
    )
    assert query.awaitTermination(SECONDS)
    assert recorder.payloads() == ef.run(flow, words=script.elements)["counts"]
    assert recorder.failed == [0, 1]
    assert (tmp_path / "fault-4").exists()


def test_a_script_that_raises_ends_the_query_and_a_later_one_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = word_count()
    script = Script(["ash", Raise(OSError("unplugged")), "ember"], folder=tmp_path)
    recorder = Recorder()

    def start() -> LiveQuery:
        return (
            flow.live(spark)
            .read(words=script)
            .write(counts=recorder)
            .option("checkpointLocation", tmp_path / "checkpoint")
            .start()
        )

    with pytest.raises(ef.EmberflowError, match="OSError: unplugged"):
        start().awaitTermination(SECONDS)
    assert start().awaitTermination(SECONDS)
    assert recorder.payloads() == ef.run(flow, words=script.elements)["counts"]


def test_a_wrong_adapter_is_told_when_it_is_given(spark: SparkSession) -> None:
    script, recorder = Script([]), Recorder(retry_seconds="soon")  # type: ignore[arg-type]
    script.arrival = "yes"  # type: ignore[assignment]
    live = word_count().live(spark)
    with pytest.raises(ef.InputError, match=r"front 'words': Script.arrival is True or False"):
        live.read(words=script)
    with pytest.raises(ef.InputError, match=r"sink 'counts': Recorder.retry_seconds is a number"):
        live.write(counts=recorder)
