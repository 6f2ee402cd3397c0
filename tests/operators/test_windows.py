"""Windows against their definition: which payloads are in which window, and when it is emitted.

``update`` emits a window's value after each of its payloads, at the payload's time; windows of one
payload come in the order of their starts. ``close`` emits it once, at the end of the window;
windows that end together come in the order of the payloads that opened them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators.inputs import Event, events, keyed_outputs_of, searching, value_of

Windowed = ef.WindowedStream[Any, Event]

# Aggregates of a window: by Emberflow, and from the list of its events.
AGGREGATES: dict[str, tuple[Callable[[Windowed], Any], Callable[[list[Event]], Any]]] = {
    "collect": (lambda w: w.collect(), tuple),
    "count": (lambda w: w.count(), len),
    "sum": (lambda w: w.sum(of=value_of), lambda es: sum(map(value_of, es))),
    "min": (lambda w: w.min(of=value_of), lambda es: min(map(value_of, es))),
    "max": (lambda w: w.max(of=value_of), lambda es: max(map(value_of, es))),
    "mean": (lambda w: w.mean(of=value_of), lambda es: sum(map(value_of, es)) / len(es)),
    "reduce": (
        lambda w: w.reduce(first=lambda e: [e.value], combine=lambda held, e: [*held, e.value]),
        lambda es: [e.value for e in es],
    ),
    "fold": (
        lambda w: w.fold(initial=[7], combine=lambda held, e: [*held, e.value]),
        lambda es: [7, *(e.value for e in es)],
    ),
}
aggregates = st.sampled_from(sorted(AGGREGATES))


def told(events: list[Event], windows: Any, emit: Any, aggregate: str) -> list[Any]:
    """All results with their times."""
    return keyed_outputs_of(
        events, lambda s: AGGREGATES[aggregate][0](s.window(windows, emit=emit)).with_time()
    )


def result(time: int, window: tuple[int, int], members: list[Event], aggregate: str) -> Any:
    value = AGGREGATES[aggregate][1](members)
    return ef.Timed(time, ef.WindowResult(members[0].key, ef.Window(*window), value))


def closed(windows: list[tuple[tuple[int, int], list[Event]]], aggregate: str) -> list[Any]:
    """The results of complete windows, by their ends, then by the payloads that opened them."""
    in_order = sorted(windows, key=lambda entry: (entry[0][1], entry[1][0][:2], entry[0]))
    return [result(window[1], window, members, aggregate) for window, members in in_order]


def same_key(events: list[Event], key: Any) -> list[Event]:
    return [event for event in events if event.key == key]


def keys_of(events: list[Event]) -> list[Any]:
    return [e.key for i, e in enumerate(events) if e.key not in [o.key for o in events[:i]]]


# --- Windows of time ------------------------------------------------------------------------------

time_windows = st.one_of(
    st.builds(ef.Tumbling, st.integers(1, 7), offset=st.integers(-9, 9)),
    st.builds(ef.Sliding, st.integers(1, 7), st.integers(1, 9), offset=st.integers(-9, 9)),
    st.builds(
        lambda step, steps, offset: ef.Cumulate(step, step * steps, offset),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(-9, 9),
    ),
)


def containing(spec: Any, time: int) -> Iterator[tuple[int, int]]:
    """All windows that contain a time, found by trying every start and every end."""
    slide = getattr(spec, "slide", spec.size)
    for start in range(time - spec.size + 1, time + 1):
        if (start - spec.offset) % slide == 0:
            for end in range(start + getattr(spec, "step", spec.size), start + spec.size + 1):
                if (end - start) % getattr(spec, "step", spec.size) == 0 and time < end:
                    yield start, end


@searching
@given(events(), time_windows, aggregates)
def test_a_window_of_time_tells_every_update(
    events: list[Event], spec: Any, aggregate: str
) -> None:
    expected = []
    for place, event in enumerate(events):
        for start, end in containing(spec, event.time):
            so_far = same_key(events[: place + 1], event.key)
            members = [e for e in so_far if start <= e.time < end]
            expected.append(result(event.time, (start, end), members, aggregate))
    assert told(events, spec, "update", aggregate) == expected


@searching
@given(events(), time_windows, aggregates)
def test_a_window_of_time_tells_its_value_when_it_closes(
    events: list[Event], spec: Any, aggregate: str
) -> None:
    windows = [
        ((start, end), [e for e in same_key(events, key) if start <= e.time < end])
        for key in keys_of(events)
        for start, end in sorted(
            {window for e in same_key(events, key) for window in containing(spec, e.time)}
        )
    ]
    assert told(events, spec, "close", aggregate) == closed(windows, aggregate)


# --- Windows of a user's own ----------------------------------------------------------------------


class Listed:
    """Windows from a list. They overlap, and some end together."""

    def __init__(self, windows: list[tuple[int, int]]) -> None:
        self.windows = windows

    def containing(self, time: int) -> list[tuple[int, int]]:
        return [window for window in self.windows if window[0] <= time < window[1]]


listed = st.lists(
    st.tuples(st.integers(-12, 12), st.integers(1, 9)).map(lambda w: (w[0], w[0] + w[1])),
    max_size=8,
).map(Listed)


@searching
@given(events(), listed, aggregates)
def test_windows_of_ones_own_tell_every_update_and_their_values_when_they_close(
    events: list[Event], spec: Listed, aggregate: str
) -> None:
    updates = []
    for place, event in enumerate(events):
        mine = {w for w in spec.windows if w[0] <= event.time < w[1]}
        for start, end in sorted(mine, key=lambda window: (window[1], window[0])):
            so_far = same_key(events[: place + 1], event.key)
            members = [e for e in so_far if start <= e.time < end]
            updates.append(result(event.time, (start, end), members, aggregate))
    assert told(events, spec, "update", aggregate) == updates

    closes = []
    for end in sorted({window[1] for window in spec.windows}):
        opened = []  # of each key: its first payload in a window that ends here
        for key in keys_of(events):
            here = {
                window: members
                for window in spec.windows
                if window[1] == end
                and (members := [e for e in same_key(events, key) if window[0] <= e.time < end])
            }
            if here:
                opened.append((min(members[0][:2] for members in here.values()), here))
        for _, here in sorted(opened, key=lambda entry: entry[0]):
            closes += [result(end, window, here[window], aggregate) for window in sorted(here)]
    assert told(events, spec, "close", aggregate) == closes


@pytest.mark.parametrize(
    ("gives", "complaint"),
    [
        ([(7, 9)], "containing(3) gave Window(start=7, end=9), which does not contain it"),
        ([(0, 3)], "which does not contain it"),
        ([(0, 5.0)], "a window is a pair of ints, its start and its end"),
        ([5], "containing(3) gave 5: a window is a pair of ints"),
        (None, "'NoneType' object is not iterable"),
    ],
)
def test_windows_of_ones_own_that_are_none_are_errors_that_name_them(
    gives: Any, complaint: str
) -> None:
    class Wrong:
        def containing(self, time: int) -> Any:
            return gives

    flow = ef.Flow("wrong")
    flow.front("words").key_by(lambda word: None).window(Wrong()).count().sink("out")
    with pytest.raises(ef.FunctionError) as raised:
        ef.run(flow, words=[ef.At(3, "a")])
    assert complaint in str(raised.value)
    assert "containing=" in raised.value.function


# --- Sessions -------------------------------------------------------------------------------------


def sessions(events: list[Event], gap: int) -> list[list[Event]]:
    """Events of one key, split wherever the next comes ``gap`` or more after the last."""
    cut: list[list[Event]] = []
    for event in events:
        if cut and event.time - cut[-1][-1].time < gap:
            cut[-1].append(event)
        else:
            cut.append([event])
    return cut


@searching
@given(events(), st.integers(1, 6), aggregates)
def test_a_session_tells_every_update(events: list[Event], gap: int, aggregate: str) -> None:
    expected = []
    for place, event in enumerate(events):
        members = sessions(same_key(events[: place + 1], event.key), gap)[-1]
        window = (members[0].time, event.time + gap)
        expected.append(result(event.time, window, members, aggregate))
    assert told(events, ef.Session(gap), "update", aggregate) == expected


@searching
@given(events(), st.integers(1, 6), aggregates)
def test_a_session_tells_its_value_when_it_closes(
    events: list[Event], gap: int, aggregate: str
) -> None:
    windows = [
        ((session[0].time, session[-1].time + gap), session)
        for key in keys_of(events)
        for session in sessions(same_key(events, key), gap)
    ]
    assert told(events, ef.Session(gap), "close", aggregate) == closed(windows, aggregate)


# --- Windows of number ----------------------------------------------------------------------------


@searching
@given(events(), st.integers(1, 4), st.none() | st.integers(1, 5), aggregates)
def test_a_count_window_tells_updates_and_full_windows(
    events: list[Event], size: int, slide: int | None, aggregate: str
) -> None:
    updates, closes = [], []
    for place, event in enumerate(events):
        so_far = same_key(events[: place + 1], event.key)
        number = len(so_far) - 1
        for start in range(number + 1):
            if start % (slide or size) == 0 and number < start + size:
                window = (start, start + size)
                updates.append(result(event.time, window, so_far[start:], aggregate))
                if number == start + size - 1:
                    closes.append(updates[-1])
    spec = ef.CountWindow(size, slide)
    assert told(events, spec, "update", aggregate) == updates
    assert told(events, spec, "close", aggregate) == closes


# --- Payloads that were scheduled -----------------------------------------------------------------

# Like ticks, scheduled payloads come before the elements of their time. Whether they come before
# the tick depends on the names of the operations, and must not matter: these names give one of
# each.
names = pytest.mark.parametrize("name", ["d", "e"])


@names
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (ef.Tumbling(5), [(5, 10, (1,)), (10, 15, (2,)), (20, 25, (4,))]),
        (
            ef.Sliding(10, 5),
            [(0, 10, (1,)), (5, 15, (1, 2)), (10, 20, (2,)), (15, 25, (4,)), (20, 30, (4,))],
        ),
        (ef.Session(5), [(5, 10, (1,)), (10, 15, (2,)), (20, 25, (4,))]),
        (
            ef.Cumulate(5, 10),
            [(0, 10, (1,)), (10, 15, (2,)), (10, 20, (2,)), (20, 25, (4,)), (20, 30, (4,))],
        ),
        (Listed([(0, 10), (5, 15), (10, 15)]), [(0, 10, (1,)), (5, 15, (1, 2)), (10, 15, (2,))]),
    ],
)
def test_a_payload_scheduled_for_the_end_of_a_window_does_not_lose_it(
    name: str, windows: Any, expected: list[Any]
) -> None:
    flow = ef.Flow("scheduled")
    scheduled = flow.front("numbers").map(lambda n: ef.At(5 * n, n), name=name)
    windowed = scheduled.key_by(lambda n: None).window(windows, emit="close")
    windowed.collect().map(lambda r: (*r.window, r.value)).sink("out")
    assert ef.run(flow, numbers=[ef.At(-n, n) for n in (1, 2, 4)]) == {"out": expected}


@names
def test_a_window_of_windows_that_end_with_it_loses_nothing(name: str) -> None:
    """Results of windows of 2 are payloads at their ends, where the windows of 6 end too."""
    flow = ef.Flow("twice")
    pairs = flow.front("numbers").key_by(lambda n: None).window(ef.Tumbling(2), emit="close")
    counts = pairs.count(name=name).key_by(lambda result: None)
    sums = counts.window(ef.Tumbling(6), emit="close").sum(of=lambda result: result.value)
    sums.map(lambda result: (*result.window, result.value)).sink("sums")
    assert ef.run(flow, numbers=range(15)) == {"sums": [(0, 6, 4), (6, 12, 6), (12, 18, 5)]}


def test_a_session_may_last() -> None:
    """A session that is extended again and again is not an endless loop."""
    flow = ef.Flow("kept alive")
    beats = flow.front("beats").key_by(lambda beat: None)
    beats.window(ef.Session(gap=2), emit="close").count().map(lambda r: r.value).sink("counts")
    assert ef.run(flow, beats=range(4000)) == {"counts": [4000]}
