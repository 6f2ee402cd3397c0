"""SQL over state: what ``spark.read.format("emberflow")`` does.

When Spark plans a query it makes a reader, pushes the filters down to it, and asks it for partitions,
all in one process, which then ends. The partitions carry everything that the tasks need.

**Spark plans once for each ``load()``** and keeps the partitions for all later queries of that
DataFrame. So the first query of a ``load()`` chooses the cut, and later ones see the same. Two loads
(a join of two states) choose independently; for a common time the user gives ``asOf``.

**So Spark's pushdown is off by default.** Spark keeps the partitions of the filters that it pushed
last, in any query (Spark 4.3): ``df.where("key = 'a'").count()`` and then ``df.count()`` would count
one row, and a join of ``df`` with itself would filter both sides alike. With
``.option("pushdown", True)`` the user promises that this ``load()`` is for one scan in one query.
``.option("key", ...)`` is always safe, because it belongs to the load and not to a query.

The reader handles columns, types and filters. The rows come from a `pages.StateView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as sql
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from emberflow.datasource.filters import KeyFilters, accepted, only_key
from emberflow.datasource.live import LiveView
from emberflow.datasource.options import SourceOptions, as_of_numbers
from emberflow.datasource.pages import Piece, StateView
from emberflow.datasource.stored import StoredStates, listed_cuts, listed_states
from emberflow.errors import InputError
from emberflow.rows.state_columns import KEY, StateColumns, check_schema

if TYPE_CHECKING:
    import pyarrow as pa

_HOLD_SECONDS = 60.0
_OPTIONS = (
    "checkpoint",
    "path",
    "state",
    "asOf",
    "key",
    "pushdown",
    "raw",
    "partitions",
    "holdSeconds",
    "list",
    "query",
    "endpoint",
    "token",
    "timeout",
)
_LISTS = {
    "states": "name string, step string",
    "cuts": "number bigint, time bigint, front bigint, incarnation bigint, rows bigint, bytes bigint",
}


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The options of a read, checked."""

    checkpoint: str | None
    #: The live query and its state, if the read is not of a checkpoint.
    live: SourceOptions | None
    state: str | None
    as_of: str | None
    raw: bool
    partitions: int | None
    hold_seconds: float
    #: Whether to accept the filters of a query; and the only key to read, as text.
    pushdown: bool
    key: str | None
    #: ``states`` or ``cuts``: list these instead of reading a state.
    listed: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StateOptions:
        lowered = {name.lower(): value for name, value in options.items()}
        for name in lowered:
            if name not in {known.lower() for known in _OPTIONS}:
                raise InputError(
                    f"a read of state has no option {name!r}. There are {', '.join(_OPTIONS)}."
                )
        checkpoint = lowered.get("checkpoint", lowered.get("path"))
        is_live = "query" in lowered or "endpoint" in lowered
        if bool(checkpoint) == is_live:
            raise InputError(
                'a read of state needs .option("query", name), the queryName of a live query, or '
                '.option("checkpoint", path), the checkpointLocation of one'
                + ("; it was given both." if is_live else ".")
            )
        listed = lowered.get("list")
        if listed is not None and listed not in _LISTS:
            raise InputError(f"option list is one of {', '.join(_LISTS)}; got {listed!r}.")
        if listed is not None and is_live:
            raise InputError('option list goes with .option("checkpoint", path).')
        return cls(
            checkpoint=checkpoint,
            live=SourceOptions.of(lowered, "state") if is_live else None,
            state=lowered.get("state"),
            as_of=lowered.get("asof"),
            raw=_flag("raw", lowered.get("raw", "false")),
            partitions=_number("partitions", lowered.get("partitions")),
            hold_seconds=_seconds("holdSeconds", lowered.get("holdseconds")),
            pushdown=_flag("pushdown", lowered.get("pushdown", "false")),
            key=lowered.get("key"),
            listed=listed,
        )

    def states(self) -> StoredStates:
        assert self.checkpoint is not None
        return StoredStates(self.checkpoint, as_of=self.as_of, hold_seconds=self.hold_seconds)

    def view(self) -> StateView:
        if self.live is None:
            return self.states().view(self.state)
        assert self.state is not None
        as_of = None if self.as_of is None else as_of_numbers(self.as_of)
        return LiveView(self.state, self.live.resolved(), as_of)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InputError(f"option {name} is true or false; got {text!r}.")
    return text.lower() == "true"


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise InputError(f"option {name} is a number from 1 on; got {text!r}.")
    return int(text)


