"""A failing case is shrunk, within bounds, and fails again when it is pasted into a test."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.verify.functions.findings import STATE, Finding
from emberflow.runners.verify.functions.sites import sites_of
from emberflow.runners.verify.report import case_of, error_of
from emberflow.runners.verify.shrinking import shrunk
from tests.effort import SOAK
from tests.verify import impure

FINDING = Finding(0, STATE, ("because",), "f(1)", (("first", "1"), ("again", "2")))
Elements = dict[str, list[Any]]


def smallest(elements: Elements, needed: set[Any], **bounds: Any) -> tuple[Elements, int]:
    """The elements left if exactly these are needed, and the number of tries."""
    tries = 0

    def fails(tried: Elements) -> Finding | None:
        nonlocal tries
        tries += 1
        left = {element for given in tried.values() for element in given}
        return FINDING if needed <= left else None

    return shrunk(elements, FINDING, fails, **bounds)[0], tries


@pytest.mark.parametrize(
    "needed",
    [set(), {0}, {999}, {17, 400}, {3, 333, 334, 999}],
    ids=lambda needed: str(len(needed)),
)
def test_only_what_is_needed_is_left(needed: set[int]) -> None:
    elements = {"a": list(range(500)), "b": list(range(500, 1000))}
    left, tries = smallest(elements, needed)
    assert left == {front: [n for n in given if n in needed] for front, given in elements.items()}
    assert tries < 150


def test_bounds_of_tries_and_time() -> None:
    left, tries = smallest({"a": list(range(100))}, {5, 50, 95}, tries_max=6)
    assert tries == 6
    assert {5, 50, 95} <= set(left["a"])

    def slowly(tried: Elements) -> Finding | None:
        time.sleep(0.05)
        return None

    began = time.monotonic()
    shrunk({"a": list(range(1000))}, FINDING, slowly, seconds_max=0.2)
    assert time.monotonic() - began < 2


def test_a_try_that_raises_is_no_success() -> None:
    def fails(tried: Elements) -> Finding | None:
        if len(tried["a"]) < 3:
            raise ValueError("another mistake")
        return FINDING

    left, _ = shrunk({"a": list(range(20))}, FINDING, fails)
    assert len(left["a"]) == 3


def test_the_finding_is_that_of_the_small_case() -> None:
    """It takes two elements of a key to change its accumulator in place; the message shows both."""
    flow = ef.Flow("lists")
    flow.front("words").key_by(len).reduce(
        first=lambda word: [word], combine=impure.appending
    ).sink("lists")
    words = ["one", "three", "eleven", "four", "two", "seven", "nineteen", "five", "six"] * 5
    with pytest.raises(ef.NondeterminismError) as caught:
        ef.verify(flow, seeds=1, words=words)
    assert caught.value.elements is not None
    one, other = caught.value.elements["words"]
    assert len(one) == len(other)
    assert f"called as:  appending(['{one}'], '{other}')" in str(caught.value)
    assert "A case of 2 elements, of 45 given, for a test:" in str(caught.value)


SPECULATING = """
import emberflow as ef

remembered = {}

def add(total, number):
    return remembered.setdefault(number, total + number)

flow = ef.Flow("totals")
numbers = ef.merge(flow.front("odd"), flow.front("even"))
numbers.key_by(lambda number: None).reduce(first=lambda number: number, combine=add).sink("totals")
"""


@pytest.mark.skipif(not SOAK, reason="takes half a minute: make soak")
def test_the_pasted_case_fails_again_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Also for the hardest kind, which shows only when elements overtake each other."""
    file = tmp_path / "speculating.py"
    file.write_text(SPECULATING + "ef.verify(flow, odd=range(1, 31, 2), even=range(2, 32, 2))\n")
    errors = ran(file)
    assert "keeps state between calls" in errors
    case = errors.partition("for a test:\n\n")[2]
    assert case.count(",") <= 6, case  # a few elements are left
    file.write_text(f"{SPECULATING}\n{dedented(case)}\ntest_totals_is_deterministic()\n")
    again = ran(file)
    assert "emberflow.errors.NondeterminismError" in again
    assert "speculating.py:6) keeps state between calls" in again


def ran(file: Path) -> str:
    process = subprocess.run(
        [sys.executable, str(file)], capture_output=True, check=False, encoding="utf-8", timeout=300
    )
    assert process.returncode == 1
    return process.stderr


def dedented(case: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in case.rstrip().splitlines())


def test_code_of_a_case() -> None:
    elements = {"docs": ["x" * 30, ef.At(3, "y" * 28), "z" * 40], "front-2": list(range(60))}
    code = case_of("My flow: 2!", elements)
    assert code == (
        "def test_my_flow_2_is_deterministic() -> None:\n"
        "    ef.verify(\n"
        "        flow,\n"
        "        docs=[\n"
        f"            '{'x' * 30}', ef.At(3, '{'y' * 28}'),\n"
        f"            '{'z' * 40}',\n"
        "        ],\n"
        "        **{'front-2': [\n"
        "            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,\n"
        "            21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39,\n"
        "            40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58,\n"
        "            59,\n"
        "        ]},\n"
        "    )"
    )
    given: dict[str, Any] = {}

    class Recorder:
        At = ef.At

        @staticmethod
        def verify(flow: object, **elements: Any) -> None:
            given.update(elements)

    scope: dict[str, Any] = {"ef": Recorder, "flow": None}
    exec(f"{code}\ntest_my_flow_2_is_deterministic()", scope)
    assert given == elements


def test_an_error_without_a_single_culprit_names_all_functions() -> None:
    flow = ef.Flow("many")
    flow.front("words").map(impure.noisy).map(len).sink("out")
    finding = Finding(None, STATE, ("because",), "-", (("expected", "a"), ("got", "b")))
    error = error_of("many", sites_of(flow.graph()), finding, {"words": ["a"]}, given=3)
    assert "noisy (" in error.function
    assert " or len" in error.function
