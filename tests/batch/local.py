"""A batch without Spark: the real plan and passes, with a shuffle of a few lines.

Between passes Spark distributes rows by a hash of their lane, sorts them, and cuts them into
Arrow batches. This module does the same by hand, so that a random flow takes milliseconds and
hundreds of them can be tried. `tests/spark` checks that Spark does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
from emberflow.graph.nodes import Graph
from emberflow.rows.codec import decode
from emberflow.rows.inputs import Checked, Stamps
from emberflow.rows.outputs import SinkColumns
from emberflow.rows.readers import Reader
from emberflow.runners.batch.passes.ends import EndTargets
from emberflow.runners.batch.passes.machines import Ended
from emberflow.runners.batch.passes.passes import Pass, passed
from emberflow.runners.batch.passes.takeover import ORDER_LANE, Takeover
from emberflow.runners.batch.plan.stages import Units, plan_of
from emberflow.runners.batch.shuffle.bus import Spread
from emberflow.runners.batch.versions import History
from emberflow.values.event_time import IN_ORDER

Row: TypeAlias = tuple[Any, ...]

BUS = ("lane", "time", "path", "payload")


def batch(
    flow: ef.Flow,
    elements: dict[str, list[Any]],
    *,
    partitions: int,
    seed: int,
    ended: Callable[[int], Ended] | None = None,
) -> dict[str, list[Any]]:
    """The output of each sink, in order; elements are ints."""
    random = Random(seed)
    graph = flow.graph()
    units = Units(graph)
    return {
        name: in_order(planned(units, Pass(graph, sink), elements, partitions, random, ended=ended))
        for name, sink in graph.sinks.items()
    }


def in_order(rows: list[Row]) -> list[Any]:
    """The payloads of rows of a sink: payload, time, front, path, and the partition if there are several."""
    return [decode(row[0]) for row in sorted(rows, key=lambda row: (row[1], row[3]))]


def batch_versions(
    versions: ef.Versions,
    elements: dict[str, list[Any]],
    *,
    partitions: int,
    seed: int,
    until: int | None = None,
) -> dict[str, list[Any]]:
    """The output of each sink over all versions, in order; elements are ints."""
    random = Random(seed)
    history = History.of(versions, partitions)
    if until is not None:
        history = history.ending_at((until, 0))
    outputs: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for graph in history.graphs for name in graph.sinks):
        rows: list[Row] = []
        for version, graph in enumerate(history.graphs):
            if name not in graph.sinks:
                continue
            left: tuple[list[Row], Takeover] | None = None
            links = history.chain_to(version, graph.sinks[name])
            if links[0].taken is not None:
                left = orders(history.takeover(links[0])), history.takeover(links[0])
            for link, following in pairwise(links):
                given, units = history.given(link, None), history.units[link.version]
                made = planned(units, given, elements, partitions, random, left)
                takeover = history.takeover(following)
                left = made + orders(takeover), takeover
            given = history.given(links[-1], graph.sinks[name])
            rows += planned(history.units[version], given, elements, partitions, random, left)
        outputs[name] = in_order(rows)
    return outputs


def orders(takeover: Takeover) -> list[Row]:
    """The rows that have tasks read backfills."""
    return [(ORDER_LANE, number, b"", b"") for number in range(takeover.orders)]


def planned(
    units: Units,
    given: Pass,
    elements: dict[str, list[Any]],
    partitions: int,
    random: Random,
    left: tuple[list[Row], Takeover] | None = None,
    *,
    ended: Callable[[int], Ended] | None = None,
) -> list[Row]:
    """The rows that a plan makes: of the sink of a pass, or ends."""
    sink = given.sink
    goals = given.goals if sink is None else frozenset({sink.id})
    plan = plan_of(units, goals, taken=None if left is None else left[1].taken)
    raw = None if sink is None else SinkColumns(sink, None)

    def made(targets: frozenset[int], **rest: Any) -> Pass:
        is_last = targets == {units.sink_target}
        return replace(given, columns=raw if is_last else None, **rest)

    frames: list[list[Row]] = []
    for front, targets in zip(plan.fronts, plan.front_targets, strict=True):
        found = input_rows(elements[front.name])
        reader = Reader(front, ("value",), (None,), "bare")
        if len({time for time, _, _ in found}) < len(found):  # positions say which comes first
            stamped = Checked(front, reader, "time", (), "ms", stamps=Stamps(IN_ORDER))
            names = ("_time", "_tied", "value", "_partition", "_position")
            placed = [(*row, 0, number) for number, row in enumerate(found)]
            frames.append(list(ran(made(targets, front=stamped), cut(placed, random, names))))
            continue
        checked = Checked(front, reader, "time", (), "ms")
        entering = [row for row in found if may_enter(given, row[0])]
        frames.append(
            [
                row
                for part in spread(entering, partitions, random, None)
                for row in ran(
                    made(targets, front=checked), cut(part, random, ("_time", "_tied", "value"))
                )
            ]
        )
    if left is not None:
        assert plan.taken_targets is not None
        taking = made(plan.taken_targets, takeover=left[1])
        parts = spread(left[0], partitions, random, None)
        frames.append([row for part in parts for row in ran(taking, cut(part, random, BUS))])
    for stage in plan.stages:
        taken = [row for number in stage.datasets for row in frames[number]]
        frames.append(
            [
                row
                for part in spread(taken, partitions, random, 0)
                for row in ran(
                    made(stage.targets, units=stage.units),
                    cut(sorted(part, key=lambda row: row[:3]), random, BUS),
                    ended,
                )
            ]
        )
    return [row for number in plan.last for row in frames[number]]


def may_enter(given: Pass, time: int) -> bool:
    """What Spark's filter of a front leaves in: whole times."""
    until = AFTER_ALL if given.until is None else given.until
    is_early = given.since is not None and time < given.since[0]
    return not is_early and (time, 0 if until[1] > 0 else 2**40) < until


