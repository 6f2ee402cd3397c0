"""A live query, killed with its driver, between two streams that die and repeat like Spark's.

Both streams are simulated: they make the calls that Spark would make, in the same order. Each keeps
only a checkpoint when it dies, at random moments, in the middle of a batch. So a few seconds see
more deaths than real streaming queries would in minutes (`test_structured` has those).
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import emberflow as ef
from emberflow.datasource import stream_writer as writing
from emberflow.datasource.source import EmberflowSource
from tests.effort import SOAK
from tests.faults.structured_program import word_flow
from tests.faults.test_structured import Driver, taken_in
from tests.faults.toll import toll

pytestmark = [
    pytest.mark.early,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SOAK, reason="takes a minute, and `make soak` has it"),
]

BATCHES = 40
LINES = StructType([StructField("value", StringType())])


class StreamDiedError(Exception):
    """A stream has died; everything it had in memory is gone."""


class Feeding:
    """Writes batch after batch, each with two tasks."""

    def __init__(self, name: str, dice: Random, patch: pytest.MonkeyPatch) -> None:
        self._source = EmberflowSource({"query": name, "front": "lines", "timeout": "240"})
        self._dice = dice
        self._patch = patch
        self.batch = 0  # its checkpoint: the first batch that is not known to be done

    def lines(self, batch: int, task: int) -> list[str]:
        return [f"batch{batch} task{task} line{line} every" for line in range(batch % 4)]

    def run_batch(self) -> None:
        writer: Any = self._source.streamWriter(LINES, False)
        messages = []
        for task in (1, 0):
            self._maybe_die()
            self._patch.setattr(writing, "_task", lambda: (task, "played", self.batch))  # noqa: B023
            rows = pa.record_batch({"value": pa.array(self.lines(self.batch, task), pa.string())})
            messages.append(writer.write(iter([rows])))
        self._maybe_die()
        committing: Any = self._source.streamWriter(LINES, False)
        committing.commit(messages, self.batch)
        self._maybe_die()
        self.batch += 1

    def _maybe_die(self) -> None:
        if self._dice.random() < 0.1:
            raise StreamDiedError


class Storing:
    """Reads batch after batch and stores each once, under its number, like a file sink of Spark."""

    def __init__(self, name: str, dice: Random) -> None:
        self._source = EmberflowSource({"query": name, "sink": "counts", "timeout": "240"})
        self._dice = dice
        self.offsets: list[dict[str, Any]] = []  # its checkpoint: the planned offsets,
        self.done = 0  # and how many of their batches are done
        self.stored: dict[int, list[tuple[str, int]]] = {}
        self._reader: Any = None

    def run_batch(self) -> None:
        if self._reader is None:
            self._reader = self._source.streamReader(self._source.schema())
        reader = self._reader
        if not self.offsets:
            self.offsets.append(reader.initialOffset())
        if self.done == len(self.offsets) - 1:
            reader.commit(self.offsets[-1])
            self._maybe_die()
            end = reader.latestOffset(self.offsets[-1], reader.getDefaultReadLimit())
            if end == self.offsets[-1]:
                time.sleep(0.02)
                return
            self.offsets.append(end)
        self._maybe_die()
        start, end = self.offsets[-2:]
        rows = [
            (row["word"], row["n"])
            for partition in reader.partitions(start, end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        before = self.stored.setdefault(self.done, rows)
        assert before == rows  # a batch that is read again is the same
        self._maybe_die()
        self.done += 1

    def die(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _maybe_die(self) -> None:
        if self._dice.random() < 0.1:
            self.die()
            raise StreamDiedError

    def rows(self) -> list[tuple[str, int]]:
        return [row for number in sorted(self.stored) for row in self.stored[number]]


def test_everybody_dies_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(5)
    name = f"played {uuid.uuid4()}"
    drivers = [Driver(name, tmp_path)]
    workers = drivers[0].running()
    feeding, storing = Feeding(name, dice, monkeypatch), Storing(name, dice)
    deaths = 0
    killed_worker = False
    given = [
        line for batch in range(BATCHES) for task in (0, 1) for line in feeding.lines(batch, task)
    ]
    try:
        while feeding.batch < BATCHES or len(storing.rows()) < 4 * len(given):
            if feeding.batch == BATCHES // 3 and not killed_worker:
                killed_worker = True
                os.kill(workers[0], signal.SIGKILL)
                toll("worker")
            if feeding.batch == 2 * BATCHES // 3 and len(drivers) == 1:
                drivers[0].kill()
                toll("driver")
                drivers.append(Driver(name, tmp_path))
            try:
                if feeding.batch < BATCHES:
                    feeding.run_batch()
                storing.run_batch()
            except StreamDiedError:
                deaths += 1
        assert drivers[1].running()
    except BaseException:
        print((tmp_path / "log").read_text()[-3_000:])  # noqa: T201
        raise
    finally:
        storing.die()
        for driver in drivers:
            driver.kill()
    assert deaths > 10
    elements = taken_in(tmp_path)
    assert [element.payload for element in elements] == given
    assert storing.rows() == ef.run(word_flow(), lines=elements)["counts"]
