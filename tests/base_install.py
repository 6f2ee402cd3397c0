"""A base install of Emberflow: a virtual environment that has no extra, made without a network."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

SOURCE = Path(__file__).parents[1] / "src"
PROJECT = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = [Requirement(text).name for text in PROJECT["dependencies"]]


class BaseInstall:
    """Has what ``pip install emberflow`` would install, and nothing else but ``more``.

    The packages are links to those of the running environment, the dependencies of dependencies
    among them. ``emberflow=False`` leaves Emberflow itself to be installed.
    """

    def __init__(self, folder: Path, *more: str, emberflow: bool = True) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        for name in _with_dependencies([*BASE, *more]):
            _link(metadata.distribution(name), site_packages)
        for package in ("emberflow", "pyspark_emberflow") if emberflow else ():
            (site_packages / package).symlink_to(SOURCE / package)

    def run(
        self, *arguments: str, environment: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PY")}
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            check=False,
            encoding="utf-8",
            env={**kept, "COLUMNS": "80", **(environment or {})},
            cwd=cwd or self.folder,
            timeout=120,
        )


def _with_dependencies(names: list[str]) -> set[str]:
    found: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.append(requirement.name)
    return found


def _link(distribution: metadata.Distribution, site_packages: Path) -> None:
    for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        link = site_packages / top
        if not link.exists():
            link.symlink_to(str(distribution.locate_file(top)))
