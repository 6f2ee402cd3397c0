"""Which transactions have to wait for each other, seen from the graph alone.

Transactions take effect in the order of places. In a batch nothing is speculated, so whoever may see
what another one did has to run after it, and known beforehand is only what the graph says. Three
kinds, from the cheapest:

- **Apart.** A transaction that is decided alone, or that cannot fail, has nothing to decide: each of
  its accesses takes effect whatever the others do. Then a state is a keyed pass like a reduction:
  all that matters is the order within a key. So is a state all of whose transactions are like that.
- **One key.** A transaction that can fail takes effect as a whole, so all its states are in one
  *region* (see `regions`), with all other transactions over them. But where every transaction of the
  region has one key for all its accesses, known from its element before any value is read, two
  transactions with different keys share nothing. The region is spread by that key.
- **Everything else** is one region in one task, in the order of places. A key may depend on a value
  read just before, so it is known only when all transactions before have been through.

A region of transactions holds all that is between opening and closing. One row goes through the
shuffle for each transaction, whatever it does, and each runs from its opening to its closing at
once; nothing else in the region has a place between.

It grows until it is whole: a transaction that touches a state of it is in it, with its other states;
and so is what lies on a way from the region back into it, because there would be no order of passes
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emberflow.engine.layout import Layout, Unit, units_of
from emberflow.graph.nodes import Broadcast, Graph, Map, Node
from emberflow.graph.transactions import Access, Close, Open, State


@dataclass(frozen=True, slots=True)
class Drawn:
    """A transaction as it is in the graph."""

    open: Open
    close: Close | None
    accesses: tuple[Access, ...]
    #: All from the opening to the closing, but for the states.
    nodes: frozenset[int]
    states: frozenset[int]

    @property
    def is_apart(self) -> bool:
        """Whether each of its accesses takes effect whatever the others do."""
        if self.accesses[0].alone:
            return True
        if self.close is None:  # nothing to be decided: see `graph.transactions`
            return True
        return not self.close.requires and not any(access.check for access in self.accesses)


def drawn_transactions(graph: Graph) -> list[Drawn]:
    """All transactions of a graph."""
    closes = {node.transaction: node for node in graph.nodes if isinstance(node, Close)}
    states = {
        access: node for node in graph.nodes if isinstance(node, State) for access in node.accesses
    }
    return [
        _drawn(graph, node, closes.get(node.transaction), states)
        for node in graph.nodes
        if isinstance(node, Open)
    ]


def _drawn(graph: Graph, open_: Open, close: Close | None, states: dict[int, State]) -> Drawn:
    nodes = {open_.id} if close is None else {open_.id, close.id}
    accesses: list[Access] = []
    stack = [reader for reader, _ in graph.readers[open_.id]]
    while stack:
        node = graph.nodes[stack.pop()]
        nodes.add(node.id)
        if isinstance(node, Access):
            accesses.append(node)
            stack += results_of(graph, states[node.id], node)
        elif isinstance(node, Map | Broadcast):
            stack += [reader for reader, _ in graph.readers[node.id]]
    touched = frozenset(states[access.id].id for access in accesses)
    return Drawn(open_, close, tuple(accesses), frozenset(nodes), touched)


def results_of(graph: Graph, state: State, access: Access) -> list[int]:
    """Who reads the values that an access leads to, within its transaction."""
    return [
        reader
        for (number, what), (reader, _) in zip(state.outputs, graph.readers[state.id], strict=True)
        if what == "result" and state.accesses[number] == access.id
    ]


class Ordering:
    """The units of a graph, with every transaction that needs it within a region."""

    def __init__(self, layout: Layout) -> None:
        self.graph = layout.graph
        self._layout = layout
        self.drawn = drawn_transactions(layout.graph)
        #: By the node of its opening: what runs as a whole, in a region.
        self.whole: dict[int, Drawn] = {}
        #: Who reads whom, with a cycle through all that has to run as one.
        self.joined: dict[int, tuple[int, ...]] = {}
        self.units = self._grown()

    def _grown(self) -> list[Unit]:
        more = [drawn for drawn in self.drawn if not drawn.is_apart]
        while True:
            self.whole |= {drawn.open.id: drawn for drawn in more}
            self.joined = self._joined()
            units = units_of(self._layout.nodes, self.joined)
            inside = {node for unit in units if unit.is_region for node in unit.nodes}
            more = [
                drawn
                for drawn in self.drawn
                if drawn.open.id not in self.whole and (drawn.nodes | drawn.states) & inside
            ]
            if not more:
                return units

    def _joined(self) -> dict[int, tuple[int, ...]]:
        readers = dict(self._layout.readers)
        for open_, drawn in self.whole.items():
            members = (drawn.nodes | drawn.states) - {open_}
            readers[open_] = (*readers[open_], *sorted(members))
            for node in members:
                readers[node] = (*readers[node], open_)
        return readers

    def spreading_key(self, unit: Unit, entry: int) -> Callable[[Any], Any] | None:
        """The key of what enters a region here, if every transaction in it has exactly one."""
        if entry not in self.whole:
            return None
        here = [drawn for open_, drawn in self.whole.items() if open_ in unit.nodes]
        keys = {drawn.open.id: _key_of(self.graph, drawn) for drawn in here}
        # What comes out of one and opens another may have another key.
        within = any(drawn.open.inputs[0].node in unit.nodes for drawn in here)
        return None if within or None in keys.values() else keys[entry]


def _key_of(graph: Graph, drawn: Drawn) -> Callable[[Any], Any] | None:
    """From an element to the one key that its transaction touches; None if there may be several."""
    first = drawn.accesses[0]
    way = _way_to(graph, drawn, first)
    for access in drawn.accesses:
        if access.by.function is not first.by.function or _way_to(graph, drawn, access) != way:
            return None
    return None if way is None else _Key(first.by.function, _functions(graph, way), first.carried)


class _Key:
    """A key function behind maps."""

    def __init__(
        self, function: Callable[[Any], Any], maps: tuple[Callable[[Any], Any], ...], carried: bool
    ) -> None:
        self._function = function
        self._maps = maps
        self._carried = carried

    def __call__(self, payload: Any) -> Any:
        for function in self._maps:
            payload = function(payload)
        return self._function(payload[1] if self._carried else payload)


def _way_to(graph: Graph, drawn: Drawn, access: Access) -> tuple[int, ...] | None:
    """The maps from the opening to an access; None if they aren't all one-to-one, without a time."""
    way: list[int] = []
    node: Node = graph.nodes[access.inputs[0].node]
    while node is not drawn.open:
        if isinstance(node, Map) and node.mode == "one" and not node.timed:
            way.append(node.id)
        elif not isinstance(node, Broadcast):
            return None
        node = graph.nodes[node.inputs[0].node]
    return tuple(reversed(way))


def _functions(graph: Graph, way: tuple[int, ...]) -> tuple[Callable[[Any], Any], ...]:
    maps = [graph.nodes[node] for node in way]
    return tuple(node.function for node in maps if isinstance(node, Map))
