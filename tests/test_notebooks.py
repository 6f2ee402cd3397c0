"""The notebooks of docs/ run, in a kernel of their own, and are stored without what they show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.effort import SECONDS, SOAK

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ["getting-started", "transactions-and-queries", "backfill-then-live"]
#: A Spark of its own takes ten seconds of processor time: on every run one notebook has it.
ON_EVERY_RUN = ["getting-started", "transactions-and-queries"]


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    )["cells"]
    return found


def test_all_notebooks_are_here_and_on_the_index() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {*NAMES}
    index = (NOTEBOOKS / "index.md").read_text(encoding="utf-8")
    assert all(f"({name}.ipynb)" in index for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_stored_without_outputs(name: str) -> None:
    for cell in cells(name):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), name, "exec")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.early] if name != "getting-started" else []),
                pytest.mark.skipif(
                    not SOAK and name not in ON_EVERY_RUN, reason="make soak runs this one"
                ),
            ],
        )
        for name in NAMES
    ],
)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It writes beside itself, and asks no configuration of this machine.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    read = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        read, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = dict(outputs(read["cells"]))
    assert "image/svg+xml" in shown, "a flow draws itself"
    assert any("<table>" in text for text in shown.get("text/html", []))
    if name == "transactions-and-queries":
        assert any("<td>bank</td>" in text for text in shown["text/html"])


def outputs(read: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """What the cells show, by type."""
    by_type: dict[str, list[str]] = {}
    for cell in read:
        for output in cell.get("outputs", ()):
            for kind, text in output.get("data", {}).items():
                by_type.setdefault(kind, []).append(text)
    yield from by_type.items()
