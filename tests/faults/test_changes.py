"""Workers are killed while a table of PostgreSQL follows changes: it holds what the reference says."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import emberflow as ef
from emberflow import fronts, sinks
from tests.adapters.postgres_server import running_server
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.test_kills import SECONDS, held_back, kill_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

SUMS = {"shelf": "integer", "total": "bigint"}
ITEMS = {"item": "integer", "shelf": "integer", "price": "bigint"}


def shelves_flow() -> ef.Flow:
    """Items lie on shelves, get other prices and are sold out."""
    flow = ef.Flow("shelves")
    items = flow.front("items").key_by(lambda row: row["item"])
    on_shelves = items.changes(deletes=lambda row: row["price"] == 0)
    on_shelves.sink("items", partitions=2)
    sums = on_shelves.group_by(lambda row: row["shelf"]).sum(lambda row: row["price"])
    sums.with_key().map(lambda row: {"shelf": row[0], "total": row[1]}).sink("sums")
    return flow


def table_of(changes: list[ef.Change[Any, Any]]) -> list[tuple[Any, ...]]:
    now = {change.key: change.after for change in changes}
    return sorted(tuple(row.values()) for row in now.values() if row is not None)


@pytest.mark.skipif(not SOAK, reason="other tests kill workers on every run: make soak")
def test_a_table_follows_changes_through_the_death_of_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    dice = Random(f"changes {FAULTS_ROUND}")
    kills, count = 4, 1_200
    given = [
        {"item": dice.randrange(20), "shelf": dice.randrange(4), "price": dice.randrange(5)}
        for _ in range(count)
    ]
    all_killed = tmp_path / "all killed"
    with running_server() as server:
        query = (
            shelves_flow()
            .live(spark)
            .read(items=fronts.Iterable(held_back(given, all_killed), rate=count / (3 * kills)))
            .write(
                items=sinks.Postgres(server.dsn, "items", columns=ITEMS, upsert=["item"]),
                sums=sinks.Postgres(server.dsn, "sums", columns=SUMS, upsert=["shelf"]),
            )
            .option("workers", 2)
            .option("checkpointLocation", tmp_path / "checkpoint")
            .option("checkpointInterval", 150)
            .start()
        )
        try:
            kill_workers(query, dice, kills)
            all_killed.touch()
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
        expected = ef.run(shelves_flow(), items=given)
        with psycopg.connect(server.dsn) as connection:
            items = connection.execute("SELECT item, shelf, price FROM items").fetchall()
            sums = connection.execute("SELECT shelf, total FROM sums").fetchall()
        assert sorted(items) == table_of(expected["items"])
        assert sorted(sums) == table_of(expected["sums"])
        assert any(change.kind == "delete" for change in expected["items"])
