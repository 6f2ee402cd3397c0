"""`fronts.Structured`: what a Structured Streaming query writes with ``.format("emberflow")``.

The batches that the streaming query has committed are files of an `inbox` below the live query's
``checkpointLocation``. So the source can be read again, like a folder of files. A position is a batch
and a row, and cuts have it. A file is removed when no kept cut needs it.

**Times.** Rows get the time of their arrival, in the order of the inbox: by batch, task and row. With
``time=`` a row has the time of a column, and the rows of a batch are sorted by it. So only a row that is
too far behind the batches before its own is late. That is a function of what the inbox holds.
"""

from __future__ import annotations

import copy
import time as clock
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError, shortened
from emberflow.fronts.inbox import (
    Inbox,
    Part,
    batch_name,
    read_head,
    read_parts,
    sequences,
    trim,
)
from emberflow.fronts.protocol import Batch, Element, Malformed
from emberflow.rows.schema_json import struct_of_json
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.times import (
    DEFAULT_UNIT,
    MICROSECONDS,
    Duration,
    Time,
    Unit,
    is_unit,
    milliseconds,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from emberflow.graph.nodes import Front
    from emberflow.rows.readers import Reader

#: A position is the sequence of the batch and the row in it, as one int: logs keep ints compactly.
_ROWS = 1 << 32
#: Rows in a `Batch`, where all rows of a micro-batch are sorted first.
_AT_ONCE = 1_000


class Structured:
    """Rows that ``df.writeStream.format("emberflow")`` brings.

    ``payload`` is as in `emberflow.rows`: a dataclass or named tuple whose fields are columns, the
    name of a column, or a function of the `Row`; by default the row itself. ``time`` is the column of
    times, integers or timestamps; without it rows get the time of their arrival. ``disorder`` is how far
    times may go back, and ``on_late`` what happens to a row that is later: `docs/event-time.md` explains
    both, ``watermark`` and ``ahead``. Timestamps and durations are counted in ``unit``. ``pending_mb`` is
    how much may be acknowledged and not yet part of a cut. Above it, writers wait.
    """

    partitions = 1

    def __init__(
        self,
        payload: type | str | Callable[[Any], Any] | None = None,
        *,
        time: str | None = None,
        unit: Unit = DEFAULT_UNIT,
        poll_ms: float | Duration = 10,
        pending_mb: float = 256,
        disorder: Duration = 0,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
    ) -> None:
        if not is_unit(unit):
            raise InputError(
                f"fronts.Structured(unit=) takes one of {', '.join(MICROSECONDS)}, got {unit!r}."
            )
        poll_ms = milliseconds(poll_ms, "fronts.Structured(poll_ms=)")
        if not poll_ms > 0 or not pending_mb > 0:
            raise InputError("fronts.Structured takes poll_ms and pending_mb above 0.")
        self._payload = payload
        self._time = time
        self.unit = unit
        self._divisor = MICROSECONDS[unit]
        self.arrival = time is None
        self.event_time = event_time(
            "fronts.Structured",
            disorder=disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self._poll_seconds = poll_ms / 1_000
        self._pending_bytes = int(pending_mb * (1 << 20))
        self._folder: Path | None = None
        self._node: Front | None = None
        #: The batch that the newest cut is in. Only the driver knows it.
        self._passed = 0

    # In the driver.

    def placed(self, node: Front, checkpoint: str | None) -> Structured:
        """This front as one of a live query, which keeps its batches with its cuts."""
        placed = copy.copy(self)
        placed._node = node
        placed._folder = kept_in(checkpoint, "fronts", node.name)
        return placed

    def service(self) -> InboxService:
        """The service that the bridge offers."""
        return InboxService(self, Inbox(self._own_folder()))

    def passed(self, partition: int, position: Any) -> None:
        """The newest cut has all up to this position."""
        if position is not None:
            self._passed = position // _ROWS

    def is_full(self, inbox: Inbox) -> bool:
        """Whether writers have to wait: too much is acknowledged and in no cut."""
        return inbox.bytes_above(self._passed) > self._pending_bytes

    def trim(self, partition: int, position: Any) -> None:
        """No kept cut needs the rows up to this position."""
        if position is not None:
            trim(self._own_folder(), position // _ROWS)

    def reader(self, schema: StructType) -> Reader:
        """The reader that makes payloads from rows of this schema. Raises `InputError` if it cannot."""
        from pyspark.sql.types import IntegralType, TimestampNTZType, TimestampType

        from emberflow.rows.readers import reader_of

        assert self._node is not None
        names = schema.names
        for name in names:
            if names.count(name) > 1:
                raise InputError(
                    f"front {self._node.name!r}: the stream has two columns {name!r}. Rename one."
                )
        if self._time is not None:
            if self._time not in names:
                raise InputError(
                    f"front {self._node.name!r}: its time is the column {self._time!r}, and the "
                    f"stream has {', '.join(map(repr, names))}. Rename or add the column."
                )
            kind = schema[self._time].dataType
            if not isinstance(kind, IntegralType | TimestampType | TimestampNTZType):
                raise InputError(
                    f"front {self._node.name!r}: the time column {self._time!r} is of type "
                    f"{kind.simpleString()}. A time is an integer or a timestamp; cast it."
                )
        reader = reader_of(self._node, schema, self._payload, self._time)
        if reader.kind == "bytes":
            # These would be unpickled, and whoever has the token could send them.
            raise InputError(
                f"front {self._node.name!r}: the stream has a column of raw payloads, and "
                f"fronts.Structured takes none. Send columns of plain types."
            )
        return reader

    # In a worker.

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        for batch in self.read_batches(partition, position):
            if batch is None:
                yield None
            else:
                times = repeat(None) if batch.times is None else batch.times
                for element in zip(batch.positions, batch.payloads, times, strict=False):
                    yield Element(*element)

    def read_batches(self, partition: int, position: Any) -> Iterator[Batch | None]:
        folder = self._own_folder()
        ordinal = _ROWS - 1 if position is None else position
        sequence, row = divmod(ordinal + 1, _ROWS)
        newest = max(sequences(folder), default=0)
        self._check_there(folder, sequence, newest)
        if newest < ordinal // _ROWS:  # `trim` never removes the newest batch
            raise self._removed(folder, ordinal // _ROWS)
        while True:
            if (folder / batch_name(sequence)).exists():
                yield from self._batches(folder, sequence, row)
                sequence, row = sequence + 1, 0
            else:
                if (folder / batch_name(sequence + 1)).exists():
                    self._check_there(folder, sequence, sequence + 1)
                clock.sleep(self._poll_seconds)
                yield None

    def _check_there(self, folder: Path, sequence: int, newest: int) -> None:
        """Raise if a batch was removed: it is not there, and a later one is."""
        if newest > sequence and not (folder / batch_name(sequence)).exists():
            raise self._removed(folder, sequence)

    def _removed(self, folder: Path, sequence: int) -> InputError:
        return InputError(
            f"fronts.Structured: {folder / batch_name(sequence)} was removed. A batch is needed until "
            f"all that it held is part of a cut and a later batch is there. Restore the folder from a "
            f"backup."
        )

    def _batches(self, folder: Path, sequence: int, row: int) -> Iterator[Batch]:
        """The elements of one batch, from a row on."""
        import pyarrow as pa

        stored = read_head(folder, sequence)
        reader = self.reader(struct_of_json(stored.schema))
        base = sequence * _ROWS
        parts = map(pa.ipc.open_stream, read_parts(folder, sequence, stored))
        if self._time is None:
            yield from self._arriving(parts, reader, base, row)
        else:
            yield from self._timed(parts, reader, base, row)

    def _arriving(
        self, streams: Iterable[Any], reader: Reader, base: int, row: int
    ) -> Iterator[Batch]:
        first = 0
        for stream in streams:
            for batch in stream:
                count = batch.num_rows
                if first + count > row:
                    skipped = max(0, row - first)
                    rest = batch.slice(skipped)
                    positions = range(base + first + skipped, base + first + count)
                    columns = [rest.column(name) for name in reader.columns]
                    yield Batch(positions, self._payloads(reader, positions, columns))
                first += count

    def _timed(
        self, streams: Iterable[Any], reader: Reader, base: int, row: int
    ) -> Iterator[Batch]:
        import pyarrow as pa
        import pyarrow.compute

        table = pa.concat_tables([stream.read_all() for stream in streams])
        own = table.column(self._time)
        if pa.types.is_timestamp(own.type):
            own = own.cast(pa.timestamp("us", own.type.tz))
        # The sort is stable, and puts rows without a time last.
        order = pa.compute.sort_indices(own)
        times = own.cast(pa.int64()).take(order).to_pylist()
        if pa.types.is_timestamp(own.type):
            times = [None if at is None else at // self._divisor for at in times]
        table = table.take(order).slice(row)
        times = times[row:]  # None for a row that is malformed
        positions = range(base + row, base + row + len(times))
        columns = [table.column(name).combine_chunks() for name in reader.columns]
        payloads = self._payloads(reader, positions, columns)
        if None in times:
            problem = (
                f"front {self._name!r}: the time column {self._time!r} has a row without a time. "
                f"Filter it out, or fill it."
            )
            payloads = [
                payload if at is not None else Malformed(shortened(payload), problem, True)
                for payload, at in zip(payloads, times, strict=True)
            ]
        whole = Batch(positions, payloads, times)
        for begin in range(0, len(positions), _AT_ONCE):
            yield whole.part(begin, min(begin + _AT_ONCE, len(positions)))

    def _payloads(self, reader: Reader, positions: Any, columns: list[pa.Array]) -> list[Any]:
        """Payloads of rows; a row that the user's function refuses is malformed."""
        try:
            return reader.payloads(positions, columns)
        except Exception:
            return [
                self._payload_of(reader, position, [column.slice(number, 1) for column in columns])
                for number, position in enumerate(positions)
            ]

    def _payload_of(self, reader: Reader, position: Any, columns: list[pa.Array]) -> Any:
        try:
            return reader.payloads([position], columns)[0]
        except Exception as error:
            row = {
                name: column[0].as_py()
                for name, column in zip(reader.columns, columns, strict=True)
            }
            sequence, number = divmod(position, _ROWS)
            problem = f"front {self._name!r}, batch {sequence} of its inbox, row {number}: {error}"
            return Malformed(shortened(row), problem, before_next=self._time is not None)

    @property
    def _name(self) -> str:
        return "" if self._node is None else self._node.name

    def _own_folder(self) -> Path:
        if self._folder is None:
            raise InputError(
                "fronts.Structured belongs to a live query: flow.live(spark).read(...)."
            )
        return self._folder


def kept_in(checkpoint: str | None, kind: str, name: str) -> Path:
    """The folder of a structured front or sink, below the query's ``checkpointLocation``."""
    if checkpoint is None or "://" in checkpoint:
        raise InputError(
            f"{kind}.Structured keeps what is on its way with the cuts of the query: set "
            f".option('checkpointLocation', ...) to a folder of a file system that all workers can "
            f"reach (got {checkpoint!r})."
        )
    # Two names must not share a folder, so the sign of an encoded slash is encoded as well.
    encoded = name.replace("%", "%25").replace("/", "%2F")
    return Path(checkpoint) / "structured" / f"{kind}-{encoded}"


class InboxService:
    """The service of a structured front, which the bridge offers. See `inbox` for its methods."""

    def __init__(self, front: Structured, inbox: Inbox) -> None:
        self._front = front
        self._inbox = inbox

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        return _OFFERED[method](self, **arguments)

    def close(self) -> None:
        self._inbox.close()

    def check(self, schema: str) -> None:
        """Raise unless rows of this schema can be elements."""
        self._front.reader(struct_of_json(schema))

    def begin(self, stream: str, batch: int) -> str:
        """What a task does next: ``go`` and stage its rows, ``wait``, or end: the batch is ``here``."""
        last = self._inbox.last(stream)
        if last is not None and batch <= last:
            return "here"
        return "wait" if self._front.is_full(self._inbox) else "go"

    def stage(self, part: str, offset: int, data: bytes) -> None:
        self._inbox.stage(part, offset, data)

    def commit(self, stream: str, batch: int, schema: str, parts: list[Part], rows: int) -> bool:
        self.check(schema)
        return self._inbox.commit(stream, batch, schema, parts, rows)

    def abort(self, parts: list[str]) -> None:
        self._inbox.abort(parts)


_OFFERED: dict[str, Callable[..., Any]] = {
    "check": InboxService.check,
    "begin": InboxService.begin,
    "stage": InboxService.stage,
    "commit": InboxService.commit,
    "abort": InboxService.abort,
}
