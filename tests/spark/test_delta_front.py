"""A live query that follows a Delta table, killed and started again, gives each change once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery
from tests.adapters.table_readers import delta_files, rows
from tests.adapters.test_fronts_delta import append, made, merge
from tests.effort import SECONDS
from tests.faults.toll import toll


def shop_flow(armed: Path) -> ef.Flow:
    """The table of the shop, as changes. The row of item 5 kills the worker while ``armed`` is there."""

    def deadly(upsert: tuple[int, Any]) -> tuple[int, Any]:
        if upsert[0] == 5 and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return upsert

    flow = ef.Flow("shop")
    table = ef.changes_from(flow.front("rows").map(deadly))
    table.as_stream().map(list).sink("out")
    return flow


def test_a_table_is_followed_through_kills_and_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, out, armed = made(tmp_path), tmp_path / "out", tmp_path / "armed"
    armed.touch()
    flow = shop_flow(armed)

    def started() -> LiveQuery:
        return (
            flow.live(spark)
            .read(rows=fronts.Delta(place, key="id", poll_ms=20))
            .write(out=sinks.Files(out))
            .option("checkpointLocation", tmp_path / "checkpoint")
            .option("checkpointInterval", 50)
            .option("workers", 2)
            .start()
        )

    def wait_until(done: Callable[[], Any], query: LiveQuery) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert not query.awaitTermination(0.05)
            assert time.monotonic() < deadline, (query.status, query.lastProgress)

    def cuts(query: LiveQuery) -> int:
        return ((query.lastProgress or {}).get("cuts") or {}).get("count") or 0

    append(place, *({"id": n, "shop": "x", "n": float(n)} for n in range(4)))
    query = started()
    try:
        wait_until(lambda: len(sinks.read_files(out)) == 4 and cuts(query), query)
        append(place, *({"id": n, "shop": "y", "n": float(n)} for n in range(4, 8)))
        wait_until(lambda: len(sinks.read_files(out)) == 8, query)
        assert not armed.exists()
        toll("worker")
        DeltaTable(place).delete("id < 2")
        wait_until(lambda: len(sinks.read_files(out)) == 10, query)
    finally:
        query.stop()
    # While nobody reads.
    merge(place, {"id": 2, "shop": "z", "n": 0.5}, {"id": 9, "shop": "z", "n": 0.25})
    DeltaTable(place).optimize.compact()
    query = started()
    try:
        wait_until(lambda: len(sinks.read_files(out)) == 12, query)
        DeltaTable(place).update({"n": "n * 2"}, predicate="shop = 'z'")
        wait_until(lambda: len(sinks.read_files(out)) == 14, query)
    finally:
        query.stop()
    assert query.exception() is None
    found = sinks.read_files(out)
    again = fronts.Delta(place, key="id", until_end=True)
    assert found == ef.run(flow, rows=again)["out"]
    table: dict[int, Any] = {}
    for key, before, after in found:
        assert table.get(key) == before
        table[key] = after
    kept = {key: row for key, row in table.items() if row is not None}
    assert kept == {row["id"]: row for row in rows(delta_files(Path(place)))}
