"""SQL over state: what ``spark.read.format("emberflow")`` does.

When Spark plans a query it asks for a reader, hands it the filters, and asks for partitions; all in
one process, which is gone afterwards. What the tasks need travels in the partitions.

**Spark plans once for each ``load()``** and keeps the partitions for whatever reads that DataFrame
later. So the cut is chosen by the first query of a ``load()``, and later ones see the same. Two loads
(a join of two states) choose for themselves; who needs them as of one moment says ``asOf``.

**And so Spark's pushdown is only on demand.** The partitions that Spark keeps are those of the filters
that were pushed last, in whichever query (Spark 4.3): ``df.where("key = 'a'").count()`` and then
``df.count()`` would count one row, and a join of ``df`` with itself would filter both sides alike.
With ``.option("pushdown", True)`` the user says that this ``load()`` is for one scan in one query.
``.option("key", ...)`` is always safe, because it belongs to the load and not to a query.

The reader knows columns, types and filters. Where rows come from is behind `pages.StateView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as sql
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from emberflow.datasource.columns import KEY, PageWriter, check_given, found_schema
from emberflow.datasource.filters import KeyFilters, only_key, taken
from emberflow.datasource.live import LiveView
from emberflow.datasource.options import SourceOptions, as_of_numbers
from emberflow.datasource.pages import Piece, StateView
from emberflow.datasource.stored import StoredStates, listed_cuts, listed_states
from emberflow.errors import InputError

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
    #: Or the live query, and its state.
    live: SourceOptions | None
    state: str | None
    as_of: str | None
    raw: bool
    partitions: int | None
    hold_seconds: float
    #: Whether to take the filters of a query, and the only key that is wanted, as text.
    pushdown: bool
    key: str | None
    #: ``states`` or ``cuts``: a list of these in place of a state.
    listed: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StateOptions:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in {known.lower() for known in _OPTIONS}:
                raise InputError(
                    f"a read of state has no option {name!r}. There are {', '.join(_OPTIONS)}."
                )
        checkpoint = given.get("checkpoint", given.get("path"))
        is_live = "query" in given or "endpoint" in given
        if bool(checkpoint) == is_live:
            raise InputError(
                'a read of state needs .option("query", name), the queryName of a live query, or '
                '.option("checkpoint", path), the checkpointLocation of one'
                + ("; it was given both." if is_live else ".")
            )
        listed = given.get("list")
        if listed is not None and listed not in _LISTS:
            raise InputError(f"option list is one of {', '.join(_LISTS)}; got {listed!r}.")
        if listed is not None and is_live:
            raise InputError('option list goes with .option("checkpoint", path).')
        return cls(
            checkpoint=checkpoint,
            live=SourceOptions.of(given, "state") if is_live else None,
            state=given.get("state"),
            as_of=given.get("asof"),
            raw=_flag("raw", given.get("raw", "false")),
            partitions=_number("partitions", given.get("partitions")),
            hold_seconds=_seconds("holdSeconds", given.get("holdseconds")),
            pushdown=_flag("pushdown", given.get("pushdown", "false")),
            key=given.get("key"),
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


def _flag(name: str, given: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise InputError(f"option {name} is true or false; got {given!r}.")
    return given.lower() == "true"


def _number(name: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not given.isdecimal() or not int(given):
        raise InputError(f"option {name} is a number from 1 on; got {given!r}.")
    return int(given)


def _seconds(name: str, given: str | None) -> float:
    try:
        seconds = _HOLD_SECONDS if given is None else float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise InputError(f"option {name} is a number of seconds, 0 or more; got {given!r}.")
    return seconds


def state_schema(given: Mapping[str, str]) -> sql.StructType:
    """The columns of a read for which no schema is given."""
    options = StateOptions.of(given)
    if options.listed is not None:
        return _list_schema(options.listed)
    view = options.view()
    return found_schema(view.name, view.sample(), raw=options.raw)


def state_reader(given: Mapping[str, str], schema: sql.StructType) -> DataSourceReader:
    options = StateOptions.of(given)
    if options.listed is not None:
        return ListReader(options, schema)
    view = options.view()
    check_given(view.name, schema, raw=options.raw)
    kind = FilteringReader if options.pushdown else StateReader
    return kind(view, schema, raw=options.raw, partitions=options.partitions, key=options.key)


def _list_schema(listed: str) -> sql.StructType:
    # `StructType.fromDDL` would ask a session, and there is none in this process.
    types = {"string": sql.StringType(), "bigint": sql.LongType()}
    columns = (column.split() for column in _LISTS[listed].split(", "))
    return sql.StructType([sql.StructField(name, types[kind]) for name, kind in columns])


class ListReader(DataSourceReader):
    """What there is to read: a few rows, in one task."""

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
    """Reads one state as of one moment."""

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
        self._filters = (
            KeyFilters() if key is None else only_key(key, view.name, view.sample().keys)
        )

    def __getstate__(self) -> dict[str, Any]:
        # Tasks have what they need in their partition; a manifest may be long.
        return {**self.__dict__, "_view": None}

    def partitions(self) -> list[InputPartition]:
        assert self._view is not None, "partitions are planned before the reader is sent to tasks"
        pieces = self._view.pieces(self._filters, self._partitions)
        return [StatePartition(piece, self._filters) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StatePartition):  # Spark makes one itself where there is none
            writer = PageWriter(self._name, self._schema, raw=self._raw)
            for page in partition.piece.pages(partition.filters, child_ids=self._raw):
                yield writer.batch(page)


class FilteringReader(StateReader):
    """One that takes the filters of the query: for a ``load()`` that is used once.

    Spark refuses it, and says which setting is missing, while its pushdown is off.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters on the key; returns what Spark has to look at itself."""
        assert self._view is not None, "filters come before the reader is sent to tasks"
        declared = next((f.dataType for f in self._schema.fields if f.name == KEY), None)
        if declared is None or not any(getattr(f, "attribute", ())[:1] == (KEY,) for f in filters):
            return filters
        found, left = taken(filters, declared, self._view.sample().keys)
        self._filters = found.and_also(self._filters)
        return left
