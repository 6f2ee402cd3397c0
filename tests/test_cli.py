"""The command line: what it prints to which stream, its exit codes, and how it finds a flow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import emberflow as ef
from emberflow import cli
from emberflow.dsl.loading import LoadingError, load_flow
from emberflow.graph import drawing
from tests.backfilled import backfilled

SHOUT = """
import emberflow as ef

flow = ef.Flow("shout")
flow.front("words").map(str.upper).sink("loud")

def whisper() -> ef.Flow:
    flow = ef.Flow("whisper")
    flow.front("words").map(str.lower).sink("quiet")
    return flow

number = 5
"""

Write: TypeAlias = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a temporary folder, and forget the modules imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(path: str, source: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
        return file

    return write


def emberflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "emberflow", *arguments],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=60,
    )


class TestGraph:
    @pytest.mark.parametrize(
        ("options", "form"),
        [([], drawing.mermaid), (["--text"], drawing.text), (["--dot"], drawing.dot)],
    )
    def test_prints_the_form_that_was_asked_for(
        self, write: Write, options: list[str], form: Callable[..., str]
    ) -> None:
        write("shop.py", SHOUT)
        result = CliRunner().invoke(cli.app, ["graph", "shop:flow", *options])
        assert result.exit_code == 0
        assert result.stdout == form(load_flow("shop:flow").graph()) + "\n"
        assert result.stderr == ""

    @pytest.mark.skipif(
        shutil.which("dot") is None,
        reason="the program 'dot' of Graphviz is not installed",
    )
    def test_writes_a_picture_also(self, write: Write, tmp_path: Path) -> None:
        pytest.importorskip("graphviz", reason="the Python package 'graphviz' is not installed")
        write("shop.py", SHOUT)
        result = CliRunner().invoke(cli.app, ["graph", "shop", "--svg", "shop.svg"])
        assert result.exit_code == 0
        assert "flowchart LR" in result.stdout
        assert result.stderr == "wrote shop.svg\n"
        assert ElementTree.parse(tmp_path / "shop.svg").getroot().tag.endswith("svg")

    def test_takes_one_form_only(self) -> None:
        result = CliRunner().invoke(cli.app, ["graph", "shop", "--text", "--dot"])
        assert result.exit_code == 2
        assert "--text" in result.stderr


class TestProgram:
    """As a user starts it, in a process of its own."""

    def test_prints_a_drawing(self, write: Write) -> None:
        write("shop.py", SHOUT)
        done = emberflow("graph", "shop:whisper", "--text")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("flow whisper\n  front words\n  map: str.lower\n")

    def test_says_what_is_wrong_without_a_traceback(self, write: Write) -> None:
        write("shop.py", "import emberflow as ef\nflow = ef.Flow('empty')")
        done = emberflow("graph", "shop:flow")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "error: flow 'empty' has no front. Begin it with flow.front(name).\n"
        )

    def test_exits_with_2_where_it_is_used_wrongly(self) -> None:
        done = emberflow("graph")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Missing argument" in done.stderr

    def test_tells_its_version(self) -> None:
        done = emberflow("--version")
        assert (done.returncode, done.stdout) == (0, f"emberflow {ef.__version__}\n")


class TestLoading:
    @pytest.mark.parametrize(
        ("target", "name"),
        [
            ("shop", "shout"),
            ("shop:flow", "shout"),
            ("shop:whisper", "whisper"),
            ("shop.py", "shout"),
            ("shop.py:whisper", "whisper"),
            ("./shop.py:flow", "shout"),
        ],
    )
    def test_by_module_or_by_file(self, write: Write, target: str, name: str) -> None:
        write("shop.py", SHOUT)
        assert load_flow(target).name == name

    def test_a_file_imports_its_neighbours(self, write: Write) -> None:
        write("flows/words.py", "def shout(word): return word.upper()")
        write("flows/shop.py", f"from words import shout\n{SHOUT}")
        assert load_flow("flows/shop.py").name == "shout"

    def test_a_file_of_a_package_is_imported_as_its_part(self, write: Write) -> None:
        write("project/shop/__init__.py", "")
        write("project/shop/words.py", "def shout(word): return word.upper()")
        write("project/shop/orders.py", f"from .words import shout\n{SHOUT}")
        assert load_flow("project/shop/orders.py").name == "shout"
        assert "shop.orders" in sys.modules

    @pytest.mark.parametrize("target", ["", ":flow", "shop:", "shop:a-b", "shop:a.b"])
    def test_says_how_a_target_is_written(self, target: str) -> None:
        with pytest.raises(LoadingError, match=r"Write module:attribute or path/to/file\.py"):
            load_flow(target)

    def test_says_what_a_module_is_named_like(self) -> None:
        with pytest.raises(LoadingError, match=r"'flows/shop' is neither a module nor a file"):
            load_flow("flows/shop:flow")

    def test_no_such_module(self, tmp_path: Path) -> None:
        with pytest.raises(LoadingError, match=r"no module 'shop\.orders'") as caught:
            load_flow("shop.orders:flow")
        assert f"this is {tmp_path}" in str(caught.value)
        assert "shop/orders.py:flow" in str(caught.value)

    def test_no_such_file(self) -> None:
        with pytest.raises(LoadingError, match=r"there is no file 'shop\.py' in .*Check the path"):
            load_flow("shop.py:flow")

    def test_a_file_that_is_no_module(self, write: Write) -> None:
        write("my-shop.py", SHOUT)
        with pytest.raises(LoadingError, match=r"'my-shop' is no name of a module\. Rename it"):
            load_flow("my-shop.py")

    def test_a_file_with_the_name_of_another_module(self, write: Write) -> None:
        write("json.py", SHOUT)
        with pytest.raises(LoadingError, match=r"another module 'json', from .*Rename the file"):
            load_flow("json.py")

    def test_a_module_that_raises(self, write: Write) -> None:
        write("shop.py", "\n1 / 0")
        with pytest.raises(LoadingError, match=r"ZeroDivisionError: .* from shop\.py:2\. Fix it"):
            load_flow("shop")

    def test_a_module_that_is_not_python(self, write: Write) -> None:
        write("shop.py", "flow = (")
        with pytest.raises(LoadingError, match=r"importing shop\.py failed: SyntaxError: .*py:1"):
            load_flow("shop.py")

    def test_a_module_that_misses_another(self, write: Write) -> None:
        write("shop.py", "import no_such_module")
        with pytest.raises(LoadingError, match=r"shop\.py:1\. Install 'no_such_module'"):
            load_flow("shop")

    def test_a_module_that_ends_the_program(self, write: Write) -> None:
        write("shop.py", "raise SystemExit(3)")
        with pytest.raises(LoadingError, match=r"ended the program .*if __name__ == '__main__'"):
            load_flow("shop")

    def test_no_such_attribute_lists_the_flows(self, write: Write) -> None:
        write("shop.py", SHOUT)
        with pytest.raises(LoadingError, match="shop has no 'orders'") as caught:
            load_flow("shop:orders")
        assert str(caught.value).endswith("It has these flows: shop:flow, shop:whisper.")

    def test_no_flow_at_all(self, write: Write) -> None:
        write("shop.py", "")
        with pytest.raises(LoadingError, match=r"has no 'flow'\. It has no flows: build one"):
            load_flow("shop")

    def test_an_attribute_that_is_no_flow(self, write: Write) -> None:
        write("shop.py", SHOUT)
        with pytest.raises(LoadingError, match=r"'number' of shop is of type int, not a Flow"):
            load_flow("shop:number")

    def test_a_class_is_no_function_that_returns_a_flow(self, write: Write) -> None:
        write("shop.py", "from emberflow import Flow")
        with pytest.raises(LoadingError, match=r"'Flow' of shop is of type type, not a Flow"):
            load_flow("shop:Flow")

    def test_a_function_that_wants_arguments(self, write: Write) -> None:
        write("shop.py", "def flow(topic, *, size, limit=5): ...")
        with pytest.raises(
            LoadingError, match=r"takes arguments: topic, size\. Give them defaults"
        ):
            load_flow("shop")

    def test_a_function_that_raises(self, write: Write) -> None:
        write("shop.py", "def flow():\n    return {}['topic']")
        with pytest.raises(LoadingError, match=r"KeyError: 'topic', raised from shop\.py:2"):
            load_flow("shop")

    def test_a_function_that_returns_no_flow(self, write: Write) -> None:
        write("shop.py", "def flow(): ...")
        with pytest.raises(LoadingError, match=r"flow \(shop\.py:1\), .* is None, not a Flow"):
            load_flow("shop")


def diffed(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["diff", *arguments])


class TestDiff:
    """`emberflow diff`: what a new version changes, and what becomes of its state."""

    FILE = """
