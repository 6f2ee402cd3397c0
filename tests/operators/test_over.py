"""Windows that end with each payload, against the rows of its key so far."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators import naive
from tests.operators.agreement import check_workers_and_batch
from tests.operators.inputs import Event, events, keyed_outputs_of, searching, value_of
from tests.operators.naive import Row
from tests.operators.test_event_time_windows import Source, front_of, sources
from tests.operators.test_several_aggregates import arguments, drawn, expected_of

Frame = dict[str, int]

frames = st.one_of(
    st.integers(1, 5).map(lambda rows: {"rows": rows}),
    st.integers(0, 9).map(lambda last: {"last": last}),
)


def framed(rows: list[tuple[int, Any]], frame: Frame) -> list[Any]:
    """Those of the rows, which end with the one that asks, that are in its frame."""
    if "rows" in frame:
        return [payload for _, payload in rows[-frame["rows"] :]]
    return [payload for time, payload in rows if time >= rows[-1][0] - frame["last"]]


@searching
@given(events(at_most=20), frames, drawn)
def test_an_aggregate_is_of_the_rows_in_the_frame(
    events: list[Event], frame: Frame, chosen: dict[str, bool]
) -> None:
    found = keyed_outputs_of(
        events, lambda keyed: keyed.over(**frame).aggregate(**arguments(chosen)).with_time()
    )
    assert [timed.payload[0] for timed in found] == events
    for place, (event, (time, (_, values))) in enumerate(zip(events, found, strict=True)):
        rows = [(e.time, e) for e in events[: place + 1] if e.key == event.key]
        assert time == event.time
        assert values._asdict() == expected_of(chosen, framed(rows, frame))


@searching
@given(sources(), frames, st.sampled_from(["collect", "count"]))
def test_rows_out_of_order_and_of_equal_times_are_in_the_frames_of_their_time(
    source: Source, frame: Frame, aggregate: str
) -> None:
    """``collect`` has accumulators that cannot be merged, and ``count`` others."""
    flow = ef.Flow("over")
    over = flow.front("rows").key_by(lambda row: row.key).over(**frame)
    getattr(over, aggregate)().sink("out")
    entered = [(one.time, one.row) for one in naive.entries(*source) if not one.is_late]
    expected: list[tuple[Row, Any]] = []
    for place, (_, row) in enumerate(entered):
        rows = [each for each in entered[: place + 1] if each[1].key == row.key]
        inside = framed(rows, frame)
        expected.append((row, tuple(inside) if aggregate == "collect" else len(inside)))
    assert ef.run(flow, rows=front_of(*source))["out"] == expected


METHODS: dict[str, tuple[Callable[[Any], Any], Callable[[list[int]], Any]]] = {
    "sum": (lambda over: over.sum(value_of), sum),
    "min": (lambda over: over.min(value_of), min),
    "max": (lambda over: over.max(value_of), max),
    "mean": (lambda over: over.mean(value_of), lambda values: sum(values) / len(values)),
    "first": (lambda over: over.first(value_of), lambda values: values[0]),
    "last": (lambda over: over.last(value_of), lambda values: values[-1]),
    "distinct": (lambda over: over.distinct(value_of), lambda vs: tuple(dict.fromkeys(vs))),
    "fold": (
        lambda over: over.fold(initial=1, combine=lambda held, e: 2 * held + e.value),
        lambda values: (
            sum(v * 2 ** (len(values) - 1 - i) for i, v in enumerate(values)) + 2 ** len(values)
        ),
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_all_that_windows_can_do_is_there(method: str) -> None:
    dice = Random(method)
    given = [Event(time, 0, "k", dice.randint(-3, 3)) for time in range(30)]
    ask, function = METHODS[method]
    found = keyed_outputs_of(given, lambda keyed: ask(keyed.over(rows=7)))
    values = [event.value for event in given]
    expected = [function(values[max(0, n - 6) : n + 1]) for n in range(30)]
    assert found == list(zip(given, expected, strict=True))


@pytest.mark.parametrize("frame", [{"rows": 200}, {"last": 200}])
def test_a_payload_takes_the_same_time_however_many_are_in_the_window(frame: Any) -> None:
    """Each is mapped once as it comes and once when it is old, and merged with others twice."""
    calls = {"first": 0, "combine": 0, "merge": 0}

    def counted(name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: int) -> int:
            calls[name] += 1
            return function(*arguments)

        return call

    total = ef.Aggregate[int](
        first=counted("first", lambda n: n),
        combine=counted("combine", lambda held, n: held + n),
        merge=counted("merge", lambda held, later: held + later),
    )
    flow = ef.Flow("long")
    flow.front("numbers").key_by(lambda n: None).over(**frame).aggregate(total=total).sink("out")
    found = ef.run(flow, numbers=range(2_000))["out"]
    size = 200 if "rows" in frame else 201
    assert found[-1] == (1_999, (sum(range(2_000 - size, 2_000)),))
    assert calls["combine"] <= 2_000
    assert calls["first"] <= 2_000 + 2_000 / 100
    assert calls["merge"] <= 2 * 2_000


@pytest.mark.parametrize("seed", range(6))
def test_workers_and_batch_agree_with_the_reference(seed: int) -> None:
    random = Random(f"over {seed}")
    flow = ef.Flow("over")
    keyed = ef.merge(flow.front("one"), flow.front("other")).key_by(lambda n: n % 2)
    keyed.over(rows=random.randint(1, 4)).sum().sink("rows")
    keyed.over(last=random.randint(0, 8)).aggregate(
        low=ef.min(), mean=ef.mean(), kinds=ef.count_distinct()
    ).sink("last")
    check_workers_and_batch(flow, random, seed)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "takes rows=, how many payloads, or last=, how much time: one of them"),
        ({"rows": 3, "last": 5}, "one of them"),
        ({"rows": 0}, "over(rows=) takes an int of at least 1, got 0"),
        ({"last": -1}, "over(last=) takes a duration of at least 0, got -1"),
        ({"last": "a while"}, "over(last=):"),
    ],
)
def test_what_is_no_frame_is_refused_at_the_line_that_has_it(
    arguments: Any, complaint: str
) -> None:
    keyed: Any = ef.Flow("refused").front("numbers").key_by(lambda n: n)
    with pytest.raises(ef.FlowError) as raised:
        keyed.over(**arguments)
    assert complaint in str(raised.value)
    assert "test_over.py" in str(raised.value)
