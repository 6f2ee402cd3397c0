"""The fused cycle: whatever arrives, it has sent what the cycle would have sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import Options, Simulation
from emberflow.values.item import FlatItem, Place
from tests.effort import examples, few
from tests.engine.helpers import Sent, Step, batches, by_key, only_machine, scripts
from tests.strategies import OPERATORS, random_flow


def parity(number: int) -> int:
    return number % 2


def start(number: int) -> tuple[int, ...]:
    if number == 6:
        raise ValueError("6 starts nothing")
    return (number,)


def add(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Remembers all, in order, so that nothing wrong can look right. Fails on some orders only."""
    if numbers[-1] == number:
        raise ValueError("twice in a row")
    return (*numbers, number)


def count(total: int, number: int) -> int:
    """Comes out as it was for many changes: a replay may stop there."""
    return (total + number) % 3


def reduce_graph(
    first: Callable[[Any], Any], combine: Callable[[Any, Any], Any], *, with_key: bool = False
) -> Graph:
    flow = ef.Flow("reduce")
    stream = flow.front("in").key_by(parity)
    stream.reduce(first=first, combine=combine, with_key=with_key).sink("out")
    return flow.graph()


def without_maps(graph: Graph) -> Graph:
    """The same, with only the cycle fused: its items are triples then."""
    (reduction,) = graph.reductions
    return replace(graph, reductions=(replace(reduction, pair=None, value=None),))


class Expected:
    """The accumulators and the failures of what is there, straight from the definition."""

    def __init__(
        self,
        live: dict[tuple[Place, int], Any],
        first: Callable[[Any], Any],
        combine: Callable[[Any, Any], Any],
    ) -> None:
        self.accumulators: dict[tuple[Place, int], Any] = {}
        self.failures: set[tuple[Place, int]] = set()
        for bucket in by_key(live, parity).values():
            accumulator: Any = None
            for number, (place, mark, payload) in enumerate(bucket):
                try:
                    accumulator = combine(accumulator, payload) if number else first(payload)
                except ValueError:
                    self.failures.add((place, mark))
                    break  # without an accumulator what follows yields nothing
                self.accumulators[place, mark] = accumulator


class Machine:
    """A reduction of either kind, with payloads in and accumulators out."""

    def __init__(self, graph: Graph, *, keyed: bool) -> None:
        self.keyed = keyed
        self.machine: ReduceMachine = only_machine(graph if keyed else without_maps(graph))
        self.sent = Sent()
        self.failed = Sent()

    def process(self, batch: list[FlatItem]) -> list[list[FlatItem]]:
        failed: list[FlatItem] = []
        if not self.keyed:
            batch = [(place, mark, (parity(n), False, n)) for place, mark, n in batch]
        (output,) = self.machine.process(batch, failed)
        self.sent.take(output)
        self.failed.take(failed)
        return [output]

    def accumulators(self) -> dict[tuple[Place, int], Any]:
        """By the places of what they were made from. What left has a longer place."""
        return {
            (place[: -4 if self.keyed else -2], mark): payload if self.keyed else payload[2]
            for (place, mark), payload in self.sent.live.items()
        }

    def is_as(self, expected: Expected) -> bool:
        return (
            self.accumulators() == expected.accumulators
            and set(self.failed.live) == expected.failures
        )


@pytest.mark.parametrize("keyed", [True, False], ids=["payloads", "triples"])
@given(scripts())
@settings(max_examples=examples(300), deadline=None)
def test_after_every_batch_all_accumulators_and_failures_are_right(
    keyed: bool, script: list[Step]
) -> None:
    machine, live = Machine(reduce_graph(start, add), keyed=keyed), {}
    for batch in batches(script, live):
        machine.process(batch)
        assert machine.is_as(Expected(live, start, add))
    assert sum(machine.machine.sizes()) == len(live)


@given(scripts())
@settings(max_examples=examples(200), deadline=None)
def test_a_replay_stops_where_nothing_changes_and_not_before(script: list[Step]) -> None:
    machine, live = Machine(reduce_graph(lambda n: n, count), keyed=True), {}
    for batch in batches(script, live):
        before, came = dict(machine.sent.live), {place for place, _, _ in batch}
        (output,) = machine.process(batch)
        for place, mark, payload in output:
            in_vain = before.get((place, mark)) == payload and place[:-4] not in came
            assert mark & 1 or not in_vain
        assert machine.is_as(Expected(live, lambda n: n, count))