import emberflow as ef

old, new = ef.Flow("words"), ef.Flow("words")
old.front("words").key_by(str).count(name="counts").sink("out")
lower = new.front("words").map(str.lower, name="lower")
lower.key_by(str).count(name="by word").sink("out")
"""

    def test_state_that_would_be_lost_is_told_and_exits_with_1(self, tmp_path: Path) -> None:
        file = tmp_path / "versions.py"
        file.write_text(self.FILE)
        result = diffed(f"{file}:old", f"{file}:new")
        assert result.exit_code == 1
        assert "- count counts" in result.stdout
        assert "+ map lower" in result.stdout
        assert "the state of 'counts' (count) would be lost" in result.stdout

    def test_what_is_said_is_carried(self, tmp_path: Path) -> None:
        file = tmp_path / "versions.py"
        file.write_text(self.FILE)
        result = diffed(f"{file}:old", f"{file}:new", "--carry", "by word=counts")
        assert (result.exit_code, "renamed: counts -> by word" in result.stdout) == (0, True)
        result = diffed(f"{file}:old", f"{file}:new", "--drop", "counts")
        assert result.exit_code == 0
        assert {"  dropped: counts", "  begun: by word"} <= set(result.stdout.splitlines())

    def test_a_step_begins_from_a_backfill_of_the_moment_of_the_checkpoint(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "versions.py"
        file.write_text(self.FILE)
        words = {"words": ["a", "A", "b"]}
        old, new = (load_flow(f"{file}:{name}") for name in ("old", "new"))
        query = backfilled(old, words, (2, 0), tmp_path / "query")
        early = backfilled(new, words, (1, 0), tmp_path / "early")
        history = backfilled(new, words, (2, 0), tmp_path / "history")
        arguments = (str(query), f"{file}:new", "--drop", "counts", "--begin")
        result = diffed(*arguments, f"by word={history}")
        assert result.exit_code == 0
        assert f"  backfilled: by word, from {history}" in result.stdout.splitlines()
        result = diffed(*arguments, f"by word={early}")
        assert result.exit_code == 1
        assert "until=2" in result.stdout

    def test_a_drawing_marks_what_is_new(self, tmp_path: Path) -> None:
        file = tmp_path / "versions.py"
        file.write_text(self.FILE)
        drawn = diffed(f"{file}:old", f"{file}:new", "--mermaid").stdout
        assert "class map_lower," in drawn
        assert "flowchart LR" in drawn
