"""Windows that close, and joins that tell what is alone: one machine, which computes every payload and every end of a window once."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import pytest

import emberflow as ef
from emberflow.engine.layout import Layout, TickingLoop
from tests.effort import few


class Halves:
    """Windows of a user's own."""

    def containing(self, time: int) -> list[tuple[int, int]]:
        start = time - time % 10
        return [(start, start + 10), (start, start + 5)][: 2 if time % 10 < 5 else 1]


WINDOWS = [
    ef.Tumbling(10),
    ef.Sliding(10, slide=4),
    ef.Cumulate(5, 15),
    ef.Session(6),
    Halves(),
]


def windows_flow(windows: ef.Windows | ef.Session) -> ef.Flow:
    flow = ef.Flow("windows that close")
    numbers = ef.merge(flow.front("one"), flow.front("other"))
    sums = numbers.key_by(lambda n: n % 3).window(windows, emit="close").sum()
    sums.sink("sums")
    sums.per_window().collect().sink("together")
    return flow


def join_flow(how: Literal["left", "outer", "anti"], **bound: Any) -> ef.Flow:
    flow = ef.Flow("joins that end")
    one, other = (flow.front(name).key_by(lambda n: n % 3) for name in ("one", "other"))
    one.join(other, how=how, **bound).sink("out")
    return flow


FLOWS = {
    **{type(windows).__name__: windows_flow(windows) for windows in WINDOWS},
    "left join within an interval": join_flow("left", within=(-2, 7)),
    "outer join within an interval": join_flow("outer", within=(-3, 3)),
    "anti join in windows": join_flow("anti", window=ef.Sliding(10, slide=4)),
    "outer join in sessions": join_flow("outer", window=ef.Session(6)),
}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_nothing_is_computed_again_however_far_one_front_is_behind(flow: ef.Flow) -> None:
    for seed in range(few(6)):
        dice = Random(f"ticking {seed}")
        fronts = {
            name: [ef.At(time, dice.randrange(30)) for time in sorted(dice.sample(range(300), 60))]
            for name in ("one", "other")
        }
        expected = ef.run(flow, **fronts)
        for workers in (1, 3):
            found = ef.simulate(flow, seed=seed, workers=workers, **fronts)
            assert found.outputs == expected
            assert not any(worker.replays for worker in found.statistics)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_the_loop_of_the_ticks_is_part_of_the_machine(flow: ef.Flow) -> None:
    layout = Layout(flow.graph())
    assert not any(unit.is_region for unit in layout.units)
    assert layout.fused
    assert all(isinstance(fused, TickingLoop) for fused in layout.fused.values())


def test_but_not_where_a_loop_of_the_user_goes_through_the_window() -> None:
    """There other workers may send what belongs before a tick, so the cycle runs as a region."""
    flow = ef.Flow("a window in a loop")
    loop = flow.loop()
    numbers = ef.merge(flow.front("numbers"), loop)
    closed = numbers.key_by(lambda n: n % 3).window(ef.Tumbling(10), emit="close").count()
    again = closed.map(lambda result: result.value)
    loop.close(again.filter(lambda value: value > 3).map(lambda value: value - 3))
    again.sink("counts")
    layout = Layout(flow.graph())
    assert any(unit.is_region for unit in layout.units)
    assert not any(isinstance(fused, TickingLoop) for fused in layout.fused.values())
    given = [ef.At(time, time % 7) for time in range(0, 200, 2)]
    expected = ef.run(flow, numbers=given)
    assert expected["counts"]
    for seed in range(5):
        assert ef.simulate(flow, seed=seed, workers=3, numbers=given).outputs == expected
