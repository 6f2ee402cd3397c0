"""The channels of asynchronous barrier snapshotting: what markers travel on.

The snapshot paper speaks of tasks and of channels between them. Here **a task is an operation on a
worker, and a channel is an edge of the dataflow from one worker**: ``(edge, sender)``.

Why not a channel for each link between two workers, as on the wire? One worker runs the whole graph
for its range of hashes, so with any keyed step each worker sends to each other one: the graph *of
workers* is cyclic even where the dataflow is not. A worker that blocked a link until the marker has
come on all of them would block items of early steps behind the marker of late ones; or, if it took all
links for back edges, would have to log what is in flight on all of them, which is just what the paper
set out to avoid. Operations on workers, on the other hand, form a graph that is acyclic where the
dataflow is: an edge leads from ``(operation, worker)`` to ``(reader, other worker)``, and readers come
later in the topological order. So Algorithm 1 needs no log there. The number of the edge tells apart
what a link carries, and a link is FIFO, so each of its channels is.

- An edge *crosses* if its reader has a key, or is a sink that lives on a certain worker: then its
  reader has a channel from every worker. Any other edge stays on its worker: one channel.
- A front has no channel. The runner tells it of the marker (the paper's ``Nil`` input).
- A sink is a task only on the workers that hold partitions of it.
- *Back edges* are those of the graph, found by depth-first search from the fronts. They lead to
  merges, which have no key, so they never cross; nothing below relies on that.
"""

from __future__ import annotations

from typing import NamedTuple

from emberflow.engine.layout import Layout
from emberflow.engine.worker.routing import barrier_host

#: ``(edge, sender)``
Channel = tuple[int, int]


class Edge(NamedTuple):
    """From an operation to the one that reads it. ``number`` is its place in `Channels.edges`."""

    number: int
    source: int
    reader: int
    is_back: bool
    crosses: bool


class Channels:
    """The edges of a flow, and the channels that each task on one worker reads.

    >>> import emberflow as ef
    >>> flow = ef.Flow("count")
    >>> flow.front("words").key_by(str).count().sink("counts")
    >>> channels = Channels(Layout(flow.graph()), 0, 2)
    >>> to_count, to_sink = channels.edges
    >>> channels.regular[to_count.reader], channels.hosts[to_sink.reader]
    ([(0, 0), (0, 1)], (1,))
    """

    def __init__(self, layout: Layout, index: int, workers: int) -> None:
        graph = layout.graph
        self.edges: list[Edge] = []
        #: By node: its outputs, a port each.
        self.out: dict[int, tuple[Edge, ...]] = {}
        #: By node: the channels that are aligned, and those that are logged.
        self.regular: dict[int, list[Channel]] = {}
        self.back: dict[int, list[Channel]] = {}
        everyone = tuple(range(workers))
        #: By node: the workers that have a task of it.
        self.hosts: dict[int, tuple[int, ...]] = {
            node: everyone
            if node not in layout.sinks
            else tuple(
                sorted(
                    {
                        barrier_host(layout.sinks[node], partition, workers)
                        for partition in range(layout.sinks[node].partitions)
                    }
                )
            )
            for node in layout.nodes
        }
        for node in layout.nodes:
            out = []
            for port, reader in enumerate(layout.readers[node]):
                fused = layout.fused.get(node)
                source = (node, port) if fused is None else (fused.exit, fused.exit_port)
                edge = Edge(
                    len(self.edges),
                    node,
                    reader,
                    graph.readers[source[0]][source[1]] in graph.back_edges,
                    reader in layout.sinks or layout.balance_of(reader) is not None,
                )
                self.edges.append(edge)
                out.append(edge)
                if index in self.hosts[reader]:
                    channels = self.back if edge.is_back else self.regular
                    senders = everyone if edge.crosses else (index,)
                    channels.setdefault(reader, []).extend(
                        (edge.number, sender) for sender in senders
                    )
            self.out[node] = tuple(out)
        #: The nodes that have a task on this worker.
        self.tasks = [node for node in layout.nodes if index in self.hosts[node]]
