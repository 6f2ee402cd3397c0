"""Files through Structured Streaming into a flow and out to Parquet, with processes killed.

On every run a worker of the live query is killed. In `make soak` the live query has a driver of its
own, which is killed too, with all its processes. Either test stops both streaming queries in the middle
of a batch and restarts them from their checkpoints. The Parquet files must hold what the reference
runner gives for the lines at the times in the front's log; and the lines must be those of the files,
each once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow.checkpoint.logs.front_log import read_log
from tests.effort import SOAK
from tests.faults.structured_program import lines_front, started, word_flow
from tests.faults.toll import toll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.timeout(1_800)

ROOT = Path(__file__).parents[2]
#: Long enough for a busy machine; Spark itself gives a Python process 10.
SECONDS = 600
FILES = 12
COLUMNS = "word string, n long, _time long, _path binary"


class Driver:
    """The program of the live query, in a process group of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = open(folder / "log", "a+b")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.structured_program", name, str(folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def running(self) -> list[int]:
        """The process ids of the next set of workers."""
        assert self.process.stdout is not None
        word, *pids = self.process.stdout.readline().decode().split() or ["nothing"]
        assert word == "running"
        return [int(pid) for pid in pids]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self._log.close()


class Streams:
    """Both streaming queries. Either may fail when the live query dies, and is then restarted."""

    def __init__(self, spark: SparkSession, name: str, folder: Path) -> None:
        self._spark = spark
        self._name = name
        self._folder = folder
        self._pause = 0.5
        self._again_at = 0.0
        self.writing = self._write()
        self.reading = self._read()

    def _write(self) -> StreamingQuery:
        lines = (
            self._spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", "1")
            .text(str(self._folder / "in"))
        )
        return (
            lines.writeStream.format("emberflow")
            .trigger(processingTime="200 milliseconds")
            .option("query", self._name)
            .option("front", "lines")
            .option("checkpointLocation", str(self._folder / "writing"))
            .start()
        )

    def _read(self) -> StreamingQuery:
        counts = (
            self._spark.readStream.format("emberflow")
            .option("query", self._name)
            .option("sink", "counts")
            .schema(COLUMNS)
            .load()
        )
        return (
            counts.writeStream.format("parquet")
            .trigger(processingTime="200 milliseconds")
            .option("checkpointLocation", str(self._folder / "reading"))
            .start(str(self._folder / "out"))
        )

    def restart_writing(self) -> None:
        self.writing.stop()
        self.writing = self._write()

    def restart_reading(self) -> None:
        self.reading.stop()
        self.reading = self._read()

    def keep_alive(self) -> None:
        """Restart what has failed, as an operator would, with a growing pause."""
        for stream, restart in (
            (self.writing, self.restart_writing),
            (self.reading, self.restart_reading),
        ):
            if not stream.isActive and time.monotonic() >= self._again_at:
                self._pause = min(2 * self._pause, 30.0)
                self._again_at = time.monotonic() + self._pause
                restart()

    def until(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}; {self.writing.exception()} {self.reading.exception()}")
            self.keep_alive()
            time.sleep(0.05)
        self._pause = 0.5

    def until_stored(self, count: int) -> None:
        """Wait for all output. A look at it is a job of Spark: one for each batch that came."""
        seen = 0

        def all_is_there() -> bool:
            nonlocal seen
            if (batches := batches_out(self._folder)) == seen:
                return False
            seen = batches
            return len(read_back(self._spark, self._folder)) >= count

        self.until(all_is_there, "all output")

    def stop(self) -> None:
        self.writing.stop()
        self.reading.stop()


def add_files(folder: Path, lines: list[list[str]], numbers: range) -> None:
    for number in numbers:
        path = folder / f"{number:02d}.txt"
        path.write_text("".join(f"{line}\n" for line in lines[number]))
        # The source takes files by modification time, and sees them only once they are complete and
        # renamed.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        path.rename(folder / "in" / path.name)


def batches_in(folder: Path) -> int:
    """How many batches the front has acknowledged."""
    inbox = folder / "live" / "structured" / "fronts-lines"
    return len(list(inbox.glob("batch-*")))


