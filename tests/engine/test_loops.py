"""The compiled loops give what the ones in Python give, to the byte, and stop where they stop."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine import loops
from emberflow.item import FlatItem, Place

_loops = pytest.importorskip(
    "emberflow.engine._loops", reason="the compiled loops are not built: no compiler was there"
)


class Pair(NamedTuple):
    left: int
    right: int


class Absent:
    pass


class Refused(int):
    pass


numbers = st.one_of(st.integers(-3, 3), st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**70]))
places = st.one_of(
    st.tuples(st.integers(0, 30), st.integers(0, 1)),
    st.tuples(st.integers(0, 30), st.integers(0, 1), st.integers(0, 2), numbers),
)
marks = st.sampled_from([0, 0, 0, 1, 2, 3, 2**64, 2**64 + 1])
values = st.recursive(
    st.one_of(numbers, st.booleans(), st.text(max_size=2), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.tuples(inner, inner), st.tuples(inner), st.just(()), st.builds(Pair, inner, inner)
    ),
    max_leaves=6,
)
alike = st.one_of(
    st.lists(values, max_size=6),
    st.lists(numbers, max_size=6),
    st.lists(st.tuples(st.text(max_size=2), numbers), max_size=6),
    st.lists(st.tuples(st.tuples(numbers, st.booleans()), numbers), max_size=6),
)
items_ = st.lists(st.tuples(places, marks, values), max_size=8)


def key_of(payload: Any) -> Any:
    if payload == 13:
        raise ValueError("a key function that fails")
    return payload if payload != 7 else []  # a key that cannot be hashed


def combine(before: Any, payload: Any) -> Any:
    if payload == 5:
        raise LookupError("a function that fails")
    return Refused(before) if payload == 6 else before + 1


payloads = st.sampled_from([1, 1, 1, 2, 3, 5, 6, 7, 13])


@st.composite
def reducing(draw: st.DrawFn) -> tuple[list[FlatItem], dict[Any, list[Any]], int]:
    items = draw(st.lists(st.tuples(places, marks, payloads), max_size=12))
    if draw(st.booleans()):
        items.sort(key=lambda item: item[0])
    before = st.one_of(st.integers(0, 9), st.builds(Absent))
    version = st.tuples(places, st.just(0), payloads, before)
    buckets = draw(st.dictionaries(st.sampled_from([1, 2, 3, 5, 6]), st.lists(version, max_size=2)))
    start = draw(st.integers(0, len(items)))
    return items, buckets, start


def _shown(thing: Any) -> str:
    return repr(thing).replace(" object at", "")


@given(reducing(), st.booleans())
def test_reduce_in_order(
    case: tuple[list[FlatItem], dict[Any, list[Any]], int], with_key: bool
) -> None:
    items, buckets, start = case
    results = []
    for reduce_in_order in (_loops.reduce_in_order, loops._reduce_in_order):
        output: list[FlatItem] = []
        touched: list[list[Any]] = []
        own = {key: list(versions) for key, versions in buckets.items()}
        out: Place = (0, 1)
        position = reduce_in_order(
            items, start, output, key_of, combine, own, touched, out, with_key, Absent, Refused
        )
        results.append(_shown((position, output, own, touched)))
    assert results[0] == results[1]


@given(st.lists(st.tuples(places, marks, payloads), max_size=12), st.integers(0, 3))
def test_spread(items: list[FlatItem], start: int) -> None:
    owners = {1: 0, 2: 1, 3: 1, 5: 0}
    marked = [{0: 8, 1: 9, 2**64: 10}, {0: 2**65, 3: 12}]
    results = []
    for spread in (_loops.spread, loops._spread):
        dealt: list[list[FlatItem]] = [[], []]
        position = spread(items, min(start, len(items)), dealt, key_of, owners, marked)
        results.append((position, dealt))
    assert results[0] == results[1]


@given(st.lists(st.lists(places, max_size=3)), places, places)
def test_trim_to_last(touched: list[list[Place]], minimal: Place, begun: Place) -> None:
    results = []
    for trim_to_last in (_loops.trim_to_last, loops._trim_to_last):
        own = [[(place, 0) for place in sorted(bucket)] for bucket in touched]
        results.append((trim_to_last(own, minimal[:2], begun[:2]), own))
    assert results[0] == results[1]


@given(items_)
def test_what_is_packed_is_unpacked_as_it_was(items: list[FlatItem]) -> None:
    sent = _loops.pack(items)
    if sent is not None:
        sent = pickle.loads(pickle.dumps(sent))
        for unpack in (_loops.unpack, loops._unpack):
            assert repr(unpack(*sent)) == repr(items)  # 1 and True are equal, and not the same
    elif items:
        fits = all(-(2**63) <= number < 2**63 for place, _, _ in items for number in place)
        assert not fits or len({len(place) for place, _, _ in items}) > 1


@given(alike)
def test_what_is_packed_by_column_is_unpacked_as_it_was(values: list[Any]) -> None:
    sent = pickle.loads(pickle.dumps(_loops.pack_column(values)))
    for unpack_column in (_loops.unpack_column, loops._unpack_column):
        assert repr(unpack_column(sent, len(values))) == repr(values)


def test_ints_and_pairs_travel_as_words() -> None:
    assert len(_loops.pack_column([1, 2, 3])) == 24
    words, numbers = _loops.pack_column([("a", 1), ("b", 2)])
    assert (words, len(numbers)) == (["a", "b"], 16)


@pytest.mark.parametrize(
    ("column", "count"), [(b"1234567", 1), ([1], 2), (([1], [1, 2]), 1), (([1],), 2)]
)
def test_a_column_of_another_length_is_refused(column: Any, count: int) -> None:
    for unpack_column in (_loops.unpack_column, loops._unpack_column):
        with pytest.raises(ValueError, match=r"length|values|shorter|longer"):
            unpack_column(column, count)


def test_an_interrupt_is_not_taken_for_a_function_that_fails() -> None:
    def interrupted(payload: Any) -> Any:
        raise KeyboardInterrupt

    items = [((1, 0), 0, "a")]
    with pytest.raises(KeyboardInterrupt):
        _loops.spread(items, 0, [[]], interrupted, {}, [{}])
    with pytest.raises(KeyboardInterrupt):
        _loops.reduce_in_order(
            items, 0, [], interrupted, combine, {}, [], (0,), True, Absent, Refused
        )
