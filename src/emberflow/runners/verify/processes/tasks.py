"""What is done with a flow to try it, here or in a child process: the same code in both.

A task is plain data and so is what it gives, so that both can travel. Results of functions and
outputs travel as saved bytes: equal bytes need not be looked into, and what cannot be loaded is
noticed where it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from emberflow.errors import EmberflowError
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import Options, Simulation
from emberflow.runners.verify.functions.clues import Clue
from emberflow.runners.verify.functions.findings import Finding, different_results
from emberflow.runners.verify.functions.probes import (
    Checker,
    FoundError,
    RecordedCall,
    conflict,
    recording,
)
from emberflow.runners.verify.functions.results import fresh, saved
from emberflow.runners.verify.functions.sites import Site, attempt, watched

Outputs: TypeAlias = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Calls:
    """Make recorded calls, in this order. Gives a list of saved results, None where it can't."""

    calls: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Run:
    """Run the flow on saved elements, by the reference or by a simulation. Gives `Ran`."""

    elements: bytes
    options: Options | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """Saved outputs, or what went wrong."""

    outputs: bytes | None
    error: str = ""
    records: list[RecordedCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Check:
    """Run the reference twice on saved elements, and check every call. Gives `Checked`."""

    elements: bytes


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks found, or outputs and calls that can be relied on so far."""

    finding: Finding | None
    outputs: bytes = b""
    records: list[RecordedCall] = field(default_factory=list)
    unchecked: int = 0
    #: By site: what the function was seen to call.
    clues: dict[int, list[Clue]] = field(default_factory=dict)
    #: What the first run raised, where nothing should have been raised.
    error: str = ""


Task: TypeAlias = Calls | Run | Check


def perform(graph: Graph, sites: Sequence[Site], task: Task) -> Any:
    """Do it."""
    if isinstance(task, Calls):
        return [_called(sites[site], arguments) for site, arguments in task.calls]
    if isinstance(task, Run):
        return ran(graph, sites, task)
    try:
        return checked(graph, sites, task.elements)
    except EmberflowError as error:
        return Checked(None, error=_words(error))


def _called(site: Site, arguments: bytes) -> bytes | None:
    try:
        return saved(attempt(site, fresh(arguments)))
    except Exception:
        return None


def ran(graph: Graph, sites: Sequence[Site], task: Run) -> Ran:
    """Run once. Whatever goes wrong is part of what is given: the reference did not fail."""
    records: list[RecordedCall] = []
    if task.recorded:
        graph = watched(graph, sites, recording(records))
    try:
        outputs = run(graph, task.elements, task.options)
    except Exception as error:
        return Ran(None, _words(error), records)
    return Ran(saved(outputs), "", records)


def run(graph: Graph, elements: bytes, options: Options | None = None) -> Outputs:
    """The outputs of the reference, or of a simulation, on copies of the elements of their own."""
    timed = timed_elements(graph, fresh(elements))
    if options is not None:
        return Simulation(graph, options).run(timed).outputs
    reference = Reference(graph)
    for global_time, front, payload in timed:
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference.outputs


def checked(graph: Graph, sites: Sequence[Site], elements: bytes) -> Checked:
    """Two runs of the reference: one as it is, which may well raise, and one with every check."""
    records: list[RecordedCall] = []
    outputs = saved(run(watched(graph, sites, recording(records)), elements))
    checker = Checker(sites)
    try:
        run(watched(graph, sites, checker.watch), elements)
        checker.check_at_the_end()
    except FoundError as found:
        return Checked(found.finding)
    except EmberflowError:
        pass  # the first run went well: the records say who has changed its mind
    differing = conflict(sites, records, checker.records)
    if differing is not None:
        site, first, second = differing
        results = (("in one run", fresh(first.result)), ("in the next", fresh(second.result)))
        seen = checker.clues[site.index]
        return Checked(different_results(site, first.arguments, results, seen))
    clues = {site: list(seen) for site, seen in checker.clues.items()}
    return Checked(None, outputs, records, checker.unchecked, clues)


def _words(error: Exception) -> str:
    return f"{type(error).__qualname__}: {error}"
