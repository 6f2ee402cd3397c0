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
from emberflow.graph.calls import Balance, balance_of
from emberflow.graph.nodes import Sink
from emberflow.graph.transactions import Close, hears_elements_alone
from emberflow.values.hashing import key_hash, owner, stable_id
from emberflow.values.item import FlatItem, hopped
from emberflow.values.owners import Owners

#: Keys whose owner a route remembers. When there are more, it forgets all of them.
_OWNERS_MAX = 200_000
_MARKS_MAX = 10_000


class Dealer:
    """Deals out the items of one keyed input: by the worker, or the partition, that its hash decides."""

    def __init__(
        self, key: Callable[[Any], Any], balance: Balance, hosts: list[int], count: int
    ) -> None:
        """To so many. ``hosts`` has one for each range of hashes, the ranges being of one length; it is empty
        where something else than the hash decides."""
        self._key, self._balance = key, balance
        self._hosts = hosts
        self._count = count
        self._owners: dict[Any, int] = {}
        #: What marks become on the way to each, by the mark before: they are few, items are many.
        self._marks: list[dict[int, int]] = [{} for _ in range(count)]

    def spread(self, items: list[FlatItem], failed: list[FlatItem]) -> dict[int, list[FlatItem]]:
        """The items by who gets them, each with the mark that it has there."""
        spread: list[list[FlatItem]] = [[] for _ in range(self._count)]
        key_of, owners, marks = self._key, self._owners, self._marks
        position = 0
        given = (spread, key_of, owners, marks, self._hosts)
        while (position := loops.spread(items, position, *given)) < len(items):
            place, mark, payload = items[position]
            position += 1
            try:
                key = key_of(payload)
                owner = owners.get(key)
                if owner is None:  # a new key
                    owner = self._remembered(key, key_hash(key))
            except Exception:  # a key function that fails, or a key that has no stable hash
                try:
                    owner = self._remembered(*self._balance(payload, (place[0], place[1])))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            spread[owner].append((place, self._remembered_mark(owner, mark), payload))
        return {owner: own for owner, own in enumerate(spread) if own}

    def owner_of(self, key: Any) -> int:
        """Who gets the items of a key."""
        owner = self._owners.get(key)
        return self._remembered(key, key_hash(key)) if owner is None else owner

    def _marked(self, owner: int, mark: int) -> int:
        """What a mark becomes on the way."""
        return mark

    def _decided(self, key: Any) -> int:
        """Who gets a key, where its hash does not decide."""
        raise NotImplementedError

    def _remembered_mark(self, owner: int, mark: int) -> int:
        known = self._marks[owner]
        if len(known) >= _MARKS_MAX:
            known.clear()
        marked = known[mark] = self._marked(owner, mark)
        return marked

    def _remembered(self, key: Any, hashed: int) -> int:
        if len(self._owners) >= _OWNERS_MAX:
            self._owners.clear()
        hosts = self._hosts
        found = hosts[owner(hashed, len(hosts))] if hosts else self._decided(key)
        self._owners[key] = found
        return found


class Route(Dealer):
    """Where the items of one keyed input go. Each has the hop in its trace."""

    def __init__(self, layout: Layout, node: int, owners: Owners) -> None:
        workers = owners.workers
        balance = layout.balance_of(node)
        assert balance is not None
        own = layout.graph.nodes[node]
        key = balance[0]
        #: The worker of each slice of the hashes: its owner, or the host of a sink's partition. Empty
        #: where the key is a front: its items go to the worker that the front feeds.
        hosts = list(owners.of_slice)
        if isinstance(own, Sink):
            hosts = [barrier_host(own, each, workers) for each in range(own.partitions)]
        if isinstance(own, Close):
            key = loops.closer_key
            if hears_elements_alone(layout.graph, own):
                key, hosts = loops.front_of, []
        super().__init__(key, balance[1], hosts, workers)
        self._hops = [stable_id("hop", own.name, worker) for worker in range(workers)]

    def _marked(self, owner: int, mark: int) -> int:
        return hopped(mark, self._hops[owner])

    def _decided(self, key: Any) -> int:
        return front_host(key, self._count)


def _parter(sink: Sink) -> Dealer:
    """Deals out what has come to a sink by its partitions."""
    assert sink.key is not None
    partitions = sink.partitions
    return Dealer(
        sink.key.function, balance_of(sink, sink.key), list(range(partitions)), partitions
    )


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
        #: What has come to a sink, by its partitions. Where a sink has one partition here, a route has called
        #: the key function of all that comes, and has found it to be of that partition.
        self._parters: dict[int, Dealer] = {}
        self._only_partition: dict[int, int] = {}
        for sink in layout.sinks.values():
            own = [
                partition
                for partition in range(sink.partitions)
                if barrier_host(sink, partition, workers) == index
            ]
            if sink.key is not None and (len(own) > 1 or workers == 1):
                self._parters[sink.id] = _parter(sink)
            elif own:
                self._only_partition[sink.id] = own[0]

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
        parter = self._parters.get(node)
        if parter is None:
            return {self._only_partition.get(node, 0): items}  # failures have one
        return parter.spread(items, failed)


def front_host(front: int, workers: int) -> int:
    """The worker that a partition of a front feeds, by the number of the partition."""
    return front % workers


def barrier_host(sink: Sink, partition: int, workers: int) -> int:
    """The worker that holds the barrier of a partition: the one that owns its range of hashes."""
    if sink.partitions == 1:
        return sink.id % workers
    return partition * workers // sink.partitions
