"""A streaming read: a partition of a sink is a partition of each batch, with its rows in order.

An offset is the last global time of each partition of the sink: ``{"0": [time, front]}``. The rows
between two offsets are the same at every read, since stored bundles do not change until they are
acknowledged. Spark calls `commit` for a batch after it has recorded that the batch is done, and never
asks again for earlier rows. So then the sink may drop them.

If the live query is away (dead and not yet restarted), the reader reports no new rows. A batch that is
already planned must be read, so its tasks wait for the query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from emberflow.datasource.options import SourceOptions
from emberflow.errors import InputError
from emberflow.rows.schema_json import struct_of_json
from emberflow.runners.live.serving.addresses import UnknownQueryError
from emberflow.runners.live.serving.bridge import CHUNK_BYTES, BridgeAwayError, BridgeClient

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The most that a batch reads of a partition of the sink, unless ``maxBytesPerTrigger`` is set.
_BATCH_BYTES = 64 << 20

_log = logging.getLogger("emberflow")


@dataclass
class SinkPartition(InputPartition):
    """The rows that one task reads."""

    options: SourceOptions
    partition: int
    after: list[int] | None
    until: list[int]


def sink_schema(options: SourceOptions) -> StructType:
    """The columns of a sink."""
    with options.client() as client:
        return struct_of_json(client.ask(options.service, "schema"))


class SinkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver's machine as long as the streaming query; executors call `read`."""

    def __init__(self, options: SourceOptions, schema: StructType, bytes_max: str | None) -> None:
        self._options = options
        self._schema = schema
        self._bytes_max = _bytes(bytes_max)
        self._target: dict[str, Any] | None = None
        self._client: BridgeClient | None = None
        self._check_schema()

    def _check_schema(self) -> None:
        """Refuse columns that the sink does not have, if its columns are known by now."""
        try:
            known = sink_schema(self._options).names
        except (InputError, BridgeAwayError):
            return
        for name in self._schema.names:
            if name not in known:
                raise InputError(missing_column(self._options.service, name, known))

    # On the driver's machine.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(self._ask("initial"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ask("latest", start=self._ask("initial"), bytes_max=None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        try:
            found: dict[str, Any] = self._ask("latest", start=start, bytes_max=self._bytes_max)
        except (BridgeAwayError, UnknownQueryError) as away:
            _log.warning("%s", away)
            return start
        if self._target is None:
            return found
        # Up to the offset when the query began; a partition that was empty then has no end.
        ends = {
            own: min(at, self._target.get(own, start.get(own)))
            for own, at in found.items()
            if own in self._target or own in start
        }
        return {own: max(at, start.get(own, at)) for own, at in ends.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SinkPartition]:
        options = self._options.resolved()
        return [
            SinkPartition(options, int(own), start.get(own), until)
            for own, until in sorted(end.items(), key=lambda item: int(item[0]))
            if start.get(own) != until
        ]

    def commit(self, end: dict[str, Any]) -> None:
        try:
            self._ask("acknowledge", end=end)
        except (BridgeAwayError, UnknownQueryError) as away:
            # The sink keeps these rows until the next batch is committed.
            _log.warning("%s", away)

    def stop(self) -> None:
        self._hang_up()

    def _ask(self, method: str, **arguments: Any) -> Any:
        """Ask the live query. Spark does so many times a second, so the connection stays open."""
        if self._client is None:
            self._client = self._options.client()
        try:
            return self._client.ask(self._options.service, method, **arguments)
        except BridgeAwayError:
            self._hang_up()  # a restarted query may have another address
            raise

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    # On an executor.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, SinkPartition)
        schema = to_arrow_schema(self._schema)
        options, after = partition.options, partition.after
        with options.client() as client:
            more: list[int] | None = partition.until
            while more is not None:
                bundles, more = client.ask(
                    options.service,
                    "read",
                    partition=partition.partition,
                    after=after,
                    until=partition.until,
                    bytes_max=CHUNK_BYTES,
                )
                after = more
                for bundle in bundles:
                    with pa.ipc.open_stream(bundle) as stream:
                        for batch in stream:
                            batch.validate(full=True)  # the server may be anybody's
                            yield _fitted(batch, schema, options.service)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, service: str) -> pa.RecordBatch:
    """A batch with the columns of the schema that Spark has."""
    import pyarrow as pa

    arrays = []
    for field in schema:
        number = batch.schema.get_field_index(field.name)
        if number < 0:
            raise InputError(missing_column(service, field.name, batch.schema.names))
        column = batch.column(number)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{service}: column {field.name!r} is of type {column.type} and the schema says "
                f"{field.type}: {error}."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def missing_column(service: str, name: str, known: list[str]) -> str:
    return (
        f"{service} has no column {name!r}; it has {', '.join(map(repr, known))}. Give a schema with "
        f"some of these, or none at all to get them all."
    )


def _bytes(text: str | None) -> int:
    if text is None:
        return _BATCH_BYTES
    if not text.isdigit() or not int(text):
        raise InputError(f"option 'maxBytesPerTrigger' takes bytes above 0, got {text!r}.")
    return int(text)
