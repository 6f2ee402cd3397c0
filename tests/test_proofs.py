"""What is proven of where a key is: never more than is so, and enough for the functions that people write."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import pytest

from emberflow.values.proofs.functions import applied
from emberflow.values.proofs.sameness import is_same
from emberflow.values.proofs.shapes import KEY, UNKNOWN, Fields, Keyed, Parts, Several, Shape

PAIR = Parts((KEY, UNKNOWN))
RESULT = Fields(("key", "value"), (KEY, UNKNOWN))


class Result(NamedTuple):
    key: str
    value: Any


def item_of(bid: Any) -> Any:
    return bid["item"]


def swapped(pair: Any) -> Any:
    key, value = pair
    return value, key


def rounded(pair: Any) -> Any:
    key, value = pair
    doubled = value * 2
    return (key, round(doubled, 3))


def reassigned(pair: Any) -> Any:
    pair = (pair[1], pair[1])
    return pair[0]


#: Functions, what they get, and what is known of what they return.
KNOWN: list[tuple[Callable[[Any], Any], Shape, Shape]] = [
    (lambda pair: pair[0], PAIR, KEY),
    (lambda pair: pair[-2], PAIR, KEY),
    (itemgetter(0), PAIR, KEY),
    (lambda pair: (pair[0], pair[1] * 2), PAIR, PAIR),
    (lambda pair: (pair[0], str(pair[1]).upper()), PAIR, PAIR),
    (lambda pair: (pair[0], pair[1] > 2), PAIR, PAIR),
    (swapped, PAIR, Parts((UNKNOWN, KEY))),
    (rounded, PAIR, PAIR),
    (lambda result: result.key, RESULT, KEY),
    (lambda result: (result.key, result.value), RESULT, PAIR),
    (lambda result: result[0], RESULT, KEY),
    (lambda each: each[0], Several(Keyed(item_of)), Keyed(item_of)),
    (lambda bid: bid["item"], Keyed(lambda bid: bid["item"]), KEY),
    (item_of, Keyed(item_of), KEY),
]

#: Of these nothing may be known: what they return is, or may be, no key.
OTHERS: list[tuple[Callable[[Any], Any], Shape]] = [
    (lambda pair: pair[1], PAIR),
    (lambda pair: pair[True], PAIR),
    (lambda pair: pair[0] if pair[1] else 0, PAIR),
    (lambda pair: pair[0] or pair[1], PAIR),
    (lambda pair: [key for key in pair][1], PAIR),  # noqa: C416
    (lambda pair: (yield pair[0]), PAIR),
    (lambda *pair: pair[0], PAIR),
    (lambda pair, at=0: pair[at], PAIR),
    (lambda pair: pair[2], PAIR),
    (reassigned, PAIR),
    (lambda result: result.value, RESULT),
    (lambda bid: bid["by"], Keyed(item_of)),
    (itemgetter(0, 1), PAIR),
]


@pytest.mark.parametrize("case", KNOWN)
def test_it_is_known_where_the_key_is(case: tuple[Callable[[Any], Any], Shape, Shape]) -> None:
    function, given, returned = case
    assert applied(function, given) == returned


@pytest.mark.parametrize("case", OTHERS)
def test_nothing_is_known_of_all_else(case: tuple[Callable[[Any], Any], Shape]) -> None:
    function, given = case
    assert applied(function, given) == UNKNOWN


def test_functions_are_the_same_if_their_code_and_all_that_it_sees_is() -> None:
    def modulo(number: int) -> Callable[[int], int]:
        return lambda n: n % number

    assert is_same(modulo(2), modulo(2))
    assert not is_same(modulo(2), modulo(3))
    assert not is_same(lambda n: n % 2, lambda n: n % 3)
    assert not is_same(lambda n: n % 1, lambda n: n % True)
    assert not is_same(lambda n: n % 0.0, lambda n: n % -0.0)
    assert not is_same(str, lambda n: str(n))
    assert not is_same(lambda n: len(n), lambda n: abs(n))
