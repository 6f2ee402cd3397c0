"""Launching: the workers are the tasks of one barrier job of Spark.

`DataFrame.mapInArrow(..., barrier=True)` exists on classic Spark and on Spark Connect. A barrier
stage starts all its tasks at once or none, and Spark never retries a part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import cloudpickle

from emberflow.errors import EmberflowError
from emberflow.runners.live.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class ClusterError(EmberflowError):
    """Spark, as it is set up, cannot run the workers of a live query."""


def check_cluster(spark: SparkSession, workers: int) -> None:
    """Say what is missing before anything starts."""
    conf = spark.conf
    if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        raise ClusterError(
            "dynamic allocation is on, and a barrier job cannot run with it. Start the session "
            "with spark.dynamicAllocation.enabled=false and as many executors as the query needs."
        )
    slots = _slots(spark)
    if slots is not None and slots < workers:
        raise ClusterError(
            f"the query asks for {workers} workers, each of which takes a slot for as long as it "
            f"runs, and Spark has {slots}. Set .option('workers', {slots}), or start the session "
            f"with more cores, such as master('local[{workers}]')."
        )


def _slots(spark: SparkSession) -> int | None:
    """How many tasks can run at once; None where the session does not tell (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        return None


def driver_host(spark: SparkSession) -> str:
    """Where workers can reach the driver: loopback in local mode, else the driver's own address."""
    try:
        context = spark.sparkContext
        if str(context.master).startswith("local"):
            return "127.0.0.1"
        return str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    except Exception:
        return "127.0.0.1"


def cancel_workers(spark: SparkSession, tag: str) -> None:
    """Cancel the barrier job, for a worker that hears nothing: it is stuck in a user's function."""
    try:
        spark.sparkContext.cancelJobsWithTag(tag)
    except Exception:  # Spark Connect has no context; its sessions cancel by tag themselves
        spark.interruptTag(tag)


def _tag_jobs(spark: SparkSession, tag: str) -> None:
    """Tag the jobs of this thread. A session's own tags do not reach a job of classic Spark."""
    try:
        spark.sparkContext.addJobTag(tag)
    except Exception:
        spark.addTag(tag)


def run_workers(spark: SparkSession, plan: Plan, tag: str) -> None:
    """Run the barrier job; returns when all workers have ended, raises when the job failed."""
    _tag_jobs(spark, tag)
    shipped = cloudpickle.dumps(plan)
    path = list(sys.path)  # what the flow imports here, workers import too

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported on the worker: the closure itself stays small and free of our modules.
        from emberflow.runners.live.task import run_worker

        yield from run_worker(shipped, path, batches)

    workers = spark.range(0, plan.workers, 1, plan.workers)
    workers.mapInArrow(task, "worker long", barrier=True).collect()
