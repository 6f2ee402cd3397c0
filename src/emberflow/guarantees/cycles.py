"""Cycles in directed graphs: where they are, and a shortest one.

A graph is a mapping from a node to the nodes that its edges lead to; whatever these map to in turn is
not looked at. Nothing here is recursive: a chain may be as long as a history is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

Graph: TypeAlias = Mapping[int, Iterable[int]]


def knots(graph: Graph) -> Iterator[list[int]]:
    """The sets of two or more nodes that all reach each other (Tarjan's strong components).

    Every cycle, but for an edge from a node to itself, is within one of them.

    >>> sorted(map(sorted, knots({1: [2], 2: [3], 3: [1, 4], 4: [5], 5: []})))
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
                    knot = [stack.pop()]
                    while knot[-1] != node:
                        knot.append(stack.pop())
                    stacked.difference_update(knot)
                    if len(knot) > 1:
                        yield knot


def shortest_path(graph: Graph, start: int, end: int, inside: Collection[int]) -> list[int]:
    """The nodes of a shortest way, both ends included; none if there is no way inside.

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
