"""The store of a sink partition: when output is handed to the sink, and what counts as stored."""

from __future__ import annotations

import pytest

from emberflow.engine.messages import AFTER_ALL, Bundle
from emberflow.runners.live.worker.store import HELD_BYTES_MAX, HELD_MAX, Store
from emberflow.values.item import FlatItem, GlobalTime


def items(first: int, count: int, payload: object = "x") -> list[FlatItem]:
    return [((time, 0), 0, payload) for time in range(first, first + count)]


def released(first: int, count: int, payload: object = "x") -> Bundle:
    return Bundle("out", 0, GlobalTime(first + count - 1, 0), items(first, count, payload))


class Clocked:
    """A store, and a clock that only the test moves."""

    def __init__(self, commit_every: float) -> None:
        self.now = 0.0
        self.store = Store("out", 0, commit_every=commit_every, clock=lambda: self.now)

    def handed_over(self) -> int | None:
        """How many payloads the next bundle has; None if there is none."""
        bundle = self.store.next()
        return None if bundle is None else len(bundle.payloads)


def test_output_waits_for_nothing_where_a_sink_does_not_ask_for_it() -> None:
    case = Clocked(0.0)
    case.store.add(released(1, 2))
    assert case.handed_over() == 2
    case.store.add(released(3, 1))
    assert case.handed_over() == 1


def test_output_waits_until_the_first_of_it_is_old_enough() -> None:
    case = Clocked(10.0)
    case.store.add(released(1, 2))
    case.now = 9.0
    case.store.add(released(3, 3))
    assert case.handed_over() is None
    assert (case.store.unstored, case.store.settled) == (5, (1, 0))
    case.now = 10.0
    assert case.handed_over() == 5
    # What comes behind it has an age of its own.
    case.now = 11.0
    case.store.add(released(6, 1))
    case.now = 20.0
    assert case.handed_over() is None
    case.now = 21.0
    assert case.handed_over() == 1


def test_output_that_waits_is_not_settled_and_no_cut_above_it_counts() -> None:
    case = Clocked(10.0)
    case.store.add(released(5, 2))
    assert case.store.settled == (5, 0)
    case.now = 10.0
    assert case.handed_over() == 2
    assert case.store.settled == (5, 0)
    case.store.stored()
    assert case.store.settled == AFTER_ALL


@pytest.mark.parametrize("bundles", [1, 7])
def test_much_output_does_not_wait(bundles: int) -> None:
    case = Clocked(10.0)
    each = HELD_MAX // bundles + 1
    for number in range(bundles):
        assert case.handed_over() is None
        case.store.add(released(number * each, each))
    assert case.handed_over() == bundles * each


def test_output_of_many_bytes_does_not_wait_and_is_one_bundle() -> None:
    case = Clocked(10.0)
    payload = "x" * (HELD_BYTES_MAX // 8)
    case.store.add(released(0, 7, payload))
    assert case.handed_over() is None
    case.store.add(released(7, 2, payload))
    assert case.handed_over() == 9


def test_a_flush_hands_over_what_waits_now_and_not_what_comes_later() -> None:
    case = Clocked(10.0)
    case.store.flush()
    case.store.add(released(1, 1))
    assert case.handed_over() is None
    case.store.flush()
    assert case.handed_over() == 1
    case.store.add(released(2, 1))
    assert case.handed_over() is None


def test_at_the_end_nothing_waits_any_more() -> None:
    case = Clocked(10.0)
    case.store.add(released(1, 1))
    case.store.flush(for_good=True)
    assert case.handed_over() == 1
    case.store.add(released(2, 1))
    assert case.handed_over() == 1
