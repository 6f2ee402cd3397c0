"""The elements that each version of a flow serves: those of its interval of time.

Fronts may come and go with versions. An element of a front that the version of its time does not have
would be lost without a word, so it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from emberflow.dsl.versions import Versions, told
from emberflow.errors import InputError, OnError
from emberflow.fronts.protocol import is_front
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import CarryPlan
from emberflow.runners.elements import Entry, graph_for, timed_elements
from emberflow.values.item import FRONT_MIN, TIME_MAX, GlobalTime


class Tick(Protocol):
    """The interval of time that a version serves: when it begins, and what it takes over."""

    @property
    def at(self) -> GlobalTime: ...

    @property
    def plan(self) -> CarryPlan: ...


class Served(NamedTuple):
    version: Tick
    graph: Graph
    entries: list[Entry]


def served(
    versions: Versions, elements: Mapping[str, Iterable[Any]], on_error: OnError = "fail"
) -> Iterator[Served]:
    """For each version its graph and its elements, in order."""
    graphs = [(version, version.flow.graph(on_error=on_error)) for version in versions]
    return served_graphs(graphs, elements)


def served_graphs(
    versions: Sequence[tuple[Tick, Graph]], elements: Mapping[str, Iterable[Any]]
) -> Iterator[Served]:
    """The same for graphs."""
    known = {name: _readable_again(given) for name, given in elements.items()}
    ticks, graphs = [tick for tick, _ in versions], [graph for _, graph in versions]
    check_fronts(graphs, known)
    ends = [*[tick.at for tick in ticks][1:], GlobalTime(TIME_MAX + 1, FRONT_MIN)]
    result, total, taken = [], dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    for (tick, described), end in zip(versions, ends, strict=True):
        own = {name: given for name, given in known.items() if name in described.fronts}
        graph = graph_for(described, own)
        entries = []
        counts = dict.fromkeys(own, 0)
        for entry in timed_elements(graph, own):
            counts[entry[1].name] += 1
            if tick.at <= entry[0] < end:
                taken[entry[1].name] += 1
                entries.append(entry)
        total.update(counts)
        result.append(Served(tick, graph, entries))
    for name, count in total.items():
        if taken[name] < count:
            without = [
                told_tick
                for graph, told_tick in zip(graphs, told_ticks(ticks), strict=True)
                if name not in graph.fronts
            ]
            raise InputError(
                f"front {name!r} has {count - taken[name]} elements of times at which the version of "
                f"flow {graphs[0].flow!r} has no such front ({', '.join(without)}). Leave them "
                f"out, or keep the front in that version."
            )
    return iter(result)


def check_fronts(graphs: Iterable[Graph], names: Iterable[str]) -> None:
    """Every name is that of a front of some version."""
    graphs = list(graphs)
    fronts = dict.fromkeys(name for graph in graphs for name in graph.fronts)
    for name in names:
        if name not in fronts:
            raise InputError(
                f"no version of flow {graphs[0].flow!r} has a front {name!r}; their fronts are "
                f"{', '.join(map(repr, fronts))}."
            )


def told_ticks(ticks: Iterable[Tick]) -> list[str]:
    """The interval that each version serves, for people."""
    times = [told(tick.at) for tick in ticks]
    begins = ["", *(f"from {time}" for time in times[1:])]
    ends = [*(f" up to {time}" for time in times[1:]), " on"]
    return [f"{begin}{end}".strip() for begin, end in zip(begins, ends, strict=True)]


def _readable_again(given: Any) -> Any:
    return given if is_front(given) or not isinstance(given, Iterator) else list(given)
