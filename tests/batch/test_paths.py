"""Paths as bytes sort as tuples do, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emberflow.rows.paths import (
    child_codes,
    decoded_path,
    encoded_int,
    encoded_path,
    front_of,
)

#: Values at which codes change their length, and the extremes.
EDGES = sorted(
    {0, 1, -1, 111, 112, -112, -113}
    | {sign * 2**bits + near for bits in range(6, 64) for near in (-1, 0, 1) for sign in (1, -1)}
)
numbers = st.one_of(
    st.integers(-(2**64), 2**64 - 1), st.integers(-300, 300), st.sampled_from(EDGES)
)
paths = st.lists(numbers, min_size=1, max_size=6).map(tuple)


@given(paths, paths)
@example((0,), (0, 0))
@example((0, 255), (0, 256))
def test_bytes_compare_as_tuples_do(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (encoded_path(one) < encoded_path(other)) == (one < other)
    assert (encoded_path(one) == encoded_path(other)) == (one == other)


@given(paths, paths)
def test_a_path_comes_back_and_a_child_s_is_its_parent_s_and_a_code(
    path: tuple[int, ...], more: tuple[int, ...]
) -> None:
    assert decoded_path(encoded_path(path)) == path
    assert front_of(encoded_path(path)) == path[0]
    assert encoded_path(path + more) == encoded_path(path) + encoded_path(more)


def test_codes_ascend_without_a_gap_at_the_edges() -> None:
    codes = [encoded_int(number) for number in EDGES]
    assert codes == sorted(codes)
    assert len(set(codes)) == len(EDGES)
    assert child_codes(3_000) == tuple(encoded_int(number) for number in range(3_000))


@pytest.mark.parametrize("number", [2**64, -(2**64) - 1])
def test_what_no_place_holds_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        encoded_int(number)
