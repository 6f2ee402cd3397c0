"""Grouping: what was sent and not taken back is, after every batch, what the papers define."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.values.item import Place
from tests.effort import examples
from tests.engine.helpers import PLACES, Sent, Step, batches, by_key, grouping, scripts


def parity(number: int) -> int:
    return number % 2


def tuples(live: dict[tuple[Place, int], Any], window: int) -> dict[tuple[Place, int], Any]:
    """For every item the last ``window`` payloads of its bucket that end with it."""
    return {
        (place, mark): tuple(payload for _, _, payload in bucket[: number + 1][-window:])
        for bucket in by_key(live, parity).values()
        for number, (place, mark, _) in enumerate(bucket)
    }


def test_figure_5_of_the_thesis() -> None:
    machine = grouping(2, lambda number: 0)
    first, second, third = (1, 0), (2, 0), (3, 0)
    assert machine.process([(first, 0, 1), (third, 0, 3)], []) == [
        [(first, 0, (1,)), (third, 0, (1, 3))]
    ]
    assert machine.process([(second, 0, 2)], []) == [
        [(third, 1, (1, 3)), (second, 0, (1, 2)), (third, 0, (2, 3))]
    ]
    assert machine.replays == 1


@given(scripts(), st.integers(1, 4))
@settings(max_examples=examples(300), deadline=None)
def test_after_every_batch_all_tuples_are_right(script: list[Step], window: int) -> None:
    machine, sent, live = grouping(window, parity), Sent(), {}
    for batch in batches(script, live):
        (output,) = machine.process(batch, [])
        tombstones = [mark & 1 for _, mark, _ in output]
        assert tombstones == sorted(tombstones, reverse=True), "tombstones precede"
        sent.take(output)
        assert sent.live == tuples(live, window)
    assert sorted(machine.sizes()) == sorted(
        len(bucket) for bucket in by_key(live, parity).values()
    )


@given(scripts(), st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
def test_a_batch_sends_nothing_in_vain(script: list[Step], window: int) -> None:
    """What is sent is the difference: no item twice, none that the same batch takes back."""
    machine, live, before = grouping(window, parity), {}, {}
    for batch in batches(script, live):
        (output,) = machine.process(batch, [])
        identities = [(place, mark) for place, mark, _ in output]
        assert len(identities) == len(set(identities))
        after = tuples(live, window)
        for place, mark, payload in output:
            if mark & 1:
                assert before[place, mark ^ 1] == payload
            else:
                assert after[place, mark] == payload
        before = after


@given(
    st.lists(st.tuples(scripts(most=8), st.integers(0, 2)), max_size=6),
    st.integers(1, 4),
)
@settings(max_examples=examples(300), deadline=None)
def test_trimming_keeps_what_a_tuple_can_need_and_changes_nothing(
    rounds: list[tuple[list[Step], int]], window: int
) -> None:
    """Rounds of arrivals; behind each the minimal time moves, and nothing below it comes again."""
    machine, sent, live = grouping(window, parity), Sent(), {}
    minimal = (0, 0)
    for script, further in rounds:
        allowed = [step for step in script if step[0][0] >= minimal]
        for batch in batches(allowed, live):
            sent.take(machine.process(batch, [])[0])
            assert sent.live == tuples(live, window)
        minimal = (minimal[0] + further, 0)
        machine.trim(minimal)
        expected = []
        for bucket in by_key(live, parity).values():
            final = sum(place < minimal for place, _, _ in bucket)
            kept = len(bucket) - max(0, final - (window - 1))
            expected += [kept] if kept else []
        # Payloads of one key may have come back to it after its bucket was dropped.
        assert sorted(filter(None, machine.sizes())) == sorted(expected)
    machine.trim((9, 9))
    assert max(machine.sizes(), default=0) <= window - 1
    assert not machine.touched


def test_in_order_nothing_is_replayed() -> None:
    machine = grouping(3, parity)
    for number, place in enumerate(sorted(PLACES)):
        machine.process([(place, 0, number)], [])
    assert machine.replays == 0


def test_a_key_that_changes_leaves_one_bucket_and_joins_another() -> None:
    """Under one place and mark: the tombstone must not take back what came instead."""
    machine, sent = grouping(2, parity), Sent()
    place: Place = (1, 0)
    sent.take(machine.process([(place, 0, 3)], [])[0])
    sent.take(machine.process([(place, 1, 3), (place, 0, 4)], [])[0])
    assert sent.live == {(place, 0): (4,)}
    assert machine.sizes() == [1]


def test_a_key_that_fails_is_a_failure_and_its_tombstone_takes_that_back() -> None:
    machine, failed = grouping(2, lambda number: 1 // number), Sent()
    place: Place = (5, 3)
    for mark in (0, 1):
        errors: list[Any] = []
        assert machine.process([(place, mark, 0)], errors) == [[]]
        assert [(error[0], error[1]) for error in errors] == [(place, mark)]
        assert isinstance(errors[0][2], ef.FunctionError)
        assert errors[0][2].global_time == place
        failed.take(errors)
    assert not failed.live


def test_a_tombstone_that_finds_nothing_is_told_as_impurity() -> None:
    machine = grouping(2, parity)
    machine.process([((1, 0), 0, 5)], [])
    with pytest.raises(ef.NondeterminismError, match="found no item to take back"):
        machine.process([((2, 0), 1, 5)], [])
