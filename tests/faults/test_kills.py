"""Processes killed at random moments: the sinks hold exactly the reference's bytes.

Twenty kills in all: of Python workers, of an executor's JVM, of the sink's database server and of
the driver. One worker is only stopped, is replaced, and then finds itself fenced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pyspark
import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.supervisor import LIVES_WITHOUT_PROGRESS_MAX, PoisonedError
from emberflow.values.hashing import key_hash, owner
from tests.adapters.postgres_server import PostgresServer, running_server
from tests.faults.flows import documents, index_flow, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

SECONDS = 240
#: Each number gives other random moments: `make soak FAULTS=10` tries ten.
ROUND = int(os.environ.get("EMBERFLOW_FAULTS_ROUND", "0"))
ROOT = Path(__file__).parents[2]


def until(true: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


def check_files(folder: Path, expected: dict[str, list[Any]]) -> None:
    for name in ("pairs", "windows"):
        assert sinks.read_files(folder / name) == plain(expected[name])
    for partition in range(3):
        assert sinks.read_files(folder / "counts", partition) == [
            plain(held) for held in expected["counts"] if owner(key_hash(held[1]), 3) == partition
        ]


def killed_worker(query: LiveQuery, dice: Random, signal_: int = signal.SIGKILL) -> int:
    """Signal one of the workers at a random moment of the present life; return its process id."""

    def running() -> list[int] | None:
        progress = query.lastProgress
        lives = len(query.recoveries)
        if progress is None or progress["recoveries"] != lives or not progress["elements"]:
            return None
        return progress["pids"] if len(progress["pids"]) == 2 else None

    until(running, "the workers of the next life")
    time.sleep(dice.uniform(0.0, 0.8))
    pids = running()
    if pids is None or not query.isActive:
        return 0
    pid: int = dice.choice(pids)
    os.kill(pid, signal_)
    return pid


@pytest.mark.parametrize("arrival", [False, True], ids=["own times", "times of arrival"])
def test_workers_are_killed(spark: SparkSession, tmp_path: Path, arrival: bool) -> None:
    kills = 4
    dice = Random(f"workers {arrival} {ROUND}")
    given = documents(1_200)
    all_killed = tmp_path / "all killed"

    def held_back() -> Iterator[Any]:
        """So that the last kill does not come when all is done, which no query would notice."""
        yield from given[:-1]
        deadline = time.monotonic() + SECONDS
        while not all_killed.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield given[-1]

    # The front's log has the times of the elements; the reference uses them too.
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(held_back, rate=100, arrival=arrival))
        .write(**{name: sinks.Files(tmp_path / name) for name in ("counts", "pairs", "windows")})
        .option("workers", 2)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .option("checkpointsKept", 10_000)
        .start()
    )
    try:
        for kill in range(kills):
            killed_worker(query, dice)
            until(lambda: len(query.recoveries) > kill, "the loss of a worker to be noticed", 60)  # noqa: B023
        all_killed.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    elements: list[Any] = given
    if arrival:
        from emberflow.checkpoint.logs.front_log import read_log

        log = list(read_log(tmp_path / "checkpoint", "documents", 0))
        assert [entry[0] for entry in log] == list(range(len(given)))
        elements = [ef.At(time_, given[position]) for position, time_ in log]
    check_files(tmp_path, ef.run(index_flow(), documents=elements))


def test_a_worker_that_was_only_stopped_is_fenced(spark: SparkSession, tmp_path: Path) -> None:
    dice = Random(f"stopped {ROUND}")
    given = documents(500)
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(given, rate=150))
        .write(**{name: sinks.Files(tmp_path / name) for name in ("counts", "pairs", "windows")})
        .option("workers", 2)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    try:
        stopped = killed_worker(query, dice, signal.SIGSTOP)
        until(lambda: query.recoveries, "the stopped heartbeat to be noticed", 60)
        with contextlib.suppress(ProcessLookupError):  # Spark may have ended it with the job
            os.kill(stopped, signal.SIGCONT)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    check_files(tmp_path, ef.run(index_flow(), documents=given))


def test_an_element_that_kills_its_process_does_not_do_so_for_ever(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It ends four lives, and then the query; all output final before it is stored."""
    flow, poison, all_ahead_is_final = ef.Flow("poisoned"), 40, tmp_path / "all ahead is final"

    def look(number: int) -> int:
        if number == poison:
            os.kill(os.getpid(), signal.SIGKILL)  # like a crash in a C library
        return number

    def held_back() -> Iterator[int]:
        """Otherwise the first life might die before earlier output is final, and the next get further."""
        yield from range(poison)
        deadline = time.monotonic() + SECONDS
        while not all_ahead_is_final.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from range(poison, 100)

    flow.front("numbers").map(look).sink("out")
    query = (
        flow.live(spark)
        .read(numbers=fronts.Iterable(held_back))
        .write(out=sinks.Files(tmp_path / "out"))
        .option("workers", 1)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    try:
        until(
            lambda: ((query.lastProgress or {}).get("minimalTime") or [0])[0] == poison,
            "all ahead of the poison is final",
        )
        all_ahead_is_final.touch()
        with pytest.raises(
            PoisonedError, match=r"4 lives in a row were lost at the minimal time \(40,"
        ):
            query.awaitTermination(SECONDS)
    finally:
        query.stop()
    assert len(query.recoveries) == LIVES_WITHOUT_PROGRESS_MAX - 1
    assert sinks.read_files(tmp_path / "out") == list(range(poison))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, because it is killed."""
    with running_server() as server:
        yield server


def test_the_database_of_the_sink_is_killed(
    spark: SparkSession, tmp_path: Path, server: PostgresServer
) -> None:
    dice = Random(f"database {ROUND}")
    given = documents(600)
    flow = ef.Flow("to a database")
    words = flow.front("documents").flat_map(lambda document: document[1])
    words.key_by(lambda word: word).count().map(list).sink("counts")
    query = (
        flow.live(spark)
        .read(documents=fronts.Iterable(given, rate=150))
        .write(counts=sinks.Postgres(server.dsn, "counts"))
        .option("workers", 2)
        .option("checkpointLocation", tmp_path)
        .option("checkpointInterval", 100)
        .start()
    )
    try:
        for _ in range(3):
            until(lambda: query.lastProgress and query.lastProgress["released"], "output")
            time.sleep(dice.uniform(0.2, 0.9))
            server.kill()
            time.sleep(dice.uniform(0.0, 0.5))
            server.start_again()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    with psycopg.connect(server.dsn) as connection:
        stored = connection.execute("SELECT payload FROM counts ORDER BY id").fetchall()
    assert [row[0] for row in stored] == plain(ef.run(flow, documents=given)["counts"])


class Program:
    """The query of `programs`, in a process group of its own."""

    def __init__(self, master: str, folder: Path, count: int, rate: float) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = open(folder / "log", "a+b")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.faults.programs"),
                *(master, str(folder), str(count), str(rate)),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split()

    def end(self) -> None:
        """Kill all of it: the driver, its JVM, executors and Python workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def test_the_driver_is_killed_and_the_same_command_started_again(tmp_path: Path) -> None:
    """Only the driver's process: its JVM and workers have to notice by themselves."""
    dice = Random(f"driver {ROUND}")
    count = 400 if ROUND else 200
    programs: list[Program] = []
    try:
        for _ in range(5 if ROUND else 1):
            program = Program("local[2]", tmp_path, count, 40)
            programs.append(program)
            assert program.line()[:1] == ["running"]
            time.sleep(dice.uniform(0.1, 1.2))
            os.kill(program.process.pid, signal.SIGKILL)
            program.process.wait(60)
        program = Program("local[2]", tmp_path, count, 10_000)
        programs.append(program)
        while (line := program.line()) and line != ["done"]:
            assert line[0] == "running"
        assert line == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        for program in programs:
            program.end()
    check_files(tmp_path, ef.run(index_flow(), documents=documents(count)))


def test_executors_are_killed(tmp_path: Path) -> None:
    """The JVM of an executor of a local cluster, with the Python worker that it runs."""
    dice = Random(f"executors {ROUND}")
    count = 500 if ROUND else 250
    program = Program("local-cluster[2,1,512]", tmp_path, count, 40)
    try:
        for _ in range(4 if ROUND else 1):
            line = program.line()
            assert line[:1] == ["running"], (tmp_path / "log").read_text()[-3_000:]
            time.sleep(dice.uniform(0.1, 1.0))
            victim = int(dice.choice(line[1:]))
            os.kill(executor_of(victim), signal.SIGKILL)
        while (line := program.line()) and line != ["done"]:
            assert line[0] == "running"
        assert line == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        program.end()
    check_files(tmp_path, ef.run(index_flow(), documents=documents(count)))


def executor_of(pid: int) -> int:
    """The JVM of a Python worker: the first of its ancestors that is not a Python process."""
    while True:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(") ")
        if "java" in name:
            return pid
        pid = int(rest.split()[1])
