"""Turns: the order in which a worker may settle all that one element begets, one thing after another.

The **turn** of an item is the identity of the transaction that it is inside of; outside of any, it is
its place. What is guaranteed: **what an item begets has its turn or a later one.**

Why turns are needed: the minimal time tells which element is next. One element may beget many
transactions (`flat_map`, a transaction behind another, a retry), or many rounds of a loop, and workers
presume of each other's transactions what is not true yet: a correction meets others that it caused
itself, and N transactions on one key can take far more than N rounds to agree. Bounding speculation by
global times does not help: they all have the same one. So a worker that has spent its budget at the
minimal time goes by turns (`budget`).

Why the guarantee holds:

- inside a transaction everything has one turn: its accesses, votes and aborts, though an abort may
  have a smaller place than the vote it follows from (which is why a turn is not just the place);
- what leaves a transaction is at its identity and a child id from `CLOSED` on, above everything inside
  and below everything behind it. Two things of one element that are not one behind the other differ in
  a child id (a port, the number of an image), so their turns are in the order of their places. So are
  those of two transactions that meet at a key, where only the later one is affected by the other;
- all other machines send at a place only what follows from places up to it.

How: turns are acked like global times, each of which is the least turn of its element. A frame counts
under the least turn in it (`Outbox.frame`), the acker's minimum is a turn, and what has that turn
depends on nothing that is still under way. A worker that has budget left need not know of turns: a
global time is below all turns of its element, so a frame that counts under that holds up more than
it must, and never less. But where a frame counted under a turn, all that it begets must, or the
minimum would go back. That holds behind the cycle too, on workers that do not go by turns themselves
(`Outbox.go_by_turns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from emberflow.graph.nodes import Graph, Merge, Node
from emberflow.graph.transactions import Close, Open, State, way_in
from emberflow.values.item import FlatItem, Place

#: From an item bound for a node to its turn.
TurnOf: TypeAlias = Callable[[FlatItem], Place]


def turns_of(graph: Graph) -> list[TurnOf]:
    """By node: how to tell the turn of an item that is bound for it."""
    return [_turn_at(graph, node) for node in graph.nodes]


def _turn_at(graph: Graph, node: Node) -> TurnOf:
    while isinstance(node, Merge):  # its reader gets the same items
        node = graph.nodes[graph.readers[node.id][0][0]]
    if isinstance(node, State):
        return _of_access
    if isinstance(node, Close):
        return _of_report
    depth, origin = way_in(graph, node)
    if not depth or not isinstance(origin, Open):
        return _of_place
    return lambda item: item[0][:-depth]


def _of_place(item: FlatItem) -> Place:
    return item[0]


def _of_access(item: FlatItem) -> Place:
    """``(key, access, length, payload)``: ``length`` says how much of the place is the identity."""
    place: Place = item[0]
    return place[: item[2][2]]


def _of_report(item: FlatItem) -> Place:
    identity: Place = item[2][0]
    return identity
