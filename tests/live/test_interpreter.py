"""A worker's interpreter: cyclic garbage is collected, everything else costs nothing."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emberflow.runners import interpreter
from emberflow.runners.interpreter import Collector, driving, serving, use_huge_pages


class Node:
    def __init__(self) -> None:
        self.itself = self


def in_a_process_of_its_own(test: Callable[[], None]) -> None:
    """The collector's state belongs to the whole process, which pytest changes too."""
    code = f"from {__name__} import {test.__name__}; {test.__name__}()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def looking(windows: int, made: Callable[[], Any], more: int = 10**9) -> list[int]:
    """Run this many windows with what is made in each; the generations that were collected."""
    interpreter._WINDOW_SECONDS, interpreter._MORE_OBJECTS = 0.0, more
    looked_at: list[int] = []
    gc.callbacks.append(
        lambda phase, info: looked_at.append(info["generation"]) if phase == "stop" else None
    )
    with serving(0.002) as collector:
        for _ in range(windows):
            made()
            collector.look()
    return looked_at[1:]  # the first is from before it begins


def what_has_no_cycles_is_seldom_looked_at() -> None:
    kept: list[list[int]] = []
    found = looking(500, lambda: kept.extend([number] for number in range(1_000)))
    assert 5 < len(found) < 20
    assert not any(found)
    assert gc.isenabled()


def garbage_of_every_element_is_collected() -> None:
    lost: list[weakref.ref[Node]] = []

    def make() -> None:
        nodes = [Node() for _ in range(500)]
        lost.append(weakref.ref(nodes[0]))

    looking(2_000, make)
    assert sum(each() is None for each in lost) > 1_000


def garbage_that_lived_long_is_collected() -> None:
    """It is frozen while it lives, and becomes garbage later."""
    held: list[Node] = []
    lost: list[weakref.ref[Node]] = []

    def make() -> None:
        held.extend(Node() for _ in range(100))
        lost.append(weakref.ref(held[-1]))
        del held[:-1_000]

    looking(2_000, make, more=50_000)
    assert sum(each() is None for each in lost) > 1_000


def it_is_as_it_was_afterwards() -> None:
    before = gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()
    for _ in range(2):
        with serving(0.002):
            assert not gc.isenabled()
            assert sys.getswitchinterval() == 0.002
        assert (gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()) == before


def what_was_taken_for_granted_goes_when_it_is_over() -> None:
    with serving(0.002) as collector:
        state = Node()
        lost = weakref.ref(state)
        collector._due = 0.0
        collector.look()
        assert gc.get_freeze_count()
    del state
    gc.collect()
    assert lost() is None


def who_has_found_cycles_leaves_them_to_python() -> None:
    interpreter._WINDOW_SECONDS = 0.0
    collector = Collector()
    assert not gc.isenabled()
    nodes = [Node() for _ in range(1_000)]
    del nodes
    collector.look()
    assert gc.isenabled()
    assert not gc.get_freeze_count()


def test_what_has_no_cycles_is_seldom_looked_at() -> None:
    in_a_process_of_its_own(what_has_no_cycles_is_seldom_looked_at)


def test_garbage_of_every_element_is_collected() -> None:
    in_a_process_of_its_own(garbage_of_every_element_is_collected)


def test_garbage_that_lived_long_is_collected() -> None:
    in_a_process_of_its_own(garbage_that_lived_long_is_collected)


def test_it_is_as_it_was_afterwards() -> None:
    in_a_process_of_its_own(it_is_as_it_was_afterwards)


def test_what_was_taken_for_granted_goes_when_it_is_over() -> None:
    in_a_process_of_its_own(what_was_taken_for_granted_goes_when_it_is_over)


def test_who_has_found_cycles_leaves_them_to_python() -> None:
    in_a_process_of_its_own(who_has_found_cycles_leaves_them_to_python)


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def kilobytes(what: str) -> int:
    """A figure of this process's memory."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
    assert found is not None
    return int(found[1])


def objects_are_in_huge_pages_and_their_memory_is_given_back() -> None:
    before = [(number, str(number)) for number in range(300_000)]  # in Python's ordinary arenas
    assert use_huge_pages()
    for _ in range(2):
        kept = {number: (number, [str(number)]) for number in range(400_000)}
        huge = kilobytes("AnonHugePages")
        assert huge > 40_000
        for number in range(0, 400_000, 3):  # in an unfavourable order
            del kept[number]
        assert all(value == (number, [str(number)]) for number, value in kept.items())
        del kept
        assert kilobytes("AnonHugePages") < huge // 10
    assert all(number == int(text) for number, text in before)
    full = kilobytes("Rss")
    del before
    assert kilobytes("Rss") < full - 20_000


@pytest.mark.skipif(
    not THP.exists() or "[never]" in THP.read_text(),
    reason="this system gives no huge pages to those who ask for them",
)
def test_objects_are_in_huge_pages_and_their_memory_is_given_back() -> None:
    in_a_process_of_its_own(objects_are_in_huge_pages_and_their_memory_is_given_back)


def what_passes_by_is_no_reason_to_collect_everything() -> None:
    """Lists of a moment, as the elements that pass a driver: some of them are there at each collection."""
    program = [[number] for number in range(200_000)]  # what the user's program keeps
    collected: list[int] = []
    gc.callbacks.append(
        lambda phase, info: collected.append(info["generation"]) if phase == "stop" else None
    )

    def pass_by() -> int:
        collected.clear()
        in_flight: deque[list[list[int]]] = deque(maxlen=8)
        for _ in range(500):
            in_flight.append([[number] for number in range(2_000)])
        return collected.count(2)

    usual = gc.get_threshold()
    assert pass_by() > 0
    first, second = driving(), driving()
    first.__enter__()
    second.__enter__()
    assert pass_by() == 0
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > usual[0], "a query still runs"
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual
    lost = [weakref.ref(node) for node in [Node() for _ in range(1_000)]]
    with driving():
        kept = [[number] for number in range(150_000)]
        assert not any(node() for node in lost), "garbage waits, but not for long"
    for own in ((0, 10, 10), (1_000_000, 10, 10)):
        gc.set_threshold(*own)
        with driving():
            assert gc.get_threshold() == own, "the program's own"
    assert len(program) + len(kept) == 350_000


def test_a_driver_collects_when_many_objects_stay() -> None:
    in_a_process_of_its_own(what_passes_by_is_no_reason_to_collect_everything)
