"""Persistent maps against a dict: any updates of any versions, in any order."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow import native
from emberflow.values import persistent_map
from emberflow.values.persistent_map import PersistentMap

keys = st.integers(-20, 20)
updates = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "remove", "above"]), keys, st.integers(0, 99)),
    max_size=60,
)


def updated(held: dict[int, int], update: tuple[str, int, int]) -> dict[int, int]:
    kind, key, number = update
    if kind == "set":
        return held | {key: number}
    return {k: v for k, v in held.items() if (k > key if kind == "above" else k != key)}


def height(tree: Any) -> int:
    """The height of a tree, whose nodes are checked on the way."""
    return shape(tree)[0]


def shape(tree: Any) -> tuple[int, int]:
    if tree is None:
        return 0, 0
    told, _, _, left, right, size = tree
    (low, lower), (high, higher) = shape(left), shape(right)
    assert abs(low - high) <= 1
    assert told == max(low, high) + 1
    assert size == lower + higher + 1
    return told, size


@given(updates, st.data())
def test_every_version_of_a_map_stays_what_it_was_made_with(
    updates: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    versions: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(PersistentMap(), {})]
    for update in updates:
        # Mostly the newest one, and now and then an older one: a replay goes on from it.
        back = data.draw(st.sampled_from([1, 1, 1, len(versions)]))
        made, held = versions[-back]
        kind, key, number = update
        made = made.set(key, number) if kind == "set" else getattr(made, kind)(key)
        versions.append((made, updated(held, update)))
    for made, held in versions:
        height(made._tree)
        assert list(made.items()) == sorted(held.items())
        assert all(made.get(key) == held.get(key) for key in range(-21, 22))
        assert all((key in made) == (key in held) for key in range(-21, 22))
        assert bool(made) == bool(held)
        assert (made.first(), made.last()) == (min(held, default=None), max(held, default=None))
        assert len(made) == len(held)
        bound = data.draw(keys)
        above = sorted(updated(held, ("above", bound, 0)).items())
        assert list(made.items(above=bound)) == above
        assert made.count_above(bound) == len(above)


#: Keys of the kinds that are compared in different ways, and some that cannot be compared.
comparable = st.sampled_from(
    [st.integers(-20, 20), st.binary(max_size=2), st.text("ab", max_size=3)]
)
tuples = st.tuples(st.integers(0, 2), st.sampled_from(["a", b"a", None]))
changes = st.sampled_from(["with", "with", "with", "without", "above", "node_at"])


@pytest.mark.skipif(not native.is_compiled(), reason="the compiled loops are not built")
@given(comparable, st.data())
def test_the_compiled_trees_are_those_in_python(
    keys: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    kinds = {
        "with": (persistent_map._with, native.trees.with_key),
        "without": (persistent_map._without, native.trees.without_key),
        "above": (persistent_map._above, native.trees.above_key),
        "node_at": (persistent_map._node_at, native.trees.node_at),
    }
    tree: Any = None
    for kind, key in data.draw(st.lists(st.tuples(changes, st.one_of(keys, keys, keys, tuples)))):
        given = (tree, key, len(repr(key))) if kind == "with" else (tree, key)
        here, there = (outcome(function, given) for function in kinds[kind])
        assert here == there
        if kind != "node_at" and not isinstance(here, str):
            tree = here


def outcome(function: Any, given: tuple[Any, ...]) -> Any:
    try:
        return function(*given)
    except TypeError as error:
        return str(error)


@given(st.dictionaries(keys, st.integers(0, 3)), updates)
def test_equal_maps_are_equal_however_they_were_made(
    held: dict[int, int], updates: list[tuple[str, int, int]]
) -> None:
    made = PersistentMap(held.items())
    one_by_one: PersistentMap[int, int] = PersistentMap()
    for _, key, number in updates:
        one_by_one = one_by_one.set(key, number)
    for _, key, _ in updates:
        one_by_one = one_by_one.remove(key)
    for key in reversed(held):
        one_by_one = one_by_one.set(key, held[key])
    assert one_by_one == made
    assert hash(one_by_one) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == deepcopy(made) == made
    assert pickle.dumps(one_by_one) == pickle.dumps(made)
    assert made.set(0, 7) != made.set(0, 8)
    assert made != held


def test_an_update_of_a_great_map_makes_few_nodes() -> None:
    def nodes(tree: Any) -> set[int]:
        return set() if tree is None else {id(tree)} | nodes(tree[3]) | nodes(tree[4])

    made = PersistentMap((key, None) for key in range(10_000))
    most = 2 * math.ceil(1.44 * math.log2(10_000))
    before = nodes(made._tree)
    for version in (made.set(10_001, None), made.set(77, 1), made.remove(5_000), made.above(3_333)):
        assert len(nodes(version._tree) - before) <= most
    grown: PersistentMap[int, None] = PersistentMap()
    for key in range(3_000):
        grown = grown.set(key, None)
    assert height(grown._tree) <= 1.44 * math.log2(3_000) + 1
