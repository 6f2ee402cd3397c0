"""Routing: where the items of a keyed input go, and which worker holds the barrier of a partition.

The key's hash decides the worker, and nothing else does: the same key goes to the same worker, on
every worker that sends it there. What was found out about a mark, and about a key whose hash takes
long, is remembered, within a bound, because keys repeat and traces are few.

**Closers** keep nothing that outlives a transaction, so any worker will do that all agree on. One that
needs the votes of every transaction is on the worker that the hash of the transaction's time decides:
votes are work, and so it is shared. But mostly a closer hears of a transaction nothing but its element,
and presumes that it commits. Then it is on the worker that the element's front feeds, where the element
is already: else it would be sent to another worker only to be sent on from there.
"""

from __future__ import annotations

from typing import Any

from emberflow.engine.layout import Layout
from emberflow.engine.loops import items as loops
from emberflow.errors import StepError
from emberflow.graph.nodes import Sink
from emberflow.graph.transactions import Close, hears_elements_alone
from emberflow.values.hashing import key_hash, owner, stable_id
from emberflow.values.item import FlatItem, hopped
from emberflow.values.shares import Shares

#: Keys whose owner is remembered, for each keyed input. Past that it is forgotten and begun anew.
_OWNERS_MAX = 200_000
_MARKS_MAX = 10_000


class Route:
    """Where the items of a keyed input go, remembered by key."""

    def __init__(self, layout: Layout, node: int, shares: Shares) -> None:
        workers = max(shares) + 1
        balance = layout.balance_of(node)
        assert balance is not None
        self._node = layout.graph.nodes[node]
        self._key, self._balance = balance
        self._workers = workers
        #: The worker of each slice of the hashes: its owner, or the host of a sink's partition. Empty
        #: where the key is a front: that goes to the worker it feeds.
        self._hosts = list(shares)
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
                if worker is None:  # not met before
                    worker = self._remembered(key, key_hash(key))
            except Exception:  # a key function that fails, or a key that has no stable hash
                try:
                    worker = self._remembered(*self._balance(payload, (place[0], place[1])))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            spread[worker].append((place, self._marked(worker, mark), payload))
        return {worker: sent for worker, sent in enumerate(spread) if sent}

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


def front_host(front: int, workers: int) -> int:
    """The worker that a front feeds, or a partition of one: each has a number."""
    return front % workers


def barrier_host(sink: Sink, partition: int, workers: int) -> int:
    """The worker that holds the barrier of a partition: the one that owns its range of hashes."""
    if sink.partitions == 1:
        return sink.id % workers
    return partition * workers // sink.partitions
