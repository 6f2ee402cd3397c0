"""A batch over a history of versions, with a simulated shuffle: what the reference of versions says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.cuts.cut import Row
from emberflow.engine.cuts.translation import MigrationError, translated_rows
from emberflow.engine.messages import Moment
from emberflow.graph.versions import CarryError, CarryPlan
from emberflow.runners.batch.passes import lanes, takeover
from emberflow.runners.batch.passes.machines import Keyed
from emberflow.runners.batch.passes.stamping import StampedRows
from emberflow.runners.batch.passes.takeover import Successor
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.batch.versions import History
from emberflow.values.item import FRONT_MIN
from tests.batch.local import batch_versions
from tests.batch.test_transactions import random_case
from tests.effort import blocks
from tests.simulation.versioned import VersionCase
from tests.strategies import random_flow


@pytest.mark.parametrize("seeds", blocks("versions in batch", 25), ids=str)
def test_random_versions_equal_the_reference(seeds: range) -> None:
    for seed in seeds:
        expected, found = outputs(seed)
        assert found == expected, (seed, VersionCase.of(seed).name)


def outputs(seed: int) -> tuple[str, str]:
    """What the reference gives for a random case, and what a batch gives."""
    case = VersionCase.of(seed)
    elements = case.elements
    if seed % 2:  # times are unique, so a front is read in parts; otherwise in order
        elements = {name: unique(given) for name, given in elements.items()}
    found = batch_versions(case.versions, elements, partitions=(1, 3, 8)[seed % 3], seed=seed)
    return repr(ef.run(case.versions, **elements)), repr(found)


def unique(elements: list[ef.At[int]]) -> list[ef.At[int]]:
    return list({element.time: element for element in elements}.values())


@pytest.mark.parametrize("seeds", blocks("unchanged versions in batch", 25), ids=str)
def test_versions_that_change_nothing_change_nothing(seeds: range) -> None:
    """All that any operator keeps is taken over, at a time or between elements of one."""
    for seed in seeds:
        flow, elements = random_flow(Random(seed))
        versions = unchanged(Random(seed), lambda seed=seed: random_flow(Random(seed))[0], elements)
        found = batch_versions(versions, elements, partitions=(1, 3, 8)[seed % 3], seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), (seed, flow.name, versions)


@pytest.mark.parametrize("seeds", blocks("unchanged transactions in batch", 25), ids=str)
def test_transactions_go_on_in_the_next_version(seeds: range) -> None:
    for seed in seeds:
        flow, elements = random_case(seed)
        versions = unchanged(Random(seed), lambda seed=seed: random_case(seed)[0], elements)
        found = batch_versions(versions, elements, partitions=(1, 3, 8)[seed % 3], seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), (seed, flow.name, versions)


def unchanged(
    random: Random, flow: Callable[[], ef.Flow], elements: dict[str, list[Any]]
) -> ef.Versions:
    """The same flow, one to three times more."""
    last = max(
        (e.time if isinstance(e, ef.At) else number)
        for given in (*elements.values(), [0])
        for number, e in enumerate(given)
    )
    times = sorted(random.sample(range(1, last + 9), k=random.randint(1, 3)))
    moments = [(time, random.choice((FRONT_MIN, 0, 1))) for time in times]
    return ef.Versions(flow(), *((moment, flow()) for moment in moments))


def test_the_plan_of_a_sink_has_what_leads_to_it_in_every_version() -> None:
    """The counts need the counts of the version before, and not the sums; what is new needs nothing."""

    def flow(*, new: bool) -> ef.Flow:
        made = ef.Flow("two")
        numbers = made.front("numbers")
        numbers.key_by(lambda n: n % 3).count(name="counts").sink("counts")
        numbers.key_by(lambda n: n % 3).sum(name="sums").sink("sums")
        if new:
            numbers.filter(lambda n: n > 3).sink("large")
        return made

    history = History.of(ef.Versions(flow(new=False), (5, flow(new=True))), 3)
    graph = history.graphs[1]
    first, second = history.chain_to(1, graph.sinks["counts"])
    names = {history.graphs[0].nodes[node].name for node in first.goals}
    assert {name.partition("/")[0] for name in names} == {"counts"}
    assert (first.taken, second.version) == (None, 1)
    assert [link.version for link in history.chain_to(1, graph.sinks["large"])] == [1]


def test_keys_of_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lanes, takeover):
        monkeypatch.setattr(module, "key_hash", lambda key: 7)
    for seed in range(1, 7, 2):
        expected, found = outputs(seed)
        assert found == expected, seed


def counted(*, later: str | None = None) -> ef.Flow:
    flow = ef.Flow("counted")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: n % 3).count(name="counts").sink("out")
    if later is not None:
        timed = numbers.with_time(name="timed")
        timed.map(lambda t: ef.At(t.time + 9, t.payload), name=later).sink("later")
    return flow


def test_it_may_end_within_a_version_or_before_it() -> None:
    versions = ef.Versions(counted(later="later"), (5, counted(later="later")), (9, counted()))
    numbers = [ef.At(time, time) for time in range(20)]
    for until in (3, 5, 6):
        # What is scheduled for the very time belongs to it, and nothing else of a later time.
        below = [each for each in numbers if each.time < until]
        first = ef.Versions(
            *[counted(later="later"), (5, counted(later="later"))][: 1 + (until > 5)]
        )
        expected = ef.run(first, numbers=below)
        expected["later"] = [number for number in expected["later"] if number + 9 <= until]
        found = batch_versions(versions, {"numbers": numbers}, partitions=2, seed=1, until=until)
        assert found == expected


def test_errors_are_those_of_the_reference() -> None:
    numbers = [ef.At(time, time) for time in range(20)]
    raising = {"counts": ef.Migrate("counts", lambda key, value: key / 0)}
    for versions, kind in (
        (ef.Versions(counted(), (5, counted(), raising)), MigrationError),
        (ef.Versions(counted(later="later"), (5, counted(later="much later"))), CarryError),
    ):
        with pytest.raises(kind) as expected:
            ef.run(versions, numbers=numbers)
        with pytest.raises(kind) as raised:
            batch_versions(versions, {"numbers": numbers}, partitions=1, seed=0)
        said = str(raised.value)
        assert said.partition("with the key")[0] == str(expected.value).partition("with the key")[0]
        # Spark tells of it by a traceback in the text of an exception of its own.
        text = f"Traceback\n{kind.__module__}.{kind.__qualname__}: {said}\n\n\tat org.apache.spark"
        found = ef.failure_of(RuntimeError(text))
        assert (type(found), str(found)) == (kind, said)


# Mutations: each is caught by some seed.


def taken_twice(rows: Iterable[Row], plan: CarryPlan, moment: Moment) -> Iterator[Row]:
    """State is carried twice: migrated again, and items of a bucket are there twice."""
    for row in list(translated_rows(rows, plan, moment)):
        (carried,) = {each for each in plan.carried.values() if each.new == row.operation}
        yield row
        if carried.migrate is not None:
            yield row._replace(payload=carried.migrate(row.key, row.payload))
        elif carried.kept is not None:
            yield row


def no_timer(self: Successor, items: Any) -> None:
    """Scheduled items are lost."""


def no_rest(self: Keyed) -> None:
    """State that no item meets in a version is lost."""
    self._begun.clear()
    self.end()
    self._lane = None


def no_look_ahead(self: Successor, *given: Any) -> None:
    """Items that are scheduled for a version after the next one are emitted at once."""
    *rest, _, bus = given
    _begin(self, *rest, None, bus)


_begin = Successor.__init__
_first_from = StampedRows._first_from


def entering_twice(self: StampedRows, moment: Moment, *rest: Any) -> int:
    """The elements of T enter both versions."""
    is_end = moment == self._until and moment[0] < 2**62
    return _first_from(self, (moment[0] + 1, moment[1]) if is_end else moment, *rest)


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "state is carried twice": (takeover, "translated_rows", taken_twice),
    "timers are lost": (Successor, "_take_scheduled", no_timer),
    "timers of later versions are emitted at once": (Successor, "__init__", no_look_ahead),
    "state that no item meets is lost": (Keyed, "end_slice", no_rest),
    "elements of T enter both versions": (StampedRows, "_first_from", entering_twice),
    "state goes to one task": (Units, "is_spread", lambda self, unit: False),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    for seed in count():
        assert seed < 100, f"not caught: {name}"
        try:
            expected, found = outputs(seed)
        except Exception:
            break
        if found != expected:
            break
