"""Repeats calls and runs in child processes, and compares them with this process.

Each child has a PYTHONHASHSEED of its own, starts with functions that have never been called, and
works in an order of its own:

=====  ==================================================================
seed   tasks
=====  ==================================================================
1      all checks of this process again
2      the recorded calls backwards, then the reference, then simulations
3      simulations, then the recorded calls shuffled, then the reference
=====  ==================================================================

A recorded call that gives another result is a finding by itself, because its arguments are fixed;
`differences` finds out why. A run that gives another output although all calls agree is left to
`blame`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from emberflow.runners.simulation import Options
from emberflow.runners.verify.differences import SIMULATIONS, differing_calls
from emberflow.runners.verify.functions.comparison import NotComparableError, fresh, same
from emberflow.runners.verify.functions.probes import agree, conflict
from emberflow.runners.verify.processes.children import HASH_SEEDS, Job
from emberflow.runners.verify.processes.tasks import Calls, Check, Checked, Ran, Rerun, Task
from emberflow.runners.verify.trial import Case, Failure, Subject, failed_check


class OtherRun(NamedTuple):
    """A run whose output is not that of the reference."""

    case: Case
    hash_seed: int
    options: Options | None
    problem: str


def jobs_for(cases: Sequence[Case], options: Sequence[Options]) -> list[Job]:
    """The tasks of each child. `differences` below pairs the results with them in the same order."""
    return [
        Job(seed, [task for case in cases for task in _tasks(seed, case, options)])
        for seed in HASH_SEEDS
    ]


def _tasks(hash_seed: int, case: Case, options: Sequence[Options]) -> list[Task]:
    if hash_seed == HASH_SEEDS[0]:
        return [Check(case.data)]
    numbers = _order(hash_seed, len(case.checked.records))
    calls = Calls([case.checked.records[number][:2] for number in numbers])
    simulations: list[Task] = [Rerun(case.data, drawn) for drawn in options[:SIMULATIONS]]
    reference = Rerun(case.data)
    if hash_seed == HASH_SEEDS[1]:
        return [calls, reference, *simulations]
    return [*simulations, calls, reference]


def _order(hash_seed: int, count: int) -> list[int]:
    numbers = list(range(count))[::-1]
    if hash_seed == HASH_SEEDS[2]:
        Random(f"emberflow verify {hash_seed}").shuffle(numbers)
    return numbers


def differences(
    subject: Subject, cases: Sequence[Case], options: Sequence[Options], results: list[list[Any]]
) -> Failure | OtherRun | None:
    """The first difference from this process: a finding, a call, or otherwise a run."""
    other_run: OtherRun | None = None
    for case, seed, task, result in _paired(cases, options, results):
        if isinstance(result, Checked):
            if result.finding is not None:
                return failed_check(subject, case.elements, result.finding)
            differing = conflict(subject.sites, case.checked.records, result.records)
            if differing is not None:
                _, ours, others = differing
                number = case.checked.records.index(ours)
                return differing_calls(subject, case, options, seed, {number: others.result})
            if result.error and other_run is None:
                other_run = OtherRun(case, seed, None, result.error)
        elif isinstance(task, Calls):
            numbers = _order(seed, len(task.calls))
            theirs = dict(zip(numbers, result, strict=True))
            bad = {
                number: data
                for number, data in sorted(theirs.items())
                if not agree(case.checked.records[number].result, data)
            }
            if bad:
                return differing_calls(subject, case, options, seed, bad)
        elif isinstance(result, Ran) and other_run is None:
            problem = problem_with(result, case)
            if problem:
                assert isinstance(task, Rerun)
                other_run = OtherRun(case, seed, task.options, problem)
    return other_run


def problem_with(ran: Ran, case: Case) -> str:
    """What is wrong with a run; empty if its output is that of the reference."""
    if ran.outputs is None:
        return ran.error
    if agree(case.checked.outputs, ran.outputs):
        return ""
    expected, outputs = fresh(case.checked.outputs), fresh(ran.outputs)
    wrong = [sink for sink in expected if not _same(expected[sink], outputs[sink])]
    return f"the output of {', '.join(map(repr, wrong)) or 'a sink'} is not that of the reference"


def _paired(
    cases: Sequence[Case], options: Sequence[Options], results: list[list[Any]]
) -> Iterator[tuple[Case, int, Task, Any]]:
    for seed, given in zip(HASH_SEEDS, results, strict=True):
        tasks = [(case, task) for case in cases for task in _tasks(seed, case, options)]
        for (case, task), result in zip(tasks, given, strict=True):
            yield case, seed, task, result


def _same(one: Any, other: Any) -> bool:
    try:
        return same(one, other)
    except NotComparableError:
        return True
