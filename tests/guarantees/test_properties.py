"""Random flows, damaged outputs, and an oracle that tries every possible input.

The oracle shares no code with the search. It lists all subsets of the elements, and all ways in
which each may enter twice, runs each with `emberflow.run`, and checks whether the output is among
the results. It is meant to be obviously right, and is fast enough for a few elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, TypeAlias

import pytest

import emberflow as ef
from emberflow.graph.nodes import Group
from emberflow.guarantees import Guarantee, Verdict, judge
from emberflow.values.hashing import key_hash, owner
from tests.effort import SOAK, few
from tests.strategies import random_flow

Outputs: TypeAlias = dict[str, list[Any]]
Timed: TypeAlias = list[tuple[int, str, Any]]

SEEDS = 30
#: Seeds of losses that take as long as all others together: `make soak` has them.
COSTLY = {7, 16, 21}
#: The oracle gives copies other times, so it cannot judge flows that look at the time.
LOOK_AT_TIME = {
    *("with_time", "schedule", "time_window", "session", "per_window", "over", "distinct"),
    *("join", "loop"),
}


def drawn(seed: int, most: int) -> tuple[ef.Flow, Timed, Random]:
    """A flow and a few elements, in order."""
    flow, elements = random_flow(Random(seed))
    timed: Timed = []
    for front, given in elements.items():
        for number, element in enumerate(given):
            at = element if isinstance(element, ef.At) else ef.At(number, element)
            timed.append((at.time, front, at.payload))
    order = list(elements)
    timed.sort(key=lambda entry: (entry[0], order.index(entry[1])))
    random = Random(f"mutilation {seed}")
    chosen = sorted(random.sample(range(len(timed)), min(most, len(timed))))
    return flow, [timed[number] for number in chosen], random


@cache
def seed_without_time(number: int) -> int:
    """The seed of the flow with this number among those that do not look at the time."""
    first = seed_without_time(number - 1) + 1 if number else 0
    return next(
        seed for seed in itertools.count(first) if not looks_at_time(random_flow(Random(seed))[0])
    )


def looks_at_time(flow: ef.Flow) -> bool:
    expire = any(isinstance(node, Group) and node.expires for node in flow.graph().nodes)
    return expire or bool(LOOK_AT_TIME & set(flow.name.split()))


def given(flow: ef.Flow, timed: Timed) -> dict[str, list[Any]]:
    elements: dict[str, list[Any]] = {front: [] for front in flow.graph().fronts}
    for time, front, payload in timed:
        elements[front].append(ef.At(time, payload))
    return elements


def with_losses(flow: ef.Flow, timed: Timed) -> Iterator[Outputs]:
    for kept in itertools.product([True, False], repeat=len(timed)):
        yield ef.run(flow, **given(flow, list(itertools.compress(timed, kept))))


def with_repetitions(flow: ef.Flow, timed: Timed) -> Iterator[Outputs]:
    for walk in walks(len(timed)):
        again = [(time, *timed[number][1:]) for time, number in enumerate(walk)]
        yield ef.run(flow, **given(flow, again))


def walks(elements: int) -> Iterator[tuple[int, ...]]:
    """Each element once or twice, first entries in order."""

    def further(walk: tuple[int, ...], first: int) -> Iterator[tuple[int, ...]]:
        if first == elements:
            yield walk
        else:
            yield from further((*walk, first), first + 1)
        for number in range(first):
            if walk.count(number) == 1:
                yield from further((*walk, number), first)

    return further((), 0)


def test_the_oracle_has_all_walks() -> None:
    assert set(walks(2)) == {
        *((0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 1)),
        *((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)),
    }


def mutilated(random: Random, reference: Outputs, other: list[Outputs]) -> Outputs:
    """What a faulty recovery might leave behind."""
    kind = random.choice(["other", "other", "drop", "double", "swap", "alter", "again", "cut"])
    if kind == "other":
        return random.choice(other)
    outputs = {name: list(held) for name, held in reference.items()}
    name = random.choice(list(outputs))
    held = outputs[name]
    if not held:
        held.append(1)
        return outputs
    one, two = sorted(random.choices(range(len(held)), k=2))
    if kind == "drop":
        del held[one : two + 1]
    elif kind == "double":
        held.insert(one, held[one])
    elif kind == "swap":
        held[one], held[two] = held[two], held[one]
    elif kind == "alter":
        held[one] = random.randint(-9, 9)
    elif kind == "again":  # state restored, output delivered again
        outputs[name] = held[: two + 1] + held[one:]
    else:
        del held[one:]
    return outputs


def begins(outputs: Outputs, result: Outputs) -> bool:
    return all(result[name][: len(held)] == held for name, held in outputs.items())


@pytest.mark.parametrize("seed", [seed for seed in range(few(SEEDS)) if SOAK or seed not in COSTLY])
def test_losses_are_judged_as_the_oracle_says(seed: int) -> None:
    flow, timed, random = drawn(seed, most=4)
    results = list(with_losses(flow, timed))
    reference = results[0]
    for _ in range(6):
        outputs = mutilated(random, reference, results)
        verdict = judge(flow, given(flow, timed), outputs, failures=1)
        assert verdict.at_most_once is (outputs in results), (outputs, verdict)
        assert verdict.exactly_once is (outputs == reference)
        check_explanation(flow, timed, outputs, verdict)
        early = judge(flow, given(flow, timed), outputs, failures=1, finished=False)
        assert early.exactly_once is begins(outputs, reference)
        assert early.at_most_once is any(begins(outputs, result) for result in results)


@pytest.mark.parametrize("number", range(few(SEEDS)))
def test_repetitions_are_judged_as_the_oracle_says(number: int) -> None:
    flow, timed, random = drawn(seed_without_time(number), most=3)
    results = list(with_repetitions(flow, timed))
    reference = ef.run(flow, **given(flow, timed))
    for _ in range(6):
        outputs = mutilated(random, reference, results)
        verdict = judge(flow, given(flow, timed), outputs, failures=1)
        assert verdict.at_least_once is (outputs in results), (outputs, verdict)
        early = judge(flow, given(flow, timed), outputs, failures=1, finished=False)
        assert early.at_least_once is any(begins(outputs, result) for result in results)


def check_explanation(flow: ef.Flow, timed: Timed, outputs: Outputs, verdict: Verdict) -> None:
    """Check that an explanation really gives the output."""
    if verdict.guarantee is Guarantee.AT_MOST_ONCE:
        lost = [(e.global_time.time, e.front, e.payload) for e in verdict.lost]
        kept = [entry for entry in timed if entry not in lost]
        assert ef.run(flow, **given(flow, kept)) == outputs


@pytest.mark.parametrize("seed", range(few(100)))
def test_the_reference_is_exactly_once_and_the_search_agrees(seed: int) -> None:
    """The search explains the reference's own output, although `judge` never asks it to."""
    flow, elements = random_flow(Random(seed))
    outputs: Any = ef.run(flow, **elements)
    assert judge(flow, elements, outputs).exactly_once
    parted = {
        name: in_partitions(flow, name, held) if seed % 2 else held
        for name, held in outputs.items()
    }
    assert judge(flow, elements, parted).exactly_once
    assert follows(flow, elements, parted)


def in_partitions(flow: ef.Flow, name: str, held: list[Any]) -> dict[int, list[Any]]:
    sink = flow.graph().sinks[name]
    parts: dict[int, list[Any]] = {number: [] for number in range(sink.partitions)}
    for payload in held:
        key = sink.inputs[0].key
        number = 0 if key is None else owner(key_hash(key.function(payload)), sink.partitions)
        parts[number].append(payload)
    return parts


def follows(flow: ef.Flow, elements: Any, outputs: Any) -> bool:
    """Whether a trial on the unchanged elements gives these outputs."""
    from emberflow.guarantees.outputs import Observed
    from emberflow.guarantees.trial import Trial
    from emberflow.runners.elements import timed_elements

    graph = flow.graph()
    trial = Trial(graph, Observed(graph, outputs, {}), finished=True)
    begin = trial.bookmark()
    for _ in range(2):  # what it rewinds is as if it had never been
        trial.rewind(begin)
        for element in timed_elements(graph, elements):
            trial.enter(*element)
        trial.finish()
    return trial.explains_all
