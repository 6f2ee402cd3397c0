"""Steps of a new version that begin from a backfill: as if they had been there from the beginning."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.errors import FlowError
from emberflow.graph.versions import CarryError
from emberflow.runners.comparison import _timed_outputs
from emberflow.values.item import FRONT_MIN
from tests.backfilled import backfilled
from tests.effort import SOAK, tried
from tests.simulation.versioned import KINDS, Part, flow_of

CHUNK = 10


@pytest.mark.parametrize("first", range(0, tried("steps that begin from a backfill"), CHUNK))
def test_a_step_begins_as_if_it_had_been_there_always(first: int, tmp_path: Path) -> None:
    """From T on its output is that of a run with the step from the first element on."""
    for seed in range(first, first + CHUNK):
        random = Random(f"begun {seed}")
        kinds = random.choices(KINDS, k=3)
        parts = [Part(f"{kind} {number}", kind) for number, kind in enumerate(kinds)]
        begun = parts[random.choice((1, 2)) :]
        old, new = flow_of(parts[: -len(begun)], True), flow_of(parts, True)
        moment = random.randint(5, 50), random.choice((FRONT_MIN, 0, 0, 1, 2))
        elements = {
            name: [
                ef.At(time, factor * time % 23) for time in sorted(random.choices(range(60), k=25))
            ]
            for name, factor in (("one", 7), ("two", 5))
        }
        only = new if moment[1] > 0 or random.random() < 0.5 else flow_of(begun, True)
        history = backfilled(only, elements, moment, tmp_path / str(seed))
        carry = {name: ef.Backfilled(history) for part in begun for name in part.keepers}
        versions = ef.Versions(old, (moment, new, carry))
        found, whole = _timed_outputs(versions, elements), _timed_outputs(new, elements)
        for part in parts:
            name = f"out of {part.name}"
            since = moment[0] + (moment[1] >= 0) if part in begun else 0
            expected = [one for one in whole[name] if one[0] >= since]
            got = [one for one in found[name] if one[0] >= since]
            assert got == expected, (seed, name, moment)
            if part in begun:
                assert all(time >= moment[0] for time, _ in found[name]), (seed, name)


def counted(**keys: Any) -> ef.Flow:
    """A flow with a count by each of these keys."""
    flow = ef.Flow("words")
    words = flow.front("words")
    for name, key in keys.items():
        words.key_by(key).count(name=name).sink(f"out of {name}")
    return flow


def letters() -> ef.Flow:
    return counted(letters=str)


def both(**more: Any) -> ef.Flow:
    return counted(letters=str, lower=str.lower, **more)


WORDS = [*"aAbaBA"]


def history(folder: Path, until: tuple[int, int] = (3, 0), flow: ef.Flow | None = None) -> Path:
    return backfilled(both() if flow is None else flow, {"words": WORDS}, until, folder / "history")


def problem(flow: ef.Flow, carry: dict[str, Any], at: Any = (3, 0), old: Any = None) -> str:
    with pytest.raises(CarryError) as error:
        ef.Versions(letters() if old is None else old, (at, flow, carry))
    return str(error.value)


def test_a_step_goes_on_from_its_backfill(tmp_path: Path) -> None:
    carry = {"lower": ef.Backfilled(history(tmp_path))}
    found = ef.run(ef.Versions(letters(), ((3, 0), both(), carry)), words=WORDS)
    assert found["out of lower"] == [("a", 3), ("b", 2), ("a", 4)]
    assert found["out of letters"] == ef.run(letters(), words=WORDS)["out of letters"]


def test_it_may_have_another_name_there(tmp_path: Path) -> None:
    def reminders(name: str) -> ef.Flow:
        flow = ef.Flow("words")
        words = flow.front("words")
        later = words.map(lambda word: ef.At(8, word.lower()), name=name)
        later.key_by(str).count(name=f"{name} counted").sink("reminded")
        return flow

    old = ef.Flow("words")
    old.front("words").sink("all")
    filled = history(tmp_path, flow=reminders("nudge"))
    carry = {
        "remind": ef.Backfilled(filled, "nudge"),
        "remind counted": ef.Backfilled(filled, "nudge counted"),
    }
    versions = ef.Versions(old, ((3, 0), reminders("remind"), carry))
    found = ef.run(versions, words=WORDS)
    assert found["reminded"] == ef.run(reminders("remind"), words=WORDS)["reminded"]
    assert ef.simulate(versions, words=WORDS, seed=3, crashes=2).outputs == found
    half = ef.Versions(
        old, ((3, 0), reminders("remind"), {"remind counted": carry["remind counted"]})
    )
    with pytest.raises(CarryError, match="'nudge' has scheduled items in the backfill"):
        ef.run(half, words=WORDS)


def test_a_backfill_takes_the_place_of_the_state_of_its_step(tmp_path: Path) -> None:
    """What was counted wrongly is counted again, over history."""
    right = counted(letters=str.lower)
    filled = history(tmp_path, flow=counted(letters=str.lower))
    versions = ef.Versions(letters(), ((3, 0), right, {"letters": ef.Backfilled(filled)}))
    assert list(versions[1].plan.lines())[:2] == [
        "dropped: letters",
        f"backfilled: letters, from {filled}",
    ]
    found = ef.run(versions, words=WORDS)["out of letters"]
    assert found == [("a", 1), ("A", 1), ("b", 1), ("a", 3), ("b", 2), ("a", 4)]


def test_it_ends_at_the_very_moment(tmp_path: Path) -> None:
    carry = {"lower": ef.Backfilled(history(tmp_path))}
    told = problem(both(), carry, at=3)
    assert (
        "ends at 3, behind what is scheduled for it, and the new version takes over at 3, before"
        in told
    )
    assert f"until=(3, {FRONT_MIN})" in told
    assert "let the version take over at (3, 0)" in told
    told = problem(both(), carry, at=4)
    assert "takes over at 4, before" in told
    later = backfilled(both(), {"words": WORDS}, (4, 0), tmp_path / "later")
    two = both(lengths=len)
    carry["lengths"] = ef.Backfilled(later)
    assert "a version takes over at one moment" in problem(two, carry)


def test_a_moment_between_elements_takes_the_same_fronts(tmp_path: Path) -> None:
    def two(*names: str, step: str) -> ef.Flow:
        flow = ef.Flow("two")
        for name in names:
            flow.front(name).key_by(str).count(name=f"{step} {name}").sink(name)
        return flow

    elements = {"one": WORDS, "other": WORDS}
    filled = backfilled(two("other", step="new"), elements, (3, 1), tmp_path / "history")
    carry = {
        "new other": ef.Backfilled(filled),
        "new one": ef.Drop("old one"),
        "x": ef.Drop("old other"),
    }
    told = problem(two("one", "other", step="new"), carry, (3, 1), two("one", "other", step="old"))
    assert "it has the fronts other where the new version has one, other" in told


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    filled = ef.Backfilled(history(tmp_path))
    with pytest.raises(ef.InputError, match=r"nowhere has no cut\. A backfill leaves one"):
        ef.Versions(letters(), (3, both(), {"lower": ef.Backfilled(tmp_path / "nowhere")}))
    assert "the backfill at" in problem(both(), {"lower": filled._replace(step="any")})
    assert "its steps with state are 'letters', 'lower'" in problem(
        both(), {"lower": filled._replace(step="any")}
    )
    renamed = counted(letters=str, other=len)
    assert "the new version has no such step" in problem(renamed, {"lower": filled})
    assert "the state of 'lower' (count) in the backfill at" in problem(
        renamed, {"other": filled._replace(step="letters")}
    )
    folded = ef.Flow("words")
    words = folded.front("words")
    words.key_by(str).count(name="letters").sink("out of letters")
    words.key_by(str).fold(initial=0, combine=lambda n, _: n + 1, name="lower").sink("out")
    assert "'lower' is a fold, and 'lower' in the backfill at" in problem(folded, {"lower": filled})
    two = both(lengths=len)
    assert "only one step can take it over" in problem(
        two, {"lower": filled, "lengths": filled._replace(step="lower")}
    )
    with pytest.raises(FlowError, match="takes the location of a checkpoint"):
        ef.Versions(letters(), (3, both(), {"lower": ef.Backfilled("")}))
    # What a backfill knows besides is given up by a word.
    more = both(lengths=len)
    whole = ef.Backfilled(backfilled(more, {"words": WORDS}, (3, 0), tmp_path / "more"))
    assert "the state of 'lengths' (count) in the backfill" in problem(more, {"lower": whole})
    dropped = {"lower": whole, "lengths": ef.Drop("lengths")}
    found = ef.run(ef.Versions(letters(), ((3, 0), more, dropped)), words=WORDS)
    assert found["out of lengths"] == [(1, 1), (1, 2), (1, 3)]


def windows(*names: str) -> ef.Flow:
    flow = ef.Flow("windows")
    keyed = flow.front("words").key_by(str)
    for name in names:
        keyed.window(ef.Tumbling(5), emit="close").count(name=name).sink(name)
    return flow


def test_what_is_scheduled_is_taken_by_its_step(tmp_path: Path) -> None:
    filled = backfilled(windows("new"), {"words": WORDS}, (3, 0), tmp_path / "history")
    carry = {"new": ef.Backfilled(filled)}
    versions = ef.Versions(windows("old"), ((3, 0), windows("old", "new"), carry))
    found = ef.run(versions, words=WORDS)
    assert found["new"] == found["old"] == ef.run(windows("old"), words=WORDS)["old"]
    # The old version has scheduled items at just these places, under the name of the step that begins.
    carry["renamed"] = "new"
    versions = ef.Versions(windows("new"), ((3, 0), windows("renamed", "new"), carry))
    with pytest.raises(CarryError, match="could not be told apart"):
        ef.run(versions, words=WORDS)


def test_scheduled_items_that_nobody_takes_are_an_error(tmp_path: Path) -> None:
    def reminding(*, counts: bool) -> ef.Flow:
        flow = ef.Flow("words")
        words = flow.front("words")
        words.key_by(str).count(name="letters").sink("out of letters")
        if counts:
            later = words.map(lambda word: ef.At(9, word), name="later")
            later.key_by(str).count(name="reminded").sink("reminded")
        return flow

    filled = backfilled(reminding(counts=True), {"words": WORDS}, (3, 0), tmp_path / "history")

    def reminded(**carry: Any) -> Any:
        versions = ef.Versions(reminding(counts=False), ((3, 0), reminding(counts=True), carry))
        return ef.run(versions, words=WORDS)["reminded"]

    with pytest.raises(CarryError, match="'later' has scheduled items in the backfill at"):
        reminded(reminded=ef.Backfilled(filled))
    every = {"reminded": ef.Backfilled(filled), "later": ef.Backfilled(filled)}
    assert reminded(**every) == ef.run(reminding(counts=True), words=WORDS)["reminded"]
    assert len(reminded(**{**every, "later": ef.Drop("later")})) == 3


def test_the_cut_that_was_planned_is_read_or_none(tmp_path: Path) -> None:
    """The checkpoint of a backfill was replaced by that of another one, or removed."""
    folder = history(tmp_path)
    versions = ef.Versions(letters(), ((3, 0), both(), {"lower": ef.Backfilled(folder)}))
    shutil.rmtree(folder)
    with pytest.raises(ef.EmberflowError, match="no longer has cut 1"):
        ef.run(versions, words=WORDS)
    history(tmp_path, until=(2, 0))
    with pytest.raises(ef.EmberflowError, match="no longer has cut 1"):
        ef.run(versions, words=WORDS)
    history_again = shutil.rmtree(folder) or history(tmp_path)
    assert history_again == folder
    assert ef.run(versions, words=WORDS)["out of lower"][0] == ("a", 3)
    assert ef.last_moment(folder) == (3, 0)
    with pytest.raises(ef.InputError, match="has no cut"):
        ef.last_moment(tmp_path / "nowhere")


def test_a_versions_history_is_compared_and_verified(tmp_path: Path) -> None:
    carry = {"lower": ef.Backfilled(history(tmp_path))}
    versions = ef.Versions(letters(), ((3, 0), both(), carry))
    found = ef.compare(both(), versions, words=WORDS)
    assert (found.sinks["out of lower"].only_old, found.sinks["out of lower"].only_new) == (
        3,
        0,
    )
    assert not found.sinks["out of letters"].differs
    if SOAK:
        assert ef.verify(versions, words=WORDS, seeds=3, workers=[1, 2])
