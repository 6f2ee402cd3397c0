"""The description of a flow's steps: plain data that a cut stores and people read.

A description outlives the code that it describes. So a later version of the flow can tell what it has in
common with the one whose state it finds: `differences` for people, `graph.versions` for state.

Two kinds of details. *Structure* decides whether state fits: what a step reads, its window, its
operator. The fingerprint of a graph covers the same. *Notes* say which functions a step calls, and a
digest of what they do. A function that was renamed, moved or changed makes no other step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberflow.graph.nodes import Front, Graph, Group, Map, Node, Sink
from emberflow.graph.transactions import Access, Close, State
from emberflow.values.functions import UserFunction, Where, code_digest, name_of

#: Details that say what functions do, and not what a step is.
_NOTES = frozenset({"functions", "code"})


@dataclass(frozen=True, slots=True)
class Step:
    """The description of a step."""

    kind: str
    name: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    @property
    def structure(self) -> dict[str, Any]:
        return {name: value for name, value in self.details.items() if name not in _NOTES}


def steps_of(graph: Graph) -> tuple[Step, ...]:
    """All steps of a flow.

    >>> import emberflow as ef
    >>> flow = ef.Flow("lengths")
    >>> flow.front("words").map(len).sink("lengths")
    >>> print(*steps_of(flow.graph()), sep=", ")
    front 'words', map 'map', sink 'lengths'
    """
    graph = graph.plain
    return tuple(_step(graph, node) for node in graph.nodes[: graph.late_node])


def _step(graph: Graph, node: Node) -> Step:
    details: dict[str, Any] = {}
    if node.inputs:
        details["reads"] = [
            f"{_label(graph.nodes[source.node])}"
            + (f" output {source.port}" if graph.nodes[source.node].ports > 1 else "")
            for source in node.inputs
        ]
        details["keyed"] = [source.own_key is not None for source in node.inputs]
    if isinstance(node, Front):
        details["index"] = node.index
    elif isinstance(node, Map):
        details["mode"] = node.mode
        details["timed"] = node.timed
        details["roles"] = [function.role for function in node.given]
    elif isinstance(node, Group):
        details["window"] = node.window
        if node.id in graph.operators:
            details["operator"] = graph.operators[node.id]
    elif isinstance(node, Sink):
        details["partitions"] = node.partitions
    elif node.distinguishing:
        details["distinguishing"] = list(node.distinguishing)
    if isinstance(node, Group | State) and node.expires is not None:
        details["expires"] = node.expires
    functions = list(_functions_of(node))
    if functions:
        details["functions"] = [name_of(function.given) for function in functions]
        details["code"] = [code_digest(function.given) for function in functions]
    return Step(node.kind, node.name, details)


def _functions_of(node: Node) -> Iterator[UserFunction]:
    for source in node.inputs:
        if source.own_key is not None:
            yield source.own_key.given
    if isinstance(node, Map | Access):
        yield from node.given
    if isinstance(node, Access) and node.check is not None:
        yield UserFunction("check", node.check.function)
    if isinstance(node, Close):
        yield from (UserFunction("require", check.function) for check in node.requires)


def _label(node: Node) -> str:
    return f"{node.kind} {node.name!r}"


def differences(flow: str, steps: Sequence[Step], graph: Graph) -> list[str]:
    """What makes the structure of a graph another one than that of the steps of a flow."""
    return list(_differences(flow, steps, graph))


def _differences(flow: str, steps: Sequence[Step], graph: Graph) -> Iterator[str]:
    if flow != graph.flow:
        yield f"the flow was called {flow!r} and is called {graph.flow!r}"
    before, now = _by_identity(steps), _by_identity(steps_of(graph))
    wheres = _wheres(graph)
    found = False
    for identity, step in now.items():
        if identity not in before:
            found = True
            yield f"{step} ({wheres[identity]}) was added"
    for identity, step in before.items():
        if identity not in now:
            found = True
            yield f"{step} was removed"
    for identity, step in now.items():
        old = before.get(identity, step).structure
        for name in sorted({*old, *step.structure}):
            one, other = old.get(name), step.structure.get(name)
            if one != other:
                found = True
                yield f"{step} ({wheres[identity]}): {name} was {one!r} and is {other!r}"
    if not found and [*before] != [*now]:
        yield "the same steps are written in another order"


def changed_steps(steps: Sequence[Step], graph: Graph) -> list[Step]:
    """The steps of a graph that others have too, with functions that do something else there."""
    before = _by_identity(steps)
    return [
        step
        for identity, step in _by_identity(steps_of(graph)).items()
        if identity in before
        and "code" in step.details
        and step.details["code"] != before[identity].details.get("code")
    ]


def changed_functions(steps: Sequence[Step], graph: Graph) -> list[str]:
    """The same for people: each step with its line and its functions."""
    wheres = _wheres(graph)
    return [
        f"{step} ({wheres[step.kind, step.name]}): {', '.join(step.details['functions'])}"
        for step in changed_steps(steps, graph)
    ]


def _wheres(graph: Graph) -> dict[tuple[str, str], Where]:
    return {(node.kind, node.name): node.where for node in graph.plain.nodes}


def _by_identity(steps: Sequence[Step]) -> dict[tuple[str, str], Step]:
    return {(step.kind, step.name): step for step in steps}
