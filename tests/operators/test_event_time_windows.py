"""Windows and interval joins over rows out of order, against brute force (`naive`).

Rows have equal times, several partitions, and some are later than the disorder allows. The library reads
them from a front; the definitions get the rows of each partition.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from tests.effort import SOAK
from tests.operators import naive
from tests.operators.naive import Entry, Row, Update, Windows

searching = settings(max_examples=1_000 if SOAK else 20, deadline=None)

#: The partitions of a front, and how far its rows may be out of order.
Source = tuple[list[list[Row]], int]


#: How far a time is from the one before, and how far an own time is from it.
STEPS, OFF = (0, 1, 1, 2, 3), (0, 0, 0, 0, -1, -2, -3, -4, -6, -9, -12)


@st.composite
def rows_in_time(draw: st.DrawFn, *, ahead: bool = False) -> list[tuple[int, Row]]:
    """Times that do not go back, and rows of times near them: dense, so that windows meet and grow."""
    off = (*OFF, 1, 2, 4, 7, 12) if ahead else OFF
    many = len(STEPS) * len(off) * 3  # one number a row is quicker than three
    if draw(st.booleans()):
        numbers = draw(st.lists(st.integers(0, many - 1), max_size=20))
    else:  # many rows, which hypothesis seldom draws
        numbers = Random(draw(st.integers(0, 10**6))).choices(range(many), k=20)
    found, at = [], 0
    for number, drawn in enumerate(numbers):
        rest, step = divmod(drawn, len(STEPS))
        key, by = divmod(rest, len(off))
        at += STEPS[step]
        found.append((at, Row(at + off[by], "aab"[key], number)))
    return found


@st.composite
def sources(draw: st.DrawFn) -> Source:
    rows = [row for _, row in draw(rows_in_time())]
    partitions = draw(st.sampled_from([1, 1, 2, 3]))
    return [rows[number::partitions] for number in range(partitions)], draw(st.integers(0, 8))


def front_of(partitions: list[list[Row]], disorder: int, on_late: Any = "divert") -> Any:
    """`fronts.Iterable` deals rows to its partitions in turns."""
    rows = [row for part in partitions for row in part]
    elements = [ef.At(row.at, row) for row in sorted(rows, key=lambda row: row.number)]
    return ef.fronts.Iterable(
        elements, partitions=len(partitions), disorder=disorder, on_late=on_late
    )


@st.composite
def spans_of_time(draw: st.DrawFn) -> Windows:
    size, offset = draw(st.integers(1, 8)), draw(st.integers(-5, 5))
    slide = size if draw(st.booleans()) else draw(st.integers(1, 9))
    return Windows(size=size, slide=slide, offset=offset)


@st.composite
def cumulating(draw: st.DrawFn) -> Windows:
    step, offset = draw(st.integers(1, 4)), draw(st.integers(-5, 5))
    size = step * draw(st.integers(1, 4))
    return Windows(size=size, slide=size, step=step, offset=offset)


sessions = st.integers(1, 5).map(lambda gap: Windows(gap=gap))
of_every_kind = pytest.mark.parametrize(
    "kind", [spans_of_time(), cumulating(), sessions], ids=["time", "cumulate", "session"]
)


def spec_of(windows: Windows) -> Any:
    if windows.gap:
        return ef.Session(windows.gap)
    if windows.step:
        return ef.Cumulate(windows.step, windows.size, windows.offset)
    if windows.size == windows.slide:
        return ef.Tumbling(windows.size, windows.offset)
    return ef.Sliding(windows.size, windows.slide, windows.offset)


def number_of(row: Row) -> int:
    return row.number


def told_by_key(results: list[Any]) -> dict[str, list[Update]]:
    """What the library tells, as the definitions have it."""
    found: dict[str, list[Update]] = {"a": [], "b": []}
    for time, result in results:
        kind = getattr(result, "kind", "")
        value = result.value
        if kind == "missed":
            value = value.number
        elif kind != "gone":
            value = tuple(row.number for row in value)
        found[result.key].append(Update(time, kind, tuple(result.window), value))
    return found


def expected_by_key(
    windows: Windows, entered: list[Entry], *, by_own_time: bool
) -> dict[str, list[Update]]:
    return {
        key: naive.updates(
            windows,
            [
                (one.time, one.row.at if by_own_time else one.time, one.row.number)
                for one in entered
                if one.row.key == key
            ],
        )
        for key in "ab"
    }


def in_one_order(told: dict[str, list[Update]]) -> dict[str, list[Update]]:
    """Ticks of one moment have an order that is not part of the definition: sort what they tell."""
    found = {}
    for key, updates in told.items():
        runs: list[list[Update]] = []
        for update in updates:
            is_tick = update.kind in ("early", "final")
            if runs and is_tick and runs[-1][0].time == update.time and runs[-1][0].kind in _TICKS:
                runs[-1].append(update)
            else:
                runs.append([update])
        found[key] = [
            update for run in runs for update in (sorted(run) if run[0].kind in _TICKS else run)
        ]
    return found


_TICKS = ("early", "final")


def windowed(windows: Windows, **more: Any) -> ef.Flow:
    flow = ef.Flow("windows")
    keyed = flow.front("rows").key_by(lambda row: row.key)
    keyed.window(spec_of(windows), emit=windows.emit, **more).collect().with_time().sink("out")
    return flow


# --- Results --------------------------------------------------------------------------------------


@of_every_kind
@searching
@given(sources(), st.data(), st.sampled_from(["update", "close"]), st.booleans())
def test_a_window_holds_the_rows_of_its_time_and_the_late_sink_all_others(
    kind: Any, source: Source, data: st.DataObject, emit: str, admits: bool
) -> None:
    entered = naive.entries(*source)
    windows = data.draw(kind)._replace(emit=emit)
    in_windows = [one for one in entered if admits or not one.is_late]
    expected = expected_by_key(windows, in_windows, by_own_time=False)
    front = front_of(*source, "admit" if admits else "divert")
    outputs = ef.run(windowed(windows), rows=front)
    plain = {
        key: [update._replace(kind="") for update in updates if update.kind != "gone"]
        for key, updates in expected.items()
    }
    assert told_by_key(outputs["out"]) == plain
    if not admits:
        late = [(one.row, one.row.at, one.time - one.row.at) for one in entered if one.is_late]
        assert [(each.payload, each.time, each.by) for each in outputs["late"]] == late


@searching
@given(sources(), sources(), st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted))
def test_an_interval_join_pairs_the_rows_that_are_not_late(
    left: Source,
    right: Source,
    within: list[int],
) -> None:
    flow = ef.Flow("join")
    sides = [flow.front(name).key_by(lambda row: row.key) for name in ("left", "right")]
    sides[0].join(sides[1], within=(within[0], within[1])).sink("pairs")
    entered = [
        [one for one in naive.entries(*source, front=number, fronts=2) if not one.is_late]
        for number, source in enumerate((left, right))
    ]
    outputs = ef.run(flow, left=front_of(*left), right=front_of(*right))
    assert outputs["pairs"] == naive.pairs(*entered, *within)


# --- Updates --------------------------------------------------------------------------------------

earlies = st.sampled_from([None, 1, 2, 3, 5])
keeps = st.sampled_from([None, None, 0, 1, 3, 8])


@of_every_kind
@searching
@given(sources(), st.data(), st.integers(1, 5))
def test_an_open_window_tells_its_value_early_if_it_has_changed(
    kind: Any, source: Source, data: st.DataObject, early: int
) -> None:
    windows = data.draw(kind)._replace(emit="close", early=early)
    in_windows = [one for one in naive.entries(*source) if not one.is_late]
    expected = expected_by_key(windows, in_windows, by_own_time=False)
    outputs = ef.run(windowed(windows, early=early), rows=front_of(*source))
    assert in_one_order(told_by_key(outputs["out"])) == in_one_order(expected)


@of_every_kind
@searching
@given(sources(), st.data(), earlies, keeps, st.booleans())
def test_a_late_row_corrects_the_windows_it_belongs_to(
    kind: Any,
    source: Source,
    data: st.DataObject,
    early: int | None,
    keep: int | None,
    updates: bool,
) -> None:
    early = None if updates else early
    emit = "update" if updates else "close"
    windows = data.draw(kind)._replace(emit=emit, early=early, keep=keep)
    expected = expected_by_key(windows, naive.entries(*source), by_own_time=True)
    flow = windowed(windows, early=early, time="at", late="update", keep=keep)
    outputs = ef.run(flow, rows=front_of(*source, "admit"))
    assert list(outputs) == ["out"]
    assert in_one_order(told_by_key(outputs["out"])) == in_one_order(expected)


@of_every_kind
@searching
@given(rows_in_time(ahead=True), st.data(), earlies, keeps)
def test_own_times_may_also_be_ahead(
    kind: Any, rows: list[tuple[int, Row]], data: st.DataObject, early: int | None, keep: int | None
) -> None:
    """Windows that have not begun hold payloads too, and several sessions are open."""
    windows = data.draw(kind)._replace(emit="close", early=early, keep=keep)
    expected = {
        key: naive.updates(
            windows, [(at, row.at, row.number) for at, row in rows if row.key == key]
        )
        for key in "ab"
    }
    flow = windowed(windows, early=early, time=lambda row: row.at, late="update", keep=keep)
    told = told_by_key(ef.run(flow, rows=[ef.At(at, row) for at, row in rows])["out"])
    assert in_one_order(told) == in_one_order(expected)


@of_every_kind
@searching
@given(sources(), st.data(), earlies, st.booleans())
def test_a_consumer_that_follows_the_updates_always_has_the_right_table(
    kind: Any, source: Source, data: st.DataObject, early: int | None, updates: bool
) -> None:
    """The windows that have ended, with all their rows so far; and of the others no stale session."""
    early = None if updates else early
    emit: Any = "update" if updates else "close"
    windows = data.draw(kind)._replace(emit=emit)
    flow = windowed(windows, early=early, time="at", late="update")
    told = told_by_key(ef.run(flow, rows=front_of(*source, "admit"))["out"])
    entered = naive.entries(*source)
    for key in "ab":
        given = [(one.time, one.row.at, one.row.number) for one in entered if one.row.key == key]
        table: dict[naive.Span, Any] = {}
        waiting = list(told[key])
        for time in range(100):
            while waiting and waiting[0].time <= time:
                update = waiting.pop(0)
                if update.kind == "gone":
                    del table[update.window]  # it is there: nothing is taken back twice
                else:
                    table[update.window] = update.value
            ended = {span: value for span, value in table.items() if span[1] <= time}
            assert ended == naive.table(windows, given, time)
            own_times = [own for at, own, _ in given if at <= time]
            assert table.keys() <= windows.spans(own_times)


# --- Many workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200 if SOAK else 12))
def test_workers_agree_with_the_reference(seed: int) -> None:
    """Also over crashes: what windows hold goes through cuts."""
    random = Random(f"windows of event time {seed}")
    times = [number // 2 + random.choice((0, 0, -1, -3, -9)) for number in range(30)]
    rows = [Row(at, random.choice("ab"), n) for n, at in enumerate(times)]
    spec = random.choice([ef.Tumbling(5), ef.Sliding(6, 2), ef.Session(2), ef.Session(3)])
    early: Any = random.choice([None, 1, 2])
    keep: Any = random.choice([None, None, 4])
    flow = ef.Flow("windows")
    one, other = flow.front("one"), flow.front("other")
    keyed = ef.merge(one, other).key_by(lambda row: row.key)
    updates = keyed.window(spec, emit="close", early=early, time="at", late="update", keep=keep)
    updates.collect().with_time().sink("updates")
    plain = one.key_by(lambda row: row.key).window(spec, emit="close", early=2)
    plain.mean(of=number_of).with_time().sink("early")
    fronts = {
        name: front_of([[row for row in rows if row.number % 2 == part]], 2, "admit")
        for part, name in enumerate(("one", "other"))
    }
    expected = ef.run(flow, **fronts)
    assert {"final", "late"} <= {update.kind for _, update in expected["updates"]}
    for workers in (1, 3):
        crashes = random.choice((0, 2))
        found = ef.simulate(flow, seed=seed, workers=workers, crashes=crashes, **fronts)
        assert found.outputs == expected
