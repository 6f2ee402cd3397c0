"""A front log as rows, without Spark: what a task reads, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import emberflow as ef
from emberflow import fronts
from emberflow.checkpoint.logs.front_log import FrontLogWriter, trim
from emberflow.checkpoint.logs.segments import OwnTime
from emberflow.commands.logs import logged_elements
from emberflow.errors import InputError, Late
from emberflow.fronts import Element, Malformed
from emberflow.rows.codec import decode
from emberflow.rows.inputs import Checked, Stamps
from emberflow.rows.paths import front_of
from emberflow.rows.readers import Reader
from emberflow.runners.batch.front_logs import _Given, front_log, read_pieces
from emberflow.runners.batch.passes.stamping import StampedRows
from emberflow.runners.elements import LateElement
from emberflow.values.event_time import IN_ORDER
from emberflow.values.item import TIE

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


def batches_of(
    given: _Given, pieces: list[tuple[int, str | None, int | None]]
) -> list[pa.RecordBatch]:
    rows = [(*piece, number) for number, piece in enumerate(pieces)]
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64())
    columns = zip(zip(*rows, strict=True), kinds, strict=True)
    arrays = [pa.array(list(column), kind) for column, kind in columns]
    batch = pa.RecordBatch.from_arrays(arrays, names=["partition", "name", "until", "number"])
    return list(read_pieces(pickle.loads(pickle.dumps(given)), [batch]))


def rows_of(given: _Given, pieces: list[tuple[int, str | None, int | None]]) -> list[Any]:
    return [
        (time, partition, decode(payload))
        for out in batches_of(given, pieces)
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


# --- Fronts with times of their own: their logs have promises -----------------------------------------

#: Time, payload and promise of each record. The second is late by the promise alone, and the fourth by
#: the records.
RECORDS = [(10, "a", 10), (15, "b", 20), (31, "c", 31), (20, "d", 31), (31, "e", 31)]
#: Time, tie and payload of those that entered.
ENTERED = [(10, 0, "a"), (31, 0, "c"), (31, 2, "e")]


class Silent:
    """A front that promises while it is idle; as it is read again, it promises nothing."""

    partitions, arrival, promises = 1, False, True

    def read(self, partition: int, position: Any) -> Any:
        for number, (time, payload, _) in enumerate(RECORDS):
            yield Element(number, payload, time)


@pytest.mark.parametrize("has_payloads", [False, True])
def test_records_are_stamped_with_the_promises_of_the_log(
    tmp_path: Path, has_payloads: bool
) -> None:
    log = FrontLogWriter(tmp_path, "docs", 0, 1, payloads=has_payloads, segment_size=1)
    for number, (time, payload, promised) in enumerate(RECORDS):
        entry = (number, promised)
        log.append([(*entry, OwnTime(time, payload)) if has_payloads else entry])
        log.sync()
    log.close()
    flow = ef.Flow("docs")
    flow.front("docs").sink("out")
    front = flow.graph().fronts["docs"]
    source = Silent()
    given = _Given(str(tmp_path), "docs", source, has_own_times=True)
    pieces: list[Any] = [(0, None, None)]
    if has_payloads:
        pieces = [(0, piece.name, piece.limit) for piece in given.log(0).pieces()]
        with pytest.raises(InputError, match=r"times of its own.*source=fronts.Socket"):
            front_log(NO_SPARK, tmp_path, "docs")
    reader = Reader(front, ("_payload",), (None,), "bytes")
    stamps = Stamps(IN_ORDER, drops_malformed=True)
    checked = Checked(front, reader, "time", (), "ms", "_partition", 1, stamps, is_logged=True)
    stamped = StampedRows(checked)
    elements: list[Any] = []
    late: list[Any] = []
    for out in batches_of(given, pieces):
        times, partitions, payloads, numbers, promised = out.columns
        tied = pa.array([False] * len(times))
        columns = [times, tied, payloads, partitions.cast(pa.int64()), numbers, promised]
        entered = stamped.add(pa.RecordBatch.from_arrays(columns, names=list("abcdef")))
        elements += zip(*entered[0], strict=True)
        late += entered[1].payloads
    assert [(time, front_of(path) // TIE, payload) for time, path, payload in elements] == ENTERED
    assert late == [Late(15, "docs", 0, 1, 5, "b"), Late(20, "docs", 0, 3, 11, "d")]
    # The command `audit` reads the same log.
    logged = list(
        logged_elements(flow.graph(), "docs", f"{tmp_path}?source=silent", lambda spec: Silent())
    )
    found = [one for one in logged if not isinstance(one[2], LateElement)]
    assert [(at.time, at.front // TIE, payload) for at, _, payload in found] == ENTERED
    assert [one[2].record for one in logged if isinstance(one[2], LateElement)] == late
