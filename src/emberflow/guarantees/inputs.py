"""The input of a run: elements with their global times, from memory or from a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow.errors import InputError, shortened
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.elements import LateElement, MalformedElement, timed_elements
from emberflow.values.item import GlobalTime

#: The elements of a log: the global time of each, the name of its front, and its payload.
LoggedElements: TypeAlias = Iterable[tuple[GlobalTime, str, Any]]

#: Elements by front, as `emberflow.run` takes them, or from a log.
Inputs: TypeAlias = Mapping[str, Iterable[Any]] | LoggedElements


def entering(graph: Graph, inputs: Inputs) -> list[tuple[GlobalTime, Front, Any]]:
    """All elements in the order of their global times.

    Late ones enter where the graph has them enter, if it has a sink for them. Malformed ones are left
    out: they enter nowhere.
    """
    if isinstance(inputs, Mapping):
        return _entering(graph, timed_elements(graph, inputs))
    elements = _entering(graph, (_element(graph, entry) for entry in inputs))
    elements.sort(key=itemgetter(0))
    for (before, _, one), (after, _, other) in pairwise(elements):
        if before == after:
            raise InputError(
                f"two elements have the global time {after}: {shortened(one)} and "
                f"{shortened(other)}. A global time is given once; does a log hold both an element "
                "and its replay?"
            )
    return elements


def _entering(
    graph: Graph, elements: Iterable[tuple[GlobalTime, Front, Any]]
) -> list[tuple[GlobalTime, Front, Any]]:
    late = None if graph.late_node is None else graph.nodes[graph.late_node]
    found: list[tuple[GlobalTime, Front, Any]] = []
    for at, front, payload in elements:
        if payload.__class__ is LateElement:
            if isinstance(late, Front):
                found.append((at, late, payload.record))
        elif payload.__class__ is not MalformedElement:
            found.append((at, front, payload))
    return found


def _element(graph: Graph, entry: Any) -> tuple[GlobalTime, Front, Any]:
    try:
        (time, index), name, payload = entry
    except (TypeError, ValueError):
        raise InputError(
            "inputs are a dict from fronts to elements, or (global time, front, payload) each, "
            f"with a global time of (time, front index); got {shortened(entry)}."
        ) from None
    if name not in graph.fronts:
        fronts = ", ".join(map(repr, graph.fronts))
        raise InputError(f"flow {graph.flow!r} has no front {name!r}; its fronts are {fronts}.")
    return GlobalTime(time, index), graph.fronts[name], payload
