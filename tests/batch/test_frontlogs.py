"""A front log as rows, without Spark: what a task reads, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from emberflow import fronts
from emberflow.checkpoint.logs.front_log import FrontLogWriter, trim
from emberflow.errors import InputError
from emberflow.fronts import Malformed
from emberflow.rows.codec import decode
from emberflow.runners.batch.front_logs import _Given, front_log, read_pieces

NO_SPARK: Any = None


def written(folder: Path, *, payloads: bool) -> None:
    """Twelve entries of two incarnations, in many segments."""
    for incarnation in (1, 2):
        log = FrontLogWriter(folder, "docs", 0, incarnation, payloads=payloads, segment_size=1)
        for number in range(6 * incarnation - 6, 6 * incarnation):
            entry: tuple[Any, ...] = (number, 100 + number)
            log.append([(*entry, f"p{number}") if payloads else entry])
            log.sync()
        log.close()


def rows_of(given: _Given, pieces: list[tuple[int, str | None, int | None]]) -> list[Any]:
    columns = zip(*pieces, strict=True)
    kinds = (pa.int32(), pa.string(), pa.int64())
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["partition", "name", "until"])
    return [
        (time, partition, decode(payload))
        for out in read_pieces(pickle.loads(pickle.dumps(given)), [batch])
        for time, partition, payload in zip(*(c.to_pylist() for c in out.columns), strict=True)
    ]


WHOLE = [(100 + number, 0, f"p{number}") for number in range(12)]


def test_each_piece_of_a_log_with_payloads_is_read_by_itself(tmp_path: Path) -> None:
    written(tmp_path, payloads=True)
    given = _Given(str(tmp_path), "docs", None)
    pieces = given.log(0).pieces()
    assert len(pieces) > 6
    read = [rows_of(given, [(0, piece.name, piece.limit)]) for piece in pieces]
    assert [row for rows in read for row in rows] == WHOLE


def test_a_log_and_its_source_go_side_by_side(tmp_path: Path) -> None:
    written(tmp_path, payloads=False)
    source = fronts.Iterable([f"p{number}" for number in range(99)], arrival=True)
    assert rows_of(_Given(str(tmp_path), "docs", source), [(0, None, None)]) == WHOLE


def test_a_query_that_went_on_from_a_backfill_began_in_the_middle(tmp_path: Path) -> None:
    log = FrontLogWriter(tmp_path, "docs", 0, 2)
    log.append([(5, 105), (6, 106)])
    log.close()
    folder = tmp_path / "source"
    folder.mkdir()
    source = fronts.Iterable([f"p{number}" for number in range(99)], arrival=True)
    assert rows_of(_Given(str(tmp_path), "docs", source), [(0, None, None)]) == WHOLE[5:7]


def test_another_source_is_told(tmp_path: Path) -> None:
    written(tmp_path, payloads=False)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("a\nb\n")
    waits = fronts.Files(tmp_path / "source", format="text")  # waits for more records for ever
    with pytest.raises(InputError, match="read position 0 of its source next, and there it has e"):
        rows_of(_Given(str(tmp_path), "docs", waits), [(0, None, None)])


def test_what_was_malformed_did_not_go_in(tmp_path: Path) -> None:
    log = FrontLogWriter(tmp_path, "docs", 0, 1, payloads=True)
    log.append([(0, 100, "p0"), (1, 101, Malformed("?", "no element")), (2, 102, "p2")])
    log.close()
    given = _Given(str(tmp_path), "docs", None)
    (piece,) = given.log(0).pieces()
    assert rows_of(given, [(0, piece.name, piece.limit)]) == [WHOLE[0], WHOLE[2]]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_that_was_trimmed_is_not_all_that_went_in(tmp_path: Path, restarted: bool) -> None:
    written(tmp_path, payloads=True)
    assert trim(tmp_path, "docs", 0, 103)
    if restarted:  # the new header does not know which segments were removed
        FrontLogWriter(tmp_path, "docs", 0, 3, payloads=True).close()
    with pytest.raises(InputError, match=r"there was something before it.*keepFrontLogs"):
        front_log(NO_SPARK, tmp_path, "docs")


def test_what_a_log_does_not_have_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no log of a front 'docs'.*DataFrame of its source"):
        front_log(NO_SPARK, tmp_path, "docs")
    written(tmp_path, payloads=False)
    with pytest.raises(InputError, match=r"no payloads.*source=fronts.Files"):
        front_log(NO_SPARK, tmp_path, "docs")
