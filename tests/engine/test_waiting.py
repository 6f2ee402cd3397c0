"""Records that wait leave in the order of their times, whatever comes in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.progress.waiting import ByTime

times = st.integers(-20, 20) | st.integers(-(10**9), 10**9)
#: So many, so far apart, that buckets have to become wider.
spread = st.builds(
    lambda first, step: list(range(first, first + 400 * step, step)), times, st.integers(1, 10**6)
)
records = st.lists(times, max_size=30) | spread
steps = st.lists(st.tuples(records, times, st.integers(0, 300)), max_size=8)


@given(steps, st.sampled_from([0, 5, 1_000, 10**9]))
def test_they_leave_in_the_order_of_their_times_and_equal_ones_as_they_came(
    steps: list[tuple[list[int], int, int]], span: int
) -> None:
    waiting, kept, number = ByTime(span), [], 0
    for added, below, most in steps:
        new = [(time, number + at) for at, time in enumerate(added)]
        number += len(new)
        waiting.add_all(new)
        kept = sorted(kept + new)
        due = [record for record in kept if record[0] < below]
        last = due[min(most, len(due)) - 1][0] if due and most else -(10**10)
        expected = [record for record in due if record[0] <= last]
        assert waiting.take(below, most) == expected
        kept = kept[len(expected) :]
        assert len(waiting) == len(kept)
        if kept:
            assert waiting.least() <= kept[0][0]
            if most > len(expected):  # all below it have left
                assert waiting.least() >= min(below, kept[0][0])
