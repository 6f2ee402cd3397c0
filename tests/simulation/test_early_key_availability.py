"""A finished range of keys is released, no matter what other ranges wait for."""

from __future__ import annotations

from typing import Any

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
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
