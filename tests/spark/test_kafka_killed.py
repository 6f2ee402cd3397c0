"""Workers, the driver and the broker, killed at random moments: no output topic ever shows it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from tests.adapters.kafka_broker import KafkaBroker, running_broker
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults.toll import toll
from tests.spark.kafka_driver import PARTITIONS, SINK_PARTITIONS, index

DRIVER = Path(__file__).parent / "kafka_driver.py"
#: Rounds of `make soak` kill at other moments.
SEED = 11 + FAULTS_ROUND
WORDS = [f"word {number}" for number in range(23)]
#: Seconds between two documents: when something is about to be killed, and else. Most of this test is waiting
#: for drivers to start, and every document costs processor time of all processes.
BUSY_SECONDS = 0.03
CALM_SECONDS = BUSY_SECONDS if SOAK else 0.3
#: How often the output is looked at.
LOOK_SECONDS = 0.2 if SOAK else 0.5
#: Of the drivers, one after the other: each deals out the partitions of the sinks anew, and those whose
#: workers live on for a moment have dealt them out otherwise.
WORKERS = (2, 1, 3)


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker of its own, because it is killed."""
    with running_broker() as broker:
        yield broker


class Writing:
    """Writes documents to both partitions until it is told to end, many while `is_busy`.

    Each document is written once. Even an idempotent producer sometimes writes twice when the
    broker is killed, so a document is looked for before it is written again.
    """

    def __init__(self, broker: KafkaBroker, topic: str, apart: bool) -> None:
        from confluent_kafka import Producer

        self.documents: list[ef.At] = []
        self._broker = broker
        self._topic = topic
        self._apart = apart
        self.is_busy = False
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
        self.abandon()
        assert not self._thread.is_alive()
        # A document without words only says that nothing below its time will come.
        self._write(0, {"id": -1, "words": []})
        self._write(1, {"id": -1, "words": []})

    def abandon(self) -> None:
        """Write nothing more, also where the test has failed."""
        self._ended.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(BUSY_SECONDS if self.is_busy else CALM_SECONDS):
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


#: What a driver says that begins while the broker is down.
_NO_BROKER = "no broker at"


