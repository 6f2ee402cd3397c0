"""Diverted errors within transactions: all of a transaction is undone, and one record tells of it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import count
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.loops import accesses as loops
from emberflow.engine.machines import state as state_module
from emberflow.engine.machines.closer import CloserMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.worker import dataflow as dataflow_module
from emberflow.errors import Diverted, InternalError, StepError
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import Options, Simulation
from emberflow.values.item import FlatItem
from tests.effort import affordable, tried
from tests.simulation.cases import wrong_by
from tests.simulation.hunt import Break, Breaks, caught, name_of
from tests.simulation.interpreted import drawn, flow_of, interpreted
from tests.simulation.transactional import (
    judged_with_crashes_and_cuts,
    judged_with_states,
    undone,
    undone_with_crashes,
)

CASES_OF_A_BREAK = 60


def told(record: Diverted) -> tuple[int, Any, str]:
    """Time, payload, and the message of the exception."""
    message = record.problem.split("raised ValueError: ")[1].split(" (where ")[0]
    return record.time, record.payload, message


@pytest.mark.parametrize("how", ["compiled", "in Python"])
def test_the_result_is_that_of_an_interpreter(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is a loop over elements in plain Python. Several workers, with a crash, agree.

    Half of the seeds run with the loops in C, and half with their twins.
    """
    if how == "in Python":
        monkeypatch.setattr(state_module, "access_in_order", loops._access_in_order)
    found: Counter[str] = Counter()
    for seed in range(how == "in Python", tried("interpreted transactions"), 2):
        scripts = drawn(seed)
        flow = flow_of(scripts)
        expected, errors = interpreted(scripts)
        outputs = ef.run(flow, on_error="divert", **scripts.elements)
        records = outputs.pop("errors")
        assert [told(record) for record in records] == errors, f"seed {seed}"
        assert outputs == expected, f"seed {seed}"
        for crashes in (0, 1):
            result = ef.simulate(
                flow, seed=seed, crashes=crashes, on_error="divert", **scripts.elements
            )
            assert result.outputs == {**expected, "errors": records}, f"seed {seed}"
        found["errors"] += len(errors)
        for name, output in expected.items():
            found[name.split(" ")[1]] += len(output)
    assert min(found["committed"], found["errors"], found["rejected"], found["output"]) > 3


def test_random_transactions_that_fail_all_over_equal_the_reference() -> None:
    errors = total = 0
    for seed in affordable(range(tried("simulated transactions with diverted errors"))):
        outputs = judged_with_states(undone(seed)).outputs
        assert all(type(record) is Diverted for record in outputs["errors"])
        errors += len(outputs["errors"])
        total += sum(map(len, outputs.values()))
    assert total / 50 < errors < total / 5


def test_a_crash_undoes_no_more_and_no_less() -> None:
    """Cuts hold nothing of a transaction that was diverted, and no record is stored twice."""
    for seed in affordable(range(tried("transactions with diverted errors over crashes"))):
        judged_with_crashes_and_cuts(undone_with_crashes(seed))


def test_an_error_of_speculation_alone_leaves_nothing_behind() -> None:
    """Numbers come from three fronts, and the update raises wherever one is missing. None is missing."""
    flow = ef.Flow("in order")
    fronts = [flow.front(f"front-{number}") for number in range(3)]
    last, counted = flow.state("last", default=-1), flow.state("counted", default=0)

    def next_one(before: int, number: int) -> int:
        if number != before + 1:
            raise ValueError(f"{number} behind {before}")
        return number

    with ef.merge(*fronts).transaction() as tx:
        tx.key_by(lambda n: 0).update(last, next_one)
        tx.key_by(lambda n: n % 4).update(counted, lambda total, n: total + 1)
    tx.committed.sink("out")
    elements = {
        f"front-{number}": [ef.At(time, time) for time in range(48) if time * 5 % 7 % 3 == number]
        for number in range(3)
    }
    taken_back = 0
    for seed in range(8):
        graph = flow.graph(on_error="divert")
        simulation = Simulation(graph, Options.drawn(seed, workers=3), on_error="divert")
        result = simulation.run(timed_elements(graph, elements))
        assert result.outputs == {"out": list(range(48)), "errors": []}
        assert result.states == {"last": {0: 47}, "counted": dict.fromkeys(range(4), 12)}
        taken_back += simulation.workers[0].worker.barriers[len(graph.nodes)][0].tombstones
    assert taken_back


