"""A streaming write: each task stages its rows at the live query, and the batch is committed at once.

Tasks do not know whether their batch will ever be committed, and may be tried again; so what they send
is staged, under a name of its own for each attempt, and belongs to nothing. Spark then calls `commit`
with the messages of the attempts that count. That the batch is durable and was not there before is the
inbox's to see to (`fronts.inbox`): a batch is known by the id that the streaming query's checkpoint
keeps, and by its number. Spark tells both to its tasks.
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

#: What Spark calls them in the properties of a job.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_PAUSE_SECONDS = 0.1
#: How long the flow may be behind before a task that waits for it gives up.
_WAIT_SECONDS_MAX = 600.0


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged. ``part`` is None if the batch was there already."""

    partition: int
    stream: str
    batch: int
    part: str | None
    bytes: int
    checksum: str
    rows: int


class FrontWriter(DataSourceStreamArrowWriter):
    """Made where Spark plans, taken to executors, and made anew where Spark commits."""

    def __init__(self, asked: SourceOptions, schema: StructType) -> None:
        self._asked = asked.resolved()
        self._schema = schema.json()
        with self._asked.client() as client:
            client.ask(self._asked.service, "check", schema=self._schema)

    # On an executor.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        partition, stream, batch = _task()
        with self._asked.client() as client:
            if not self._may_stage(client, stream, batch):
                for _ in iterator:  # Spark wants it read
                    pass
                return Staged(partition, stream, batch, None, 0, "", 0)
            part = part_name(stream, batch, partition)
            staging = _Staging(client, self._asked.service, part)
            rows = staging.write(iterator)
            return Staged(partition, stream, batch, part, staging.bytes, staging.checksum, rows)

    def _may_stage(self, client: BridgeClient, stream: str, batch: int) -> bool:
        """Wait until the live query takes more; whether it does not have the batch already."""
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while (answer := self._begin(client, stream, batch)) == "wait":
            if time.monotonic() > deadline:
                raise EmberflowError(
                    f"{self._asked.service} of the live query has taken nothing more for "
                    f"{_WAIT_SECONDS_MAX:.0f} s: too much that it acknowledged is part of no cut. "
                    f"Look at its lastProgress: is it behind, or stuck?"
                )
            time.sleep(_PAUSE_SECONDS)
        return answer == "go"

    def _begin(self, client: BridgeClient, stream: str, batch: int) -> str:
        return str(client.ask(self._asked.service, "begin", stream=stream, batch=batch))

    # Beside the driver.

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = sorted(_staged(messages), key=lambda one: one.partition)
        missing = [one for one in staged if one.part is None]
        with self._asked.client() as client:
            if missing:
                answer = self._begin(client, missing[0].stream, batchId)
                if answer == "here":
                    return
                raise BridgeAwayError(
                    f"the live query had batch {batchId} when its rows were to be sent, and has it "
                    f"no more. Was it begun anew, with another checkpointLocation? The streaming "
                    f"query gives the batch again when it is started again."
                )
            client.ask(
                self._asked.service,
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
            with self._asked.client() as client:
                client.ask(self._asked.service, "abort", parts=parts)


class _Staging:
    """A file to write Arrow to, whose bytes go to the live query in messages of a bounded size."""

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
        """Send all of it; how many rows it was."""
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
    """What Arrow takes for a file."""

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
    """The partition that this task writes, of which batch of which stream."""
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
