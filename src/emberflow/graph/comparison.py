"""What a new version of a flow changes, for people: as text and as a drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from emberflow.graph.description import Step, changed_steps, steps_of
from emberflow.graph.drawing import Mark, mermaid
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry, CarryError, CarryPlan, carry_plan, written

#: `carry_plan` for who knows backfills: of the state at a moment, if that is known.
Planned: TypeAlias = Callable[
    [Sequence[Step], Graph, Carry | None, tuple[int, int] | None], CarryPlan
]


def compared(
    before: Sequence[Step],
    graph: Graph,
    carry: Carry | None = None,
    at: tuple[int, int] | None = None,
    planned: Planned | None = None,
) -> tuple[str, bool]:
    """The changes from some steps to those of a graph, as text, and whether it can take over.

    >>> import emberflow as ef
    >>> old, new = ef.Flow("words"), ef.Flow("words")
    >>> old.front("words").key_by(str).count(name="counts").sink("out")
    >>> lengths = new.front("words").map(len, name="length")
    >>> lengths.key_by(str).sum(name="letters").sink("out")
    >>> text, can_take_over = compared(steps_of(old.graph()), new.graph())
    >>> print(text)
    flow words: steps
      - count counts
      + map length
      + sum letters
    state
      the new version cannot take over the state:
      - the state of 'counts' (count) would be lost: no step of the new version has its name
    >>> can_take_over
    False
    """
    lines = [f"flow {graph.flow}: steps", *(f"  {line}" for line in _steps(before, graph)), "state"]
    try:
        plan = (
            carry_plan(before, graph, carry)
            if planned is None
            else planned(before, graph, carry, at)
        )
    except CarryError as error:
        # Without the flow's name and the advice, which is about code.
        told = str(error).partition(": ")[2].splitlines()[:-1]
        return "\n".join([*lines, *(f"  {line.strip()}" for line in told)]), False
    kept = [line for line in plan.lines() if not line.startswith("changed")]
    return "\n".join([*lines, *(f"  {line}" for line in kept or ["none"])]), True


def _steps(before: Sequence[Step], graph: Graph) -> Iterator[str]:
    """The steps as the user wrote them: operators, not what they are made of."""
    old, new = _written(before), _written(steps_of(graph))
    changed = {_identity(step) for step in changed_steps(before, graph)}
    found = False
    for identity in dict.fromkeys((*old, *new)):
        name = identity[1]
        if identity in old and identity in new:
            if old[identity] != new[identity]:
                yield f"~ {old[identity]} {name} -> {new[identity]}"
            elif identity in changed:
                yield f"~ {new[identity]} {name}: its functions do something else"
            else:
                continue
        else:
            is_old = identity in old
            yield f"- {old[identity]} {name}" if is_old else f"+ {new[identity]} {name}"
        found = True
    if not found:
        yield "no changes"


def _written(steps: Sequence[Step]) -> dict[tuple[str, str], str]:
    """By name: what the user wrote there, ``map``, ``count``, ``front`` ... Fronts and sinks may have the
    names of steps between."""
    found: dict[tuple[str, str], str] = {}
    for step in steps:
        if "fan-out" in step.name:
            continue  # nobody wrote it
        identity = _identity(step)
        operator = str(step.details.get("operator") or step.kind).partition("/")[0]
        if step.name == identity[1] or "operator" in step.details:
            found[identity] = operator
        else:
            found.setdefault(identity, operator)
    return found


def _identity(step: Step) -> tuple[str, str]:
    return step.kind if step.kind in ("front", "sink") else "", written(step.name)


def drawn(before: Sequence[Step], graph: Graph) -> str:
    """The new version as a Mermaid flowchart, with what is new or changed marked."""
    known = {(step.kind, step.name) for step in before}
    changed = {(step.kind, step.name) for step in changed_steps(before, graph)}
    marks: dict[int, Mark] = {}
    for node, step in zip(graph.nodes, steps_of(graph), strict=False):
        if (step.kind, step.name) not in known:
            marks[node.id] = "added"
        elif (step.kind, step.name) in changed:
            marks[node.id] = "changed"
    return mermaid(graph, marks)
