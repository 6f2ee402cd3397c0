"""Elements that a user passes to an in-memory runner: checked, and given their global times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any

from emberflow.errors import InputError, shortened
from emberflow.graph.nodes import Front, Graph
from emberflow.values.item import At, GlobalTime, is_time


def timed_elements(
    graph: Graph, elements: Mapping[str, Iterable[Any]]
) -> Iterator[tuple[GlobalTime, Front, Any]]:
    """All elements of all fronts in the order of their global times.

    A list is sorted by time, so its elements may be given in any order. An iterator is read lazily,
    one element at a time, so it has to be in order itself.
    """
    check_names(graph, elements)
    return merge(
        *(_timed(front, elements[name]) for name, front in graph.fronts.items()),
        key=itemgetter(0),
    )


def _timed(front: Front, elements: object) -> Iterator[tuple[GlobalTime, Front, Any]]:
    if not isinstance(elements, Iterable):
        raise InputError(
            f"front {front.name!r} takes an iterable of elements, got {shortened(elements)}."
        )
    numbered: Iterator[tuple[int, int, Any]] = (
        _with_time(front, *entry) for entry in enumerate(elements)
    )
    if isinstance(elements, Sequence):
        numbered = iter(sorted(numbered, key=itemgetter(0)))
    return _increasing(front, numbered)


def _with_time(front: Front, number: int, element: Any) -> tuple[int, int, Any]:
    if not isinstance(element, At):
        return number, number, element
    if not is_time(element.time):
        raise InputError(
            f"front {front.name!r}: element {number}, {shortened(element)}, has the time "
            f"{element.time!r}. A time is an int of 64 bits, in whatever unit the flow counts."
        )
    return element.time, number, element.payload


def _increasing(
    front: Front, numbered: Iterator[tuple[int, int, Any]]
) -> Iterator[tuple[GlobalTime, Front, Any]]:
    before: tuple[int, int] | None = None
    for time, number, payload in numbered:
        if before is not None and time <= before[0]:
            raise InputError(
                f"front {front.name!r}: element {number}, {shortened(payload)}, has the time "
                f"{time} and comes after element {before[1]} of time {before[0]}. Times within a "
                f"front are the order, so they are unique, and an iterator gives them ascending "
                f"(an element without At has its number for a time). Use a finer unit, a list, or "
                f"fronts of their own for simultaneous elements."
            )
        before = (time, number)
        yield GlobalTime(time, front.index), front, payload


def check_names(graph: Graph, elements: Mapping[str, Any]) -> None:
    """Check that every front has elements, and that every name is the name of a front."""
    fronts = ", ".join(map(repr, graph.fronts))
    for name in elements:
        if name not in graph.fronts:
            raise InputError(f"flow {graph.flow!r} has no front {name!r}; its fronts are {fronts}.")
    for name in graph.fronts:
        if name not in elements:
            raise InputError(
                f"flow {graph.flow!r}: no elements for front {name!r}. "
                f"Pass {name}=[...], an empty list for none; the fronts are {fronts}."
            )
