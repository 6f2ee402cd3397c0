"""Listeners of a live query, including PySpark's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import emberflow as ef
from emberflow import fronts, sinks
from tests.effort import SECONDS


class OfPySpark(StreamingQueryListener):
    """A listener written for PySpark's queries; it handles events as such listeners do."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.idle = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.heard.append(("started", (str(event.id), str(event.runId), event.name)))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        assert progress.inputRowsPerSecond >= 0
        assert progress.processedRowsPerSecond >= 0
        assert str(progress.id) in progress.json
        self.heard.append(("progress", progress.numInputRows))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self.heard.append(("idle", event.timestamp))
        self.idle.set()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.heard.append(("terminated", (event.exception, event.errorClassOnException)))


class Given:
    """Emits its elements and then waits for ever."""

    partitions = 1

    def __init__(self, payloads: list[int]) -> None:
        self._payloads = payloads

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        for number, payload in enumerate(self._payloads):
            yield fronts.Element(number, payload)
        while True:
            time.sleep(0.02)
            yield None


def dividing() -> ef.Flow:
    flow = ef.Flow("dividing")
    flow.front("numbers").map(lambda number: 12 // number).sink("out")
    return flow


def test_a_listener_of_pyspark_hears_the_life_of_a_query(spark: SparkSession) -> None:
    listener = OfPySpark()
    numbers = Given([1, 2, 3])
    query = (
        dividing()
        .live(spark)
        .read(numbers=numbers)
        .write(out=sinks.Memory())
        .queryName("parts")
        .listener(listener)
        .start()
    )
    try:
        assert listener.idle.wait(SECONDS)
    finally:
        query.stop()
    kinds = [kind for kind, _ in listener.heard]
    assert listener.heard[0] == ("started", (query.id, query.runId, "parts"))
    assert listener.heard[-1] == ("terminated", (None, None))
    assert set(kinds[1:-1]) == {"progress", "idle"}
    assert sum(rows for kind, rows in listener.heard if kind == "progress") == 3
    assert query.droppedEvents == 0


def test_a_listener_hears_what_the_query_failed_with(spark: SparkSession) -> None:
    listener = OfPySpark()
    query = (
        dividing()
        .live(spark)
        .read(numbers=fronts.Iterable([1, 0]))
        .write(out=sinks.Memory())
        .listener(listener)
        .start()
    )
    with pytest.raises(ef.FunctionError) as raised:
        query.awaitTermination(SECONDS)
    assert listener.heard[-1] == ("terminated", (str(raised.value), "FunctionError"))


class Stopping:
    """Stops the query from within, once it has seen an event."""

    def __init__(self) -> None:
        self.query: Any = None
        self.has_stopped = threading.Event()
        self.ended = threading.Event()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if event.progress.elements and not self.has_stopped.is_set():
            self.query.stop()
            self.has_stopped.set()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.ended.set()


def test_a_listener_may_stop_the_query(spark: SparkSession) -> None:
    listener = Stopping()
    builder = dividing().live(spark).read(numbers=Given([1, 2, 3])).write(out=sinks.Memory())
    query = listener.query = builder.start()
    query.addListener(listener)
    assert query.awaitTermination(SECONDS)
    assert listener.has_stopped.wait(SECONDS)
    assert listener.ended.wait(SECONDS)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("emberflow listener")]


class Broken:
    """Raises at the start, and later blocks until it is released."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        raise LookupError("no dashboard")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.let_go.wait(SECONDS)


def test_a_listener_that_raises_and_hangs_leaves_the_query_and_the_others_alone(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    broken, listener, out = Broken(), OfPySpark(), sinks.Memory()
    builder = dividing().live(spark).read(numbers=fronts.Iterable([1, 2, 3])).write(out=out)
    query = builder.listener(broken).listener(listener).start()
    try:
        assert query.awaitTermination(SECONDS)
        assert not query.isActive
        assert query.exception() is None
        assert out.payloads() == [12, 6, 4]
        assert listener.heard[-1] == ("terminated", (None, None))
        assert "listener Broken raised in onQueryStarted: LookupError: no dashboard" in caplog.text
        assert "listener Broken is still in onQueryProgress" in caplog.text
    finally:
        broken.let_go.set()
