"""Processes killed at random moments: the sinks hold exactly the reference's bytes.

Python workers and the sink's database server are killed; and a worker that is only stopped, is given
up, and comes back to find itself fenced. In `make soak` the driver and the JVMs of executors are killed
too. On every run a driver is killed where it is needed anyway, in `test_kafka_killed`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pyspark
import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.lives.losses import LIVES_WITHOUT_PROGRESS_MAX, PoisonedError
from emberflow.runners.live.query import LiveQuery
from tests.adapters.postgres_server import PostgresServer, running_server
from tests.effort import FAULTS_ROUND, SOAK, shortened
from tests.faults.flows import check_files, documents, index_flow, plain
from tests.faults.toll import toll
from tests.spark.clusters import executor_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

SECONDS = 400
ROOT = Path(__file__).parents[2]
PROGRAM = "tests.faults.programs"


def until(true: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


def running_pids(query: LiveQuery) -> list[int] | None:
    """The two processes of the present life, once elements have entered it."""
    progress = query.lastProgress
    lives = len(query.recoveries)
    if progress is None or progress["recoveries"] != lives or not progress["elements"]:
        return None
    return progress["pids"] if len(progress["pids"]) == 2 else None


def killed_worker(query: LiveQuery, dice: Random, signal_: int = signal.SIGKILL) -> int:
    """Hit one of the workers at a random moment of the present life; its process id.

    0 where nobody was hit, because the life or the query was over when the moment came.
    """
    until(lambda: running_pids(query), "the workers of the next life")
    time.sleep(dice.uniform(0.0, 0.8))
    pids = running_pids(query)
    if pids is None or not query.isActive:
        return 0
    pid: int = dice.choice(pids)
    os.kill(pid, signal_)
    toll("worker")
    return pid


def held_back(given: Sequence[Any], may_end: Path, last: int = 1) -> Callable[[], Iterator[Any]]:
    """The elements; the last ones only once there is a file, so that no kill comes after the end."""

    def elements() -> Iterator[Any]:
        yield from given[:-last]
        deadline = time.monotonic() + SECONDS
        while not may_end.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from given[-last:]

    return elements


def kill_workers(query: LiveQuery, dice: Random, kills: int) -> None:
    """Kill one worker after another; each at a moment of a life of its own."""
    for kill in range(kills):
        while not killed_worker(query, dice):
            assert query.isActive, "it was over before all were killed"
        until(lambda: len(query.recoveries) > kill, "the loss of a worker to be noticed", 120)  # noqa: B023


@pytest.mark.parametrize(
    "arrival",
    shortened([True, False]),
    ids=lambda arrival: ("own times", "times of arrival")[arrival],
)
def test_workers_are_killed(spark: SparkSession, tmp_path: Path, arrival: bool) -> None:
    kills = 4 if SOAK else 2
    dice = Random(f"workers {arrival} {FAULTS_ROUND}")
    count = 1_200 if SOAK else 200
    given = documents(count)
    all_killed = tmp_path / "all killed"
    # The times that elements got are in the front's log, and are the reference's too.
    query = (
        index_flow()
        .live(spark)
        .read(
            documents=fronts.Iterable(
                held_back(given, all_killed), rate=count / (3 * kills), arrival=arrival
            )
        )
        .write(**{name: sinks.Files(tmp_path / name) for name in ("counts", "pairs", "windows")})
        .option("workers", 2)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .option("checkpointsKept", 10_000)
        .start()
    )
    try:
        kill_workers(query, dice, kills)
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
    dice = Random(f"stopped {FAULTS_ROUND}")
    given = documents(500 if SOAK else 250)
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(given, rate=len(given) / 3))
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
    """It ends four lives that make no progress, and then the query; what is final is stored."""
    flow, poison, all_ahead_is_final = ef.Flow("poisoned"), 40, tmp_path / "all ahead is final"

    def look(number: int) -> int:
        if number == poison:
            os.kill(os.getpid(), signal.SIGKILL)  # like a crash in a C library
        return number

    flow.front("numbers").map(look).sink("out")
    # Else the first life might be lost before all ahead is final, and the next get further.
    numbers = held_back(range(100), all_ahead_is_final, last=100 - poison)
    query = (
        flow.live(spark)
        .read(numbers=fronts.Iterable(numbers))
        .write(out=sinks.Files(tmp_path / "out"))
        .option("workers", 1)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    try:
        until(
            lambda: tuple((query.lastProgress or {}).get("minimalTime") or ()) > (poison - 1, 0),
            "all ahead of the poison is final",
        )
        all_ahead_is_final.touch()
        with pytest.raises(
            PoisonedError, match=r"4 lives in a row were lost at the minimal time \((39|40),"
        ):
            query.awaitTermination(SECONDS)
    finally:
        query.stop()
    # A life may be lost before or after the front promises the time of the poison, so the minimal
    # time may advance once: three lives below that time, and then four at it.
    recoveries = len(query.recoveries)
    assert LIVES_WITHOUT_PROGRESS_MAX - 1 <= recoveries < 2 * LIVES_WITHOUT_PROGRESS_MAX - 1
    assert sinks.read_files(tmp_path / "out") == list(range(poison))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, because it is killed."""
    with running_server() as server:
        yield server


