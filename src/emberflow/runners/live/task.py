"""What a Spark task does: run one worker until the query is over."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from emberflow.runners.live.worker import WorkerLoop


def run_worker(shipped: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    """Partition ``i`` holds the number ``i``: that is the worker to be."""
    plan = pickle.loads(shipped)
    for batch in batches:
        for index in batch.column(0).to_pylist():
            WorkerLoop(plan, index).run()
        yield batch.rename_columns(["worker"])
