"""The interpreter of a worker: garbage with cycles goes, what has none costs nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

from emberflow.runners.interpreter import _OBJECTS, Collector, serving


class Node:
    def __init__(self) -> None:
        self.itself = self


def in_a_process_of_its_own(test: Callable[[], None]) -> None:
    """The collector's state is the whole process's, and pytest has a say in it."""
    code = f"from {__name__} import {test.__name__}; {test.__name__}()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def cycles_are_collected() -> None:
    with serving(0.002) as collector:
        lost = []
        for _ in range(100):
            made = [Node() for _ in range(_OBJECTS // 10)]
            lost.append(weakref.ref(made[0]))
            del made
            collector.look()
        assert sum(each() is None for each in lost) > 50


def what_has_no_cycles_is_seldom_looked_at() -> None:
    looks: list[int] = []
    kept: list[list[int]] = []
    with serving(0.002) as collector:
        gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
        for _ in range(50):
            kept += [[number] for number in range(_OBJECTS + 1)]
            collector.look()
        assert 0 < len(looks) < 2 * 10
        assert not any(looks)


def it_is_as_it_was_afterwards() -> None:
    before = gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()
    for _ in range(2):
        with serving(0.002):
            assert not gc.isenabled()
            assert sys.getswitchinterval() == 0.002
        assert (gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()) == before


def test_cycles_are_collected() -> None:
    in_a_process_of_its_own(cycles_are_collected)


def test_what_has_no_cycles_is_seldom_looked_at() -> None:
    in_a_process_of_its_own(what_has_no_cycles_is_seldom_looked_at)


def test_it_is_as_it_was_afterwards() -> None:
    in_a_process_of_its_own(it_is_as_it_was_afterwards)


def test_a_collector_that_has_found_cycles_leaves_them_to_python() -> None:
    in_a_process_of_its_own(left_to_python)


def left_to_python() -> None:
    collector = Collector()
    assert not gc.isenabled()
    made = [Node() for _ in range(_OBJECTS + 1)]
    del made
    collector.look()
    assert gc.isenabled()
    assert not gc.get_freeze_count()
