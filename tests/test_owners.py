"""The owner table: every hash has one owner, rescaling moves no more than it must."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.values.hashing import HASH_MAX, HASH_MIN
from emberflow.values.owners import SLICES, Owners, equal_owners, weighted_owners

weights = st.lists(st.integers(1, 5), min_size=1, max_size=12)


def share_of_slices(owners: Owners, given: list[int]) -> None:
    """Each worker has its part of the slices, to one slice."""
    for count, weight in zip(owners.counts(), given, strict=True):
        assert abs(count - SLICES * weight / sum(given)) < 1


@given(first=weights, then=st.lists(weights, max_size=4), hash=st.integers(HASH_MIN, HASH_MAX))
def test_every_hash_is_in_the_ranges_of_its_owner_alone(
    first: list[int], then: list[list[int]], hash: int
) -> None:
    owners = weighted_owners(first)
    for each in [first, *then]:
        if each is not first:
            owners = owners.rescaled(each)
        share_of_slices(owners, each)
        holding = [
            worker
            for worker in range(owners.workers)
            for part in owners.ranges(worker)
            if hash in part
        ]
        assert holding == [owners.owner(hash)]


@given(first=weights, then=weights)
def test_rescaling_moves_no_more_slices_than_it_must(first: list[int], then: list[int]) -> None:
    before = weighted_owners(first)
    after = before.rescaled(then)
    grown = [
        max(0, count - (before.counts() + [0] * 12)[worker])
        for worker, count in enumerate(after.counts())
    ]
    assert after.moved(before) == sum(grown)
    assert after.version == before.version + 1
    arriving = [part for worker in range(len(then)) for part in after.arriving(before, worker)]
    assert sum(part.high - part.low + 1 for part in arriving) == after.moved(before) << 22


def test_a_table_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="1024 slices, got 3"):
        Owners([0, 1, 1], 2)
    with pytest.raises(ValueError, match=r"workers 0 to 1, got \{2\}"):
        Owners([2] + [0] * (SLICES - 1), 2)
    with pytest.raises(ValueError, match="1 to 1024 workers, got 1025"):
        equal_owners(SLICES + 1)


def test_a_table_travels_whole() -> None:
    owners = equal_owners(3).rescaled([1, 2]).holding_from((7, 1))
    travelled = pickle.loads(pickle.dumps(owners))
    assert (travelled.of_slice, travelled.workers) == (owners.of_slice, 2)
    assert (travelled.version, travelled.since) == (1, (7, 1))
