"""The flow under trial, and a case: elements that have passed the checks of the reference.

A `Failure` also knows how to test whether other elements still fail, which `shrinking` needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberflow.runners.verify.functions.comparison import saved
from emberflow.runners.verify.functions.findings import Finding
from emberflow.runners.verify.functions.probes import RecordedCall, recording
from emberflow.runners.verify.functions.sites import Site, sites_of, watched
from emberflow.runners.verify.functions.tried import Tried
from emberflow.runners.verify.processes.children import saved_graph
from emberflow.runners.verify.processes.nursery import Nursery
from emberflow.runners.verify.processes.tasks import Check, Checked, Task, checked, run

Elements: TypeAlias = dict[str, list[Any]]

#: Returns the finding that these elements lead to, if they fail in the same way.
Fails: TypeAlias = Callable[[Elements], Finding | None]


class Subject:
    """A flow under trial. Made before the flow first runs: see `processes.children`.

    A context manager: it ends the child processes that it started for small tries.
    """

    def __init__(self, graph: Tried) -> None:
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
    """Elements, and the result of the reference's checks on them."""

    elements: Elements
    data: bytes
    checked: Checked


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding, the elements that led to it, and a test whether other elements do too."""

    finding: Finding
    elements: Elements
    fails: Fails


def failed_check(subject: Subject, elements: Elements, finding: Finding) -> Failure:
    """The failure of a check. Smaller elements fail if their check has the same finding.

    A function that has already cached everything no longer shows a difference in this process. Then
    each try runs in a process of its own.
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
