"""Recorded calls that gave another result in a child process: why, and for which elements.

Three more children make all calls in the recorded order: two with the hash seed of the child where
the calls differed, one with another seed. That tells the causes apart:

- two processes with the same hash seed differ: the result depends on the process;
- only processes with different hash seeds differ: it depends on the order of a set, or on ``hash``;
- all three agree: it depends on the calls before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emberflow.runners.simulation import Options
from emberflow.runners.verify.functions.comparison import (
    NotComparableError,
    fingerprint,
    fresh,
    saved,
)
from emberflow.runners.verify.functions.findings import (
    PROCESS,
    SET,
    STATE,
    Finding,
    different_processes,
)
from emberflow.runners.verify.functions.probes import RecordedCall, agree
from emberflow.runners.verify.functions.variables import keeping
from emberflow.runners.verify.processes.children import HASH_SEEDS, Job, results_of
from emberflow.runners.verify.processes.tasks import Calls, Rerun, Task
from emberflow.runners.verify.trial import Case, Elements, Failure, Subject

#: How many simulations a child runs for each case; each has its own order of calls. Shrinking tries
#: as many, so that the smaller case fails again when it is pasted into a test.
SIMULATIONS = 20


def differing_calls(
    subject: Subject,
    case: Case,
    options: Sequence[Options],
    hash_seed: int,
    bad: dict[int, bytes | None],
) -> Failure:
    """The cause of calls that differ in a child with this hash seed, and which of them to show.

    ``bad`` holds the child's results, by the number of the record in this process.
    """
    records = case.checked.records
    forward = Calls([record[:2] for record in records])
    other = next(seed for seed in reversed(HASH_SEEDS) if seed != hash_seed)
    (first,), (second,), (third,) = results_of(
        subject.data, [Job(seed, [forward]) for seed in (hash_seed, hash_seed, other)]
    )
    by_process = [n for n in bad if not agree(first[n], second[n])]
    by_hash = [n for n in bad if not agree(first[n], third[n])]
    by_past = [n for n in bad if not agree(records[n].result, first[n])]
    seeds = (f"PYTHONHASHSEED={hash_seed}", f"PYTHONHASHSEED={other}")
    if by_process:
        pairs = {n: (first[n], second[n]) for n in by_process}
        return _by_arguments(subject, case, pairs, PROCESS, ("in one process", "in another"))
    if by_hash:
        pairs = {n: (first[n], third[n]) for n in by_hash}
        return _by_arguments(subject, case, pairs, SET, seeds)
    if by_past and not keeping(subject.sites[records[by_past[0]].site].function):
        pairs = {n: (records[n].result, first[n]) for n in by_past}
        return _by_arguments(subject, case, pairs, SET, ("in this process", "in another"))
    number = (by_past or list(bad))[0]
    then = first[number] if by_past else bad[number]
    return _by_order(subject, case, options, records[number], then)


def _by_arguments(
    subject: Subject,
    case: Case,
    pairs: dict[int, tuple[bytes, bytes]],
    cause: str,
    words: tuple[str, str],
) -> Failure:
    """The arguments alone decide: elements fail if they lead to one of these calls."""
    records = case.checked.records
    guilty = subject.sites[records[next(iter(pairs))].site]
    known = {
        _identity(records[n]): pair for n, pair in pairs.items() if records[n].site == guilty.index
    }

    def finding(record: RecordedCall) -> Finding:
        one, other = known[_identity(record)]
        results = ((words[0], fresh(one)), (words[1], fresh(other)))
        clues = case.checked.clues[guilty.index]
        return different_processes(guilty, record.arguments, results, clues, cause=cause)

    def fails(tried: Elements) -> Finding | None:
        for record in subject.records(tried):
            if record.site == guilty.index and _identity(record) in known:
                return finding(record)
        return None

    return Failure(finding(records[next(iter(pairs))]), case.elements, fails)


def _by_order(
    subject: Subject,
    case: Case,
    options: Sequence[Options],
    record: RecordedCall,
    then: bytes | None,
) -> Failure:
    """Earlier calls decide: elements fail if their calls depend on the order.

    The orders tried are: twice in a row, backwards, and after simulations. Few elements need many
    simulations before one overtakes another.
    """
    guilty = subject.sites[record.site]

    def finding(arguments: bytes, one: bytes | None, other: bytes | None) -> Finding:
        results = (("first", _value(one)), ("in another order", _value(other)))
        clues = case.checked.clues[guilty.index]
        return different_processes(guilty, arguments, results, clues, cause=STATE)

    def fails(tried: Elements) -> Finding | None:
        data = saved(tried)
        simulations: list[Task] = [Rerun(data, drawn) for drawn in options[:SIMULATIONS]]
        (ran,) = subject.performed([Rerun(data, recorded=True)])
        calls = [record[:2] for record in ran.records]
        first, second = subject.performed([Calls(calls), Calls(calls)])
        (backwards,) = subject.performed([Calls(calls[::-1])])
        *_, third = subject.performed([*simulations, Calls(calls)])
        for record, *others in zip(
            ran.records, first, second, reversed(backwards), third, strict=True
        ):
            for another in others:
                if record.site == guilty.index and not agree(record.result, another):
                    return finding(record.arguments, record.result, another)
        return None

    return Failure(finding(record.arguments, record.result, then), case.elements, fails)


def _identity(record: RecordedCall) -> str:
    try:
        return fingerprint(fresh(record.arguments))
    except NotComparableError:
        return ""


def _value(data: bytes | None) -> Any:
    return None if data is None else fresh(data)
