"""Cycles in directed graphs: strong components and shortest paths.

A graph is a mapping from a node to a collection of its successors; the values of a nested mapping are
ignored. Nothing here is recursive, because a path may be as long as a history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

Graph: TypeAlias = Mapping[int, Iterable[int]]


def strong_components(graph: Graph) -> Iterator[list[int]]:
    """The strong components of two or more nodes: sets of nodes that all reach each other (Tarjan).

    Every cycle, except for an edge from a node to itself, is within one of them.

    >>> sorted(map(sorted, strong_components({1: [2], 2: [3], 3: [1, 4], 4: [5], 5: []})))
    [[1, 2, 3]]
    """
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
                    if len(component) > 1:
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