def _seconds(name: str, text: str | None) -> float:
    try:
        seconds = _HOLD_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise InputError(f"option {name} is a number of seconds, 0 or more; got {text!r}.")
    return seconds


def state_schema(spark_options: Mapping[str, str]) -> sql.StructType:
    """The columns of a read without ``.schema(...)``."""
    options = StateOptions.of(spark_options)
    if options.listed is not None:
        return _list_schema(options.listed)
    return options.view().schema(raw=options.raw)


def state_reader(spark_options: Mapping[str, str], schema: sql.StructType) -> DataSourceReader:
    options = StateOptions.of(spark_options)
    if options.listed is not None:
        return ListReader(options, schema)
    view = options.view()
    check_schema(view.name, schema, raw=options.raw)
    kind = FilteringReader if options.pushdown else StateReader
    return kind(view, schema, raw=options.raw, partitions=options.partitions, key=options.key)


def _list_schema(listed: str) -> sql.StructType:
    # `StructType.fromDDL` needs a session, and there is none in this process.
    types = {"string": sql.StringType(), "bigint": sql.LongType()}
    columns = (column.split() for column in _LISTS[listed].split(", "))
    return sql.StructType([sql.StructField(name, types[kind]) for name, kind in columns])


class ListReader(DataSourceReader):
    """Lists the states or the cuts: a few rows, in one task."""

    def __init__(self, options: StateOptions, schema: sql.StructType) -> None:
        if schema.names != _list_schema(str(options.listed)).names:
            raise InputError(f"option list={options.listed!r} takes no schema of its own.")
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        states = self._options.states()
        return listed_states(states) if self._options.listed == "states" else listed_cuts(states)


class StatePartition(InputPartition):
    """A piece of a state, for one task."""

    def __init__(self, piece: Piece, filters: KeyFilters) -> None:
        self.piece = piece
        self.filters = filters


class StateReader(DataSourceReader):
    """Reads one state as of one time."""

    def __init__(
        self,
        view: StateView,
        schema: sql.StructType,
        *,
        raw: bool,
        partitions: int | None,
        key: str | None = None,
    ) -> None:
        self._view: StateView | None = view
        self._name = view.name
        self._schema = schema
        self._raw = raw
        self._partitions = partitions
        self._filters = KeyFilters() if key is None else only_key(key, view.name, view.key_type())

    def __getstate__(self) -> dict[str, Any]:
        # The partitions have all that tasks need, and the manifest in the view may be long.
        return {**self.__dict__, "_view": None}

    def partitions(self) -> list[InputPartition]:
        assert self._view is not None, "partitions are planned before the reader is sent to tasks"
        pieces = self._view.pieces(self._filters, self._partitions)
        return [StatePartition(piece, self._filters) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StatePartition):  # if there is none, Spark makes one of its own
            columns = StateColumns(self._name, self._schema, self._raw)
            yield from partition.piece.batches(columns, partition.filters)


class FilteringReader(StateReader):
    """Accepts the filters of a query: for a ``load()`` that is used once.

    While Spark's own pushdown is off, Spark refuses this reader and names the setting.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 (Spark's name)
        """Accept filters on the key. Returns those that Spark has to apply itself."""
        assert self._view is not None, "filters come before the reader is sent to tasks"
        declared = next((f.dataType for f in self._schema.fields if f.name == KEY), None)
        if declared is None or not any(getattr(f, "attribute", ())[:1] == (KEY,) for f in filters):
            return filters
        view = self._view
        found, refused = accepted(filters, declared, view.key_type(), view.key_sample())
        self._filters = found.and_also(self._filters)
        return refused
