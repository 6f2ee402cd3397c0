"""`front_log`: the elements that entered a live query through one front, as a DataFrame.

A front that made choices of its own has written them to its log (`checkpoint.logs.front_log`): the
times that it assigned, and the payloads if its source cannot be read again. So the log, alone or
together with the source, has exactly the elements that entered, with their global times, and a
batch over it must give the output of the live query. The columns are those that `Flow.batch`
accepts: ``time``, ``_partition`` and ``_payload``.

If the log has the payloads, each task reads one piece of a log. If the source has them, each task
reads one partition: it reads log and source side by side and checks that their positions agree.

It refuses to return part of the elements: a log whose older segments were removed with the cuts
that needed them is an error (``keepFrontLogs`` keeps them), and so is a front without a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from emberflow.checkpoint.files import location_of
from emberflow.checkpoint.logs.segments import Log, LogEntry, Piece
from emberflow.errors import InputError
from emberflow.extras import need
from emberflow.fronts.protocol import front_contract
from emberflow.rows.codec import encode_all
from emberflow.rows.inputs import DEFAULT_TIME, RAW, RAW_PARTITION
from emberflow.runners.batch.runner import task_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.fronts.protocol import Element, Front

_SCHEMA = f"{DEFAULT_TIME} long, {RAW_PARTITION} int, {RAW} binary"
_ROWS_AT_ONCE = 1_000


def front_log(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    front: str,
    *,
    source: Front | None = None,
) -> DataFrame:
    """The elements that entered a live query through a front, as a DataFrame for `Flow.batch`.

    ``checkpoint`` is the query's ``checkpointLocation``; the query needs the option
    ``keepFrontLogs``. If the source can be read again, the log has only times and positions; then
    pass the front that the query read as ``source``. A front whose elements had times of their own
    and that promised nothing has no log and needs none: make a DataFrame of its source.
    """
    need("pyspark", "pyarrow", extra="spark", what="ef.front_log")
    text = os.fspath(checkpoint)
    given = _Given(text if "://" in text else os.path.abspath(text), front, source)
    pieces: list[tuple[int, str | None, int | None]] = []
    for log in _logs(given):
        of_log = log.pieces()
        if not of_log:  # the query crashed before it wrote anything
            continue
        _check_whole(log, of_log)
        if _has_payloads(given, log, of_log):
            pieces += [(log.partition, piece.name, piece.limit) for piece in of_log]
        else:
            pieces.append((log.partition, None, None))
    rows = spark.createDataFrame(pieces, "partition int, name string, until long")
    # One piece per task: a piece may hold most of a gigabyte of payloads.
    spread = rows.repartition(max(1, len(pieces)), "partition", "name")
    return spread.mapInArrow(task_of(read_pieces, given), _SCHEMA)


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of a task."""

    location: str
    front: str
    source: Front | None

    def log(self, partition: int) -> Log:
        return Log(location_of(self.location), self.front, partition)


def _logs(given: _Given) -> list[Log]:
    """The logs of all partitions, which are numbered from 0."""
    logs = []
    for partition in count():
        log = given.log(partition)
        if not log.names():
            break
        logs.append(log)
    if not logs:
        raise InputError(
            f"{given.location} has no log of a front {given.front!r}. A front has one if it took "
            f"times of arrival, promised while it was idle, or could not be read again. One with "
            f"times of its own needs none: make a DataFrame of its source, with the same times "
            f"(ef.rows(df, time=...); fronts.Kafka has .dataframe(spark))."
        )
    return logs


def _check_whole(log: Log, pieces: list[Piece]) -> None:
    if log.older_than(pieces[0]):
        raise InputError(
            f"{log} begins with {pieces[0].name}, and there was something before it: segments are "
            f"removed with the cuts that need them. Start the query with "
            f".option('keepFrontLogs', True) from its beginning on to have all that went in."
        )


def _has_payloads(given: _Given, log: Log, pieces: list[Piece]) -> bool:
    for batch in log.batches(pieces):
        if batch.positions:
            if batch.payloads is None and given.source is None:
                raise InputError(
                    f"{log} has times and positions and no payloads, because the source of front "
                    f"{given.front!r} can be read again. Pass it, as the query had it: "
                    f"front_log(spark, checkpoint, {given.front!r}, source=fronts.Files(...))."
                )
            return batch.payloads is not None
    return True  # the log is empty, so there are no payloads to look up


def read_pieces(given: _Given, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the elements of its pieces."""
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        for partition, name, limit in zip(*columns, strict=True):
            log = given.log(partition)
            elements = (
                _with_source(given, log, partition)
                if name is None
                else _entries(log, [Piece(name, limit)])
            )
            yield from _rows(partition, elements)


def _entries(log: Log, pieces: list[Piece]) -> Iterator[LogEntry]:
    for batch in log.batches(pieces):
        yield from batch.entries_from(None)


def _rows(partition: int, elements: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from emberflow.fronts.protocol import Malformed

    # Malformed records have a time too, but they went to the errors sink, not into the flow.
    entered = (entry for entry in elements if not isinstance(entry[2], Malformed))
    while entries := list(islice(entered, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([entry[1] for entry in entries], pa.int64()),
                pa.array([partition] * len(entries), pa.int32()),
                pa.array(encode_all([entry[2] for entry in entries]), pa.binary()),
            ],
            names=[DEFAULT_TIME, RAW_PARTITION, RAW],
        )


def _with_source(given: _Given, log: Log, partition: int) -> Iterator[LogEntry]:
    """The entries of a log, with the payloads that the source has at their positions."""
    source = front_contract(given.source).ending()  # later records did not enter the query
    reading: Iterator[Element] = (
        element for element in source.read(partition, None) if element is not None
    )
    for number, entry in enumerate(_entries(log, log.pieces())):
        element = next(reading, None)
        if number == 0:  # after a backfill the query did not start at the beginning of the source
            while element is not None and element.position != entry[0]:
                element = next(reading, None)
        if element is None or element.position != entry[0]:
            found = "it has ended" if element is None else f"it has {element.position!r}"
            raise InputError(
                f"front {given.front!r} partition {partition}: the query read position "
                f"{entry[0]!r} of its source next, and there {found} now. Pass the source as the "
                f"query had it: the same files or records, from the same beginning on."
            )
        yield entry[0], entry[1], element.payload
