"""Fronts whose elements are out of order, in several partitions: the simulation is the reference.

`test_seeds`, `test_crashes` and `test_transactions` run such fronts for a share of their seeds. This file
checks that these are worth it, and that `ef.simulate` takes fronts as `ef.run` does.
"""

from __future__ import annotations

from collections import Counter

import emberflow as ef
from emberflow.fronts.protocol import is_front
from emberflow.runners.elements import LateElement, MalformedElement, timed_elements
from emberflow.values.item import TIE
from tests.simulation.cases import Case
from tests.simulation.crash_cases import CrashCase


def test_the_cases_are_worth_it() -> None:
    """With ties, late elements, malformed ones, leaps, and partitions far behind others."""
    for kind in (Case, CrashCase):
        found: Counter[str] = Counter()
        for seed in range(50):
            case = kind.out_of_order(seed)
            fronts = [given for given in case.elements.values() if is_front(given)]
            if not fronts:
                found["in order"] += 1
                continue
            found["partitions"] += max(front.partitions for front in fronts) > 1
            for at, front, payload in timed_elements(case.graph, case.elements):
                if is_front(case.elements[front.name]):
                    found["ties"] += at.front >= TIE
                    found["late"] += isinstance(payload, LateElement)
                    found["malformed"] += isinstance(payload, MalformedElement)
                    found["leaps"] += "not believed" in getattr(payload, "problem", "")
        assert found["in order"] > 20
        assert found["partitions"] > 8
        assert found["ties"] > 100
        assert found["late"] > 50
        assert found["malformed"] > 12
        assert found["leaps"] > 2


def test_simulate_takes_fronts_of_several_partitions() -> None:
    flow = ef.Flow("windows")
    numbers = flow.front("numbers").key_by(lambda n: n % 3)
    numbers.window(ef.Tumbling(10), emit="close").collect().sink("windows")
    # Every third element is of a partition that is far behind the others, and jumps back and forth.
    rows = [ef.At(n - 20 * (n % 3 == 2) - 7 * (n % 4 == 3), n) for n in range(45)]
    front = ef.fronts.Iterable(rows, partitions=3, disorder=3)
    expected = ef.run(flow, numbers=front)
    assert {late.partition for late in expected["late"]} == {0, 1, 2}
    assert len(expected["windows"]) > 10
    for seed in range(3):
        assert ef.simulate(flow, numbers=front, seed=seed, workers=3).outputs == expected
        assert ef.simulate(flow, numbers=front, seed=seed, crashes=2).outputs == expected
