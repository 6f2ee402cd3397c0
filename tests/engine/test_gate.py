"""The gate: never more than its credit at or above the minimal time, and never shut for good."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.engine.progress.gate import Gate
from emberflow.values.item import TIE
from tests.effort import examples


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2)), max_size=40),
    st.integers(1, 4),
)
@settings(max_examples=examples(200), deadline=None)
def test_credits_are_what_is_left_of_the_credit(
    script: list[tuple[bool, int, int]], credit: int
) -> None:
    """Emit if there is a credit, one or all, or let the minimal time move; times have gaps and ties."""
    gate, minimal, emitted = Gate(front=1, credit=credit), (0, 0), list[Moment]()
    last: Moment = (0, 1)
    for emits, further, tie in script:
        if emits and gate.credits:
            time = last[0] + further
            moments = [(time, last[1] + TIE) if not further else (time, 1)]
            if tie:
                moments += [(time + 1 + more, 1) for more in range(gate.credits - 1)]
                times, fronts = zip(*moments, strict=True)
                is_plain = set(fronts) == {1}
                gate.emitted_all(times, [*moments], 0, None if is_plain else fronts)
            else:
                gate.emitted(moments[0])
            last = moments[-1]
            emitted += moments
            assert gate.promise == (last[0], last[1] + TIE)
        else:
            minimal = min(max(minimal, (minimal[0] + further, tie * TIE + 1)), gate.promise)
            gate.minimal_time(minimal)
        assert gate.credits == credit - sum(moment >= minimal for moment in emitted)
        assert 0 <= gate.credits <= credit
        if gate.position is not None:
            assert gate.position < minimal
    gate.minimal_time(gate.promise)
    assert gate.credits == credit


def test_its_own_promise_gives_its_credits_back() -> None:
    """So a front that waits for nobody else never waits for ever."""
    gate = Gate(front=0, credit=1)
    gate.emitted((7, 0))
    assert gate.credits == 0
    gate.minimal_time(gate.promise)
    assert gate.credits == 1


def test_a_minimal_time_of_another_front_counts_by_the_order_of_global_times() -> None:
    gate = Gate(front=1, credit=2)
    gate.emitted((5, 1))
    gate.minimal_time((5, 1))
    assert gate.credits == 1
    gate.minimal_time((5, 2))
    assert gate.credits == 2


def test_idle_and_finished_promise_without_an_element() -> None:
    gate = Gate(front=0, credit=1)
    gate.idle_until(10)
    assert gate.promise == (10, 0)
    gate.idle_until(3)
    assert gate.promise == (10, 0)
    gate.emitted((10, 0))
    gate.finished()
    assert gate.promise == AFTER_ALL


def test_what_breaks_a_promise_is_refused() -> None:
    gate = Gate(front=0, credit=5)
    gate.emitted((4, 0))
    for moment in ((3, 0), (4, 0)):
        with pytest.raises(ef.InputError, match="in the order of their times"):
            gate.emitted(moment)
    gate.emitted((4, TIE))
    gate.emitted((5, 0))


def test_a_credit_of_zero_would_never_begin() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Gate(front=0, credit=0)
