"""A `PersistentList` behaves like a list of which every version is kept, and copies little."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from emberflow.values import persistent
from emberflow.values.persistent import PersistentList, Tail
from tests.effort import examples

CHUNK = persistent._CHUNK

# Few values, so that different ways lead to equal lists.
elements = st.integers(0, 2)
bounds = st.none() | st.integers(-14, 14)


@dataclass(frozen=True)
class Version:
    made: PersistentList[int]
    expected: tuple[int, ...]


class TreeOfVersions(RuleBasedStateMachine):
    """Grows a tree of versions at any of its nodes; no version may change."""

    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Version] = []

    # Small chunks, so that every boundary is met.
    @initialize(target=versions, chunk=st.integers(1, 4), start=st.lists(elements, max_size=9))
    def begin(self, chunk: int, start: list[int]) -> Version:
        persistent._CHUNK = chunk
        return self.keep(PersistentList(start), start)

    def teardown(self) -> None:
        persistent._CHUNK = CHUNK

    def keep(self, made: PersistentList[int], expected: Sequence[int]) -> Version:
        version = Version(made, tuple(expected))
        self.all.append(version)
        return version

    @rule(target=versions, start=st.lists(elements, max_size=9))
    def construct(self, start: list[int]) -> Version:
        return self.keep(PersistentList(iter(start)), start)

    @rule(target=versions, old=versions, element=elements)
    def append(self, old: Version, element: int) -> Version:
        return self.keep(old.made.append(element), (*old.expected, element))

    @rule(target=versions, old=versions, element=elements)
    def append_while_it_is_read(self, old: Version, element: int) -> Version:
        forward, backward = iter(old.made), reversed(old.made)
        begun = [*islice(forward, 1)]
        new = old.made.append(element)
        assert [*begun, *forward] == [*old.expected]
        assert [*backward] == [*reversed(old.expected)]
        return self.keep(new, (*old.expected, element))

    @rule(target=versions, old=versions, added=st.lists(elements, max_size=11))
    def extend(self, old: Version, added: list[int]) -> Version:
        return self.keep(old.made.extend(added), (*old.expected, *added))

    @rule(target=versions, old=versions, added=st.lists(elements, max_size=5))
    def extend_by_what_appends_meanwhile(self, old: Version, added: list[int]) -> Version:
        def meanwhile() -> Iterator[int]:
            for element in added:
                self.keep(old.made.append(element), (*old.expected, element))
                yield element

        return self.keep(old.made.extend(meanwhile()), (*old.expected, *added))

    @rule(target=versions, old=versions, other=versions)
    def extend_by_another(self, old: Version, other: Version) -> Version:
        added = other.expected[:20]
        return self.keep(old.made.extend(other.made[:20]), (*old.expected, *added))

    @rule(target=versions, old=versions, start=bounds, stop=bounds, step=bounds)
    def cut_out(self, old: Version, start: int, stop: int, step: int) -> Version:
        part = slice(start, stop, step or None)
        return self.keep(old.made[part], old.expected[part])

    @rule(target=versions, old=versions, stop=bounds)
    def shorten(self, old: Version, stop: int) -> Version:
        return self.keep(old.made[:stop], old.expected[:stop])

    @rule(target=versions, base=versions, grown=versions, data=st.data())
    def restore_from_a_tail(self, base: Version, grown: Version, data: st.DataObject) -> Version:
        most = min(len(base.expected), len(grown.expected))
        start = data.draw(st.integers(0, most), label="start")
        tail = pickle.loads(pickle.dumps(grown.made.tail(start)))
        assert tail == Tail(start, grown.expected[start:])
        expected = base.expected[:start] + grown.expected[start:]
        return self.keep(base.made.with_tail(tail), expected)

    @rule(target=versions, old=versions)
    def pickle_it(self, old: Version) -> Version:
        return self.keep(pickle.loads(pickle.dumps(old.made)), old.expected)

    @rule(target=versions, old=versions)
    def let_go(self, old: Version) -> Version:
        return self.keep(PersistentList(old.made), old.expected)

    @invariant()
    def every_version_is_what_it_was(self) -> None:
        for version in self.all:
            assert (*version.made,) == version.expected
            assert len(version.made) == len(version.expected)

    @rule()
    def read_all_of_every_version(self) -> None:
        for version in self.all:
            made, expected = version.made, version.expected
            length = len(expected)
            assert [*reversed(made)] == [*reversed(expected)]
            assert [made[i] for i in range(-length, length)] == [*expected, *expected]
            for i in range(length + 1):
                assert (*made[:i],) == expected[:i]
                assert made.tail(i).elements == expected[i:]
            for element in (0, 1, 2):
                assert (element in made) == (element in expected)
                assert made.count(element) == expected.count(element)
            for outside in (-length - 1, length):
                with pytest.raises(IndexError, match=f"got {outside} for a list of length"):
                    made[outside]

    @rule()
    def compare_all_versions(self) -> None:
        for one in self.all:
            for other in self.all:
                assert (one.made == other.made) == (one.expected == other.expected)
                if one.expected == other.expected:
                    assert hash(one.made) == hash(other.made)


TreeOfVersions.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the machine may be busy
)
test_behaves_as_a_list_at_every_node_of_a_tree_of_versions = TreeOfVersions.TestCase


def chunks(version: PersistentList[Any]) -> list[list[Any]]:
    """All chunks that a version refers to, the last one included."""
    return [*version._spine[: version._full()], version._last]


def unshared(version: PersistentList[Any], base: PersistentList[Any]) -> int:
    """How many chunks a version does not share with another."""
    known = {id(chunk) for chunk in chunks(base)}
    return sum(id(chunk) not in known for chunk in chunks(version))


@pytest.mark.parametrize("over", [1, CHUNK // 2, CHUNK - 1, CHUNK])
def test_an_append_to_an_older_version_copies_at_most_a_chunk_and_the_spine(over: int) -> None:
    old = PersistentList(range(40 * CHUNK + over))
    newest = old.extend(range(3 * CHUNK))
    assert unshared(newest, old) <= 4

    # Each branch has one chunk of its own at first, and no spine of its own.
    branches = [old.append(-1), old.append(-2)]
    for branch in branches:
        assert unshared(branch, old) == 1
        assert branch._spine is old._spine
        assert len(branch._last) <= CHUNK

    # Grown past the chunk's end, where the spines part, it still shares all full chunks.
    grown = branches[1].extend(range(CHUNK))
    assert unshared(grown, old) <= 2
    assert [*grown] == [*range(40 * CHUNK + over), -2, *range(CHUNK)]
    assert [*newest] == [*range(40 * CHUNK + over), *range(3 * CHUNK)]


def test_appends_to_the_newest_version_copy_nothing() -> None:
    newest: PersistentList[int] = PersistentList()
    spines, lasts = set(), set()
    kept = []  # keeps the objects alive, so that no id is reused
    for number in range(10 * CHUNK):
        newest = newest.append(number)
        kept.append(newest)
        spines.add(id(newest._spine))
        lasts.add(id(newest._last))
    assert len(spines) == 1
    assert len(lasts) == 10


def test_a_prefix_and_a_restored_tail_share_with_their_base() -> None:
    base = PersistentList(range(20 * CHUNK + 5))
    assert base[:] is base
    assert base[: 7 * CHUNK + 3]._spine is base._spine
    assert base[: 7 * CHUNK].append(0)._spine is base._spine
    assert base.with_tail(Tail(len(base), (1, 2)))._last is base._last
    assert unshared(base.with_tail(Tail(7 * CHUNK + 3, (1, 2))), base) == 1


def test_a_tail_of_a_long_list_is_small() -> None:
    long = PersistentList(range(1_000_000))
    tail = long.tail(1_000_000 - 10)
    assert len(pickle.dumps(tail)) < 200
    assert long[:-10].with_tail(tail) == long


def test_versions_that_share_their_spine_compare_without_a_look_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = PersistentList(range(20 * CHUNK + 5))
    one, other = base.append(1), base.append(1)
    monkeypatch.setattr(persistent, "_same", None)
    assert one == other
    assert one != base.append(2)


class Thing:
    """An object that a weak reference can point to."""


def test_an_empty_list_and_a_copy_keep_nothing_of_newer_versions_alive() -> None:
    empty: PersistentList[Thing] = PersistentList()
    newer = Thing()
    seen = weakref.ref(newer)
    # In the chunk that is the last one now, and in one that later moves to the spine.
    added = [newer, *(Thing() for _ in range(CHUNK)), newer, *(Thing() for _ in range(CHUNK))]
    grown = empty.extend(added)
    short = PersistentList([Thing()])
    shared = short.extend(added)
    short = PersistentList(short)
    del newer, added, grown, shared
    gc.collect()
    assert seen() is None
    assert len(empty) == 0
    assert len(short) == 1
    # What all empty lists have as their last chunk.
    assert persistent._NO_CHUNK == [None]


def test_what_a_list_is_and_is_not() -> None:
    numbers = PersistentList([1, 2, 3])
    assert isinstance(numbers, Sequence)
    assert numbers.__eq__([1, 2, 3]) is NotImplemented
    assert numbers != [1, 2, 3]
    assert repr(numbers) == "PersistentList([1, 2, 3])"
    assert repr(PersistentList(range(1000))) == (
        "PersistentList([0, 1, 2, <994 more>, 997, 998, 999])"
    )
    with pytest.raises(AttributeError):
        numbers.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(PersistentList([[]]))


def test_copies() -> None:
    numbers = PersistentList([1, 2, 3])
    assert copy.copy(numbers) is numbers
    assert copy.deepcopy(numbers) is numbers
    nested = PersistentList([[1], [2]])
    deep = copy.deepcopy(nested)
    deep[0].append(1)
    assert (nested, deep) == (PersistentList([[1], [2]]), PersistentList([[1, 1], [2]]))


def test_an_extension_that_fails_leaves_no_trace() -> None:
    def failing() -> Iterator[int]:
        yield 4
        raise RuntimeError("no more")

    numbers = PersistentList([1, 2, 3])
    with pytest.raises(RuntimeError, match="no more"):
        numbers.extend(failing())
    assert numbers.append(5)._last is numbers._last


def test_tails_that_do_not_fit_say_why() -> None:
    numbers = PersistentList([1, 2, 3])
    with pytest.raises(ValueError, match=r"from 0 to the list's length of 3, got 4; give"):
        numbers.tail(4)
    with pytest.raises(ValueError, match=r"at least 5 elements.*got one of 3; restore"):
        numbers.with_tail(Tail(5, (6,)))
    with pytest.raises(ValueError, match=r"starts at -1; make"):
        numbers.with_tail(Tail(-1, (6,)))
