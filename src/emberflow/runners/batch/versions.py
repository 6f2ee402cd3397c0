"""`Versions.batch`: a history that several versions of a flow have served, as one DataFrame for each sink.

::

    v1: elements below T ──> passes ──> rows of the sink ────────────────────────────> union
                        └──> passes ──> ends: state, scheduled items ─┐                  ^
    v2: elements from T on ──────────────────────────────────────────┴─> passes ──> rows ┘

The rows are those of the reference, which runs all below T with the old version, takes a cut, translates
it, and goes on with the new one. Here the ends of the old version are the cut (`passes.ends`), and the new
version takes them over (`passes.takeover`), key by key, in whichever task they are. Nothing is collected,
and nothing is written between the versions: all of it is one lazy plan. What steps begin with
from backfills is read in the same pass.

The plan of a sink has the steps that lead to it, in every version. A version is computed once for its own
rows, and once for what the next ones need of its state, if they need any (`plan.succession`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from emberflow.dsl.versions import Versions
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.messages import Moment
from emberflow.errors import LATE_SINK
from emberflow.graph.nodes import Graph, Sink
from emberflow.graph.versions import CarryPlan
from emberflow.rows.inputs import FrontRows
from emberflow.rows.outputs import PARTITION, SinkColumns
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.batch.plan.succession import Link, chain_to
from emberflow.runners.batch.runner import (
    OPTIONS,
    Left,
    PlanBuilder,
    checked_inputs,
    columns_of,
    ending,
    enter_sample,
    graph_of,
    sampling,
    shuffle_partitions,
)
from emberflow.runners.reference import Reference
from emberflow.runners.served import check_fronts, told_ticks
from emberflow.values.item import GlobalTime
from emberflow.values.times import Time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.runners.batch.passes.passes import Pass
    from emberflow.runners.batch.passes.takeover import Takeover
    from emberflow.runners.batch.shuffle.bus import Spread


def batch_versions(
    versions: Versions,
    spark: SparkSession,
    *,
    schema: Any,
    partitions: int | None,
    raw: bool,
    ordered: bool,
    until: Time | None,
    fronts: Mapping[str, Any],
) -> dict[str, DataFrame]:
    """See `emberflow.Versions.batch`."""
    check_fronts((version.graph for version in versions), fronts)
    history = History.of(versions, partitions or shuffle_partitions(spark))
    inputs = [
        checked_inputs(
            tick.graph,
            {name: given for name, given in fronts.items() if name in tick.graph.fronts},
            partitions,
            "batch",
            OPTIONS,
        )
        for tick in history.ticks
    ]
    history = history.with_graphs(list(map(graph_of, history.graphs, inputs)))
    if until is not None:
        history = history.ending_at(ending(history.graphs[-1], {}, until, "batch"))
    for tick, rows in zip(history.ticks, inputs, strict=False):
        for each in rows.values():
            each.since, each.until = tick.since, tick.until
    plans = _Plans(spark, versions, history, inputs[: len(history.ticks)], fronts, partitions)
    sinks = list(dict.fromkeys(name for graph in history.graphs for name in graph.sinks))
    columns = columns_of(history.graphs, plans.inputs, sinks, schema, raw, history.sample)
    return {name: plans.dataframe(columns[name], ordered) for name in sinks}


@dataclass(frozen=True, slots=True)
class Tick:
    """The interval of global time that a version serves."""

    graph: Graph
    #: None for the first version, and for the last one, if it has no end.
    since: Moment | None
    until: Moment | None
    #: What it takes over from the version before.
    carry: CarryPlan


@dataclass(frozen=True)
class History:
    """All versions, as batch runs them."""

    ticks: tuple[Tick, ...]
    units: tuple[Units, ...]
    #: How many partitions a shuffle has.
    partitions: int

    @classmethod
    def of(cls, versions: Versions, partitions: int) -> History:
        begins = [None, *((each.at.time, each.at.front) for each in list(versions)[1:])]
        ticks = [
            Tick(version.graph, since, until, version.plan)
            for version, since, until in zip(versions, begins, [*begins[1:], None], strict=True)
        ]
        return cls(tuple(ticks), tuple(Units(tick.graph) for tick in ticks), partitions)

    @property
    def graphs(self) -> list[Graph]:
        return [tick.graph for tick in self.ticks]

    def with_graphs(self, graphs: Sequence[Graph]) -> History:
        """The same, with what the inputs say: see `graph_of`."""
        ticks = [replace(tick, graph=graph) for tick, graph in zip(self.ticks, graphs, strict=True)]
        return replace(self, ticks=tuple(ticks), units=tuple(map(Units, graphs)))

    def ending_at(self, end: Moment) -> History:
        """The same up to a moment."""
        ticks = [tick for tick in self.ticks if tick.since is None or tick.since < end]
        ticks[-1] = replace(ticks[-1], until=min(end, ticks[-1].until or end))
        return replace(self, ticks=tuple(ticks), units=self.units[: len(ticks)])

    def chain_to(self, version: int, sink: Sink) -> list[Link]:
        """The plans that lead to the rows of a sink in a version."""
        carries = [tick.carry for tick in self.ticks]
        return chain_to(self.units, carries, version, frozenset({sink.id}))

    def given(self, link: Link, sink: Sink | None) -> Pass:
        """What the passes of a plan are given. It makes rows of a sink, or ends."""
        from emberflow.runners.batch.passes.passes import Pass
        from emberflow.runners.batch.shuffle.bus import Spread

        tick = self.ticks[link.version]
        is_last = link.version == len(self.ticks) - 1
        ends = None if sink is not None else self.units[link.version].sink_target
        spread: Spread = Spread(self.partitions, ends_from=ends)
        return Pass(
            tick.graph,
            sink,
            None if sink is not None else link.goals,
            spread=spread,
            since=tick.since,
            until=tick.until,
            parts=self.partitions,
            next_carry=None if is_last else self.ticks[link.version + 1].carry.for_timers(),
        )

    def takeover(self, link: Link) -> Takeover:
        """How a plan takes over the ends of the one before it in its chain."""
        from emberflow.runners.batch.passes.ends import EndTargets
        from emberflow.runners.batch.passes.takeover import Takeover

        assert link.taken is not None
        targets = EndTargets(self.units[link.version - 1])
        carry = self.ticks[link.version].carry
        return Takeover(carry, link.taken, targets.state, targets.scheduled, self.partitions)

    def sample(
        self, graphs: Sequence[Graph], inputs: Sequence[Mapping[str, FrontRows]]
    ) -> dict[str, list[Any]]:
        """The output for the first rows of each front in each version, by the reference runner."""
        outputs: dict[str, list[Any]] = {}
        late: list[Any] = []
        before: Reference | None = None
        for tick, graph, rows in zip(self.ticks, graphs, inputs, strict=True):
            with sampling(graph):
                state: list[Row | Scheduled] = []
                if before is not None and tick.since is not None:
                    before.advance(GlobalTime(*tick.since))
                    state += translated_rows(before.cut(), tick.carry, tick.since)
                    state += translated_timers(before.scheduled(), tick.carry)
                before = Reference(graph, outputs=outputs)
                before.restore(state)
                late += enter_sample(before, rows)
        assert before is not None, "there is at least one version"
        with sampling(before.graph):
            before.finish()
        return {**outputs, LATE_SINK: late} if late else outputs


class _Plans:
    """The DataFrames of a history."""

    def __init__(
        self,
        spark: SparkSession,
        versions: Versions,
        history: History,
        inputs: Sequence[Mapping[str, FrontRows]],
        fronts: Mapping[str, Any],
        partitions: int | None,
    ) -> None:
        self.inputs = inputs
        self._spark = spark
        self._history = history
        self._partitions = partitions
        self._refused = [
            refused
            for name in fronts
            for refused in self._without_front(name, fronts[name], versions)
        ]

    def dataframe(self, columns: SinkColumns, ordered: bool) -> DataFrame:
        """The rows of a sink in all versions that have it."""
        name = columns.sink.name
        found = [
            (version, graph.sinks[name])
            for version, graph in enumerate(self._history.graphs)
            if name in graph.sinks
        ]
        widest = max((sink for _, sink in found), key=lambda sink: sink.partitions)
        schema = replace(columns, sink=widest).schema()
        dataframes = [
            self._rows(version, replace(columns, sink=sink), ordered) for version, sink in found
        ]
        if PARTITION in schema.names:
            dataframes = [_with_partition(dataframe) for dataframe in dataframes]
        dataframes += [builder.refusals(rows, schema) for builder, rows in self._refused]
        return reduce(lambda one, other: one.union(other), dataframes)

    def _rows(self, version: int, columns: SinkColumns, ordered: bool) -> DataFrame:
        """The rows of a sink in one version: the last of a chain of plans."""
        history = self._history
        left: Left | None = None
        links = history.chain_to(version, columns.sink)
        if links[0].taken is not None:
            begun = history.takeover(links[0])
            left = Left(self._orders(begun), begun)
        for link, following in pairwise(links):
            ends, takeover = self._builder(link, None, left).joined(), history.takeover(following)
            orders = [self._orders(takeover)] if takeover.orders else []
            left = Left(reduce(lambda one, other: one.union(other), orders, ends), takeover)
        return self._builder(links[-1], columns.sink, left).rows(columns, ordered)

    def _orders(self, takeover: Takeover) -> DataFrame:
        """A row, in a task of its own, for each range of a backfill that is to be read."""
        from pyspark.sql import functions as sql

        from emberflow.runners.batch.passes.takeover import ORDER_LANE

        nothing = sql.lit(b"")
        return self._spark.range(0, takeover.orders, 1, takeover.orders).select(
            sql.lit(ORDER_LANE).cast("long").alias("lane"),
            sql.col("id").alias("time"),
            nothing.alias("path"),
            nothing.alias("payload"),
        )

    def _builder(self, link: Link, sink: Sink | None, left: Left | None) -> PlanBuilder:
        given = self._history.given(link, sink)
        units, inputs = self._history.units[link.version], self.inputs[link.version]
        return PlanBuilder(units, inputs, given, self._partitions, left)

    def _without_front(
        self, name: str, given: Any, versions: Versions
    ) -> list[tuple[PlanBuilder, FrontRows]]:
        """Plans that fail if the front has an element of a time at which the version has no such front."""
        from emberflow.runners.batch.passes.passes import Pass

        graph = next(each.graph for each in versions if name in each.graph.fronts)
        plans = []
        for tick, told in zip(self._history.ticks, told_ticks(versions), strict=False):
            if name in tick.graph.fronts:
                continue
            rows = FrontRows(graph.fronts[name], given, fronts=len(graph.fronts))
            rows.since, rows.until = tick.since, tick.until
            problem = (
                f"front {name!r} has an element of the time {{}}, at which the version of flow "
                f"{graph.flow!r} has no such front ({told}). Leave it out, or keep the front in that "
                f"version."
            )
            refusing = Pass(
                graph,
                next(iter(graph.sinks.values())),
                since=tick.since,
                until=tick.until,
                refused=problem,
            )
            builder = PlanBuilder(Units(graph), {name: rows}, refusing, self._partitions)
            plans.append((builder, rows))
        return plans


def _with_partition(dataframe: DataFrame) -> DataFrame:
    """All versions of a sink have the column if one of them has several partitions."""
    from pyspark.sql import functions as sql

    if PARTITION in dataframe.columns:
        return dataframe
    return dataframe.withColumn(PARTITION, sql.lit(0).cast("int"))
