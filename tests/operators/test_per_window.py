"""All keys of a window: each window leaves once, behind its end, with the results of all keys."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.dsl.operators.aggregates import catalogue
from emberflow.dsl.operators.windows.gathering import _GatheringStep
from tests.operators import naive
from tests.operators.agreement import check_workers_and_batch
from tests.operators.inputs import searching
from tests.operators.naive import Windows
from tests.operators.test_event_time_windows import (
    Source,
    cumulating,
    front_of,
    sessions,
    sources,
    spans_of_time,
    spec_of,
)


def value_of(result: ef.WindowResult) -> Any:
    return result.value


@searching
@given(sources(), st.one_of(spans_of_time(), cumulating(), sessions))
def test_the_results_of_a_window_meet_in_the_order_of_the_payloads_that_opened_it(
    source: Source, windows: Windows
) -> None:
    flow = ef.Flow("together")
    keyed = flow.front("rows").key_by(lambda row: row.key)
    closed = keyed.window(spec_of(windows), emit="close").collect()
    closed.per_window().collect().with_time().sink("out")
    entered = [one for one in naive.entries(*source) if not one.is_late]
    expected: dict[tuple[int, int], list[Any]] = {}
    for key in "ab":
        rows = [one for one in entered if one.row.key == key]
        for span in windows.spans([one.time for one in rows]):
            members = [one for one in rows if span[0] <= one.time < span[1]]
            rows_of = tuple(one.row for one in members)
            result = ef.WindowResult(key, ef.Window(*span), rows_of)
            expected.setdefault(span, []).append((members[0].rank, result))
    told = [
        (span[1] + 1, ef.WindowResult(None, ef.Window(*span), tuple(r for _, r in sorted(results))))
        for span, results in expected.items()
    ]
    found = ef.run(flow, rows=front_of(*source))["out"]
    assert [timed.time for timed in found] == sorted(time for time, _ in told)
    # Sessions that end together come in an order that is not part of the definition.
    assert sorted(map(tuple, found)) == sorted(told)


def test_the_greatest_of_a_window_and_totals_of_all_keys() -> None:
    flow = ef.Flow("sold")
    sold = flow.front("sold").key_by(lambda item: item)
    counts = sold.window(ef.Tumbling(10), emit="close").count()
    top = counts.per_window().top(2, by=value_of)
    top.map(lambda r: (*r.window, [(b.key, b.value) for b in r.value])).sink("top")
    kept = counts.filter(lambda result: result.value > 1).per_window()
    kept.aggregate(items=ef.count(), most=ef.max(lambda r: r.key, by=value_of)).sink("totals")
    given = [ef.At(time, item) for time, item in enumerate("aabbbccccdeee")]
    outputs = ef.run(flow, sold=given)
    assert outputs["top"] == [
        (0, 10, [("c", 4), ("b", 3)]),
        (10, 20, [("e", 3)]),
    ]
    assert [(r.key, *r.window, *r.value) for r in outputs["totals"]] == [
        (None, 0, 10, 3, "c"),
        (None, 10, 20, 1, "e"),
    ]


def test_windows_of_windows() -> None:
    """What leaves is a result of a window, behind its end, so the next windows are of time too."""
    flow = ef.Flow("twice")
    numbers = flow.front("numbers").key_by(lambda n: n % 2)
    sums = numbers.window(ef.Tumbling(4), emit="close").sum().per_window().sum(value_of)
    by_day = sums.key_by(lambda result: None).window(ef.Tumbling(8, offset=1), emit="close")
    by_day.collect().map(lambda r: [(*s.window, s.value) for s in r.value]).sink("out")
    assert ef.run(flow, numbers=range(12)) == {
        "out": [[(0, 4, 6)], [(4, 8, 22), (8, 12, 38)]],
    }


@pytest.mark.parametrize("seed", range(6))
def test_workers_and_batch_agree_with_the_reference(seed: int) -> None:
    random = Random(f"per window {seed}")
    spec: Any = random.choice([ef.Tumbling(5), ef.Sliding(6, 2), ef.Session(3), ef.Cumulate(2, 6)])
    flow = ef.Flow("together")
    keyed = ef.merge(flow.front("one"), flow.front("other")).key_by(lambda n: n % 4)
    sums = keyed.window(spec, emit="close").sum()
    sums.per_window().top(2, by=value_of).sink("top")
    sums.per_window().collect().sink("all")
    check_workers_and_batch(flow, random, seed)


def test_there_are_no_more_buckets_however_many_windows_there_have_been() -> None:
    flow = ef.Flow("together")
    numbers = flow.front("numbers").key_by(lambda n: 0)
    numbers.window(ef.Tumbling(1), emit="close").count().per_window().count().sink("out")
    found = ef.simulate(flow, seed=1, workers=1, numbers=range(2_500))
    assert len(found.outputs["out"]) == 2_500
    assert sum(worker.buckets for worker in found.statistics) <= 1_024 + 1


def test_a_window_that_has_closed_leaves_nothing_in_its_bucket() -> None:
    step = _GatheringStep(None, catalogue.count(), closing=True)
    result = ef.WindowResult("a", ef.Window(0, 10), 3)
    held, told, ticks = step.first((10, False, result))
    assert (len(held), told, ticks) == (1, (), (11,))
    assert step((held, told, ticks), (11, True, None)) == ((), ((result.window, 1),), ())


def test_windows_that_share_a_bucket_close_together_in_their_order() -> None:
    """Two windows of one end rarely have the same bucket, so no random flow comes here."""
    step = _GatheringStep(None, catalogue.sum(value_of), closing=True)
    late, whole = ef.Window(5, 10), ef.Window(0, 10)
    results = [ef.WindowResult(None, window, n) for n, window in enumerate([late, whole] * 2)]
    held = step.first((10, False, results[0]))
    ticks = held[2]
    for result in results[1:]:
        held = step(held, (10, False, result))
        ticks += held[2]
        assert not held[1]
    assert ticks == (11, 11)
    later = ef.WindowResult(None, ef.Window(4, 13), 4)
    for closing in ((11, True, None), (13, False, later)):
        assert step(held, closing)[1] == ((whole, 1 + 3), (late, 0 + 2))


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda keyed: keyed.count(), "takes the results of windows (ef.WindowResult), got (0, 1)"),
        (lambda keyed: keyed.window(ef.Tumbling(9)).count(), "with emit='close'"),
        (
            lambda keyed: keyed.window(ef.CountWindow(2), emit="close").count(),
            "windows of time with emit='close'",
        ),
    ],
)
def test_what_is_no_result_of_a_window_that_closes_is_an_error(build: Any, complaint: str) -> None:
    flow = ef.Flow("wrong")
    build(flow.front("numbers").key_by(lambda n: n % 1)).per_window().count().sink("out")
    with pytest.raises(ef.FunctionError) as raised:
        ef.run(flow, numbers=range(5))
    assert complaint in str(raised.value)
