"""`emberflow doctor`: what its probes find, and what it says and how it exits."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from emberflow.commands.diagnosis import doctor, probes
from emberflow.commands.diagnosis.children import ended
from emberflow.commands.diagnosis.probes import Finding
from emberflow.extras import EXTRAS
from tests.base_install import BaseInstall
from tests.effort import SOAK

Program: TypeAlias = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Writes a shell script that can be run."""

    def program(path: str, script: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    return program


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    return BaseInstall(tmp_path_factory.mktemp("base") / "venv")


class TestJava:
    def test_is_that_of_the_path(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        java = program("java", """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
        monkeypatch.setenv("PATH", str(java.parent))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        found = probes.java_runtime()
        assert (found.state, found.found) == ("ok", f"21.0.2 at {java} (JAVA_HOME is not set)")

    def test_is_that_of_java_home_first(
        self, program: Program, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java = program("home/bin/java", """echo 'openjdk version "17.0.1"' >&2""")
        monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
        found = probes.java_runtime()
        assert (found.state, found.found) == ("ok", f"17.0.1 at {java} (of JAVA_HOME)")

    def test_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        found = probes.java_runtime()
        assert (found.state, found.found) == ("missing", "no java is on the PATH")
        assert "apt-get install openjdk-17-jre-headless" in found.advice
        assert found.needed_for == ("live", "batch")

    def test_that_java_home_has_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        found = probes.java_runtime()
        assert found.state == "missing"
        assert found.found == f"JAVA_HOME is {tmp_path}, which has no bin/java"

    @pytest.mark.parametrize(
        ("script", "problem"),
        [
            ("""echo 'java version "1.8.0_392"' >&2""", "1.8.0_392 at .* is too old"),
            ("echo 'cannot execute' >&2; exit 126", "does not run: cannot execute"),
        ],
    )
    def test_that_does_not_do(
        self, script: str, problem: str, program: Program, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(program("home/bin/java", script).parents[1]))
        found = probes.java_runtime()
        assert found.state == "missing"
        assert re.search(problem, found.found)

    def test_that_hangs_is_not_waited_for(
        self, program: Program, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java = program("home/bin/java", "exec sleep 600")
        monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
        monkeypatch.setattr(probes, "_JAVA_SECONDS_MAX", 0.2)
        found = probes.java_runtime()
        assert found.state == "missing"
        assert found.found.endswith("does not run: did not answer in time")


class TestWorkersPython:
    def test_that_runs_this(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        assert probes.workers_python().state == "ok"

    def test_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
        found = probes.workers_python()
        assert found.state == "missing"
        assert found.found == "PYSPARK_PYTHON is /nowhere/python, and that is not on the PATH"
        assert found.advice == f"export PYSPARK_PYTHON={sys.executable}"

    def test_that_lacks_packages(self, base: BaseInstall, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYSPARK_PYTHON", str(base.python))
        found = probes.workers_python()
        assert found.state == "missing"
        assert "cannot run a worker (ModuleNotFoundError: No module named 'pyarrow')" in found.found

    def test_of_another_version(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        other = program("python", """echo '["version", "3.9"]'; exit 1""")
        monkeypatch.setenv("PYSPARK_PYTHON", str(other))
        found = probes.workers_python()
        assert found.state == "missing"
        assert "which is Python 3.9, and the driver's is 3." in found.found

    def test_that_nobody_chose_is_a_warning_because_run_chooses_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        found = probes.workers_python()
        assert found.state == "warning"
        assert "emberflow run does so by itself" in found.advice


class TestExtras:
    def test_that_are_installed_tell_their_versions(self) -> None:
        (found,) = probes.extras("postgres")
        assert found.state == "ok"
        assert found.found.startswith("psycopg 3.")

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("raise ImportError('no libzmq')", "pyzmq cannot be imported (ImportError: no libzmq)"),
            (
                "import os; os._exit(3)",
                "pyzmq cannot be imported (importing it did not come to an end)",
            ),
            (
                "import time; time.sleep(600)",
                "pyzmq cannot be imported (importing it did not come to an end)",
            ),
        ],
        ids=["raises", "crashes", "hangs"],
    )
    def test_that_cannot_be_imported(
        self, source: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Only the last package: the others take long to import.
        monkeypatch.setitem(EXTRAS, "spark", EXTRAS["spark"][-1:])
        (tmp_path / "zmq.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        if "sleep" in source:
            monkeypatch.setattr(probes, "_IMPORT_SECONDS_MAX", 2.0)
        (found,) = probes.extras("spark")
        assert (found.state, found.found) == ("missing", problem)
        assert found.advice == "pip install 'emberflow[spark]'"

    def test_that_are_too_old(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "graphviz.py").write_text("")
        (tmp_path / "graphviz-0.9.dist-info").mkdir()
        (tmp_path / "graphviz-0.9.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: graphviz\nVersion: 0.9\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        (found,) = probes.extras("graph")
        assert (found.state, found.found) == ("missing", "graphviz 0.9 is older than 0.20")


class TestTheMachine:
    def test_another_spark_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
        assert probes.spark().state == "missing"
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
        found = probes.spark()
        assert found.state == "warning"
        assert "which has Spark 3.5.1, and pyspark is 4." in found.found

    def test_an_address_that_this_machine_has_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_LOCAL_IP", "203.0.113.7")
        assert probes.ports().state == "missing"
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        found = probes.ports()
        assert (found.state, found.needed_for) == ("ok", ("live", "batch"))

    def test_a_folder_that_cannot_be_written_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/nothing")
        found = probes.temporary_folders()
        assert found.state == "missing"
        assert found.found.startswith("nothing can be written to /proc/nothing: ")

    @pytest.fixture
    def _few_open_files(self) -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    @pytest.mark.usefixtures("_few_open_files")
    def test_few_open_files(self) -> None:
        found = probes.open_files()
        assert (found.state, found.found) == ("warning", "at most 500 in a process, which is few")
        assert found.advice.startswith("ulimit -n ")

    def test_no_graphviz(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        found = probes.graphviz_program()
        assert (found.state, found.needed_for) == ("missing", ("graph --svg",))


def test_a_probe_that_fails_is_a_finding() -> None:
    def probe() -> Finding:
        raise RuntimeError("unheard of")

    (found,) = probes.guarded("Java", probe)
    assert found.state == "warning"
    assert found.found == "this could not be looked at: RuntimeError: unheard of"


def test_what_is_missing_decides_what_works() -> None:
    findings = [
        Finding("Java", "missing", "none", "", ("live", "batch")),
        Finding("Huge pages", "warning", "off"),
        Finding("Graphviz", "ok", "dot", "", ("graph --svg",)),
    ]
    works = doctor.working(findings)
    assert not works["live"]
    assert not works["batch"]
    assert works["graph --svg"]
    assert not doctor.live_works(findings)
    assert doctor.live_works(findings[1:])


def test_a_program_that_takes_too_long_is_ended_with_all_it_started() -> None:
    found = ended(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], 2.0)
    assert found.code is None
    while is_running(int(found.output)):  # or pytest's time limit ends the test
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        # One that is dead stays until its parent asks for its exit code.
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


class TestTheCommand:
    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "emberflow", "doctor", *arguments],
            capture_output=True,
            check=False,
            encoding="utf-8",
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "80", **environment},
            timeout=240,
        )

    def test_exits_with_0_where_live_works(self) -> None:
        done = self.run("--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["works"]["live"]) == (0, True), report
        assert {finding["state"] for finding in report["findings"]} <= {"ok", "warning", "missing"}
        assert [finding["name"] for finding in report["findings"]] == [
            "Python",
            "Extra 'spark'",
            "Java",
            "Spark",
            "Workers' Python",
            "Ports",
            "Temporary files",
            "Open files",
            "Compiled loops",
            "Huge pages",
            "Extra 'kafka'",
            "Extra 'registry'",
            "Extra 'delta'",
            "Extra 'iceberg'",
            "Extra 's3'",
            "Extra 'hdfs'",
            "Extra 'postgres'",
            "Extra 'graph'",
            "Graphviz",
        ]

    def test_exits_with_1_where_it_does_not(self, base: BaseInstall) -> None:
        """In the base install, whose PATH has neither Java nor Graphviz."""
        done = base.run(
            *("-m", "emberflow", "doctor", "--start"),
            environment={"PATH": str(base.python.parent), "JAVA_HOME": ""},
        )
        assert (done.returncode, done.stderr) == (1, "")
        assert "-> pip install 'emberflow[spark]'" in done.stdout
        assert "missing  Java              no java is on the PATH" in done.stdout
        assert "Does not work here: live, batch, Kafka fronts and sinks" in done.stdout
        assert "Trial" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80

    def test_a_trial_without_java_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        found = probes.trial()
        assert found.state == "missing"
        assert "Spark needs Java 17 or newer, and no java is on the PATH" in found.found

    @pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts a JVM")
    def test_a_trial_runs_a_flow_live(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        found = probes.trial()
        assert found.state == "ok", found
        assert "a flow ran live" in found.found
