"""Commit messages are as CONTRIBUTING.md asks: the first line is short, and in the imperative."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "scripts" / "hooks" / "commit-msg"
#: Older commits were made before anybody looked.
BASE = "cf3de20"


def the_hook() -> Any:
    loader = SourceFileLoader("commit_msg", str(HOOK))
    module = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


complaint = the_hook().complaint


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_commits_of_this_branch_have_good_first_lines() -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    if git("rev-parse", "--show-toplevel").stdout.strip() != str(ROOT):
        pytest.skip("this is not a clone: a source archive has no history")
    if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode:
        pytest.skip(f"{BASE} is not in the history: the clone is shallow")
    log = git("log", "--no-merges", "--format=%h %s", f"{BASE}..HEAD").stdout
    commits = [line.partition(" ") for line in log.splitlines()]
    bad = [
        f"{commit} {subject!r}: {complaint(subject)}"
        for commit, _, subject in commits
        if complaint(subject)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("Release a key range without waiting for slower ones", None),
        ("Process elements in order", None),
        ("Feed fronts from threads", None),
        (
            'Revert "Feed fronts from threads, whatever the number of them is, and however long it takes"',
            None,
        ),
        ("Give " + "each word " * 7, "characters"),
        ("docs: say it plainly", "capital"),
        ("Say it plainly.", "full stop"),
        ("Released a key range", "imperative"),
        ("Releasing a key range", "imperative"),
        ("Releases a key range", "imperative"),
        ("A cut lost a key", "imperative"),
        ("", "capital"),
    ],
)
def test_the_check_of_a_first_line(subject: str, problem: str | None) -> None:
    found = complaint(subject)
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Say it plainly\n\nNobody reads it twice.\n# Please enter the message.\n", 0),
        ("Said it plainly\nat once\n", 1),
        ("Say it\nat once\n", 1),
    ],
)
def test_the_hook_lets_git_commit_or_not(message: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message)
    done = subprocess.run([sys.executable, HOOK, path], capture_output=True, text=True)
    assert (done.returncode, bool(done.stderr)) == (code, bool(code))
