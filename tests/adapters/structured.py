"""Structured fronts and sinks as a live query would place them, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType
from xxhash import xxh64

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.fronts.inbox import part_name
from emberflow.fronts.structured import InboxService
from emberflow.sinks.structured import OutboxService

_LONG = pa.int64()
SCHEMA = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": "at", "type": "long", "nullable": True, "metadata": {}},
            {"name": "word", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)


def graph(partitions: int = 1) -> Any:
    flow = ef.Flow("structured")
    counts = flow.front("docs").key_by(lambda word: word).count()
    if partitions == 1:
        counts.sink("counts")
    else:
        counts.key_by(lambda count: count[0]).sink("counts", partitions=partitions)
    return flow.graph()


def placed_front(folder: Path, *arguments: Any, **options: Any) -> fronts.Structured:
    front = fronts.Structured(*arguments, **options)
    return front.placed(graph().fronts["docs"], str(folder))


def placed_sink(folder: Path, schema: Any = None, *, partitions: int = 1) -> sinks.Structured:
    return sinks.Structured(schema).placed(graph(partitions).sinks["counts"], str(folder))


def arrow(rows: Sequence[tuple[Any, str]], time: pa.DataType = _LONG) -> bytes:
    """Rows of `SCHEMA` as a task sends them, two to a record batch."""
    schema = pa.schema([("at", time), ("word", pa.string())])
    file = pa.BufferOutputStream()
    with pa.ipc.new_stream(file, schema) as stream:
        for begin in range(0, len(rows), 2):
            at, words = zip(*rows[begin : begin + 2], strict=True)
            stream.write_batch(pa.record_batch([pa.array(at, time), pa.array(words)], schema))
    return bytes(file.getvalue())


class Sender:
    """Does what the tasks and the commit of a micro-batch do, each step by itself."""

    def __init__(
        self,
        stream: str = "stream-1",
        *,
        schema: StructType = SCHEMA,
        time: pa.DataType = _LONG,
    ) -> None:
        self.stream = stream
        self.schema = schema
        self.time = time

    def steps(
        self, batch: int, parts: Sequence[Sequence[tuple[int | None, str]]], chunk: int = 100
    ) -> list[Callable[[InboxService], Any]]:
        """Stage each part in chunks, then commit."""
        named = [
            (part_name(self.stream, batch, number), arrow(rows, self.time))
            for number, rows in enumerate(parts)
        ]

        def stage(name: str, data: bytes, offset: int) -> Callable[[InboxService], Any]:
            return lambda service: service.serve(
                "stage", {"part": name, "offset": offset, "data": data[offset : offset + chunk]}
            )

        def commit(service: InboxService) -> Any:
            arguments = {
                "stream": self.stream,
                "batch": batch,
                "schema": self.schema.json(),
                "parts": [(name, len(data), xxh64(data).hexdigest()) for name, data in named],
                "rows": sum(map(len, parts)),
            }
            return service.serve("commit", arguments)

        staged = [
            stage(name, data, offset)
            for name, data in named
            for offset in range(0, len(data), chunk)
        ]
        return [*staged, commit]

    def send(
        self, service: InboxService, batch: int, *parts: Sequence[tuple[int | None, str]]
    ) -> bool:
        """All of a batch; whether it was new."""
        for step in self.steps(batch, parts):
            result = step(service)
        return bool(result)


def outbox(sink: sinks.Structured) -> OutboxService:
    return sink.service()
