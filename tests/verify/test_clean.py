"""Deterministic flows pass, whatever they are made of, and the result says what was tried."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from enum import Enum
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import emberflow as ef
from tests.effort import SOAK
from tests.strategies import random_flow

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture
def _examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # children import them too


def timed(records: Any) -> list[ef.At[Any]]:
    return [ef.At(record.minute, record) for record in records]


ELEMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "bank": lambda module: {"orders": module.ORDERS},
    "bank_upgrade": lambda module: {"orders": module.ORDERS},
    "catalogue": lambda module: module.elements(),
    "click_sessions": lambda module: {"clicks": timed(module.CLICKS)},
    "grouping": lambda module: {"numbers": module.NUMBERS},
    "inverted_index": lambda module: {
        "docs": list(module.generated_documents(4, words_per_document=6, seed=5))
    },
    "ledger": lambda module: {"deposits": module.DEPOSITS, "transfers": module.TRANSFERS},
    "moving_average": lambda module: {"readings": timed(module.READINGS)},
    "orders": lambda module: module.elements(),
    "seats": lambda module: {"requests": module.REQUESTS},
    "stock": lambda module: {
        "moves": module.MOVES,
        "deliveries": module.DELIVERIES,
        "orders": module.ORDERS,
    },
    "word_count": lambda module: {"lines": ["to be or not to be", "", "be"]},
}


def test_every_example_is_verified() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"conftest"}
    assert names - set(ELEMENTS) == {"demo"}
    assert example("demo").flow is example("inverted_index").flow


@pytest.mark.usefixtures("_examples_importable")
@pytest.mark.parametrize("name", ELEMENTS if SOAK else ["stock"])
def test_example(name: str) -> None:
    module = example(name)
    verification = ef.verify(module.flow, seeds=4, **ELEMENTS[name](module))
    assert verification.calls > 0
    assert verification.unchecked == 0
    assert verification.suspicions == ()


def test_who_times_the_garbage_collector_does_not_make_a_function_look_impure() -> None:
    def timed(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    flow = ef.Flow("many lists")
    flow.front("numbers").map(lambda number: len([[n] for n in range(number)])).sink("out")
    threshold = gc.get_threshold()
    gc.callbacks.append(timed)
    gc.set_threshold(10)
    try:
        verification = ef.verify(flow, seeds=4, workers=(1,), numbers=[500, 600])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(timed)
    assert verification.suspicions == ()


@pytest.mark.parametrize("seed", range(4 if SOAK else 1))
def test_random_flow(seed: int) -> None:
    flow, elements = random_flow(Random(f"verify {seed}"))
    verification = ef.verify(flow, seeds=4, workers=(1, 3), **elements)
    assert verification.elements == sum(map(len, elements.values()))
    assert verification.unchecked == 0


class Colour(Enum):
    RED = 1
    BLUE = 2


class Plain:
    """Has no ``__eq__``, and a cache that fills when it is read."""

    def __init__(self, word: str) -> None:
        self.word = word

    @functools.cached_property
    def length(self) -> int:
        return len(self.word)


@dataclass(frozen=True)
class Entry:
    word: str
    weight: float

    @functools.cached_property
    def doubled(self) -> float:
        return 2 * self.weight


class Pair(NamedTuple):
    one: str
    entry: Entry


class Doubling:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, word: str) -> str:
        return word * self.factor

    def method(self, word: str) -> str:
        return word * self.factor


def drawn_from_a_seed(word: str) -> float:
    return Random(word).random()


def logged(word: str) -> str:
    logging.getLogger("verify").debug("got %s", word)
    return word


def memory() -> Callable[[str], int]:
    """A cache that never changes a result."""
    known: dict[str, int] = {}

    def length(word: str) -> int:
        if word not in known:
            known[word] = len(word)
        return known[word]

    return length


@functools.cache
def cached(word: str) -> list[str]:
    return [word]


def raising_and_caught(word: str) -> str:
    try:
        object.__setattr__(Entry(word, 1.0), "nothing", 1)
        Entry(word, 1.0).word = "x"  # type: ignore[misc]
    except FrozenInstanceError:
        return word
    raise AssertionError


INNOCENT: list[Callable[[Any], Any]] = [
    str.upper,
    len,
    lambda word: [word, {"a": float("nan"), "b": [word]}],
    lambda word: Plain(word),
    lambda word: Plain(word).length,
    lambda word: Pair(word, Entry(word, float("nan"))),
    lambda word: Entry(word, 0.5).doubled,
    lambda word: frozenset(word),
    lambda word: sorted(set(word)),
    lambda word: Counter(word),
    lambda word: np.array([len(word), 2.5]),
    lambda word: Colour(1 + len(word) % 2),
    lambda word: re.compile(word),
    lambda word: ef.PersistentList(word),
    lambda word: lambda: word,
    functools.partial(str.replace, "a-b", "-"),
    cached,
    Doubling(2),
    Doubling(3).method,
    drawn_from_a_seed,
    logged,
    memory(),
    raising_and_caught,
]


def test_innocent_functions_of_many_kinds() -> None:
    """One flow with all of them, so that one set of child processes is enough."""
    flow = ef.Flow("innocent")
    words = flow.front("words")
    for number, function in enumerate(INNOCENT):
        words.map(function).map(lambda image: image).sink(f"out-{number}")
    keep = words.filter(lambda word: re.match("[ab]", word))  # a match cannot be copied
    keep.flat_map(lambda word: dict.fromkeys(word).keys()).sink("letters")
    keep.flat_map(lambda word: (letter for letter in word)).sink("generated")
    verification = ef.verify(flow, seeds=3, workers=(1, 3), words=["ab", "b", "cab", "ab"])
    assert verification.unchecked == 0
    assert verification.suspicions == ()


def test_functions_may_refuse_what_never_was() -> None:
    """Speculation calls a combine with accumulators that lack an element: it may raise then."""

    def consecutive(last: int, number: int) -> int:
        if number != last + 1:
            raise ValueError(f"{number} after {last}")
        return number

    flow = ef.Flow("consecutive")
    numbers = ef.merge(flow.front("odd"), flow.front("even"))
    numbers.key_by(lambda number: None).reduce(first=lambda n: n, combine=consecutive).sink("last")
    ef.verify(flow, seeds=8, workers=(2, 3), odd=range(1, 20, 2), even=range(2, 20, 2))


def test_a_function_that_times_itself_passes_with_a_remark() -> None:
    def timed_length(word: str) -> int:
        began = time.perf_counter()
        length = len(word)
        assert time.perf_counter() >= began
        return length

    flow = ef.Flow("timed")
    flow.front("words").map(timed_length).sink("lengths")
    verification = ef.verify(flow, seeds=1, words=["a"])
    assert "time.perf_counter()" in verification.suspicions[0]
    assert "\n" not in str(verification)


def test_what_cannot_be_copied_is_counted() -> None:
    flow = ef.Flow("generators")
    flow.front("words").map(lambda word: (c for c in word)).map(lambda g: type(g).__name__).sink(
        "kinds"
    )
    verification = ef.verify(flow, seeds=1, words=["ab", "c"])
    assert verification.unchecked == 4
    assert "4 not checked" in str(verification)


def test_says_in_one_line_what_was_tried() -> None:
    flow = ef.Flow("word count")
    flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    verification = ef.verify(flow, seeds=5, workers=[1, 2], lines=["the dog", "the cat"])
    assert str(verification) == (
        "flow 'word count' is deterministic as far as tried: 5 seeds on 1 and 2 workers, "
        "4 processes with different hash seeds, 2 elements, 6 calls of 2 functions checked"
    )
    with pytest.raises(FrozenInstanceError):
        verification.seeds = 7  # type: ignore[misc]


def test_generated_elements() -> None:
    asked = []

    def generate(random: Random) -> dict[str, list[Any]]:
        numbers = [random.randint(0, 9) for _ in range(random.randint(1, 6))]
        asked.append(numbers)
        return {"numbers": numbers}

    flow = ef.Flow("sums")
    ef.merge(flow.front("numbers"), flow.front("more")).key_by(lambda n: n % 2).sum().sink("sums")
    verification = ef.verify(flow, seeds=10, generate=generate, more=[5, 7])
    assert len(asked) == 5
    assert len({tuple(numbers) for numbers in asked}) > 1
    assert verification.elements == sum(map(len, asked)) + 5 * 2
