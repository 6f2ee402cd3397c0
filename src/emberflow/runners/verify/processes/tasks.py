"""The tasks that try a flow: the same code in this process and in children.

Tasks and their results are plain data, so that both can travel. Results of functions and outputs
travel as saved bytes: equal bytes need no comparison, and a value that cannot be loaded is noticed
only where it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from emberflow.errors import EmberflowError
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference, run_served
from emberflow.runners.simulation import CrashSimulation, Faults, Options, Simulation
from emberflow.runners.verify.functions.clues import Clue
from emberflow.runners.verify.functions.comparison import fresh, saved
from emberflow.runners.verify.functions.findings import Finding, different_results
from emberflow.runners.verify.functions.probes import (
    Checker,
    FoundError,
    RecordedCall,
    conflict,
    recording,
)
from emberflow.runners.verify.functions.sites import Site, attempt, watched
from emberflow.runners.verify.functions.tried import Tried, TriedVersions

Outputs: TypeAlias = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Calls:
    """Repeat recorded calls in this order. Returns the saved results, None where there is none."""

    calls: list[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Rerun:
    """Run the flow on saved elements, by the reference or by a simulation. Returns `Ran`."""

    elements: bytes
    options: Options | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """Saved outputs, or the error."""

    outputs: bytes | None
    error: str = ""
    records: list[RecordedCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Check:
    """Run the reference twice on saved elements, and check every call. Returns `Checked`."""

    elements: bytes


@dataclass(frozen=True, slots=True)
class Checked:
    """A finding, or the outputs and recorded calls of a run that passed all checks."""

    finding: Finding | None
    outputs: bytes = b""
    records: list[RecordedCall] = field(default_factory=list)
    unchecked: int = 0
    #: By site: the suspicious calls that were seen.
    clues: dict[int, list[Clue]] = field(default_factory=dict)
    #: What the first run raised, although the flow had run without an error before.
    error: str = ""


Task: TypeAlias = Calls | Rerun | Check


def perform(graph: Tried, sites: Sequence[Site], task: Task) -> Any:
    """Perform a task in this process."""
    if isinstance(task, Calls):
        return [_called(sites[site], arguments) for site, arguments in task.calls]
    if isinstance(task, Rerun):
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


def ran(graph: Tried, sites: Sequence[Site], task: Rerun) -> Ran:
    """Run once. An error is part of the result: the reference did not fail on these elements."""
    records: list[RecordedCall] = []
    if task.recorded:
        graph = watched(graph, sites, recording(records))
    try:
        outputs = run(graph, task.elements, task.options)
    except Exception as error:
        return Ran(None, _words(error), records)
    return Ran(saved(outputs), "", records)


def run(graph: Tried, elements: bytes, options: Options | None = None) -> Outputs:
    """The outputs of the reference, or of a simulation, on fresh copies of the elements."""
    if isinstance(graph, TriedVersions):
        parts = graph.served(fresh(elements))
        if options is None:
            return run_served(parts)
        faults = Faults.drawn(options.seed, crashes=0)
        return CrashSimulation(parts[0].graph, options, faults, served=parts).run().outputs
    timed = timed_elements(graph, fresh(elements))
    if options is not None:
        return Simulation(graph, options).run(timed).outputs
    reference = Reference(graph)
    for global_time, front, payload in timed:
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference.outputs


def checked(graph: Tried, sites: Sequence[Site], elements: bytes) -> Checked:
    """Run the reference twice: once only recorded, which may raise, and once with every check."""
    records: list[RecordedCall] = []
    outputs = saved(run(watched(graph, sites, recording(records)), elements))
    checker = Checker(sites)
    try:
        run(watched(graph, sites, checker.watch), elements)
        checker.check_at_the_end()
    except FoundError as found:
        return Checked(found.finding)
    except EmberflowError:
        pass  # the first run did not raise; the records show which function changed
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
