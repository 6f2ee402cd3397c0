"""Bytes and milliseconds of a cut, by the size of the state and the share of it that changed.

A query counts this many keys once and is stopped, which makes a full cut. It is then restarted on
the same checkpoint, with one more element for a share of the keys, and its last cut is an
increment. Milliseconds are from the order to the committed manifest: besides the capture, two syncs
and a few messages.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from live.waiting import until
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from exactly_once import plots

KEYS = (10_000, 100_000, 300_000)
QUICK_KEYS = (2_000,)
SHARES = (0.01, 0.1, 1.0)
#: An interval that never ends: only the last cut is taken.
NEVER_MS = 10**9
_SECONDS = 600


class Lasting(fronts.Iterable):
    """Does not end: a query whose sources have ended takes no more cuts."""

    def read_batches(self, partition: int, position: Any) -> Any:
        yield from super().read_batches(partition, position)
        while True:
            time.sleep(0.05)
            yield None


def last_cut(
    spark: SparkSession, folder: str, elements: list[int], new: int, options: dict[str, Any]
) -> dict[str, Any]:
    flow = ef.Flow("keys")
    flow.front("keys").key_by(lambda key: key).count().sink("counts")
    builder = (
        flow.live(spark)
        .read(keys=Lasting(elements))
        .write(counts=sinks.Files(f"{folder}/out"))
        .option("workers", 2)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("checkpointInterval", NEVER_MS)
    )
    for key, value in options.items():
        builder.option(key, value)
    query = builder.start()
    try:
        until(
            lambda: (query.lastProgress or {}).get("elements", 0) >= new,
            query,
            seconds=_SECONDS,
            nap=0.05,
        )
    finally:
        query.stop()
    cuts: dict[str, Any] = (query.lastProgress or {})["cuts"]
    return cuts


def main(spark: SparkSession, *, quick: bool) -> None:
    heads = "".join(f"{head:>12}" for head in ("rows", "bytes", "ms"))
    print(f"{'a cut, by keys and the share that changed':52}{heads}")
    for kind, options in (("time", {}), ("arrival", {"ordering": "arrival"})):
        sizes: dict[str, list[float]] = {}
        for keys in QUICK_KEYS if quick else KEYS:
            for share in (*SHARES[-1:],) if quick else SHARES:
                with tempfile.TemporaryDirectory() as folder:
                    loaded = list(range(keys))
                    full = last_cut(spark, folder, loaded, keys, options)
                    new = int(keys * share)
                    again = last_cut(spark, folder, loaded + loaded[:new], new, options)
                if share == SHARES[-1]:
                    _row(f"  {kind}, {keys:,} keys, full", full)
                _row(f"  {kind}, {keys:,} keys, {share:.0%} changed", again)
                sizes.setdefault(f"{keys:,} keys", []).append(again["lastBytes"])
        shares = [100 * share for share in (SHARES[-1:] if quick else SHARES)]
        plots.curves(f"cuts-{kind}", shares, sizes, "% of the keys changed", "bytes of a cut")


def _row(label: str, cut: dict[str, Any]) -> None:
    print(
        f"{label:52}{cut['lastRows']:>12,}{cut['lastBytes']:>12,}{cut['lastMs']:>12,.1f}",
        flush=True,
    )
