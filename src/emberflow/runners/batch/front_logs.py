"""`front_log`: the elements that entered a live query through one front, as a DataFrame.

A front that made choices of its own has written them to its log (`checkpoint.logs.front_log`): the
times that it assigned, and the payloads if its source cannot be read again. So the log, alone or
together with the source, has exactly the elements that entered, with their global times, and a
batch over it must give the output of the live query. The columns are those that `Flow.batch`
accepts: ``time``, ``_partition`` and ``_payload``.

A front with times of its own has promises in its log (`live.worker.feed`). Then ``time`` is the record's
own time, ``_promised`` the promise of its entry and ``_position`` its number, which orders the records.
The batch gives them their global times by the front's rule, and finds again which were late
(`passes.stamping`). Malformed records are left out: they went to the errors sink, not into the flow.

If the log has the payloads, each task reads one piece of a log. If the source has them, each task
reads one partition: it reads log and source side by side and checks that their positions agree.

It refuses to return part of the elements: a log whose older segments were removed with the cuts
that needed them is an error (``keepFrontLogs`` keeps them), and so is a front without a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from emberflow.checkpoint.files import location_of
from emberflow.checkpoint.logs.segments import Log, LogEntry, OwnTime, Piece
from emberflow.errors import InputError, shortened
from emberflow.extras import need
from emberflow.fronts.protocol import Malformed, front_contract
from emberflow.rows.codec import encode_all
from emberflow.rows.inputs import (
    DEFAULT_TIME,
    RAW_PARTITION,
    RAW_POSITION,
    RAW_PROMISED,
    Positioned,
    with_rule,
)
from emberflow.rows.readers import RAW
from emberflow.runners.batch.runner import task_of
from emberflow.values.item import is_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.fronts.protocol import Element, Front

_SCHEMA = f"{DEFAULT_TIME} long, {RAW_PARTITION} int, {RAW} binary"
_STAMPED_SCHEMA = f"{_SCHEMA}, {RAW_POSITION} long, {RAW_PROMISED} long"
_ROWS_AT_ONCE = 1_000
#: The records of a piece are numbered from its own number times this.
_RECORDS_OF_A_PIECE = 1 << 40


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
    pass the front that the query read as ``source``. Pass it too if its elements had times of their
    own: it has the rule that says what is late. A front whose elements had times of their own
    and that promised nothing has no log and needs none: make a DataFrame of its source.
    """
    need("pyspark", "pyarrow", extra="spark", what="ef.front_log")
    text = os.fspath(checkpoint)
    given = _Given(text if "://" in text else os.path.abspath(text), front, source)
    contract = None
    if source is not None:
        contract = front_contract(source, f"front {front!r}").counted(None)
    pieces: list[_PieceOfLog] = []
    has_own_times = contract is not None and contract.promises
    for log in _logs(given):
        of_log = log.pieces()
        if not of_log:  # the query crashed before it wrote anything
            continue
        _check_whole(log, of_log)
        payload = _first_payload(given, log, of_log)
        if payload is _NO_PAYLOAD:
            pieces.append((log.partition, None, None, 0))
            continue
        has_own_times = has_own_times or payload.__class__ is OwnTime
        pieces += [
            (log.partition, piece.name, piece.limit, number) for number, piece in enumerate(of_log)
        ]
    if has_own_times and contract is None:
        raise InputError(
            f"front {front!r} has times of its own. Its log has promises, and the front has the rule "
            f"that says what is late. Pass it, as the query had it: front_log(spark, checkpoint, "
            f"{front!r}, source=fronts.Socket(...))."
        )
    rows = spark.createDataFrame(pieces, "partition int, name string, until long, number long")
    # One piece per task: a piece may hold most of a gigabyte of payloads.
    spread = rows.repartition(max(1, len(pieces)), "partition", "name")
    if not has_own_times or contract is None:
        return spread.mapInArrow(task_of(read_pieces, given), _SCHEMA)
    given = replace(given, has_own_times=True)
    records = spread.mapInArrow(task_of(read_pieces, given), _STAMPED_SCHEMA)
    return with_rule(records, contract.event_time, drops_malformed=True)


