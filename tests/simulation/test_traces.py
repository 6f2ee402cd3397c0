"""Traces distinguish two histories of one item, however often it went round a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import emberflow as ef
from tests.effort import few
from tests.simulation.cases import judged
from tests.simulation.mutations import own_case


def out_and_home(rounds: int) -> Callable[[tuple[int, int, int]], int]:
    """The first hop goes to one worker and the last to another, or vice versa."""

    def key(hop: tuple[int, int, int]) -> int:
        left, bit, _ = hop
        return bit if left == rounds else 1 - bit if left == 1 else 7

    return key


@pytest.mark.parametrize("rounds", [2, 3, 33, 64, 65, 66])
def test_where_an_item_was_first_and_last_is_not_mixed_up(rounds: int) -> None:
    """65: a trace that rotates by one bit per hop would be back at its start after 64."""
    flow = ef.Flow("out and home")
    merged = ef.merge(*(flow.front(f"front-{number}") for number in range(3)))
    again = flow.loop()
    tuples = merged.key_by(lambda _: 0).group(window=3)
    sums: ef.Stream[Any] = tuples.map(lambda ns: (rounds, sum(ns) % 2, sum(ns)))
    hops = ef.merge(sums, again).key_by(out_and_home(rounds)).group(window=1)
    more, done = hops.map(lambda group: (group[0][0] - 1, *group[0][1:])).broadcast(2)
    again.close(more.filter(lambda hop: hop[0] > 0))
    done.filter(lambda hop: hop[0] == 0).map(lambda hop: hop[2]).sink("out")
    elements = {
        f"front-{number}": [ef.At(3 * time + number, (time * 7 + number) % 10) for time in range(8)]
        for number in range(3)
    }
    for seed in range(few(6)):
        judged(own_case(flow, seed, 2 + seed % 3, **elements))
