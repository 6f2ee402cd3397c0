"""A packed environment, as conda-pack and venv-pack make it: `spark-submit --archives` unpacks it.

It has this Python, emberflow as it is here, and the packages that the extras ``spark`` and ``hdfs`` need,
except PySpark, which Spark sends itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import emberflow
from emberflow.extras import EXTRAS

_NOT_SENT = {"pyspark", "py4j"}


def pack(target: Path, scratch: Path) -> None:
    """Make ``target``, a ``.tar.gz``."""
    environment = scratch / "environment"
    made = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(environment)]
    subprocess.run(made, check=True, timeout=120)
    (site,) = environment.glob("lib/python3.*/site-packages")
    for name in _needed():
        for file in metadata.files(name) or ():
            # Scripts are above the packages, and nothing here needs one.
            if ".." not in file.parts and "tests" not in file.parts and file.suffix != ".pyc":
                copy = site / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), copy)
    shutil.copytree(
        Path(emberflow.__file__).parent,
        site / "emberflow",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for entry in environment.iterdir():
            archive.add(entry, entry.name)


def _needed() -> set[str]:
    """The packages that emberflow depends on here, and all that these depend on."""
    from packaging.requirements import Requirement

    wanted = ["cloudpickle", "rich", "typer", "xxhash"]
    wanted += [package.name for extra in ("spark", "hdfs") for package in EXTRAS[extra]]
    found: set[str] = set()
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in found or name in _NOT_SENT:
            continue
        found.add(name)
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    return found
