"""Payloads come back from bytes with every type they had."""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.rows.codec import decode, decode_all, encode, encode_all

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec=None)),
    st.binary(),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
        st.tuples(st.text(), inner).map(lambda pair: Named(*pair)),
    ),
    max_leaves=8,
)


class Named(NamedTuple):
    name: str
    value: Any


Plain = namedtuple("Plain", "a b")


class More(Plain):
    """Has attributes beside its values."""


@dataclass(frozen=True)
class Data:
    held: Any


class Level(IntEnum):
    LOW = 1


@given(st.lists(values, max_size=5))
def test_values_come_back(payloads: list[Any]) -> None:
    encoded = encode_all(payloads)
    assert repr(decode_all(encoded)) == repr(payloads)
    assert repr([decode(data) for data in encoded]) == repr(payloads)


@pytest.mark.parametrize(
    "payload",
    [
        np.int64(5),
        (1, np.float64(2.5)),
        [bytearray(b"x")],
        {"a": {"b": memoryview(b"x").tobytes(), "c": bytearray(b"y")}},
        Level.LOW,
        ("a", (Level.LOW,)),
        True,
        -0.0,
        Named("a", np.float32(1)),
        Named("a", Named("b", 1)),
        Plain(1, 2),
        Data((1, "x")),
        OrderedDict(a=1),
        Counter("aab"),
        frozenset({1}),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        ef.PersistentList([1, 2]),
        ef.At(1, "x"),
        10**30,
    ],
    ids=repr,
)
def test_types_that_marshal_would_lose_are_kept(payload: Any) -> None:
    for beside in (payload, "text", 1):
        found = decode_all(encode_all([payload, beside]))[0]
        assert type(found) is type(payload)
        assert repr(found) == repr(payload)


def test_attributes_of_a_named_tuple_are_kept() -> None:
    more = More(1, 2)
    more.noted = "x"  # type: ignore[attr-defined]
    found = decode(encode(more))
    assert (type(found), found, found.noted) == (More, (1, 2), "x")


def test_a_class_that_nobody_can_import_goes_by_its_id() -> None:
    class Local(NamedTuple):
        a: int

    cloudpickle.dumps(Local)  # as if the flow that uses it had been sent
    data = encode(Local(1))
    assert decode(data) == Local(1)
    assert type(decode(data)) is Local
    assert len(data) < 200
