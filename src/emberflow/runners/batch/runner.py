"""`Flow.batch`: the plan of each sink, as a DataFrame.

::

    rows ──> MapInArrow ──> Exchange hashpartitioning(lane) ──> Sort ──> MapInArrow ──> ...
             front pass                                                    a pass

A row between two passes is a chunk of many items (`bus`), so Spark has little to do per item: it
moves bytes.

Nothing runs here, except on a sample of rows to infer a schema, if none is given.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from emberflow.dsl.flow import Flow
from emberflow.engine.messages import Moment
from emberflow.errors import LATE_SINK, EmberflowError, InputError, Late
from emberflow.extras import need
from emberflow.graph.nodes import Front, Graph, Sink, with_late_sink, with_unit
from emberflow.rows.codec import decode
from emberflow.rows.inputs import SOURCE_PARTITION, SOURCE_POSITION, FrontRows
from emberflow.rows.outputs import (
    PATH,
    PAYLOAD,
    TIME,
    SinkColumns,
    given_columns,
    sampled_columns,
)
from emberflow.runners.batch.plan.stages import Units, plan_of
from emberflow.runners.elements import check_names, timed_elements
from emberflow.runners.reference import Reference
from emberflow.values.item import TIE, At, GlobalTime, is_time
from emberflow.values.times import DEFAULT_UNIT, Time, TimeError, counted_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from emberflow.runners.batch.passes.passes import Pass
    from emberflow.runners.batch.passes.takeover import Takeover

#: How many rows of each front are sampled to infer a schema.
_SAMPLED_ROWS = 100
OPTIONS = ("schema", "partitions", "raw", "ordered", "until")


def batch(
    flow: Flow,
    spark: SparkSession,
    *,
    schema: Any,
    partitions: int | None,
    raw: bool,
    ordered: bool,
    until: Time | None,
    fronts: Mapping[str, Any],
) -> dict[str, DataFrame]:
    """See `emberflow.Flow.batch`."""
    graph = flow.graph()
    inputs = checked_inputs(graph, fronts, partitions, "batch", OPTIONS)
    graph = graph_of(graph, inputs)
    end = None if until is None else ending(graph, inputs, until, "batch")
    units = Units(graph)
    sinks = list(graph.sinks)
    return sink_dataframes(spark, units, inputs, sinks, schema, partitions, raw, ordered, end)


def ending(graph: Graph, inputs: Mapping[str, FrontRows], until: object, method: str) -> Moment:
    """Let the inputs end at a time or a moment. At a time: behind what is scheduled for it."""
    end: Moment
    if isinstance(until, tuple):
        if len(until) != 2 or not all(is_time(part) for part in until):
            raise InputError(
                f"{method}(until=) takes a time, or a moment (time, front), got {until!r}."
            )
        end = until
    else:
        try:
            end = counted_time(until, graph.unit or DEFAULT_UNIT), 0
        except TimeError as error:
            raise InputError(f"{method}(until=) takes a time. {error}") from None
    for rows in inputs.values():
        rows.until = end
    return end


def checked_inputs(
    graph: Graph,
    fronts: Mapping[str, Any],
    partitions: int | None,
    method: str,
    options: Sequence[str],
) -> dict[str, FrontRows]:
    """The rows of each front, after all arguments have been checked."""
    for name in options:
        if name in graph.fronts:
            raise InputError(
                f"flow {graph.flow!r} has a front {name!r}, which is a parameter of {method}(). "
                f"Give the front another name."
            )
    if partitions is not None and (
        not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1
    ):
        raise InputError(f"{method}(partitions=) takes an int of at least 1, got {partitions!r}.")
    check_names(graph, fronts)
    return {
        name: FrontRows(front, fronts[name], fronts=len(graph.fronts))
        for name, front in graph.fronts.items()
    }


def graph_of(graph: Graph, inputs: Mapping[str, FrontRows]) -> Graph:
    """The graph, with a sink for late elements if one of the inputs diverts them, and with a unit."""
    graph = with_unit(graph, (rows.unit for rows in inputs.values()))
    return with_late_sink(graph) if any(rows.diverts for rows in inputs.values()) else graph


def sink_dataframes(
    spark: SparkSession,
    units: Units,
    inputs: Mapping[str, FrontRows],
    sinks: Sequence[str],
    schema: Any,
    partitions: int | None,
    raw: bool,
    ordered: bool,
    until: Moment | None,
) -> dict[str, DataFrame]:
    """The DataFrame of each of these sinks."""
    if not sinks:
        return {}
    from emberflow.runners.batch.passes.passes import Pass
    from emberflow.runners.batch.shuffle.bus import Spread

    spread = Spread(partitions or shuffle_partitions(spark))
    columns = columns_of([units.graph], [inputs], sinks, schema, raw, _sample)
    dataframes = {}
    for name in sinks:
        given = Pass(units.graph, columns[name].sink, until=until, spread=spread)
        dataframes[name] = PlanBuilder(units, inputs, given, partitions).rows(
            columns[name], ordered
        )
    return dataframes


def columns_of(
    graphs: Sequence[Graph],
    inputs: Sequence[Mapping[str, FrontRows]],
    sinks: Sequence[str],
    schema: Any,
    raw: bool,
    sample: Callable[[Sequence[Graph], Sequence[Mapping[str, FrontRows]]], dict[str, list[Any]]],
) -> dict[str, SinkColumns]:
    """The columns of each of these sinks, for the graphs of all versions.

    ``sample`` gives output by sink, where no schema is given.
    """
    known = {name: sink for graph in graphs for name, sink in graph.sinks.items()}
    wanted = {name: known[name] for name in sinks}
    if raw:
        if schema is not None:
            raise InputError("batch() takes schema= or raw=True, not both: raw rows are bytes.")
        return {name: SinkColumns(sink, None) for name, sink in wanted.items()}
    given = dict(_schemas(graphs, schema))
    if LATE_SINK in wanted and LATE_SINK not in given:
        late = _late_schema([rows for of_version in inputs for rows in of_version.values()])
        if late is not None:
            given[LATE_SINK] = late
    sampled = sample(graphs, inputs) if not wanted.keys() <= given.keys() else {}
    return {
        name: given_columns(sink, given[name])
        if name in given
        else sampled_columns(sink, sampled[name])
        for name, sink in wanted.items()
    }


def _schemas(graphs: Sequence[Graph], schema: Any) -> Mapping[str, Any]:
    """Schemas by sink. A single schema is for the only sink, besides that of late elements."""
    if schema is None:
        return {}
    flow = graphs[0].flow
    sinks = {name: (graph, sink) for graph in graphs for name, sink in graph.sinks.items()}
    if not isinstance(schema, Mapping):
        own = [name for name, found in sinks.items() if not _is_late_sink(*found)]
        if len(own) > 1:
            raise InputError(
                f"flow {flow!r} has several sinks: batch(schema=) takes a dict by their "
                f"names, which are {', '.join(map(repr, sinks))}."
            )
        return dict.fromkeys(own, schema)
    for name in schema:
        if name not in sinks:
            raise InputError(
                f"batch(schema=): flow {flow!r} has no sink {name!r}; its sinks are "
                f"{', '.join(map(repr, sinks))}."
            )
    return schema


def _is_late_sink(graph: Graph, sink: Sink) -> bool:
    return graph.late_node is not None and sink.inputs[0].node == graph.late_node


def _late_schema(inputs: Sequence[FrontRows]) -> StructType | None:
    """The columns of late elements, as far as the columns of the input tell; None if they do not."""
    from pyspark.sql import types as sql

    types = [rows.late_types() for rows in inputs if rows.diverts]
    first = types[0] if types else None
    if first is None or any(each != first for each in types):
        return None
    fields = {
        "time": sql.LongType(),
        "front": sql.StringType(),
        "partition": sql.IntegerType(),
        "position": first[0],
        "by": sql.LongType(),
        "payload": first[1],
    }
    assert tuple(fields) == Late._fields
    return sql.StructType([sql.StructField(name, kind) for name, kind in fields.items()])


def _sample(
    graphs: Sequence[Graph], inputs: Sequence[Mapping[str, FrontRows]]
) -> dict[str, list[Any]]:
    """The output for the first rows of each front, by the reference runner."""
    (graph,) = graphs
    reference = Reference(graph)
    with sampling(graph):
        late = enter_sample(reference, inputs[0])
        reference.finish()
    if graph.late_node is not None:
        reference.outputs[LATE_SINK] = late
    return reference.outputs


@contextmanager
def sampling(graph: Graph) -> Iterator[None]:
    """Tells errors of a sample as what they are."""
    try:
        yield
    except InputError:
        raise
    except EmberflowError as error:
        raise InputError(
            f"flow {graph.flow!r}: the first rows of each front, taken for a sample of the output, "
            f"lead to an error: {error}\nIf that is only because the sample lacks other rows, pass "
            f"schema= to batch(): then no sample is taken."
        ) from error


def enter_sample(reference: Reference, inputs: Mapping[str, FrontRows]) -> list[Any]:
    """Let the first rows of each front enter. Returns those that could be late, as if they were.

    As elements none of them is late.
    """
    from emberflow.runners.batch.passes.stamping import sampled

    graph = reference.graph
    elements: dict[str, list[At[Any]]] = {}
    #: Elements of sources with partitions, with their own global times.
    partitioned: list[tuple[GlobalTime, Front, Any]] = []
    late: list[Late] = []
    for name, rows in inputs.items():
        table = rows.selected().limit(_SAMPLED_ROWS).toArrow()
        elements[name] = []
        checked = rows.checked()
        if rows.is_stamped:
            found = [one for part in table.to_batches() for one in sampled(checked, part)]
            late += found if rows.diverts else []
            ties: Counter[tuple[int, int]] = Counter()
            for one in found:
                moment = one.time, checked.index(one.partition)
                at = GlobalTime(one.time, moment[1] + ties[moment] * TIE)
                partitioned.append((at, rows.front, one.payload))
                ties[moment] += 1
            continue
        for part in table.to_batches():
            times, payloads = checked.elements(part)
            if rows.has_partitions:
                moments = map(GlobalTime, times, checked.indices(part))
                partitioned += zip(moments, repeat(rows.front), payloads)
            else:
                elements[name] += map(At, times, payloads)
    entering = merge(
        timed_elements(graph, elements),
        sorted(partitioned, key=itemgetter(0)),
        key=itemgetter(0),
    )
    for global_time, front, payload in entering:
        reference.enter(global_time, front, payload)
    return late


class Left(NamedTuple):
    """What a version has left for the next one: its ends, and how they are taken over."""

    dataframe: DataFrame
    takeover: Takeover


class PlanBuilder:
    """Builds the DataFrames of a plan: for one sink, or for ends if the pass names no sink."""

    def __init__(
        self,
        units: Units,
        inputs: Mapping[str, FrontRows],
        given: Pass,
        partitions: int | None,
        left: Left | None = None,
    ) -> None:
        """``left`` is what the version before has left."""
        self._units = units
        self._left = left
        self._inputs = inputs
        self._given = given
        self._partitions = partitions
        self._columns: SinkColumns | None = None
        diverting = [name for name, rows in inputs.items() if rows.diverts]
        goals = given.goals if given.sink is None else frozenset({given.sink.id})
        taken = None if left is None else left.takeover.taken
        self._plan = plan_of(units, goals, diverting, taken)
        self._last = frozenset({units.sink_target})

    def rows(self, columns: SinkColumns, ordered: bool) -> DataFrame:
        """The rows of the pass's sink."""
        self._columns = columns
        self._given = replace(self._given, ordered=ordered)
        return self.joined()

    def joined(self) -> DataFrame:
        """The union of the last stages' output."""
        plan = self._plan
        dataframes = [
            self._front(self._inputs[front.name], targets)
            for front, targets in zip(plan.fronts, plan.front_targets, strict=True)
        ]
        if self._left is not None:
            assert plan.taken_targets is not None
            dataframe, takeover = self._left
            dataframes.append(self._passed(dataframe, plan.taken_targets, takeover=takeover))
        for stage in plan.stages:
            taken = _union([dataframes[number] for number in stage.datasets])
            in_order = self._spread(taken, "lane").sortWithinPartitions("lane", "time", "path")
            dataframes.append(self._passed(in_order, stage.targets, units=stage.units))
        return _union([dataframes[number] for number in plan.last])

    def _spread(self, dataframe: DataFrame, column: str) -> DataFrame:
        if self._partitions is None:
            return dataframe.repartition(column)
        return dataframe.repartition(self._partitions, column)

    def refusals(self, rows: FrontRows, schema: StructType) -> DataFrame:
        """No rows; it fails if an element enters. For a pass that refuses what enters."""
        from emberflow.runners.batch.passes.passes import run_pass

        given = replace(self._given, front=rows.checked())
        return self._selected(rows).mapInArrow(task_of(run_pass, given), schema)

    def _selected(self, rows: FrontRows) -> DataFrame:
        selected = rows.selected()
        if not rows.is_stamped:
            return selected
        spread = self._spread(selected, SOURCE_PARTITION)
        return spread.sortWithinPartitions(SOURCE_PARTITION, SOURCE_POSITION)

    def _front(self, rows: FrontRows, targets: frozenset[int]) -> DataFrame:
        dataframe = self._passed(self._selected(rows), targets, front=rows.checked())
        doubles = rows.doubles()
        if doubles is None:
            return dataframe
        from emberflow.runners.batch.passes.passes import no_doubles

        check = doubles.mapInArrow(task_of(no_doubles, rows.checked()), self._schema(targets))
        return dataframe.union(check)

    def _passed(self, dataframe: DataFrame, targets: frozenset[int], **rest: Any) -> DataFrame:
        from emberflow.runners.batch.passes.passes import run_pass

        columns = self._columns if targets == self._last else None
        given = replace(self._given, columns=columns, **rest)
        return dataframe.mapInArrow(task_of(run_pass, given), self._schema(targets))

    def _schema(self, targets: frozenset[int]) -> str | StructType:
        from emberflow.runners.batch.shuffle.bus import BUS_SCHEMA

        if targets == self._last and self._columns is not None:
            return self._columns.schema()
        return BUS_SCHEMA


