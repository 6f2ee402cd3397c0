"""What a Spark task does: run one worker until the query is over."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

from emberflow.runners.live.arrival.loop import ArrivalLoop
from emberflow.runners.live.worker.loop import WorkerLoop


def run_worker(shipped: bytes, path: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    """Partition ``i`` holds the number ``i``: that is the worker to be.

    ``path`` is where the driver imports from. On another machine most of it leads nowhere, which
    does no harm; on this one, a flow may be defined beside a script that nobody installed.
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    plan = pickle.loads(shipped)
    loop = ArrivalLoop if plan.ordering == "arrival" else WorkerLoop
    for batch in batches:
        for index in batch.column(0).to_pylist():
            loop(plan, index).run()
        yield batch.rename_columns(["worker"])
