"""The running count in Bytewax, in a virtual environment of its own: it imports nothing of ours.

    EMBERFLOW_BENCH_WORDS=words.txt EMBERFLOW_BENCH_PARTS=1 EMBERFLOW_BENCH_SEEN=folder \\
        python -m bytewax.run flow:flow

Words come from a file, one per line, in batches of 1,000, from the given number of partitions. Each
sink counts its outputs and writes to a folder how many there were, and when the first and last
came. The clock is the system's monotonic one, which all processes share. The folder of this file is
not a package, because Bytewax would import the packages above it, and those need Spark.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1_000
# Read at import, before any clock runs.
WORDS = Path(os.environ["EMBERFLOW_BENCH_WORDS"]).read_text().split("\n")
PARTS = [str(number) for number in range(int(os.environ["EMBERFLOW_BENCH_PARTS"]))]


class Words(StatefulSourcePartition):
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.position = 0

    def next_batch(self) -> list[str]:
        begin = self.position
        if begin >= len(self.words):
            raise StopIteration
        self.position = begin + BATCH
        return self.words[begin : begin + BATCH]

    def snapshot(self) -> int:
        return self.position


class WordsOfFile(FixedPartitionedSource):
    def list_parts(self) -> list[str]:
        return PARTS

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Words:
        part = int(for_part)
        share = len(WORDS) // len(PARTS)
        return Words(WORDS[part * share : (part + 1) * share])


class Counter(StatelessSinkPartition):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.first_count = 0
        self.first_at = self.last_at = 0.0

    def write_batch(self, items: list[Any]) -> None:
        self.count += len(items)
        self.last_at = time.monotonic()
        if not self.first_count:
            self.first_count, self.first_at = self.count, self.last_at

    def close(self) -> None:
        if self.count:
            told = {
                "first_at": self.first_at,
                "first_count": self.first_count,
                "last_at": self.last_at,
                "count": self.count,
            }
            self.path.write_text(json.dumps(told))


class Counters(DynamicSink):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Counter:
        return Counter(Path(os.environ["EMBERFLOW_BENCH_SEEN"]) / f"{worker_index}.json")


def count(held: int | None, word: str) -> tuple[int, int]:
    counted = 1 if held is None else held + 1
    return counted, counted


flow = Dataflow("running_count")
entering = op.input("words", flow, WordsOfFile())
keyed = op.key_on("key", entering, lambda word: word)
counts = op.stateful_map("count", keyed, count)
op.output("counts", counts, Counters())
