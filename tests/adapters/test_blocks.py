"""Blocks of partitions, and the rule by which no two writers store in one partition without knowing it.

A model of a broker and of writers that open, store, come back and open again, in any order of their steps.
A writer may store in a partition only what follows all that anybody has stored there. Each mutation of
the rule is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.sinks.topics.blocks import (
    BLOCK_MAX,
    IDS,
    Block,
    blocks_of,
    overlapping,
    transactional_id,
)
from tests.effort import SOAK

ALL = [
    Block(first, 1 << power)
    for power in range(BLOCK_MAX.bit_length())
    for first in range(0, 2 * BLOCK_MAX, 1 << power)
]


def test_blocks_that_overlap_are_all_that_share_a_partition() -> None:
    for block in ALL:
        sharing = {one for one in ALL if set(one.partitions) & set(block.partitions)} - {block}
        found = list(overlapping(block))
        assert set(found) == sharing
        assert len(found) == len(sharing)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_partitions_are_dealt_out_to_blocks(partitions: set[int]) -> None:
    blocks = blocks_of(partitions)
    assert [one for block in blocks for one in block.partitions] == sorted(partitions)
    assert all(block.first % block.size == 0 for block in blocks)
    for before, after in pairwise(blocks):  # none could be greater
        joined = Block(before.first, 2 * before.size)
        assert (
            before.size != after.size
            or joined.partitions[-1] != after.partitions[-1]
            or (joined.first % joined.size or joined.size > BLOCK_MAX)
        )


def test_ids_of_one_partition_are_those_of_writers_without_blocks() -> None:
    assert [transactional_id("words", Block(3, 1), number) for number in range(IDS)] == [
        "emberflow words 3",
        "emberflow words 3/1",
    ]
    ids = [transactional_id("words", block, number) for block in ALL for number in range(IDS)]
    assert len(set(ids)) == len(ids)


class Rule(NamedTuple):
    """How a writer is opened, and how it stores."""

    taken: Callable[[Block], list[tuple[Block, int]]]
    first_turn: int = 0


def taken(block: Block) -> list[tuple[Block, int]]:
    """The ids that opening takes over, in order."""
    return [(one, number) for one in (block, *overlapping(block)) for number in range(IDS)]


class StoredTwiceError(Exception):
    """Two writers have stored the same."""


class Broker:
    def __init__(self) -> None:
        self.holders: dict[tuple[Block, int], object] = {}
        self.ends = dict.fromkeys(range(BLOCK_MAX), 0)


def working(broker: Broker, block: Block, rule: Rule, dice: Random) -> Iterator[None]:
    """A writer, which stops behind each thing that the broker does for it. It opens again at times."""
    while True:
        me = object()
        ids = rule.taken(block)
        own, others = ids[:IDS], ids[IDS:]
        if {one for one, _ in own} != {block}:  # a mutation
            own, others = [], ids
        for one in own:
            broker.holders[one] = me
            yield
        # Other blocks are taken over at the same time, each one's ids in order.
        queues = [
            [one for one in others if one[0] == other]
            for other in dict.fromkeys(other for other, _ in others)
        ]
        while queues:
            chosen = dice.choice(queues)
            broker.holders[chosen.pop(0)] = me
            queues = [queue for queue in queues if queue]
            yield
        known = {}
        for partition in block.partitions:
            known[partition] = broker.ends[partition]
            yield
        turn = rule.first_turn
        while dice.random() < 0.8:
            if broker.holders.get((block, turn)) is not me:
                return  # it has a successor, and ends
            for partition in dice.sample(block.partitions, dice.randint(1, block.size)):
                if known[partition] != broker.ends[partition]:
                    raise StoredTwiceError
                broker.ends[partition] += 1
                known[partition] += 1
            turn = (turn + 1) % IDS
            yield


def run_all(seeds: range, rule: Rule) -> None:
    for seed in seeds:
        run(seed, rule)


def run(seed: int, rule: Rule) -> None:
    dice = Random(seed)
    broker = Broker()
    blocks = [one for one in ALL if one.first < 4 and one.size <= 4]
    writers = [working(broker, dice.choice(blocks), rule, dice) for _ in range(3)]
    for _ in range(150):
        if not writers:
            break
        writer = dice.choice(writers)
        for _ in range(dice.choice([1, 1, 1, 2, 5, 20])):
            try:
                next(writer)
            except StopIteration:
                writers.remove(writer)
                break


RUNS = 1_500
SOAKED = 20 if SOAK else 1


def test_whoever_stores_knows_what_is_stored() -> None:
    run_all(range(SOAKED * RUNS), Rule(taken))


def without(is_left_out: Callable[[Block, Block, int], bool]) -> Rule:
    return Rule(
        lambda block: [one for one in taken(block) if not is_left_out(block, one[0], one[1])]
    )


MUTATIONS = {
    "blocks around it are not taken over": without(lambda own, one, _: one.size > own.size),
    "blocks within it are not taken over": without(lambda own, one, _: one.size < own.size),
    "second ids of others are not taken over": without(
        lambda own, one, number: one != own and number > 0
    ),
    "its own ids are taken over last": Rule(lambda block: taken(block)[IDS:] + taken(block)[:IDS]),
    "the second id is used first": Rule(taken, first_turn=1),
}


@pytest.mark.parametrize("rule", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_of_the_rule_is_found(rule: Rule) -> None:
    with pytest.raises(StoredTwiceError):
        run_all(range(10 * RUNS), rule)
