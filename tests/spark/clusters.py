"""Live queries on clusters, in a program of its own, so that its JVM is not that of other tests.

    python -m tests.spark.clusters SCENARIO FOLDER

Each scenario compares live queries with the reference and prints what it saw as a line of JSON. It
ends whatever it starts, and listens on loopback only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyspark
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.driver import cluster
from emberflow.values.hashing import key_hash, owner
from tests.effort import FAULTS_ROUND, SECONDS
from tests.faults.flows import check_files, documents, index_flow

END_SECONDS = 20
SPARK_HOME = Path(pyspark.__file__).parent
LINES = [f"w{number % 7} w{number % 3} w{number % 11}" for number in range(300)]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
}


def word_count() -> ef.Flow:
    """With three partitions of the sink, so that several workers have a barrier."""
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(lambda line: line.split())
    counts = words.key_by(lambda word: word).count()
    counts.key_by(lambda count: count[0]).sink("counts", partitions=3)
    return flow


def live(spark: SparkSession, workers: int, folder: Path, **options: object) -> bool:
    """Whether a live query gives the reference's output. Its sink is written by the workers."""
    flow = word_count()
    out = folder / f"out-{workers}"
    builder = (
        flow.live(spark)
        .read(lines=fronts.Iterable(LINES))
        .write(counts=sinks.Files(out))
        .option("workers", workers)
    )
    for key, value in options.items():
        builder.option(key, value)
    query = builder.start()
    try:
        if not query.awaitTermination(SECONDS):
            raise TimeoutError(str(query.status))
    finally:
        query.stop()
    expected = [list(count) for count in ef.run(flow, lines=LINES)["counts"]]
    return all(
        list(sinks.read_files(out, partition))
        == [count for count in expected if owner(key_hash(count[0]), 3) == partition]
        for partition in range(3)
    )


def refused(start: Callable[[], object]) -> str:
    """The error of a query that cannot run."""
    try:
        start()
    except ef.EmberflowError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def executors(spark: SparkSession) -> int:
    status: Any = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return int(status.size()) - 1  # one of them is the driver


def impatient(spark: SparkSession, workers: int, folder: Path) -> str:
    """The error when the slots do not come, without the wait."""
    cluster.EXECUTORS_SECONDS_MAX = 0.5
    try:
        return refused(lambda: live(spark, workers, folder))
    finally:
        cluster.EXECUTORS_SECONDS_MAX = SECONDS  # a busy machine may take long to start JVMs


@contextmanager
def session(master: str, **settings: str) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master(master).appName("emberflow clusters")
    for key, value in (SETTINGS | settings).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def process(name: str, folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def executor_of(pid: int) -> int:
    """The JVM that a Python worker works for: the first of its ancestors that is none of Python's."""
    while True:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(") ")
        if "java" in name:
            return pid
        pid = int(rest.split()[1])


def killed_executor(spark: SparkSession, folder: Path) -> int:
    """Kill the JVM of an executor, with the Python workers that it runs; how often workers were lost.

    The output is that of the reference all the same.
    """
    given = documents(200)
    names = ("counts", "pairs", "windows")
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(given, rate=40))
        .write(**{name: sinks.Files(folder / name) for name in names})
        .option("workers", 2)
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", 200)
        .start()
    )
    try:
        deadline = time.monotonic() + SECONDS
        while (
            len((query.lastProgress or {}).get("pids", [])) < 2
            or not query.lastProgress["released"]
        ):
            if time.monotonic() > deadline or not query.isActive:
                raise TimeoutError(str(query.status))
            time.sleep(0.05)
        dice = Random(f"executor {FAULTS_ROUND}")
        time.sleep(dice.uniform(0.0, 1.0))
        os.kill(executor_of(dice.choice(query.lastProgress["pids"])), signal.SIGKILL)
        if not query.awaitTermination(SECONDS):
            raise TimeoutError(str(query.status))
    finally:
        query.stop()
    check_files(folder, ef.run(index_flow(), documents=given))
    return len(query.recoveries)


def local_cluster(folder: Path) -> dict[str, Any]:
    with session("local-cluster[2,2,1024]") as spark:
        same = {workers: live(spark, workers, folder) for workers in (2, 4)}
        return {
            "same": same,
            "executors": executors(spark),
            "too many": impatient(spark, 5, folder),
        }


