"""The gate: never more than its credit at or above the minimal time, and never shut for good."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.progress.gate import Gate


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_credits_are_what_is_left_of_the_credit(
    script: list[tuple[bool, int]], credit: int
) -> None:
    """Emit if there is a credit, one or all, or let the minimal time move; times have gaps."""
    gate, time, minimal, emitted = Gate(front=1, credit=credit), 0, 0, []
    for emits, further in script:
        if emits and gate.credits:
            times = [time + 1 + further, *range(time + 5, time + 4 + gate.credits)]
            if further:
                gate.emitted_all(times)
            else:
                gate.emitted(times[0])
                del times[1:]
            time = times[-1]
            emitted += times
            assert gate.promise == (time + 1, 1)
        else:
            minimal = min(minimal + further, time + 1)
            gate.minimal_time((minimal, 1))
        open_ = [element for element in emitted if (element, 1) >= (minimal, 1)]
        assert gate.credits == credit - len(open_)
        assert 0 <= gate.credits <= credit
    gate.minimal_time(gate.promise)
    assert gate.credits == credit


def test_its_own_promise_gives_its_credits_back() -> None:
    """So a front that waits for nobody else never waits for ever."""
    gate = Gate(front=0, credit=1)
    gate.emitted(7)
    assert gate.credits == 0
    gate.minimal_time(gate.promise)
    assert gate.credits == 1


def test_a_minimal_time_of_another_front_counts_by_the_order_of_global_times() -> None:
    gate = Gate(front=1, credit=2)
    gate.emitted(5)
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
    gate.emitted(10)
    gate.finished()
    assert gate.promise == AFTER_ALL


def test_what_breaks_a_promise_is_refused() -> None:
    gate = Gate(front=0, credit=5)
    gate.emitted(4)
    for time in (3, 4):
        with pytest.raises(ef.InputError, match="strictly increasing"):
            gate.emitted(time)
    gate.emitted(5)


def test_a_credit_of_zero_would_never_begin() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Gate(front=0, credit=0)
