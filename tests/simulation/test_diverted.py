"""Diverted errors: the same records in the same order, and the same output beside them."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.worker import regions as cycles_module
from emberflow.engine.worker.worker import Worker
from emberflow.runners import reference as reference_module
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation.crashes.recovery import CrashSimulation
from emberflow.runners.simulation.options import Faults
from tests.effort import tried
from tests.simulation.cases import judged
from tests.simulation.failing import diverting


@pytest.mark.parametrize("chunk", range(2))
def test_random_flows_that_fail_all_over_equal_the_reference(chunk: int) -> None:
    """Both the error records and the rest of the output."""
    diverted: Counter[str] = Counter()
    seeds = range(chunk, tried("simulated flows with diverted elements"), 2)
    for case in map(diverting, seeds):
        outputs = judged(case).outputs
        for record in outputs["errors"]:
            assert type(record) is ef.Diverted
            diverted[record.problem.split(":")[0].split("raised")[0]] += 1
        diverted["released"] += sum(map(len, outputs.values())) - len(outputs["errors"])
    assert diverted["released"] > 5 * len(seeds)
    assert sum(diverted.values()) - diverted["released"] > len(seeds)


def test_what_fails_is_skipped_and_the_accumulator_stays() -> None:
    """Expected by hand, so that the test does not only compare two runners."""
    flow = ef.Flow("kept")

    def first(number: int) -> int:
        if number > 9:
            raise ValueError(f"{number} comes first")
        return number

    def combine(total: int, number: int) -> int:
        if number == 7:
            raise ValueError(f"{total} and then 7")
        return total + number

    keyed = flow.front("numbers").key_by(lambda number: number % 2)
    keyed.reduce(first=first, combine=combine, with_key=True).sink("out")
    outputs = ef.run(flow, on_error="divert", numbers=[11, 7, 7, 13, 5, 10, 12, 8, 7, 2])
    # 11 and 7 are odd: 11 is refused, so 7 starts the accumulator.
    assert outputs["out"] == [(1, 7), (1, 20), (1, 25), (0, 8), (0, 10)]
    assert [(e.time, e.payload, e.problem.split(": ")[1]) for e in outputs["errors"]] == [
        (0, 11, "11 comes first"),
        (2, 7, "7 and then 7"),
        (5, 10, "10 comes first"),
        (6, 12, "12 comes first"),
        (8, 7, "25 and then 7"),
    ]
    assert pickle.loads(pickle.dumps(outputs["errors"])) == outputs["errors"]


def test_other_branches_of_the_element_go_on_and_nothing_half_done_does() -> None:
    flow = ef.Flow("branches")
    numbers = flow.front("numbers")
    numbers.flat_map(lambda n: [n, ef.At(20 + n, -n), ef.At(5 - n, 0)]).sink("one")
    numbers.map(lambda n: 10 * n).sink("other")
    outputs = ef.run(flow, on_error="divert", numbers=[0, 1, 2, 3])
    # 3 schedules for time 2 at time 3, which fails, so its item for time 23 is dropped too.
    assert outputs["one"] == [0, 1, 2, 0, 0, 0, 0, -1, -2]
    assert outputs["other"] == [0, 10, 20, 30]
    assert [error.time for error in outputs["errors"]] == [3]


@pytest.mark.parametrize("stateful", ["group", "reduce", "window"])
def test_an_endless_loop_is_diverted_as_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, stateful: str
) -> None:
    """An endless loop is detected at the same item, however nodes are fused into machines."""
    for module in (cycles_module, reference_module):
        monkeypatch.setattr(module, "CHILD_IDS_MAX", 40)
    flow = ef.Flow("endless")
    again = flow.loop()
    keyed = ef.merge(flow.front("in"), again).key_by(lambda n: n % 3)
    step: Any = {
        "group": lambda: keyed.group(window=1).map(lambda ns: ns[0] + 1),
        "reduce": lambda: keyed.reduce(
            first=lambda n: n + 1, combine=lambda total, n: n + 1 + 0 * total
        ),
        "window": lambda: (
            keyed.window(ef.CountWindow(1)).max().map(lambda result: result.value + 1)
        ),
    }[stateful]()
    out, back = step.broadcast(2)
    again.close(back.filter(lambda n: n % 10 or n < 20))
    out.map(lambda n: n).map(lambda n: n).map(lambda n: n).sink("out")
    elements = {"in": [15, 18, 20, 25, 3]}
    expected = ef.run(flow, on_error="divert", **elements)
    assert {error.function for error in expected["errors"]} == {"-"}
    assert len(expected["out"]) > len(expected["errors"]) > 0
    for seed in range(10):
        got = ef.simulate(flow, seed=seed, on_error="divert", **elements)
        assert got.outputs == expected


def key_of_differences(pair: tuple[int, ...]) -> int:
    """In order all numbers follow one another, and it raises for all pairs."""
    if len(pair) == 2 and pair[1] - pair[0] == 1:
        raise ValueError(f"the key of {pair}")
    return 0


def used(pair: tuple[int, ...]) -> int:
    """Raises for some pairs that only speculation makes."""
    if len(pair) == 2 and pair[1] - pair[0] == 2:
        raise ValueError(f"the use of {pair}")
    return 1


def by_a_map(pairs: ef.Stream[Any]) -> ef.Stream[Any]:
    return pairs.key_by(key_of_differences).group(window=1).map(lambda tuples: used(tuples[0]))


def by_an_access(pairs: ef.Stream[Any]) -> ef.Stream[Any]:
    totals = pairs.flow.state("totals", default=0)
    with pairs.transaction() as tx:
        updated = tx.key_by(key_of_differences).update(totals, lambda total, pair: used(pair))
        return tx.output(updated)


@pytest.mark.parametrize("step", [by_a_map, by_an_access])
@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_two_steps_at_one_place_are_not_taken_for_each_other(
    step: Any, workers: int
) -> None:
    """Neither a grouping nor an access adds a child id. The tombstone of one error once took back the
    other one."""
    flow = ef.Flow("two steps")
    fronts = [flow.front(name) for name in ("one", "other")]
    step(ef.merge(*fronts).key_by(lambda n: 0).group(window=2)).sink("out")
    elements = {
        "one": [ef.At(time, time) for time in range(24) if time * 7 % 5 < 2],
        "other": [ef.At(time, time) for time in range(24) if time * 7 % 5 >= 2],
    }
    expected = ef.run(flow, on_error="divert", **elements)
    assert [error.problem.split(": ")[1][:7] for error in expected["errors"]] == ["the key"] * 23
    for seed in range(6):
        result = ef.simulate(flow, seed=seed, workers=workers, on_error="divert", **elements)
        assert result.outputs == expected


def test_what_the_errors_sink_has_it_does_not_get_again() -> None:
    case = next(case for case in map(diverting, count()) if len(case.expected["errors"]) > 10)
    everything = case.expected["errors"]
    middle = everything[len(everything) // 2]
    delivered = (middle.time, middle.front)

    class Restarted(Worker):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, delivered={("errors", 0): delivered}, **named)

    outputs = case.run(worker=Restarted).outputs
    assert outputs["errors"] == [e for e in everything if (e.time, e.front) > delivered]
    assert all(outputs[name] == case.expected[name] for name in case.graph.sinks)


def test_a_sink_of_that_name_is_the_user_s_own_unless_errors_are_diverted() -> None:
    flow = ef.Flow("errors")
    flow.front("numbers").map(lambda n: 1 // n).sink("errors")
    assert ef.run(flow, numbers=[1]) == {"errors": [1]}
    for runner in (ef.run, ef.simulate):
        complaint = r"has a sink 'errors'.*on_error=\) diverts. Give sink 'errors' .* another name"
        with pytest.raises(ef.InputError, match=complaint):
            runner(flow, on_error="divert", numbers=[1])
        with pytest.raises(ef.InputError, match=r"takes 'fail' or 'divert', got 'ignore'"):
            runner(flow, on_error="ignore", numbers=[1])  # type: ignore[arg-type]
    named = ef.Flow("named")
    named.front("on_error").sink("out")
    for runner in (ef.run, ef.simulate):
        with pytest.raises(ef.InputError, match="front 'on_error', which is a parameter of"):
            runner(named)


def test_fused_or_not_it_is_the_same() -> None:
    for seed in range(40):
        case = diverting(seed)
        unfused = replace(case, graph=replace(case.graph, reductions=()))
        assert unfused.expected == case.expected
        judged(unfused)


def test_what_was_diverted_survives_crashes_with_all_else() -> None:
    """A key whose element was skipped goes on from its accumulator behind a cut as well."""
    for seed in range(tried("diverted elements over crashes")):
        case = diverting(seed)
        elements = list(timed_elements(case.graph, case.elements))
        reference = reference_module.Reference(case.graph, on_error="divert")
        for global_time, front, payload in elements:
            reference.enter(global_time, front, payload)
        reference.finish()
        faults = Faults.drawn(seed, crashes=3)
        simulation = CrashSimulation(case.graph, case.options, faults, on_error="divert")
        assert simulation.run(elements).outputs == reference.outputs, case.again
