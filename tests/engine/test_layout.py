"""The layout: an order to run nodes in, the cycles that have none, and what may be fused."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.paths import has_rounds
from emberflow.graph.nodes import Graph, Input, Map
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import Options, Simulation
from emberflow.values.functions import itself
from tests.strategies import random_flow


def reachable(readers: dict[int, tuple[int, ...]]) -> dict[int, set[int]]:
    """From each node, all that can be reached by at least one edge. Plain and slow."""
    found = {node: set(ahead) for node, ahead in readers.items()}
    changed = True
    while changed:
        changed = False
        for node, ahead in found.items():
            further = set().union(ahead, *(found[reader] for reader in ahead))
            changed = changed or further != ahead
            found[node] = further
    return found


def transfers(*, again: bool) -> ef.Flow:
    """Each transaction writes where what it read leads to; with ``again``, refused ones come back."""
    flow = ef.Flow("transfers")
    rows = flow.state("rows", default=0)
    given = flow.front("transfers")
    loop = flow.loop() if again else None
    with (given if loop is None else ef.merge(given, loop)).transaction() as tx:
        read = tx.key_by(lambda transfer: transfer[0]).read(rows)
        further = read.key_by(lambda read: (read[0][1], read[1])).read(rows)
        further.map(lambda read: read[1]).key_by(itself).update(rows, max, check=bool)
    if loop is not None:
        loop.close(tx.rejected.map(lambda refused: refused.element))
    tx.committed.sink("done")
    return flow


@pytest.mark.parametrize("again", [False, True])
def test_a_transaction_that_reads_what_it_read_for_has_no_rounds(again: bool) -> None:
    layout = Layout(transfers(again=again).graph())
    regions = [unit for unit in layout.units if unit.is_region]
    assert regions
    assert any(has_rounds(layout, unit) for unit in regions) == again


@pytest.mark.parametrize("fused", [True, False])
def test_units_are_the_cycles_and_the_single_nodes_in_topological_order(fused: bool) -> None:
    regions = 0
    for seed in range(120):
        graph = random_flow(Random(f"layout {seed}"))[0].graph()
        layout = Layout(graph if fused else replace(graph, reductions=()))
        ahead = reachable(layout.readers)
        assert sorted(layout.nodes) == sorted(node for unit in layout.units for node in unit.nodes)
        for unit in layout.units:
            (first, *_) = unit.nodes
            cycle = {node for node in ahead[first] if first in ahead[node]}
            assert set(unit.nodes) == (cycle or {first})
            assert unit.is_region == bool(cycle)
            regions += unit.is_region
        for node, readers in layout.readers.items():
            for reader in readers:
                assert layout.rank[node] <= layout.rank[reader]
                if layout.rank[node] == layout.rank[reader]:
                    assert layout.units[layout.rank[node]].is_region
    assert regions > 20


def test_without_fusing_every_reduction_is_a_region() -> None:
    graph = word_count().graph()
    assert not any(unit.is_region for unit in Layout(graph).units)
    (region,) = (u for u in Layout(replace(graph, reductions=())).units if u.is_region)
    (reduction,) = graph.reductions
    assert set(region.nodes) == {
        reduction.merge,
        reduction.group,
        reduction.combine,
        reduction.broadcast,
    }


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    flow.front("words").key_by(itself).count().sink("counts")
    return flow


def with_a_map_behind(graph: Graph, node: int, port: int = 0) -> Graph:
    """The same graph with a map that does nothing behind an output."""
    between = Map(
        id=len(graph.nodes),
        name="between",
        inputs=(Input(node, port),),
        where=graph.nodes[node].where,
        function=itself,
        given=(),
        mode="one",
    )
    reader, number = graph.readers[node][port]
    inputs = list(graph.nodes[reader].inputs)
    inputs[number] = replace(inputs[number], node=between.id, port=0)
    nodes = list(graph.nodes)
    nodes[reader] = replace(nodes[reader], inputs=tuple(inputs))
    return replace(graph, nodes=(*nodes, between))


WORDS = {"words": [*"abracadabra"]}


@pytest.mark.parametrize("behind", ["merge", "group", "combine", "broadcast"])
def test_a_cycle_with_something_put_between_is_not_fused(behind: str) -> None:
    graph = word_count().graph()
    (reduction,) = graph.reductions
    changed = with_a_map_behind(graph, getattr(reduction, behind))
    layout = Layout(changed)
    assert layout.fused == {}
    assert sum(unit.is_region for unit in layout.units) == 1
    assert outputs(changed) == ef.run(word_count(), **WORDS)


@pytest.mark.parametrize("behind", ["pair", "broadcast"])
def test_maps_around_the_cycle_with_something_between_stay_outside(behind: str) -> None:
    graph = word_count().graph()
    (reduction,) = graph.reductions
    node = getattr(reduction, behind)
    changed = with_a_map_behind(graph, node, port=graph.nodes[node].ports - 1)
    layout = Layout(changed)
    assert list(layout.fused) == [reduction.merge]
    assert {reduction.pair, reduction.value} <= set(layout.nodes)
    assert outputs(changed) == ef.run(word_count(), **WORDS)


def outputs(graph: Graph) -> dict[str, list[object]]:
    simulation = Simulation(graph, Options.drawn(5, workers=3))
    return simulation.run(timed_elements(graph, WORDS)).outputs


def test_a_keyed_input_anywhere_is_a_hop() -> None:
    """Also of a map and of a sink, not only of a grouping."""
    flow = ef.Flow("hops")
    plain, keyed = flow.front("in").broadcast(2)
    keyed.key_by(itself).map(itself, name="spread").key_by(itself).sink("keyed", partitions=2)
    plain.map(itself, name="stays").sink("plain")
    layout = Layout(flow.graph())
    hops = {
        layout.graph.nodes[node].name
        for node in layout.nodes
        if layout.balance_of(node) is not None
    }
    assert hops == {"spread", "keyed"}
