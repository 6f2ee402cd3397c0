"""Documents due at fixed times, and the latency of each: from due to its last record stored.

A document is due at ``begin + number / rate``, no matter who reads it and how often. So a query
that was killed finds the documents that came meanwhile waiting, and its latency shows it. The clock
begins when the workers run: the front waits for a file that the driver writes then. Each life
writes its process id at its first read, so that it can be killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from live.latency import RATE, WORDS, documents, index_flow
from pyspark.sql import SparkSession

from emberflow import fronts, sinks

_NAP_SECONDS = 0.005
_START_SECONDS = 120.0


class SteadyDocuments:
    """Document ``n`` is ``(n, when it is due, words)``; its time is ``n``."""

    partitions = 1
    arrival = False

    def __init__(self, given: list[list[str]], folder: Path) -> None:
        self._given = given
        self._begin = folder / "begin"
        self._pid = folder / "pid"

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        self._pid.write_text(str(os.getpid()))
        while not self._begin.exists():
            time.sleep(_NAP_SECONDS)
            yield None
        begin = float(self._begin.read_text())
        for number in range(0 if position is None else position + 1, len(self._given)):
            due = begin + number / RATE
            while (left := due - time.time()) > 0:
                time.sleep(min(left, 0.05))
                yield None
            yield fronts.Element(number, (number, due, self._given[number]), number)


@dataclass
class Run:
    """For each document: when its last record was stored, and how late, in milliseconds.

    Times are seconds since the first document was due.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    recoveries: int = 0
    replay_ratio: float = 1.0

    @property
    def milliseconds(self) -> list[float]:
        """Latencies without the first tenth, which is the start."""
        return [latency for _, latency in self.latencies[len(self.latencies) // 10 :]]


def measured(
    spark: SparkSession,
    count: int,
    folder: Path,
    options: dict[str, Any],
    during: Callable[[Run, Path, float], None] | None = None,
) -> Run:
    """Run the inverted index over this many documents. ``during`` is called once they are coming."""
    run = Run()
    left = [WORDS] * count
    begin = 0.0

    def store(bundle: sinks.StoredBundle) -> None:
        now = time.time()
        for number, due, _, _ in bundle.payloads:
            left[number] -= 1
            if not left[number]:
                run.latencies.append((now - begin, (now - due) * 1_000))

    builder = (
        index_flow()
        .live(spark)
        .read(documents=SteadyDocuments(documents(count), folder))
        .write(changes=sinks.Callback(store))
        .option("workers", 2)
    )
    for key, value in options.items():
        builder.option(key, value)
    query = builder.start()
    try:
        deadline = time.monotonic() + _START_SECONDS
        while query.status["message"] != "Running":
            assert time.monotonic() < deadline, query.status
            time.sleep(_NAP_SECONDS)
        begin = time.time() + 0.2
        written = folder / "begin.new"
        written.write_text(str(begin))
        written.rename(folder / "begin")
        if during is not None:
            during(run, folder, begin)
        assert query.awaitTermination(_START_SECONDS + 2 * count / RATE), query.status
    finally:
        query.stop()
    assert len(run.latencies) == count, f"{len(run.latencies)} of {count} documents are whole"
    run.recoveries = len(query.recoveries)
    run.replay_ratio = (query.lastProgress or {}).get("replayRatio", 1.0)
    return run
