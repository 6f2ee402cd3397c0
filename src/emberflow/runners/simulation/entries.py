"""How the elements of a simulated front enter its worker: most are elements, some are late or malformed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from emberflow.engine.messages import Effects, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.errors import Diverted, InputError
from emberflow.graph.nodes import Front
from emberflow.runners.elements import LateElement, MalformedElement
from emberflow.values.item import Place


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
