"""`verify`: the determinism check of a user's own flow.

Three stages; the first difference ends the verification:

1. Two runs of the reference, in which every call of every function is checked (`probes`).
2. The same calls and runs in child processes, with other hash seeds and in other orders
   (`child_runs`). Meanwhile:
3. Simulations under many seeds and several numbers of workers, compared with the reference.

A difference becomes a finding that names a function and a cause. `shrinking` removes elements that
are not needed to show it, and `report` turns it into a `NondeterminismError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import Versions
from emberflow.errors import InputError, shortened
from emberflow.fronts.protocol import is_front
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import LateElement, MalformedElement, timed_elements
from emberflow.runners.simulation import Options
from emberflow.runners.verify.blame import blamed, simulated
from emberflow.runners.verify.child_runs import OtherRun, differences, jobs_for
from emberflow.runners.verify.functions.tried import (
    Tried,
    TriedVersions,
    check_elements,
    graphs_of,
    tried,
)
from emberflow.runners.verify.processes.children import (
    HASH_SEEDS,
    WAIT_SECONDS_MIN,
    children,
    saved_elements,
)
from emberflow.runners.verify.processes.tasks import checked
from emberflow.runners.verify.report import error_of
from emberflow.runners.verify.shrinking import shrunk
from emberflow.runners.verify.trial import Case, Elements, Failure, Subject, failed_check
from emberflow.values.item import At
from emberflow.values.owners import SLICES
from emberflow.work import watched

PARAMETERS = ("seeds", "workers", "generate")

#: How many cases `generate` makes.
DRAWS = 5

#: How much longer a child may take than this process: it starts Python, and may share a core.
_SLOWER_CHILD = 30

Generate = Callable[[Random], Mapping[str, Iterable[Any]]]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was tried on a flow that was found deterministic. ``str()`` gives a one-line summary."""

    flow: str
    seeds: int
    workers: tuple[int, ...]
    processes: int
    elements: int
    functions: int
    calls: int
    #: Calls that could not be checked because their arguments or results cannot be copied.
    unchecked: int = 0
    #: Functions that read a clock or random numbers, although their results were the same.
    suspicions: tuple[str, ...] = ()
    versions: int = 1

    def __str__(self) -> str:
        what = f"flow {self.flow!r} is"
        if self.versions > 1:
            what = f"{self.versions} versions of flow {self.flow!r} are"
        tried = (
            f"{what} deterministic as far as tried: "
            f"{_counted(self.seeds, 'seed')} on {_listed(self.workers)} "
            f"{'worker' if self.workers == (1,) else 'workers'}, "
            f"{self.processes} processes with different hash seeds, "
            f"{_counted(self.elements, 'element')}, "
            f"{_counted(self.calls, 'call')} of {_counted(self.functions, 'function')} checked"
        )
        if self.unchecked:
            tried += f", {self.unchecked:,} not checked because they hold what cannot be copied"
        return tried + "".join(f"; but {suspicion}" for suspicion in self.suspicions)


def verify(
    flow: Flow | Versions,
    /,
    *,
    seeds: int = 200,
    workers: Iterable[int] = (1, 2, 3, 5),
    generate: Generate | None = None,
    **elements: Iterable[Any],
) -> Verification:
    """Check that a flow's output is a function of its input, and find the function that breaks it.

    Runs the flow on the elements in ``seeds`` simulations, each with the next number of
    ``workers``, and in several processes. Raises a `NondeterminismError` that names the function,
    the cause and a small case. An exception of a user's function is raised as by `run`.

    >>> import emberflow as ef
    >>> flow = ef.Flow("word count")
    >>> flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    >>> print(ef.verify(flow, lines=["the dog", "the cat"], seeds=8))
    flow 'word count' is deterministic as far as tried: 8 seeds on 1, 2, 3 and 5 workers,
    4 processes with different hash seeds, 2 elements, 6 calls of 2 functions checked

    ``generate`` makes the elements of fronts that are not given: a function of a `random.Random`
    that returns a dict by front. It is called several times.

    In place of a list, a front may be given that ends, as to `run`. Its elements are tried as a list,
    without the late ones: those enter no function.

    `Versions` of a flow follow one another in every run, and the functions that migrate state are checked
    as all others. `Versions.served` has those that a live query has served.
    """
    graph = tried(flow)
    counts = _checked_parameters(graph, seeds, workers, generate)
    drawn = [Options.drawn(seed, workers=counts[seed % len(counts)]) for seed in range(seeds)]
    given = _given(graph, elements, generate)
    with Subject(graph) as subject:
        began = time.monotonic()
        cases = [_passed(subject, case) for case in given]
        took = time.monotonic() - began
        with children(
            subject.data,
            jobs_for(cases, drawn),
            wait_seconds=max(WAIT_SECONDS_MIN, _SLOWER_CHILD * took),
        ) as futures:
            wrong = _simulate(subject, cases, drawn, len(counts))
            found = differences(subject, cases, drawn, [future.result() for future in futures])
        if isinstance(found, Failure):
            raise _error(subject, found)
        other = found or wrong
        if other is not None:
            raise _error(subject, blamed(subject, other))
        return _verification(subject, cases, seeds, counts)


