"""A private Hadoop: an HDFS, or a YARN, in a process of its own and a temporary folder.

It runs from the jar that `scripts/ensure-hadoop` has put into build/hadoop, and from those of PySpark,
and listens on free ports of the loopback device. These are Hadoop's own name node, data node, resource
manager and node manager. Py4J starts them, so nothing has to be compiled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.adapters.java_server import free_port, java

JARS = Path(__file__).parents[2] / "build" / "hadoop" / "minicluster"
SPARKS_JARS = Path(pyspark.__file__).parent / "jars"
_STOP_SECONDS_MAX = 30
_START_SECONDS_MAX = 240
# Small and soon there: what they do here takes no heap and no optimizing.
_JAVA = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def missing() -> str | None:
    """Why there can be no Hadoop here."""
    if not (JARS / "installed.sha256").exists():
        return "Hadoop's minicluster is not in build/hadoop/minicluster (scripts/ensure-hadoop)"
    if java() is None:
        return "no java was found to run Hadoop with"
    try:
        import hdfs_native  # noqa: F401
    except ImportError:
        return "hdfs-native is not installed (pip install 'emberflow[hdfs]')"
    return None


def skip_without_hadoop() -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)


class _Process:
    """A JVM with Hadoop's classes, and its log in the folder."""

    def __init__(self, folder: Path, name: str, heap: str) -> None:
        self.folder = folder
        self._log_path = folder / f"{name}.log"
        self._log = self._log_path.open("a")
        before = set(threading.enumerate())
        port, token, process = launch_gateway(
            jarpath=str(next(SPARKS_JARS.glob("py4j-*.jar"))),
            classpath=os.pathsep.join([f"{JARS}/*", f"{SPARKS_JARS}/*"]),
            javaopts=[f"-Xmx{heap}", *_JAVA, f"-Djava.io.tmpdir={folder}"],
            java_path=java(),
            die_on_exit=True,  # should pytest be killed
            redirect_stdout=self._log,
            redirect_stderr=self._log,
            return_proc=True,
            enable_auth=True,
            cwd=str(folder),
        )
        self.process: subprocess.Popen[bytes] = process
        self._copying = set(threading.enumerate()) - before
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        self.jvm: Any = self._gateway.jvm

    def log(self) -> str:
        self._log.flush()
        return self._log_path.read_text(errors="replace")

    def configuration(self, settings: Mapping[str, object]) -> Any:
        made = self.jvm.org.apache.hadoop.conf.Configuration()
        for key, value in settings.items():
            made.set(key, str(value))
        return made

    @contextlib.contextmanager
    def telling_errors(self) -> Iterator[None]:
        """An error of Java tells what it is only while its process lives."""
        try:
            yield
        except Py4JJavaError as error:
            raise RuntimeError(f"{error}\n{self.log()[-3_000:]}") from None

    def end(self) -> None:
        """Kill the process: nobody will read what it would put in order."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(_STOP_SECONDS_MAX)
        with contextlib.suppress(Exception):
            self._gateway.shutdown()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        # Py4J's threads copy the output until they find its end, and write it to the log.
        for thread in self._copying:
            thread.join(_STOP_SECONDS_MAX)
        self._log.close()


class Hdfs:
    """A name node and a data node. They can be killed, together, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self._is_new = True
        self._process: _Process | None = None

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self._port}"

    @property
    def jvm(self) -> Any:
        assert self._process is not None
        return self._process.jvm

    def start(self) -> None:
        self._process = process = _Process(self.folder, "hdfs", "256m")
        settings = {
            "hdfs.minidfs.basedir": self.folder / "dfs",
            "dfs.replication": 1,
            "dfs.namenode.safemode.extension": 0,
            # A data node that is back is known at once.
            "dfs.heartbeat.interval": 1,
        }
        conf = process.configuration(settings)
        with process.telling_errors():
            cluster = (
                process.jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(conf)
                .nameNodePort(self._port)
                .numDataNodes(1)
                .format(self._is_new)
                .build()
            )
            cluster.waitActive()
        self.cluster = cluster
        self._is_new = False

    def kill(self) -> None:
        """As a loss of power would."""
        assert self._process is not None
        self._process.end()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()


