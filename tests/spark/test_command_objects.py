"""`emberflow run`, `audit` and `ui` with everything on an object store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import emberflow as ef
from emberflow import cli
from emberflow.checkpoint.objects import Objects
from emberflow.commands.views.stored import StoredQuery
from emberflow.datasource.trust import VARIABLE
from emberflow.sinks import Files, StoredBundle, read_files
from tests.adapters.s3_server import S3Server
from tests.effort import SECONDS, SOAK

pytestmark = pytest.mark.xdist_group("s3")

FLOW = """
import emberflow as ef

flow = ef.Flow("word count")
lines = flow.front("lines")
lines.flat_map(str.split).key_by(lambda word: word).count().map(list).sink("counts")
"""
LINES = [f"the dog {number % 3} and the cat {number % 5}" for number in range(10)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "lines_on_s3", raising=False)
    (tmp_path / "lines_on_s3.py").write_text(FLOW)
    return "lines_on_s3:flow"


def given(s3: S3Server) -> str:
    url = s3.new_url("command")
    for number in range(5):
        text = "".join(f"{line}\n" for line in LINES[2 * number : 2 * number + 2])
        Objects(url).put(f"in/{number}.txt", text.encode())
    return url


def expected() -> list[object]:
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(str.split)
    words.key_by(lambda word: word).count().map(list).sink("counts")
    return ef.run(flow, lines=LINES)["counts"]


def test_audit_reads_both_sides_from_a_store(module: str, s3: S3Server) -> None:
    url = given(s3)
    writer = Files(f"{url}/counts").open(0)
    writer.store(StoredBundle("counts", 0, ef.GlobalTime(1, 0), expected()))
    arguments = ["audit", module, "--front", f"lines=text:{url}/in"]
    done = CliRunner().invoke(cli.app, [*arguments, "--sink", f"counts=files:{url}/counts"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("exactly-once:")
    writer.store(StoredBundle("counts", 0, ef.GlobalTime(2, 0), expected()[-1:]))
    done = CliRunner().invoke(cli.app, [*arguments, "--sink", f"counts=files:{url}/counts"])
    assert not done.output.startswith("exactly-once:")
    done = CliRunner().invoke(cli.app, [*arguments, "--sink", f"counts=files:{url}/nothing"])
    assert done.exit_code == 1
    assert f"there is nothing at {url}/nothing" in str(done.exception or done.output)


@pytest.mark.early
@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts Spark; the parts are tested")
def test_run_audit_and_ui(module: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = given(s3)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "emberflow", "run", module, "--workers", "2"),
            *("--front", f"lines=text:{url}/in?until_end=true"),
            *("--sink", f"counts=files:{url}/counts?commit_every=0.2"),
            *("--checkpoint", f"{url}/checkpoint", "--option", "checkpointInterval=200"),
        ],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert read_files(f"{url}/counts") == expected()
    log = f"lines=log:{url}/checkpoint?source=text:{url}/in"
    arguments = ["audit", module, "--front", log, "--sink", f"counts=files:{url}/counts"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("exactly-once:")
    monkeypatch.setenv(VARIABLE, "s3://bucket")
    stored = StoredQuery(f"{url}/checkpoint")
    assert stored.summary()["stored"] == f"{url}/checkpoint"
    assert stored.reads.states
