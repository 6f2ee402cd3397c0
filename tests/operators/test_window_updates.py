"""Updates of windows: what they say, what may be asked of them, and what they cost.

`test_event_time_windows` compares them with brute force.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.dsl.operators.aggregates.catalogue import count
from emberflow.dsl.operators.windows.updates import _SessionStep, _TimeStep
from emberflow.runners.batch.plan.stages import Units
from tests.batch.local import batch

TUMBLING = ef.Tumbling(10)
#: Own times of letters.
OWN = {"a": -20, "b": -13, "c": -20, "d": -13, "x": -16}


def told(updates: list[ef.WindowUpdate]) -> list[tuple[Any, ...]]:
    return [(update.kind, *update.window, update.value) for update in updates]


def admitted(windows: Any, own_times: list[int], disorder: int = 0, **more: Any) -> list[Any]:
    """What is told of the counts of windows, for rows of these times that are all of one key."""
    flow = ef.Flow("counts")
    keyed = flow.front("rows").key_by(lambda row: None)
    keyed.window(windows, time="at", late="update", **more).count().sink("out")
    rows = [ef.At(at, {"at": at}) for at in own_times]
    front = ef.fronts.Iterable(rows, disorder=disorder, on_late="admit")
    return told(ef.run(flow, rows=front)["out"])


def test_a_late_row_corrects_a_window_that_has_closed() -> None:
    assert admitted(TUMBLING, [1, 12, 3, 25], emit="close") == [
        ("final", 0, 10, 1),
        ("late", 0, 10, 2),
        ("final", 10, 20, 1),
        ("final", 20, 30, 1),
    ]


def test_a_row_for_a_forgotten_window_comes_out_itself() -> None:
    assert admitted(TUMBLING, [1, 12, 3, 25, 4], emit="close", keep=5) == [
        ("final", 0, 10, 1),
        ("late", 0, 10, 2),
        ("final", 10, 20, 1),
        ("missed", 0, 10, {"at": 4}),
        ("final", 20, 30, 1),
    ]


def test_a_late_row_joins_two_sessions() -> None:
    """What was told of both is taken back."""
    assert admitted(ef.Session(5), [1, 8, 20, 4], emit="close") == [
        ("final", 1, 6, 1),
        ("final", 8, 13, 1),
        ("gone", 1, 6, None),
        ("gone", 8, 13, None),
        ("late", 1, 13, 3),
        ("final", 20, 25, 1),
    ]


def test_payloads_are_combined_in_the_order_in_which_they_enter() -> None:
    """Also those of two sessions that they entered by turns."""
    flow = ef.Flow("order")
    keyed = flow.front("letters").key_by(lambda letter: None)
    sessions = keyed.window(ef.Session(5), emit="update", time=OWN.get, late="update")
    sessions.collect().map(lambda update: (update.kind, update.value)).sink("out")
    assert ef.run(flow, letters="abcdx")["out"] == [
        ("late", ("a",)),
        ("late", ("b",)),
        ("late", ("a", "c")),
        ("late", ("b", "d")),
        ("gone", None),
        ("gone", None),
        ("late", ("a", "b", "c", "d", "x")),
    ]


def test_a_late_row_opens_a_session_again() -> None:
    assert admitted(ef.Session(5), [1, 7, 4], emit="close") == [
        ("final", 1, 6, 1),
        ("gone", 1, 6, None),
        ("final", 1, 12, 3),
    ]
    flow = ef.Flow("open again")
    keyed = flow.front("own").key_by(lambda own: None)
    keyed.window(
        ef.Session(5), emit="close", time=lambda own: own, late="update"
    ).count().with_time().sink("out")
    found = ef.run(flow, own=[ef.At(1, 1), ef.At(6, 2), ef.At(30, 30)])["out"]
    assert [(time, update.kind, *update.window) for time, update in found] == [
        (6, "final", 1, 6),
        (6, "gone", 1, 6),
        (7, "final", 1, 7),
        (35, "final", 30, 35),
    ]


def test_a_row_of_a_forgotten_session_is_missed_and_not_a_session_of_its_own() -> None:
    """The session of 1 to 6 is forgotten at 8; one of 4 alone would end at 9."""
    assert admitted(ef.Session(5), [1, 8, 4], emit="close", keep=2) == [
        ("final", 1, 6, 1),
        ("missed", 4, 9, {"at": 4}),
        ("final", 8, 13, 1),
    ]


def test_updates_after_each_row_take_back_sessions_that_grow() -> None:
    assert admitted(ef.Session(5), [1, 3, 20, 2], emit="update") == [
        ("early", 1, 6, 1),
        ("gone", 1, 6, None),
        ("early", 1, 8, 2),
        ("early", 20, 25, 1),
        ("late", 1, 8, 3),
    ]


def test_early_times_are_counted_from_the_start_and_unchanged_windows_are_silent() -> None:
    flow = ef.Flow("early")
    keyed = flow.front("words").key_by(lambda word: None)
    keyed.window(TUMBLING, emit="close", early=3).reduce(
        first=lambda word: word, combine=lambda held, word: held + word
    ).with_time().sink("out")
    words = [ef.At(1, "a"), ef.At(3, "b"), ef.At(7, "c"), ef.At(9, "d")]
    found = [(time, update.kind, update.value) for time, update in ef.run(flow, words=words)["out"]]
    assert found == [
        (3, "early", "a"),
        (6, "early", "ab"),
        (9, "early", "abc"),
        (10, "final", "abcd"),
    ]


def test_updates_have_a_key_a_window_a_value_and_a_kind() -> None:
    flow = ef.Flow("means")
    numbers = flow.front("numbers").key_by(lambda n: n % 2)
    numbers.window(TUMBLING, emit="close", early=5).mean().sink("means")
    update = ef.run(flow, numbers=[1, 2, 3])["means"][0]
    assert update == ef.WindowUpdate(key=1, window=ef.Window(0, 10), value=2.0, kind="early")


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_own_times_may_be_datetimes_and_spans_durations(unit: Any) -> None:
    flow = ef.Flow("durations", unit=unit)
    keyed = flow.front("rows").key_by(lambda row: None)
    keyed.window(
        ef.Tumbling("10 seconds"),
        emit="close",
        early=timedelta(seconds=4),
        time="at",
        late="update",
        keep="1 minute",
    ).count().sink("out")
    begin = datetime(2026, 5, 1)
    times = [begin + timedelta(seconds=seconds) for seconds in (1, 12, 3, 90, 4)]
    rows = [ef.At(at, {"at": at}) for at in times]
    front = ef.fronts.Iterable(rows, disorder=0, on_late="admit", unit=unit)
    kinds = [update.kind for update in ef.run(flow, rows=front)["out"]]
    assert kinds == ["early", "final", "late", "early", "final", "missed", "early", "final"]


# --- Payloads that were scheduled -----------------------------------------------------------------


# As in `test_windows`: one of these names comes before the ticks of its time, the other one behind them.
@pytest.mark.parametrize("name", ["d", "e"])
@pytest.mark.parametrize("windows", [ef.Tumbling(20, offset=5), ef.Session(11)])
def test_a_payload_scheduled_for_an_early_time_is_not_in_that_result(
    name: str, windows: Any
) -> None:
    flow = ef.Flow("scheduled")
    scheduled = flow.front("numbers").map(lambda n: ef.At(5 * n, n), name=name)
    windowed = scheduled.key_by(lambda n: None).window(windows, emit="close", early=5)
    windowed.collect().map(lambda update: (update.kind, update.value)).sink("out")
    found = ef.run(flow, numbers=[ef.At(-n, n) for n in (1, 2, 3)])["out"]
    assert [each for each in found if each[0] != "gone"] == [
        ("early", (1,)),
        ("early", (1, 2)),
        ("early", (1, 2, 3)),
        ("final", (1, 2, 3)),
    ]


# --- What it costs --------------------------------------------------------------------------------


def test_a_session_that_merges_goes_on_from_its_older_part() -> None:
    """Of 200 payloads and the three of a later session, only those three are combined again."""
    combined = 0

    def combine(held: int, row: dict[str, int]) -> int:
        nonlocal combined
        combined += 1
        return held + 1

    flow = ef.Flow("merged")
    keyed = flow.front("rows").key_by(lambda row: None)
    sessions = keyed.window(ef.Session(5), emit="close", time="at", late="update")
    sessions.reduce(first=lambda row: 1, combine=combine).sink("out")
    rows = [ef.At(n, {"at": n}) for n in (*range(200), 205, 206, 207)] + [ef.At(300, {"at": 202})]
    *_, last = ef.run(flow, rows=rows)["out"]
    assert (last.kind, *last.window, last.value) == ("late", 0, 212, 204)
    assert combined == 199 + 2 + 3 + 1


@pytest.mark.parametrize("windows", [ef.Tumbling(3), ef.Session(2)])
def test_many_windows_are_known_and_a_payload_copies_few_of_them(windows: Any) -> None:
    """Thousands of windows are kept for ever. A payload makes a way through a tree, and no more."""

    def nodes(tree: Any) -> set[int]:
        return set() if tree is None else {id(tree)} | nodes(tree[3]) | nodes(tree[4])

    kind = _SessionStep if isinstance(windows, ef.Session) else _TimeStep
    step = kind(windows, count(), closing=True, early=None, keep=None, merges=True)
    accumulator = step.first((0, False, "payload", 0))
    for time in range(3, 6_000, 3):
        accumulator = step(accumulator, (time, False, "payload", time))
    known = nodes(accumulator[0].known._tree)
    assert len(known) == 2_000
    for own in (0, 3_000, 5_997, 6_000):
        after = step(accumulator, (6_000, False, "payload", own))
        assert len(nodes(after[0].known._tree) - known) < 3 * 12


# --- In batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_batch_equals_the_reference(seed: int) -> None:
    random = Random(f"updates in batch {seed}")
    spec = random.choice([ef.Tumbling(5), ef.Sliding(6, 2), ef.Session(2), ef.Session(3)])
    emit: Any = random.choice(["close", "update"])
    flow = ef.Flow("updates")
    numbers = flow.front("numbers").key_by(lambda n: n % 2)
    numbers.window(
        spec,
        emit=emit,
        early=2 if emit == "close" else None,
        time=lambda n: n // 100,
        late="update",
        keep=random.choice([None, 4]),
    ).collect().sink("corrected")
    numbers.window(spec, emit="close", early=3).sum().sink("early")
    elements = [
        ef.At(at, 100 * (at - random.choice((0, 0, 1, 3, 9))) + random.randrange(100))
        for at in range(40)
    ]
    expected = ef.run(flow, numbers=elements)
    found = batch(flow, {"numbers": elements}, partitions=3, seed=seed)
    assert repr(found) == repr(expected)
    assert len(expected["early"]) > 10


def test_the_ticks_of_updates_stay_within_their_key() -> None:
    """So that a batch is spread by key, and not run in one task."""
    flow = ef.Flow("cycle")
    numbers = flow.front("numbers").key_by(lambda n: n)
    numbers.window(ef.Session(5), emit="close", early=2).count().sink("early")
    units = Units(flow.graph())
    (region,) = [unit for unit in units.units if unit.is_region]
    assert units.keyed_node(region, region.nodes[0]) is not None


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "given", "message"),
    [
        (
            TUMBLING,
            {"early": 0, "emit": "close"},
            r"early=\) takes a duration of at least 1, got 0",
        ),
        (
            TUMBLING,
            {"early": True, "emit": "close"},
            r"early=\): A duration is an int, .* got True",
        ),
        (TUMBLING, {"early": 5}, r"early=\) is for emit='close' .*'update' gives a value after"),
        (TUMBLING, {"late": "drop", "time": "at"}, r"late=\) takes 'update' or None, got 'drop'"),
        (TUMBLING, {"late": "update"}, r"late='update'\) at .* needs time=, the field .*'admit'"),
        (TUMBLING, {"time": "at"}, r"time=\) at .* needs late='update': a payload whose own time"),
        (TUMBLING, {"time": 5, "late": "update"}, r"time=\) takes a field .*, got 5"),
        (TUMBLING, {"keep": 5}, r"keep=\) is for late='update'"),
        (TUMBLING, {"keep": -1, "time": "at", "late": "update"}, r"keep=\) takes a duration of at"),
        (ef.CountWindow(3), {"early": 5, "emit": "close"}, r"early=, .* are for Tumbling, Sliding"),
        (
            "ten",
            {"early": 5, "emit": "close"},
            r"window\(\) takes Tumbling, Sliding, Cumulate, .* or",
        ),
        (ef.Tumbling, {}, r"window\(\) takes .* Call it: Tumbling\(...\)"),
        (TUMBLING, {"early": 5, "emit": "end"}, r"emit=\) takes 'update' or 'close', got 'end'"),
    ],
)
def test_what_does_not_fit_is_told(windows: Any, given: Any, message: str) -> None:
    keyed = ef.Flow("wrong").front("rows").key_by(lambda row: row)
    with pytest.raises(ef.FlowError, match=message) as raised:
        keyed.window(windows, **given)
    assert "test_window_updates.py" in str(raised.value)


class Dated:
    at = 3


@pytest.mark.parametrize(
    ("time", "payload", "problem"),
    [
        ("at", {"on": 3}, "the payload has no field 'at', which time= names"),
        ("at", "text", "the payload has no field 'at', which time= names"),
        ("at", {"at": "3"}, "time= gave '3'. A time is an int of 64 bits or a datetime"),
        (
            lambda row: row["at"] / 2,
            {"at": 3},
            "time= gave 1.5. A time is an int of 64 bits or a datetime",
        ),
        (lambda row: row["on"], {"at": 3}, "KeyError: 'on'"),
        ("at", {"at": datetime(1970, 1, 1)}, "Flow(..., unit='ms')"),
        ("at", {"at": 3}, None),
        ("at", Dated(), None),
    ],
)
def test_the_own_time_of_a_payload(time: Any, payload: Any, problem: str | None) -> None:
    flow = ef.Flow("own times")
    keyed = flow.front("rows").key_by(lambda row: None)
    keyed.window(TUMBLING, time=time, late="update").count().sink("out")
    if problem is None:
        assert told(ef.run(flow, rows=[payload])["out"]) == [("early", 0, 10, 1)]
        return
    with pytest.raises(ef.FunctionError) as raised:
        ef.run(flow, rows=[payload])
    assert problem in str(raised.value)
    if callable(time):
        assert "time=lambda" in raised.value.function
