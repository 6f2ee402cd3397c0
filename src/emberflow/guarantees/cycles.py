"""Cycles in directed graphs: strong components, reachability and shortest paths.

A graph is a mapping from a node to a collection of its successors; the values of a nested mapping are
ignored. Nothing here is recursive, because a path may be as long as a history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

Graph: TypeAlias = Mapping[int, Iterable[int]]

#: Targets that `closing` follows at once: a bit for each, in each strong component.
_TARGETS_AT_ONCE = 4_096


def strong_components(graph: Graph) -> Iterator[list[int]]:
    """The strong components of two or more nodes: sets of nodes that all reach each other.

    Every cycle, except for an edge from a node to itself, is within one of them.

    >>> sorted(map(sorted, strong_components({1: [2], 2: [3], 3: [1, 4], 4: [5], 5: []})))
    [[1, 2, 3]]
    """
    return (component for component in _components(graph) if len(component) > 1)


def closing(graph: Graph, edges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those of some edges that close a cycle: the graph has a path from their end to their start.

    >>> list(closing({1: [2], 2: [3], 3: []}, [(3, 1), (1, 3), (2, 1)]))
    [(3, 1), (2, 1)]
    """
    components = list(_components(graph))  # those that an edge leads to come first
    number_of = {node: number for number, nodes in enumerate(components) for node in nodes}
    waiting = [(one, other) for one, other in edges if one in number_of and other in number_of]
    for begin in range(0, len(waiting), _TARGETS_AT_ONCE):
        some = waiting[begin : begin + _TARGETS_AT_ONCE]
        bits = {one: 1 << bit for bit, one in enumerate(dict.fromkeys(one for one, _ in some))}
        #: By component: the bits of the targets that it reaches.
        reached: list[int] = []
        for number, nodes in enumerate(components):
            found = 0
            for node in nodes:
                found |= bits.get(node, 0)
                for other in graph.get(node, ()):
                    if number_of[other] != number:
                        found |= reached[number_of[other]]
            reached.append(found)
        yield from ((one, other) for one, other in some if reached[number_of[other]] & bits[one])


def _components(graph: Graph) -> Iterator[list[int]]:
    """All strong components (Tarjan). One that another has an edge to comes before the other."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    stacked: set[int] = set()

    def entered(node: int) -> tuple[int, Iterator[int]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        stacked.add(node)
        return node, iter(graph.get(node, ()))

    for root in graph:
        if root in index:
            continue
        walk = [entered(root)]
        while walk:
            node, others = walk[-1]
            for other in others:
                if other not in index:
                    walk.append(entered(other))
                    break
                if other in stacked:
                    low[node] = min(low[node], index[other])
            else:
                walk.pop()
                if walk:
                    ahead = walk[-1][0]
                    low[ahead] = min(low[ahead], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    stacked.difference_update(component)
                    yield component


def shortest_path(graph: Graph, start: int, end: int, inside: Collection[int]) -> list[int]:
    """The nodes of a shortest path within ``inside``, both ends included; empty if there is none.

    >>> shortest_path({1: [2, 3], 2: [3], 3: [4]}, 1, 4, {1, 2, 3, 4})
    [1, 3, 4]
    """
    came = {start: start}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == end:
            path = [node]
            while path[-1] != start:
                path.append(came[path[-1]])
            return path[::-1]
        for other in graph.get(node, ()):
            if other in inside and other not in came:
                came[other] = node
                waiting.append(other)
    return []
