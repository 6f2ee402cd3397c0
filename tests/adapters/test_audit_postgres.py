"""What `emberflow audit` reads of a table that `sinks.Postgres` has written."""

from __future__ import annotations

from typing import Any

import pytest

import emberflow as ef
from emberflow import sinks
from emberflow.commands.audit import held_by
from emberflow.errors import InputError
from emberflow.guarantees import Guarantee, Verdict, judge
from emberflow.sinks import StoredBundle
from tests.adapters.postgres_server import PostgresServer
from tests.adapters.sinks_under_test import new_table

VALUES = [
    {"zeta": 1, "a": None, "deep": {"z": (1, 2.0), "b": 1e30}},
    "text",
    -0.0,
    None,
    [True, 0.1, 1e-7],
]


def flow_of_values() -> ef.Flow:
    flow = ef.Flow("values")
    flow.front("values").sink("values")
    return flow


def judged(sink: sinks.Postgres, values: list[Any]) -> Verdict:
    flow = flow_of_values()
    held = held_by(flow.graph().sinks["values"], sink)
    return judge(flow, {"values": values}, {"values": held.payloads}, forms={"values": held.form})


def test_what_jsonb_keeps_is_compared(postgres: PostgresServer) -> None:
    sink = sinks.Postgres(postgres.dsn, new_table())
    writer = sink.open(0)
    writer.store(StoredBundle("values", 0, ef.GlobalTime(1, 0), VALUES[:2]))
    writer.store(StoredBundle("values", 0, ef.GlobalTime(4, 0), VALUES[2:]))
    writer.close()
    assert judged(sink, VALUES).exactly_once
    assert judged(sink, [*VALUES, 7]).guarantee is Guarantee.AT_MOST_ONCE
    assert judged(sink, [*VALUES[:3], 7, *VALUES[4:]]).guarantee is Guarantee.INCONSISTENT


def test_partitions_of_another_flow_and_tables_of_others(postgres: PostgresServer) -> None:
    sink = sinks.Postgres(postgres.dsn, new_table())
    writer = sink.open(1)
    writer.store(StoredBundle("values", 1, ef.GlobalTime(1, 0), ["a"]))
    writer.close()
    with pytest.raises(InputError, match=r"partitions 0 to 0 .* holds partition 1"):
        judged(sink, ["a"])
    with pytest.raises(InputError, match=r"is not one that sinks.Postgres makes"):
        judged(sinks.Postgres(postgres.dsn, "there_is_no_such_table"), ["a"])
