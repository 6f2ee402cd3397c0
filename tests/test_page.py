"""The page in the package is the one that its sources make, and asks nobody on the internet."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "ui"
PAGE = ROOT / "src/emberflow/runners/live/web/page"


def test_the_page_was_built_from_its_sources() -> None:
    names = [
        "build.mjs",
        "package-lock.json",
        *(f"src/{path.name}" for path in (SOURCES / "src").iterdir()),
    ]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode())
        digest.update((SOURCES / name).read_bytes())
    first = (PAGE / "page.js").read_text("utf-8").partition("\n")[0]
    assert digest.hexdigest() in first, "the sources have changed: run make ui"
    for name in ("page.html", "icon.svg"):
        assert (PAGE / name).read_bytes() == (SOURCES / "src" / name).read_bytes()


def test_the_page_names_no_address_on_the_internet() -> None:
    for path in PAGE.iterdir():
        if path.name != "LICENSES.txt":
            found = set(re.findall(r"(?:https?:|wss?:)?//[\w.-]+\.\w+", path.read_text("utf-8")))
            assert found <= {"http://www.w3.org"}, path.name  # the name of SVG


def test_the_licences_of_all_that_is_bundled_are_there() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text())
    bundled = {
        name.removeprefix("node_modules/"): package["version"]
        for name, package in lock["packages"].items()
        if name and not package.get("dev")
    }
    licences = (PAGE / "LICENSES.txt").read_text()
    for name, version in bundled.items():
        assert f"{name} {version}\n" in licences
    manifest = json.loads((SOURCES / "package.json").read_text())
    pinned = {**manifest["dependencies"], **manifest["devDependencies"]}
    assert all(re.fullmatch(r"[\d.]+", version) for version in pinned.values())
