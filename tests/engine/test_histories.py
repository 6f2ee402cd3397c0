"""A compact history is to Python the list of its versions, whatever is done with it."""

from __future__ import annotations

import gc
import sys
from random import Random
from typing import Any

import pytest

from emberflow import native
from emberflow.engine.loops import items as loops
from emberflow.engine.loops.items import Restored
from emberflow.engine.messages import Moment
from tests.effort import few
from tests.engine.helpers import with_packed_rows

if native.loops is None:
    pytest.skip(f"the loops run in {native.status()['loops']}", allow_module_level=True)
_loops = native.loops


class Absent:
    pass


class Refused(int):
    pass


class Text(str):
    """Equal to a text, and not the same."""


def key_of(payload: Any) -> Any:
    if payload[1] == "no key":
        raise ValueError("a key function that fails")
    return payload[0]


def combine(before: Any, payload: Any) -> Any:
    return (*before, payload[1])[-3:]


def shown(version: Any) -> Any:
    """Of a version that is final, what a cut needs."""
    place, _, mapped, accumulator = version
    key = mapped.key if mapped.__class__ is Restored else key_of(mapped)
    return place[:2], type(key), key, accumulator


class Both:
    """The versions of a key, as a list and as a history."""

    def __init__(self, random: Random, key: Any) -> None:
        self.random = random
        self.key = key
        self.time = random.choice((-(2**62), 0, 2**62))
        self.minimal: Moment = (self.time, 0)
        first = self.version()
        if random.random() < 0.3:
            first = (first[0], 0, Restored(key), first[3])
            self.minimal = (self.time + 1, 0)  # it was final when the cut was taken
        self.plain = loops._history(key, first)
        self.compact = _loops.History(key, first)

    def place(self) -> Any:
        self.time += self.random.choice((0, 1, 1, 5))
        front = self.random.choice((0, 1, 2**33, -(2**32), 2**60, 2**62))
        # A place that is not greater than the last one would make the list unsorted.
        self.time += 1
        return (self.time, front, *self.random.choice(((), (3,), (0, 2**70))))

    def payload(self) -> Any:
        odd = {"a": Text("a"), 1: True, (1,): (True,)}
        key = odd.get(self.key, self.key) if self.random.random() < 0.1 else self.key
        return key, self.random.choice(("x", "y", "no key"))

    def version(self) -> Any:
        absent = self.random.random() < 0.1
        return (self.place(), 0, self.payload(), Absent() if absent else (self.random.random(),))

    def step(self) -> None:
        random, plain, compact = self.random, self.plain, self.compact
        what = random.choice(
            ("append", "loop", "loop", "trim", "trim", "insert", "pop", "set", "cut")
        )
        open_from = next(
            (n for n, version in enumerate(plain) if version[0] >= self.minimal), len(plain)
        )
        if what == "append":
            version = self.version()
            plain.append(version)
            compact.append(version)
        elif what == "loop":
            self.reduce()
        elif what == "trim":
            self.trim()
        elif what == "insert" and open_from < len(plain):
            version = (plain[open_from][0][:2], 0, self.payload(), (0,))
            plain.insert(open_from, version)
            compact.insert(open_from, version)
        elif what == "pop" and open_from < len(plain) > 1:
            assert plain.pop(open_from) == compact.pop(open_from)
        elif what == "set" and open_from < len(plain):
            version = (*plain[-1][:3], ("new",))
            plain[-1] = compact[-1] = version
        elif what == "cut":
            self.cut()

    def reduce(self) -> None:
        items = [(self.place(), 0, self.payload()) for _ in range(self.random.randint(1, 3))]
        expires = self.random.choice((None, None, 1, 3, 2**62))
        results = []
        for reduce, versions in (
            (loops._reduce_in_order, self.plain),
            (_loops.reduce_in_order, self.compact),
        ):
            output: list[Any] = []
            touched: list[Any] = []
            given = (key_of, combine, {self.key: versions}, touched, (7,), True, Absent, Refused)
            end = reduce(items, 0, output, *given, expires)
            results.append((end, output, [len(each) for each in touched]))
        assert results[0] == results[1]

    def trim(self) -> None:
        if self.random.random() < 0.7:
            self.minimal = max(self.minimal, (self.time + self.random.choice((-3, 0, 1)), 0))
        begun = (self.time - self.random.choice((0, 2, 9)), self.random.choice((0, -(2**40))))
        asked = self.random.choice((key_of, key_of, None))
        results = []
        for trim, versions in (
            (loops._trim_to_last, self.plain),
            (_loops.trim_to_last, self.compact),
        ):
            rest, unnoted = trim([versions] * 2, self.minimal, begun, asked, Absent, Restored)
            results.append((len(rest), len(unnoted)))
        assert results[0] == results[1]

    def cut(self) -> None:
        moment, since = self.minimal, (self.time - 4, 0)
        packs = self.random.random() < 0.5
        results = []
        for look, versions in (
            (loops._last_accumulators, self.plain),
            (_loops.last_accumulators, self.compact),
        ):
            looked = with_packed_rows(
                look([versions], moment, since, key_of, "counts", Absent, Restored, packs), "counts"
            )
            results.append((*(len(part) for part in looked), looked[1]))
            # Those that Python looks at are of rare keys, or their key function fails.
        if not results[0][3] and not results[1][3]:
            assert results[0] == results[1]

    def check(self) -> None:
        plain, compact = self.plain, self.compact
        assert len(plain) == len(compact)
        assert bool(plain) == bool(len(compact))
        for number, version in enumerate(plain):
            final = version[0] < self.minimal and version[2].__class__ is not Restored
            final = final and version[2][1] != "no key"
            same = compact[number]
            if same != version:
                assert same[2].__class__ is Restored
                assert same[0] == version[0][:2]
                assert same[3] == version[3]
                if final:
                    assert shown(same) == shown(version)
        if len(plain) > 1:
            assert [version[0][:2] for version in compact[1:]] == [
                version[0][:2] for version in plain[1:]
            ]
        with pytest.raises(IndexError):
            compact[len(plain)]


