"""The rows of a sink are sorted, also if a task may hold only a few of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

import emberflow as ef
from emberflow.rows.codec import decode
from emberflow.rows.inputs import Checked
from emberflow.rows.outputs import SinkColumns
from emberflow.rows.paths import encoded_path
from emberflow.rows.readers import Reader
from emberflow.runners.batch.passes.passes import Pass, passed
from emberflow.runners.batch.plan.stages import Units, plan_of
from emberflow.runners.batch.shuffle import bus, output_order
from emberflow.runners.batch.shuffle.output_order import OutputSorter
from tests.batch.local import cut, input_rows

SCHEMA = pa.schema([("n", pa.int64()), ("_time", pa.int64()), ("_path", pa.binary())])


@pytest.mark.parametrize("depth", [1, 3, 12])  # one word, several, and too long for numbers
@pytest.mark.parametrize("most", [1 << 20, 2_000, 300])
def test_rows_come_out_in_order(monkeypatch: pytest.MonkeyPatch, most: int, depth: int) -> None:
    monkeypatch.setattr(output_order, "_BYTES_MAX", most)
    monkeypatch.setattr(output_order, "_FILES_MAX", 3)
    monkeypatch.setattr(output_order, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(output_order, "_ROWS", 5)
    for seed in range(10):
        random = Random(seed)
        places = sorted(
            {
                (
                    random.choice((0, 1, -5, 2**62, -(2**62))),
                    encoded_path(
                        random.choice((0, 1, 256, 65_536, -1, 2**40))
                        for _ in range(random.randint(1, depth))
                    ),
                )
                for _ in range(random.choice((1, 30, 300)))
            }
        )
        rows = [(number, *place) for number, place in enumerate(places)]
        shuffled = random.sample(rows, len(rows))
        sorter = OutputSorter(SCHEMA)
        for start in range(0, len(rows), 7):
            part = list(zip(*shuffled[start : start + 7], strict=True))
            arrays = [pa.array(list(c), f.type) for c, f in zip(part, SCHEMA, strict=True)]
            sorter.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        found = list(sorter.ended())
        assert all(batch.num_rows <= 5 for batch in found)
        assert pa.Table.from_batches(found).to_pydict()["n"] == list(range(len(rows))), seed


def test_a_pass_yields_the_rows_of_its_sink_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_order, "_BYTES_MAX", 500)
    flow = ef.Flow("count")
    flow.front("numbers").key_by(lambda n: n % 7).count().sink("out")
    graph = flow.graph()
    sink = graph.sinks["out"]
    plan = plan_of(Units(graph), frozenset({sink.id}))
    (front,) = plan.fronts
    checked = Checked(front, Reader(front, ("value",), (None,), "bare"), "time", (), "ms")
    random = Random(1)
    numbers = [random.randrange(100) for _ in range(200)]
    rows = random.sample(input_rows(numbers), len(numbers))
    begun = Pass(graph, sink, front=checked)
    chunks = pa.Table.from_batches(passed(begun, cut(rows, random, ("_time", "_tied", "value"))))
    assert chunks.schema.names == [part.split()[0] for part in bus.BUS_SCHEMA.split(", ")]
    given = Pass(
        graph, sink, units=plan.stages[0].units, columns=SinkColumns(sink, None), ordered=True
    )
    in_order: list[Any] = []
    for batch in passed(given, iter(chunks.sort_by("lane").to_batches())):
        in_order += map(decode, batch.column(0).to_pylist())
    assert in_order == ef.run(flow, numbers=numbers)["out"]