class Driver:
    """The driver's process, and a way to its workers."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        workers = WORKERS[len(self.processes) % len(WORKERS)]
        with open(self._log, "ab") as log:
            self._log_begin = log.tell()
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, DRIVER, str(workers), *self._arguments],
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
        # The JVM has the name of the module among its settings.
        daemons = [pid for pid in parents if _DAEMON in _command_line(pid)]
        own = [pid for pid in daemons if self.processes[-1].pid in _ancestors(pid, parents)]
        workers = [pid for pid in own if parents[pid] in own]
        if not workers:
            return False
        try:
            os.kill(dice.choice(workers), signal.SIGKILL)
        except ProcessLookupError:  # a rescale has ended it just now
            return False
        toll("worker")
        return True

    def check_alive(self) -> None:
        """Raise unless it runs. One that began while the broker was down is begun again, as a supervisor does."""
        if self.processes[-1].poll() is None:
            return
        told = self._log.read_text(errors="replace")[self._log_begin :]
        assert _NO_BROKER in told, told[-5_000:]
        self.start()

    def end(self) -> None:
        """Kill everything that all drivers started. Each driver leads a process group of its own."""
        for process in self.processes:
            for group in (process.pid,):
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(SECONDS)


#: In the command line of the daemon that forks the workers, and in theirs.
_DAEMON = "\0-m\0emberflow.runners.live.daemon\0"


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


class Topics:
    """Documents written to a topic, and how far the output topic has come."""

    def __init__(self, broker: KafkaBroker, idle: str, apart: bool) -> None:
        self._broker = broker
        self._ends = 0
        self.idle = idle
        self.source, self.target = broker.topic(PARTITIONS), broker.topic(SINK_PARTITIONS)
        self.writing = Writing(broker, self.source, apart)

    def note_the_ends(self) -> None:
        """What is in the output was written before the last kill, and does not show that they went on."""
        self._ends = self._broker.ends(self.target, SINK_PARTITIONS)

    def wait_for_more(self, driver: Driver) -> None:
        """Wait until the output is longer than it was the last time."""
        deadline = time.monotonic() + SECONDS
        while (now := self._broker.ends(self.target, SINK_PARTITIONS)) <= self._ends:
            driver.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was written for {SECONDS} s")
            time.sleep(LOOK_SECONDS)
        self._ends = now

    def wait_for(self, count: int, driver: Driver) -> None:
        """Wait until the output has so many records, as long as it gets more."""
        while (found := sum(map(len, self.values()))) < count:
            try:
                self.wait_for_more(driver)
            except TimeoutError as error:
                raise TimeoutError(f"{found} records of {count}, and then {error}") from None
        assert found == count

    def values(self) -> list[list[bytes]]:
        return [
            [value for _, value in self._broker.committed(self.target, n)]
            for n in range(SINK_PARTITIONS)
        ]


@contextmanager
def running(broker: KafkaBroker, folder: Path, topics: list[Topics]) -> Iterator[Driver]:
    routes = [part for own in topics for part in (own.source, own.target, own.idle)]
    driver = Driver([broker.servers, str(folder / "checkpoints"), *routes], folder / "log")
    try:
        yield driver
    finally:
        driver.end()
        for own in topics:
            own.writing.abandon()


def kill_again_and_again(
    kinds: list[str], broker: KafkaBroker, driver: Driver, topics: list[Topics]
) -> None:
    dice = random.Random(SEED)
    dice.shuffle(kinds)
    for kind in kinds:
        # Both have to have gone on since the last kill, so that this one hits them at work.
        for own in topics:
            own.wait_for_more(driver)
            own.writing.is_busy = True
        time.sleep(CALM_SECONDS + dice.uniform(0, 1))
        if kind == "worker":
            deadline = time.monotonic() + SECONDS
            while not driver.kill_worker(dice):  # between two lives there are no workers
                assert time.monotonic() < deadline, "there are no workers to kill"
                time.sleep(0.1)
        elif kind == "driver":
            driver.kill()
            toll("driver")
        else:
            broker.kill()
            toll("broker")
            time.sleep(dice.uniform(0, 1))
            broker.start()
        for own in topics:
            own.writing.is_busy = False
            own.note_the_ends()


def expected(documents: list[ef.At]) -> list[list[bytes]]:
    """The reference's output as the sink writes it, partition by partition."""
    from emberflow.rows.plain import to_json
    from emberflow.values.hashing import key_hash, owner

    found: list[list[bytes]] = [[] for _ in range(SINK_PARTITIONS)]
    for entry in ef.run(index(), docs=documents)["changes"]:
        found[owner(key_hash(entry["word"]), SINK_PARTITIONS)].append(to_json(entry).encode())
    return found


@pytest.mark.early
@pytest.mark.timeout(1_800)
def test_the_output_topics_never_show_who_was_killed(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    """Two queries of one driver. The output of the first equals the reference to the byte.

    The first one's number of workers changes all the time, so kills come in the middle of that, too.

    In the second, which a soak has, a silent partition promises more than it keeps: its timestamps are long
    past, so each record comes later than was promised, and its time is a choice. In which order its
    partitions meet is the query's own affair, so each has words of its own. Should a later life choose
    otherwise, output would be lost or come twice.
    """
    kinds = ["driver", "broker"] + (
        ["worker"] * 5 + ["driver"] * 3 + ["broker"] * 2 if SOAK else []
    )
    in_order = Topics(own_broker, idle="never", apart=False)
    topics = [in_order]
    if SOAK:
        topics.append(Topics(own_broker, idle="50", apart=True))
    with running(own_broker, tmp_path, topics) as driver:
        kill_again_and_again(kinds, own_broker, driver, topics)
        for own in topics:
            own.writing.end()
        wanted = expected(in_order.writing.documents)
        in_order.wait_for(sum(map(len, wanted)), driver)
        assert in_order.values() == wanted
        for promised in topics[1:]:
            chosen = by_word(expected(promised.writing.documents))
            promised.wait_for(sum(map(len, chosen.values())), driver)
            assert by_word(promised.values()) == chosen


def by_word(partitions: list[list[bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for record in chain.from_iterable(partitions):
        found.setdefault(json.loads(record)["word"], []).append(record)
    return found
