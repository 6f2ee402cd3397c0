"""Which transactions have to wait for each other, decided from the graph alone.

Transactions take effect in the order of places. A batch does not speculate: a transaction that may
see another one's effect has to run after it, and only the graph says beforehand which may. There
are three kinds, the cheapest first:

- **Apart.** If a transaction is decided by a single access, or cannot fail, each of its accesses
  takes effect no matter what the others do. If all transactions of a state are like that, the state
  is a keyed pass like a reduction: only the order within a key matters.
- **One key.** A transaction that can fail takes effect as a whole, so all its states are in one
  *region* (see `regions`), with all other transactions on them. But if every transaction of the
  region has one key for all its accesses, and the element gives the key before any value is read,
  transactions with different keys share nothing. Then the region is partitioned by that key.
- **Everything else** is one region in one task, in the order of places. A key may depend on a value
  read just before, so it is known only once all earlier transactions are done.

A region of transactions holds everything between opening and closing. Each transaction is one row
in the shuffle, no matter what it does, and runs from opening to closing at once; nothing else in
the region has a place in between.

A region grows until it is complete: a transaction that touches one of its states joins it, with all
its other states; so does every node on a path from the region back into it, because otherwise the
passes would have no order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emberflow.engine.layout import Layout, Unit, units_of
from emberflow.graph.nodes import Broadcast, Graph, Map, Node
from emberflow.graph.transactions import Access, Close, Open, State


@dataclass(frozen=True, slots=True)
class TransactionNodes:
    """The nodes of one transaction in the graph."""

    open: Open
    close: Close | None
    accesses: tuple[Access, ...]
    #: All nodes from opening to closing, without the states.
    nodes: frozenset[int]
    states: frozenset[int]

    @property
    def is_apart(self) -> bool:
        """Whether each of its accesses takes effect no matter what the others do."""
        if self.accesses[0].alone:
            return True
        if self.close is None:  # nothing to decide: see `graph.transactions`
            return True
        return not self.close.requires and not any(access.check for access in self.accesses)


def transactions_of(graph: Graph) -> list[TransactionNodes]:
    """All transactions of a graph."""
    closes = {node.transaction: node for node in graph.nodes if isinstance(node, Close)}
    states = {
        access: node for node in graph.nodes if isinstance(node, State) for access in node.accesses
    }
    return [
        _transaction(graph, node, closes.get(node.transaction), states)
        for node in graph.nodes
        if isinstance(node, Open)
    ]


def _transaction(
    graph: Graph, open_: Open, close: Close | None, states: dict[int, State]
) -> TransactionNodes:
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
    return TransactionNodes(open_, close, tuple(accesses), frozenset(nodes), touched)


def results_of(graph: Graph, state: State, access: Access) -> list[int]:
    """The nodes that read the result of an access, within its transaction."""
    return [
        reader
        for (number, what), (reader, _) in zip(state.outputs, graph.readers[state.id], strict=True)
        if what == "result" and state.accesses[number] == access.id
    ]


class Ordering:
    """The units of a graph, with transactions in regions where they need one."""

    def __init__(self, layout: Layout) -> None:
        self.graph = layout.graph
        self._layout = layout
        self.transactions = transactions_of(layout.graph)
        #: Transactions that run as a whole, in a region, by the node of their opening.
        self.whole: dict[int, TransactionNodes] = {}
        #: The readers of each node, with extra edges that put everything that must run together on
        #: a cycle.
        self.joined: dict[int, tuple[int, ...]] = {}
        self.units = self._grown()

    def _grown(self) -> list[Unit]:
        more = [transaction for transaction in self.transactions if not transaction.is_apart]
        while True:
            self.whole |= {transaction.open.id: transaction for transaction in more}
            self.joined = self._joined()
            units = units_of(self._layout.nodes, self.joined)
            inside = {node for unit in units if unit.is_region for node in unit.nodes}
            more = [
                transaction
                for transaction in self.transactions
                if transaction.open.id not in self.whole
                and (transaction.nodes | transaction.states) & inside
            ]
            if not more:
                return units

    def _joined(self) -> dict[int, tuple[int, ...]]:
        readers = dict(self._layout.readers)
        for open_, transaction in self.whole.items():
            members = (transaction.nodes | transaction.states) - {open_}
            readers[open_] = (*readers[open_], *sorted(members))
            for node in members:
                readers[node] = (*readers[node], open_)
        return readers

    def spreading_key(self, unit: Unit, entry: int) -> Callable[[Any], Any] | None:
        """The key to partition a region's input by, if each of its transactions has just one."""
        if entry not in self.whole:
            return None
        here = [transaction for open_, transaction in self.whole.items() if open_ in unit.nodes]
        keys = {transaction.open.id: _key_of(self.graph, transaction) for transaction in here}
        # A transaction opened by the output of another one may have another key.
        within = any(transaction.open.inputs[0].node in unit.nodes for transaction in here)
        return None if within or None in keys.values() else keys[entry]


def _key_of(graph: Graph, transaction: TransactionNodes) -> Callable[[Any], Any] | None:
    """From an element to the only key that its transaction touches; None if there may be more."""
    first = transaction.accesses[0]
    way = _way_to(graph, transaction, first)
    for access in transaction.accesses:
        if (
            access.by.function is not first.by.function
            or _way_to(graph, transaction, access) != way
        ):
            return None
    return None if way is None else _Key(first.by.function, _functions(graph, way), first.carried)


class _Key:
    """A key function after some maps."""

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


def _way_to(graph: Graph, transaction: TransactionNodes, access: Access) -> tuple[int, ...] | None:
    """The maps from the opening to an access; None unless all are one-to-one and without a time."""
    way: list[int] = []
    node: Node = graph.nodes[access.inputs[0].node]
    while node is not transaction.open:
        if isinstance(node, Map) and node.mode == "one" and not node.timed:
            way.append(node.id)
        elif not isinstance(node, Broadcast):
            return None
        node = graph.nodes[node.inputs[0].node]
    return tuple(reversed(way))


def _functions(graph: Graph, way: tuple[int, ...]) -> tuple[Callable[[Any], Any], ...]:
    maps = [graph.nodes[node] for node in way]
    return tuple(node.function for node in maps if isinstance(node, Map))
