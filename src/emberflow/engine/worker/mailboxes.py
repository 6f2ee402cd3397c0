"""Mailboxes: what waits for each node of the graph on one worker, and in which order nodes run.

What is guaranteed:

- *FIFO.* Batches stay in the order in which they came. Where a node has several, they are merged by a
  stable sort: two items of one place leave in the order they came.
- *Topological order.* A node runs after all nodes that lead to it, with everything that came for it by
  then. So a grouping sees the items of a batch together, whichever way they took.

The nodes of a region (a cycle of the graph) have no such order. A region runs as one unit: `run` calls
it, and it takes what waits for its nodes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import chain

from emberflow.engine.layout import Layout
from emberflow.engine.loops.items import sort_by_place
from emberflow.values.item import FlatItem


class Mailboxes:
    """The mailboxes of one worker, by node.

    With ``by_place`` the batches of a node are merged in the order of places; without, they are
    concatenated as they came.
    """

    def __init__(self, layout: Layout, *, by_place: bool) -> None:
        self._units = layout.units
        self._rank = layout.rank
        self._by_place = by_place
        self._waiting: dict[int, list[list[FlatItem]]] = {}
        #: A heap of the ranks of units that have to run.
        self._ready: list[int] = []

    def put(self, node: int, items: list[FlatItem]) -> None:
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = [items]
            heappush(self._ready, self._rank[node])
        else:
            waiting.append(items)

    def put_back(self, node: int, items: list[FlatItem]) -> None:
        """Undo a `take` within the run of a region, which takes the items again before it ends."""
        self._waiting[node] = [items]

    def wake(self, rank: int) -> None:
        """Run this region in the next `run`, whether or not something waits for its nodes."""
        heappush(self._ready, rank)

    def batches(self, node: int) -> list[list[FlatItem]] | None:
        """What waits for a node, without taking it; None if nothing does."""
        return self._waiting.get(node)

    def take(self, node: int) -> list[FlatItem]:
        """All that waits for a node, as one batch."""
        batches = self._waiting.pop(node, None)
        if batches is None:
            return []
        if len(batches) == 1:
            return batches[0]
        merged = list(chain.from_iterable(batches))
        if self._by_place:
            sort_by_place(merged)
        return merged

    def run(
        self,
        run_node: Callable[[int, list[FlatItem]], None],
        regions: Mapping[int, Callable[[], None]],
    ) -> None:
        """Run nodes and, by their rank, regions, until nothing waits."""
        ready, units = self._ready, self._units
        while ready:
            rank = heappop(ready)
            while ready and ready[0] == rank:  # several nodes of a region that have something
                heappop(ready)
            run_region = regions.get(rank)
            if run_region is not None:
                run_region()
                continue
            (node,) = units[rank].nodes
            items = self.take(node)
            if items:
                run_node(node, items)
