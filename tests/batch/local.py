"""A batch without Spark: the real plan and passes, with a shuffle of a few lines.

Between passes Spark distributes rows by a hash of their lane, sorts them, and cuts them into
Arrow batches. This module does the same by hand, so that a random flow takes milliseconds and
hundreds of them can be tried. `tests/spark` checks that Spark does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa

import emberflow as ef
from emberflow.graph.nodes import Graph
from emberflow.rows.codec import decode
from emberflow.rows.inputs import Checked, Reader
from emberflow.rows.outputs import SinkColumns
from emberflow.runners.batch.passes.ends import EndTargets
from emberflow.runners.batch.passes.machines import Ended
from emberflow.runners.batch.passes.passes import Pass, passed
from emberflow.runners.batch.plan.stages import Units, plan_of
from emberflow.runners.batch.shuffle.bus import Spread

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
    outputs: dict[str, list[Any]] = {}
    for name, sink in graph.sinks.items():
        plan = plan_of(units, sink)
        raw = SinkColumns(sink, None)

        def columns(targets: frozenset[int], raw: SinkColumns = raw) -> SinkColumns | None:
            return raw if targets == {units.sink_target} else None

        frames: list[list[tuple[Any, ...]]] = []
        for front, targets in zip(plan.fronts, plan.front_targets, strict=True):
            checked = Checked(front, Reader(front, ("value",), (None,), "bare"), "time", (), "ms")
            made = Pass(graph, sink, front=checked, columns=columns(targets))
            frames.append(
                [
                    row
                    for part in spread(input_rows(elements[front.name]), partitions, random, None)
                    for row in ran(made, cut(part, random, ("_time", "_tied", "value")))
                ]
            )
        for stage in plan.stages:
            taken = [row for number in stage.datasets for row in frames[number]]
            made = Pass(graph, sink, units=stage.units, columns=columns(stage.targets))
            frames.append(
                [
                    row
                    for part in spread(taken, partitions, random, 0)
                    for row in ran(
                        made, cut(sorted(part, key=lambda row: row[:3]), random, BUS), ended
                    )
                ]
            )
        last = [row for number in plan.last for row in frames[number]]
        # payload, time, front, path, and the partition if the sink has several
        in_order = sorted(last, key=lambda row: (row[1], row[3]))
        outputs[name] = [decode(row[0]) for row in in_order]
    return outputs


def ends(
    graph: Graph,
    elements: dict[str, list[Any]],
    *,
    until: int,
    partitions: int,
    seed: int,
) -> Iterator[tuple[Any, ...]]:
    """The sorted rows for the last pass of a backfill; elements are ints."""
    random = Random(seed)
    plan = plan_of(Units(graph), None)
    units = Units(graph)
    whole = Pass(
        graph,
        None,
        until=until,
        written=frozenset(graph.sinks),
        parts=partitions,
        spread=Spread(partitions, ends_from=units.sink_target),
    )
    frames: list[list[tuple[Any, ...]]] = []
    for front in plan.fronts:
        checked = Checked(front, Reader(front, ("value",), (None,), "bare"), "time", (), "ms")
        below = [row for row in input_rows(elements[front.name]) if row[0] < until]
        frames.append(
            [
                row
                for part in spread(below, partitions, random, None)
                for row in ran(
                    replace(whole, front=checked), cut(part, random, ("_time", "_tied", "value"))
                )
            ]
        )
    for stage in plan.stages:
        taken = [row for number in stage.datasets for row in frames[number]]
        frames.append(
            [
                row
                for part in spread(taken, partitions, random, 0)
                for row in ran(
                    replace(whole, units=stage.units),
                    cut(sorted(part, key=lambda row: row[:3]), random, BUS),
                )
            ]
        )
    targets = EndTargets(Units(graph))
    last = [(targets.slot_of(row[0]), *row[1:]) for number in plan.last for row in frames[number]]
    return iter(sorted(last, key=lambda row: row[:3]))


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
