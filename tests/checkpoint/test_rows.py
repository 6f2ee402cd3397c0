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
from emberflow.checkpoint.cuts.parts import packed
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.packed import HEAD, PackedRows
from emberflow.values.hashing import HASH_MAX, HASH_MIN, HashRange
from emberflow.values.persistent import PersistentList
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


def record(row: Any) -> bytes:
    """A row as it is packed."""
    key, payload = pickle.dumps(row[2], PROTOCOL), pickle.dumps(row[4], PROTOCOL)
    return HEAD.pack(*row[3][:2], row[1], len(key), len(payload)) + key + payload


def written(rows: list[Any], *, compiled: bool) -> list[dict[str, Any]]:
    file = io.BytesIO()
    kept, writer_module.row_buffers = (
        writer_module.row_buffers,
        row_buffers if compiled else lambda rows: None,
    )
    try:
        writer = writer_module.PartWriter(file, SavedLists())
        writer.add(rows)
        summary = writer.finish()
    finally:
        writer_module.row_buffers = kept
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


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(ROWS, max_size=5), st.integers(0, 40), st.integers(0, 40))
def test_packed_rows_are_sorted_and_made_columns(
    given: list[list[Any]], one: int, other: int
) -> None:
    chunks = [b"".join(map(record, rows)) for rows in given]
    rows = [row for each in given for row in each]
    order = packed.packed_order(chunks, len(rows))
    assert order == packed._packed_order(chunks, len(rows))
    begin, end = sorted((min(one, len(rows)), min(other, len(rows))))
    columns = packed.packed_columns(chunks, order, begin, end)
    assert columns == packed._packed_columns(chunks, order, begin, end)
    stable = sorted(rows, key=lambda row: row[1])[begin:end]
    assert array("q", columns[0]).tolist() == [row[1] for row in stable]
    assert columns[6] == b"".join(pickle.dumps(row[4], PROTOCOL) for row in stable)


def test_a_packed_row_that_is_cut_short_is_refused() -> None:
    whole = record(("count", 7, "a", (1, 0), 2))
    order = packed.packed_order([whole], 1)
    for size in (1, 31, len(whole) - 1):
        with pytest.raises(ValueError, match="no packed rows"):
            packed.packed_order([whole, whole[:size]], 2)
        with pytest.raises(ValueError, match="no packed rows"):
            packed.packed_columns([whole[:size]], order, 0, 1)
    for count in (0, 2):
        with pytest.raises(ValueError, match="no packed rows"):
            packed.packed_order([whole], count)
    for chunks in ([], [b""]):
        with pytest.raises(ValueError, match="no packed rows"):
            packed.packed_columns(chunks, order, 0, 1)
    with pytest.raises(ValueError, match="rows 0 to 2 of 1"):
        packed.packed_columns([whole], order, 0, 2)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.booleans(), st.integers(1, 300))
def test_packed_rows_are_written_beside_others(
    packs: list[bool], has_lists: bool, run_bytes: int
) -> None:
    """In runs of their own; and one by one, as long as the chain has lists of their step."""
    rows = [[(name, n, n, (n, 0), 5) for name in ("count", "sum")] for n in range(len(packs))]
    lists = SavedLists()
    if has_lists:
        lists.restored("sum", 0, 1, [PersistentList([1])])
        lists.begin(2, 1)
    file = io.BytesIO()
    writer = writer_module.PartWriter(file, lists, run_bytes=run_bytes, group_bytes=run_bytes)
    for chunk, packed_too in zip(rows, packs, strict=True):
        for row in chunk:
            writer.add(PackedRows(row[0], record(row), 1) if packed_too else [row])
    assert writer.finish() == (2 * len(packs), 0, len(packs) - 1)
    source = tables.Source(2, "part", lambda: io.BytesIO(file.getvalue()))
    found = list(tables.merged([source], Ranges([HashRange(HASH_MIN, HASH_MAX)])))
    assert found == sorted(Row(*row) for chunk in rows for row in chunk)
    if has_lists and packs[0]:  # the bucket has no list any more, and so the chain none of it
        lists.begin(3, 2)
        assert lists.stored("sum", 0) is None


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
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.parts.writer import PartWriter
from emberflow.engine.cuts.cut import Row

kinds = ([1, 2], ["a", None], [frozenset("a"), frozenset("b")])
for payloads in kinds:
    file = io.BytesIO()
    writer = PartWriter(file, SavedLists())
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
