"""Spark's daemon of Python workers, with Emberflow imported: a worker starts in milliseconds.

    spark.python.daemon.module=emberflow.runners.live.daemon

Spark's own daemon forks a process for each task, and the process then imports what the task needs.
Emberflow, PyArrow and Spark's worker take a second of processor time, in every worker of every life. This
daemon imports them before it forks. A query that has lost a worker is at work again that much sooner.

`emberflow run` sets it for local sessions. Elsewhere Emberflow has to be installed on the executors: the
daemon starts before Spark adds the files of ``spark.submit.pyFiles`` to the path.

A worker collects garbage after every task, and looks at all objects for it. So the daemon freezes the
objects of the imports: nobody looks at them any more, and their pages stay shared.
"""

from __future__ import annotations

import gc

# A fork copies only the thread that forks. These imports start two others, one of OpenBLAS and one of
# jemalloc, and both libraries prepare for forks (`pthread_atfork`).
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import emberflow.runners.batch
import emberflow.runners.live.processes.task  # noqa: F401


def serve() -> None:
    """Fork workers until Spark closes this process's standard input."""
    gc.freeze()
    manager()


if __name__ == "__main__":
    serve()
