"""How the elements of a simulated front enter its worker: most are elements, some are late or malformed.

Each partition of a front is a source of its own, with its own promise, as in a live query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from emberflow.engine.messages import Effects, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.errors import Diverted, InputError
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.elements import LateElement, MalformedElement
from emberflow.values.item import TIE, Place


def sources_of(
    graph: Graph, elements: Iterable[tuple[Moment, Front, Any]]
) -> dict[int, list[tuple[Moment, Any]]]:
    """The elements of each partition of the fronts, in order, by its front index.

    A partition without elements holds nothing back, so it needs no source.
    """
    own: dict[int, list[tuple[Moment, Any]]] = {front.index: [] for front in graph.fronts.values()}
    for (time, front), _, payload in elements:
        own.setdefault(front % TIE, []).append(((time, front), payload))
    return own


def front_of(graph: Graph, index: int) -> Front:
    """The front that a partition is of."""
    fronts = list(graph.fronts.values())
    return fronts[index % len(fronts)]


def entered(
    worker: Worker,
    node: Front,
    elements: Sequence[tuple[Moment, Any]],
    reports: dict[int, Moment],
) -> Iterator[Effects]:
    """Let elements enter, and report what the front promises after them."""
    plain: list[tuple[Moment, Any]] = []
    late: list[tuple[Moment, Any]] = []
    malformed: list[tuple[Place, Diverted | Exception]] = []
    for moment, payload in elements:
        if payload.__class__ is LateElement:
            late.append((moment, payload.record))
        elif payload.__class__ is MalformedElement:
            malformed.append(_malformed(worker, node, moment, payload))
        else:
            plain.append((moment, payload))
    if late:
        late_node = worker.layout.graph.late_node
        assert late_node is not None
        yield worker.enter(late_node, late, {})
    if malformed:
        yield worker.enter(node.id, [], {}, malformed)
    yield worker.enter(node.id, plain, reports)


def _malformed(
    worker: Worker, node: Front, moment: Moment, given: MalformedElement
) -> tuple[Place, Diverted | Exception]:
    place = (*moment, given.number)
    if not worker.layout.diverts:
        return place, InputError(f"front {node.name!r}: {given.problem}")
    return place, Diverted(*moment, str(node), "-", given.problem, given.payload)
