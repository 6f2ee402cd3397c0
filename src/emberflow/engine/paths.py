"""Paths through a region: in which order its nodes run, what passes through it at once, whether an item may
go round. All of this follows from the graph.
"""

from __future__ import annotations

from collections.abc import Collection

from emberflow.engine.layout import Layout, Unit, units_of
from emberflow.graph.nodes import Merge
from emberflow.graph.transactions import Access, Close, State


def has_transactions(layout: Layout, unit: Unit) -> bool:
    """Whether transactions are decided in a region."""
    return any(isinstance(layout.graph.nodes[node], Close) for node in unit.nodes)


def nodes_ahead_of(layout: Layout, unit: Unit, node: int) -> frozenset[int]:
    """A node, and the merges of its region whose items are all for it."""
    found = {node}
    merges = [one for one in unit.nodes if isinstance(layout.graph.nodes[one], Merge)]
    while more := [
        one for one in merges if one not in found and found.issuperset(layout.readers[one])
    ]:
        found.update(more)
    return frozenset(found)


def order_of_nodes(layout: Layout, unit: Unit) -> list[int]:
    """The order in which the nodes of a region run: each after those that lead to it, but for aborts.

    Closers come last, so that they see the votes of a slice together.
    """
    order = _depth_first(layout, unit)
    nodes = layout.graph.nodes
    closers = {node for node in unit.nodes if isinstance(nodes[node], Close)}
    closers |= {node for node in unit.nodes if set(_ahead(layout, node)) & closers} - {
        node for node in unit.nodes if isinstance(nodes[node], State)
    }
    return sorted(order, key=lambda node: node in closers)


def passing_nodes(layout: Layout, unit: Unit, others: Collection[int]) -> frozenset[int]:
    """The nodes of a region that run as soon as a node of it sends them something.

    What they give depends on the item alone, so it makes no difference when they run; whether the region
    holds back an item or its images makes none either. Without the ``others``, which have state, what is
    left must not go round.
    """
    inside = [node for node in unit.nodes if node not in others and layout.balance_of(node) is None]
    readers = {
        node: [reader for reader in layout.readers[node] if reader in inside] for node in inside
    }
    return frozenset(
        node for own in units_of(inside, readers) if not own.is_region for node in own.nodes
    )


def has_rounds(layout: Layout, unit: Unit) -> bool:
    """Whether an item may go round: whether there is a loop that a flow closes itself.

    A transaction that reads a state, and then accesses it again, is a cycle of the graph too. But what comes
    of an access goes on from that access alone, so here each answers for itself, and states are left out.
    """
    nodes = layout.graph.nodes
    readers: dict[int, list[int]] = {}
    for node in unit.nodes:
        found = nodes[node]
        if isinstance(found, State):
            for (number, _), reader in zip(found.outputs, layout.readers[node], strict=True):
                readers.setdefault(found.accesses[number], []).append(reader)
        elif not isinstance(found, Access):
            readers[node] = list(_ahead(layout, node))
    inside = [node for node in unit.nodes if not isinstance(nodes[node], State)]
    within = set(inside)
    ahead = {
        node: [reader for reader in readers.get(node, ()) if reader in within] for node in inside
    }
    return any(own.is_region for own in units_of(inside, ahead))


def _ahead(layout: Layout, node: int) -> list[int]:
    """The nodes that read a node. Aborts lead nowhere."""
    found, readers = layout.graph.nodes[node], layout.readers[node]
    if not isinstance(found, Close):
        return list(readers)
    ports = zip(readers, found.outputs, strict=True)
    return [reader for reader, (what, _) in ports if what != "abort"]


def _depth_first(layout: Layout, unit: Unit) -> list[int]:
    """The nodes of a region, each after those that lead to it, as far as a cycle allows."""
    inside = set(unit.nodes)
    done: dict[int, None] = {}
    opened: set[int] = set()
    for root in unit.nodes:
        if root in opened:
            continue
        opened.add(root)
        stack = [(root, iter(_ahead(layout, root)))]
        while stack:
            node, readers = stack[-1]
            for reader in readers:
                if reader in inside and reader not in opened:
                    opened.add(reader)
                    stack.append((reader, iter(_ahead(layout, reader))))
                    break
            else:
                done[node] = None
                stack.pop()
    return list(reversed(done))
