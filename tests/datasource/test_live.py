"""Reads of a live query whose server may be anybody's: it can send wrong rows, and run nothing."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from emberflow.datasource.options import SourceOptions
from emberflow.datasource.state import state_reader, state_schema
from emberflow.datasource.stream_reader import sink_schema
from emberflow.errors import EmberflowError, InputError
from emberflow.rows.conditions import Condition
from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.serving.bridge import Bridge
from emberflow.runners.live.serving.messages import decoded, encoded
from emberflow.runners.live.serving.state_service import StateReads, StateService
from emberflow.runners.live.serving.tokens import new_token
from tests.adapters.structured import SCHEMA, placed_front
from tests.datasource.test_trust import Bomb
from tests.effort import examples

COLUMNS = {"key": "string", "value": "long", "time": "long", "front": "long"}


def schema_json(**types: Any) -> str:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def udt(exploded: Path) -> dict[str, Any]:
    """The JSON of a type whose class is unpickled by Spark's own parser."""
    bomb = base64.b64encode(cloudpickle.dumps(Bomb(exploded))).decode()
    return {"type": "udt", "pyClass": "os.NoSuchClass", "serializedClass": bomb, "sqlType": "long"}


def rows(**columns: Any) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    file = pa.BufferOutputStream()
    with pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(file.getvalue())


class Answers:
    """A server that answers each method as a test wants it to."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "schema": schema_json(**COLUMNS),
            "key_type": '"string"',
            "open": 1,
            "next": None,
        }
        self.heard: dict[str, Any] = {}

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        self.heard[method] = arguments
        return self.answers[method]

    def close(self) -> None:
        pass


@pytest.fixture
def server() -> Answers:
    return Answers()


@pytest.fixture
def given_options(server: Answers) -> Iterator[dict[str, str]]:
    place = CoordinatorAddress("127.0.0.1", 0, "127.0.0.1")
    services: Any = {"state accounts": server, "sink counts": server}
    bridge = Bridge(services, query="forged", place=place, token=new_token())
    endpoint, token = bridge.address
    yield {"endpoint": endpoint, "token": token, "state": "accounts", "pushdown": "true"}
    bridge.close()


@pytest.fixture
def exploded(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "exploded"
    assert not (tmp_path / "exploded").exists(), "code of the server ran"


def test_a_schema_with_a_class_in_it_is_refused(
    server: Answers, given_options: dict[str, str], exploded: Path
) -> None:
    server.answers["schema"] = schema_json(**{**COLUMNS, "value": udt(exploded)})
    with pytest.raises(InputError, match="user-defined type"):
        state_schema(given_options)
    in_list = {"type": "array", "elementType": udt(exploded), "containsNull": True}
    server.answers["schema"] = schema_json(**{**COLUMNS, "value": in_list})
    with pytest.raises(InputError, match="user-defined type"):
        state_schema(given_options)
    with pytest.raises(InputError, match="user-defined type"):
        sink_schema(SourceOptions.of({**given_options, "sink": "counts"}, "sink"))
    server.answers["schema"] = schema_json(**COLUMNS)
    server.answers["key_type"] = json.dumps(udt(exploded))
    with pytest.raises(InputError, match="user-defined type"):
        state_reader({**given_options, "key": "ada"}, state_schema(given_options))


@pytest.mark.parametrize("answer", [None, 7, "", "{", '"long"', '{"type": "struct"}', "[" * 5_000])
def test_a_schema_that_is_none_is_refused(
    server: Answers, given_options: dict[str, str], answer: Any
) -> None:
    server.answers["schema"] = answer
    with pytest.raises(InputError, match="schema"):
        state_schema(given_options)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (cloudpickle.dumps([("ada", 3)]), "cannot be read"),
        ([["ada", 3]], "cannot be read"),
        (7, "cannot be read"),
        (b"", "cannot be read"),
        (rows(key=["ada"], value=[3])[:-40], "cannot be read|columns"),
        (rows(key=["ada"], value=["three"]), "with the columns"),
    ],
    ids=["pickle", "list", "number", "empty", "torn", "other columns"],
)
def test_rows_that_are_not_what_was_asked_for_are_refused(
    server: Answers, given_options: dict[str, str], part: Any, problem: str
) -> None:
    server.answers["next"] = part
    reader = state_reader(given_options, state_schema(given_options))
    (partition,) = reader.partitions()
    with pytest.raises(EmberflowError, match=problem):
        list(reader.read(partition))


def test_conditions_travel_as_data(server: Answers, given_options: dict[str, str]) -> None:
    reader = state_reader(given_options, state_schema(given_options))
    key = ("key",)
    pushed = [spark.In(key, ("ada",)), spark.GreaterThan(key, "a"), spark.IsNotNull(key)]
    assert list(reader.pushFilters(pushed)) == []
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []
    assert server.heard["open"]["conditions"] == [
        ["in", ["ada"], None],
        [">", "a", None],
        ["is not null", None, None],
    ]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.just(datetime.UTC) | st.none()),
)


@settings(max_examples=examples(50), deadline=None)
@given(
    condition=st.one_of(
        st.builds(Condition, st.sampled_from(["=", ">", "contains"]), VALUES),
        st.builds(Condition, st.just("in"), st.frozensets(VALUES), st.just(("town", 1))),
    )
)
def test_a_condition_comes_back_as_it_was(condition: Condition) -> None:
    assert Condition.of_plain(decoded(encoded(condition.to_plain()))) == condition


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        ["eval", "1", None],
        ["=", [1], None],
        ["=", {"date": "soon"}, None],
        ["in", 7, None],
        ["in", [[1]], None],
        ["=", 1, ["__class__", 0]],
        ["=", 1, ["town", "0"]],
        [["="], 1, None],
    ],
    ids=str,
)
def test_a_condition_that_is_none_is_refused(stored: Any) -> None:
    service = StateService(StateReads(), "accounts")
    request = {"as_of": None, "raw": False, "hashes": None, "seconds": 1.0}
    with pytest.raises(InputError, match="a condition that is none"):
        service.serve("open", {**request, "schema": schema_json(**COLUMNS), "conditions": [stored]})


def test_clients_cannot_send_a_schema_with_a_class_in_it(tmp_path: Path, exploded: Path) -> None:
    forged = schema_json(**{**COLUMNS, "value": udt(exploded)})
    state = StateService(StateReads(), "accounts")
    front = placed_front(tmp_path, "word").service()
    with pytest.raises(InputError, match="user-defined type"):
        front.serve("check", {"schema": forged})
    with pytest.raises(InputError, match="user-defined type"):
        state.serve(
            "open",
            {
                "as_of": None,
                "raw": False,
                "hashes": None,
                "seconds": 1.0,
                "schema": forged,
                "conditions": [],
            },
        )
    front.serve("check", {"schema": SCHEMA.json()})
    front.close()


def test_clients_cannot_send_payloads_that_workers_would_unpickle(tmp_path: Path) -> None:
    service = placed_front(tmp_path).service()
    raw = schema_json(_payload="binary")
    with pytest.raises(InputError, match="raw payloads"):
        service.serve("check", {"schema": raw})
    batch = {"stream": "s", "batch": 0, "parts": [], "rows": 0}
    with pytest.raises(InputError, match="raw payloads"):
        service.serve("commit", {**batch, "schema": raw})
    service.close()
