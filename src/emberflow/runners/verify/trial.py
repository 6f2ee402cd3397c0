"""What is tried: a flow with its functions, on one case of elements that the reference has passed.

And the question that every stage asks again while a case is made smaller: does it still fail?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberflow.graph.nodes import Graph
from emberflow.runners.verify.functions.findings import Finding
from emberflow.runners.verify.functions.probes import RecordedCall, recording
from emberflow.runners.verify.functions.results import saved
from emberflow.runners.verify.functions.sites import Site, sites_of, watched
from emberflow.runners.verify.processes.nursery import Nursery
from emberflow.runners.verify.processes.processes import saved_graph
from emberflow.runners.verify.processes.tasks import Check, Checked, Task, checked, run

Elements: TypeAlias = dict[str, list[Any]]

#: Whether these elements show it too: then the finding, with the arguments that they lead to.
Fails: TypeAlias = Callable[[Elements], Finding | None]


class Subject:
    """A flow under trial. Made before it runs for the first time: see `processes.children`.

    To be entered: the child processes that it needs for small tries end with it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.data = saved_graph(graph)
        self.sites: tuple[Site, ...] = sites_of(graph)
        self._nursery = Nursery(self.data)

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

    def performed(self, tasks: list[Task], *, hash_seed: int = 1) -> list[Any]:
        """The results of tasks in a process where no function was called before."""
        return self._nursery.perform(hash_seed, tasks)

    def records(self, elements: Elements) -> list[RecordedCall]:
        """The calls that the reference makes on these elements."""
        records: list[RecordedCall] = []
        run(watched(self.graph, self.sites, recording(records)), saved(elements))
        return records


@dataclass(frozen=True, slots=True)
class Case:
    """Elements, and what the checks of the reference gave for them."""

    elements: Elements
    data: bytes
    checked: Checked


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding, the elements that led to it, and how to ask whether others do."""

    finding: Finding
    elements: Elements
    fails: Fails


def failed_check(subject: Subject, elements: Elements, finding: Finding) -> Failure:
    """The failure of a check: smaller elements fail if a check of them has the same finding.

    A function that has remembered all it ever will gives nothing away any more in this process.
    Then each try takes a process of its own.
    """

    def if_it_is(found: Finding | None) -> Finding | None:
        if found is None or (found.site, found.cause) != (finding.site, finding.cause):
            return None
        return found

    def fails_here(tried: Elements) -> Finding | None:
        return if_it_is(checked(subject.graph, subject.sites, saved(tried)).finding)

    def fails_elsewhere(tried: Elements) -> Finding | None:
        (result,) = subject.performed([Check(saved(tried))])
        return if_it_is(result.finding)

    return Failure(finding, elements, fails_here if fails_here(elements) else fails_elsewhere)
