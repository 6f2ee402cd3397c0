"""Sinks that follow changes: what they hold is the table that the changes say."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow import GlobalTime, sinks
from emberflow.errors import InputError
from emberflow.sinks import PayloadError, StoredBundle
from tests.adapters.kafka_broker import KafkaBroker
from tests.adapters.postgres_server import PostgresServer
from tests.adapters.sinks_under_test import new_table, rows

COLUMNS = {"item": "text", "shelf": "integer", "price": "bigint"}


def prices_of(random: Random, count: int) -> list[dict[str, Any]]:
    return [
        {"item": random.choice("abcd"), "shelf": random.randrange(2), "price": random.randrange(4)}
        for _ in range(count)
    ]


def changes_of(prices: list[dict[str, Any]]) -> list[ef.Change[Any, Any]]:
    """An item is on one shelf. One without a price is on none."""
    flow = ef.Flow("prices")
    items = flow.front("prices").key_by(lambda row: row["item"])
    items.changes(deletes=lambda row: row["price"] == 0).sink("out")
    return ef.run(flow, prices=prices)["out"]


def store(sink: Any, changes: list[Any], random: Random) -> None:
    """In bundles of any size, by one writer after another."""
    time, writer = 0, sink.open(0)
    while changes:
        size = random.randint(1, 6)
        time += 1
        writer.store(StoredBundle("out", 0, GlobalTime(time, 0), changes[:size]))
        changes = changes[size:]
        if random.random() < 0.3:
            writer.close()
            writer = sink.open(0)
            assert writer.last() == GlobalTime(time, 0)
    writer.close()


def table_of(changes: list[ef.Change[Any, Any]]) -> list[tuple[Any, ...]]:
    latest = {change.key: change.after for change in changes}
    return sorted(tuple(row.values()) for row in latest.values() if row is not None)


@pytest.mark.parametrize("key", [["item"], ["item", "shelf"]], ids=str)
def test_a_table_has_the_rows_that_the_changes_leave(
    postgres: PostgresServer, key: list[str]
) -> None:
    """With the shelf in its key, a row that moves is another row, and the old one is deleted."""
    random = Random(str(key))
    changes = changes_of(prices_of(random, 60))
    assert {change.kind for change in changes} == {"insert", "update", "delete"}
    table = new_table()
    sink = sinks.Postgres(postgres.dsn, table, columns=COLUMNS, upsert=key)
    for end in (20, len(changes)):
        store(
            sinks.Postgres(postgres.dsn, table, columns=COLUMNS, upsert=key, name=f"{table} {end}"),
            changes[:end],
            random,
        )
        found = rows(postgres.dsn, "SELECT item, shelf, price FROM {} ORDER BY item", table)
        assert found == table_of(changes[:end])
    assert all(sink.refuses(change) is None for change in changes)


def test_the_sum_by_category_is_a_table(postgres: PostgresServer) -> None:
    flow = ef.Flow("sums")
    items = flow.front("prices").key_by(lambda row: row["item"]).changes()
    sums = items.group_by(lambda row: row["shelf"]).sum(lambda row: row["price"])
    sums.with_key().map(lambda row: {"shelf": row[0], "total": row[1]}).sink("sums")
    prices = prices_of(Random(3), 40)
    table = new_table()
    columns = {"shelf": "integer", "total": "bigint"}
    sink = sinks.Postgres(postgres.dsn, table, columns=columns, upsert=["shelf"])
    store(sink, ef.run(flow, prices=prices)["sums"], Random(4))
    latest = {row["item"]: row for row in prices}.values()
    assert rows(postgres.dsn, "SELECT shelf, total FROM {} ORDER BY shelf", table) == [
        (shelf, sum(row["price"] for row in latest if row["shelf"] == shelf))
        for shelf in sorted({row["shelf"] for row in latest})
    ]


def test_without_upsert_a_table_has_the_changes_themselves(postgres: PostgresServer) -> None:
    table = new_table()
    store(sinks.Postgres(postgres.dsn, table), [ef.Change("tea", None, 3)], Random(1))
    found = rows(postgres.dsn, "SELECT payload FROM {}", table)
    assert found == [({"key": "tea", "before": None, "after": 3},)]
    table = new_table()
    columns = {"key": "text", "before": "bigint", "after": "bigint"}
    appended = [ef.Change("tea", None, 3), ef.Change("tea", 3, None)]
    store(sinks.Postgres(postgres.dsn, table, columns=columns), appended, Random(1))
    found = rows(postgres.dsn, 'SELECT key, "before", "after" FROM {} ORDER BY id', table)
    assert found == [("tea", None, 3), ("tea", 3, None)]


def test_a_change_for_columns_of_its_value_says_what_to_do() -> None:
    sink = sinks.Postgres("dbname=x", "prices", columns=COLUMNS)
    refused = sink.refuses(ef.Change("a", None, {"item": "a", "shelf": 1, "price": 2}))
    assert "upsert=[...]" in (refused or "")


def test_a_value_that_a_row_cannot_hold_is_refused_before_and_after() -> None:
    sink = sinks.Postgres("dbname=x", "prices", columns=COLUMNS, upsert=["item"])
    good, bad = {"item": "a", "shelf": 1, "price": 2}, {"item": "a", "shelf": 2**40, "price": 2}
    for change in (ef.Change("a", good, bad), ef.Change("a", None, bad), ef.Change("a", None, 3)):
        assert sink.refuses(change) is not None
    assert sink.refuses(ef.Change("a", good, None)) is None


@pytest.mark.parametrize("transactional", [True, False])
def test_a_topic_has_the_last_value_of_each_key_and_tombstones(
    kafka: KafkaBroker, transactional: bool
) -> None:
    random = Random(9)
    changes = changes_of(prices_of(random, 40))
    topic = kafka.topic(**{"cleanup.policy": "compact"})
    sink = sinks.Kafka(kafka.servers, topic, upsert=True, transactional=transactional)
    store(sink, changes, random)
    found = [(key, value) for key, value, _ in kafka.records(topic)]
    assert found == [
        (
            change.key.encode(),
            None if change.after is None else sink.value.encode(change.after),
        )
        for change in changes
    ]
    assert any(value is None for _, value in found)


def test_what_is_read_back_of_a_topic_are_the_same_changes(kafka: KafkaBroker) -> None:
    changes = changes_of(prices_of(Random(11), 30))
    topic = kafka.topic()
    store(sinks.Kafka(kafka.servers, topic, upsert=True), changes, Random(12))
    flow = ef.Flow("back")
    ef.changes_from(flow.front("topic")).sink("out")
    front = ef.fronts.Kafka(kafka.servers, topic, key="text")
    read = [front.payload(key, value) for key, value, _ in kafka.records(topic)]
    assert ef.run(flow, topic=read)["out"] == changes


def test_only_changes_are_upserts() -> None:
    sink = sinks.Kafka("broker:1", "topic", upsert=True, key_codec="json")
    assert "takes changes" in (sink.refuses({"item": "a"}) or "")
    assert "without a key" in (sink.refuses(ef.Change(None, None, 1)) or "")
    assert sink.encoded(ef.Change(("a", 1), 2, 3)) == (b'["a",1]', b"3")
    with pytest.raises(InputError, match="leave key= out"):
        sinks.Kafka("broker:1", "topic", upsert=True, key="item")
    with pytest.raises(PayloadError):
        sink.encoded(3)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_files_have_the_changes_themselves(tmp_path: Path, format: str) -> None:
    sink = sinks.Files(tmp_path, format=format)
    store(sink, [ef.Change("tea", None, 3), ef.Change("tea", 3, 4)], Random(1))
    assert sink.payloads() == [
        {"key": "tea", "before": None, "after": 3},
        {"key": "tea", "before": 3, "after": 4},
    ]