def shuffle_partitions(spark: SparkSession) -> int:
    """How many partitions Spark uses for a shuffle by default."""
    number = spark.conf.get("spark.sql.shuffle.partitions")
    first = spark.conf.get("spark.sql.adaptive.coalescePartitions.initialPartitionNum", number)
    return int(first or number or 1)


def task_of(
    run: Callable[[Any, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], given: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A closure for Spark that calls a function of a module, by name, with this argument."""
    shipped = cloudpickle.dumps(given)
    path = list(sys.path)  # tasks can import what this process can
    module, name = run.__module__, run.__name__

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported in the task, so that the closure stays small and does not contain our modules.
        import importlib
        import pickle
        import sys

        sys.path += [folder for folder in path if folder not in sys.path]
        yield from getattr(importlib.import_module(module), name)(pickle.loads(shipped), batches)

    return task


def _union(dataframes: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), dataframes)


def payloads(df: DataFrame) -> list[Any]:
    """The payloads of a raw batch DataFrame, in the order of the reference runner.

    It collects them, so they have to fit in the driver's memory. And it unpickles them, which runs
    whatever code they hold: call it only on a DataFrame of a flow, checkpoint or query that you trust.
    """
    need("pyspark", extra="spark", what="ef.payloads")
    if PAYLOAD not in df.columns:
        raise InputError(
            f"payloads() takes a DataFrame of batch(raw=True), got one with the columns "
            f"{', '.join(df.columns)}."
        )
    # Sorted here: an ``orderBy`` would run the whole batch twice, first to sample its ranges.
    rows = df.select(TIME, PATH, PAYLOAD).collect()
    places = sorted((time, bytes(path), bytes(payload)) for time, path, payload in rows)
    return [decode(payload) for _, _, payload in places]