def standalone(folder: Path) -> dict[str, Any]:
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    package = "org.apache.spark.deploy"
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1", "--webui-port", str(free_port()))
    with ExitStack() as running:
        running.enter_context(
            process(
                *("master", folder, spark_class, f"{package}.master.Master"),
                *(*here, "--port", str(port)),
            )
        )
        # Known by a name, as drivers often are: what listens needs the address behind it.
        settings = {"spark.driver.host": "localhost", "spark.executor.cores": "2"}
        spark = running.enter_context(session(master, **settings))
        nobody = impatient(spark, 2, folder)
        running.enter_context(
            process(
                *("worker", folder, spark_class, f"{package}.worker.Worker"),
                *("--host", "127.0.0.1", "--webui-port", str(free_port())),
                *("--cores", "4", "--memory", "2g", "--work-dir", str(folder / "work"), master),
            )
        )
        # The executors are on their way: the query waits for them.
        same = {workers: live(spark, workers, folder) for workers in (2, 4)}
        return {
            "same": same,
            "executors": executors(spark),
            "nobody there": nobody,
            "lost workers": killed_executor(spark, folder),
        }


def paced(given: list[Any], ends: Path) -> Callable[[], Iterator[Any]]:
    """The elements, slowly; and all that is left at once when there is a file."""

    def elements() -> Iterator[Any]:
        for element in given:
            if not ends.exists():
                time.sleep(0.03)
            yield element

    return elements


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


class Leaving:
    """A query whose executors are decommissioned while it runs."""

    def __init__(self, spark: SparkSession, folder: Path, workers: int) -> None:
        self.folder = folder
        folder.mkdir()
        self.given = documents(4_000)
        self.ends = folder / "ends"
        names = ("counts", "pairs", "windows")
        self.query = (
            index_flow()
            .live(spark)
            .read(documents=fronts.Iterable(paced(self.given, self.ends)))
            .write(**{name: sinks.Files(folder / name) for name in names})
            .option("workers", workers)
            .option("checkpointLocation", folder / "checkpoint")
            .option("checkpointInterval", 500)
            .start()
        )

    def pids(self) -> list[int]:
        """The processes of the workers, when each of them has worked on for a while."""
        workers = self.query.workers
        released = (self.query.lastProgress or {}).get("released", 0)

        def work() -> bool:
            if not self.query.isActive:
                raise RuntimeError(str(self.query.exception()))
            progress = self.query.lastProgress or {}
            own = progress.get("released", 0)
            return len(progress.get("pids", [])) == workers and (own > released or own < released)

        until(work, "the workers")
        return list(self.query.lastProgress["pids"])

    def left(self, worker: int, decommission: Callable[[int], None], workers: int) -> list[int]:
        """Have the executor of a worker decommissioned; the processes when so many workers go on without it.

        Spark starts another executor then, as this one has ended.
        """
        before = self.pids()
        executor = executor_of(before[worker])
        decommission(executor)

        def are_others() -> bool:
            if not self.query.isActive:
                raise RuntimeError(str(self.query.exception()))
            now = self.query.lastProgress["pids"]
            return len(now) == workers and before[worker] not in now

        until(are_others, f"{workers} workers without executor {executor}")
        # It ends by itself when nothing runs there any more.
        until(lambda: not Path(f"/proc/{executor}").exists(), f"the end of executor {executor}")
        return self.pids()

    def ended(self) -> dict[str, Any]:
        try:
            self.ends.touch()
            if not self.query.awaitTermination(SECONDS):
                raise TimeoutError(str(self.query.status))
        finally:
            self.query.stop()
        check_files(self.folder, ef.run(index_flow(), documents=self.given))
        return {"lost": [str(loss) for loss in self.query.recoveries]}


def by_signal(executor: int) -> None:
    """As the hook of a pod that ends does."""
    os.kill(executor, signal.SIGPWR)


def by_scheduler(spark: SparkSession) -> Callable[[int], None]:
    """As a cluster manager does that takes nodes away."""

    def decommission(executor: int) -> None:
        arguments = Path(f"/proc/{executor}/cmdline").read_text().split("\0")
        number = arguments[arguments.index("--executor-id") + 1]
        jvm: Any = spark.sparkContext._jvm
        none = jvm.scala.Option.empty()
        reason = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("its node drains", none)
        backend = spark.sparkContext._jsc.sc().schedulerBackend()
        assert backend.decommissionExecutor(number, reason, False, False)

    return decommission


