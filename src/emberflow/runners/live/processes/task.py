"""What a Spark task does: keep one worker until the query is over."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

from emberflow.runners.live.processes.keeper import keep, strategy_of
from emberflow.runners.live.worker.loop import serve


def run_worker(
    shipped: bytes, crew: bytes | None, path: list[str], batches: Iterator[Any]
) -> Iterator[Any]:
    """Run the worker whose index is in the partition: each partition holds one number.

    ``path`` is where the driver imports from. On another machine most of it does not exist, which
    does no harm; on the driver's machine, a flow may be defined beside a script that nobody installed.
    Without a ``crew`` the worker is this process, and works in one life.
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    for batch in batches:
        for index in batch.column(0).to_pylist():
            if crew is not None:
                keep(pickle.loads(crew), shipped, index)
            else:
                plan = pickle.loads(shipped)
                serve(plan, index, strategy_of(plan))
        yield batch.rename_columns(["worker"])
