"""What is packed by column is unpacked as it was, by the compiled module and by the one in Python."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow import native
from emberflow.engine.loops import columns
from emberflow.values.item import FlatItem
from tests.engine.test_items import marks, numbers, places

if native.columns is None:
    pytest.skip(f"columns run in {native.status()['columns']}", allow_module_level=True)
_columns = native.columns


class Pair(NamedTuple):
    left: int
    right: int


class Extended(Pair):
    """Its instances have a `__dict__`."""


class Otherwise(NamedTuple):
    """Is pickled in a way of its own."""

    left: int
    right: int

    def __reduce__(self) -> Any:
        return Otherwise, (self.left, self.right)


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
    st.lists(
        st.one_of(
            st.none(),
            st.builds(Pair, numbers, numbers),
            st.tuples(numbers, st.sampled_from([None, Pair(1, 2), "a"])),
            numbers,
        ),
        max_size=9,
    ),
    st.sampled_from([Pair, Extended, Otherwise]).flatmap(
        lambda kind: st.lists(st.builds(kind, numbers, st.builds(Pair, numbers, st.text()))),
    ),
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
        assert not fits


@given(alike)
def test_what_is_packed_by_column_is_unpacked_as_it_was(values: list[Any]) -> None:
    sent = pickle.loads(pickle.dumps(_columns.pack_column(values)))
    for unpack_column in (_columns.unpack_column, columns._unpack_column):
        assert repr(unpack_column(sent, len(values))) == repr(values)


def test_places_of_several_lengths_travel_as_words() -> None:
    items = [((1, 2), 0, "a"), ((3, 2, 7), 0, "b"), ((5, 2), 0, "c")]
    _, places, _, _ = _columns.pack(items)
    assert places[0] == [b"\2\3\2"]
    assert places[2:] == (2, _columns.pack_column([0, 7, 0]))
    assert _columns.pack([((1,) * 64, 0, "a")]) is not None
    assert _columns.pack([((1,) * 65, 0, "a"), ((1, 2), 0, "b")]) is None


def test_ints_and_pairs_travel_as_words() -> None:
    assert len(_columns.pack_column([1, 2, 3])) == 24
    words, numbers = _columns.pack_column([("a", 1), ("b", 2)])
    assert (words, len(numbers)) == (["a", "b"], 16)


def test_named_tuples_travel_as_their_class_and_their_fields() -> None:
    kind, lefts, rights = _columns.pack_column([Pair(1, 2), Pair(3, 4)])
    assert (kind, len(lefts), len(rights)) == (Pair, 16, 16)
    for others in ([Extended(1, 2)], [Otherwise(1, 2)], [Otherwise(1, 2), None], [1, None]):
        assert _columns.pack_column(others) == others


def test_values_of_a_few_classes_travel_as_a_column_of_each() -> None:
    mixed = _columns.pack_column([None, Pair(1, 2), None, (3, 4), Pair(5, 6)])
    pairs = (Pair, _columns.pack_column([1, 5]), _columns.pack_column([2, 6]))
    tuples = (_columns.pack_column([3]), _columns.pack_column([4]))
    assert mixed == {b"\0\1\0\2\1": ([None, None], pairs, tuples)}
    many = [Pair(1, 2), *(type(str(number), (), {})() for number in range(8))]
    assert _columns.pack_column(many) is many
    assert type(_columns.pack_column(many[:8])) is dict


#: Some are columns, of some length or other, and some are not.
columns_or_not = st.recursive(
    st.one_of(
        st.integers(0, 3).map(lambda count: bytes(8 * count)),
        st.binary(max_size=9),
        st.lists(numbers, max_size=3),
        st.just(()),
        st.sampled_from([None, bytearray(8), 1.5, Pair, Extended, int]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner),
        st.tuples(inner, inner),
        st.tuples(st.sampled_from([Pair, Extended, Otherwise, tuple, int]), inner, inner),
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from([b"", b"\0", b"\0\1", b"\1\0\1", b"\2", 7]),
            st.one_of(inner, st.lists(inner, max_size=3).map(tuple), st.just(([],) * 9)),
            max_size=2,
        ),
    ),
    max_leaves=5,
)
counts = st.one_of(st.integers(0, 3), st.sampled_from([-1, 10**8, None, True]))


def outcome(function: Any, *given: Any) -> str:
    try:
        return repr(function(*given))
    except (TypeError, ValueError) as error:
        return type(error).__name__


@given(columns_or_not, counts)
def test_what_is_no_column_is_refused_alike(column: Any, count: Any) -> None:
    compiled = outcome(_columns.unpack_column, column, count)
    assert compiled == outcome(columns._unpack_column, column, count)


@given(
    counts,
    st.one_of(
        st.lists(st.one_of(numbers, columns_or_not), max_size=3).map(tuple),
        st.tuples(
            st.lists(st.one_of(st.just(b"\0\1"), st.binary(max_size=3)), max_size=2),
            st.one_of(numbers, st.integers(0, 3).map(lambda count: bytes(8 * count))),
        ),
        columns_or_not,
    ),
    st.one_of(numbers, st.lists(numbers, max_size=3), st.none()),
    columns_or_not,
)
def test_what_pack_did_not_make_is_refused_alike(
    count: Any, places: Any, marks: Any, payloads: Any
) -> None:
    compiled = outcome(_columns.unpack, count, places, marks, payloads)
    assert compiled == outcome(columns._unpack, count, places, marks, payloads)


BOTH = pytest.mark.parametrize("module", [_columns, columns], ids=["compiled", "python"])


def twin(module: Any, name: str) -> Any:
    return getattr(module, name if module is _columns else f"_{name}")


@BOTH
@pytest.mark.parametrize(
    ("column", "count"), [(b"1234567", 1), ([1], 2), (([1], [1, 2]), 1), (([1],), 2), ((), 3)]
)
def test_a_column_of_another_length_is_refused(module: Any, column: Any, count: int) -> None:
    with pytest.raises(ValueError, match=r"values|words"):
        twin(module, "unpack_column")(column, count)


@BOTH
def test_a_count_that_is_wrong_takes_no_memory(module: Any) -> None:
    tracemalloc.start()
    try:
        for payloads in ([], b"", ((),), (([],),)):
            with pytest.raises(ValueError, match=r"were sent|words"):
                twin(module, "unpack")(10**8, (1, 0), 0, payloads)
            with pytest.raises(ValueError, match=r"were sent|words"):
                twin(module, "unpack_column")(payloads, 10**8)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@BOTH
def test_columns_are_nested_no_deeper_than_pack_nests_them(module: Any) -> None:
    values = [((((1,),),),)]
    packed = _columns.pack_column(values)
    assert packed == ((([(1,)],),),)
    assert twin(module, "unpack_column")(packed, 1) == values
    deep: Any = [1]
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(ValueError, match="nested more than 3 deep"):
        twin(module, "unpack_column")(deep, 1)


@BOTH
def test_no_more_columns_are_side_by_side_than_pack_puts_there(module: Any) -> None:
    with pytest.raises(ValueError, match="65 columns are side by side, and 64 are the most"):
        twin(module, "unpack_column")(([1],) * 65, 1)
    with pytest.raises(ValueError, match="65 columns"):
        twin(module, "unpack")(1, (1,) * 65, 0, [1])
    wide = [tuple(range(65))]
    assert _columns.pack_column(wide) is wide
