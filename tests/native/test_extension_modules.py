"""The extension modules leak nothing and touch no memory but their own, on every Python that is here.

What takes minutes is for `make native` and `make soak`, which set EMBERFLOW_SOAK=1: other Pythons, and the
tests that hold each compiled loop to its twin, with AddressSanitizer and on every other Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emberflow import native
from tests.effort import SOAK
from tests.native import exercise
from tests.native.builds import (
    COMPILER,
    EXERCISE,
    MINORS,
    ROOT,
    SOURCES,
    Python,
    build,
    environment,
    package,
    pythons,
    sanitized,
    sanitizer,
)

#: Those that hold the compiled loops to their twins.
TWIN_TESTS = [
    ROOT / "tests" / "engine" / "test_items.py",
    ROOT / "tests" / "engine" / "test_accesses.py",
    ROOT / "tests" / "engine" / "test_columns.py",
    ROOT / "tests" / "checkpoint" / "test_rows.py",
    ROOT / "tests" / "native" / "test_switch.py",
    ROOT / "tests" / "test_persistent_map.py",
]

#: What they need on a Python that has nothing.
REQUIREMENTS = [
    "cloudpickle",
    "hypothesis",
    "pyarrow",
    "pytest",
    "pyzmq",
    "rich",
    "typer",
    "xxhash",
]

SANITIZERS = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
needs_sanitizer = pytest.mark.skipif(
    sanitizer() is None, reason="there is no compiler with AddressSanitizer (libasan)"
)
thorough = pytest.mark.skipif(not SOAK, reason="takes minutes: make native")


def exercised(python: str, folder: Path, *options: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        [python, "-X", "faulthandler", EXERCISE, folder, *options],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def has_test_hooks(python: str) -> bool:
    """Whether a Python can pretend that memory is full: distributions leave the module out."""
    return subprocess.run([python, "-c", "import _testcapi"], capture_output=True).returncode == 0


def memory(python: str) -> list[str]:
    return ["--memory"] if has_test_hooks(python) else []


@pytest.mark.skipif(not native.is_compiled(), reason="the compiled loops are not built")
def test_nothing_is_leaked() -> None:
    options = ["--runs", "20" if SOAK else "2", *memory(sys.executable)]
    exercised(sys.executable, SOURCES, *options, env=environment())


LEAKS = """
import exercise

kept = []

def keeps_what_it_makes(given):
    kept.append([given])

def keeps_what_it_is_given(given):
    kept.append(exercise.THING)

for function in (keeps_what_it_makes, keeps_what_it_is_given, len):
    case = exercise.Case("leaks", function, lambda: [[1.5]])
    print(exercise.leaks(case, exercise.on_good, 100) is not None)
"""


def test_a_leak_is_found() -> None:
    """In a process of its own: the threads of other tests would free memory meanwhile."""
    folder = Path(exercise.__file__).parent
    ran = subprocess.run(
        [sys.executable, "-c", LEAKS], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert ran.stdout.split() == ["True", "True", "False"], ran.stderr


@needs_sanitizer
def test_no_memory_but_their_own_is_touched(tmp_path: Path) -> None:
    python = pythons()[sys.version_info[1]]
    build(python, tmp_path, *SANITIZERS)
    exercised(python.path, tmp_path, "--runs", "0", *memory(python.path), env=sanitized())


@thorough
@needs_compiler
@pytest.mark.parametrize("minor", [n for n in MINORS if n != sys.version_info[1]])
def test_on_another_python(minor: int, tmp_path: Path) -> None:
    python = other_python(minor)
    build(python, tmp_path)
    exercised(python.path, tmp_path, "--runs", "2", *memory(python.path), env=environment())


def other_python(minor: int) -> Python:
    python = pythons().get(minor)
    if python is None:
        pytest.skip(f"Python 3.{minor} is not here, or its headers are not")
    return python


def twins_compared(python: str, modules: Path, folder: Path, env: dict[str, str]) -> None:
    """Run the tests that hold the compiled loops to their twins, with these extension modules."""
    settings = folder / "pytest.ini"
    settings.write_text("[pytest]\n")
    plain = ["-q", "-p", "no:cacheprovider", "-p", "tests.unhurried"]
    plain += ["--noconftest", "--import-mode=importlib"]
    done = subprocess.run(
        [python, "-m", "pytest", "-c", settings, f"--rootdir={ROOT}", *plain, *TWIN_TESTS],
        env={**env, "PYTHONPATH": f"{modules}{os.pathsep}{ROOT}", "EMBERFLOW_NATIVE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]
    assert " skipped" not in done.stdout, done.stdout


@thorough
@needs_sanitizer
@pytest.mark.timeout(1800)
def test_the_twins_are_compared_with_sanitizers(tmp_path: Path) -> None:
    python = pythons()[sys.version_info[1]]
    modules = package(python, tmp_path / "modules", "-O1", *SANITIZERS, "-fsanitize=undefined")
    twins_compared(python.path, modules, tmp_path, sanitized())


@thorough
@needs_compiler
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("minor", [n for n in MINORS if n != sys.version_info[1]])
def test_the_twins_are_compared_on_another_python(minor: int, tmp_path: Path) -> None:
    python = other_python(minor)
    modules = package(python, tmp_path / "modules", "-O2")
    twins_compared(prepared(python), modules, tmp_path, environment())


def prepared(python: Python) -> str:
    """A virtual environment of another Python with what the tests need; made once, and kept in build/."""
    folder = ROOT / "build" / "native" / str(python)
    own, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS)
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([python.path, "-m", "venv", "--clear", folder], check=True)
        install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *REQUIREMENTS], env=environment(), check=True)
        stamp.write_text(wanted)
    return str(own)
