"""Ranges: which frames concern the keys of one worker alone, all the way to the barriers.

What is guaranteed: **all that can follow from an item at a node of `owned_nodes` stays on the worker that it
came to, until it leaves for a barrier of which `Ranges.reaching` says so.** So such a frame need not hold back
the output of all: it is acked under the range of the worker that it goes to, and the barriers that this range
cannot reach do not wait for it (*early key availability*).

**The proof** is by the graph, from the node on. A node that has no key passes things on where it is. An
input with a key is a hop: it leads to the same worker if its key is surely that of the item it follows from
(`values.proofs`), because the owner table has one worker for a key. What is behind it must stay as well. A
reduction and a grouping give items of the key that they got; so do ticks, which wait in the machine that
made them. Where nothing is proven, a node is not owned: transactions and regions, whose items go where
their values say, and all that leads to them or to an input with another key.

**Sinks** end every path. If the key of a sink is surely that of the item, a range can reach the partitions
that its slices overlap. Otherwise it can reach all partitions, which is right, and of no use.

**Failures** may come of any function. Those that end the run hold back all output from when they are known
(`progress.acker`): output of other ranges may have passed them, and nothing that follows from the item that
failed could have been in it. The errors sink is a barrier that all ranges reach (`worker.barriers`).

Where the proof gains nothing, because no sink has several partitions by the key, no node is owned, and
nothing is any different.
"""

from __future__ import annotations

from typing import NamedTuple

from emberflow.engine.layout import Layout
from emberflow.graph.nodes import Broadcast, Graph, Group, Map, Merge
from emberflow.values.hashing import hash_ranges, owner
from emberflow.values.owners import SLICES, Owners
from emberflow.values.proofs.functions import applied
from emberflow.values.proofs.shapes import KEY, UNKNOWN, Keyed, Parts, Several, Shape


class Reached(NamedTuple):
    """A sink that a path ends at, and whether its key is surely that of the item that the path began with."""

    sink: int
    by_key: bool


def owned_nodes(layout: Layout) -> dict[int, frozenset[Reached]]:
    """The nodes from which on nothing goes to another worker but to barriers, and these barriers' sinks.

    >>> import emberflow as ef
    >>> flow = ef.Flow("counts")
    >>> counts = flow.front("words").key_by(lambda word: word).count(name="count")
    >>> counts.key_by(lambda pair: pair[0]).sink("counts", partitions=2)
    >>> layout = Layout(flow.graph())
    >>> [layout.graph.nodes[node].name for node in owned_nodes(layout)]
    ['count/reduce/pair']
    """
    found: dict[int, frozenset[Reached] | None] = {}
    for node in reversed(layout.nodes):
        if layout.balance_of(node) is not None and node not in layout.sinks:
            _paths(layout, node, found)
    owned = {node: reached for node, reached in sorted(found.items()) if reached is not None}
    is_of_use = any(
        by_key and layout.sinks[sink].partitions > 1
        for reached in owned.values()
        for sink, by_key in reached
    )
    return owned if is_of_use else {}


def sinks_by_range(graph: Graph) -> set[int]:
    """The sinks whose partitions do not wait for other keys than their own."""
    reached = {each for own in owned_nodes(Layout(graph)).values() for each in own}
    others = {sink for sink, by_key in reached if not by_key}
    several = {sink.id for sink in graph.sinks.values() if sink.partitions > 1}
    return {sink for sink, _ in reached} & several - others


def _paths(
    layout: Layout, node: int, found: dict[int, frozenset[Reached] | None]
) -> frozenset[Reached] | None:
    """The ends of all paths from an input with a key, or None if one of them leads elsewhere."""
    if node in found:
        return found[node]
    found[node] = None
    reached: set[Reached] = set()
    begun = _from_key(layout, node)
    if begun is None:
        return None
    waiting = _read(layout, node, begun)
    seen: dict[int, list[Shape]] = {}
    while waiting:
        reader, shape = waiting.pop()
        known = seen.setdefault(reader, [])
        if shape in known:
            continue
        known.append(shape)
        if reader in layout.sinks:
            key = layout.sinks[reader].key
            reached.add(Reached(reader, key is not None and applied(key.function, shape) == KEY))
            continue
        balance = layout.balance_of(reader)
        if balance is not None:
            further = None
            if applied(balance[0], shape) == KEY:
                further = _paths(layout, reader, found)
            if further is None:
                return None
            reached |= further
            continue
        given = _passed(layout, reader, shape)
        if given is None:
            return None
        waiting += _read(layout, reader, given)
    found[node] = frozenset(reached)
    return found[node]


def _read(layout: Layout, node: int, shape: Shape) -> list[tuple[int, Shape]]:
    return [(reader, shape) for reader in layout.readers[node]]


def _from_key(layout: Layout, node: int) -> Shape | None:
    """What a node with a key gives of an item that has come to it."""
    if layout.units[layout.rank[node]].is_region:
        return None
    if node in layout.fused:
        fused = layout.fused[node]
        if fused.keyed:
            return Parts((KEY, UNKNOWN)) if fused.reduction.with_key else UNKNOWN
        triple = Parts((KEY, UNKNOWN, UNKNOWN))
        group = layout.graph.nodes[fused.reduction.group]
        assert isinstance(group, Group)
        return triple if applied(group.key.function, triple) == KEY else UNKNOWN
    own = layout.graph.nodes[node]
    return Several(Keyed(own.key.function)) if isinstance(own, Group) else None


def _passed(layout: Layout, node: int, shape: Shape) -> Shape | None:
    """What a node without a key gives of an item; None if it may go anywhere from there."""
    if layout.units[layout.rank[node]].is_region or node in layout.fused:
        return None
    own = layout.graph.nodes[node]
    if isinstance(own, Broadcast | Merge):
        return shape
    if not isinstance(own, Map):
        return None
    if own.mode == "keep":
        return shape
    if own.timed:
        return UNKNOWN
    made = applied(own.function, shape)
    return made if own.mode == "one" else _each_of(made)


def _each_of(made: Shape) -> Shape:
    """What is known of each that a function gives of several."""
    if isinstance(made, Several):
        return made.each
    if isinstance(made, Parts) and made.of and all(part == made.of[0] for part in made.of):
        return made.of[0]
    return UNKNOWN


class Ranges:
    """What one worker has to know: the owned nodes, and which ranges can reach its barriers."""

    __slots__ = ("nodes", "reaching")

    def __init__(self, layout: Layout, owners: Owners) -> None:
        owned = {} if owners.workers == 1 else owned_nodes(layout)
        #: Frames for these nodes are acked under the range of the worker that they go to.
        self.nodes = frozenset(owned)
        #: By sink and partition: the workers whose ranges can reach it.
        self.reaching = ranges_reaching(layout, owned, owners)


def ranges_reaching(
    layout: Layout, owned: dict[int, frozenset[Reached]], owners: Owners
) -> dict[tuple[int, int], tuple[int, ...]]:
    """By sink and partition: the workers whose ranges can reach it."""
    found: dict[tuple[int, int], set[int]] = {}
    for sink, by_key in {reached for own in owned.values() for reached in own}:
        partitions = layout.sinks[sink].partitions
        of_slices = [range(partitions)] * SLICES
        if by_key:
            of_slices = [
                range(owner(own.low, partitions), owner(own.high, partitions) + 1)
                for own in hash_ranges(SLICES)
            ]
        for worker, own in zip(owners.of_slice, of_slices, strict=True):
            for partition in own:
                found.setdefault((sink, partition), set()).add(worker)
    return {barrier: tuple(sorted(workers)) for barrier, workers in found.items()}
