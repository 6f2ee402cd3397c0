"""What users install: the wheel works without a compiler, and so does the source, with slower loops."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import emberflow as ef
from emberflow.native import MODULES
from tests.base_install import BaseInstall
from tests.effort import SOAK
from tests.native.builds import COMPILER, pythons

ROOT = Path(__file__).parents[1]
#: What an sdist is made of.
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "src")
#: A test builds to see whether it works, not for speed.
QUICKLY = {"CFLAGS": "-O0 -g0"}
#: Prints what the doctor says of the compiled loops (tests/test_doctor.py).
STATUS = """
from emberflow import native
print(native.status())
"""
#: Runs `emberflow doctor` behind the example, in the same process.
DOCTOR = """
import sys
from emberflow.cli import main
sys.argv = ["emberflow", "doctor"]
main()
"""


def ran(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """What a command printed; it must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        check=False,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def first_example() -> str:
    """The first example of README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    built = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=built)
        else:
            shutil.copy(source, folder)
    ran(sys.executable, "setup.py", "--quiet", "sdist", cwd=folder)
    (archive,) = (folder / "dist").iterdir()
    return archive


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the sdist, which shows that nothing is missing there."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to build a wheel with")
    source = unpacked(sdist, tmp_path_factory.mktemp("wheel"))
    ran(sys.executable, "setup.py", "--quiet", "bdist_wheel", cwd=source, **QUICKLY)
    (archive,) = (source / "dist").glob("*.whl")
    return archive


def printed(install: BaseInstall, program: str, **environment: str) -> list[str]:
    """What a program prints behind the first example, with nothing but Python on the PATH."""
    alone = {"PATH": str(install.python.parent), "JAVA_HOME": "", **environment}
    done = install.run("-c", first_example() + program, environment=alone)
    assert done.stderr == ""
    counts, *lines = done.stdout.splitlines()
    assert counts == "{'counts': [('the', 1), ('dog', 1), ('the', 2), ('cat', 1)]}"
    return lines


def test_the_wheel_has_the_compiled_loops_and_needs_no_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.name.startswith(f"emberflow-{ef.__version__}-cp3")
    assert {"emberflow/py.typed", "pyspark_emberflow/py.typed"} <= set(names)
    assert "emberflow/runners/playback/page.html" in names
    compiled = {name.split("/")[-1].split(".")[0] for name in names if name.endswith(".so")}
    assert compiled == {f"_{module}" for module in MODULES}
    assert [name for name in names if name.endswith((".c", ".h"))] == []
    page = "emberflow/runners/live/web/page"
    served = {"page.html", "page.js", "page.css", "icon.svg", "LICENSES.txt"}
    assert {f"{page}/{name}" for name in served} <= set(names)
    install = BaseInstall(tmp_path / "venv", emberflow=False)
    ran(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", install.python),
        *("install", "--no-deps", "--no-index", "--no-compile", wheel),
        PATH=str(install.python.parent),
    )
    version, *findings = printed(install, DOCTOR)
    assert version.startswith(f"emberflow {ef.__version__} on ")
    loops = r"ok +Compiled loops +arenas, columns, loops, rows, trees, versions"
    assert re.search(loops, "\n".join(findings)), findings


def test_the_source_without_a_compiler_runs_the_loops_in_python_and_says_so(
    sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/emberflow/native/_{module}.c" for module in MODULES} <= names
    assert sdist.name == f"emberflow-{ef.__version__}.tar.gz"
    source = unpacked(sdist, tmp_path)
    build = ("setup.py", "--quiet", "build", "--build-lib", tmp_path / "built")
    ran(sys.executable, *build, cwd=source, CC="there-is-no-compiler")
    install = BaseInstall(tmp_path / "venv", emberflow=False)
    lines = printed(install, STATUS, PYTHONPATH=str(tmp_path / "built"))
    assert lines == [str(dict.fromkeys(MODULES, "python: not built"))]


@pytest.mark.skipif(not SOAK, reason="make soak: builds a wheel for each Python that is here")
def test_make_dist_makes_a_manylinux_wheel_for_each_python(tmp_path: Path) -> None:
    """Each is installed with its dependencies, which the registry has."""
    ran(ROOT / "scripts" / "build-dist", tmp_path / "dist", PYTHON=sys.executable)
    wheels = {path.name.split("-")[2]: path for path in (tmp_path / "dist").glob("*.whl")}
    assert wheels.keys() == {f"cp3{minor}" for minor in pythons()}
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    for minor, python in pythons().items():
        wheel = wheels[f"cp3{minor}"]
        assert "manylinux" in wheel.name
        folder = tmp_path / f"venv-3.{minor}"
        ran(python.path, "-m", "venv", folder)
        new = folder / "bin" / "python"
        ran(new, "-m", "pip", "install", "--quiet", wheel, PATH=str(folder / "bin"))
        alone = {"PATH": str(folder / "bin"), "PYTHONPATH": "", "EMBERFLOW_NATIVE": "1"}
        printed = ran(new, "-c", first_example(), cwd=tmp_path, **alone)
        assert printed.startswith("{'counts': [('the', 1)")
        help = ran(folder / "bin" / "emberflow", "--help", cwd=tmp_path, **alone)
        assert "Usage: emberflow" in help