def _passed(subject: Subject, elements: Elements) -> Case:
    """A case that has passed the reference's checks. Raises the error if it does not."""
    data = saved_elements(elements)
    result = checked(subject.graph, subject.sites, data)
    if result.finding is not None:
        raise _error(subject, failed_check(subject, elements, result.finding))
    return Case(elements, data, result)


def _simulate(
    subject: Subject, cases: Sequence[Case], drawn: Sequence[Options], turn: int
) -> OtherRun | None:
    for number, options in enumerate(watched("simulations", drawn, len(drawn))):
        wrong = simulated(subject, cases[number // turn % len(cases)], options)
        if wrong is not None:
            return wrong
    return None


def _given(
    graph: Tried, elements: Mapping[str, Iterable[Any]], generate: Generate | None
) -> list[Elements]:
    """All cases, with a list for every front, checked as `run` checks them."""
    fixed = {name: _as_list(graph, name, given) for name, given in elements.items()}
    cases = [fixed]
    if generate is not None:
        cases = []
        for draw in range(DRAWS):
            made = generate(Random(f"emberflow verify {draw}"))
            if not isinstance(made, Mapping) or set(made) & set(fixed):
                raise InputError(
                    f"generate= returns a dict with the elements of fronts that are not given "
                    f"otherwise, got {shortened(made)}."
                )
            lists = {name: _as_list(graph, name, given) for name, given in made.items()}
            cases.append({**fixed, **lists})
    if isinstance(graph, TriedVersions):
        # An element stays with its version when others are left out.
        cases = [{name: _with_times(given) for name, given in case.items()} for case in cases]
    for case in cases:
        check_elements(graph, case)
    return cases


def _as_list(tried: Tried, front: str, given: Iterable[Any]) -> list[Any]:
    """The elements of a front as a list, which can be copied and made smaller."""
    if is_front(given):
        graphs = [graph for graph in graphs_of(tried) if front in graph.fronts]
        return list(_elements_of((graphs or graphs_of(tried))[0], front, given))
    if not isinstance(given, Iterable):
        raise InputError(f"front {front!r} takes an iterable of elements, got {shortened(given)}.")
    return list(given)


def _with_times(elements: list[Any]) -> list[At[Any]]:
    return [e if isinstance(e, At) else At(number, e) for number, e in enumerate(elements)]


def _elements_of(graph: Graph, name: str, given: Iterable[Any]) -> Iterator[At[Any]]:
    """What enters the flow from a front, with its times. What is late does not enter it."""
    for at, _, payload in timed_elements(graph, {**dict.fromkeys(graph.fronts, ()), name: given}):
        if isinstance(payload, MalformedElement):
            raise InputError(f"front {name!r}: {payload.problem}")
        if not isinstance(payload, LateElement):
            yield At(at.time, payload)


def _checked_parameters(
    graph: Tried, seeds: object, workers: Iterable[int], generate: object
) -> tuple[int, ...]:
    fronts = {name for each in graphs_of(graph) for name in each.fronts}
    taken = [name for name in PARAMETERS if name in fronts]
    if taken:
        raise InputError(
            f"flow {graph.flow!r} has a front {taken[0]!r}, and verify() has a parameter of that "
            f"name. Rename the front."
        )
    if not _is_count(seeds):
        raise InputError(f"verify(seeds=) takes an int of at least 1, got {seeds!r}.")
    counts = tuple(workers) if isinstance(workers, Iterable) else ()
    if not counts or not all(_is_count(count) and count <= SLICES for count in counts):
        raise InputError(
            f"verify(workers=) takes numbers of workers, as in (1, 2), got {workers!r}."
        )
    if generate is not None and not callable(generate):
        raise InputError(f"verify(generate=) takes a function of a Random, got {generate!r}.")
    return counts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _error(subject: Subject, failure: Failure) -> Exception:
    elements, finding = shrunk(failure.elements, failure.finding, failure.fails)
    given = sum(map(len, failure.elements.values()))
    return error_of(subject.graph.flow, subject.sites, finding, elements, given=given)


def _verification(
    subject: Subject, cases: Sequence[Case], seeds: int, counts: tuple[int, ...]
) -> Verification:
    suspicions = {
        f"{subject.sites[site].given} looks at something else than its arguments: {clue.text}"
        for case in cases
        for site, clues in case.checked.clues.items()
        for clue in clues
        if clue.kind in ("clock", "random") and clue.sure
    }
    records = [record for case in cases for record in case.checked.records]
    return Verification(
        flow=subject.graph.flow,
        seeds=seeds,
        workers=counts[:seeds],
        processes=1 + len(HASH_SEEDS),
        elements=sum(len(given) for case in cases for given in case.elements.values()),
        functions=len({record.site for record in records}),
        calls=len(records),
        unchecked=sum(case.checked.unchecked for case in cases),
        suspicions=tuple(sorted(suspicions)),
        versions=len(graphs_of(subject.graph)),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _listed(numbers: tuple[int, ...]) -> str:
    *some, last = map(str, numbers)
    return f"{', '.join(some)} and {last}" if some else last
