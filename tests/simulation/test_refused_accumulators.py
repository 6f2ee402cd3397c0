"""Every runner refuses an accumulator that is an `At`, with the same words."""

from __future__ import annotations

import pytest

import emberflow as ef


def flow(limit: int) -> ef.Flow:
    made = ef.Flow("scheduled accumulators")
    numbers = made.front("numbers").key_by(lambda number: number % 2).sum().map(lambda s: s[1])
    numbers.key_by(lambda number: number % 3).reduce(
        first=lambda number: number,
        combine=lambda held, number: ef.At(10**6, held) if number > limit else held + number,
    ).sink("out")
    return made


@pytest.mark.parametrize("workers", [1, 3])
def test_it_is_the_reference_s_error(workers: int) -> None:
    scheduling = flow(limit=20)
    with pytest.raises(ef.OutputError, match="cannot be scheduled from here") as expected:
        ef.run(scheduling, numbers=range(12))
    for seed in range(25):
        with pytest.raises(ef.OutputError) as found:
            ef.simulate(scheduling, numbers=range(12), seed=seed, workers=workers)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("workers", [1, 3])
def test_one_that_only_speculation_makes_is_taken_back(workers: int) -> None:
    """Out of order, sums go above a limit that the true sums stay below."""
    numbers = [9, -9, 8, -8, 7, -7, 6, -6]
    calm = flow(limit=9)
    expected = ef.run(calm, numbers=numbers)
    for seed in range(25):
        assert ef.simulate(calm, numbers=numbers, seed=seed, workers=workers).outputs == expected
