"""Spark sessions and Kafka brokers that tests share, and which process runs which test.

`make test` has five processes for two cores, so that tests that wait do not idle a core. Three of them
have a Spark session each: one for batch, one for live queries, one for live queries that lose processes or
change their version. The sessions take about as long as one another. The others have everything else, and
whoever is done helps them. What takes longest is begun first: the sessions and the tests that share a Kafka
broker, then tests that are marked `early`, then smaller groups.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.doctest import DoctestModule

import tests.unhurried  # noqa: F401 - for all examples of hypothesis
from tests.adapters.java_server import free_port
from tests.adapters.kafka_broker import JARS, KafkaBroker, running_broker
from tests.adapters.s3_server import FaultyS3, S3Server, environment
from tests.adapters.s3_server import running_server as running_s3_server
from tests.faults.toll import toll_of_the_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]

#: The tests of these modules share the session for batch.
BATCH = {
    "test_comparison",
    "test_backfill",
    "test_batch",
    "test_batch_versions",
    "test_checkpoint_parts",
    "test_contract",
    "test_setup",
    "test_sql_over_state",
}
#: And these the session of the folder `faults`. All other tests on Spark share the third one.
FAULTS = {"test_arrival", "test_commit_every", "test_shadows", "test_upgrades"}
#: Fixtures that are servers: those who want one and no session share it, in one process.
SERVERS = ("kafka", "postgres", "s3")
#: Groups that take long, the longest first.
FIRST = ("live", "faults", "batch", "kafka")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A session takes seconds to start. With `--dist loadgroup` the tests of a group run in one
    # process, and so with one session. A test has one group at most: xdist would join the names.
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group(session_of(item.path)))
        elif group_of(item) is None:
            wanted = servers_of(item)
            if wanted:
                item.add_marker(pytest.mark.xdist_group(wanted[0]))
    items.sort(key=turn_of)  # processes are given groups in this order (`--no-loadscope-reorder`)


def servers_of(item: pytest.Item) -> list[str]:
    """The servers that a test wants. Tests of checkpoints want the one for objects by a parameter."""
    fixtures = getattr(item, "fixturenames", ())
    wanted = [server for server in SERVERS if server in fixtures]
    if wanted or not hasattr(item, "callspec"):
        return wanted
    given = item.callspec.params.values()
    return ["s3"] if any(isinstance(one, str) and one == "objects" for one in given) else []


def group_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return None if marker is None else marker.args[0]


def turn_of(item: pytest.Item) -> int:
    """When a test is begun: those with the lowest first."""
    group = group_of(item)
    if group in FIRST:
        return FIRST.index(group)
    if item.get_closest_marker("early") is not None:
        return len(FIRST)
    return len(FIRST) + (1 if group is not None else 2)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    # Collecting makes a million objects that stay. The collector of garbage would visit them again and
    # again, which is a third of the time that collecting takes.
    gc.disable()
    try:
        worker = getattr(session.config, "workerinput", None)
        asked_for = {Path(asked).resolve() for asked in session.config.args}
        if worker is not None and ROOT / "tests" in asked_for:
            import_in_turn(int(worker["workerid"].removeprefix("gw")), worker["workercount"])
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def import_in_turn(number: int, processes: int) -> None:
    """Import the modules of tests, each process from another one on.

    In a fresh clone pytest rewrites the assertions of every module before it can be imported, and keeps the
    result for the next process. All processes collect at once and in the same order, so each of them
    would rewrite all modules. This way each process rewrites its share, and finds those of the others.
    """
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    first = len(modules) * number // processes
    for path in modules[first:] + modules[:first]:
        with suppress(Exception, pytest.skip.Exception):  # whoever collects it tells
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    # Modules of tests have no doctests, and every process would search all of them.
    found = yield
    if not file_path.name.startswith("test_"):
        return found
    return [collector for collector in found if not isinstance(collector, DoctestModule)]


def session_of(path: Path) -> str:
    """Which session the tests of a file share."""
    if path.stem in BATCH:
        return "batch"
    return "faults" if path.stem in FAULTS or path.parent.name == "faults" else "live"


#: By process: how many tests it has run, and when it ended the last one.
_processes: dict[str, tuple[int, float]] = {}
_began = time.monotonic()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    node = getattr(report, "node", None)
    if node is not None and report.when == "teardown":
        tests, _ = _processes.get(node.gateway.id, (0, 0.0))
        _processes[node.gateway.id] = tests + 1, time.monotonic() - _began


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if line := toll_of_the_run():
        terminalreporter.write_line(line)
    # Whoever ends long before the others has too little to do: see `FIRST`.
    ended = ", ".join(
        f"{name} after {seconds:.0f} s ({tests} tests)"
        for name, (tests, seconds) in sorted(_processes.items())
    )
    if ended:
        terminalreporter.write_line(f"processes ended: {ended}")


@pytest.fixture(scope="session")
def spark(s3_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Set by the Makefile; needed when pytest is called directly.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Imported here, so that a broken installation fails these tests and not the collection of all.
    from pyspark.sql import SparkSession

    # Without the connector, the tests that need it are skipped.
    connector = ",".join(map(str, (JARS / "spark").glob("*.jar")))
    builder = SparkSession.builder
    if connector:
        builder = builder.config("spark.jars", connector)
    builder = (
        builder.master("local[4]")
        .appName("emberflow tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.python.daemon.module", "tests.worker_daemon")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # for the daemon
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Where this process and all that it starts look for an S3 server. There need not be one."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(f"http://127.0.0.1:{port}").items():
            patch.setenv(name, value)
        yield port


@pytest.fixture(scope="session")
def s3(s3_port: int) -> Iterator[S3Server]:
    with running_s3_server(s3_port) as server:
        yield server


@pytest.fixture
def faulty(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """What makes faults in front of the server, for what connects from now on. It tries again soon."""
    from emberflow.checkpoint import objects

    proxy = FaultyS3(s3)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setattr(objects, "_PAUSE_SECONDS_MIN", 0.005)
    yield proxy
    proxy.close()