def batches_out(folder: Path) -> int:
    """How many batches of the reading query are in Parquet."""
    return len(list((folder / "out" / "_spark_metadata").glob("[0-9]*")))


def read_back(spark: SparkSession, folder: Path) -> list[tuple[str, int]]:
    stored = spark.read.schema(COLUMNS).parquet(str(folder / "out"))
    found = stored.orderBy("_time", "_path").collect()
    return [(row.word, row.n) for row in found]


def taken_in(folder: Path) -> list[ef.At]:
    """The elements that the front took in, with the times in its log."""
    front = lines_front().placed(word_flow().graph().fronts["lines"], str(folder / "live"))
    payloads: dict[Any, str] = {}
    for element in front.read(0, None):
        if element is None:
            break
        payloads[element.position] = element.payload
    log = list(read_log(folder / "live", "lines", 0))
    assert [position for position, _ in log] == list(payloads)
    return [ef.At(at, payloads[position]) for position, at in log]


def lines_of(files: int) -> list[list[str]]:
    return [[f"file{number} line{row} every" for row in range(5)] for number in range(files)]


def words_in(lines: list[list[str]]) -> int:
    return sum(len(line.split()) for own in lines for line in own)


def check(spark: SparkSession, folder: Path, lines: list[list[str]]) -> None:
    elements = taken_in(folder)
    assert [element.payload for element in elements] == [line for own in lines for line in own]
    assert read_back(spark, folder) == ef.run(word_flow(), lines=elements)["counts"]


def test_a_worker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    name = f"words {uuid.uuid4()}"
    lines = lines_of(2)
    (tmp_path / "in").mkdir()
    add_files(tmp_path, lines, range(1))
    query = started(spark, name, tmp_path)
    streams: Streams | None = None
    try:
        streams = Streams(spark, name, tmp_path)
        streams.until(lambda: batches_in(tmp_path) == 1, "the first batch")
        streams.until(lambda: len((query.lastProgress or {}).get("pids", [])) == 2, "workers")
        assert query.lastProgress is not None
        os.kill(query.lastProgress["pids"][0], signal.SIGKILL)
        toll("worker")
        add_files(tmp_path, lines, range(1, 2))
        streams.restart_writing()
        streams.until(lambda: batches_out(tmp_path) >= 1, "output")
        streams.restart_reading()
        streams.until(lambda: batches_in(tmp_path) == 2, "a batch of the next life")
        streams.until_stored(words_in(lines))
        assert query.recoveries
    finally:
        if streams is not None:
            streams.stop()
        query.stop()
    check(spark, tmp_path, lines)


@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run kills a worker between streams")
def test_everybody_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    name = f"words {uuid.uuid4()}"
    lines = lines_of(FILES)
    (tmp_path / "in").mkdir()
    third = FILES // 3
    add_files(tmp_path, lines, range(third))
    drivers = [Driver(name, tmp_path)]
    streams: Streams | None = None
    try:
        workers = drivers[0].running()
        streams = Streams(spark, name, tmp_path)
        streams.until(lambda: batches_in(tmp_path) >= third // 2, "the first batches")
        os.kill(workers[0], signal.SIGKILL)
        toll("worker")
        streams.restart_writing()
        streams.until(lambda: batches_in(tmp_path) == third, "batches while workers are replaced")
        streams.until(lambda: batches_out(tmp_path) >= 1, "output")
        streams.restart_reading()
        add_files(tmp_path, lines, range(third, 2 * third))
        streams.until(lambda: batches_in(tmp_path) >= third + third // 2, "more batches")
        drivers[0].kill()
        toll("driver")
        add_files(tmp_path, lines, range(2 * third, FILES))
        drivers.append(Driver(name, tmp_path))
        drivers[1].running()
        streams.until(lambda: batches_in(tmp_path) == FILES, "all batches")
        streams.restart_reading()
        streams.until_stored(words_in(lines))
        streams.restart_writing()
        streams.writing.processAllAvailable()
        streams.reading.processAllAvailable()
    except BaseException:
        print((tmp_path / "log").read_text()[-3_000:])  # noqa: T201
        raise
    finally:
        if streams is not None:
            streams.stop()
        for driver in drivers:
            driver.kill()
    check(spark, tmp_path, lines)