def ends(
    graph: Graph,
    elements: dict[str, list[Any]],
    *,
    until: int,
    partitions: int,
    seed: int,
) -> Iterator[tuple[Any, ...]]:
    """The sorted rows for the last pass of a backfill; elements are ints."""
    units = Units(graph)
    whole = Pass(
        graph,
        None,
        until=(until, 0),
        written=frozenset(graph.sinks),
        parts=partitions,
        spread=Spread(partitions, ends_from=units.sink_target),
    )
    last = planned(units, whole, elements, partitions, Random(seed))
    targets = EndTargets(units)
    slots = [(targets.slot_of(row[0]), *row[1:]) for row in last]
    return iter(sorted(slots, key=lambda row: row[:3]))


def input_rows(elements: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (e.time, False, e.payload) if isinstance(e, ef.At) else (number, False, e)
        for number, e in enumerate(elements)
    ]


def spread(
    rows: list[tuple[Any, ...]], partitions: int, random: Random, by: int | None
) -> list[list[tuple[Any, ...]]]:
    """Distribute rows to partitions by a column, or at random; in any order."""
    rows = list(rows)
    random.shuffle(rows)
    parts: list[list[tuple[Any, ...]]] = [[] for _ in range(partitions)]
    for row in rows:
        where = random.randrange(partitions) if by is None else row[by] * 7919 % partitions
        parts[where].append(row)
    return parts


TYPES = {
    "lane": pa.int64(),
    "time": pa.int64(),
    "path": pa.binary(),
    "payload": pa.binary(),
    "_time": pa.int64(),
    "_tied": pa.bool_(),
    "_partition": pa.int64(),
    "_position": pa.int64(),
    "value": pa.int64(),
}


def cut(
    rows: list[tuple[Any, ...]], random: Random, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of any size."""
    start = 0
    while start < len(rows):
        size = random.choice((1, 3, 1_000))
        part = list(zip(*rows[start : start + size], strict=True))
        arrays = [pa.array(part[number], TYPES[name]) for number, name in enumerate(names)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))
        start += size


def ran(
    made: Pass, batches: Iterator[pa.RecordBatch], ended: Callable[[int], Ended] | None = None
) -> Iterator[tuple[Any, ...]]:
    for out in passed(made, batches, ended):
        yield from zip(*(column.to_pylist() for column in out.columns), strict=True)
