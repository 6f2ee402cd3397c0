"""Spark's daemon of Python workers, with the modules that workers import imported already.

The daemon forks a worker for each task slot, and a new one for each that was killed or whose function
raised. Each would spend processor time on the same imports. The sessions that tests share name this
module as `spark.python.daemon.module`; programs that run in processes of their own do not, so that both
ways to start a worker are tested.
"""

from __future__ import annotations

import pyarrow  # noqa: F401
from pyspark.daemon import manager

import emberflow.runners.batch
import emberflow.runners.live.task  # noqa: F401

if __name__ == "__main__":
    manager()
