"""Launching: the workers are the tasks of a barrier job of Spark.

`DataFrame.mapInArrow(..., barrier=True)` exists on classic Spark and on Spark Connect. A barrier
stage starts all its tasks at once or none, and Spark never retries a part of it. So it cannot grow: workers
that are added later are the tasks of another job (`processes.jobs`). It can shrink: a task whose worker
leaves returns, and the others go on.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle

from emberflow.errors import EmberflowError
from emberflow.runners.live.driver.cluster import ClusterError, context_of
from emberflow.runners.live.processes.member import Crew
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.worker.machine.background import NICENESS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


#: Part of Spark's message when a barrier stage needs more slots than there are.
_BARRIER_SLOTS = "SPARK-24819"


class JobFailedError(EmberflowError):
    """The Spark job of the workers failed; Spark's own exception is the ``__cause__``."""


def job_failure(error: Exception, workers: int) -> EmberflowError:
    """The error that reports a failed job, with the relevant lines of Spark's message."""
    if _BARRIER_SLOTS in str(error):
        return ClusterError(
            f"Spark has fewer than the {workers} slots that the workers take for as long as the "
            f"query runs, and has given up on its barrier job. Set .option('workers', ...) to "
            f"fewer, or give Spark more executors or cores."
        )
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    message = "\n".join(lines[:20])
    return JobFailedError(f"the Spark job of the workers failed: {message}")


def cancel_workers(spark: SparkSession, tag: str) -> None:
    """Cancel the barrier job: for a worker that reads no messages, stuck in a user's function."""
    context = context_of(spark)
    if context is not None:
        context.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def _tag_jobs(spark: SparkSession, tag: str) -> None:
    """Tag the jobs of this thread. In classic Spark a session's tags do not apply to jobs."""
    context = context_of(spark)
    if context is not None:
        context.addJobTag(tag)
    else:
        spark.addTag(tag)


def run_workers(
    spark: SparkSession, plan: Plan, tags: Sequence[str], crew: Crew | None, workers: Sequence[int]
) -> None:
    """Run these workers as one barrier job. Returns when all have ended, raises if the job fails.

    With a ``crew``, each task keeps the process of its worker (`processes.keeper`).
    """
    for tag in tags:
        _tag_jobs(spark, tag)
    shipped = cloudpickle.dumps(plan)
    numbers = tuple(workers)
    reached = None if crew is None else pickle.dumps(crew)
    path = list(sys.path)  # workers import the flow's modules from the same folders
    are_added, niceness = plan.inherits is not None, NICENESS

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported on the worker: the closure itself stays small and free of our modules.
        import importlib
        import os
        import sys
        import threading

        def load() -> Any:
            return importlib.import_module("emberflow.runners.live.processes.task")

        def load_in_background() -> None:  # as `machine.background`, which is not imported yet
            os.nice(niceness)
            load()

        if are_added and sys.platform == "linux":
            loading = threading.Thread(target=load_in_background)
            loading.start()
            loading.join()
        yield from load().run_worker(shipped, reached, numbers, path, are_added, batches)

    places = spark.range(0, len(numbers), 1, len(numbers))
    places.mapInArrow(task, "worker long", barrier=True).collect()
