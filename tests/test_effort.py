"""A soak tries all that a test run does, and more; the table in CONTRIBUTING.md says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import EFFORTS, SOAK, tried

ROOT = Path(__file__).parents[1]


def test_a_soak_tries_more() -> None:
    assert all(effort.every_run < effort.soak for effort in EFFORTS.values())


@pytest.mark.parametrize("what", EFFORTS)
def test_each_effort_is_made_by_a_test(what: str) -> None:
    assert tried(what) == (EFFORTS[what].soak if SOAK else EFFORTS[what].every_run)
    users = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        for text in [path.read_text()]
        if f'tried("{what}")' in text or f'blocks("{what}", ' in text
    ]
    assert len(users) == 1, users


def test_the_table_of_contributing_is_that_of_the_tests() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, table = text.split("| seeds of | `make test` | `make soak` |\n| --- | --- | --- |\n")
    rows = [row.strip("| ").split(" | ") for row in table.split("\n\n")[0].splitlines()]
    assert rows == [
        [what, f"{effort.every_run:,}", f"{effort.soak:,}"] for what, effort in EFFORTS.items()
    ]
