"""A driver that is there to be killed: live queries from a topic to a topic, for ever.

Its first query goes on with one worker more and with as many as before, again and again.

python tests/spark/kafka_driver.py WORKERS SERVERS CHECKPOINTS [IN OUT IDLE_MS|never]...
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emberflow as ef
from emberflow.runners.live.query import LiveQuery

#: Of the topics that are read, and of those that are written.
PARTITIONS, SINK_PARTITIONS = 2, 4


def postings(document: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for word in document["words"]:
        yield word, document["id"]


def first(posting: tuple[str, int]) -> dict[str, Any]:
    return following({"word": posting[0], "count": 0, "history": ""}, posting)


def following(entry: dict[str, Any], posting: tuple[str, int]) -> dict[str, Any]:
    """The next entry of a word. Its history depends on the order of the postings."""
    history = hashlib.md5(f"{entry['history']} {posting[1]}".encode()).hexdigest()[:8]
    return {"word": posting[0], "count": entry["count"] + 1, "last": posting[1], "history": history}


def index() -> ef.Flow:
    flow = ef.Flow("index")
    words = flow.front("docs").flat_map(postings)
    entries = words.key_by(lambda posting: posting[0]).reduce(first=first, combine=following)
    entries.key_by(lambda entry: entry["word"]).sink("changes", partitions=SINK_PARTITIONS)
    return flow


def started(
    spark: Any, workers: int, servers: str, checkpoint: Path, route: tuple[str, str, str]
) -> LiveQuery:
    source, target, idle = route
    idle_ms = None if idle == "never" else float(idle)
    return (
        index()
        .live(spark)
        .read(docs=ef.fronts.Kafka(servers, source, time="log", idle_ms=idle_ms))
        .write(changes=ef.sinks.Kafka(servers, target, key="word"))
        .option("workers", workers)
        .option("checkpointLocation", checkpoint)
        .option("checkpointInterval", 300)
        .start()
    )


def rescale_for_ever(query: LiveQuery, workers: int) -> None:
    for number in itertools.cycle((workers + 1, workers)):
        time.sleep(0.5)
        try:
            query.rescale(workers=number, timeout=60)
        except (
            ef.EmberflowError
        ) as error:  # a worker that is added was killed, or the query is over
            logging.warning("%d workers: %s", number, error)
        else:
            logging.warning("%d workers", number)


def main(workers: int, servers: str, checkpoints: Path, routes: list[tuple[str, str, str]]) -> None:
    from emberflow.commands.session import spark_session

    logging.basicConfig(format="%(asctime)s %(message)s")
    with spark_session(master=f"local[{(workers + 1) * len(routes) + 1}]", name="index") as spark:
        queries = [
            started(spark, workers, servers, checkpoints / str(number), route)
            for number, route in enumerate(routes)
        ]
        threading.Thread(target=rescale_for_ever, args=(queries[0], workers), daemon=True).start()
        # For whoever reads the log of a test that failed.
        while not any(query.awaitTermination(2) for query in queries):
            for query in queries:
                progress = query.lastProgress or {}
                shown = ("elements", "released", "minimalTime", "recoveries", "waiting", "unstored")
                logging.warning("%s %s", query.status, {key: progress.get(key) for key in shown})


if __name__ == "__main__":
    given = sys.argv[4:]
    routes = list(zip(given[::3], given[1::3], given[2::3], strict=True))
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), routes)
