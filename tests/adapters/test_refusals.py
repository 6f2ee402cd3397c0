"""What sinks refuse about one payload: known before it is stored, and by the payload alone."""

from __future__ import annotations

import decimal
import pickle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow import Diverted, GlobalTime, sinks
from emberflow.rows.plain import NESTED_MAX, to_json
from emberflow.sinks import PayloadError, StoredBundle
from emberflow.sinks.column_types import fault
from emberflow.values.nesting import Flat
from tests.adapters.postgres_server import PostgresServer
from tests.adapters.sinks_under_test import new_table, rows
from tests.effort import examples


def nested(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


#: Payloads that a front may well make of valid JSON, and that some sink cannot store.
POISON: dict[str, Any] = {
    "deep": nested(500),
    "deeper": {"a": nested(980)},
    "surrogate": {"word": "a\ud800b"},
    "surrogate in a key": {"\udfff": 1},
    "NUL": {"word": "a\0b"},
    "digits": {"number": 10**5_000},
    "large": {"number": 2**70},
}


def test_json_takes_a_depth_that_does_not_depend_on_the_stack() -> None:
    def on_top_of(frames: int) -> None:
        if frames:
            on_top_of(frames - 1)
            return
        assert to_json(nested(NESTED_MAX)) == "[" * NESTED_MAX + "]" * NESTED_MAX
        rows: Any = 1
        for level in range(NESTED_MAX):
            rows = {"a": rows} if level % 2 else (rows,)
        to_json(rows)
        with pytest.raises(PayloadError, match=f"nested too deeply.*more than {NESTED_MAX} levels"):
            to_json(nested(NESTED_MAX + 1))

    for frames in (0, 150, 300):
        on_top_of(frames)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize("poison", [*POISON, "fine"])
def test_files_refuse_what_they_cannot_store(format: str, poison: str, tmp_path: Path) -> None:
    payload = POISON.get(poison, {"word": "ash", "number": 3})
    sink = sinks.Files(tmp_path, format=format)
    problem = sink.refuses(payload)
    writer = sink.open(0)
    bundle = StoredBundle("out", 0, GlobalTime(1, 0), [payload])
    if problem is None:
        writer.store(bundle)
        assert sink.payloads() == [payload]
    else:
        with pytest.raises(PayloadError):
            writer.store(bundle)
        assert sink.payloads() == []
    writer.close()
    refused = {"jsonl": {"deep", "deeper", "surrogate", "surrogate in a key", "digits"}}
    if format == "jsonl":
        assert (problem is not None) == (poison in refused["jsonl"])


@pytest.mark.parametrize(
    ("value", "payload", "complaint"),
    [
        ("json", POISON["surrogate"], "lone surrogate"),
        ("text", "a\ud800", "lone surrogate"),
        ("json", POISON["deep"], "nested too deeply"),
        ("json", {"word": "x" * 1_000_000}, "1,000,014 bytes, and message.max.bytes is 1,000,000"),
        ("json", {"other": 1}, "raised KeyError: 'word'"),
    ],
    ids=["surrogate", "text", "deep", "large", "key"],
)
def test_kafka_refuses_what_cannot_be_a_record(value: str, payload: Any, complaint: str) -> None:
    key = (lambda payload: payload["word"][:1]) if "word" in payload or "other" in payload else None
    sink = sinks.Kafka("broker:1", "topic", value=value, key=key, key_codec="json")
    assert complaint in (sink.refuses(payload) or "")
    assert sink.refuses("fine" if key is None else {"word": "fine"}) is None


@pytest.mark.parametrize("poison", POISON)
def test_every_sink_stores_every_diverted_record(
    poison: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """An errors sink that refuses a record would stop the query that diverts it."""
    record = Diverted(1, 0, "map 'm'", "f", "raised \ud800 and \0", POISON[poison])
    bundle = StoredBundle("errors", 0, GlobalTime(1, 0), [record])
    fields = dict.fromkeys(("step", "function", "problem", "payload"), "text")
    for sink in (
        sinks.Files(tmp_path / "jsonl"),
        sinks.Files(tmp_path / "parquet", format="parquet"),
        sinks.Postgres(postgres.dsn, new_table()),
        sinks.Postgres(postgres.dsn, new_table(), columns={"time": "bigint", **fields}),
    ):
        assert sink.refuses(record) is None
        writer = sink.open(0)
        writer.store(bundle)
        writer.close()
    assert sinks.Kafka("broker:1", "topic").refuses(record) is None
    long = record._replace(payload={"word": "x" * 2_000_000})
    assert len(sinks.Kafka("broker:1", "topic").encoded(long)[1] or b"") < 2_000


TYPES = (
    *("smallint", "integer", "bigint", "real", "double precision", "numeric", "numeric(5,2)"),
    *("text", "varchar(3)", "char(2)", "boolean", "jsonb", "text[]"),
)
numbers = (
    st.integers(-(2**70), 2**70)
    | st.sampled_from([2**15, 2**31, 2**63, -(2**31) - 1, 10**400, 999, 1000])
    | st.floats()
    | st.sampled_from([3.4028235e38, 3.4028236e38, 1e-46, 999.994, 999.995, -1000.0])
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.sampled_from([decimal.Decimal("1e400"), decimal.Decimal("1e-400")])
)
texts = st.text(st.characters(codec=None), max_size=5) | st.sampled_from(["ab  ", "a\0", "\ud800"])


@pytest.fixture(scope="module")
def connection(request: pytest.FixtureRequest) -> Any:
    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as opened:
        columns = ", ".join(f'"{number}" {kind}' for number, kind in enumerate(TYPES))
        opened.execute(f"CREATE TEMPORARY TABLE held ({columns})")
        yield opened


@settings(max_examples=examples(150))
@given(
    kind=st.sampled_from(TYPES),
    value=numbers | texts | st.booleans() | st.lists(texts, max_size=2),
)
def test_a_column_takes_what_has_no_fault_and_nothing_else(
    connection: Any, kind: str, value: Any
) -> None:
    """The server decides. It may refuse more where a value is converted from or to a text."""
    if kind == "jsonb":
        try:
            value = to_json(value)
        except PayloadError:
            return
    if isinstance(value, list) != kind.endswith("[]"):
        return
    problem = fault(value, kind)
    try:
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy(f'COPY held ("{TYPES.index(kind)}") FROM STDIN') as copy:
                copy.write_row([value])
            raise psycopg.Rollback
        is_taken = True
    except (psycopg.Error, UnicodeEncodeError):
        is_taken = False
    textual = isinstance(value, str) and kind in ("real", "double precision", "boolean")
    numeric = isinstance(value, float | decimal.Decimal) and "char" in kind
    if not textual and not numeric:
        assert is_taken == (problem is None), (problem, value)
    elif problem is not None:
        assert not is_taken


def test_a_table_that_exists_tells_its_types(postgres: PostgresServer) -> None:
    table = new_table()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (word varchar(3) NOT NULL, total integer)")
    sink = sinks.Postgres(postgres.dsn, table, columns=["word", "total"])
    sink.check()
    at_worker = pickle.loads(pickle.dumps(sink))
    assert at_worker.refuses({"word": "ash", "total": None}) is None
    assert "'total'" in at_worker.refuses({"word": "ash", "total": 2**31})
    assert "'word'" in at_worker.refuses({"word": "ember", "total": 1})
    assert "takes no NULL" in at_worker.refuses({"word": None, "total": 1})
    assert "no field 'total'" in at_worker.refuses({"word": "ash"})


def test_what_only_the_server_refuses_is_not_tried_again(postgres: PostgresServer) -> None:
    table = new_table()
    columns = {"day": "date", "total": "integer CHECK (total < 10)"}
    sink = sinks.Postgres(postgres.dsn, table, columns=columns)
    for payload in ({"day": "soon", "total": 1}, {"day": "2024-02-29", "total": 10}):
        writer = sink.open(0)
        with pytest.raises(PayloadError, match=r"The payload: \{'day'"):
            writer.store(StoredBundle("out", 0, GlobalTime(1, 0), [payload]))
        writer.close()
    assert rows(postgres.dsn, "SELECT * FROM {}", table) == []


leaves = st.none() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


@given(values)
def test_what_travels_flat_arrives_as_it_was(value: Any) -> None:
    arrived = pickle.loads(pickle.dumps(Flat(value)))
    assert arrived == value
    assert repr(arrived) == repr(value)


def test_what_holds_itself_cannot_travel() -> None:
    endless: list[Any] = []
    endless.append({"again": endless})
    with pytest.raises(ValueError, match="holds itself"):
        pickle.dumps(Flat(endless))
    twice: list[Any] = [1]
    assert pickle.loads(pickle.dumps(Flat([twice, twice]))) == [[1], [1]]
