"""The shape of a flow as its user wrote it: the steps, and what each of them reads.

A composed operator is one step here, whatever nodes it is made of: ``totals`` and not ``totals/pair``,
``totals/group`` and so on. What the engine added for several readers of a stream belongs to the step that
they read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from emberflow.engine.layout import Layout
from emberflow.graph.nodes import Broadcast, Front, Graph, LateElements, Map, Node, Sink
from emberflow.graph.transactions import OUR_KEYS, Access, Close, State
from emberflow.values.functions import UserFunction, name_of

_MODES = {"one": "map", "many": "flat_map", "keep": "filter"}
_PLUMBING = ("broadcast", "merge")


class ShownStep(NamedTuple):
    """A step: its id within the shape, and the nodes that it is made of."""

    id: str
    kind: str
    name: str
    #: Where the user wrote it, and their functions, each with file and line.
    where: str
    functions: tuple[str, ...]
    nodes: tuple[int, ...]


class Edge(NamedTuple):
    origin: str
    reader: str
    #: The key function's name; None where items stay on their worker.
    key: str | None


class Shape:
    """The steps of a graph and how they are connected."""

    def __init__(self, graph: Graph) -> None:
        self.flow = graph.flow
        self.step_of = {node.id: _step_id(graph, node) for node in graph.nodes}
        members: dict[str, list[Node]] = {}
        for node in graph.nodes:
            members.setdefault(self.step_of[node.id], []).append(node)
        self.steps = {step: _shown(graph, step, nodes) for step, nodes in members.items()}
        self.edges = self._edges(graph)
        layout = Layout(graph)
        #: The nodes where items enter a step, and the ports by which they leave it.
        self.entries = {step: self._entries(layout, step) for step in self.steps}
        self.exits = {
            step: [
                (node, port)
                for node in layout.nodes
                if self.step_of[node] == step
                for port, reader in enumerate(layout.readers[node])
                if self.step_of[reader] != step
            ]
            for step in self.steps
        }

    def _entries(self, layout: Layout, step: str) -> list[int]:
        entered = {
            reader: None
            for node in layout.nodes
            for reader in layout.readers[node]
            if self.step_of[reader] == step and self.step_of[node] != step
        }
        return list(entered) or [node for node in layout.nodes if self.step_of[node] == step]

    def _edges(self, graph: Graph) -> list[Edge]:
        found: dict[tuple[str, str], str | None] = {}
        for node in graph.nodes:
            reader = self.step_of[node.id]
            for source in node.inputs:
                origin = self.step_of[source.node]
                if origin == reader:
                    continue
                key = None if source.own_key is None else _key_name(source.own_key.given)
                found[origin, reader] = found.get((origin, reader)) or key
        return [Edge(*ends, key) for ends, key in found.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "steps": [
                {
                    "id": step.id,
                    "kind": step.kind,
                    "name": step.name,
                    "where": step.where,
                    "functions": list(step.functions),
                }
                for step in self.steps.values()
            ],
            "edges": [
                {"from": edge.origin, "to": edge.reader, "key": edge.key} for edge in self.edges
            ],
        }


def _step_id(graph: Graph, node: Node) -> str:
    if isinstance(node, Front):
        return f"front {node.name}"
    if isinstance(node, Sink):
        return f"sink {node.name}"
    if isinstance(node, Broadcast):  # made for several readers of a stream, or by the user
        origin = graph.nodes[node.inputs[0].node]
        own = f"front {origin.name}" if isinstance(origin, Front) else origin.name
        if node.name.rpartition("/")[0] == own:
            return _step_id(graph, origin)
    return node.name.partition("/")[0]


def _shown(graph: Graph, step: str, nodes: list[Node]) -> ShownStep:
    functions: dict[str, None] = {}
    for node in nodes:
        for source in node.inputs:
            if source.own_key is not None and source.own_key.given.role not in OUR_KEYS:
                functions[str(source.own_key.given)] = None
        given = node.given if isinstance(node, Map | Access | Close) else ()
        for function in given:
            functions[str(function)] = None
    first = nodes[0]
    return ShownStep(
        id=step,
        kind=_kind(graph, nodes),
        name=first.name if isinstance(first, Front | Sink) else step,
        where=str(first.where),
        functions=tuple(functions),
        nodes=tuple(node.id for node in nodes),
    )


def _kind(graph: Graph, nodes: list[Node]) -> str:
    if isinstance(nodes[0], LateElements):
        return "late"
    if isinstance(nodes[0], Front | Sink):
        return nodes[0].kind
    for node in nodes:
        if node.id in graph.operators:
            return graph.operators[node.id].partition("/")[0]
    if any(isinstance(node, State) for node in nodes):
        return "state"
    if any(isinstance(node, Access | Close) for node in nodes):
        return "transaction"
    plain = [node for node in nodes if node.kind not in _PLUMBING] or nodes
    own = plain[0]
    return _MODES[own.mode] if isinstance(own, Map) else own.kind


def _key_name(function: UserFunction) -> str:
    return function.role if function.role in OUR_KEYS else name_of(function.given)
