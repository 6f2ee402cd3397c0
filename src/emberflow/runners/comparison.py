"""`compare`: two versions of a flow on the same elements, and an exact diff of what they give.

A flow is deterministic: where two outputs differ, the versions do. An output is compared as what it is, a
payload at a time: of each sink, which ``(time, payload)`` only one version gives, and how often. Order
within a time is not compared, because it follows from how a flow is written.

In memory both run on the reference runner. With a Spark session both run in batch, over DataFrames of any
size, and Spark compares them: only the differences that are shown come to the driver.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import Versions
from emberflow.extras import need
from emberflow.graph.nodes import Sink
from emberflow.runners.elements import graph_for, timed_elements
from emberflow.runners.reference import NestedPlace, Reference, Waiting, run_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN = 10


class Difference(NamedTuple):
    """What only one of the versions gives at a time, and how often."""

    time: int
    payload: Any
    only_old: int = 0
    only_new: int = 0

    def __str__(self) -> str:
        sign, count = ("-", self.only_old) if self.only_old else ("+", self.only_new)
        times = f" ({count} times)" if count > 1 else ""
        return f"{sign} {self.time}: {self.payload!r}{times}"


@dataclass(frozen=True)
class SinkComparison:
    """One sink: how many payloads both give, and how many only one of them does."""

    same: int
    only_old: int
    only_new: int
    #: The first differences, by time.
    first: tuple[Difference, ...] = ()
    #: By key: how many payloads only the old and only the new version gives. Empty without a key.
    by_key: Mapping[Any, tuple[int, int]] | None = None

    @property
    def differs(self) -> bool:
        return bool(self.only_old or self.only_new)


@dataclass(frozen=True)
class Comparison:
    """What two versions give for the same elements, by sink."""

    sinks: Mapping[str, SinkComparison]

    @property
    def differs(self) -> bool:
        return any(sink.differs for sink in self.sinks.values())

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, sink in self.sinks.items():
            if not sink.differs:
                yield f"{name}: {sink.same} the same"
                continue
            yield f"{name}: {sink.same} the same, {sink.only_old} only old, {sink.only_new} only new"
            yield from (f"  {difference}" for difference in sink.first)
            if sink.only_old + sink.only_new > sum(map(_count, sink.first)):
                yield "  ..."
            for key, (old, new) in (sink.by_key or {}).items():
                yield f"  key {key!r}: {old} only old, {new} only new"


def _count(difference: Difference) -> int:
    return difference.only_old + difference.only_new


def compare(
    old: Flow | Versions,
    new: Flow | Versions,
    spark: SparkSession | None = None,
    /,
    *,
    key: Callable[[Any], Any] | None = None,
    **elements: Any,
) -> Comparison:
    """Run two versions of a flow on the same elements, and tell how their outputs differ.

    >>> import emberflow as ef
    >>> old, new = ef.Flow("fees"), ef.Flow("fees")
    >>> old.front("sums").map(lambda n: round(n * 0.015, 2)).sink("fees")
    >>> new.front("sums").map(lambda n: max(1.0, round(n * 0.015, 2))).sink("fees")
    >>> print(ef.compare(old, new, sums=[100, 20, 500]))
    fees: 2 the same, 1 only old, 1 only new
      - 1: 0.3
      + 1: 1.0

    With `Versions` it tells what an upgrade at a time changes. ``key`` says what differences are counted
    by, for all sinks. With a Spark session the fronts take DataFrames, as in `Flow.batch`, and the work is
    Spark's.
    """
    if spark is not None:
        return _compared_by_spark(old, new, spark, key, elements)
    one, other = _timed_outputs(old, elements), _timed_outputs(new, elements)
    return Comparison(
        {
            name: compared_outputs(one.get(name, []), other.get(name, []), key)
            for name in dict.fromkeys((*one, *other))
        }
    )


class _Timed(Reference):
    """Outputs with the times of their items."""

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        output, placed = self.outputs[node.name], self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            output.append((place[0].time, payload))
            return iter(())

        return sink


def _timed_outputs(
    flow: Flow | Versions, elements: Mapping[str, Iterable[Any]]
) -> dict[str, list[tuple[int, Any]]]:
    if isinstance(flow, Versions):
        return run_versions(flow, elements, kind=_Timed)
    fronts = {name: given for name, given in elements.items() if name in flow.graph().fronts}
    graph = graph_for(flow.graph(), fronts)
    reference = _Timed(graph)
    for global_time, front, payload in timed_elements(graph, fronts):
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference.outputs


def compared_outputs(
    old: list[tuple[int, Any]],
    new: list[tuple[int, Any]],
    key: Callable[[Any], Any] | None,
) -> SinkComparison:
    """How two lists of times and payloads differ."""
    known: dict[tuple[int, bytes], Any] = {}

    def counted(outputs: list[tuple[int, Any]]) -> Counter[tuple[int, bytes]]:
        found: Counter[tuple[int, bytes]] = Counter()
        for time, payload in outputs:
            identity = (time, pickle.dumps(payload, 5))
            known.setdefault(identity, payload)
            found[identity] += 1
        return found

    one, other = counted(old), counted(new)
    only_old, only_new = one - other, other - one
    differences = sorted(
        [
            *(Difference(at[0], known[at], only_old=n) for at, n in only_old.items()),
            *(Difference(at[0], known[at], only_new=n) for at, n in only_new.items()),
        ],
        key=lambda each: (each.time, each.only_new > 0),
    )
    return SinkComparison(
        same=(one & other).total(),
        only_old=only_old.total(),
        only_new=only_new.total(),
        first=tuple(differences[:_SHOWN]),
        by_key=None if key is None else _by_key(differences, key),
    )


def joined(earlier: SinkComparison, later: SinkComparison) -> SinkComparison:
    """Comparisons of one sink at earlier and at later times, as one."""
    by_key: dict[Any, tuple[int, int]] | None = None
    if earlier.by_key is not None or later.by_key is not None:
        by_key = dict(earlier.by_key or {})
        for key, (old, new) in (later.by_key or {}).items():
            before = by_key.get(key, (0, 0))
            by_key[key] = (before[0] + old, before[1] + new)
    return SinkComparison(
        same=earlier.same + later.same,
        only_old=earlier.only_old + later.only_old,
        only_new=earlier.only_new + later.only_new,
        first=(*earlier.first, *later.first)[:_SHOWN],
        by_key=by_key,
    )


def _by_key(
    differences: Iterable[Difference], key: Callable[[Any], Any]
) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for difference in differences:
        of = key(difference.payload)
        old, new = found.get(of, (0, 0))
        found[of] = (old + difference.only_old, new + difference.only_new)
    return found


# By Spark.


def _compared_by_spark(
    old: Flow | Versions,
    new: Flow | Versions,
    spark: SparkSession,
    key: Callable[[Any], Any] | None,
    fronts: Mapping[str, Any],
) -> Comparison:
    need("pyspark", "numpy", "pyarrow", extra="spark", what="ef.compare")
    from emberflow.runners.batch.runner import batch
    from emberflow.runners.batch.versions import batch_versions

    options: dict[str, Any] = {
        "schema": None,
        "partitions": None,
        "raw": True,
        "ordered": False,
        "until": None,
    }

    def frames(flow: Flow | Versions) -> dict[str, DataFrame]:
        if isinstance(flow, Versions):
            return batch_versions(flow, spark, fronts=fronts, **options)
        own = {name: df for name, df in fronts.items() if name in flow.graph().fronts}
        return batch(flow, spark, fronts=own, **options)

    one, other = frames(old), frames(new)
    return Comparison(
        {
            name: _compared_frames(one.get(name), other.get(name), key)
            for name in dict.fromkeys((*one, *other))
        }
    )


def _compared_frames(
    old: DataFrame | None, new: DataFrame | None, key: Callable[[Any], Any] | None
) -> SinkComparison:
    from pyspark.sql import functions as f

    from emberflow.rows.codec import decode
    from emberflow.rows.outputs import PAYLOAD, TIME

    sides = [
        frame.groupBy(TIME, PAYLOAD).agg(f.count("*").alias(side))
        for frame, side in ((old, "old"), (new, "new"))
        if frame is not None
    ]
    counts = sides[0] if len(sides) == 1 else sides[0].join(sides[1], [TIME, PAYLOAD], "full")
    for side in ("old", "new"):
        known = f.col(side) if side in counts.columns else f.lit(0)
        counts = counts.withColumn(side, f.coalesce(known, f.lit(0)))
    counts = counts.persist()
    try:
        same, only_old, only_new = counts.agg(
            f.sum(f.least("old", "new")),
            f.sum(f.greatest(f.col("old") - f.col("new"), f.lit(0))),
            f.sum(f.greatest(f.col("new") - f.col("old"), f.lit(0))),
        ).collect()[0]
        differing = counts.where(f.col("old") != f.col("new"))
        first = differing.orderBy(TIME, f.col("new") > f.col("old"), PAYLOAD).limit(_SHOWN)
        return SinkComparison(
            same=same or 0,
            only_old=only_old or 0,
            only_new=only_new or 0,
            first=tuple(_difference(decode, *row) for row in first.collect()),
            by_key=None
            if key is None
            else _by_key((_difference(decode, *row) for row in differing.toLocalIterator()), key),
        )
    finally:
        counts.unpersist()


def _difference(
    decode: Callable[[bytes], Any], time: int, payload: bytes, old: int, new: int
) -> Difference:
    return Difference(time, decode(bytes(payload)), max(0, old - new), max(0, new - old))
