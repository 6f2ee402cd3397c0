"""What the page of a live query costs the driver: processor time without it, unwatched, and watched.

    python bench/page.py [--rate 3000] [--seconds 20]

One query at a time, with two workers. The figures are processor seconds for each second, in percent of a
core: of the driver's Python process, and of the thread of the web server within it. The first varies by more
than the page costs where others use the machine. A viewer is a process of its own that reads the stream of the page, as a
browser does. Spark's JVM is not counted: it does nothing for the page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery

#: Opens the page at an address, and reads its stream until it is ended.
VIEWER = """
import sys, urllib.request
from http.cookiejar import CookieJar
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
address = sys.argv[1]
opener.open(address).read()
for line in opener.open(address.partition("/enter")[0] + "/api/stream"):
    pass
"""


def flow() -> ef.Flow:
    shop = ef.Flow("shop")
    orders = shop.front("orders").map(lambda n: n % 1_000, name="parse")
    orders.key_by(lambda customer: customer).count(name="orders by customer").sink("counts")
    orders.filter(lambda customer: customer < 500, name="large").sink("large")
    return shop


def started(spark: SparkSession, rate: int, **options: int) -> LiveQuery:
    builder = (
        flow()
        .live(spark)
        .read(orders=fronts.Iterable(range(10_000_000), rate=rate))
        .write(
            counts=sinks.Callback(lambda bundle: None), large=sinks.Callback(lambda bundle: None)
        )
    )
    for key, value in options.items():
        builder.option(key, value)
    return builder.start()


def used_by_server() -> float:
    """Processor seconds of the web server's thread so far, by the kernel's count."""
    names = {
        thread.native_id for thread in threading.enumerate() if thread.name == "emberflow http"
    }
    ticks = 0
    for native_id in names:
        fields = Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def percent(seconds: float) -> tuple[float, float]:
    """Processor time of this process, and of the server's thread, over so many seconds."""
    began, used, by_server = time.monotonic(), time.process_time(), used_by_server()
    time.sleep(seconds)
    passed = (time.monotonic() - began) / 100
    return (time.process_time() - used) / passed, (used_by_server() - by_server) / passed


def measured(
    spark: SparkSession, rate: int, seconds: float, viewers: int | None
) -> tuple[float, float]:
    """``viewers`` is None for a query without a page."""
    query = started(spark, rate, **({} if viewers is None else {"uiPort": 0}))
    watching: list[subprocess.Popen[bytes]] = []
    try:
        while not (query.lastProgress and query.lastProgress["elements"] > 2 * rate):
            time.sleep(0.2)
        watching += [
            subprocess.Popen([sys.executable, "-c", VIEWER, str(query.ui)])
            for _ in range(viewers or 0)
        ]
        time.sleep(2)
        assert all(viewer.poll() is None for viewer in watching), "a viewer has left"
        return percent(seconds)
    finally:
        for viewer in watching:
            viewer.kill()
            viewer.wait()
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    cases: dict[str, int | None] = {
        "no page": None, "a page, nobody looks": 0, "one viewer": 1, "five viewers": 5,
    }  # fmt: skip
    for number in range(given.rounds):
        for name, viewers in cases.items():
            share, by_server = measured(spark, given.rate, given.seconds, viewers)
            print(
                f"round {number + 1}, {name}: {share:.2f}% of a core, of it the server "
                f"{by_server:.2f}%",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main()