def test_the_database_of_the_sink_is_killed(
    spark: SparkSession, tmp_path: Path, server: PostgresServer
) -> None:
    dice = Random(f"database {FAULTS_ROUND}")
    given = documents(600 if SOAK else 300)
    flow = ef.Flow("to a database")
    words = flow.front("documents").flat_map(lambda document: document[1])
    words.key_by(lambda word: word).count().map(list).sink("counts")
    query = (
        flow.live(spark)
        .read(documents=fronts.Iterable(given, rate=len(given) / 4))
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
            toll("database")
            time.sleep(dice.uniform(0.0, 0.5))
            server.start_again()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    with psycopg.connect(server.dsn) as connection:
        stored = connection.execute("SELECT payload FROM counts ORDER BY id").fetchall()
    assert [row[0] for row in stored] == plain(ef.run(flow, documents=given)["counts"])


class Program:
    """A query that a module runs, in a process group of its own."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._log = open(folder / "log", "a+b")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
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


@pytest.mark.early
@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run kills a driver between topics")
def test_the_driver_is_killed_and_the_same_command_started_again(tmp_path: Path) -> None:
    """Only the driver's own process: its JVM and workers have to notice by themselves."""
    dice = Random(f"driver {FAULTS_ROUND}")
    count = 400

    def started(rate: int) -> Program:
        return Program(PROGRAM, tmp_path, "local[2]", str(tmp_path), str(count), str(rate))

    programs: list[Program] = []
    try:
        for _ in range(5):
            program = started(40)
            programs.append(program)
            assert program.line()[:1] == ["running"]
            time.sleep(dice.uniform(0.1, 1.2))
            os.kill(program.process.pid, signal.SIGKILL)
            toll("driver")
            program.process.wait(60)
        program = started(10_000)
        programs.append(program)
        while (line := program.line()) and line != ["done"]:
            assert line[0] == "running"
        assert line == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        for program in programs:
            program.end()
    check_files(tmp_path, ef.run(index_flow(), documents=documents(count)))


@pytest.mark.early
@pytest.mark.skipif(not SOAK, reason="`make soak` has it; test_clusters kills one on every run")
def test_executors_are_killed(tmp_path: Path) -> None:
    """The JVM of an executor of a local cluster, with the Python worker that it runs."""
    dice = Random(f"executors {FAULTS_ROUND}")
    count = 500
    given = ("local-cluster[2,1,512]", str(tmp_path), str(count), "40")
    program = Program(PROGRAM, tmp_path, *given)
    try:
        for _ in range(4):
            line = program.line()
            assert line[:1] == ["running"], (tmp_path / "log").read_text()[-3_000:]
            time.sleep(dice.uniform(0.1, 1.0))
            victim = int(dice.choice(line[1:]))
            os.kill(executor_of(victim), signal.SIGKILL)
            toll("executor")
        while (line := program.line()) and line != ["done"]:
            assert line[0] == "running"
        assert line == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        program.end()
    check_files(tmp_path, ef.run(index_flow(), documents=documents(count)))
