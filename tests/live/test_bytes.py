"""Bounds in bytes: however large elements are, queues, credits and bundles hold no more than they may."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow import GlobalTime, fronts
from emberflow.engine.messages import AFTER_ALL, Bundle
from emberflow.engine.progress.gate import Gate
from emberflow.fronts import Batch, Element
from emberflow.runners.live.worker import store as store_module
from emberflow.runners.live.worker.feed import TAKEN_BYTES_MAX, Feed
from emberflow.runners.live.worker.machine.memory import SLOW_FROM, STOP_AT, MemoryWatch
from emberflow.runners.live.worker.reader import QUEUE_BYTES_MAX, Beginning
from emberflow.runners.live.worker.store import Store
from emberflow.values.item import FlatItem
from emberflow.values.sizes import payload_bytes, payloads_bytes, sampled_bytes
from tests.adapters.fronts_under_test import line_server
from tests.effort import SECONDS

MEGABYTE = 1 << 20

plain = st.recursive(
    st.one_of(st.text(max_size=200), st.binary(max_size=200), st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=9), inner, max_size=5),
    ),
    max_leaves=20,
)


def content(payload: Any) -> int:
    """The characters and bytes in a payload."""
    if isinstance(payload, str | bytes):
        return len(payload)
    if isinstance(payload, dict):
        return sum(map(content, (*payload, *payload.values())))
    return sum(map(content, payload)) if isinstance(payload, list | tuple) else 0


@given(st.lists(plain, max_size=10))
@settings(deadline=None)
def test_a_size_is_never_below_the_content(payloads: list[Any]) -> None:
    assert payloads_bytes(payloads) >= sum(map(content, payloads))
    assert sampled_bytes(payloads) == payloads_bytes(payloads)


class Held:
    """A payload of a class, which has no size of its own."""

    def __init__(self, text: str) -> None:
        self.text = text


def test_objects_of_classes_count_what_they_hold() -> None:
    assert payload_bytes(Held("x" * 10_000)) > 10_000
    assert payload_bytes([Held("x" * 10_000), "y" * 10_000]) > 10_000


class Lines:
    """A front with lines of a megabyte, alone or in batches."""

    partitions = 1

    def __init__(self, count: int, at_once: int) -> None:
        self.count, self.at_once = count, at_once
        self.given = 0

    def read(self, partition: int, position: Any) -> Iterator[Element]:
        raise AssertionError("batches are preferred")

    def read_batches(self, partition: int, position: Any) -> Iterator[Element | Batch]:
        for begin in range(0, self.count, self.at_once):
            numbers = range(begin, begin + self.at_once)
            payloads = [f"{number:07}" + "x" * MEGABYTE for number in numbers]
            self.given += self.at_once
            if self.at_once == 1:
                yield Element(begin, payloads[0], begin)
            else:
                yield Batch(numbers, payloads, numbers)


def settle(number: Callable[[], int]) -> int:
    """The number, once it no longer changes."""
    deadline = time.monotonic() + SECONDS
    before, now = -1, number()
    while before != now and time.monotonic() < deadline:
        time.sleep(0.3)
        before, now = now, number()
    return now


@pytest.mark.parametrize("at_once", [1, 10])
def test_a_queue_holds_bytes_not_elements(at_once: int) -> None:
    front = Lines(200, at_once)
    feed = Feed("lines", 0, front, 0, 3, credit=20_000, credit_bytes=8 * MEGABYTE)
    feed.start(Beginning())
    try:
        allowed = QUEUE_BYTES_MAX // MEGABYTE + 2 * at_once
        assert settle(lambda: front.given) <= allowed
        numbers: list[int] = []
        while feed.gate.promise != AFTER_ALL:
            items = feed.take(1_000)
            entered = sum(len(payload) for _, _, payload in items)
            assert entered <= TAKEN_BYTES_MAX + 2 * MEGABYTE
            numbers += [int(payload[:7]) for _, _, payload in items]
            unfinished = len(numbers) - feed.settled
            if not feed.gate.credits:
                assert unfinished <= 8 + 2, "megabytes, within the credit"
                feed.settled = len(numbers)
                feed.minimal_time(feed.gate.promise)
        assert numbers == list(range(200)), "and nothing is lost on the way"
    finally:
        feed.join(SECONDS)


def test_a_line_larger_than_all_bounds_passes_alone() -> None:
    class Huge:
        partitions = 1

        def read(self, partition: int, position: Any) -> Iterator[Element]:
            for number in range(3):
                yield Element(number, "x" * (QUEUE_BYTES_MAX + 5), number)

    feed = Feed("lines", 0, Huge(), 0, 3, credit=100, credit_bytes=MEGABYTE)
    feed.start(Beginning())
    try:
        entered = []
        deadline = time.monotonic() + SECONDS
        while feed.gate.promise != AFTER_ALL and time.monotonic() < deadline:
            items = feed.take(1_000)
            assert len(items) <= 1
            entered += [place for place, _, _ in items]
            assert not items or feed.gate.credits == 0
            feed.minimal_time(feed.gate.promise)
        assert entered == [(0, 3), (1, 3), (2, 3)]
    finally:
        feed.join(SECONDS)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), max_size=30),
    st.integers(1, 200),
)
@settings(deadline=None)
def test_a_gate_lets_nothing_in_beyond_its_bytes(
    script: list[tuple[int, int]], credit_bytes: int
) -> None:
    """Each step emits so many elements of so many bytes in all, or moves the minimal time for 0."""
    gate = Gate(front=0, credit=1_000, credit_bytes=credit_bytes)
    time, open_ = 0, list[tuple[int, float]]()
    for count, size in script:
        if count and gate.credits:
            times = list(range(time, time + count))
            gate.emitted_all(times, None, size)
            open_ += [(at, size / count) for at in times]
            time += count
        elif open_:
            least = open_[len(open_) // 2][0]
            gate.minimal_time((least, 0))
            open_ = [one for one in open_ if one[0] >= least]
        held = sum(size for _, size in open_)
        assert abs(credit_bytes - gate.bytes_left - held) <= len(script)
        assert (gate.credits > 0) == (gate.bytes_left > 0)
    gate.minimal_time(gate.promise)
    assert gate.bytes_left == credit_bytes


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), min_size=1, max_size=40))
@settings(deadline=None)
def test_a_bundle_is_split_between_global_times_only(script: list[tuple[int, int]]) -> None:
    """Each draw is a step of time, 0 for another child of the same element, and a size."""
    items: list[FlatItem] = []
    at = 0
    for number, (step, size) in enumerate(script):
        at += step
        items.append(((at, 0, number), 0, "x" * size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "BUNDLE_BYTES_MAX", 500)
        store = Store("out", 0, places=True)
        store.add(Bundle("out", 0, GlobalTime(at, 0), items))
        assert store.unstored_bytes >= sum(size for _, size in script)
        stored: list[Any] = []
        lasts: list[GlobalTime] = []
        while (bundle := store.next()) is not None:
            assert bundle.places is not None
            assert not lasts or bundle.places[0][:2] > lasts[-1]
            assert bundle.places[-1][:2] == bundle.last
            stored += zip(bundle.places, bundle.payloads, strict=True)
            lasts.append(bundle.last)
            store.stored()
    assert stored == [(place, payload) for place, _, payload in items]
    assert store.unstored == store.unstored_bytes == 0


def test_a_long_line_from_a_socket_arrives_whole() -> None:
    lines = [b"a" * 5_000_000, b"", b"b" * 70_000, b"c"]
    with line_server(b"\n".join(lines) + b"\n") as port:
        found = [one for one in fronts.Socket("127.0.0.1", port).read(0, None) if one]
    assert [element.payload.encode() for element in found] == lines


# --- Memory ----------------------------------------------------------------------------------------


def test_fronts_slow_down_as_memory_runs_out_and_never_stop() -> None:
    watch = MemoryWatch()
    let_in = []
    for pressure in (0.1, SLOW_FROM - 0.01, 0.87, 0.9, 0.94, STOP_AT, 2.0):
        watch.look = lambda now, pressure=pressure: pressure  # type: ignore[method-assign]
        rounds = [watch.most(1_000, now=100 * pressure + number / 100) for number in range(100)]
        let_in.append(sum(rounds))
    assert let_in == sorted(let_in, reverse=True)
    assert let_in[0] == let_in[1] == 100 * 1_000
    assert 2 <= let_in[-1] <= 10, "elements in a second"


def test_a_process_knows_how_near_its_limit_it_is() -> None:
    """A real limit, and memory that is really taken."""
    program = """
import resource
from emberflow.runners.live.worker.machine.memory import MemoryWatch
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
watch = MemoryWatch()
before = watch.look(0.0)
taken = bytearray(180 << 20)
print(watch.look(0.1) == before, watch.look(1.0) > 0.9, watch.most(1_000, 1.0) < 500)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.split() == ["True", "True", "True"], ran.stderr


def test_the_thread_of_a_reader_that_waits_for_space_can_be_stopped() -> None:
    feed = Feed("lines", 0, Lines(200, 10), 0, 3, credit=1)
    feed.start(Beginning())
    settle(lambda: feed.waiting)
    feed.halt()
    feed.join(SECONDS)
    assert not feed.reader.thread.is_alive()
