"""Workers, the driver and the broker are killed at random moments; the output topic never shows it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from tests.adapters.kafka_broker import KafkaBroker, running_broker
from tests.spark.kafka_driver import PARTITIONS, index

DRIVER = Path(__file__).parent / "kafka_driver.py"
#: Above 0 in `make soak`, which kills more often and at other moments.
ROUND = int(os.environ.get("EMBERFLOW_FAULTS_ROUND", "0"))
SEED = 11 + ROUND
#: How long anything may stall: starting a driver is the slowest.
SECONDS = 90
WORDS = [f"word {number}" for number in range(23)]


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker of its own, because it is killed."""
    with running_broker() as broker:
        yield broker


class Writing:
    """Writes documents to both partitions at a steady rate until it is told to end.

    Each document is written once. Even an idempotent producer sometimes writes twice when the
    broker is killed, so a document is looked for before it is written again.
    """

    def __init__(self, broker: KafkaBroker, topic: str, apart: bool) -> None:
        from confluent_kafka import Producer

        self.documents: list[ef.At] = []
        self._broker = broker
        self._topic = topic
        self._apart = apart
        self._dice = random.Random(SEED)
        self._ended = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.servers,
                "message.send.max.retries": 0,
                "message.timeout.ms": 20_000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        # A document without words only says that nothing below its time will come.
        self._write(0, {"id": -1, "words": []})
        self._write(1, {"id": -1, "words": []})

    def _run(self) -> None:
        while not self._ended.wait(0.03):
            partition = self._dice.randrange(PARTITIONS)
            # Each partition has words of its own if the order of partitions is not known.
            words = WORDS[partition::PARTITIONS] if self._apart else WORDS
            words = self._dice.choices(words, k=self._dice.randrange(5))
            self._write(partition, {"id": len(self.documents), "words": words})

    def _write(self, partition: int, document: dict[str, Any]) -> None:
        written = len(self.documents)
        at = 1_000_000 + written
        while not self._delivered(partition, document, at):
            if self._broker.ends(self._topic, PARTITIONS) > written:
                break
        self.documents.append(ef.At(at, document))

    def _delivered(self, partition: int, document: dict[str, Any], at: int) -> bool:
        """Whether the broker has confirmed it. If not, the broker may still have it."""
        told: list[Any] = []
        self._producer.produce(
            self._topic,
            value=json.dumps(document).encode(),
            partition=partition,
            timestamp=at,
            on_delivery=lambda error, message: told.append(error),
        )
        assert self._producer.flush(SECONDS) == 0
        (error,) = told
        return error is None  # `==` would compare error codes


class Driver:
    """The driver's process, and a way to its workers."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, DRIVER, *self._arguments],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def kill(self) -> None:
        """Kill the driver only: its JVM and workers have to notice by themselves."""
        self.processes[-1].kill()
        self.processes[-1].wait(SECONDS)
        self.start()

    def kill_worker(self, dice: random.Random) -> bool:
        """Kill one of the processes that Spark's Python daemon has forked."""
        parents = _parents()
        daemons = [pid for pid in parents if "pyspark.daemon" in _command_line(pid)]
        own = [pid for pid in daemons if self.processes[-1].pid in _ancestors(pid, parents)]
        workers = [pid for pid in own if parents[pid] in own]
        if not workers:
            return False
        os.kill(dice.choice(workers), signal.SIGKILL)
        return True

    def check_alive(self) -> None:
        assert self.processes[-1].poll() is None, self._log.read_text(errors="replace")[-5_000:]

    def end(self) -> None:
        """Kill everything that all drivers started. Each driver leads a process group of its own."""
        for process in self.processes:
            for group in (process.pid,):
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(SECONDS)


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue  # it has ended meanwhile
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    found = []
    while pid in parents:
        pid = parents[pid]
        found.append(pid)
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


