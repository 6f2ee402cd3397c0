"""A private Kafka broker: one node in KRaft mode, in a temporary folder, gone when it is stopped.

It runs from the jars that `scripts/ensure-kafka` has copied into build/kafka, and listens on free ports
of the loopback device: one plain, one that wants a password. It can be killed and started again.

Two things depend on the jars and the Java alone, and are made once, in build/kafka: a folder as Kafka formats
it, which takes a JVM of its own, and an archive of the classes that a broker loads, with which it starts in
half of the processor time.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.java_server import JavaServer, free_port, java
from tests.effort import SECONDS

#: Resolved, because an archive of classes is good for the paths of the jars that it was made with.
JARS = (Path(__file__).parents[2] / "build" / "kafka").resolve()
USER, PASSWORD = "ada", "lovelace"
_START_SECONDS_MAX = SECONDS
_SETTLE_SECONDS_MAX = 1.0
#: Small and soon there: what tests do takes no heap and no optimizing.
TESTS_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROGRAM = ("-cp", f"{JARS}/broker/*")
#: As Kafka's own script starts it: for benchmarks.
KAFKAS_JAVA = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)


def missing() -> str | None:
    """Why there can be no broker here."""
    if not (JARS / "broker" / "installed.sha256").exists():
        return "the jars of a Kafka broker are not in build/kafka/broker (scripts/ensure-kafka)"
    if java() is None:
        return "no java was found to run a Kafka broker with"
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "confluent-kafka is not installed (pip install 'emberflow[kafka]')"
    return None


@contextlib.contextmanager
def running_broker() -> Iterator[KafkaBroker]:
    """A broker for as long as this lasts; skips the test where there can be none."""
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    broker = _started()
    try:
        yield broker
    finally:
        broker.stop()


def _started(attempts: int = 3) -> KafkaBroker:
    """A broker. One that ends at once may have lost a port to another process, so others are tried."""
    while True:
        attempts -= 1
        broker = KafkaBroker()
        try:
            broker.start()
        except RuntimeError:
            if not attempts:
                raise
        else:
            return broker


def _prepared() -> Path:
    """A folder with what brokers begin with. Who comes first makes it, and the others wait."""
    program = java() or "java"
    made_for = hashlib.sha256((JARS / "broker" / "installed.sha256").read_bytes())
    made_with = os.path.realpath(shutil.which(program) or program)
    made_for.update(f"{made_with} {TESTS_JAVA} {JARS}".encode())
    folder = JARS / f"prepared-{made_for.hexdigest()[:16]}"
    if not folder.exists():
        with open(JARS / "prepared.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _prepare(folder)
    return folder


def _prepare(folder: Path) -> None:
    broker = KafkaBroker()
    making = Path(f"{folder}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    try:
        broker.format()
        shutil.copytree(broker.home / "data", making / "data")
        # Brokers work without the archive, so whatever keeps it from being made is no error.
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            broker.archive_classes(making / "classes.jsa")
        making.rename(folder)
    finally:
        broker.stop()


class KafkaBroker(JavaServer):
    def __init__(self, java_options: Sequence[str] = TESTS_JAVA) -> None:
        super().__init__("kafka")
        self._java_options = java_options
        self._port, self._secret_port, self._controller_port = (free_port() for _ in range(3))
        self._topics = 0

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def secret_servers(self) -> str:
        """Those that want SASL PLAIN."""
        return f"127.0.0.1:{self._secret_port}"

    def start(self) -> None:
        properties = self.home / "server.properties"
        if not properties.exists():
            properties.write_text(self._properties())
            shutil.copytree(_prepared() / "data", self.home / "data")
        options = list(self._java_options)
        archive = _prepared() / "classes.jsa"
        if self._java_options == TESTS_JAVA and archive.exists():
            options.append(f"-XX:SharedArchiveFile={archive}")
        self._run([*options, *_PROGRAM, "kafka.Kafka", properties])
        self._wait_until_ready()

    def format(self) -> None:
        """Make the folder of its data, as Kafka does."""
        properties = self.home / "server.properties"
        properties.write_text(self._properties())
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = cluster.replace("-", "A")  # at its beginning it would look like an option
        options = ["format", "-t", cluster, "-c", str(properties)]
        made = subprocess.run(
            [java() or "java", *TESTS_JAVA, *_PROGRAM, "kafka.tools.StorageTool", *options],
            capture_output=True,
            text=True,
            timeout=_START_SECONDS_MAX,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"the broker's folder was not made:\n{made.stdout}{made.stderr}")

    def archive_classes(self, archive: Path) -> None:
        """Start it in a folder that is formatted, and end it in order: then it archives its classes."""
        archiving = f"-XX:ArchiveClassesAtExit={archive}"
        process = self._run(
            [*TESTS_JAVA, archiving, *_PROGRAM, "kafka.Kafka", self.home / "server.properties"]
        )
        self._wait_until_ready()
        process.terminate()
        process.wait(_START_SECONDS_MAX)
        self._process = None

    def topic(self, partitions: int = 1, **config: str) -> str:
        """The name of a new topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        self._topics += 1
        name = f"topic-{os.getpid()}-{self._topics}"
        topic = NewTopic(name, partitions, 1, config=config)
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([topic], operation_timeout=20)[name].result(30)
        # The broker has made it, and on a busy machine it may still tell others that it has not.
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            found = admin.list_topics(name, timeout=30).topics[name]
            if found.error is None and len(found.partitions) == partitions:
                return name
            assert time.monotonic() < deadline, found.error
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: Callable[[int], bytes | None] = lambda number: None,
        timestamp: Callable[[int], int] = lambda number: 0,
        headers: Callable[[int], Any] = lambda number: None,
    ) -> None:
        """Records in order. A timestamp of 0 is the present."""
        from confluent_kafka import Producer

        failures: list[Any] = []
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value=value,
                key=key(number),
                partition=partition,
                timestamp=timestamp(number),
                headers=headers(number),
                on_delivery=lambda error, message: error and failures.append(error),
            )
            # The producer holds 100,000 records at most.
            if number % 50_000 == 49_999:
                assert producer.flush(60) == 0
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failures, failures

    def committed(self, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes]]:
        """Keys and values of the committed records of a partition."""
        return [(key, value) for key, value, _ in self.records(topic, partition)]

    def records(
        self, topic: str, partition: int = 0, isolation: str = "read_committed"
    ) -> list[tuple[Any, Any, Any]]:
        """Keys, values and headers of the records of a partition."""
        from confluent_kafka import KafkaError, TopicPartition

        consumer = self._consumer(isolation)
        try:
            # An end is told only when nothing comes for a while; others may be writing.
            end = self._settled_end(consumer, topic, partition)
            consumer.assign([TopicPartition(topic, partition, 0)])
            found = []
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    if message.offset() >= end:
                        return found
                    found.append((message.key(), message.value(), message.headers()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
            raise TimeoutError(f"{topic} was not read to its end")
        finally:
            consumer.close()

    def _consumer(self, isolation: str) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )

    def _settled_end(self, consumer: Any, topic: str, partition: int) -> int:
        """Where it ends for this consumer.

        A commit is acknowledged a moment before those who read committed see it. So this waits a
        moment for the last transaction, which may also be one that nobody will ever end.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS_MAX
        everything = self._consumer("read_uncommitted")
        try:
            whole = self._end(everything, topic, partition)
            while (end := self._end(consumer, topic, partition)) < whole:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            return end
        finally:
            everything.close()

    def ends(self, topic: str, partitions: int) -> int:
        """How many offsets are taken, all partitions together; markers take some, too."""
        consumer = self._consumer("read_committed")
        try:
            return sum(self._end(consumer, topic, number) for number in range(partitions))
        finally:
            consumer.close()

    def _end(self, consumer: Any, topic: str, partition: int) -> int:
        from confluent_kafka import KafkaException, TopicPartition

        deadline = time.monotonic() + 60
        while True:
            try:
                place = TopicPartition(topic, partition)
                end: int = consumer.get_watermark_offsets(place, timeout=10)[1]
                return end
            except (
                KafkaException
            ):  # a topic is made before all know of it, and a broker may be away
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _properties(self) -> str:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self._port},"
                f"SASL_PLAINTEXT://127.0.0.1:{self._secret_port},"
                f"CONTROLLER://127.0.0.1:{self._controller_port}"
            ),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{login} required user_{USER}="{PASSWORD}";'
            ),
            "log.dirs": self.home / "data",
            # Timestamps of tests may be long past, and what is as old as they are would be removed.
            "log.retention.ms": -1,
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # Nobody looks at the log of a controller that has nothing to say.
            "metadata.max.idle.interval.ms": 0,
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def _wait_until_ready(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=1).brokers:
                    return
        logged = self._logged()
        self.stop()
        raise RuntimeError(f"the private Kafka broker did not start:\n{logged}")
