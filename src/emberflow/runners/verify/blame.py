"""Finds the guilty function when a run differs from the reference although every call looked pure.

It tries these in order, until one finds the function:

1. Run again in a fresh process and record all calls. A function that gave different results for the
   same arguments, or other results than in the reference, is guilty.
2. Run again in this process and check every call. A simulation calls functions with arguments that
   never occur in the reference, such as accumulators that lack an element.
3. Run both with all functions memoised. If the outputs still differ, the functions are innocent: it
   is a bug of Emberflow, and the error says so.
4. Memoise all functions but one, for each function in turn. The one that brings the difference back
   is guilty.
"""

from __future__ import annotations

from emberflow.errors import InternalError
from emberflow.runners.simulation import Options
from emberflow.runners.verify.child_runs import OtherRun, problem_with
from emberflow.runners.verify.functions.comparison import fresh, saved
from emberflow.runners.verify.functions.findings import (
    STATE,
    UNKNOWN,
    Finding,
    different_processes,
    different_results,
)
from emberflow.runners.verify.functions.probes import (
    Checker,
    FoundError,
    are_same,
    conflict,
    memoised,
)
from emberflow.runners.verify.functions.sites import Watch, watched
from emberflow.runners.verify.functions.variables import keeping
from emberflow.runners.verify.processes.children import HASH_SEEDS, Job, results_of
from emberflow.runners.verify.processes.tasks import Ran, Rerun, ran, run
from emberflow.runners.verify.trial import Case, Elements, Failure, Subject


def simulated(subject: Subject, case: Case, options: Options) -> OtherRun | None:
    """Run a simulation in this process; return the run if it differs from the reference."""
    problem = problem_with(ran(subject.graph, subject.sites, Rerun(case.data, options)), case)
    return OtherRun(case, HASH_SEEDS[0], options, problem) if problem else None


def blamed(subject: Subject, other: OtherRun) -> Failure:
    """The guilty function. Raises `InternalError` if it is Emberflow's fault."""
    finding = (
        _by_records(subject, other) or _by_checks(subject, other) or _by_memory(subject, other)
    )

    def fails(tried: Elements) -> Finding | None:
        data = saved(tried)
        (again,) = subject.performed([Rerun(data, other.options)], hash_seed=other.hash_seed)
        if other.options is None:  # the child's reference run itself differed
            reference = ran(subject.graph, subject.sites, Rerun(data))
        else:
            (reference,) = subject.performed([Rerun(data)], hash_seed=other.hash_seed)
        return finding if reference.outputs is not None and not _agree(reference, again) else None

    return Failure(finding, other.case.elements, fails)


def _agree(one: Ran, other: Ran) -> bool:
    if one.outputs is None or other.outputs is None:
        return one.outputs is other.outputs
    return are_same(one.outputs, other.outputs)


def _by_records(subject: Subject, other: OtherRun) -> Finding | None:
    task = Rerun(other.case.data, other.options, recorded=True)
    ((again,),) = results_of(subject.data, [Job(other.hash_seed, [task])])
    differing = conflict(subject.sites, other.case.checked.records, again.records)
    if differing is None:
        return None
    site, first, second = differing
    results = (("in order", fresh(first.result)), ("in another order", fresh(second.result)))
    clues = other.case.checked.clues[site.index]
    return different_processes(site, first.arguments, results, clues, cause=STATE)


def _by_checks(subject: Subject, other: OtherRun) -> Finding | None:
    checker = Checker(subject.sites)
    try:
        run(watched(subject.graph, subject.sites, checker.watch), other.case.data, other.options)
    except FoundError as found:
        return found.finding
    except Exception:
        pass  # the calls so far are recorded
    differing = conflict(subject.sites, other.case.checked.records, checker.records)
    if differing is None:
        return None
    site, first, second = differing
    results = (("in the reference", fresh(first.result)), ("simulated", fresh(second.result)))
    return different_results(site, first.arguments, results, checker.clues[site.index])


def _by_memory(subject: Subject, other: OtherRun) -> Finding:
    if not _alike(subject, other, but=None):
        raise InternalError(
            f"flow {subject.graph.flow!r}: a run differs from the reference, even with all functions "
            f"memoised, so they are not to blame. This is a bug of Emberflow: please report it, with "
            f"{_how(other.options)}.\n{other.problem}"
        )
    for site in subject.sites:
        if not _alike(subject, other, but=site.index):
            return Finding(
                site.index,
                STATE,
                (
                    "with all other functions memoised two runs still differ",
                    *keeping(site.function),
                ),
                "-",
                (("expected", "the output of the reference"), ("got", other.problem)),
            )
    return Finding(
        None,
        UNKNOWN,
        ("two runs differ, but they agree if all functions but one are memoised",),
        "-",
        (("expected", "the output of the reference"), ("got", other.problem)),
    )


def _how(options: Options | None) -> str:
    if options is None:
        return "emberflow.run(flow, ...)"
    return f"emberflow.simulate(flow, ..., seed={options.seed}, workers={options.workers})"


def _alike(subject: Subject, other: OtherRun, *, but: int | None) -> bool:
    """Whether reference and run agree when all functions but one share one memo."""
    watch: Watch = memoised({}, but=but)
    graph = watched(subject.graph, subject.sites, watch)
    return _agree(
        ran(graph, (), Rerun(other.case.data)),
        ran(graph, (), Rerun(other.case.data, other.options)),
    )