def test_a_key_that_raises_before_a_replay_and_not_behind_it() -> None:
    """The vote of the key's error was once taken for the vote of the access, at the same place."""
    flow = ef.Flow("odd keys")
    seen, kept = flow.state("seen", default=0), flow.state("kept", default=0)
    with flow.front("early").transaction(name="count") as tx:
        tx.key_by(lambda n: 0).update(seen, lambda total, n: total + 1)
    tx.committed.sink("counted")
    with flow.front("late").transaction(name="keep") as tx:
        odd = tx.key_by(lambda n: 0).read(seen).key_by(lambda pair: 10 // (pair[1] % 2))
        odd.update(kept, lambda total, pair: total + pair[1])
    tx.committed.sink("kept")
    elements = {
        "early": [ef.At(time, time) for time in range(0, 40, 3)],
        "late": [ef.At(time, time) for time in range(1, 40, 2)],
    }
    expected = ef.run(flow, on_error="divert", **elements)
    assert len(expected["kept"]) + len(expected["errors"]) == len(elements["late"])
    for seed in (3, 8, 10, 13, 18, 19):
        result = ef.simulate(flow, seed=seed, workers=1, on_error="divert", **elements)
        assert result.outputs == expected


def test_a_graph_that_could_apply_a_part_is_refused() -> None:
    """Whoever diverts errors with the graph of a run that they end has made a mistake."""
    flow = flow_of(drawn(0))
    for kind in (Reference, Layout):
        with pytest.raises(InternalError, match="is for runs that an error ends"):
            kind(flow.graph(), on_error="divert")
        kind(flow.graph(on_error="divert"), on_error="divert")


# --- The checkers bite -----------------------------------------------------------------------------

breaks = Breaks()


def raised(item: FlatItem) -> bool:
    """Whether an item is the vote of a step that is no access."""
    payload = item[2]
    return isinstance(payload, tuple) and len(payload) == 5 and isinstance(payload[3], StepError)


@breaks
def a_failed_map_does_not_vote(patch: pytest.MonkeyPatch) -> None:
    """Its record is made, and the rest of the transaction commits."""
    init = dataflow_module.Dataflow.__init__

    def changed(self: Any, *given: Any) -> None:
        init(self, *given)
        self._closers = {}

    patch.setattr(dataflow_module.Dataflow, "__init__", changed)


@breaks
def an_access_of_an_undone_transaction_applies(patch: pytest.MonkeyPatch) -> None:
    """The closer sends the record, and no abort."""
    init = CloserMachine.__init__

    def changed(self: Any, graph: Any, node: Any, *, diverts: bool) -> None:
        init(self, graph, node, diverts=False)

    patch.setattr(CloserMachine, "__init__", changed)


@breaks
def a_record_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    """By the access that raised, and by the closer."""

    def fail(self: Any, entry: Any, mark: int, failures: list[FlatItem]) -> None:
        if isinstance(entry[7], StepError):
            failures.append((entry[0], mark, entry[7]))

    patch.setattr(AccessMachine, "_fail", fail)


@breaks
def the_error_that_came_last_is_told(patch: pytest.MonkeyPatch) -> None:
    failed = CloserMachine._failed

    def last(self: Any, ballot: Any) -> Any:
        errors = [where for where, vote in ballot.votes.items() if isinstance(vote[2], StepError)]
        return ballot.votes[max(errors)][2] if errors else failed(self, ballot)

    patch.setattr(CloserMachine, "_failed", last)


@breaks
def a_check_comes_before_an_error(patch: pytest.MonkeyPatch) -> None:
    """What was refused is told as such, whatever raised beside it."""
    failed = CloserMachine._failed

    def refused(self: Any, ballot: Any) -> Any:
        votes = ballot.votes
        ballot.votes = {
            where: vote for where, vote in votes.items() if not isinstance(vote[2], StepError)
        }
        found = failed(self, ballot)
        ballot.votes = votes
        return found if isinstance(found, tuple) else failed(self, ballot)

    patch.setattr(CloserMachine, "_failed", refused)


@breaks
def an_error_stays_that_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    changed_ = CloserMachine._changed

    def changed(self: Any, items: list[FlatItem], begun: Any) -> Any:
        return changed_(self, [item for item in items if not (item[1] & 1 and raised(item))], begun)

    patch.setattr(CloserMachine, "_changed", changed)


NOTICED = re.compile(r"the reference has|found no item to take back")


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    found = caught(name_of(broken), count(), wrong, CASES_OF_A_BREAK)
    assert NOTICED.search(found), found


@wrong_by
def wrong(seed: int) -> None:
    judged_with_states(undone(seed))
