"""A streaming write: each task stages its rows at the live query, and the batch is committed as one.

A task does not know whether its batch will ever be committed, and Spark may retry it. So it stages its
rows, under a name of its own for each attempt, and staged rows are not yet part of the front. Spark
then calls `commit` with the messages of the attempts that count. The inbox (`fronts.inbox`) makes the
batch durable and drops it if it was committed before: it identifies a batch by the id in the streaming
query's checkpoint and by the batch's number, both of which Spark passes to its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from xxhash import xxh64

from emberflow.datasource.options import SourceOptions
from emberflow.errors import EmberflowError
from emberflow.fronts.inbox import part_name
from emberflow.runners.live.serving.bridge import CHUNK_BYTES, BridgeAwayError, BridgeClient

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Names of the properties of a Spark job.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_PAUSE_SECONDS = 0.1
#: How long a task waits for a flow with a backlog before it gives up.
_WAIT_SECONDS_MAX = 600.0


@dataclass
class Staged(WriterCommitMessage):
    """The rows that one task has staged. ``part`` is None if the front has the batch already."""

    partition: int
    stream: str
    batch: int
    part: str | None
    bytes: int
    checksum: str
    rows: int


class FrontWriter(DataSourceStreamArrowWriter):
    """Spark makes one where it plans, sends it to executors, and makes another where it commits."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.resolved()
        self._schema = schema.json()
        with self._options.client() as client:
            client.ask(self._options.service, "check", schema=self._schema)

    # On an executor.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        partition, stream, batch = _task()
        with self._options.client() as client:
            if not self._may_stage(client, stream, batch):
                for _ in iterator:  # Spark requires that a task reads all its input
                    pass
                return Staged(partition, stream, batch, None, 0, "", 0)
            part = part_name(stream, batch, partition)
            staging = _Staging(client, self._options.service, part)
            rows = staging.write(iterator)
            return Staged(partition, stream, batch, part, staging.bytes, staging.checksum, rows)

    def _may_stage(self, client: BridgeClient, stream: str, batch: int) -> bool:
        """Wait until the live query takes more. False if it has the batch already."""
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while (answer := self._begin(client, stream, batch)) == "wait":
            if time.monotonic() > deadline:
                raise EmberflowError(
                    f"{self._options.service} of the live query has accepted no rows for "
                    f"{_WAIT_SECONDS_MAX:.0f} s: too many of its rows are not yet in a cut. "
                    f"Look at its lastProgress: is it behind, or stuck?"
                )
            time.sleep(_PAUSE_SECONDS)
        return answer == "go"

    def _begin(self, client: BridgeClient, stream: str, batch: int) -> str:
        return str(client.ask(self._options.service, "begin", stream=stream, batch=batch))

    # On the driver's machine.

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = sorted(_staged(messages), key=lambda one: one.partition)
        missing = [one for one in staged if one.part is None]
        with self._options.client() as client:
            if missing:
                answer = self._begin(client, missing[0].stream, batchId)
                if answer == "here":
                    return
                raise BridgeAwayError(
                    f"the live query had batch {batchId} before this commit, and has lost it. Was "
                    f"it started anew, with another checkpointLocation? Restart the streaming query: "
                    f"it sends the batch again."
                )
            client.ask(
                self._options.service,
                "commit",
                stream=staged[0].stream,
                batch=batchId,
                schema=self._schema,
                parts=[(one.part, one.bytes, one.checksum) for one in staged if one.rows],
                rows=sum(one.rows for one in staged),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        parts = [one.part for one in _staged(messages) if one.part is not None]
        if parts:
            with self._options.client() as client:
                client.ask(self._options.service, "abort", parts=parts)


class _Staging:
    """A file to write Arrow to. It sends the bytes to the live query, in messages of bounded size."""

    def __init__(self, client: BridgeClient, service: str, part: str) -> None:
        self._client = client
        self._service = service
        self._part = part
        self._waiting = bytearray()
        self._digest = xxh64()
        self.bytes = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> int:
        """Send all batches. Returns the number of rows."""
        import pyarrow as pa

        rows = 0
        stream: Any = None
        with pa.PythonFile(_Sending(self), mode="w") as file:
            for batch in iterator:
                if batch.num_rows:
                    stream = stream or pa.ipc.new_stream(file, batch.schema)
                    stream.write_batch(batch)
                    rows += batch.num_rows
            if stream is not None:
                stream.close()
        self._send(0)
        return rows

    def take(self, data: Any) -> int:
        size = len(data)
        self._waiting += data
        self._send(CHUNK_BYTES)
        return size

    def _send(self, least: int) -> None:
        while len(self._waiting) > least:
            chunk = bytes(self._waiting[:CHUNK_BYTES])
            del self._waiting[:CHUNK_BYTES]
            self._client.ask(self._service, "stage", part=self._part, offset=self.bytes, data=chunk)
            self._digest.update(chunk)
            self.bytes += len(chunk)


class _Sending:
    """The file interface that Arrow expects."""

    def __init__(self, staging: _Staging) -> None:
        self._staging = staging
        self.closed = False

    def write(self, data: Any) -> int:
        return self._staging.take(memoryview(data).cast("B"))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _task() -> tuple[int, str, int]:
    """The partition, stream and batch that this task writes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    stream = None if context is None else context.getLocalProperty(_QUERY_ID)
    batch = None if context is None else context.getLocalProperty(_BATCH_ID)
    if context is None or stream is None or batch is None:
        raise EmberflowError(
            "Spark does not say which batch of which streaming query this task writes. The data "
            "source 'emberflow' takes micro-batches of Structured Streaming."
        )
    return context.partitionId(), stream, int(batch)
