"""Emberflow's daemon of Python workers, which has imported the modules of tests too.

Each worker would spend processor time on the same imports: of pytest, and of the test modules that hold
the functions. Spark also puts archives of its Python code on the path, which every process compiles
again, and lists again for every task. The installed packages are the same code, so the archives go.

The sessions that tests share name this module as `spark.python.daemon.module`. The programs of fault
tests have Spark's own daemon, and `emberflow run` has Emberflow's, so that each of them is tested.
"""

from __future__ import annotations

import sys

sys.path[:] = [folder for folder in sys.path if not folder.endswith((".zip", ".jar"))]
sys.path_importer_cache.clear()

import pandas  # noqa: E402, F401
import pytest  # noqa: E402, F401

import tests.contract.cases  # noqa: E402
import tests.strategies  # noqa: E402
import tests.test_examples  # noqa: E402, F401
from emberflow.runners.live.daemon import serve  # noqa: E402
from tests.cold_workers import evict_all  # noqa: E402

if __name__ == "__main__":
    evict_all()
    serve()
