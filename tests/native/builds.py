"""The Pythons that this machine has, and the extension modules built for one of them with other flags."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from emberflow.native import MODULES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "emberflow" / "native"
EXERCISE = Path(__file__).with_name("exercise.py")

#: The minor versions of Python 3 that Emberflow runs on.
MINORS = range(11, 15)

COMPILER = shutil.which("cc") or shutil.which("gcc")

_FACTS = """
import json, os, sys, sysconfig
include = sysconfig.get_path("include")
print(json.dumps({
    "version": sys.version_info[:3],
    "include": include,
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "usable": os.path.exists(os.path.join(include, "Python.h"))
        and not sysconfig.get_config_var("Py_GIL_DISABLED"),
}))
"""


class Python(NamedTuple):
    path: str
    version: tuple[int, ...]
    include: str
    suffix: str

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def python_at(path: str | os.PathLike[str]) -> Python | None:
    """The Python at a path; None if it does not run, or extension modules cannot be built for it."""
    try:
        done = subprocess.run(
            [path, "-c", _FACTS], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    facts = json.loads(done.stdout)
    if not facts["usable"]:
        return None
    return Python(os.fspath(path), tuple(facts["version"]), facts["include"], facts["suffix"])


@functools.cache
def pythons() -> dict[int, Python]:
    """By minor version, one each. First this very Python; then those on PATH, and those of pyenv."""
    found: dict[int, Python] = {}
    for minor in MINORS:
        candidates: list[str | os.PathLike[str]] = []
        if sys.version_info[:2] == (3, minor):
            candidates.append(sys.executable)
        if on_path := shutil.which(f"python3.{minor}"):
            candidates.append(on_path)
        root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        candidates += sorted(root.glob(f"versions/3.{minor}.*/bin/python"), reverse=True)
        usable = (python for path in candidates if (python := python_at(path)) is not None)
        python = next((each for each in usable if each.version[:2] == (3, minor)), None)
        if python is not None:
            found[minor] = python
    return found


def build(python: Python, folder: Path, *flags: str) -> None:
    """Build the extension modules for a Python into a folder. A warning is an error."""
    assert COMPILER is not None
    folder.mkdir(parents=True, exist_ok=True)
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
    quiet = ("-Wno-cast-function-type", "-Wno-missing-field-initializers")

    def compiled(name: str) -> None:
        source, made = SOURCES / f"_{name}.c", folder / f"_{name}{python.suffix}"
        includes = ("-isystem", python.include)
        subprocess.run(
            [
                COMPILER,
                "-shared",
                "-fPIC",
                *warnings,
                *quiet,
                *flags,
                *includes,
                source,
                "-o",
                made,
            ],
            check=True,
        )

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(compiled, MODULES))


def sanitizer() -> Path | None:
    """What has to be loaded before a Python that was not built with AddressSanitizer."""
    if COMPILER is None:
        return None
    told = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    library = Path(told.stdout.strip())
    return library.resolve() if library.is_absolute() and library.exists() else None


def environment(**more: str) -> dict[str, str]:
    """Of a process that is started here: nothing of this one's packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}


def sanitized() -> dict[str, str]:
    """The environment of a process whose extension modules were built with AddressSanitizer.

    Python's own allocator would hide from it where an object ends. Python leaves much allocated when it
    ends, so leaks are looked for by other means.
    """
    library = sanitizer()
    assert library is not None
    return environment(
        LD_PRELOAD=str(library), ASAN_OPTIONS="detect_leaks=0", PYTHONMALLOC="malloc"
    )


def package(python: Python, folder: Path, *flags: str) -> Path:
    """A copy of the package with extension modules of its own; what to put on PYTHONPATH."""
    target = folder / "emberflow"
    ignored = shutil.ignore_patterns("*.so", "*.c", "*.h", "__pycache__")
    shutil.copytree(ROOT / "src" / "emberflow", target, ignore=ignored)
    build(python, target / "native", *flags)
    return folder
