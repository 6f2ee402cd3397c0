"""The flow of the fault tests: a word index whose output shows every mistake.

Each change record has the number of its document, which shows lost or repeated records; the count
of its word, which shows state that went back or missed an update; and the previous word in the same
document's bucket, which shows a wrong order.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import emberflow as ef
from emberflow import sinks
from emberflow.values.hashing import key_hash, owner

WORDS = 40
VOCABULARY = 300


def documents(count: int, seed: int = 1) -> list[tuple[int, list[str]]]:
    random = Random(seed)
    return [
        (number, [f"w{int(VOCABULARY ** random.random())}" for _ in range(WORDS)])
        for number in range(count)
    ]


def index_flow() -> ef.Flow:
    """Documents to change records, through a reduce, a grouping and timers, to three sinks."""
    flow = ef.Flow("index under fire")
    documents = flow.front("documents")
    numbers = documents.map(lambda document: document[0]).key_by(lambda number: number % 5)
    numbers.window(ef.Tumbling(13), emit="close").count().map(
        lambda counted: [counted[0], *counted[1], counted[2]]
    ).sink("windows")
    postings = documents.flat_map(lambda document: [(word, document[0]) for word in document[1]])
    counted = postings.key_by(lambda posting: posting[0]).reduce(
        first=lambda posting: (1, *posting),
        combine=lambda held, posting: (held[0] + 1, *posting),
    )
    pairs = counted.key_by(lambda held: held[2] % 7).group(window=2)
    pairs.map(lambda pair: [list(held) for held in pair]).sink("pairs")
    counted.key_by(lambda held: held[1]).sink("counts", partitions=3)
    return flow


def plain(payloads: list[Any]) -> list[Any]:
    """As JSON stores them: lists instead of tuples."""
    if isinstance(payloads, list | tuple):
        return [plain(payload) for payload in payloads]
    return payloads


def check_files(folder: Path | str, expected: dict[str, list[Any]]) -> None:
    """What `sinks.Files` hold of the flow is what the reference gives, in every partition."""
    for name in ("pairs", "windows"):
        assert sinks.read_files(f"{folder}/{name}") == plain(expected[name])
    for partition in range(3):
        assert sinks.read_files(f"{folder}/counts", partition) == [
            plain(held) for held in expected["counts"] if owner(key_hash(held[1]), 3) == partition
        ]
