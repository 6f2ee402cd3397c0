"""The elements that each version of a flow serves: those of its interval of time.

Fronts may come and go with versions. An element of a front that the version of its time does not have
would be lost without a word, so it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from emberflow.dsl.versions import Version, Versions, told
from emberflow.errors import InputError, OnError
from emberflow.fronts.protocol import is_front
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import Entry, graph_for, timed_elements
from emberflow.values.item import FRONT_MIN, TIME_MAX, GlobalTime


class Served(NamedTuple):
    version: Version
    graph: Graph
    entries: list[Entry]


def served(
    versions: Versions, elements: Mapping[str, Iterable[Any]], on_error: OnError = "fail"
) -> Iterator[Served]:
    """For each version its graph and its elements, in order."""
    known = {name: _readable_again(given) for name, given in elements.items()}
    check_fronts(versions, known)
    ends = [*[version.at for version in versions][1:], GlobalTime(TIME_MAX + 1, FRONT_MIN)]
    result, total, taken = [], dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    for version, end in zip(versions, ends, strict=True):
        own = {name: given for name, given in known.items() if name in version.graph.fronts}
        graph = graph_for(version.flow.graph(on_error=on_error), own)
        entries = []
        counts = dict.fromkeys(own, 0)
        for entry in timed_elements(graph, own):
            counts[entry[1].name] += 1
            if version.at <= entry[0] < end:
                taken[entry[1].name] += 1
                entries.append(entry)
        total.update(counts)
        result.append(Served(version, graph, entries))
    for name, count in total.items():
        if taken[name] < count:
            without = [
                tick
                for version, tick in zip(versions, ticks_of(versions), strict=True)
                if name not in version.graph.fronts
            ]
            raise InputError(
                f"front {name!r} has {count - taken[name]} elements of times at which the version of "
                f"flow {versions[0].flow.name!r} has no such front ({', '.join(without)}). Leave them "
                f"out, or keep the front in that version."
            )
    return iter(result)


def check_fronts(versions: Versions, names: Iterable[str]) -> None:
    """Every name is that of a front of some version."""
    fronts = dict.fromkeys(name for version in versions for name in version.graph.fronts)
    for name in names:
        if name not in fronts:
            raise InputError(
                f"no version of flow {versions[0].flow.name!r} has a front {name!r}; their fronts are "
                f"{', '.join(map(repr, fronts))}."
            )


def ticks_of(versions: Versions) -> list[str]:
    """The interval that each version serves, for people."""
    begins = [f"from {told(version.at)}" for version in versions]
    ends = [*(f" up to {told(version.at)}" for version in list(versions)[1:]), " on"]
    begins[0] = ""
    return [f"{begin}{end}".strip() for begin, end in zip(begins, ends, strict=True)]


def _readable_again(given: Any) -> Any:
    return given if is_front(given) or not isinstance(given, Iterator) else list(given)
