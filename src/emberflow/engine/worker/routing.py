"""Routing: which worker the items of an input go to, and which worker holds a sink's barrier.

What is guaranteed: **the hash of the key alone decides the worker.** Every worker sends the same key to
the same worker. What a route found out about a mark, and about a key whose hash takes long, it
remembers, within a bound: keys repeat, and traces are few.

**Closers** keep nothing that outlives a transaction, so any worker will do that all agree on. A closer
that needs the votes of every transaction runs on the worker that the hash of the transaction's time
decides: votes are work, and this shares it. But mostly a closer receives nothing of a transaction but
its element, and presumes that it commits. Such a closer runs on the worker that the element's front
feeds, where the element is already: anywhere else, the element would cross the network twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from typing import Any

from emberflow.engine.layout import Layout
from emberflow.engine.loops import items as loops
from emberflow.errors import StepError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Sink
from emberflow.graph.transactions import Close, hears_elements_alone
from emberflow.values.hashing import key_hash, owner, stable_id
from emberflow.values.item import FlatItem, hopped
from emberflow.values.owners import Owners

#: Keys whose owner a route remembers. When there are more, it forgets all of them.
_OWNERS_MAX = 200_000
_MARKS_MAX = 10_000


class Route:
    """Where the items of one keyed input go."""

    def __init__(self, layout: Layout, node: int, owners: Owners) -> None:
        workers = owners.workers
        balance = layout.balance_of(node)
        assert balance is not None
        self._node = layout.graph.nodes[node]
        self._key, self._balance = balance
        self._workers = workers
        #: The worker of each slice of the hashes: its owner, or the host of a sink's partition. Empty
        #: where the key is a front: its items go to the worker that the front feeds.
        self._hosts = list(owners.of_slice)
        if isinstance(self._node, Sink):
            sink = self._node
            self._hosts = [barrier_host(sink, each, workers) for each in range(sink.partitions)]
        if isinstance(self._node, Close):
            self._key = loops.closer_key
            if hears_elements_alone(layout.graph, self._node):
                self._key, self._hosts = loops.front_of, []
        self._owners: dict[Any, int] = {}
        #: Marks after the hop to each worker, by the mark before: they are few, items are many.
        self._marks: list[dict[int, int]] = [{} for _ in range(workers)]
        self._hops = [stable_id("hop", self._node.name, worker) for worker in range(workers)]

    def spread(self, items: list[FlatItem], failed: list[FlatItem]) -> dict[int, list[FlatItem]]:
        """The items by the worker that owns their key, each with the hop in its trace."""
        spread: list[list[FlatItem]] = [[] for _ in range(self._workers)]
        key_of, owners, marks = self._key, self._owners, self._marks
        position = 0
        given = (spread, key_of, owners, marks, self._hosts)
        while (position := loops.spread(items, position, *given)) < len(items):
            place, mark, payload = items[position]
            position += 1
            try:
                key = key_of(payload)
                worker = owners.get(key)
                if worker is None:  # a new key
                    worker = self._remembered(key, key_hash(key))
            except Exception:  # a key function that fails, or a key that has no stable hash
                try:
                    worker = self._remembered(*self._balance(payload, (place[0], place[1])))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            spread[worker].append((place, self._marked(worker, mark), payload))
        return {worker: sent for worker, sent in enumerate(spread) if sent}

    def owner_of(self, key: Any) -> int:
        """The worker that owns a key."""
        worker = self._owners.get(key)
        return self._remembered(key, key_hash(key)) if worker is None else worker

    def _marked(self, worker: int, mark: int) -> int:
        known = self._marks[worker]
        if len(known) >= _MARKS_MAX:
            known.clear()
        marked = known[mark] = hopped(mark, self._hops[worker])
        return marked

    def _remembered(self, key: Any, hashed: int) -> int:
        if len(self._owners) >= _OWNERS_MAX:
            self._owners.clear()
        if self._hosts:
            worker = self._hosts[owner(hashed, len(self._hosts))]
        else:
            worker = front_host(key, self._workers)
        self._owners[key] = worker
        return worker


class Routes:
    """All routes of one worker. ``owners`` tell which worker owns which keys.

    Nodes in ``stateful`` call their key function themselves, and so do sinks; a worker that is alone
    has no route to them.
    """

    def __init__(
        self, layout: Layout, index: int, workers: int, owners: Owners, stateful: Container[int]
    ) -> None:
        self.index = index
        self.workers = workers
        self._sinks = layout.sinks
        #: Nodes whose items stay on this worker, whatever their key.
        self._staying: set[int] = set()
        self._routes = {
            node: Route(layout, node, owners)
            for node in layout.nodes
            if layout.balance_of(node) is not None
            and not (workers == 1 and (node in stateful or node in layout.sinks))
        }
        #: Where the items of an input without a key go. What is not listed stays where it is.
        self._hosts = {
            node: barrier_host(sink, 0, workers)
            for node, sink in layout.sinks.items()
            if sink.key is None
        }
        self._hosts[layout.failures] = 0
        # A route has called the key function of what comes to a sink with one partition.
        self._sink_balances = {
            sink.id: balance_of(sink, sink.key)
            for sink in layout.sinks.values()
            if sink.key is not None and (sink.partitions > 1 or workers == 1)
        }

    def keep(self, nodes: Collection[int], *, here: bool) -> None:
        """From now on the items of these nodes stay here whatever their key; or they do not."""
        if here:
            self._staying.update(nodes)
        else:
            self._staying.difference_update(nodes)

    def owner_of(self, node: int) -> Callable[[Any], int]:
        """Who owns a key of a node."""
        return self._routes[node].owner_of

    def split(
        self, reader: int, items: list[FlatItem], fail: Callable[[int, list[FlatItem]], None]
    ) -> tuple[list[FlatItem], dict[int, list[FlatItem]]]:
        """Which of these items stay here, and which go to which worker.

        ``fail`` is called with the reader and those whose key cannot be told, before anything else is
        sent.
        """
        route = self._routes.get(reader)
        if route is not None and reader not in self._staying:
            failed: list[FlatItem] = []
            by_worker = route.spread(items, failed)
            if failed:
                fail(reader, failed)
            return by_worker.pop(self.index, []), by_worker
        host = self._hosts.get(reader, self.index)
        return (items, {}) if host == self.index else ([], {host: items})

    def by_partition(
        self, node: int, items: list[FlatItem], failed: list[FlatItem]
    ) -> dict[int, list[FlatItem]]:
        """Items that have come to a sink, by the partition that the hash of their key decides."""
        balance = self._sink_balances.get(node)
        if balance is None:
            return {0: items}
        partitions = self._sinks[node].partitions
        found: dict[int, list[FlatItem]] = {}
        for item in items:
            place, mark, payload = item
            try:
                _, hashed = balance(payload, (place[0], place[1]))
            except StepError as error:
                failed.append((place, mark, error))
            else:
                found.setdefault(owner(hashed, partitions), []).append(item)
        return found


def front_host(front: int, workers: int) -> int:
    """The worker that a partition of a front feeds, by the number of the partition."""
    return front % workers


def barrier_host(sink: Sink, partition: int, workers: int) -> int:
    """The worker that holds the barrier of a partition: the one that owns its range of hashes."""
    if sink.partitions == 1:
        return sink.id % workers
    return partition * workers // sink.partitions
