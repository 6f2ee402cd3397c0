"""A state and a history much larger than a task's memory pass through a batch.

Spark itself sets the limit (`spark.executor.pyspark.memory`): a worker that needs more gets a
MemoryError. The test also checks that holding the whole state at once fails in such a worker. It moves
gigabytes, so `make soak` has it; on every run `test_batch` measures how much a task holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import SOAK

#: One group, so that the program runs once.
pytestmark = [
    pytest.mark.early,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("batch memory"),
    pytest.mark.skipif(not SOAK, reason="moves gigabytes, and `make soak` has it"),
]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 800

DRIVER = '''
import json, resource, sys

import pyarrow as pa
from pyspark.sql import SparkSession

import emberflow as ef

MEGABYTE = 1 << 20
KEYS = 3_000

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.memory", "600m")
    .config("spark.executor.pyspark.memory", "1g")
    .config("spark.log.level", "OFF")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
numbers = spark.range(2 * KEYS).selectExpr("id as time", "id as value")


def hold(batches):
    held = [bytes(MEGABYTE) for batch in batches for _ in range(batch.num_rows)]
    yield pa.RecordBatch.from_pydict({"n": [len(held)]})


def failing():
    try:
        numbers.limit(KEYS).mapInArrow(hold, "n long").collect()
    except Exception as error:
        return "MemoryError" in str(error)
    return False


def state():
    """The accumulators of all keys together are three times what a task may have."""
    flow = ef.Flow("state")
    flow.front("numbers").key_by(lambda n: n % KEYS).reduce(
        first=lambda n: bytes(MEGABYTE), combine=lambda held, n: held + b"x"
    ).map(lambda held: (len(held), resource.getrlimit(resource.RLIMIT_AS)[0])).sink("out")
    out = flow.batch(spark, schema="n long, most long", numbers=ef.rows(numbers, unique=True))["out"]
    return [list(row) for row in out.groupBy("n", "most").count().orderBy("n").collect()]


def history():
    """All elements have one key, so that one slice has them all: more than is allowed."""
    flow = ef.Flow("history")
    texts = flow.front("numbers").map(lambda n: (n, bytes(16_384)))
    texts.key_by(lambda text: 0).group(window=2).map(
        lambda pair: (len(pair), pair[-1][0] - pair[0][0], len(pair[0][1]))
    ).sink("out")
    many = spark.range(73_728).selectExpr("id as time", "id as value")
    schema = "pair long, apart long, bytes long"
    out = flow.batch(spark, schema=schema, ordered=False, numbers=ef.rows(many, unique=True))["out"]
    found = out.groupBy("pair", "apart", "bytes").count().orderBy("pair")
    return [list(row) for row in found.collect()]


print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
'''


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {
        "PYTHONPATH": path.rstrip(os.pathsep),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, "failing", "state", "history"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_worker_that_held_the_state_would_fail(found: dict[str, object]) -> None:
    assert found["failing"] is True


def test_a_state_three_times_the_memory_of_a_worker_passes(found: dict[str, object]) -> None:
    limit = 1 << 30
    assert found["state"] == [[1 << 20, limit, 3_000], [(1 << 20) + 1, limit, 3_000]]


def test_a_history_of_one_key_larger_than_the_memory_of_a_worker_passes(
    found: dict[str, object],
) -> None:
    assert found["history"] == [[1, 0, 16_384, 1], [2, 1, 16_384, 73_727]]
