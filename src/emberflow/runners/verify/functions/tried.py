"""What is tried: a flow, or versions of it that follow one another.

It travels to other processes, so it is made of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import Versions
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import CarryPlan
from emberflow.runners.elements import timed_elements
from emberflow.runners.served import Served, served_graphs
from emberflow.values.item import GlobalTime


class TriedVersion(NamedTuple):
    """A version, from when on it serves, and what it takes over."""

    at: GlobalTime
    graph: Graph
    plan: CarryPlan


class TriedVersions(NamedTuple):
    """Versions of a flow that follow one another."""

    versions: tuple[TriedVersion, ...]

    @property
    def flow(self) -> str:
        return self.versions[0].graph.flow

    def served(self, elements: Mapping[str, Iterable[Any]]) -> list[Served]:
        """For each version its elements."""
        return list(served_graphs([(each, each.graph) for each in self.versions], elements))


Tried: TypeAlias = Graph | TriedVersions


def tried(flow: Flow | Versions) -> Tried:
    if isinstance(flow, Versions):
        return TriedVersions(tuple(TriedVersion(each.at, each.graph, each.plan) for each in flow))
    return flow.graph()


def graphs_of(given: Tried) -> list[Graph]:
    """The graph of each version."""
    if isinstance(given, TriedVersions):
        return [version.graph for version in given.versions]
    return [given]


def check_elements(given: Tried, elements: Mapping[str, Iterable[Any]]) -> None:
    """Raises the error that a run raises if these are no elements for it."""
    if isinstance(given, TriedVersions):
        given.served(elements)
        return
    for _ in timed_elements(given, elements):
        pass
