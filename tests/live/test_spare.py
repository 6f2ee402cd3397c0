"""Work that can wait takes of what a loop has left of its time; and in a process of its own, of what others leave."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.runners.live.worker.machine import spare as spare_module
from emberflow.runners.live.worker.machine.background import NICENESS, in_background
from emberflow.runners.live.worker.machine.spare import (
    AWAITED_AT_FIRST,
    FIRST_SECONDS,
    LEAST_AWAITED,
    LOOK_SECONDS,
    MOST,
    Rests,
    Spare,
)


def looked(spare: Spare, now: float, left: float) -> float:
    """One look later, when the loop has had this part of the time left."""
    seconds = 2 * LOOK_SECONDS
    spare.gave(left * seconds)
    spare.look(now + seconds)
    return now + seconds


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_the_share_follows_what_is_left_and_has_bounds(lefts: list[float]) -> None:
    spare, now, seen = Spare(0.0), 0.0, []
    for left in lefts:
        now = looked(spare, now, left)
        assert spare.left == pytest.approx(left)
        awaited = spare.share_awaited(FIRST_SECONDS, behind=False)
        assert max(LEAST_AWAITED, spare.share()) <= awaited <= MOST
        assert spare.share_awaited(0.0, behind=False) >= AWAITED_AT_FIRST
        assert spare.share_awaited(FIRST_SECONDS, behind=True) >= AWAITED_AT_FIRST
        seen.append((left, spare.share()))
    for (less, lower), (more, higher) in pairwise(sorted(seen)):
        assert less == more or lower <= higher


def test_a_loop_is_behind_when_it_has_had_nothing_left_for_a_while() -> None:
    spare, now = Spare(0.0), 0.0
    now = looked(spare, now, 0.0)
    assert not spare.is_behind, "that was a tenth of a second"
    for _ in range(100):
        now = looked(spare, now, 0.0)
    assert spare.is_behind
    spare.look(now + 100.0)  # it did not even look
    assert spare.is_behind
    looked(spare, now + 100.0, 1.0)
    assert not spare.is_behind


@pytest.mark.parametrize(
    ("left", "rests"), [(1.0, 0.25), (0.5, 1 / 3), (0.0, 1 / LEAST_AWAITED - 1)]
)
def test_a_thread_beside_the_loop_rests_by_its_share(
    monkeypatch: pytest.MonkeyPatch, left: float, rests: float
) -> None:
    class Clock:
        worked, slept = 0.0, 0.0

        def thread_time(self) -> float:
            return self.worked

        def sleep(self, seconds: float) -> None:
            self.slept = seconds

    clock, spare = Clock(), Spare(0.0)
    looked(spare, 0.0, left)
    monkeypatch.setattr(spare_module, "time", clock)
    pauses = Rests(spare)
    clock.worked = 0.001
    pauses.rest()
    assert clock.slept <= 0.001, "it may be over soon"
    clock.worked = FIRST_SECONDS
    pauses.rest()
    assert clock.slept <= 0.1
    clock.worked += 0.001
    pauses.rest()
    assert clock.slept == pytest.approx(0.001 * rests)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_work_in_the_background_has_a_low_priority_and_nothing_else_has() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    inside = in_background(lambda: os.getpriority(os.PRIO_PROCESS, 0))
    assert inside == min(19, before + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_its_errors_are_those_of_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)
