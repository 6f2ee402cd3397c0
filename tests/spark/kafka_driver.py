"""A driver for tests to kill: a live query from topic to topic, for ever.

python tests/spark/kafka_driver.py SERVERS IN OUT CHECKPOINT IDLE_MS|never
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import emberflow as ef

PARTITIONS = 2


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
    entries.key_by(lambda entry: entry["word"]).sink("changes", partitions=PARTITIONS)
    return flow


def main(servers: str, source: str, target: str, checkpoint: str, idle: str) -> None:
    from emberflow.commands.session import spark_session

    logging.basicConfig(format="%(asctime)s %(message)s")
    idle_ms = None if idle == "never" else float(idle)
    with spark_session(master="local[3]", name="index") as spark:
        query = (
            index()
            .live(spark)
            .read(docs=ef.fronts.Kafka(servers, source, idle_ms=idle_ms))
            .write(changes=ef.sinks.Kafka(servers, target, key="word"))
            .option("workers", 2)
            .option("checkpointLocation", checkpoint)
            .option("checkpointInterval", 300)
            .start()
        )
        # For readers of the log of a failed test.
        while not query.awaitTermination(2):
            progress = query.lastProgress or {}
            shown = ("elements", "released", "minimalTime", "recoveries", "waiting", "unstored")
            logging.warning("%s %s", query.status, {key: progress.get(key) for key in shown})


if __name__ == "__main__":
    main(*sys.argv[1:])
