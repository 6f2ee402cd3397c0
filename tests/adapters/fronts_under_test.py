"""The fronts that the contract is checked on: each with the elements that it has to give."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from emberflow import fronts
from emberflow.fronts import Front
from tests.adapters.kafka_broker import KafkaBroker

LINES = [f"line {number} äöü" if number % 3 else "" for number in range(25)]
RECORDS = [{"at": number * 10 - 50, "word": f"word {number}"} for number in range(25)]


class Served(NamedTuple):
    finite: Front
    payloads: list[Any]
    times: list[int | None]
    endless: Front  # it waits for more when it has given all of this


class FrontCase(NamedTuple):
    name: str
    served: Callable[[Path, pytest.FixtureRequest], AbstractContextManager[Served]]


def _iterable(folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Served]:
    slow = fronts.Iterable(LINES, rate=1_000)
    times: list[int | None] = list(range(25))
    return nullcontext(Served(fronts.Iterable(lambda: LINES), LINES, times, slow))


def written(folder: Path, lines: list[str], *, files: int = 4) -> None:
    """The lines in several files, of which one is empty."""
    folder.mkdir(exist_ok=True)
    size = -(-len(lines) // files)
    for number in range(files):
        own = lines[number * size : (number + 1) * size]
        text = "".join(f"{line}\n" for line in own)
        (folder / f"part-{2 * number:02d}").write_text(text, encoding="utf-8")
    (folder / "part-03").write_bytes(b"")
    (folder / ".hidden").write_text("not an element\n", encoding="utf-8")
    (folder / "part-05").mkdir()


def _text_files(folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Served]:
    written(folder, LINES)
    return nullcontext(
        Served(
            fronts.Files(folder, format="text", until_end=True),
            LINES,
            [None] * 25,
            fronts.Files(folder, format="text"),
        )
    )


def _json_files(folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Served]:
    written(folder, [json.dumps(record) for record in RECORDS])
    times: list[int | None] = [record["at"] for record in RECORDS]  # type: ignore[misc]
    return nullcontext(
        Served(
            fronts.Files(folder, time="at", until_end=True),
            RECORDS,
            times,
            fronts.Files(folder, time=lambda record: record["at"]),
        )
    )


@contextmanager
def line_server(data: bytes, *, then_wait: bool = False) -> Iterator[int]:
    """A server that sends everyone the same, and then hangs up or waits. Gives its port."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # In pieces, so that lines are cut.
            for begin in range(0, len(data), 7):
                self.request.sendall(data[begin : begin + 7])
            if then_wait:
                over.wait(30)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            over.set()
            server.shutdown()
            thread.join()


@contextmanager
def _socket(folder: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    data = "".join(f"{line}\n" for line in LINES).encode()
    with line_server(data) as finite, line_server(data, then_wait=True) as endless:
        yield Served(
            fronts.Socket("127.0.0.1", finite),
            LINES,
            [None] * 25,
            fronts.Socket("127.0.0.1", endless),
        )


def _kafka(
    **options: Any,
) -> Callable[[Path, pytest.FixtureRequest], AbstractContextManager[Served]]:
    """Lines as text in a topic, with timestamps that stand still and go back."""

    def served(folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Served]:
        broker: KafkaBroker = request.getfixturevalue("kafka")
        topic = broker.topic()
        lines = [line.encode() for line in LINES]
        broker.produce(topic, lines, timestamp=lambda number: 1_000 + number // 4 * 3 - number % 5)
        times: list[int | None] = [None] * len(lines)
        if options["time"] == "timestamp":
            times = [1_000 + number // 4 * 3 - number % 5 for number in range(len(lines))]
        front = partial(fronts.Kafka, broker.servers, topic, value="text", **options)
        return nullcontext(Served(front(until_end=True), LINES, times, front()))

    return served


def _kafka_fields(folder: Path, request: pytest.FixtureRequest) -> AbstractContextManager[Served]:
    broker: KafkaBroker = request.getfixturevalue("kafka")
    topic = broker.topic()
    broker.produce(topic, [json.dumps(record).encode() for record in RECORDS])
    times: list[int | None] = [record["at"] for record in RECORDS]  # type: ignore[misc]
    front = partial(fronts.Kafka, broker.servers, topic, time="at")
    return nullcontext(Served(front(until_end=True), RECORDS, times, front()))


KAFKA = [
    FrontCase("Kafka timestamp", _kafka(time="timestamp", idle_ms=None)),
    FrontCase("Kafka arrival", _kafka(time="arrival")),
    FrontCase("Kafka promises", _kafka(time="timestamp", idle_ms=1_000)),
    FrontCase("Kafka field", _kafka_fields),
]
REPLAYABLE = [
    *KAFKA,
    FrontCase("Iterable", _iterable),
    FrontCase("Files text", _text_files),
    FrontCase("Files jsonl", _json_files),
]
ALL = [*REPLAYABLE, FrontCase("Socket", _socket)]
