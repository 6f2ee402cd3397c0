"""What a query's transactions take without the query: broker and clients alone, at the same rate.

Two processes have two partitions each, as two workers have. Fifty times a second each stores the changes
of a document: in one transaction for both partitions, or in one for each, as before. A consumer reads
committed records. Nobody computes anything. So this is the least that a query's output takes here, on top
of reading, logging and computing.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, TopicPartition

import emberflow as ef
from emberflow.sinks import StoredBundle
from tests.adapters.kafka_broker import KafkaBroker

RATE = 50
#: Records of a document in each partition.
RECORDS = 62
#: Documents before those that count.
WARM_UP = 200
DEALT = ([0, 1], [2, 3])
PARTITIONS = sum(map(len, DEALT))


def bundles(number: int, partitions: list[int]) -> list[StoredBundle]:
    payloads = [[f"word {word}", number, word] for word in range(RECORDS)]
    at = ef.GlobalTime(number, 0)
    return [StoredBundle("alone", partition, at, payloads) for partition in partitions]


def store(
    told: Connection, servers: str, topic: str, partitions: list[int], *, together: bool, count: int
) -> None:
    """A process: stores documents, and sends back milliseconds of each, and its processor time."""
    sink = ef.sinks.Kafka(servers, topic)
    open_group = sink.open_group
    assert open_group is not None
    writers = [open_group(own) for own in ([partitions] if together else [[p] for p in partitions])]
    with ThreadPoolExecutor(len(writers)) as pool:

        def stored(number: int) -> float:
            began = time.monotonic()
            given = [(writer, bundles(number, list(writer.lasts()))) for writer in writers]
            list(pool.map(lambda one: one[0].store(one[1]), given))
            return (time.monotonic() - began) * 1_000

        for number in range(-WARM_UP, 0):
            stored(number)
        told.send("ready")
        begin = told.recv()
        processor = time.process_time()
        took = []
        for number in range(count):
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            took.append(stored(number))
        told.send((took, time.process_time() - processor))
    for writer in writers:
        writer.close()


def consumed(servers: str, topic: str, begin: list[float], count: int) -> list[float]:
    """Milliseconds from the time of each document until all of it was read."""
    reading = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "alone",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    reading.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    left = dict.fromkeys(range(count), RECORDS * PARTITIONS)
    found: list[float] = []
    deadline = time.monotonic() + 120
    while len(found) < count and time.monotonic() < deadline:
        for message in reading.consume(5_000, 0.002):
            if message.error() is None:
                number = int(message.value().split(b",")[1])
                if number >= 0:
                    left[number] -= 1
                    if not left[number]:
                        found.append((time.monotonic() - begin[0] - number / RATE) * 1_000)
    reading.close()
    return found


def processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(broker: KafkaBroker, seconds: int, *, together: bool) -> dict[str, Any]:
    """Milliseconds to store and to be seen, and milliseconds of processor time a document."""
    topic, count = broker.topic(PARTITIONS), seconds * RATE
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for partitions in DEALT:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(
            target=store,
            args=(theirs, broker.servers, topic, partitions),
            kwargs={"together": together, "count": count},
        )
        process.start()
        pipes.append(ours)
        processes.append(process)
    begin: list[float] = [0.0]
    seen: list[float] = []
    reading = threading.Thread(
        target=lambda: seen.extend(consumed(broker.servers, topic, begin, count))
    )
    for pipe in pipes:
        pipe.recv()
    begin[0] = time.monotonic() + 1
    reading.start()
    for pipe in pipes:
        pipe.send(begin[0])
    assert broker.pid is not None
    before = processor_seconds(broker.pid), time.process_time()
    answers = [pipe.recv() for pipe in pipes]
    reading.join()
    after = processor_seconds(broker.pid), time.process_time()
    for process in processes:
        process.join()
    return {
        "stored": [one for took, _ in answers for one in took],
        "seen": seen,
        "broker": (after[0] - before[0]) / count * 1_000,
        "storing": sum(used for _, used in answers) / count * 1_000,
        "consuming": (after[1] - before[1]) / count * 1_000,
    }


def shown(times: list[float], percent: int) -> str:
    ordered = sorted(times)
    return f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:.1f}"


def print_transactions(broker: KafkaBroker, seconds: int) -> None:
    print(f"\nTransactions alone, {RATE} documents a second in {PARTITIONS} partitions (ms)\n")
    print(
        "| a transaction for | stored: p50 | p99 | seen: p50 | p99 | processor time a document: "
        "broker | storing | consuming |"
    )
    print("| --- " * 8 + "|", flush=True)
    measured(
        broker, seconds, together=True
    )  # what it takes until the JVM has compiled counts for none
    for together in (True, False):
        found = measured(broker, seconds, together=together)
        times = [shown(found[what], at) for what in ("stored", "seen") for at in (50, 99)]
        used = [f"{found[who]:.1f}" for who in ("broker", "storing", "consuming")]
        name = "both partitions of a worker" if together else "each partition"
        print(f"| {name} | {' | '.join(times + used)} |", flush=True)