@given(st.lists(st.tuples(scripts(most=8), st.integers(0, 2)), max_size=6))
@settings(max_examples=examples(200), deadline=None)
def test_trimming_keeps_the_last_final_version_and_changes_nothing(
    rounds: list[tuple[list[Step], int]],
) -> None:
    machine, live = Machine(reduce_graph(lambda n: n, lambda a, n: (a, n)), keyed=True), {}
    minimal = (0, 0)
    for script, further in rounds:
        for batch in batches([step for step in script if step[0][0] >= minimal], live):
            machine.process(batch)
            assert machine.is_as(Expected(live, lambda n: n, lambda a, n: (a, n)))
        minimal = (minimal[0] + further, 0)
        machine.machine.trim(minimal)
        expected = []
        for bucket in by_key(live, parity).values():
            final = sum(place < minimal for place, _, _ in bucket)
            expected.append(len(bucket) - max(0, final - 1))
        assert sorted(machine.machine.sizes()) == sorted(expected)
    machine.machine.trim((9, 9))
    assert max(machine.machine.sizes(), default=0) <= 1
    assert not machine.machine.touched


def test_what_leaves_has_the_place_that_the_cycle_gives_it() -> None:
    """Pair, combine, broadcast by port 1, value: each adds a child id. The key is the item's own."""
    machine = Machine(reduce_graph(lambda n: n, max, with_key=True), keyed=True)
    assert machine.machine.process([((5, 0, 3), 4, True), ((6, 0), 4, 1)], []) == [
        [((5, 0, 3, 0, 0, 1, 0), 4, (True, True)), ((6, 0, 0, 0, 1, 0), 4, (1, True))]
    ]


@pytest.mark.parametrize("late", [False, True])
def test_a_key_that_fails_is_a_failure_and_its_tombstone_takes_that_back(late: bool) -> None:
    flow = ef.Flow("reduce")
    keyed = flow.front("in").key_by(lambda number: 1 // number)
    keyed.reduce(first=lambda n: n, combine=max).sink("out")
    machine, failed, place = only_machine(flow.graph()), Sent(), (5, 3)
    machine.process([((6, 3), 0, 1)], [])
    for mark in (0, 1):
        errors: list[Any] = []
        batch = [((4, 3), mark, 1), (place, mark, 0)] if late else [(place, mark, 0)]
        machine.process(batch, errors)
        assert [item[:2] for item in errors] == [(place, mark)]
        assert isinstance(errors[0][2], ef.FunctionError)
        assert errors[0][2].global_time == place
        failed.take(errors)
    assert not failed.live


def test_one_late_item_costs_each_later_one_once() -> None:
    """Item by item, the cycle would correct each several times over."""
    machine = Machine(reduce_graph(lambda n: (n,), lambda a, n: (*a, n)), keyed=True)
    machine.process([((time, 0), 0, 2 * time) for time in range(1, 11)])
    machine.process([((0, 0), 0, 0), ((0, 0, 1), 0, 8)])
    assert machine.sent.tombstones == machine.machine.replays == 10


STATEFUL = {
    "reduce",
    "fold",
    "aggregate",
    "distinct",
    "time_window",
    "session",
    "count_window",
    "join",
    "changes",
    "changes_join",
}


@pytest.mark.parametrize("chunk", range(4))
def test_the_fused_cycle_is_the_unfused_graph(chunk: int) -> None:
    """Under the same network, both give the same output and nothing but the work differs."""
    seeds = (seed for seed in range(chunk, 10_000, 4))
    compared = 0
    while compared < few(15):
        seed = next(seeds)
        flow, elements = random_flow(Random(f"cycle {seed}"))
        graph = flow.graph()
        if len(STATEFUL & set(flow.name.split())) < 2 or not graph.reductions:
            continue
        options = Options.drawn(seed)
        partly = tuple(replace(r, pair=None, value=None) for r in graph.reductions)
        outputs = [
            Simulation(replace(graph, reductions=reductions), options)
            .run(timed_elements(graph, elements))
            .outputs
            for reductions in (graph.reductions, partly, ())
        ]
        assert outputs[0] == outputs[1] == outputs[2] == ef.run(flow, **elements), (
            f"seed {seed}: {flow.name}"
        )
        compared += 1


def test_the_names_of_stateful_operators_are_up_to_date() -> None:
    assert set(OPERATORS) >= STATEFUL