#: Partition of the front, name and end of a piece of its log (None for the whole log with its source),
#: and the number of the piece.
_PieceOfLog: TypeAlias = tuple[int, str | None, int | None, int]


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of a task."""

    location: str
    front: str
    source: Front | None
    #: Whether the elements had times of their own, so that the times of the log are promises.
    has_own_times: bool = False

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


_NO_PAYLOAD = object()


def _first_payload(given: _Given, log: Log, pieces: list[Piece]) -> Any:
    """A payload of the log; `_NO_PAYLOAD` if the source has the payloads."""
    for batch in log.batches(pieces):
        if batch.positions:
            if batch.payloads is None and given.source is None:
                raise InputError(
                    f"{log} has times and positions and no payloads, because the source of front "
                    f"{given.front!r} can be read again. Pass it, as the query had it: "
                    f"front_log(spark, checkpoint, {given.front!r}, source=fronts.Files(...))."
                )
            return _NO_PAYLOAD if batch.payloads is None else batch.payloads[0]
    return None  # the log is empty, so there are no payloads to look up


def read_pieces(given: _Given, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the elements of its pieces."""
    for batch in batches:
        columns = (column.to_pylist() for column in batch.columns)
        for partition, name, limit, number in zip(*columns, strict=True):
            log = given.log(partition)
            records = (
                _with_source(given, log, partition)
                if name is None
                else _logged(_entries(log, [Piece(name, limit)]))
            )
            if given.has_own_times:
                yield from _records(partition, number * _RECORDS_OF_A_PIECE, records)
            else:
                yield from _rows(partition, records)


def _entries(log: Log, pieces: list[Piece]) -> Iterator[LogEntry]:
    for batch in log.batches(pieces):
        yield from batch.entries_from(None)


class _Record(NamedTuple):
    """An entry of a log, with its payload and the time that it came with, if it had one."""

    position: Any
    logged: int
    payload: Any
    own_time: Any


def _logged(entries: Iterator[LogEntry]) -> Iterator[_Record]:
    """The entries of a log that has the payloads."""
    for position, at, payload in entries:
        if payload.__class__ is OwnTime:
            yield _Record(position, at, payload.payload, payload.time)
        else:
            yield _Record(position, at, payload, None)


def _rows(partition: int, records: Iterator[_Record]) -> Iterator[pa.RecordBatch]:
    """Elements with the times of the log."""
    import pyarrow as pa

    # Malformed records have a time too, but they went to the errors sink, not into the flow.
    entered = (record for record in records if not isinstance(record.payload, Malformed))
    while some := list(islice(entered, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([record.logged for record in some], pa.int64()),
                pa.array([partition] * len(some), pa.int32()),
                pa.array(encode_all([record.payload for record in some]), pa.binary()),
            ],
            names=[DEFAULT_TIME, RAW_PARTITION, RAW],
        )


def _records(partition: int, first: int, records: Iterator[_Record]) -> Iterator[pa.RecordBatch]:
    """Records with times of their own, numbered, and with the promises of the log."""
    import pyarrow as pa

    numbered = enumerate(records, first)
    while some := list(islice(numbered, _ROWS_AT_ONCE)):
        payloads = [
            Positioned(record.position, _without_invalid_time(record)) for _, record in some
        ]
        times = [record.own_time if is_time(record.own_time) else None for _, record in some]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(times, pa.int64()),
                pa.array([partition] * len(some), pa.int32()),
                pa.array(encode_all(payloads), pa.binary()),
                pa.array([number for number, _ in some], pa.int64()),
                pa.array([record.logged for _, record in some], pa.int64()),
            ],
            names=[DEFAULT_TIME, RAW_PARTITION, RAW, RAW_POSITION, RAW_PROMISED],
        )


def _without_invalid_time(record: _Record) -> Any:
    """The payload; malformed if its time is none, as in the query."""
    if record.payload.__class__ is Malformed or is_time(record.own_time):
        return record.payload
    problem = f"the element at {record.position!r} has the time {record.own_time!r}"
    return Malformed(shortened(record.payload), problem, before_next=True)


def _with_source(given: _Given, log: Log, partition: int) -> Iterator[_Record]:
    """The entries of a log, with the payloads that the source has at their positions."""
    ending = front_contract(given.source).ending()  # later records did not enter the query
    source = front_contract(ending).counted(None)
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
        yield _Record(entry[0], entry[1], element.payload, element.time)
