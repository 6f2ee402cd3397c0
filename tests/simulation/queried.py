"""Random queries on random transaction flows; the oracle is the reference's state at that time.

The oracle shares no code with what it judges. It runs one transaction at a time, up to the moment
that an answer claims, and looks into its dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Keys, Moment
from emberflow.engine.queries.worker import readable_states
from emberflow.engine.worker.worker import Worker
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.questions import Question, Scan
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import CrashSimulation, Faults, Simulation, SimulationResult
from emberflow.runners.simulation.queries import Answered, SimulatedRead
from emberflow.values.item import GlobalTime
from tests.simulation.cases import WrongError, always_trimming
from tests.simulation.transactional import TransactionCase

HISTORIES = (0, 0, 3, 10, 1000)


def is_even(key: Any, value: Any) -> bool:
    return key % 2 == 0


def drawn_questions(random: Random, graph: Graph, count: int) -> list[SimulatedRead]:
    """Reads of keys, ranges and predicates, of one or several states, with all options."""
    states = readable_states(Layout(graph))
    names = sorted(states)
    asked = []
    for _ in range(count):
        wanted: dict[str, Any] = {}
        for name in random.sample(names, random.randint(1, len(names))):
            kind = random.choice(("keys", "keys", "all", "range", "where"))
            if kind == "keys":
                wanted[name] = random.sample(range(-1, 21), random.randint(0, 8))
            elif kind == "all":
                wanted[name] = Scan()
            elif kind == "range":
                wanted[name] = Scan(low=random.randint(0, 3), high=random.choice((None, 1, 5, 99)))
            else:
                wanted[name] = Scan(where=is_even)
        how = random.choice(("now", "now", "at", "ordered"))
        asked.append(
            SimulatedRead(
                Question(graph.flow, states, wanted),
                ordered=how == "ordered",
                earlier_or_later=how == "at",
                default=random.random() < 0.5,
                given_up=random.random() < 0.05,
            )
        )
    return asked


def reference_states(graph: Graph, elements: Any) -> Callable[[Moment], dict[str, dict[Any, Any]]]:
    """The states that the transactions below a moment left. Moments must be asked for in order."""
    reference = Reference(graph)
    ahead = list(timed_elements(graph, elements))[::-1]

    def at(moment: Moment) -> dict[str, dict[Any, Any]]:
        while ahead and ahead[-1][0] < moment:
            reference.enter(*ahead.pop())
        if moment == AFTER_ALL:
            reference.finish()
        else:
            reference.advance(GlobalTime(*moment))
        return reference.states_at(moment[0])

    return at


def expected_answer(
    asked: SimulatedRead, states: dict[str, dict[Any, Any]]
) -> dict[str, list[Any]]:
    """The expected keys and values, in order, by state."""
    answer = {}
    for info, part in zip(asked.question.states, asked.question.parts, strict=True):
        own = states[info.name]
        if isinstance(part, Keys):
            keys = [key for key in part.keys if key in own or (asked.default and info.has_default)]
        else:
            keys = sorted(
                key
                for key in own
                if (part.low is None or key >= part.low)
                and (part.high is None or key < part.high)
                and (part.predicate is None or part.predicate(key, own[key]))
            )
        answer[info.name] = [(key, own.get(key, info.default)) for key in keys]
    return answer


def check_answers(case: TransactionCase, answered: list[Answered | None]) -> None:
    at = reference_states(case.graph, case.elements)
    for each in sorted(filter(None, answered), key=lambda each: each.moment):
        if each.answer is None:
            assert each.refused is not None
            assert each.at is not None, "only what asks for a time of its own may be refused"
            assert each.at < each.refused.kept[0], "what is kept was refused"
            continue
        if each.at is not None and each.moment != each.at:
            raise AssertionError(f"asked as of {each.at}, answered as of {each.moment}")
        if each.at is None and each.moment < each.least:
            raise AssertionError(f"answered as of {each.moment}, which is before {each.least}")
        expected = expected_answer(each.read, at(each.moment))
        got = {name: list(rows.items()) for name, rows in each.answer.items()}
        if got != expected:
            raise AssertionError(
                f"as of {each.moment} the answer is {got}, the reference has {expected}"
            )


def judged_with_queries(seed: int, *, crashes: int = 0, count: int = 12) -> SimulationResult:
    """Run a case with queries at random moments; raise `WrongError` if anything is wrong."""
    case = TransactionCase.out_of_order(seed)
    random = Random(f"queries {seed}")
    asked = drawn_questions(random, case.graph, count)
    history = random.choice(HISTORIES)
    elements = list(timed_elements(case.graph, case.elements))
    simulation: Simulation | CrashSimulation
    machines: dict[str, Any] = {"reads": asked, "history": history}
    if case.trims_always:
        machines["worker"] = always_trimming(Worker)
    if crashes:
        faults = Faults.drawn(seed, crashes=crashes)
        simulation = CrashSimulation(case.graph, case.options, faults, **machines)
    else:
        simulation = Simulation(case.graph, case.options, **machines)
    try:
        result = simulation.run(elements)
        assert result.outputs == case.expected, "the output is another one with queries"
        assert result.states == case.expected_states, "the states are others with queries"
        check_answers(case, result.answered)
        for each, one in zip(result.answered, asked, strict=True):
            assert each is not None or one.given_up, "a question was never answered"
        assert not simulation.asker.unanswered
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n{case}\n  queries {seed}") from error
    return result
