"""What is packed by column is unpacked as it was, by the compiled module and by the one in Python."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.loops import columns
from emberflow.values.item import FlatItem
from tests.engine.test_loops import marks, numbers, places

_columns = pytest.importorskip(
    "emberflow.native._columns", reason="the compiled module is not built: no compiler was there"
)


class Pair(NamedTuple):
    left: int
    right: int


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


@given(items_)
def test_what_is_packed_is_unpacked_as_it_was(items: list[FlatItem]) -> None:
    sent = _columns.pack(items)
    if sent is not None:
        sent = pickle.loads(pickle.dumps(sent))
        for unpack in (_columns.unpack, columns._unpack):
            assert repr(unpack(*sent)) == repr(items)  # 1 and True are equal, and not the same
    elif items:
        fits = all(-(2**63) <= number < 2**63 for place, _, _ in items for number in place)
        assert not fits or len({len(place) for place, _, _ in items}) > 1


@given(alike)
def test_what_is_packed_by_column_is_unpacked_as_it_was(values: list[Any]) -> None:
    sent = pickle.loads(pickle.dumps(_columns.pack_column(values)))
    for unpack_column in (_columns.unpack_column, columns._unpack_column):
        assert repr(unpack_column(sent, len(values))) == repr(values)


def test_ints_and_pairs_travel_as_words() -> None:
    assert len(_columns.pack_column([1, 2, 3])) == 24
    words, numbers = _columns.pack_column([("a", 1), ("b", 2)])
    assert (words, len(numbers)) == (["a", "b"], 16)


@pytest.mark.parametrize(
    ("column", "count"), [(b"1234567", 1), ([1], 2), (([1], [1, 2]), 1), (([1],), 2)]
)
def test_a_column_of_another_length_is_refused(column: Any, count: int) -> None:
    for unpack_column in (_columns.unpack_column, columns._unpack_column):
        with pytest.raises(ValueError, match=r"length|values|shorter|longer"):
            unpack_column(column, count)
