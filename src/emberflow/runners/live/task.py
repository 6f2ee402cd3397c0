"""What a Spark task does: run one worker until the query is over."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

from emberflow.runners.live.arrival.worker import WorkerSnapshots
from emberflow.runners.live.worker.cuts import CutsByTime
from emberflow.runners.live.worker.loop import Strategy, serve


def run_worker(shipped: bytes, path: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    """Run the worker whose index is in the partition: partition ``i`` holds the number ``i``.

    ``path`` is where the driver imports from. On another machine most of it does not exist, which
    does no harm; on the driver's machine, a flow may be defined beside a script that nobody installed.
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    plan = pickle.loads(shipped)
    strategy: Strategy = WorkerSnapshots if plan.ordering == "arrival" else CutsByTime
    for batch in batches:
        for index in batch.column(0).to_pylist():
            serve(plan, index, strategy)
        yield batch.rename_columns(["worker"])
