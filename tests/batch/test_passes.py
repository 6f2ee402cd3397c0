"""Plans and passes of the batch runner, with a simulated shuffle: many random flows, quickly."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.batch.passes import lanes
from emberflow.runners.batch.plan.stages import Units, plan_of
from tests.batch.local import batch
from tests.effort import blocks, few
from tests.strategies import OPERATORS, random_flow


@pytest.mark.parametrize("seeds", blocks("flows in batch", 40), ids=str)
def test_random_flows_equal_the_reference(seeds: range) -> None:
    for seed in seeds:
        flow, elements = random_flow(Random(seed))
        found = batch(flow, elements, partitions=(1, 3, 8)[seed % 3], seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), (seed, flow.name)


def test_the_random_flows_have_all_operators_and_kinds_of_units() -> None:
    names = {name for seed in range(400) for name in random_flow(Random(seed))[0].name.split()}
    assert names == set(OPERATORS)


def test_the_cycle_of_a_window_is_spread_by_its_key_and_a_user_s_loop_is_not() -> None:
    flow = ef.Flow("cycles")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: n).window(ef.Session(5), emit="close").count().sink("closed")
    again = flow.loop()
    rounds = ef.merge(numbers, again).key_by(lambda n: n).group(window=1).map(lambda w: w[0] - 1)
    again.close(rounds.filter(lambda n: n > 0))
    rounds.sink("rounds")
    units = Units(flow.graph())
    keyed = [
        units.keyed_node(unit, unit.nodes[0]) is not None for unit in units.units if unit.is_region
    ]
    assert sorted(keyed) == [False, True]


def test_forks_make_no_plan_that_is_computed_twice() -> None:
    """Twenty forks that join again: twenty stages of two units, each frame read once."""
    flow = ef.Flow("forks")
    stream = flow.front("numbers")
    for _ in range(20):
        pairs = [stream.key_by(lambda n: n).group(window=2).map(len) for _ in range(2)]
        stream = ef.merge(*pairs)
    stream.sink("out")
    plan = plan_of(Units(flow.graph()), frozenset({flow.graph().sinks["out"].id}))
    assert [len(stage.units) for stage in plan.stages] == [2] * 20
    assert [stage.datasets for stage in plan.stages] == [(number,) for number in range(20)]


def test_a_pass_forgets_a_key_when_the_next_one_comes() -> None:
    """Of ten thousand accumulators only those of one slice are alive at any time."""
    alive = 0
    most = 0

    class Held:
        def __init__(self, n: int) -> None:
            nonlocal alive, most
            self.n = n
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    flow = ef.Flow("held")
    numbers = flow.front("numbers").key_by(lambda n: n % 10_000)
    totals = numbers.reduce(first=Held, combine=lambda held, n: Held(held.n + n))
    totals.map(lambda held: held.n).sink("out")
    numbers = list(range(20_000))
    found = batch(flow, {"numbers": numbers}, partitions=1, seed=1)
    assert sorted(found["out"])[-1] == 9_999 + 19_999
    assert most < 6_000  # a slice, and not all 10,000 keys


def test_an_endless_loop_is_told() -> None:
    flow = ef.Flow("endless")
    again = flow.loop()
    rounds = ef.merge(flow.front("numbers"), again).key_by(lambda n: n).group(window=1)
    back = rounds.map(lambda window: window[0])
    again.close(back.filter(lambda n: True))
    back.sink("out")
    with pytest.raises(ef.EndlessLoopError):
        batch(flow, {"numbers": [1]}, partitions=1, seed=0)


def test_keys_of_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal hashes all keys are in one lane, and the output is the same."""
    monkeypatch.setattr(lanes, "key_hash", lambda key: 7)
    for seed in range(few(60)):
        flow, elements = random_flow(Random(seed))
        found = batch(flow, elements, partitions=3, seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), (seed, flow.name)


def test_what_is_left_of_each_key_can_be_had() -> None:
    """The state after the last element is what a live run would hold."""
    flow = ef.Flow("left")
    keyed = flow.front("numbers").key_by(lambda n: n % 3)
    keyed.group(window=3, name="triples").map(len).sink("lengths")
    keyed.sum().sink("sums")
    left: dict[Any, Any] = {}

    def ended(key: Any, kept: list[Any]) -> None:
        # Both sinks have a pass; a grouping has no accumulator.
        kind = "sums" if kept[0][3] is not None else "lengths"
        assert (kind, key) not in left
        left[kind, key] = [(time, payload, held) for time, _, payload, held in kept]

    batch(flow, {"numbers": list(range(10))}, partitions=2, seed=3, ended=lambda unit: ended)
    assert left == {
        ("lengths", 0): [(6, 6, None), (9, 9, None)],
        ("lengths", 1): [(4, 4, None), (7, 7, None)],
        ("lengths", 2): [(5, 5, None), (8, 8, None)],
        ("sums", 0): [(9, 9, 18)],
        ("sums", 1): [(7, 7, 12)],
        ("sums", 2): [(8, 8, 15)],
    }
