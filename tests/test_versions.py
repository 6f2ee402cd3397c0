"""Versions of a flow: elements below T go through the old one, elements from T on through the new one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.errors import FlowError, InputError
from emberflow.graph.description import steps_of
from emberflow.graph.versions import CarryError, carry_plan
from tests.effort import tried
from tests.strategies import random_flow

CHUNK = 25


@pytest.mark.parametrize("first", range(0, tried("versions that change nothing"), CHUNK))
def test_versions_that_change_nothing_change_nothing(first: int) -> None:
    """All that any operator keeps is carried: buckets, accumulators, open windows, scheduled items."""
    for seed in range(first, first + CHUNK):
        flow, elements = random_flow(Random(seed))
        times = _times(flow, elements)
        random = Random(f"versions {seed}")
        begins = sorted(random.sample(range(times[0], times[-1] + 9), k=random.randint(1, 3)))
        again = [(at, random_flow(Random(seed))[0]) for at in begins]
        assert ef.run(ef.Versions(flow, *again), **elements) == ef.run(flow, **elements), seed


def _times(flow: ef.Flow, elements: dict[str, Any]) -> list[int]:
    seen = ef.Flow("times")
    fronts = [seen.front(name) for name in flow.graph().fronts]
    merged = ef.merge(*fronts) if len(fronts) > 1 else fronts[0]
    merged.with_time().map(lambda timed: timed.time).sink("times")
    return ef.run(seen, **elements)["times"] or [0]


def counted(key: Any = str, name: str | None = "counts", sink: str = "out") -> ef.Flow:
    flow = ef.Flow("words")
    flow.front("words").key_by(key).count(name=name).sink(sink)
    return flow


def folded(name: str = "counts") -> ef.Flow:
    flow = ef.Flow("words")
    words = flow.front("words").key_by(str)
    words.fold(initial=(), combine=lambda all_, word: (*all_, word), name=name).sink("out")
    return flow


def test_a_version_begins_with_the_first_element_of_its_time() -> None:
    def labelled(label: str) -> ef.Flow:
        flow = ef.Flow("labels")
        flow.front("a").map(lambda n: (label, n)).sink("a")
        flow.front("b").map(lambda n: (label, n)).sink("b")
        return flow

    versions = ef.Versions(labelled("old"), (1, labelled("new")), (3, labelled("newest")))
    assert ef.run(versions, a=[0, 1, 2, 3], b=[ef.At(0, 0), ef.At(1, 1), ef.At(1, 2)]) == {
        "a": [("old", 0), ("new", 1), ("new", 2), ("newest", 3)],
        "b": [("old", 0), ("new", 1), ("new", 2)],
    }


def test_a_window_that_is_open_closes_in_the_new_version() -> None:
    def windows(unit: str) -> ef.Flow:
        flow = ef.Flow("windows")
        keyed = flow.front("clicks").key_by(str)
        closed = keyed.window(ef.Tumbling(10), emit="close").count(name="per ten")
        closed.map(lambda r: (unit, r.key, r.window.start, r.value)).sink("counts")
        return flow

    clicks = [ef.At(time, "ada") for time in (1, 5, 8, 12)]
    versions = ef.Versions(windows("old"), (7, windows("new")))
    assert ef.run(versions, clicks=clicks)["counts"] == [
        ("new", "ada", 0, 3),
        ("new", "ada", 10, 1),
    ]


def test_a_window_of_another_size_is_another_step() -> None:
    def windows(size: int) -> ef.Flow:
        flow = ef.Flow("windows")
        closed = flow.front("n").key_by(str).window(ef.Tumbling(size), emit="close")
        closed.count(name="counts").sink("counts")
        return flow

    with pytest.raises(
        CarryError, match=r"is a window of Tumbling\(size=20, .* was a window of Tum"
    ):
        ef.Versions(windows(10), (5, windows(20)))
    dropped = (5, windows(20), {"counts": ef.Drop("counts")})
    ef.run(ef.Versions(windows(10), dropped), n=range(9))


def test_what_a_map_has_scheduled_is_emitted_by_the_map_of_its_name() -> None:
    def reminders(label: str, name: str = "remind") -> ef.Flow:
        flow = ef.Flow("reminders")
        calls = flow.front("calls").flat_map(lambda call: [ef.At(10, call)], name=name)
        calls.map(lambda call: f"{label} {call}").sink("heard")
        return flow

    def heard(*new: Any) -> list[str]:
        return ef.run(ef.Versions(reminders("old"), (5, *new)), calls=[ef.At(1, "hey")])["heard"]

    assert heard(reminders("new")) == ["new hey"]
    assert heard(reminders("new", "nudge"), {"nudge": "remind"}) == ["new hey"]
    assert heard(reminders("new", "nudge"), {"remind": ef.Drop("remind")}) == []
    with pytest.raises(CarryError, match="'remind' has scheduled items that wait"):
        heard(reminders("new", "nudge"))


def test_state_is_renamed_migrated_and_dropped() -> None:
    words = ["a", "b", "a", "a"]

    def out(new: ef.Flow, carry: Any) -> list[Any]:
        return ef.run(ef.Versions(counted(), (3, new, carry)), words=words)["out"][3:]

    assert out(counted(name="n"), {"n": "counts"}) == [("a", 3)]
    assert out(counted(name="n"), {"counts": ef.Drop("counts")}) == [("a", 1)]
    assert out(counted(), {"counts": ef.Drop("counts")}) == [("a", 1)]
    migrate = ef.Migrate("counts", lambda word, count: (word.upper(),) * count)
    assert out(folded(), {"counts": migrate}) == [("A", "A", "a")]


def test_states_of_transactions_are_carried() -> None:
    def bank(fee: int) -> ef.Flow:
        flow = ef.Flow("bank")
        accounts = flow.state("accounts", default=10)
        with flow.front("payments").transaction() as tx:
            tx.key_by(lambda p: p[0]).update(
                accounts,
                lambda balance, p: balance - p[1] - fee,
                check=lambda balance: balance >= 0,
            )
        tx.committed.sink("done")
        tx.rejected.map(lambda r: r.element).sink("refused")
        return flow

    payments = [("ada", 4), ("bob", 1), ("ada", 5), ("bob", 8)]
    assert ef.run(ef.Versions(bank(0), (2, bank(2))), payments=payments) == {
        "done": [("ada", 4), ("bob", 1)],
        "refused": [("ada", 5), ("bob", 8)],
    }


def test_a_grouping_of_another_window_keeps_what_it_can() -> None:
    def grouped(window: int) -> ef.Flow:
        flow = ef.Flow("groups")
        flow.front("n").key_by(lambda n: n % 2).group(window=window, name="last").sink("out")
        return flow

    shorter = ef.run(ef.Versions(grouped(4), (6, grouped(2))), n=range(8))["out"]
    assert shorter[5:] == [(1, 3, 5), (4, 6), (5, 7)]
    longer = ef.run(ef.Versions(grouped(2), (6, grouped(4))), n=range(8))["out"]
    assert longer[5:] == [(3, 5), (4, 6), (5, 7)]


def test_fronts_and_sinks_come_and_go() -> None:
    new = ef.Flow("words")
    more = ef.merge(new.front("words"), new.front("others"))
    more.key_by(str).count(name="counts").sink("all")
    versions = ef.Versions(counted(), (2, new))
    assert ef.run(versions, words=["a", "b", "a"], others=[ef.At(2, "b")]) == {
        "out": [("a", 1), ("b", 1)],
        "all": [("a", 2), ("b", 2)],
    }
    with pytest.raises(InputError, match="front 'others' has 1 elements of times at which"):
        ef.run(versions, words=["a"], others=[ef.At(1, "b")])
    with pytest.raises(InputError, match="no version of flow 'words' has a front 'word'"):
        ef.run(versions, words=["a"], others=[], word=[])


@pytest.mark.parametrize(
    ("new", "carry", "problem"),
    [
        (counted(name="n"), None, "state of 'counts' (count) would be lost"),
        (folded(), None, "step 'counts' is a fold now, and 'counts' was a count: say how"),
        (
            counted(),
            {"counts": "numbers"},
            "carry= names 'numbers', and the old version has no such",
        ),
        (counted(), {"n": "counts"}, "carry= names 'n', and the new version has no such step"),
        (counted(), ["counts"], "carry= takes a dict from names of steps"),
        (counted(), {"counts": ef.Migrate("counts", 7)}, "takes a function of key and value"),  # type: ignore[arg-type]
    ],
)
def test_state_that_would_be_lost_is_an_error(new: ef.Flow, carry: Any, problem: str) -> None:
    with pytest.raises(CarryError) as caught:
        ef.Versions(counted(), (2, new, carry))
    assert problem in str(caught.value)


def test_one_state_goes_to_one_step() -> None:
    two = ef.Flow("words")
    words = two.front("words")
    words.key_by(str).count(name="one").sink("one")
    words.key_by(str).count(name="two").sink("two")
    with pytest.raises(CarryError, match=r"'counts' \(count\) goes to 'one' and to 'two'"):
        ef.Versions(counted(), (2, two, {"one": "counts", "two": "counts"}))


def test_a_migration_that_raises_names_the_key() -> None:
    wrong = ef.Migrate("counts", lambda word, count: word / count)
    with pytest.raises(
        ef.EmberflowError, match=r"migration of step .* with the key 'a' and the value 1"
    ):
        ef.run(ef.Versions(counted(), (1, folded(), {"counts": wrong})), words=["a", "b"])


def test_versions_begin_one_after_another() -> None:
    with pytest.raises(FlowError, match="the version of time 2 follows the one of time 2"):
        ef.Versions(counted(), (2, counted()), (2, counted()))
    with pytest.raises(FlowError, match="takes \\(time, flow\\)"):
        ef.Versions(counted(), counted())  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="a version begins at a time, got 'noon'"):
        ef.Versions(counted(), ("noon", counted()))  # type: ignore[arg-type]


def test_what_a_plan_tells() -> None:
    new = ef.Flow("words")
    keyed = new.front("words").key_by(str.lower)
    keyed.count(name="n").sink("out")
    keyed.sum(of=len, name="letters").sink("letters")
    plan = carry_plan(steps_of(counted().graph()), new.graph(), {"n": "counts"})
    assert list(plan.lines())[:2] == ["renamed: counts -> n", "begun: letters"]


def test_a_version_may_begin_between_elements_of_one_time() -> None:
    def tagged(generation: int) -> ef.Flow:
        flow = ef.Flow("tagged")
        both = ef.merge(flow.front("one"), flow.front("two"))
        both.key_by(lambda n: None).count(name="counts").map(lambda c: (generation, c[1])).sink(
            "out"
        )
        return flow

    versions = ef.Versions(tagged(1), ((2, 1), tagged(2)))
    assert repr(versions).count("(2, 1)") == 1
    elements = {"one": [0] * 4, "two": [0] * 4}
    expected = {"out": [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 6), (2, 7), (2, 8)]}
    assert ef.run(versions, **elements) == expected
    for seed in range(5):
        assert ef.simulate(versions, seed=seed, crashes=seed % 3, **elements).outputs == expected
    for wrong in ((2,), (2, "front"), (2.5, 1), ("2", 1)):
        with pytest.raises(ef.FlowError, match=r"at a time or at a moment \(time, front\)"):
            ef.Versions(tagged(1), (wrong, tagged(2)))
    with pytest.raises(ef.FlowError, match="one after another"):
        ef.Versions(tagged(1), ((2, 1), tagged(2)), (2, tagged(3)))
