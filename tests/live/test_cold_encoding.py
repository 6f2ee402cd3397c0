"""The compiled columns of cold rows are those of the twin in Python, to the byte, and so are the rows of them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emberflow import native
from emberflow.engine.cuts.cut import Row
from emberflow.runners.live.cold import encoding
from tests.checkpoint.test_rows import PLAIN

if native.rows is None:
    pytest.skip(f"rows run in {native.status()['rows']}", allow_module_level=True)

INT64 = st.integers(-(2**63), 2**63 - 1)
#: Few, so that some are the same.
HASHES = st.sampled_from([-(2**31), -7, -1, 0, 1, 2**11, 2**22 + 5, 2**31 - 1])
OTHERS = st.one_of(st.text(), st.integers(), st.lists(st.integers()).map(tuple))
VALUES = st.one_of(PLAIN, OTHERS)
KINDS = (np.int32, np.int64, np.int64, np.int32, np.int64)


def rows_of(values: Any) -> Any:
    row = st.tuples(st.just("count"), HASHES, values, st.tuples(INT64, INT64), values)
    return st.lists(row.map(lambda given: Row(*given)), min_size=1, max_size=9)


def arrays(buffers: Any) -> list[Any]:
    *columns, records = buffers
    return [encoding.numbers(one, kind) for one, kind in zip(columns, KINDS, strict=True)] + [
        memoryview(records)
    ]


@settings(deadline=None)
@given(rows_of(PLAIN))
def test_columns_are_the_same(rows: list[Row]) -> None:
    plain, refused = encoding._encoded(rows)
    compiled = native.rows.cold_buffers(rows)
    assert not refused
    assert plain is not None
    for one, other in zip(arrays(compiled), arrays(plain), strict=True):
        assert bytes(one) == bytes(other)


@settings(deadline=None)
@given(rows_of(VALUES))
@example([Row("count", 7, key, (1, 0), key) for key in (1, True, 1.0, 255, 256, -1, 2**31, None)])
@example([Row("count", 7, "a" * size, (1, 0), "ä" * size) for size in (0, 1, 127, 128, 255, 256)])
def test_rows_come_back(rows: list[Row]) -> None:
    buffers, _ = encoding.encoded(rows)
    assert buffers is not None
    hashes, *columns = arrays(buffers)
    positions = list(range(len(rows)))
    given = ("count", hashes.tolist(), positions, pickle.loads, *columns)
    found = encoding.cold_rows(*given)
    assert list(map(repr, found)) == list(map(repr, encoding._cold_rows(*given)))
    in_order = sorted(rows, key=lambda row: row.key_hash)
    assert list(map(repr, found)) == list(map(repr, in_order))
    assert {type(row) for row in found} == {Row}

    keys = [row.key for row in in_order if row.key == row.key]
    firsts = [int(np.searchsorted(hashes, row.key_hash)) for row in in_order if row.key == row.key]
    for every in (1, 2):
        taken = np.zeros(len(rows), np.bool_)
        taken[::every] = every > 1
        asked = (keys, firsts, hashes, taken, pickle.loads, *columns)
        places = encoding.cold_places(*asked)
        assert places == encoding._cold_places(*asked)
        for key, place in zip(keys, places, strict=True):
            assert place < 0 or (found[place].key == key and not taken[place])


@pytest.mark.parametrize(
    "row",
    [
        ("count", 2**31, "a", (1, 0), 2),
        ("count", 1, "a", (1, 0, 3), 2),
        ("count", 1, "a", (1, 2**63), 2),
        ("count", 1, "ä", (1, 0), 2),
        ("count", 1, "a", (1, 0), [2]),
        ("count", 1, "a", (1, 0)),
    ],
)
def test_what_is_not_plain_is_left_to_python(row: Any) -> None:
    assert native.rows.cold_buffers([Row("count", 1, "b", (1, 0), 2), row]) is None
    assert native.rows.cold_buffers([]) is None


def test_what_pickle_refuses_is_told() -> None:
    rows = [Row("count", 5, "a", (1, 0), lambda: 1), Row("count", 4, "b", (2, 0), 7)]
    buffers, refused = encoding.encoded(rows)
    assert refused == {0}
    assert buffers is not None
    assert buffers[0].tolist() == [4]
    assert encoding.encoded(rows[:1]) == (None, {0})


def test_damaged_columns_are_refused() -> None:
    hashes, *columns = arrays(encoding.encoded([Row("count", 5, "a", (1, 0), 2)])[0])
    beyond = [*columns[:3], columns[3] + 1, columns[4]]
    with pytest.raises(ValueError, match="ends outside of the records"):
        native.rows.cold_rows("count", [5], [0], pickle.loads, *beyond)
    with pytest.raises(ValueError, match="differ in length"):
        native.rows.cold_rows("count", [5], [0], pickle.loads, columns[0][:0], *columns[1:])
    taken = np.zeros(2, np.bool_)
    with pytest.raises(ValueError, match="differ in length"):
        native.rows.cold_places(["a"], [0], hashes, taken, pickle.loads, *columns)
    for position in (1, -1):
        with pytest.raises(IndexError):
            native.rows.cold_rows("count", [5], [position], pickle.loads, *columns)
