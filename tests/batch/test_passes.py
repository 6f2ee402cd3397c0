"""Plans and passes of the batch runner, on a shuffle of our own: many random flows, quickly."""

from __future__ import annotations

from random import Random

import pytest

import emberflow as ef
from tests.batch.local import batch
from tests.strategies import OPERATORS, random_flow


@pytest.mark.parametrize("block", range(10))
def test_random_flows_equal_the_reference(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        flow, elements = random_flow(Random(seed))
        found = batch(flow, elements, partitions=(1, 3, 8)[seed % 3], seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), (seed, flow.name)


def test_the_random_flows_have_all_operators_and_kinds_of_units() -> None:
    names = {name for seed in range(400) for name in random_flow(Random(seed))[0].name.split()}
    assert names == set(OPERATORS)
