"""Graphs whose functions fail for some payloads: maps, keys, reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import emberflow as ef
from emberflow.dsl.operators.reduce import Combined, Paired
from emberflow.graph.nodes import Graph, Node
from emberflow.graph.nodes import Map as MapNode
from emberflow.graph.transactions import Access, Close
from tests.simulation.cases import Case


def failing(
    function: Callable[..., Any], random: Random, moduli: Sequence[int] = (2, 5, 20)
) -> Callable[..., Any]:
    """The same function, except that it raises for some payloads.

    A combine raises for some payloads, or for some payloads with some accumulators, including
    accumulators that only speculation makes.
    """
    modulus = random.choice(moduli)
    rest = random.randrange(modulus)
    first = random.choice([0, -1])

    def called(*arguments: Any) -> Any:
        if crc32(repr(arguments[first:]).encode()) % modulus == rest:
            raise ValueError(f"{arguments[first:]!r} is not welcome")
        return function(*arguments)

    return called


def scheduling(function: Callable[..., Any], random: Random) -> Callable[..., Any]:
    """A first or a combine that sometimes returns an `At`, which cannot leave a reduce."""
    modulus = random.choice([2, 5])

    def called(*arguments: Any) -> Any:
        made = function(*arguments)
        return ef.At(99, made) if crc32(repr(arguments).encode()) % modulus == 0 else made

    return called


def with_failures(graph: Graph, random: Random, *, most: int = 2) -> Graph:
    """The same graph with functions that raise: maps, keys, or the functions of a reduction."""
    own = {
        node
        for reduction in graph.reductions
        for node in (reduction.pair, reduction.combine, reduction.value, reduction.group)
    }
    nodes = list(graph.nodes)
    reductions = list(graph.reductions)
    plain = [node for node in nodes if isinstance(node, MapNode) and node.id not in own]
    keyed = [node for node in nodes if node.id not in own and any(i.key for i in node.inputs)]
    kinds = ["map"] * bool(plain) + ["key"] * bool(keyed) + ["reduction"] * 2 * bool(reductions)
    for kind in random.choices(kinds, k=random.randint(1, most)) if kinds else ():
        if kind == "map":
            node = nodes[random.choice(plain).id]
            assert isinstance(node, MapNode)
            nodes[node.id] = replace(node, function=failing(node.function, random))
        elif kind == "key":
            chosen = nodes[random.choice(keyed).id]
            nodes[chosen.id] = with_failing_key(chosen, random)
        else:
            number = random.randrange(len(reductions))
            reductions[number] = with_failing_reduction(nodes, reductions[number], random)
    return replace(graph, nodes=tuple(nodes), reductions=tuple(reductions))


def with_failing_key(node: Node, random: Random) -> Node:
    (source,) = node.inputs
    assert source.key is not None
    key = replace(source.key, function=failing(source.key.function, random))
    return replace(node, inputs=(replace(source, key=key),))


def with_failing_reduction(nodes: list[Node], reduction: Any, random: Random) -> Any:
    """A key, first or combine that raises, in the reduction and in the nodes that it replaces."""
    what = random.choice(["first", "combine_function", "key"])
    if what == "key" and (reduction.pair is None or reduction.key is None):
        what = "first"
    # Only in a plain reduce may accumulators be of any type; the others are ours.
    kinds = [failing] if what == "key" or reduction.key is None else [failing, failing, scheduling]
    reduction = replace(reduction, **{what: random.choice(kinds)(getattr(reduction, what), random)})
    if what == "key":
        nodes[reduction.pair] = replace(nodes[reduction.pair], function=Paired(reduction.key))
    else:
        combined = Combined(reduction.first, reduction.combine_function)
        nodes[reduction.combine] = replace(nodes[reduction.combine], function=combined)
    return reduction


def diverting(seed: int) -> Case:
    """The case of a seed with functions that fail, and errors diverted."""
    case = Case.of(200_000 + seed)
    graph = with_failures(case.graph, Random(f"diverted {seed}"), most=4)
    return replace(case, graph=graph, on_error="divert", again=f"diverting({seed})")


def with_failing_transactions(graph: Graph, random: Random) -> Graph:
    """The same graph, in which maps, keys, updates, checks or constraints of transactions raise.

    They raise rarely, so that many of these inputs occur in speculation only.
    """

    def rarely(function: Any) -> Any:
        if function is None or random.random() < 0.4:
            return function
        return failing(function, random, (30, 120, 500))

    def changed(node: Node) -> Node:
        if isinstance(node, Access):
            check = node.check and replace(node.check, function=rarely(node.check.function))
            by = replace(node.by, function=rarely(node.by.function))
            return replace(node, by=by, function=rarely(node.function), check=check)
        if isinstance(node, Close):
            requires = [replace(one, function=rarely(one.function)) for one in node.requires]
            return replace(node, requires=tuple(requires))
        if isinstance(node, MapNode):
            return replace(node, function=rarely(node.function))
        return node

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))
