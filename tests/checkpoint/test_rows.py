"""The C code and Python make the same bytes of a cut's rows."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from array import array
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emberflow import native
from emberflow.checkpoint.cuts import rows as rows_module
from emberflow.checkpoint.cuts import tables
from emberflow.checkpoint.cuts.lists import PROTOCOL, SavedLists
from emberflow.engine.cuts.cut import Row, Scheduled
from tests.effort import examples

if native.rows is None:
    pytest.skip(f"rows run in {native.status()['rows']}", allow_module_level=True)
row_buffers = native.rows.row_buffers

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([sign * 2**n + d for n in range(63) for d in (-1, 0, 1) for sign in (1, -1)]),
    st.floats(),
    st.text(st.characters(max_codepoint=127), max_size=300).filter(lambda text: len(text) < 256),
    st.binary(max_size=255),
)
#: Pickle writes the same object a second time as a reference.
REPEATED = st.sampled_from(["a", "ab", b"c", ("d", 1), (("d",), None)])
PLAIN = st.recursive(
    SCALARS | REPEATED, lambda inner: st.lists(inner, max_size=5).map(tuple), max_leaves=8
).filter(lambda value: depth_of(value) < 4)
INT64 = st.integers(-(2**63), 2**63 - 1)
PLACES = st.tuples(INT64, INT64) | st.tuples(INT64, INT64, INT64, INT64)
HASHES = st.integers(-(2**31), 2**31 - 1)
ROWS = st.lists(st.tuples(st.just("count"), HASHES, PLAIN, PLACES, PLAIN), min_size=1, max_size=8)


class Text(str):
    pass


class Pair(NamedTuple):
    first: int
    second: int


def depth_of(value: Any) -> int:
    return 1 + max(map(depth_of, value), default=0) if type(value) is tuple else 0


def written(rows: list[Any], *, compiled: bool) -> list[dict[str, Any]]:
    file = io.BytesIO()
    kept, tables.row_buffers = tables.row_buffers, row_buffers if compiled else lambda rows: None
    try:
        writer = tables.PartWriter(file, SavedLists())
        writer.add(rows)
        summary = writer.finish()
    finally:
        tables.row_buffers = kept
    assert summary.rows == len(rows)
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


@settings(deadline=None)
@given(ROWS)
def test_plain_values_are_pickled_as_pickle_does(rows: list[Any]) -> None:
    _, key_ends, keys, *_, ends, payloads = row_buffers(rows)
    for offsets, data, column in ((key_ends, keys, 2), (ends, payloads, 4)):
        bounds = array("i", offsets)
        for begin, end, row in zip(bounds, bounds[1:], rows, strict=False):
            assert data[begin:end] == pickle.dumps(row[column], PROTOCOL)
        assert len(bounds) == len(rows) + 1


@settings(deadline=None, max_examples=examples(50))
@given(ROWS)
@example([("count", 0, key, (0, 0), ()) for key in (1, True, 1.0, 1, (0,), (False,))])
def test_what_is_written_is_the_same(rows: list[Any]) -> None:
    assert written(rows, compiled=True) == written(rows, compiled=False)


@settings(deadline=None)
@given(
    ROWS,
    st.sampled_from(
        [
            ("sum", 1, "a", (1, 0), 2),
            ("count", 2**70, "a", (1, 0), 2),
            ("count", 1, 2**63, (1, 0), 2),
            ("count", 1, "a", (1, -(2**63) - 1), 2),
            ("count", 1, "a", (), None),
            ("count", 1, "a", (1,), 2),
            ("count", 1, "ä", (1, 0), 2),
            ("count", 1, "a" * 256, (1, 0), 2),
            ("count", 1, "a", (1, 0), Text("b")),
            ("count", 1, "a", (1, 0), [3]),
            ("count", 1, ("a", [1]), (1, 0), 3),
            ("count", 1, "a", (1, 0), (1, (2, ((3, (4, (5,))),)))),
            ("count", 1, "a", (1, 0), Pair(1, 2)),
            ("count", 1, "a", (1, 0), tuple(range(65))),
            ("count", 1, "a", (1, 0), tuple(map(str, range(64)))),
            ("count", 1, "a", (1, 0), (1, Text("b"))),
            ("count", 1, "a", (1, 0), tuple(tuple(range(2**62, 2**62 + 64)) for _ in range(60))),
        ]
    ),
    st.integers(0, 8),
)
@example([("count", 1, 1, (1, 0), 1)], ("count", 1), 0)
def test_what_is_not_plain_is_left_to_python(rows: list[Any], other: Any, at: int) -> None:
    assert row_buffers([*rows[:at], other, *rows[at:]]) is None
    assert row_buffers([]) is None
    with pytest.raises(TypeError, match=r"argument 1 \(`rows`\) must be a list, got tuple"):
        row_buffers(tuple(rows))


def test_a_row_is_defined_once() -> None:
    assert rows_module.Row is Row
    native.rows.prepare(Row)  # it knows the same fields
    with pytest.raises(TypeError, match=r"got <class '.*Scheduled'>"):
        native.rows.prepare(Scheduled)
    # A scheduled item is laid out as a row, with its origin for a key.
    assert Scheduled._fields == tuple("origin" if name == "key" else name for name in Row._fields)


WRITES_AND_READS = """
import io, sys
from emberflow.checkpoint.cuts import tables
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.engine.cuts.cut import Row

kinds = ([1, 2], ["a", None], [frozenset("a"), frozenset("b")])
for payloads in kinds:
    file = io.BytesIO()
    writer = tables.PartWriter(file, SavedLists())
    writer.add([Row("count", n, n, (n, 0, 7), payload) for n, payload in enumerate(payloads)])
    writer.add([Row("count", 9, 9, (), None)])
    assert writer.finish().rows == 3
print("pandas" in sys.modules)
"""


def test_a_cut_does_not_import_pandas() -> None:
    """That takes a second, in which a worker does little else. ``pyarrow.array`` would."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITES_AND_READS], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "False", ran.stdout + ran.stderr
