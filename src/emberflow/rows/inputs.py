"""From the rows of a DataFrame to elements: their times. `rows.readers` makes the payloads.

**Times.** Times are the order. A DataFrame has no order of its own, so it needs a time column or
``order_by``. Only the rows of a single partition have an order that Spark can tell; then row ``i`` has
time ``i``, as element ``i`` of a list does. Rows that cannot be ordered are an error, never a guess.

**Partitions.** A source with partitions has a front index for each. A column says which partition of its
source a row is of. Then the row has the global time that a live query gives it.

**Positions.** A column says where in its partition a row is. Then the rows are stamped as a live query
stamps them, by the rule of event time and in the order of their positions: equal times have ties, and
what is late is found (`runners.batch.passes.stamping`). Without positions nothing is late, and times are
unique within a partition. Whether they are is known only when all have been read. So a second, narrow
branch of the plan counts them, and fails the job with an error that names a time that two rows have. It
reads the time column a second time. ``unique=True`` leaves it out where uniqueness is known.

**Raw payloads.** A DataFrame with the column ``_payload`` holds payloads as bytes, ``_partition`` the
partitions and ``_position`` the positions. `emberflow.front_log` gives in that form what went into a live
query, and `fronts.Kafka.dataframe` a topic. The rule of event time is in the metadata of ``_position``,
so that it survives a filter (`with_rule`). ``_promised`` has the promise that was in force when a record
was read, where a query chose it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from emberflow.errors import InputError, shortened
from emberflow.extras import need
from emberflow.graph.nodes import Front
from emberflow.rows.paths import encoded_int
from emberflow.rows.readers import Reader, reader_of
from emberflow.values.event_time import IN_ORDER, EventTime, OnLate, event_time
from emberflow.values.item import TIME_MAX, TIME_MIN, front_index
from emberflow.values.times import (
    DEFAULT_UNIT,
    MICROSECONDS,
    Duration,
    Time,
    Unit,
    is_unit,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

#: The column of times, if ``time=`` names none.
DEFAULT_TIME = "time"

#: Beside the column of payloads as bytes: the partitions of their source, positions, and promises that were
#: in force.
RAW_PARTITION, RAW_POSITION, RAW_PROMISED = "_partition", "_position", "_promised"
#: The key of the rule in the metadata of the column of positions.
_METADATA = "emberflow"

_UNITS: dict[Unit, str] = {"s": "unix_seconds", "ms": "unix_millis", "us": "unix_micros"}
#: Columns where rows are numbered and then filtered: the number, and whether the row has no order.
_NUMBER, _TIED = "_emberflow_number", "_emberflow_tied"
#: Columns that rows are sorted by before they are stamped.
SOURCE_PARTITION, SOURCE_POSITION = "_emberflow_partition", "_emberflow_position"
#: `monotonically_increasing_id` counts rows in its lower bits and partitions above them.
_ROWS_OF_A_PARTITION = 1 << 33


@dataclass(frozen=True, slots=True)
class Rows:
    """A DataFrame and how its rows become elements; see `rows`."""

    df: DataFrame
    time: str | None
    payload: Any
    order_by: tuple[str, ...]
    unit: Unit | None
    unique: bool
    partition: str | None = None
    position: str | None = None
    rule: EventTime = IN_ORDER


class Positioned(NamedTuple):
    """A raw payload of a record whose position Spark cannot sort by: the column has its number."""

    position: Any
    payload: Any


class Stamps(NamedTuple):
    """How rows with positions are stamped."""

    rule: EventTime
    #: Whether malformed records are left out; otherwise they are an error.
    drops_malformed: bool = False


def with_rule(df: DataFrame, rule: EventTime, *, drops_malformed: bool) -> DataFrame:
    """A DataFrame of raw payloads with positions, and the rule that its rows are stamped by.

    The unit of the rule is that of the times.

    The rule is JSON in the metadata of a column. That travels with a DataFrame wherever it is stored, and
    whoever reads it must not run code. So a function of the rule stays here, under a number.
    """
    told: dict[str, Any] = {**rule._asdict(), "drops_malformed": drops_malformed}
    if rule.watermark is not None:
        _watermarks.append(rule.watermark)
        told["watermark"] = [_PROCESS, len(_watermarks) - 1]
    return df.withMetadata(RAW_POSITION, {_METADATA: json.dumps(told)})


#: Functions of rules that DataFrames of this process have.
_watermarks: list[Callable[[Any], Time | None]] = []
_PROCESS = uuid4().hex


def rows(
    df: DataFrame,
    *,
    time: str | None = DEFAULT_TIME,
    payload: type | str | Callable[[Any], Any] | None = None,
    order_by: str | list[str] | tuple[str, ...] = (),
    unit: Unit | None = None,
    unique: bool = False,
    partition: str | None = None,
    position: str | None = None,
    disorder: Duration = 0,
    ahead: Duration | None = None,
    watermark: Callable[[Any], Time | None] | None = None,
    on_late: OnLate = "divert",
) -> Rows:
    """How the rows of a DataFrame become the elements of a front, for `Flow.batch`.

    ``time``: the column of times, integers or timestamps; by default the column ``time`` if there is one.
    ``unit``: what timestamps and durations are counted in, by default the unit of the flow. ``order_by``:
    columns that order the rows instead, which are then numbered. ``payload``: a dataclass or named tuple
    whose fields are columns, the name of a column, or a function of the `Row`; by default the row itself.
    ``unique=True``: leave out the check that no two rows have the same time. ``partition``: the column that
    says which partition of its source a row is of, counted from 0.

    ``position``: the column that orders the rows of a partition as their source has them. Then they are
    stamped by the rule of event time, exactly as a live front stamps them: ``disorder``, ``ahead``,
    ``watermark`` and ``on_late`` are those of the front. Rows that are late go to the output ``late``.
    Without ``position`` nothing is late, and no two rows of a partition may have the same time.
    """
    need("pyspark", extra="spark", what="ef.rows")
    columns = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    if unit is not None and not is_unit(unit):
        raise InputError(f"rows(unit=) takes one of {', '.join(_UNITS)}, got {unit!r}.")
    if columns and time not in (None, DEFAULT_TIME):
        raise InputError(f"rows() takes time={time!r} or order_by={columns!r}, not both.")
    if columns and partition is not None:
        raise InputError(
            "rows() takes order_by= or partition=, not both: rows are numbered as one."
        )
    if columns and position is not None:
        raise InputError("rows() takes order_by= or position=, not both: each is an order.")
    rule = EventTime(disorder, ahead, watermark, on_late)  # type: ignore[arg-type]
    # The flow may count in another unit. Whatever is a duration is one in the finest.
    event_time(
        "rows",
        disorder=disorder,
        ahead=ahead,
        watermark=watermark,
        on_late=on_late,
        unit=unit or "us",
    )
    if position is None and rule != IN_ORDER:
        raise InputError(
            "rows() takes disorder=, ahead=, watermark= and on_late= together with position=: without "
            "the positions of its rows in their source nothing is late."
        )
    return Rows(
        df, None if columns else time, payload, columns, unit, unique, partition, position, rule
    )


class FrontRows:
    """The checked input of one front: a DataFrame of times and columns, and how rows are read."""

    #: Rows below the first moment, and those from the second on, are left out. Where a moment is between
    #: the elements of a time, the rows of that time are left in: whoever stamps them leaves them out.
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None

    def __init__(self, front: Front, given: Any, *, fronts: int = 1) -> None:
        """``fronts`` is how many fronts the flow has."""
        self.front = front
        self._fronts = fronts
        self._rows = given if isinstance(given, Rows) else rows(given)
        self._unit: Unit = self._rows.unit or front.unit or DEFAULT_UNIT
        df = self._rows.df
        if not hasattr(df, "mapInArrow"):
            raise InputError(
                f"front {front.name!r} takes a DataFrame or ef.rows(DataFrame, ...), "
                f"got {shortened(df)}."
            )
        schema: StructType = df.schema
        self._check_names(schema)
        time = self._rows.time
        if time == DEFAULT_TIME and time not in schema.names:
            time = None
        self._time = time
        self.reader = reader_of(front, schema, self._rows.payload, time)
        self.numbered = time is None
        self._partition = self._rows.partition
        if self.reader.kind == "bytes" and RAW_PARTITION in schema.names:
            self._partition = self._partition or RAW_PARTITION
        if self._partition is not None and self.numbered:
            raise InputError(
                f"front {front.name!r}: rows of several partitions need a time. Pass "
                f"ef.rows(df, time='column', partition={self._partition!r})."
            )
        self._position, self._stamps = (
            self._rows.position,
            Stamps(self._rows.rule.counted(self._unit, f"front {front.name!r}, rows")),
        )
        if self._position is None and self.reader.kind == "bytes" and RAW_POSITION in schema.names:
            self._position, self._stamps = RAW_POSITION, _given_stamps(schema)
            self._unit = self._stamps.rule.unit
        self._is_logged = (
            self._position == RAW_POSITION
            and self.reader.kind == "bytes"
            and RAW_PROMISED in schema.names
        )
        if self._position is not None:
            self._check_position(schema)
        if front.unit not in (None, self._unit):
            raise InputError(
                f"front {front.name!r}: the times of its DataFrame are counted in {self._unit}, and the "
                f"flow counts in {front.unit}. Both have a parameter unit=: say the same for both."
            )

    def _check_position(self, schema: StructType) -> None:
        from pyspark.sql.types import IntegralType, StringType, StructType

        assert self._position is not None
        if self.numbered:
            raise InputError(
                f"front {self.front.name!r}: rows with a position need a time. Pass "
                f"ef.rows(df, time='column', position={self._position!r})."
            )
        kind = schema[self._position].dataType
        parts = [part.dataType for part in kind] if isinstance(kind, StructType) else [kind]
        if not all(isinstance(part, IntegralType | StringType) for part in parts):
            raise InputError(
                f"front {self.front.name!r}: the position column {self._position!r} is of type "
                f"{kind.simpleString()}. A position is an integer, a string, or a struct of these."
            )

    def _check_names(self, schema: StructType) -> None:
        names = schema.names
        for name in names:
            if names.count(name) > 1:
                raise InputError(
                    f"front {self.front.name!r}: the DataFrame has two columns {name!r}. "
                    f"Rename one, or select the columns that the flow needs."
                )
        asked = [self._rows.time] if self._rows.time != DEFAULT_TIME else []
        asked += [self._rows.partition, self._rows.position]
        for asked_for in (*asked, *self._rows.order_by):
            if asked_for is not None and asked_for not in names:
                raise InputError(
                    f"front {self.front.name!r}: the DataFrame has no column {asked_for!r}; it "
                    f"has {', '.join(map(repr, names))}."
                )

    @property
    def unit(self) -> Unit | None:
        """What its times are counted in, if the input says so."""
        has_rule = self._position == RAW_POSITION and self._rows.position is None
        return self._unit if has_rule else self._rows.unit

    @property
    def has_partitions(self) -> bool:
        return self._partition is not None

    @property
    def is_stamped(self) -> bool:
        """Whether its rows have positions, so that the rule of event time is applied to them."""
        return self._position is not None

    @property
    def rule(self) -> EventTime:
        """The rule of event time of its rows. Without positions they are sorted, so none waits."""
        return self._stamps.rule if self.is_stamped else IN_ORDER

    @property
    def diverts(self) -> bool:
        """Whether its late rows go to the late sink."""
        return self.is_stamped and self.rule.on_late == "divert"

    def late_types(self) -> tuple[DataType, DataType] | None:
        """The types of positions and payloads of late rows; None if the columns do not tell."""
        from pyspark.sql.types import StructType

        schema: StructType = self._rows.df.schema
        if self._position is None or self._is_logged:
            return None
        position = schema[self._position].dataType
        if self.reader.kind == "bare":
            return position, schema[self.reader.columns[0]].dataType
        if self.reader.kind in ("row", "class"):
            return position, StructType([schema[name] for name in self.reader.columns])
        return None

    def selected(self) -> DataFrame:
        """The columns: time, whether the row has no order, those of the payload, and of the source.

        The last are the partition, if there is one, and where rows are stamped the partition, the
        position and, if it is known, the promise that was in force.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        df = self._rows.df
        tied: Column = sql.lit(False)
        if self._rows.order_by:
            window = Window.orderBy(*(sql.col(_quoted(name)) for name in self._rows.order_by))
            number = sql.row_number().over(window)
            time = (number - 1).cast("long")
            tied = sql.rank().over(window) != number
        elif self._time is None:
            time = sql.monotonically_increasing_id()
            tied = time >= _ROWS_OF_A_PARTITION
        else:
            time = self._time_column()
        if (self.since or self.until) is not None and not self.is_stamped:
            if self.numbered:  # number the rows before any is left out
                df = df.withColumns({_NUMBER: time, _TIED: tied})
                time, tied = sql.col(_NUMBER), sql.col(_TIED)
            # Keep rows without a time or an order: `Checked.elements` raises the error.
            df = df.filter(self._is_within(time) | time.isNull() | tied)
        columns = [sql.col(_quoted(name)) for name in self.reader.columns]
        columns += self._source_columns() if self.is_stamped else self._partition_columns()
        return df.select(time.alias("_time"), tied.alias("_tied"), *columns)

    def _is_within(self, time: Column) -> Column:
        """Whether a time may have elements between the moments ``since`` and ``until``."""
        from pyspark.sql import functions as sql

        is_within = sql.lit(True)
        if self.since is not None:
            is_within = time >= self.since[0]
        if self.until is not None:
            # No element has a front index below 0.
            until, front = self.until
            is_within &= time <= until if front > 0 else time < until
        return is_within

    def _source_columns(self) -> list[Column]:
        from pyspark.sql import functions as sql

        assert self._position is not None
        (partition,) = self._partition_columns() or [sql.lit(0).cast("long")]
        columns = [
            partition.alias(SOURCE_PARTITION),
            sql.col(_quoted(self._position)).alias(SOURCE_POSITION),
        ]
        return columns + ([sql.col(RAW_PROMISED)] if self._is_logged else [])

    def _partition_columns(self) -> list[Column]:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import IntegralType

        if self._partition is None:
            return []
        kind = self._rows.df.schema[self._partition].dataType
        if not isinstance(kind, IntegralType):
            raise InputError(
                f"front {self.front.name!r}: the partition column {self._partition!r} is of type "
                f"{kind.simpleString()}. A partition is an integer, counted from 0."
            )
        return [sql.col(_quoted(self._partition)).cast("long").alias("_partition")]

    def _time_column(self) -> Column:
        from pyspark.sql import functions as sql
        from pyspark.sql.types import IntegralType, TimestampNTZType, TimestampType

        assert self._time is not None
        kind = self._rows.df.schema[self._time].dataType
        column = sql.col(_quoted(self._time))
        if isinstance(kind, IntegralType):
            return column.cast("long")
        if isinstance(kind, TimestampType):
            return getattr(sql, _UNITS[self._unit])(column)  # type: ignore[no-any-return]
        if isinstance(kind, TimestampNTZType):
            return _count_without_zone(column, self._unit)
        raise InputError(
            f"front {self.front.name!r}: the time column {self._time!r} is of type "
            f"{kind.simpleString()}. A time is an integer or a timestamp; cast it, or name another "
            f"column with ef.rows(df, time=...)."
        )

    def doubles(self) -> DataFrame | None:
        """The times that several rows have; None if there cannot be any."""
        from pyspark.sql import functions as sql

        if self.numbered or self._rows.unique or self.is_stamped:
            return None
        partitions = self._partition_columns()
        times = self._rows.df.select(self._time_column().alias("_time"), *partitions)
        times = times.filter(self._is_within(sql.col("_time")))
        of_each = ["_time", *(["_partition"] if partitions else [])]
        counted = times.groupBy(*of_each).agg(sql.count(sql.lit(1)).alias("_count"))
        return counted.filter("_count > 1 and _time is not null")

    def checked(self) -> Checked:
        return Checked(
            self.front,
            self.reader,
            self._time,
            self._rows.order_by,
            self._unit,
            self._partition,
            self._fronts,
            self._stamps if self.is_stamped else None,
            self._is_logged,
        )