@contextlib.contextmanager
def running_hdfs() -> Iterator[Hdfs]:
    """An HDFS for as long as this lasts; skips the test where there can be none."""
    skip_without_hadoop()
    folder = Path(tempfile.mkdtemp(prefix="emberflow-hdfs-"))
    hdfs = Hdfs(folder)
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Yarn:
    """A resource manager and a node manager, for applications whose default file system is an HDFS."""

    def __init__(self, folder: Path, file_system: str) -> None:
        self.folder = folder
        self._file_system = file_system
        self._process: _Process | None = None
        #: What clients need to find it: HADOOP_CONF_DIR.
        self.configuration = folder / "conf"
        self.logs = folder / "logs"

    def start(self) -> None:
        here = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.bind-host": "127.0.0.1",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.bind-host": "127.0.0.1",
        } | {
            f"yarn.{name}address": f"127.0.0.1:{free_port()}"
            for name in (
                *("resourcemanager.", "resourcemanager.scheduler.", "resourcemanager.admin."),
                *("resourcemanager.resource-tracker.", "resourcemanager.webapp."),
                *("nodemanager.", "nodemanager.localizer.", "nodemanager.webapp."),
            )
        }
        files = {
            "core-site": {"fs.defaultFS": self._file_system},
            "hdfs-site": {"dfs.replication": 1},
            "yarn-site": here,
        }
        self.configuration.mkdir()
        for name, settings in files.items():
            (self.configuration / f"{name}.xml").write_text(_xml(settings))
        self._process = process = _Process(self.folder, "yarn", "384m")
        settings = {
            # It neither ends the process nor wants metrics of its own.
            "yarn.is.minicluster": "true",
            # As much as the tests need, whatever this machine has.
            "yarn.nodemanager.resource.memory-mb": 8192,
            "yarn.nodemanager.resource.cpu-vcores": 16,
            "yarn.scheduler.minimum-allocation-mb": 256,
            "yarn.nodemanager.local-dirs": self.folder / "local",
            "yarn.nodemanager.log-dirs": self.logs,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": 3600,
            "yarn.nodemanager.sleep-delay-before-sigkill.ms": 250,
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
        }
        conf = process.configuration(here | files["core-site"] | settings)
        server = process.jvm.org.apache.hadoop.yarn.server
        # Two daemons in a process have sources of metrics of the same names.
        process.jvm.org.apache.hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)
        with process.telling_errors():
            manager = server.resourcemanager.ResourceManager()
            manager.init(process.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(conf))
            manager.start()
            node = server.nodemanager.NodeManager()
            node.init(process.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(conf))
            node.start()
            deadline = time.monotonic() + _START_SECONDS_MAX
            while not manager.getRMContext().getRMNodes().size():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the node manager did not come:\n{process.log()[-5_000:]}")
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _xml(settings: Mapping[str, object]) -> str:
    lines = (
        f"<property><name>{key}</name><value>{value}</value></property>"
        for key, value in settings.items()
    )
    return "\n".join(["<configuration>", *lines, "</configuration>"])


@contextlib.contextmanager
def running_yarn(hdfs: Hdfs) -> Iterator[Yarn]:
    folder = Path(tempfile.mkdtemp(prefix="emberflow-yarn-"))
    yarn = Yarn(folder, hdfs.url)
    try:
        yarn.start()
        yield yarn
    finally:
        yarn.stop()
        _end_processes_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def processes_below(folder: Path) -> dict[int, str]:
    """The processes whose working directory is below a folder, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").resolve().is_relative_to(folder.resolve()):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
    return found


def _end_processes_below(folder: Path) -> None:
    """Containers outlive a node manager that was killed."""
    for pid in processes_below(folder):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
