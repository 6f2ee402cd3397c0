"""A finished range of keys is released, no matter what other ranges wait for."""

from __future__ import annotations

from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
from emberflow.runners.simulation.judges import judges
from emberflow.values.hashing import key_hash, owner
from tests.engine.fake_link import FakeLink, on_fake_link

NUMBERS = range(40)


def partition_of(number: int) -> int:
    return owner(key_hash(number), 2)


def in_partition(partition: int) -> list[int]:
    return [number for number in NUMBERS if partition_of(number) == partition]


def partitioned() -> ef.Flow:
    flow = ef.Flow("partitioned")
    counted: ef.Stream[Any] = flow.front("in").map(lambda n: n)
    counted.key_by(lambda n: n).sink("out", partitions=2)
    return flow


def entered(flow: ef.Flow) -> FakeLink:
    link = on_fake_link(flow, 2)
    link.enter("in", *((number, number) for number in NUMBERS))
    link.finish("in")
    return link


def test_a_stuck_barrier_does_not_hold_the_others_output() -> None:
    """The front is beside worker 0; the items for partition 1 are stuck on the link to worker 1."""
    link = entered(partitioned())
    link.drain(stuck=frozenset({(0, 1)}))
    assert link.released == {("out", 0): in_partition(0)}
    assert link.acker.progress.of_range(0) == AFTER_ALL
    assert link.acker.progress.of_range(1) == link.acker.progress.of_all()
    assert link.acker.progress.of_range(1) == (in_partition(1)[0], 0)
    link.drain()
    assert link.released == {("out", 0): in_partition(0), ("out", 1): in_partition(1)}
    assert link.acker.entries == 0


def test_what_may_still_go_anywhere_holds_all() -> None:
    """The same, but the stuck items are before a shuffle and could end in any partition."""
    flow = ef.Flow("shuffled")
    grouped = flow.front("in").key_by(lambda n: n).group(window=1).map(lambda ns: ns[0])
    grouped.key_by(lambda n: n // 2).sink("out", partitions=2)
    link = entered(flow)
    link.drain(stuck=frozenset({(0, 1)}))
    # there are as many workers as partitions, so this worker owns the key
    stuck = in_partition(1)[0]
    assert link.acker.progress.anywhere == (stuck, 0)
    released = [number for out in link.released.values() for number in out]
    assert all(number < stuck for number in released)
    link.drain()
    expected = ef.run(flow, **{"in": NUMBERS})["out"]
    assert sorted(number for out in link.released.values() for number in out) == expected


def test_past_the_last_shuffle_a_slow_way_to_one_barrier_is_its_own() -> None:
    """Worker 1 cannot reach the barrier of worker 0, and still releases its own output."""
    flow = ef.Flow("both ways")
    grouped = flow.front("in").key_by(lambda n: n).group(window=1).map(lambda ns: ns[0])
    grouped.key_by(lambda n: n // 2).sink("out", partitions=2)
    link = entered(flow)
    link.drain(stuck=frozenset({(1, 0)}))
    expected = ef.run(flow, **{"in": NUMBERS})["out"]
    for_one = [n for n in expected if owner(key_hash(n // 2), 2) == 1]
    crossing = [n for n in expected if partition_of(n) == 1 and n not in for_one]
    assert link.released["out", 1] == for_one
    assert link.released.get(("out", 0), []) == [
        n for n in expected if n not in for_one and n < crossing[0]
    ]
    link.drain()
    assert link.released["out", 0] == [n for n in expected if n not in for_one]


# --- Paths that keep the key -----------------------------------------------------------------------


def reduced(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    counts = flow.front("in").key_by(lambda n: n % 20).count()
    return counts.map(lambda pair: (pair[0], -pair[1])).key_by(lambda pair: pair[0])


def reduced_twice(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    return reduced(flow).sum(of=lambda pair: pair[1]).key_by(lambda pair: pair[0])


def in_windows(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    windows = flow.front("in").key_by(lambda n: n % 20).window(ef.Tumbling(5), emit="close")
    return windows.count().key_by(lambda result: result.key)


def unique(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    return flow.front("in").key_by(lambda n: n % 20).distinct().key_by(lambda n: n % 20)


def looked_up(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    """In a function that branches, nothing is proven of where the key is."""
    counts = flow.front("in").key_by(lambda n: n % 20).count()
    return counts.key_by(lambda pair: pair[0] if pair[1] else None)


def by_another_key(flow: ef.Flow) -> ef.KeyedStream[int, Any]:
    return reduced(flow).sum(of=lambda pair: pair[1]).key_by(lambda pair: pair[1])


@pytest.mark.parametrize("patience", ["always", "never"])
@pytest.mark.parametrize("path", [reduced, reduced_twice, in_windows, unique])
def test_a_stuck_range_does_not_hold_the_others_output(path: Any, patience: str) -> None:
    """Its items are stuck ahead of the reduce, and can end in no other partition."""
    flow = ef.Flow("keys")
    path(flow).sink("out", partitions=2)
    link = FakeLink(flow.graph(), 2, judges(patience, "7"))
    link.enter("in", *((number, number) for number in NUMBERS))
    link.finish("in")
    link.drain(stuck=frozenset({(0, 1)}))
    assert link.released == {("out", 0): expected_of(flow, 0)}, "all of it"
    assert link.acker.progress.of_all() == (in_range(1)[0], 0), "and nothing is forgotten"
    link.drain()
    assert link.released == {("out", own): expected_of(flow, own) for own in (0, 1)}
    assert link.acker.entries == 0


def in_range(worker: int) -> list[int]:
    return [number for number in NUMBERS if owner(key_hash(number % 20), 2) == worker]


def expected_of(flow: ef.Flow, partition: int) -> list[Any]:
    (sink,) = flow.graph().sinks.values()
    assert sink.key is not None
    key_of = sink.key.function
    expected = ef.run(flow, **{"in": NUMBERS})["out"]
    return [payload for payload in expected if owner(key_hash(key_of(payload)), 2) == partition]


@pytest.mark.parametrize("path", [looked_up, by_another_key])
def test_where_nothing_is_proven_all_wait(path: Any) -> None:
    flow = ef.Flow("keys")
    path(flow).sink("out", partitions=2)
    link = entered(flow)
    link.drain(stuck=frozenset({(0, 1)}))
    stuck = in_range(1)[0]
    assert link.acker.progress.anywhere == link.acker.progress.of_all() == (stuck, 0)
    link.drain()
    assert link.released == {("out", own): expected_of(flow, own) for own in (0, 1)}
