"""`Flow.batch`: the plan of each sink, as a DataFrame.

::

    rows ──> MapInArrow ──> Exchange hashpartitioning(bucket) ──> Sort ──> MapInArrow ──> ... ──> Sort
             front pass                                                    a pass

Nothing runs here but the sample that finds out a schema, if none is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import cloudpickle

from emberflow.errors import EmberflowError, InputError
from emberflow.flow import Flow
from emberflow.graph import Graph
from emberflow.item import At
from emberflow.runners.batch.codec import decode
from emberflow.runners.batch.inputs import FrontRows
from emberflow.runners.batch.outputs import (
    PATH,
    PAYLOAD,
    TIME,
    SinkColumns,
    given_columns,
    sampled_columns,
)
from emberflow.runners.batch.planning import Units, plan_of
from emberflow.runners.elements import check_names, timed_elements
from emberflow.runners.reference import Reference

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Rows of each front that a schema is found out with.
_SAMPLED_ROWS = 100
_OPTIONS = ("schema", "partitions", "raw", "ordered")


def batch(
    flow: Flow,
    spark: SparkSession,
    *,
    schema: Any,
    partitions: int | None,
    raw: bool,
    ordered: bool,
    fronts: Mapping[str, Any],
) -> dict[str, DataFrame]:
    """See `emberflow.Flow.batch`."""
    graph = flow.graph()
    for name in _OPTIONS:
        if name in graph.fronts:
            raise InputError(
                f"flow {graph.flow!r} has a front {name!r}, which is a parameter of batch(). "
                f"Give the front another name."
            )
    if partitions is not None and (
        not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1
    ):
        raise InputError(f"batch(partitions=) takes an int of at least 1, got {partitions!r}.")
    check_names(graph, fronts)
    inputs = {name: FrontRows(front, fronts[name]) for name, front in graph.fronts.items()}
    units = Units(graph)
    columns = _columns(graph, inputs, schema, raw)
    return {
        name: _SinkFrame(units, inputs, columns[name], partitions, ordered, spark).rows()
        for name in graph.sinks
    }


def _columns(
    graph: Graph, inputs: Mapping[str, FrontRows], schema: Any, raw: bool
) -> dict[str, SinkColumns]:
    if raw:
        if schema is not None:
            raise InputError("batch() takes schema= or raw=True, not both: raw rows are bytes.")
        return {name: SinkColumns(sink, None) for name, sink in graph.sinks.items()}
    given = _schemas(graph, schema)
    sampled = _sample(graph, inputs) if len(given) < len(graph.sinks) else {}
    return {
        name: given_columns(sink, given[name])
        if name in given
        else sampled_columns(sink, sampled[name])
        for name, sink in graph.sinks.items()
    }


def _schemas(graph: Graph, schema: Any) -> Mapping[str, Any]:
    """By sink. One schema alone is that of the one sink."""
    if schema is None:
        return {}
    if not isinstance(schema, Mapping):
        if len(graph.sinks) > 1:
            raise InputError(
                f"flow {graph.flow!r} has several sinks: batch(schema=) takes a dict by their "
                f"names, which are {', '.join(map(repr, graph.sinks))}."
            )
        return dict.fromkeys(graph.sinks, schema)
    for name in schema:
        if name not in graph.sinks:
            raise InputError(
                f"batch(schema=): flow {graph.flow!r} has no sink {name!r}; its sinks are "
                f"{', '.join(map(repr, graph.sinks))}."
            )
    return schema


def _sample(graph: Graph, inputs: Mapping[str, FrontRows]) -> dict[str, list[Any]]:
    """What the first rows of each front give, on the reference runner."""
    elements: dict[str, list[At[Any]]] = {}
    for name, rows in inputs.items():
        table = rows.selected().limit(_SAMPLED_ROWS).toArrow()
        elements[name] = [
            At(time, payload)
            for one in table.to_batches()
            for time, payload in zip(*rows.checked().elements(one), strict=True)
        ]
    reference = Reference(graph)
    try:
        for global_time, front, payload in timed_elements(graph, elements):
            reference.enter(global_time, front, payload)
        reference.finish()
    except InputError:
        raise
    except EmberflowError as error:
        raise InputError(
            f"flow {graph.flow!r}: the first rows of each front, taken for a sample of the output, "
            f"lead to an error: {error}\nIf it comes of what the sample lacks, pass schema= to "
            f"batch(), and no sample is taken."
        ) from error
    return reference.outputs


class _SinkFrame:
    """Builds the DataFrame of one sink."""

    def __init__(
        self,
        units: Units,
        inputs: Mapping[str, FrontRows],
        columns: SinkColumns,
        partitions: int | None,
        ordered: bool,
        spark: SparkSession,
    ) -> None:
        self._units = units
        self._ordered = ordered
        self._inputs = inputs
        self._columns = columns
        self._partitions = partitions
        self._plan = plan_of(units, columns.sink)
        self._last = frozenset({units.sink_target})
        self._spread = partitions or shuffle_partitions(spark)

    def rows(self) -> DataFrame:
        plan = self._plan
        frames = [
            self._front(self._inputs[front.name], targets)
            for front, targets in zip(plan.fronts, plan.front_targets, strict=True)
        ]
        for stage in plan.stages:
            taken = _union([frames[number] for number in stage.frames])
            spread = (
                taken.repartition("bucket")
                if self._partitions is None
                else taken.repartition(self._partitions, "bucket")
            )
            in_order = spread.sortWithinPartitions("bucket", "time", "path")
            frames.append(self._passed(in_order, stage.targets, units=stage.units))
        last = _union([frames[number] for number in plan.last])
        return last.sortWithinPartitions(TIME, PATH) if self._ordered else last

    def _front(self, rows: FrontRows, targets: frozenset[int]) -> DataFrame:
        frame = self._passed(rows.selected(), targets, front=rows.checked())
        doubles = rows.doubles()
        if doubles is None:
            return frame
        from emberflow.runners.batch.passes import no_doubles

        check = doubles.mapInArrow(_task(no_doubles, rows.checked()), self._schema(targets))
        return frame.union(check)

    def _passed(self, frame: DataFrame, targets: frozenset[int], **rest: Any) -> DataFrame:
        from emberflow.runners.batch.bus import Spread
        from emberflow.runners.batch.passes import Pass, run_pass

        columns = self._columns if targets == self._last else None
        sink = self._columns.sink
        given = Pass(self._units.graph, sink, columns=columns, spread=Spread(self._spread), **rest)
        return frame.mapInArrow(_task(run_pass, given), self._schema(targets))

    def _schema(self, targets: frozenset[int]) -> str | StructType:
        from emberflow.runners.batch.bus import BUS_SCHEMA

        return self._columns.schema() if targets == self._last else BUS_SCHEMA


def shuffle_partitions(spark: SparkSession) -> int:
    """How many partitions Spark gives a shuffle that does not say."""
    number = spark.conf.get("spark.sql.shuffle.partitions")
    first = spark.conf.get("spark.sql.adaptive.coalescePartitions.initialPartitionNum", number)
    return int(first or number or 1)


def _task(
    run: Callable[[bytes, list[str], Any], Iterator[Any]], given: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    shipped = cloudpickle.dumps(given)
    path = list(sys.path)  # what the flow imports here, tasks import too
    module, name = run.__module__, run.__name__

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported in the task: the closure itself stays small and free of our modules.
        import importlib

        yield from getattr(importlib.import_module(module), name)(shipped, path, batches)

    return task


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)


def payloads(df: DataFrame) -> list[Any]:
    """The payloads of a raw DataFrame of a batch, in order, as the reference runner gives them.

    It collects them, so they have to fit in the driver's memory.
    """
    if PAYLOAD not in df.columns:
        raise InputError(
            f"payloads() takes a DataFrame of batch(raw=True), got one with the columns "
            f"{', '.join(df.columns)}."
        )
    # Sorted here: Spark would run the whole batch twice, the first time to sample for its ranges.
    rows = df.select(TIME, PATH, PAYLOAD).collect()
    places = sorted((time, bytes(path), bytes(payload)) for time, path, payload in rows)
    return [decode(payload) for _, _, payload in places]
