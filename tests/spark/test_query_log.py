"""A live query logs one line an event, and what its functions log."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow.testing import Pause, Script
from tests.effort import SECONDS


def shouted(word: str) -> str:
    logging.getLogger("shop").info("I see %s", word)
    return word.upper()


def test_a_query_logs_its_events_and_what_its_functions_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = ef.Flow("shout")
    flow.front("words").map(shouted).key_by(len).count().sink("out")
    go = tmp_path / "go"
    kept = ef.sinks.Memory()
    with caplog.at_level(logging.INFO, "emberflow"), caplog.at_level(logging.INFO, "shop"):
        query = (
            flow.live(spark)
            .read(words=Script(["a", "b", Pause(until=go), "c"]))
            .write(out=kept)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("checkpointInterval", 100)
            .queryName("shouting")
            .start()
        )
        until(lambda: len(kept.payloads()) == 2 and events(caplog, "cut"))
        until(lambda: len((query.lastProgress or {}).get("pids", ())) == 2)
        # What a worker has logged goes with its next news: who is killed before takes it along.
        until(lambda: {"I see a", "I see b"} <= said(caplog))
        os.kill(query.lastProgress["pids"][1], signal.SIGKILL)  # type: ignore[index]
        go.touch()
        assert query.awaitTermination(SECONDS)
        until(lambda: events(caplog, "ended"))

    started, *_ = events(caplog, "started")
    assert started.getMessage().startswith("query shouting: started: 2 workers")
    assert [one.life for one in events(caplog, "running")] == [1, 2]  # type: ignore[attr-defined]
    (lost,) = events(caplog, "lost")
    assert (lost.levelno, lost.query, lost.life) == (logging.WARNING, "shouting", 1)  # type: ignore[attr-defined]
    (ended,) = events(caplog, "ended")
    assert (ended.levelno, ended.getMessage()) == (
        logging.INFO,
        "query shouting: ended: all is stored",
    )
    assert {"I see a", "I see b", "I see c"} <= said(caplog)
    assert {one.worker for one in events(caplog, "logged")} <= {0, 1}  # type: ignore[attr-defined]
    assert not [
        one for one in caplog.records if "\n" in one.getMessage() and one.name == "emberflow"
    ]


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if getattr(one, "event", None) == event]


def said(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {one.getMessage() for one in events(caplog, "logged") if one.name == "shop"}


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
