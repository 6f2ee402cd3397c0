"""`sinks.Files`: names, formats, what cannot be written, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow import Diverted, GlobalTime, PersistentList, sinks
from emberflow.errors import InputError, MissingExtraError
from emberflow.rows.plain import to_json
from emberflow.sinks import PayloadError, StoredBundle
from emberflow.sinks.folders.names import name_of, time_of
from emberflow.values.item import TIE, TIME_MAX, TIME_MIN


class Word(NamedTuple):
    text: str
    count: int | None


@dataclasses.dataclass(frozen=True)
class Page:
    title: str
    words: tuple[Word, ...] = ()


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


ties = st.integers(0, 5) | st.integers(0, 2**31 - 1)
global_times = st.builds(
    GlobalTime,
    st.integers(TIME_MIN, TIME_MAX) | st.integers(-1, 1),
    st.integers(-(2**32), 2**32)
    | st.integers(-2, 2)
    | st.builds(lambda index, tie: index + tie * TIE, st.integers(0, 2), ties),
)


@given(st.lists(global_times, max_size=8))
def test_names_sort_as_times_do(times: list[GlobalTime]) -> None:
    assert [time_of(f"{name}.jsonl") for name in sorted(map(name_of, times))] == sorted(times)


def stored(folder: Path, payloads: list[Any], format: str = "jsonl", time: int = 1) -> list[Any]:
    writer = sinks.Files(folder, format=format).open(0)
    try:
        writer.store(StoredBundle("out", 0, GlobalTime(time, 0), payloads))
    finally:
        writer.close()
    return sinks.read_files(folder)


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (None, "null"),
        ("ä\u2028\n", '"ä\u2028\\n"'),
        (2**70, "1180591620717411303424"),
        (Page("p", (Word("a", 1), Word("b", None))), None),
        ({1: [True, 0.5], "b": ()}, '{"1":[true,0.5],"b":[]}'),
        (datetime.datetime(2024, 2, 29, 1, 2, tzinfo=datetime.UTC), '"2024-02-29T01:02:00+00:00"'),
        ([datetime.date(2024, 2, 29), datetime.time(1, 2)], '["2024-02-29","01:02:00"]'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (pathlib.PurePosixPath("/a"), '"/a"'),
        ({"colour": Colour.RED, "level": Level.LOW}, '{"colour":"red","level":1}'),
        (PersistentList([1, 2]), "[1,2]"),
    ],
    ids=repr,
)
def test_json_of_payloads(payload: Any, line: str | None, tmp_path: Path) -> None:
    expected = line or ('{"title":"p","words":[{"text":"a","count":1},{"text":"b","count":null}]}')
    assert to_json(payload) == expected
    (found,) = stored(tmp_path, [payload])
    assert to_json(found) == expected


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({"a": {1, 2}}, r"it holds a set, \{1, 2\}.*The payload: \{'a': \{1, 2\}\}"),
        (b"bytes", r"it holds a bytes"),
        ([float("nan")], r"JSON has no nan"),
        ({(1, 2): 3}, r"a key is a tuple, \(1, 2\)"),
        (object, r"it holds a type"),
    ],
    ids=["set", "bytes", "nan", "key", "class"],
)
def test_what_json_cannot_hold_names_the_payload(
    payload: Any, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(PayloadError, match=complaint):
        stored(tmp_path, ["fine", payload])
    assert sinks.read_files(tmp_path) == []


def endless() -> list[Any]:
    own: list[Any] = []
    own.append(own)
    return own


def test_what_is_nested_for_ever(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="nested too deeply"):
        stored(tmp_path, endless())


def test_parquet_of_rows_and_of_single_values(tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    rows = [{"a": 1, "day": day}, {"b": ["x"], "a": None}]
    assert stored(tmp_path / "rows", rows, "parquet") == [
        {"a": 1, "day": day, "b": None},
        {"a": None, "day": None, "b": ["x"]},
    ]
    words = [Word("a", 1), Word("b", None)]
    assert stored(tmp_path / "words", words, "parquet") == [word._asdict() for word in words]
    assert stored(tmp_path / "pages", [Page("p")], "parquet") == [{"title": "p", "words": []}]
    assert stored(tmp_path / "numbers", [1, None, 3], "parquet") == [1, None, 3]
    assert stored(tmp_path / "values", [{"value": 1}], "parquet") == [{"value": 1}]
    (file,) = (tmp_path / "numbers").rglob("*.parquet")
    assert pyarrow.parquet.read_table(file).column_names == ["value"]


@pytest.mark.parametrize(
    ("payloads", "complaint"),
    [
        ([{"a": 1}, 2], r"mixes payloads with fields and without.*\{'a': 1\} and 2"),
        ([{"a": 1}, {"a": 2}, {"a": "x"}, {"a": 3}], r"column 'a' cannot .*does not fit: 'x'"),
        ([{}], "no row without a field"),
        ([{1: 2}], "name of a Parquet column is text, got 1"),
        ([object()], r"column 'value' cannot .*object object"),
    ],
    ids=["mixed", "types", "empty", "name", "object"],
)
def test_what_parquet_cannot_hold(payloads: list[Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=complaint):
        stored(tmp_path, payloads, "parquet")


def test_the_format_may_change_and_strangers_are_left_alone(tmp_path: Path) -> None:
    stored(tmp_path, [{"a": 1}], time=-1)
    (tmp_path / "partition-0000" / "notes.txt").write_text("mine")
    assert stored(tmp_path, [{"a": 2}], "parquet", time=5) == [{"a": 1}, {"a": 2}]
    assert (tmp_path / "partition-0000" / "notes.txt").read_text() == "mine"


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    own = tmp_path / "partition-0000"
    own.mkdir()
    left = own / f".{name_of(GlobalTime(5, 0))}.jsonl.temporary"
    left.write_text('{"half')
    assert sinks.read_files(tmp_path) == []
    writer = sinks.Files(tmp_path).open(0)
    assert writer.last() is None
    assert not left.exists()
    writer.close()
    writer.close()  # twice is once


def test_early_checks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make"):
        sinks.Files(tmp_path / "file").check()
    with pytest.raises(InputError, match="takes 'jsonl' or 'parquet', got 'csv'"):
        sinks.Files(tmp_path, format="csv")
    assert sinks.read_files(tmp_path / "nowhere") == []


def test_parquet_without_pyarrow_says_which_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Callable[[str], None]
) -> None:
    without("pyarrow")
    with pytest.raises(MissingExtraError, match=r"emberflow\[spark\]"):
        sinks.Files(tmp_path, format="parquet")


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_what_was_diverted_is_stored_whatever_its_payload_is(format: str, tmp_path: Path) -> None:
    """A payload may be the very thing that is wrong. It must not fail the sink that shows it."""
    payloads = [3, "x", {"a": (1, None)}, {2}, b"bytes", float("nan"), object, None]
    records = [
        Diverted(number, 0, "map 'm'", "f", "raised", payload)
        for number, payload in enumerate(payloads)
    ]
    kept = sinks.Files(tmp_path, format=format)
    kept.open(0).store(StoredBundle("errors", 0, GlobalTime(7, 0), list(records)))
    stored = kept.payloads()
    assert [record["time"] for record in stored] == list(range(8))
    # A column has one type, so a row has them as text.
    read = json.loads if format == "parquet" else lambda payload: payload
    assert [read(record["payload"]) for record in stored] == [
        3,
        "x",
        {"a": [1, None]},
        "{2}",
        "b'bytes'",
        "nan",
        "<class 'object'>",
        None,
    ]
