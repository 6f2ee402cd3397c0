"""Spark's daemon of Python workers, with the modules that workers import imported already.

The daemon forks a worker for each task slot, and a new one for each that was killed or whose function
raised. Each would spend processor time on the same imports: of Emberflow, of Spark's own worker, and of
the test modules that hold the functions. Spark also puts archives of its Python code on the path, which
are compiled again by every process, and listed again for every task; the installed packages are the same.
And a worker collects garbage after every task, which looks at every object: those of the imports are
frozen, and no longer looked at.

The sessions that tests share name this module as `spark.python.daemon.module`; programs that run in
processes of their own do not, so that both ways to start a worker are tested.
"""

from __future__ import annotations

import gc
import sys

sys.path[:] = [folder for folder in sys.path if not folder.endswith((".zip", ".jar"))]
sys.path_importer_cache.clear()

import pandas  # noqa: E402, F401
import pyarrow  # noqa: E402, F401
import pyspark.worker  # noqa: E402, F401
import pytest  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import tests.contract.cases  # noqa: E402
import tests.strategies  # noqa: E402
import tests.test_examples  # noqa: E402, F401

if __name__ == "__main__":
    gc.freeze()
    manager()
