"""YARN in cluster mode: a packed environment, a checkpoint on HDFS, an application master that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyspark
import pytest

import emberflow as ef
from emberflow import sinks
from emberflow.checkpoint.hdfs import Hdfs as HdfsClient
from emberflow.values.hashing import key_hash, owner
from tests.adapters.java_server import java
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.hadoop import program
from tests.hadoop.minicluster import (
    Yarn,
    processes_below,
    running_hdfs,
    running_yarn,
    skip_without_hadoop,
)
from tests.hadoop.packed import pack

SPARK_HOME = Path(pyspark.__file__).parent
_APPLICATION_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
_LINES_A_SECOND = 20

pytestmark = [
    pytest.mark.early,
    pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts ten JVMs"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc"),
]


def lines(count: int) -> list[dict[str, Any]]:
    dice = Random(f"lines {FAULTS_ROUND}")
    return [
        {"number": number, "words": [f"w{dice.randrange(40)}" for _ in range(4)]}
        for number in range(count)
    ]


class Writing:
    """A file that grows by a line now and then, as a log does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._path = folder / "lines.jsonl"
        self._path.touch()
        self._dice = Random(f"pauses {FAULTS_ROUND}")
        self.written: list[dict[str, Any]] = []
        self._all = iter(lines(10_000))

    def some(self) -> None:
        with self._path.open("a") as file:
            for _ in range(self._dice.randrange(1, 6)):
                line = next(self._all)
                file.write(json.dumps(line) + "\n")
                self.written.append(line)

    def until(self, true: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < deadline, f"there is still no {what}"
            self.some()
            time.sleep(3 / _LINES_A_SECOND)


def environment(yarn: Yarn) -> dict[str, str]:
    # Nothing of this process may reach the containers but by what the command says.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PY", "SPARK"))}
    return kept | {
        "HADOOP_CONF_DIR": str(yarn.configuration),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # With simple authentication a client is who it says it is: not the one who runs the cluster.
        "HADOOP_USER_NAME": "ada",
    }


def submit(packed: Path, *arguments: str) -> list[str]:
    found = java()
    assert found is not None
    java_home = str(Path(found).resolve().parents[1])
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.dynamicAllocation.enabled": "false",
        "spark.yarn.maxAppAttempts": "2",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./environment/bin/python",
        "spark.executorEnv.PYSPARK_PYTHON": "./environment/bin/python",
        "spark.yarn.appMasterEnv.JAVA_HOME": java_home,
        "spark.executorEnv.JAVA_HOME": java_home,
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        # All nodes of this cluster have Spark's jars.
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    return [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *("--master", "yarn", "--deploy-mode", "cluster"),
        *("--num-executors", "2", "--executor-cores", "1"),
        *("--archives", f"{packed}#environment"),
        *(part for item in settings.items() for part in ("--conf", "=".join(item))),
        program.__file__,
        *arguments,
    ]


def application_masters(yarn: Yarn) -> list[int]:
    """The process ids of the JVMs, not of the shells that start them."""
    return [
        pid
        for pid, command in processes_below(yarn.folder).items()
        if _APPLICATION_MASTER in command and command.partition(" ")[0].endswith("java")
    ]


def attempts(yarn: Yarn) -> set[int]:
    """The numbers of the attempts whose containers have logs."""
    logs = yarn.logs.glob("application_*/container_*/stderr")
    names = (
        re.fullmatch(r"container_(?:e\d+_)?\d+_\d+_(\d+)_\d+", log.parent.name) for log in logs
    )
    return {int(name[1]) for name in names if name}


def logs(yarn: Yarn) -> str:
    found = sorted(yarn.logs.glob("application_*/container_*/std*"))
    return "\n".join(
        f"--- {log.parent.name}/{log.name}\n{log.read_text(errors='replace')[-6_000:]}"
        for log in found
    )


def test_a_second_application_master_goes_on_from_the_checkpoint_on_hdfs(tmp_path: Path) -> None:
    skip_without_hadoop()
    packed = tmp_path / "environment.tar.gz"
    pack(packed, tmp_path)
    given, end = tmp_path / "given", tmp_path / "end"
    with running_hdfs() as hdfs, running_yarn(hdfs) as yarn:
        client = HdfsClient(hdfs.url)
        client.make_folder("/flows", 0o777)
        hdfs.cluster.getFileSystem().setPermission(_path(hdfs, "/flows"), _mode(hdfs, "777"))
        hdfs.cluster.getFileSystem().mkdirs(_path(hdfs, "/user/ada"))
        hdfs.cluster.getFileSystem().setOwner(_path(hdfs, "/user/ada"), "ada", "ada")
        writing = Writing(given)
        folder = f"{hdfs.url}/flows/words"
        with (tmp_path / "submit.log").open("wb") as log:
            submitted = subprocess.Popen(
                submit(packed, folder, str(given), str(end)),
                env=environment(yarn),
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        told = lambda: (tmp_path / "submit.log").read_text(errors="replace")[-5_000:]  # noqa: E731

        def stored() -> int:
            return sum(
                len(sinks.read_files(f"{folder}/counts", number))
                for number in range(program.PARTITIONS)
            )

        def cuts() -> list[str]:
            assert submitted.poll() is None, f"{told()}\n{logs(yarn)}"
            return client.names("/flows/words/checkpoint/cuts")

        try:
            writing.until(lambda: cuts() and stored(), f"cut and output: {told()}")
            pause = time.monotonic() + Random(f"kill {FAULTS_ROUND}").uniform(0, 2)
            writing.until(lambda: time.monotonic() > pause, "moment of the kill")
            (victim,) = application_masters(yarn)
            claims = client.names("/flows/words/checkpoint/incarnations")
            os.kill(victim, signal.SIGKILL)
            before = stored()
            writing.until(lambda: attempts(yarn) == {1, 2}, "second attempt")
            known = set(cuts())
            writing.until(lambda: set(cuts()) - known and stored() > before + 40, "further output")
            end.touch()
            assert submitted.wait(SECONDS) == 0, f"{told()}\n{logs(yarn)}"
        finally:
            if submitted.poll() is None:
                os.killpg(submitted.pid, signal.SIGKILL)
                submitted.wait(SECONDS)
        assert attempts(yarn) == {1, 2}
        assert len(client.names("/flows/words/checkpoint/incarnations")) > len(claims)
        # The second attempt had a cut to go on from, and began no second time.
        assert _bases(client)[-1] is not None, logs(yarn)
        expected = ef.run(program.flow(), lines=writing.written)["counts"]
        for number in range(program.PARTITIONS):
            assert sinks.read_files(f"{folder}/counts", number) == [
                held for held in expected if owner(key_hash(held[0]), program.PARTITIONS) == number
            ], logs(yarn)
        # The containers act for the user who submitted, not for the one who runs the node manager.
        for path in ("counts/partition-0000", "checkpoint/cuts"):
            status = client.status(f"/flows/words/{path}")
            assert status.owner == "ada", (path, status)


def _bases(client: HdfsClient) -> list[int | None]:
    """The cuts that the incarnations began from, in order."""
    folder = "/flows/words/checkpoint/incarnations"
    names = [name for name in client.names(folder) if name.endswith(".base.json")]
    return [json.loads(client.read(f"{folder}/{name}"))["base"] for name in sorted(names)]


def _path(hdfs: Any, path: str) -> Any:
    return hdfs.jvm.org.apache.hadoop.fs.Path(path)


def _mode(hdfs: Any, mode: str) -> Any:
    return hdfs.jvm.org.apache.hadoop.fs.permission.FsPermission(mode)
