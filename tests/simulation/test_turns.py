"""What one element begets is settled in turns, however much it is and however few keys it touches.

All of it has one global time, so global time cannot say which transaction is next. Without turns,
corrections would cause corrections, on several workers for minutes. The counts here are of the
simulation, so they are the same on every machine.
"""

from __future__ import annotations

import pytest

import emberflow as ef


def crowd(count: int) -> ef.Flow:
    """An element makes many transactions, each over three of five keys; one in five is refused."""
    flow = ef.Flow("crowd")
    purse = flow.state("purses", default=20)
    many = flow.front("elements").flat_map(lambda n: [n * 7 + i for i in range(count)])
    with many.transaction() as tx:
        tx.key_by(lambda n: n % 5).update(
            purse, lambda value, n: (value * 3 + n) % 50 - 5, check=lambda value: value >= 0
        )
        tx.key_by(lambda n: (n * 5 + 1) % 5).update(
            purse, lambda value, n: value - n % 7, check=lambda value: value >= -1
        )
        tx.key_by(lambda n: (n * 11 + 3) % 5).update(
            purse, lambda value, n: value + n % 4, check=lambda value: value < 50
        )
    tx.committed.sink("committed")
    tx.rejected.sink("rejected")
    return flow


@pytest.mark.parametrize(("workers", "seed"), [(2, 1), (4, 3)])
def test_transactions(workers: int, seed: int) -> None:
    """Without turns the second seed took a million replays."""
    elements, count = [3, 5], 200
    transactions = len(elements) * count
    result = ef.simulate(crowd(count), elements=elements, seed=seed, workers=workers)
    assert result.outputs == ef.run(crowd(count), elements=elements)
    assert len(result.outputs["rejected"]) > transactions / 5
    # At most one replay for each access and each turn of the element; on average far fewer.
    assert sum(worker.replays for worker in result.statistics) < transactions * 3 * count / 4
    assert sum(worker.items_sent for worker in result.statistics) < transactions * 20


def whirling(flow: ef.Flow, count: int, rounds: int) -> ef.Stream:
    """An element makes many numbers that go round a loop; each hop depends on all earlier visitors."""
    again = flow.loop()
    many = flow.front("elements").flat_map(lambda n: [(n * 7 + i, rounds) for i in range(count)])
    mixed = (
        ef.merge(many, again)
        .key_by(lambda number: number[0] % 5)
        .fold(initial=(0, 0), combine=lambda sum_, n: ((sum_[0] * 3 + n[0]) % 97, n[1]))
    )
    again.close(mixed.filter(lambda n: n[1] > 0).map(lambda n: (n[0], n[1] - 1)))
    return mixed


def whirl(count: int, rounds: int) -> ef.Flow:
    flow = ef.Flow("whirl")
    whirling(flow, count, rounds).sink("mixed")
    return flow


@pytest.mark.parametrize(("workers", "seed"), [(2, 1), (3, 0)])
def test_rounds_of_a_loop(workers: int, seed: int) -> None:
    """Without turns, three workers took 360,000 messages, and twice as many numbers did not end."""
    elements, count, rounds = [3, 5], 30, 3
    numbers = len(elements) * count * (rounds + 1)
    result = ef.simulate(whirl(count, rounds), elements=elements, seed=seed, workers=workers)
    assert result.outputs == ef.run(whirl(count, rounds), elements=elements)
    assert len(result.outputs["mixed"]) == numbers
    # At most one replay for each pair of an element's numbers; on average half of them.
    assert sum(worker.replays for worker in result.statistics) < numbers * numbers / 4
    # A machine that presumes again at every turn would send many times as much.
    assert sum(worker.items_sent for worker in result.statistics) < numbers * 20


@pytest.mark.parametrize("seed", [1, 4])
def test_what_is_behind_a_loop_that_goes_by_turns_is_acked_by_turns_too(seed: int) -> None:
    """It was acked by its global time, and the minimal time went back from a turn of that."""
    flow = ef.Flow("behind a whirl")
    pairs = whirling(flow, 15, 3).key_by(lambda n: n[0] % 7).group(window=2)
    sums = pairs.map(lambda ns: sum(n[0] for n in ns)).key_by(lambda n: n % 3).group(window=2)
    sums.map(sum).key_by(lambda n: n % 4).count().sink("counts")
    elements = [3, 5]
    result = ef.simulate(flow, elements=elements, seed=seed, workers=4)
    assert result.outputs == ef.run(flow, elements=elements)