class Out:
    """How far the output topic has come."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._broker = broker
        self._topic = topic

    def wait_for_more(self, before: int, driver: Driver) -> int:
        """Wait until it is longer than before; return its length, in offsets."""
        deadline = time.monotonic() + SECONDS
        while (now := self._broker.ends(self._topic, PARTITIONS)) <= before:
            driver.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was written for {SECONDS} s")
            time.sleep(0.2)
        return now

    def wait_for(self, count: int, driver: Driver) -> None:
        """Wait until it has this many records, as long as it grows."""
        ends = 0
        while (found := sum(map(len, values(self._broker, self._topic)))) < count:
            try:
                ends = self.wait_for_more(ends, driver)
            except TimeoutError as error:
                raise TimeoutError(f"{found} records of {count}, and then {error}") from None
        assert found == count


@contextmanager
def running(
    broker: KafkaBroker, folder: Path, idle: str, apart: bool
) -> Iterator[tuple[Writing, Driver, Out, str]]:
    source, target = broker.topic(PARTITIONS), broker.topic(PARTITIONS)
    writing = Writing(broker, source, apart)
    driver = Driver(
        [broker.servers, source, target, str(folder / "checkpoint"), idle], folder / "log"
    )
    try:
        yield writing, driver, Out(broker, target), target
    finally:
        driver.end()


def kill_again_and_again(
    kinds: list[str], broker: KafkaBroker, writing: Writing, driver: Driver, out: Out
) -> None:
    dice = random.Random(SEED)
    dice.shuffle(kinds)
    count = 0
    for kind in kinds:
        # Output since the last kill shows that the query is at work when it is hit.
        count = out.wait_for_more(count, driver)
        time.sleep(dice.uniform(0, 1))
        if kind == "worker":
            while not driver.kill_worker(dice):  # between two lives there are no workers
                time.sleep(0.1)
        elif kind == "driver":
            driver.kill()
        else:
            broker.kill()
            time.sleep(dice.uniform(0, 1))
            broker.start()


def values(broker: KafkaBroker, topic: str) -> list[list[bytes]]:
    return [[value for _, value in broker.committed(topic, n)] for n in range(PARTITIONS)]


def expected(documents: list[ef.At]) -> list[list[bytes]]:
    """The reference's output as the sink writes it, partition by partition."""
    from emberflow.rows.plain import to_json
    from emberflow.values.hashing import key_hash, owner

    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for entry in ef.run(index(), docs=documents)["changes"]:
        found[owner(key_hash(entry["word"]), PARTITIONS)].append(to_json(entry).encode())
    return found


@pytest.mark.timeout(600)
def test_the_output_topic_equals_the_reference_to_the_byte(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    with running(own_broker, tmp_path, "never", apart=False) as (writing, driver, out, target):
        kinds = ["worker", "driver", "broker", "worker", "driver"] + (
            ["worker", "worker", "driver", "broker", "broker"] if ROUND else []
        )
        kill_again_and_again(kinds, own_broker, writing, driver, out)
        writing.end()
        wanted = expected(writing.documents)
        out.wait_for(sum(map(len, wanted)), driver)
        assert values(own_broker, target) == wanted


@pytest.mark.timeout(600)
def test_what_a_silent_partition_promised_is_kept(own_broker: KafkaBroker, tmp_path: Path) -> None:
    """Timestamps long past: each comes after its time was promised, so the front chooses one.

    The order in which partitions meet is up to the query, so each has words of its own. If a later
    life chose other times, output would be lost or repeated.
    """
    with running(own_broker, tmp_path, "50", apart=True) as (writing, driver, out, target):
        kill_again_and_again(["worker", "driver"], own_broker, writing, driver, out)
        writing.end()
        wanted = by_word([value for part in expected(writing.documents) for value in part])
        out.wait_for(sum(map(len, wanted.values())), driver)
        assert by_word([value for part in values(own_broker, target) for value in part]) == wanted


def by_word(records: list[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    word: Callable[[bytes], str] = lambda record: json.loads(record)["word"]  # noqa: E731
    for record in records:
        found.setdefault(word(record), []).append(record)
    return found
