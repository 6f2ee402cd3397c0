"""Turn drafts into a graph: close loops, insert broadcasts, number nodes.

A draft is a node whose inputs name other drafts. Drafts differ from a graph in two ways: an input may
name a loop, a placeholder whose source the user gives later; and several inputs may read one output.
Assembly replaces every loop by the stream that closed it, and puts a broadcast behind every output
with more than one reader. Its copies follow the order in which the user wrote the readers: that order
becomes child ids, and so part of the order of the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from emberflow.errors import FlowError
from emberflow.graph.expansion import with_transactions
from emberflow.graph.nodes import Broadcast, Front, Graph, Input, Node, Reduction
from emberflow.values.times import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDraft(Node):
    """The placeholder of a stream whose source the user gives later. A graph never holds one."""

    @property
    def kind(self) -> str:
        return "loop"


def assembled(
    flow: str,
    drafts: Sequence[Node],
    feedback: Mapping[int, Input],
    reductions: Sequence[Reduction],
    unit: Unit | None = None,
    *,
    ends_on_error: Graph | None = None,
) -> Graph:
    """The graph of a flow. Raises `FlowError` where the drafts do not make one.

    Given the graph ``ends_on_error``, it is the one for runs that divert errors instead.
    """
    for draft in drafts:
        if isinstance(draft, LoopDraft):
            _through_loops(flow, drafts, feedback, Input(draft.id))  # also if no step reads it
    steps = [draft for draft in drafts if not isinstance(draft, LoopDraft)]
    number = {draft.id: index for index, draft in enumerate(steps)}

    def renumbered(source: Input) -> Input:
        source = _through_loops(flow, drafts, feedback, source)
        return replace(source, node=number[source.node])

    nodes = [
        replace(draft, id=number[draft.id], inputs=tuple(map(renumbered, draft.inputs)), unit=unit)
        for draft in steps
    ]
    nodes, again = with_transactions(flow, nodes, diverts=ends_on_error is not None)
    return Graph(
        flow,
        tuple(_with_broadcasts(nodes)),
        tuple(reduction.renumbered(number).renumbered(again) for reduction in reductions),
        ends_on_error,
    )


def _through_loops(
    flow: str, drafts: Sequence[Node], feedback: Mapping[int, Input], source: Input
) -> Input:
    """The output that an input reads, with loops resolved. The reader's key overrides the loop's."""
    passed: set[int] = set()
    while isinstance(drafts[source.node], LoopDraft):
        loop = drafts[source.node]
        if source.node not in feedback:
            raise FlowError(
                f"flow {flow!r}: {loop} is never closed. "
                f"Call .close(stream) on it with the stream that comes back."
            )
        if source.node in passed:
            raise FlowError(
                f"flow {flow!r}: {loop} is closed with itself through other loops. "
                f"Close it with a stream that comes from a step."
            )
        passed.add(source.node)
        back = feedback[source.node]
        source = replace(back, key=source.key or back.key)
    return source


def _with_broadcasts(nodes: list[Node]) -> list[Node]:
    readers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node in nodes:
        for index, source in enumerate(node.inputs):
            readers.setdefault((source.node, source.port), []).append((node.id, index))
    inputs = [list(node.inputs) for node in nodes]
    added: list[Node] = []
    for (origin, port), reading in readers.items():
        if len(reading) == 1:
            continue
        fan_out = Broadcast(
            id=len(nodes) + len(added),
            name=_fan_out_name(nodes[origin], port),
            inputs=(Input(origin, port),),
            where=nodes[origin].where,
            copies=len(reading),
        )
        added.append(fan_out)
        for copy, (reader, index) in enumerate(reading):
            inputs[reader][index] = replace(inputs[reader][index], node=fan_out.id, port=copy)
    return [replace(node, inputs=tuple(inputs[node.id])) for node in nodes] + added


def _fan_out_name(origin: Node, port: int) -> str:
    name = f"front {origin.name}" if isinstance(origin, Front) else origin.name
    return f"{name}/fan-out" if origin.ports == 1 else f"{name}/fan-out-{port}"
