"""`verify` takes fronts in place of lists, as `run` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import emberflow as ef
from emberflow import fronts

ROWS = [ef.At(at, number) for number, at in enumerate((1, 12, 30, 3, 2, 26, 26))]


def test_the_elements_of_fronts_that_are_not_late_are_tried(tmp_path: Path) -> None:
    flow = ef.Flow("windows")
    numbers = flow.front("numbers")
    rows = flow.front("rows").map(lambda row: row["number"])
    keyed = ef.merge(numbers, rows).key_by(lambda number: number % 2)
    keyed.window(ef.Tumbling(10), emit="close").count().sink("counts")
    lines = "".join(f"{json.dumps({'at': row.time, 'number': row.payload})}\n" for row in ROWS)
    (tmp_path / "rows.jsonl").write_text(lines)
    given = {
        "numbers": fronts.Iterable(ROWS, partitions=2, disorder=5),
        "rows": fronts.Files(tmp_path, time="at", disorder=10),
    }
    late = ef.run(flow, **given)["late"]
    assert {record.front for record in late} == {"numbers", "rows"}
    assert ef.verify(flow, **given, seeds=2).elements == 2 * len(ROWS) - len(late)


def test_a_finding_shows_them_as_a_list() -> None:
    seen: list[int] = []

    def growing(number: int) -> int:
        seen.append(number)
        return len(seen)

    flow = ef.Flow("growing")
    flow.front("numbers").map(growing).sink("out")
    with pytest.raises(ef.NondeterminismError, match="growing") as raised:
        ef.verify(flow, numbers=fronts.Iterable(ROWS, disorder=10), seeds=2)
    assert "At(" in str(raised.value)


def test_a_malformed_record_is_an_error(tmp_path: Path) -> None:
    flow = ef.Flow("lines")
    flow.front("rows").sink("out")
    (tmp_path / "rows.jsonl").write_text("{oops\n")
    with pytest.raises(ef.InputError, match=r"^front 'rows': .*rows\.jsonl"):
        ef.verify(flow, rows=fronts.Files(tmp_path, time="at"))
