"""`emberflow verify`: one line and exit code 0 for a clean flow, otherwise stderr and 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emberflow import cli
from emberflow.commands.elements import load_elements

CLEAN = """
import emberflow as ef

flow = ef.Flow("word count")
flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")

elements = {"lines": ["the dog", "the cat"]}

def made():
    return {"lines": ["a", "b c"]}

def drawn(random):
    return {"lines": [" ".join(random.choices("abc", k=3)) for _ in range(3)]}

def failing():
    raise ValueError("no elements today")

def two(one, other):
    return {}

number = 5
"""

IMPURE = """
import emberflow as ef

def words(record):
    return list(set(record["text"].split()))

flow = ef.Flow("distinct words")
flow.front("records").map(words).sink("words")
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean.py").write_text(CLEAN)
    (tmp_path / "impure.py").write_text(IMPURE)


def emberflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "emberflow", *arguments],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=60,
    )


def test_a_clean_flow(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the dog\n\nthe cat\n")
    ran = emberflow(
        "verify", "clean:flow", "--front", "lines=lines.txt", "--seeds", "4", "--workers", "1, 2"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (
        "flow 'word count' is deterministic as far as tried: 4 seeds on 1 and 2 workers, "
        "4 processes with different hash seeds, 3 elements, 7 calls of 2 functions checked\n"
    )


def test_an_impure_flow(tmp_path: Path) -> None:
    texts = ["to be or not to be", "the dog and the cat", "one two three four"]
    (tmp_path / "records.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    ran = emberflow("verify", "impure.py", "--front", "records=records.jsonl", "--seeds", "1")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith(
        "error: flow 'distinct words' is not deterministic: words (impure.py:4) depends on the "
        "order of a set.\n"
    )
    assert "def test_distinct_words_is_deterministic() -> None:" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["clean:flow"], "say what to run it on"),
        (["clean:flow", "--front", "lines=x", "--workers", "1,none"], "--workers takes numbers"),
        (["clean:flow", "--front", "lines=x", "--seeds", "0"], "--seeds"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(cli.app, ["verify", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert complaint in result.output


class TestElements:
    """In this process, which is faster than one process per case."""

    @pytest.fixture(autouse=True)
    def _forgetful(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", sys.path.copy())
        for name in ("clean", "impure"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    def test_of_a_dict_or_a_function(self) -> None:
        assert load_elements("clean.py", []) == ({"lines": ["the dog", "the cat"]}, None)
        assert load_elements("clean:made", []) == ({"lines": ["a", "b c"]}, None)

    def test_of_a_function_of_a_random(self) -> None:
        elements, generate = load_elements("clean:drawn", [])
        assert elements == {}
        assert generate is not None

    def test_of_files(self, tmp_path: Path) -> None:
        (tmp_path / "docs.jsonl").write_text('{"a": "x\u2028y"}\n\n[1, 2]\n', encoding="utf-8")
        (tmp_path / "lines.txt").write_text("a\n\nb")
        assert load_elements(None, ["docs=docs.jsonl", "lines=lines.txt"]) == (
            {"docs": [{"a": "x\u2028y"}, [1, 2]], "lines": ["a", "", "b"]},
            None,
        )

    @pytest.mark.parametrize(
        ("target", "fronts", "complaint"),
        [
            ("clean:number", [], "is not a dict from fronts"),
            ("clean:nothing", [], "has no 'nothing'"),
            ("clean:failing", [], "ValueError: no elements today"),
            ("clean:two", [], "takes 2 arguments"),
            ("clean:elements", ["lines=lines.txt"], "given twice"),
            (None, ["lines"], "NAME=PATH"),
            (None, ["lines=missing.txt"], "missing.txt cannot be read"),
            (None, ["docs=broken.jsonl"], "broken.jsonl:2 is not JSON"),
            (None, ["seeds=clean.py"], "parameter 'seeds'"),
        ],
    )
    def test_that_are_wrong(
        self, tmp_path: Path, target: str | None, fronts: list[str], complaint: str
    ) -> None:
        (tmp_path / "broken.jsonl").write_text("1\n{\n")
        result = CliRunner().invoke(
            cli.app,
            [
                "verify",
                "clean:flow",
                *([] if target is None else ["--elements", target]),
                *(argument for front in fronts for argument in ("--front", front)),
            ],
        )
        assert result.exit_code == 1
        assert complaint in str(result.exception)
