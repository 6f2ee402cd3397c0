"""Queries of state: every answer is the reference's state at the time that it claims."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.engine.queries import worker as reading_module
from emberflow.engine.queries.worker import readable_states
from emberflow.engine.worker.worker import Worker
from emberflow.runners.elements import timed_elements
from emberflow.runners.questions import Question, Scan
from emberflow.runners.simulation import CrashSimulation, Faults, Options, Simulation
from emberflow.runners.simulation.queries import SimulatedRead
from tests.effort import affordable, tried
from tests.simulation.cases import WrongError, always_trimming
from tests.simulation.hunt import Break, caught, name_of
from tests.simulation.queried import expected_answer, judged_with_queries
from tests.simulation.query_mutations import breaks

SEEDS = tried("simulated queries of state")
CRASH_SEEDS = tried("simulated queries of state with crashes")
CHUNK = 25


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a scan of a few keys takes several pages."""
    monkeypatch.setattr(reading_module, "ROWS_A_PAGE", 2)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_an_answer_is_the_state_of_the_reference_at_its_time(first: int) -> None:
    for seed in affordable(range(first, min(first + CHUNK, SEEDS))):
        judged_with_queries(seed)


@pytest.mark.parametrize("first", range(0, CRASH_SEEDS, CHUNK))
def test_crashes_change_no_answer(first: int) -> None:
    for seed in range(500_000 + first, 500_000 + min(first + CHUNK, CRASH_SEEDS)):
        judged_with_queries(seed, crashes=3)


def test_the_queries_are_worth_it() -> None:
    """The queries use all options, and their moments are spread from beginning to end."""
    moments, refused, total = set(), 0, 0
    for seed in affordable(range(tried("queries that are worth it"))):
        for each in judged_with_queries(seed, crashes=seed % 3).answered:
            total += 1
            if each is not None and each.refused is not None:
                refused += 1
            elif each is not None and each.moment not in (BEFORE_ALL, AFTER_ALL):
                moments.add((seed, each.moment))
    assert len(moments) > total / 6
    assert refused > total / 80


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    told = caught(name_of(broken), range(80), wrong, 80)
    assert told == "WrongError", told


def wrong(seed: int) -> str | None:
    """Whether something is wrong with a seed, without crashes or with them."""
    try:
        judged_with_queries(seed)
        judged_with_queries(500_050 + seed, crashes=3)
    except WrongError as error:
        return type(error).__name__
    return None


# --- Reduces, folds and aggregations -----------------------------------------------------------


def tallies() -> ef.Flow:
    flow = ef.Flow("tallies")
    both = ef.merge(flow.front("a"), flow.front("b"))
    keyed = both.key_by(lambda n: n % 5)
    keyed.count(name="count").sink("count")
    keyed.mean(name="mean").sink("mean")
    keyed.fold(initial=1, combine=lambda value, n: (value * 3 + n) % 97, with_key=True).sink("fold")
    return flow


@pytest.mark.parametrize("crashes", [0, 2])
def test_reduces_are_read_like_states(crashes: int) -> None:
    graph = tallies().graph()
    states = readable_states(Layout(graph))
    assert {name: info.kind for name, info in states.items()} == {
        "count": "reduce",
        "mean": "reduce",
        "fold": "reduce",
    }
    for seed in range(tried("simulated queries of reductions")):
        random = Random(seed)
        elements: dict[str, list[Any]] = {
            name: [
                ef.At(time, random.randint(0, 99)) for time in sorted(random.sample(range(100), 40))
            ]
            for name in "ab"
        }
        wanted = [
            {"count": Scan(), "mean": [0, 1, 2, 3, 4, 7]},
            {"fold": Scan(low=1), "count": [2]},
        ]
        asked = [
            SimulatedRead(
                Question(graph.flow, states, random.choice(wanted)),
                ordered=random.random() < 0.3,
                default=True,
            )
            for _ in range(8)
        ]
        options = Options.drawn(seed)
        simulation: Simulation | CrashSimulation
        worker = always_trimming(Worker)
        if crashes:
            faults = Faults.drawn(seed, crashes=crashes)
            simulation = CrashSimulation(graph, options, faults, reads=asked, worker=worker)
        else:
            simulation = Simulation(graph, options, reads=asked, worker=worker)
        entering = list(timed_elements(graph, elements))
        result = simulation.run(entering)
        for each in result.answered:
            assert each is not None
            assert each.answer is not None
            outputs = ef.run(
                tallies(),
                **{
                    name: [
                        ef.At(moment[0], payload)
                        for moment, front, payload in entering
                        if front.name == name and moment < each.moment
                    ]
                    for name in "ab"
                },
            )
            expected = expected_answer(each.read, {name: dict(outputs[name]) for name in states})
            got = {name: list(rows.items()) for name, rows in each.answer.items()}
            assert got == expected, (seed, each)


# --- What users see ----------------------------------------------------------------------------


def test_queries_of_a_simulated_run() -> None:
    flow = ef.Flow("purses")
    purse = flow.state("purses", default=20)
    with flow.front("changes").transaction() as tx:
        tx.key_by(lambda c: c[0]).update(purse, lambda value, c: value + c[1])
    tx.committed.sink("done")
    changes = [("ada", 1), ("bob", 2), ("ada", 3)]
    seen = set()
    for seed in range(40):
        result = ef.simulate(
            flow, changes=changes, seed=seed, queries=[{"purses": ["ada", "bob", "cy"]}]
        )
        (answer,) = result.answers
        seen.add(tuple(answer["purses"].values()))
    assert {(20, 20, 20), (24, 22, 20)} <= seen
    assert seen <= {(20, 20, 20), (21, 20, 20), (21, 22, 20), (24, 22, 20)}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"purse": ["ada"]}, "has no state 'purse'; there is 'purses'"),
        ({"purses": "ada"}, "give a list of keys, or a Scan"),
        ({"purses": [["ada"]]}, "no state has such a key: key is a list"),
        ({"purses": Scan(where=7)}, "takes a function of key and value"),  # type: ignore[arg-type]
        ("purses", "takes a dict from the names of states"),
    ],
)
def test_what_cannot_be_asked(query: Any, message: str) -> None:
    flow = ef.Flow("purses")
    purse = flow.state("purses", default=20)
    with flow.front("changes").transaction() as tx:
        tx.key_by(lambda c: c[0]).update(purse, lambda value, c: value + c[1])
    tx.committed.sink("done")
    with pytest.raises(ef.InputError, match=message):
        ef.simulate(flow, changes=[], queries=[query])