def _count_without_zone(column: Column, unit: Unit) -> Column:
    """A timestamp without a zone, which is in UTC here, and not in the zone of the session."""
    from pyspark.sql import functions as sql

    epoch = sql.expr("timestamp_ntz '1970-01-01 00:00:00'")
    seconds = (column - epoch).cast("interval second").cast("decimal(20, 6)")
    return sql.floor(seconds * (1_000_000 // MICROSECONDS[unit])).cast("long")


def _given_stamps(schema: StructType) -> Stamps:
    metadata = schema[RAW_POSITION].metadata.get(_METADATA)
    if metadata is None:
        raise InputError(
            f"the DataFrame has a column {RAW_POSITION!r} without the rule of event time that "
            f"ef.front_log and fronts.Kafka(...).dataframe() put there. Name the column and the rule: "
            f"ef.rows(df, position={RAW_POSITION!r}, disorder=...)."
        )
    told = json.loads(metadata)
    watermark = None
    if told["watermark"] is not None:
        process, number = told["watermark"]
        if process != _PROCESS:
            raise InputError(
                f"the DataFrame was made by another process, which has the watermark function of its "
                f"front. Give it again: ef.rows(df, position={RAW_POSITION!r}, watermark=...)."
            )
        watermark = _watermarks[number]
    rule = EventTime(
        told["disorder"], told["ahead"], watermark, told["on_late"], told.get("unit", DEFAULT_UNIT)
    )
    return Stamps(rule, told["drops_malformed"])


@dataclass(frozen=True, slots=True)
class Checked:
    """What a worker needs to make elements from rows."""

    front: Front
    reader: Reader
    time: str | None
    order_by: tuple[str, ...]
    unit: str
    partition: str | None = None
    fronts: int = 1
    #: How rows with positions are stamped; None for rows without.
    stamps: Stamps | None = None
    #: Whether the rows have the promises that were in force, and payloads with positions.
    is_logged: bool = False

    def records(self, batch: pa.RecordBatch) -> Records:
        """The rows of a batch of `FrontRows.selected` that are to be stamped."""
        times: list[Any] = batch.column(0).to_pylist()
        end = 2 + len(self.reader.columns)
        columns = [batch.column(number) for number in range(2, end)]
        payloads = self.reader.payloads([time or 0 for time in times], columns)
        partitions = self._partitions(batch.column(end))
        positions = batch.column(end + 1).to_pylist()
        if positions and isinstance(positions[0], dict):
            positions = [None if each is None else tuple(each.values()) for each in positions]
        promised = batch.column(end + 2).to_pylist() if self.is_logged else None
        return Records(times, payloads, partitions, positions, promised)

    def elements(self, batch: pa.RecordBatch) -> tuple[list[int], list[Any]]:
        """The times and payloads of a batch of `FrontRows.selected`."""
        times: list[int] = batch.column(0).to_pylist()
        if True in batch.column(1).to_pylist():
            raise self._unordered()
        for time in (None,) if None in times else (min(times, default=0), max(times, default=0)):
            self.check_time(time)
        end = batch.num_columns - (self.partition is not None)
        columns = [batch.column(number) for number in range(2, end)]
        return times, self.reader.payloads(times, columns)

    def check_time(self, time: int | None) -> None:
        if time is None or not TIME_MIN <= time <= TIME_MAX:
            raise InputError(
                f"front {self.front.name!r}: the time column {self.time!r} has a row of time "
                f"{time!r}. Every row needs a time, an int of 64 bits; filter it out, or fill it."
            )

    def paths(self, batch: pa.RecordBatch) -> list[bytes]:
        """The paths of the elements of a batch: the front index of the partition of each."""
        if self.partition is None:
            return [encoded_int(self.front.index)] * batch.num_rows
        return [encoded_int(index) for index in self.indices(batch)]

    def indices(self, batch: pa.RecordBatch) -> list[int]:
        """The front index of each element."""
        if self.partition is None:
            return [self.front.index] * batch.num_rows
        return list(map(self.index, self._partitions(batch.column(batch.num_columns - 1))))

    def index(self, partition: int) -> int:
        """The front index of a partition."""
        return front_index(self.front.index, self.fronts, partition)

    def _partitions(self, column: pa.Array) -> list[int]:
        partitions: list[Any] = column.to_pylist()
        for one in set(partitions):
            if one is None or one < 0:
                raise InputError(
                    f"front {self.front.name!r}: the partition column {self.partition!r} has a row "
                    f"of partition {one!r}. Every row needs one, counted from 0."
                )
        return partitions

    def _unordered(self) -> InputError:
        name = self.front.name
        if self.order_by:
            return InputError(
                f"front {name!r}: two rows have the same {', '.join(self.order_by)}, so order_by "
                f"does not say which comes first. Add a column that tells them apart."
            )
        return InputError(
            f"front {name!r}: the DataFrame has rows in several partitions and no time column, so "
            f"nothing says which row comes first. Pass {name}=ef.rows(df, time='column'). If the rows "
            f"have no time, order_by=[...] numbers them from 0: windows and timers then count rows."
        )

    def double(self, time: int) -> InputError:
        return InputError(
            f"front {self.front.name!r}: more than one row has the time {time} (column "
            f"{self.time!r}), and nothing says which comes first. Name the column that says where a row "
            f"is in its source: ef.rows(df, position=...)."
        )


class Records(NamedTuple):
    """Rows with positions, as columns. A malformed record may have None for a time."""

    times: list[Any]
    payloads: list[Any]
    partitions: list[int]
    positions: list[Any]
    promised: list[int] | None

    def between(self, begin: int, end: int) -> Records:
        return Records(
            self.times[begin:end],
            self.payloads[begin:end],
            self.partitions[begin:end],
            self.positions[begin:end],
            None if self.promised is None else self.promised[begin:end],
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
