"""What a Spark task does: keep one worker until the query is over."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext

from emberflow.runners.live.processes.keeper import keep, strategy_of
from emberflow.runners.live.worker.loop import serve


def run_worker(
    shipped: bytes,
    crew: bytes | None,
    workers: Sequence[int],
    path: list[str],
    are_added: bool,
    batches: Iterator[Any],
) -> Iterator[Any]:
    """Run the worker whose place is in the partition: each partition holds one number.

    ``path`` is where the driver imports from. On another machine most of it does not exist, which
    does no harm; on the driver's machine, a flow may be defined beside a script that nobody installed.
    Without a ``crew`` the worker is this process, and works in one life. ``are_added``: others serve meanwhile.
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    for batch in batches:
        for place in batch.column(0).to_pylist():
            if crew is not None:
                context = TaskContext.get()
                task = 0 if context is None else context.taskAttemptId()
                order = shipped, workers[place]
                keep(pickle.loads(crew), order, place, task, is_added=are_added)
            else:
                plan = pickle.loads(shipped)
                serve(plan, workers[place], strategy_of(plan))
        yield batch.rename_columns(["worker"])