DECOMMISSIONS = {"spark.decommission.enabled": "true"}


def decommissioned(folder: Path) -> dict[str, Any]:
    """Three executors with a slot each, of which two are in use."""
    with session("local-cluster[3,1,1024]", **DECOMMISSIONS) as spark:
        leaving = Leaving(spark, folder / "query", workers=2)
        first = leaving.pids()
        second = leaving.left(0, by_scheduler(spark), workers=2)
        third = leaving.left(1, by_signal, workers=2)
        # On a busy machine those who come may take too long: then the others go on alone first.
        stays = [first[1] in second, second[0] in third]
        return {"stays": stays, "workers": leaving.query.workers} | leaving.ended()


def decommissioned_without_slots(folder: Path) -> dict[str, Any]:
    """Executors of which all are in use: one of two, and then both."""
    with session("local-cluster[2,1,1024]", **DECOMMISSIONS) as spark:
        leaving = Leaving(spark, folder / "query", workers=2)
        query, first = leaving.query, leaving.pids()
        fewer = leaving.left(0, by_scheduler(spark), workers=1)
        until(lambda: query.workers == 2, "its number of workers")
        found: dict[str, Any] = {"stays": first[1] == fewer[0]}
        found["recoveries"] = len(query.recoveries)
        executors = [executor_of(pid) for pid in leaving.pids()]
        for executor in executors:
            by_signal(executor)
        until(lambda: query.lastProgress["leaving"] == [0, 1], "what progress says")
        os.kill(executors[0], signal.SIGKILL)
        until(lambda: bool(query.recoveries), "the loss")
        leaving.pids()
        found["leaving"] = query.lastProgress["leaving"]
        return found | leaving.ended()


def decommissioned_connect(folder: Path) -> dict[str, Any]:
    """The client cannot ask Spark's scheduler: the workers' processes see it."""
    with connect_server(folder, "local-cluster[3,1,1024]", **DECOMMISSIONS) as spark:
        leaving = Leaving(spark, folder / "query", workers=2)
        first = leaving.pids()
        second = leaving.left(0, by_signal, workers=2)
        stays = first[1] in second
        return {"stays": stays, "kind": type(spark).__module__} | leaving.ended()


@contextmanager
def connect_server(folder: Path, master: str, **given: str) -> Iterator[SparkSession]:
    """A session with a Spark Connect server in a process of its own."""
    port = free_port()
    settings = SETTINGS | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # Spark's own check of slots gives up at once, to see what follows.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
        **given,
    }
    server = process(
        *("server", folder, str(SPARK_HOME / "bin" / "spark-submit"), "--master", master),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for item in settings.items() for part in ("--conf", "=".join(item))),
        "spark-internal",
    )
    with server:
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def connect(folder: Path) -> dict[str, Any]:
    with connect_server(folder, "local[4]") as spark:
        same = {workers: live(spark, workers, folder) for workers in (2, 4)}
        same[3] = live(spark, 3, folder, coordinatorHost=f"localhost:{free_port()}")
        found = {"same": same, "slots": cluster.slots_of(spark)}
        found["too many"] = refused(lambda: live(spark, 5, folder))
        # Without our own count of slots:
        spark.conf.set("spark.sql.leafNodeDefaultParallelism", "7")
        found["slots unknown"] = cluster.slots_of(spark)
        found["too many for Spark"] = refused(lambda: live(spark, 6, folder))
        found["kind"] = type(spark).__module__
        return found


if __name__ == "__main__":
    os.environ["SPARK_HOME"] = str(SPARK_HOME)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # These JVMs only start Python, so they need no optimizing compiler. Executors take no others.
    os.environ["JDK_JAVA_OPTIONS"] = os.environ.get(
        "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )
    scenario = {
        "local-cluster": local_cluster,
        "standalone": standalone,
        "connect": connect,
        "decommissioned": decommissioned,
        "decommissioned without slots": decommissioned_without_slots,
        "decommissioned on connect": decommissioned_connect,
    }
    found = scenario[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(found)}\n")
