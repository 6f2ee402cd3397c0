"""What counts as the same value: by content, with order where there is one, no false alarms."""

from __future__ import annotations

import datetime
import functools
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest

import emberflow as ef
from emberflow.runners.verify.functions.comparison import (
    NotComparableError,
    fingerprint,
    fresh,
    same,
    saved,
)


class Bare:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


class Lenient:
    """Equal if the names are, whatever else they remember."""

    def __init__(self, name: str, memory: list[int]) -> None:
        self.name = name
        self.memory = memory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lenient) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Lazy:
    def __init__(self, word: str) -> None:
        self.word = word

    @functools.cached_property
    def length(self) -> int:
        return len(self.word)


@dataclass(frozen=True)
class Point:
    x: float
    y: Any
    note: str = field(default="", compare=False)


class Name(NamedTuple):
    first: str
    last: Any


class Colour(Enum):
    RED = 1


NAN = float("nan")
VALUES = [
    None,
    True,
    7,
    1.5,
    NAN,
    "text",
    b"bytes",
    [1, [2, NAN]],
    (1, "a"),
    {"a": 1, "b": [NAN]},
    {"a", "b", "c", 1},
    frozenset({("a", 1)}),
    Bare(1, [2]),
    Slotted({"a": 1}),
    Lazy("word"),
    Point(NAN, {"a": 1}),
    Name("ada", ["lovelace"]),
    Colour.RED,
    Counter("abca"),
    defaultdict(list, a=[1]),
    OrderedDict(a=1),
    deque([1, 2]),
    Decimal("NaN"),
    datetime.datetime(2026, 1, 1),
    np.array([1.0, NAN]),
    ef.PersistentList([1, 2]),
    ef.At(1, "a"),
    count(3),
    str.upper,
    int,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_copy_is_the_same(value: Any) -> None:
    copy = fresh(saved(value))
    assert same(value, copy)
    assert fingerprint(value) == fingerprint(copy)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ([1, 2], [1, 2, 3]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a"}, {"b"}),
        (Bare(1), Bare(2)),
        (Slotted(1), Slotted([1])),
        (Point(1.0, {"a": 1, "b": 2}), Point(1.0, {"b": 2, "a": 1})),
        (Name("ada", 1), ("ada", 1)),
        (np.array([1, 2]), np.array([1, 3])),
        (Lenient("a", []), Lenient("b", [])),
        (str.upper, str.lower),
        (ef.PersistentList([1]), ef.PersistentList([2])),
    ],
)
def test_different_values_are_told_apart(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert fingerprint(one) != fingerprint(other)


def test_equality_counts_where_it_is_defined() -> None:
    assert same(Lenient("a", [1]), Lenient("a", [2]))
    assert same([Lenient("a", [1])], [Lenient("a", [2])])
    assert same(Point(1.0, 2, note="x"), Point(1.0, 2, note="y"))


def test_what_is_only_cached_does_not_count() -> None:
    looked_at, other = Lazy("word"), Lazy("word")
    assert looked_at.length == 4
    assert same(looked_at, other)
    assert fingerprint(looked_at) == fingerprint(other)


def test_cycles_end() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [1]
    other.append(other)
    assert same(one, other)
    assert fingerprint(one) == fingerprint(other)
    other[0] = 2
    assert not same(one, other)


def test_a_local_class_and_its_objects_travel() -> None:
    class Local:
        def __init__(self, part: int) -> None:
            self.part = part

    assert same(Local(1), fresh(saved(Local(1))))
    assert not same(Local(1), fresh(saved(Local(2))))


def test_what_cannot_be_looked_into_says_so() -> None:
    with pytest.raises(NotComparableError):
        same(threading.Lock(), threading.Lock())
    with pytest.raises(NotComparableError):
        fingerprint(n for n in [1])
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(NotComparableError):
        fingerprint(nested)
