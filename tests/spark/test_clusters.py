"""Live queries with executors as separate processes, and with a driver that is not Spark's.

`clusters.py` starts each cluster in a process of its own. The tests are skipped, with a message, on
machines with too little memory for several JVMs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.effort import SOAK

ROOT = Path(__file__).parents[2]
SECONDS = 280
MEMORY_GB_MIN = 3


needs_connect = pytest.mark.skipif(
    importlib.util.find_spec("zstandard") is None,
    reason="the client of Spark Connect needs zstandard, which this environment does not have",
)


def memory_gb() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, ValueError):
        return float("inf")


pytestmark = [
    pytest.mark.early,
    pytest.mark.skipif(
        memory_gb() < MEMORY_GB_MIN,
        reason=f"a cluster of several JVMs needs {MEMORY_GB_MIN} GB, and here are {memory_gb():.1f}",
    ),
    pytest.mark.skipif(os.name != "posix", reason="Spark's own scripts are for a POSIX shell"),
]


def ran(scenario: str, folder: Path) -> Any:
    """What the program printed. If it hangs, it is killed with everything that it started."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.clusters", scenario, str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        printed, told = program.communicate(timeout=SECONDS)
    except BaseException:
        os.killpg(program.pid, signal.SIGKILL)
        raise
    logs = "\n".join(log.read_text(errors="replace")[-3_000:] for log in folder.glob("*.log"))
    assert program.returncode == 0, f"{told}\n{logs}"
    return json.loads(printed.splitlines()[-1])


@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts three JVMs")
def test_two_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    found = ran("local-cluster", tmp_path)
    assert found["same"] == {"2": True, "4": True}
    assert found["executors"] == 2
    assert found["too many"].startswith("ClusterError: the query asks for 5 workers")
    assert "and Spark has 4 after 0.5 s" in found["too many"]


@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts five JVMs")
def test_two_executors_of_a_standalone_master_one_of_which_is_killed(tmp_path: Path) -> None:
    found = ran("standalone", tmp_path)
    assert "asks for 2 workers" in found["nobody there"]
    assert "and Spark has 0 after 0.5 s" in found["nobody there"]
    assert "or are not there. Start the session with more cores" in found["nobody there"]
    assert found["same"] == {"2": True, "4": True}
    assert found["executors"] == 2
    assert found["lost workers"] >= 1


@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts six JVMs")
def test_executors_that_spark_decommissions_are_left_in_time(tmp_path: Path) -> None:
    found = ran("decommissioned", tmp_path)
    assert found == {"stays": [True, True], "workers": 2, "lost": []}


@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts five JVMs")
def test_without_free_slots_fewer_workers_go_on_and_come_back(tmp_path: Path) -> None:
    found = ran("decommissioned without slots", tmp_path)
    assert found["stays"]
    assert found["recoveries"] == 0
    assert found["leaving"] == []
    assert len(found["lost"]) >= 1


@needs_connect
@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts five JVMs")
def test_on_spark_connect_the_workers_see_that_their_executor_is_decommissioned(
    tmp_path: Path,
) -> None:
    found = ran("decommissioned on connect", tmp_path)
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["stays"]
    assert found["lost"] == []


@needs_connect
@pytest.mark.skipif(not SOAK, reason="takes a minute: make soak")
def test_spark_connect(tmp_path: Path) -> None:
    found = ran("connect", tmp_path)
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["same"] == {"2": True, "3": True, "4": True}
    assert (found["slots"], found["slots unknown"]) == (4, None)
    assert "asks for 5 workers" in found["too many"]
    assert found["too many for Spark"].startswith("ClusterError: Spark has fewer than the 6 slots")