@pytest.mark.parametrize("key", ["a", 1, b"k", (1,), 2**70, None])
def test_it_is_the_list_of_its_versions(key: Any) -> None:
    for seed in range(few(120)):
        both = Both(Random(f"history {key} {seed}"), key)
        both.check()
        for _ in range(25):
            both.step()
            if not len(both.plain):
                break
            both.check()


def trimmed(key: str, count: int) -> Any:
    history = _loops.History(key, ((0, 0, 5), 0, (key, "x"), (0,)))
    buckets = {key: history}
    items = [((time, 0, 4), 0, ("".join([*key]), "x")) for time in range(1, count)]
    given = (key_of, combine, buckets, [], (7,), True, Absent, Refused, None)
    assert _loops.reduce_in_order(items, 0, [], *given) == len(items)
    _loops.trim_to_last([history], (count, 0), (0, 0), None, Absent, Restored)
    return history


def test_of_a_final_version_it_keeps_what_a_cut_needs() -> None:
    key = "a key of some characters"
    history = trimmed(key, 5)
    assert sys.getsizeof(history) == 48
    assert not gc.is_tracked(history)
    ((place, mark, restored, accumulator),) = [history[0]]
    assert (place, mark, accumulator) == ((4, 0), 0, ("x", "x", "x"))
    assert restored.key is key, "it is held once"
    assert gc.get_referents(history) == []


def test_a_key_that_does_not_look_like_that_of_its_bucket_stays_as_it_is() -> None:
    """A cut saves the key of the last payload: `True`, where the key of the bucket is 1."""
    history = _loops.History(1, ((0, 0), 0, (1, "x"), (0,)))
    items = [((1, 0), 0, (True, "x"))]
    given = (key_of, combine, {1: history}, [], (7,), True, Absent, Refused, None)
    assert _loops.reduce_in_order(items, 0, [], *given) == 1
    _loops.trim_to_last([history], (2, 0), (0, 0), key_of, Absent, Restored)
    assert history[-1][2] == (True, "x")
    items = [((2, 0), 0, (1, "x"))]
    assert _loops.reduce_in_order(items, 0, [], *given) == 1
    _loops.trim_to_last([history], (3, 0), (0, 0), key_of, Absent, Restored)
    assert history[-1][2].key == 1
    assert history[-1][2].key is not True
