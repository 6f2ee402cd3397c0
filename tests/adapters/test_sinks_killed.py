"""A process that is killed while it stores, again and again: each time all or nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from emberflow.sinks import Sink
from tests.adapters.sinks_under_test import (
    DELTA,
    FILES,
    ICEBERG,
    KAFKA,
    OBJECTS,
    POSTGRES,
    SinkCase,
)
from tests.effort import SOAK

KILLS = 6
#: Of programs that take long to start, or to stop: tables, and Kafka.
KILLS_OF_TABLES = KILLS if SOAK else 2
KILLS_OF_KAFKA = KILLS if SOAK else 3
#: Stores bundles of 1 to 50 numbers behind the last one for ever; time n is that of payload n.
PROGRAM = """
import sys, cloudpickle
from emberflow import GlobalTime
from emberflow.sinks import StoredBundle
writer = cloudpickle.load(open(sys.argv[1], "rb")).open(0)
last = writer.last()
begin = 0 if last is None else last.time + 1
size = begin
print(begin, flush=True)
while True:
    size = size % 50 + 1
    payloads = [{"key": number, "word": str(number)} for number in range(begin, begin + size)]
    begin += size
    writer.store(StoredBundle("out", 0, GlobalTime(begin - 1, 0), payloads))
    print(flush=True)
"""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(FILES[0], id=FILES[0].name),
        *[
            pytest.param(case, id=case.name)
            for case in [*DELTA, *ICEBERG]
            if SOAK or case == DELTA[0]
        ],
        pytest.param(OBJECTS[0], id=OBJECTS[0].name, marks=pytest.mark.xdist_group("s3")),
        pytest.param(POSTGRES[0], id=POSTGRES[0].name, marks=pytest.mark.xdist_group("postgres")),
        pytest.param(KAFKA[0], id=KAFKA[0].name, marks=pytest.mark.xdist_group("kafka")),
    ],
)
def test_killed_while_it_stores(
    case: SinkCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    held = case.made(tmp_path / "out", request)
    sink: Sink = held.sink
    description = tmp_path / "sink"
    description.write_bytes(cloudpickle.dumps(sink))
    dice = random.Random(7)
    stored_before = 0
    is_table = case in DELTA or case in ICEBERG
    is_kafka = case in KAFKA
    kills = KILLS_OF_TABLES if is_table else KILLS_OF_KAFKA if is_kafka else KILLS
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, description], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        begin = int(process.stdout.readline())
        assert begin >= stored_before
        if is_table:  # the first commit makes the table, and loads what it takes
            assert process.stdout.readline() == "\n"
        slow = is_kafka or is_table
        time.sleep(dice.uniform(0.05, 0.3) if slow else dice.uniform(0.01, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        writer = sink.open(0)
        last = writer.last()
        writer.close()
        stored = 0 if last is None else last.time + 1
        found = [payload["key"] for payload in held.payloads(0)]
        assert found == list(range(stored))
        stored_before = stored
    assert stored_before > kills
    if case in FILES:
        assert not list(tmp_path.rglob("*.temporary"))
