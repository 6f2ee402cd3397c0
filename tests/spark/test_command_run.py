"""`emberflow run` as a user runs it: a process of its own, files in and out, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import emberflow as ef
from emberflow import cli
from emberflow.dsl.loading import load_flow
from emberflow.sinks import read_files
from tests.effort import SECONDS, SOAK

FLOW = """
import emberflow as ef
from beside import words

flow = ef.Flow("word count")
flow.front("docs").flat_map(words).key_by(lambda word: word).count().sink("counts")

failing = ef.Flow("failing")
failing.front("docs").map(lambda doc: doc["missing"]).sink("out")
"""

# A module beside the flow's, which workers must be able to import too.
BESIDE = """
def words(doc):
    return doc["text"].split()
"""

#: What a run of the flow needs at least.
READY = ["--front", "docs=files:in", "--sink", "counts=console"]

DOCS = [{"at": 10 * n, "text": f"the dog {n % 3} and the cat {n % 5}"} for n in range(40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a flow and documents. Modules imported from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("wordy", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "wordy.py").write_text(FLOW)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("".join(f"{json.dumps(doc)}\n" for doc in DOCS))
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "emberflow", "run", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUTF8": "1"}


def expected() -> list[Any]:
    """The reference's output for the same documents, as JSON stores it."""
    elements = [ef.At(doc["at"], doc) for doc in DOCS]
    outputs = ef.run(load_flow("wordy.py:flow"), docs=elements)
    return [list(count) for count in outputs["counts"]]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.05)


@pytest.mark.early
def test_files_to_files_until_ctrl_c_with_errors_diverted_and_an_upgrade(folder: Path) -> None:
    """The upgrade changes a module that the flow imports, and that workers have imported already."""
    want = expected()
    out = folder / "out"
    with (folder / "in" / "1.jsonl").open("a") as lines:
        lines.write('{"at": 1000, "title": "no text"}\n{oops\n')
        # The last document may stay open until the drain: its front could still emit at its time.
        lines.write('{"at": 1001, "text": ""}\n')
    process = subprocess.Popen(
        command(
            "wordy:flow",
            *("--front", "docs=files:in/?time=at"),
            *("--sink", "counts=files:out/"),
            *("--on-error", "divert", "--sink", "errors=files:bad/"),
            *("--workers", "2", "--name", "counting", "--log", "spark.log"),
            *("--checkpoint", "cuts"),
        ),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        wait_until(lambda: process.poll() is not None or _stored(out) >= len(want))
        (folder / "beside.py").write_text(BESIDE.replace("split", "upper().split"))
        upgraded = upgrade(folder, "counting", "wordy:flow")
        assert upgraded.stdout == "counting runs wordy:flow\n", upgraded.stderr
        refused = upgrade(folder, "counting", "wordy:failing")
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: flow 'failing': sink 'out' is not given.")
        (folder / "in" / "2.jsonl").write_text('{"at": 2000, "text": "the dog"}\n' * 3)
        want += [[word, n] for n in (1, 2, 3) for word in ("THE", "DOG")]
        wait_until(lambda: process.poll() is not None or _stored(out) >= len(want))
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert printed == ""
    assert read_files(out) == want
    without_text, oops = read_files(folder / "bad")
    assert without_text["payload"] == {"at": 1000, "title": "no text"}
    assert "raised KeyError" in without_text["problem"]
    assert oops["payload"] == "{oops"
    assert "1.jsonl, line 42, is not JSON" in oops["problem"]
    assert "Draining. Ctrl-C again ends at once." in told
    assert "Drained and ended." in told
    assert told.splitlines()[0] == "Starting Spark for counting on local[2], 2 workers ..."
    figures = " ".join(told.split("Drained and ended.")[1].split())
    assert "elements 3 " in figures  # of the version that ran last
    assert "latency p50" in figures
    assert "replay ratio" in figures
    assert "worker 1" in figures
    shown = [line for line in told.splitlines() if not line.startswith("query counting, life")]
    assert max(map(len, shown)) <= 80
    assert (folder / "spark.log").exists()


def upgrade(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "emberflow", "upgrade", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def _stored(out: Path) -> int:
    return len(read_files(out)) if (out / "partition-0000").is_dir() else 0


@pytest.mark.early
@pytest.mark.skipif(
    not SOAK, reason="`make soak` has it; every run has a command that diverts errors"
)
def test_a_function_that_raises_ends_the_command(folder: Path) -> None:
    ran = subprocess.run(
        command(
            "wordy:failing",
            *("--front", "docs=files:in/?time=at&until_end=true"),
            *("--sink", "out=console"),
        ),
        cwd=folder,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "KeyError" in ran.stderr
    assert "wordy.py:9" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Spark's log" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "front 'docs' is not given. Add --front docs=..."),
        (["--front", "docs"], "--front takes NAME=KIND:PLACE, got 'docs'"),
        (["--front", "cats=files:in"], "has no front 'cats'; it has 'docs'"),
        (["--front", "docs=ftp:topic"], "there is no kind 'ftp'"),
        (["--front", "docs=kafka:topic"], "write kafka://HOST:PORT/TOPIC"),
        (["--front", "docs=kafka://h:1/docs?tme=at"], "has no option 'tme'"),
        (
            ["--front", "docs=kafka://h:1/docs?idle_ms=soon"],
            "idle_ms takes milliseconds. A duration is an int",
        ),
        (["--front", "docs=files:"], "which folder?"),
        (["--front", "docs=files:in?until_end=maybe"], "until_end is true or false"),
        (["--front", "docs=socket:9999"], "write socket:HOST:PORT"),
        (["--front", "docs=files:in", "--front", "docs=text:in"], "given twice"),
        (["--front", "docs=files:in"], "sink 'counts' is not given"),
        (["--front", "docs=files:in", "--sink", "counts=console:x"], "takes nothing more"),
        (["--front", "docs=files:in", "--sink", "counts=postgres:x"], "?table=NAME"),
        (["--front", "docs=files:none", "--sink", "counts=console"], "is not a folder"),
        (["--front", "docs=files:in", "--sink", "counts=console", "--option", "x"], "KEY=VALUE"),
        (["--front", "docs=files:in", "--sink", "counts=console", "--option", "x=1"], "option 'x'"),
        ([*READY, "--on-error", "divert"], "no sink for them. Add --sink errors=..."),
        ([*READY, "--sink", "errors=console"], "Add --on-error divert, or leave out"),
        ([*READY, "--on-error", "ignore"], "takes 'fail' or 'divert', got 'ignore'"),
        ([*READY, "--standby"], "--standby waits for the query of a checkpoint"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    folder: Path, arguments: list[str], complaint: str
) -> None:
    result = CliRunner().invoke(cli.app, ["run", "wordy:flow", *arguments])
    assert result.exit_code == 1
    assert isinstance(result.exception, ef.EmberflowError)
    assert complaint in str(result.exception)
    assert "Starting Spark" not in result.output


def test_without_java_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(folder))
    result = CliRunner().invoke(
        cli.app, ["run", "wordy:flow", "--front", "docs=files:in", "--sink", "counts=console"]
    )
    assert result.exit_code == 1
    assert "Spark needs Java 17 or newer" in str(result.exception)
