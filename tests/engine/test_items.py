"""The compiled loops give what the ones in Python give, to the byte, and stop where they stop."""

from __future__ import annotations

import sys
from datetime import date
from math import inf, isinf
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow import native
from emberflow.engine.cuts import noted as changed
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops import items as loops
from emberflow.engine.loops.runs import PlainRuns
from emberflow.engine.messages import AFTER_ALL
from emberflow.graph.transactions import closer_key, front_of
from emberflow.values.hashing import encode_key, key_hash, owner
from emberflow.values.item import At, FlatItem, Place
from tests.engine.helpers import with_packed_rows

if native.loops is None:
    pytest.skip(f"the loops run in {native.status()['loops']}", allow_module_level=True)
_loops = native.loops


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


common_keys = st.one_of(
    st.integers(), st.text(), st.sampled_from([2**63, -(2**63), 2**70, "\ud800"])
)
floats = st.sampled_from(
    [-0.0, 3.0, 0.1, 2.0**53 + 1, 4e15 + 0.5, -(2.0**63), 2.0**63, 1e300, inf, -inf]
)
plain_parts = st.one_of(common_keys, floats, st.floats(), st.binary(), st.booleans(), st.none())
plain_keys = st.recursive(
    plain_parts, lambda parts: st.lists(parts, max_size=5).map(tuple), max_leaves=12
)


def key_of(payload: Any) -> Any:
    if payload == 13:
        raise ValueError("a key function that fails")
    return payload if payload != 7 else []  # a key that cannot be hashed


def of_tuple(payload: Any) -> Any:
    return (key_of(payload), date.min)  # its hash takes Python


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


@given(reducing(), st.booleans(), st.sampled_from([None, 1, 2, 5, 2**62]))
def test_reduce_in_order(
    case: tuple[list[FlatItem], dict[Any, list[Any]], int], with_key: bool, expires: int | None
) -> None:
    items, buckets, start = case
    results = []
    for reduce_in_order in (_loops.reduce_in_order, loops._reduce_in_order):
        output: list[FlatItem] = []
        touched: list[list[Any]] = []
        own = {key: list(versions) for key, versions in buckets.items()}
        out: Place = (0, 1)
        given = (key_of, combine, own, touched, out, with_key, Absent, Refused, expires)
        position = reduce_in_order(items, start, output, *given)
        results.append(_shown((position, output, own, touched)))
    assert results[0] == results[1]


def ticks_of(sent: Any) -> Any:
    if sent[2] == 4:
        raise ValueError("a function that fails")
    if sent[2] % 5 == 0:
        return None
    return [At(sent[2], "tick")] if sent[2] % 3 == 0 else []


def many_ticks(sent: Any) -> Any:
    kinds = [
        [At(sent[2] * 3, 1), At(9, 2)],
        (At(99, 1),),
        [],
        [At(2**80, 1)],
        [At(-(2**80), 1)],
        [1],
        None,
    ]
    return kinds[sent[2] % len(kinds)]


@given(
    reducing(),
    st.integers(0, 12),
    st.sampled_from([None, 1, 2, 5, 2**62]),
    st.sampled_from([None, ticks_of, many_ticks]),
    st.sampled_from([(), ("more",)]),
)
def test_reduce_triples(
    case: tuple[list[FlatItem], dict[Any, list[Any]], int],
    end: int,
    expires: int | None,
    ticks: Any,
    more: tuple[Any, ...],
) -> None:
    items, buckets, start = case
    # A few that are no triples.
    triples = [
        (place, mark, payload if payload == 13 else (payload, False, payload, *more[: payload - 1]))
        for place, mark, payload in items
    ]
    results = []
    for reduce_triples in (_loops.reduce_triples, loops._reduce_triples):
        output: list[FlatItem] = []
        touched: list[list[Any]] = []
        ticking: list[FlatItem] = []
        own = {key: list(versions) for key, versions in buckets.items()}
        given = (combine, own, touched, (0, 1), Absent, expires, ticks, ticking)
        position = reduce_triples(triples, start, end, output, *given)
        results.append(_shown((position, output, own, touched, ticking)))
    assert results[0] == results[1]


#: Times near each other, far from each other, and of more than 64 bits.
times = st.one_of(
    st.integers(-20, 20), st.integers(0, 10**5), st.integers(-(2**62), 2**62), numbers
)
many_places = st.one_of(
    st.tuples(times, st.integers(0, 1)),
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 2), numbers),
    st.tuples(st.integers(0, 3), st.just(0), st.integers(0, 2), st.just(0), st.just(1), numbers),
)


@st.composite
def unsorted_places(draw: st.DrawFn) -> list[Place]:
    """Few of all kinds, or many that are made of a few."""
    if draw(st.booleans()):
        return draw(st.lists(many_places, max_size=30))
    known = draw(st.lists(many_places, min_size=1, max_size=20))
    dice = draw(st.randoms(use_true_random=False))
    spread = draw(st.sampled_from([0, 30, 2000, 2**40]))
    return [
        (place[0] + dice.randint(0, spread), *place[1:])
        for place in dice.choices(known, k=dice.randint(60, 300))
    ]


@given(unsorted_places())
def test_sort_by_place(places: list[Place]) -> None:
    items: list[FlatItem] = [(place, 2 * number, number) for number, place in enumerate(places)]
    expected = sorted(items, key=lambda item: item[0])
    own = list(items)
    if not _loops.sort_by_place(own):
        assert own == items, "what it cannot sort it leaves"
    loops.sort_by_place(own)
    assert own == expected


@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(many_places, marks), max_size=9),
            st.tuples(st.integers(-5, 40), st.integers(0, 1)),
        ),
        max_size=60,
    )
)
def test_runs(steps: list[Any]) -> None:
    """A step is a batch, or a moment up to which is taken. Both kinds of runs hold the same all the time."""
    compiled, plain = _loops.Runs(), PlainRuns()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            assert compiled.moments_after(step, 3) == plain.moments_after(step, 3)
            assert compiled.take(step) == plain.take(step)
        else:
            batch = sorted((place, mark, number) for place, mark in step)
            if compiled.add(batch):
                assert plain.add(batch)
            else:
                assert any(
                    mark & 1 or any(abs(part) >= 2**63 for part in place)
                    for place, mark, _ in batch
                )
        assert compiled.items() == plain.items()
        assert compiled.least() == plain.least()


def test_many_runs_are_merged_alike() -> None:
    dice = Random(5)
    compiled, plain = _loops.Runs(), PlainRuns()
    for number in range(200):
        batch = sorted(
            ((200 - number + dice.randrange(90), 0, *range(dice.randrange(5))), 2 * number, part)
            for part in range(1 + dice.randrange(9))
        )
        assert compiled.add(batch)
        assert plain.add(batch)
        if not number % 40:
            moment = (200 - number + dice.randrange(20), 0)
            assert compiled.take(moment) == plain.take(moment)
        assert compiled.items() == plain.items()
    assert compiled.take(AFTER_ALL) == plain.take(AFTER_ALL)


@given(st.lists(st.tuples(places, marks, payloads), max_size=12), st.integers(0, 3))
def test_spread(items: list[FlatItem], start: int) -> None:
    owners = {(1, date.min): 0, (2, date.min): 1, (3, date.min): 1, (5, date.min): 0}
    marked = [{0: 8, 1: 9, 2**64: 10}, {0: 2**65, 3: 12}]
    results = []
    for spread in (_loops.spread, loops._spread):
        dealt: list[list[FlatItem]] = [[], []]
        position, stops = min(start, len(items)), []
        while position < len(items):
            position = spread(items, position, dealt, of_tuple, owners, marked, [0, 1])
            stops.append(position)
            position += 1
        results.append((stops, dealt))
    assert results[0] == results[1]


@given(st.lists(st.tuples(places, st.sampled_from([0, 2]), common_keys), max_size=12))
def test_a_common_key_goes_where_its_hash_says(items: list[FlatItem]) -> None:
    marked = [{0: 8, 2: 10}, {0: 9, 2: 11}]
    hosts = [1, 0, 1]
    dealt: list[list[FlatItem]] = [[], []]
    position = 0
    while position < len(items):
        position = _loops.spread(items, position, dealt, lambda key: key, {}, marked, hosts)
        if position < len(items):  # a rare one
            place, mark, key = items[position]
            assert _loops.hash_of_common(key) is None
            worker = hosts[owner(key_hash(key), 3)]
            dealt[worker].append((place, marked[worker][mark], key))
            position += 1
    assert dealt == [
        [
            (place, marked[worker][mark], key)
            for place, mark, key in items
            if hosts[owner(key_hash(key), 3)] == worker
        ]
        for worker in (0, 1)
    ]


class Restored:
    def __init__(self, key: Any) -> None:
        self.key = key


@given(st.lists(st.lists(places, max_size=3)), places, places)
def test_trim_to_last(touched: list[list[Place]], minimal: Place, begun: Place) -> None:
    results = []
    for trim_to_last in (_loops.trim_to_last, loops._trim_to_last):
        own = [[(place, 0) for place in sorted(bucket)] for bucket in touched]
        arguments = (own, minimal[:2], begun[:2], key_of, Absent, Restored)
        results.append((trim_to_last(*arguments), own))
    assert results[0] == results[1]


mapped_items = st.sampled_from(
    [
        1,
        2,
        "a",
        (3,),
        ("b", (2.0, None), b"c"),
        (date.min,),
        True,
        7,
        13,
        Restored("b"),
        Restored((4,)),
    ]
)
versions_of_a_key = st.lists(
    st.tuples(places, marks, mapped_items, st.sampled_from([0, "some", Absent()])), max_size=4
).map(lambda versions: sorted(versions, key=lambda version: version[0]))


@given(st.lists(versions_of_a_key, max_size=6), places, places)
def test_last_accumulators(given: list[list[Any]], moment: Place, since: Place) -> None:
    arguments = (given, moment[:2], since[:2], key_of, "counts", Absent, Restored)
    compiled, plain = (
        last_accumulators(*arguments, False)
        for last_accumulators in (_loops.last_accumulators, loops._last_accumulators)
    )
    assert compiled == plain
    packed = _loops.last_accumulators(*arguments, True)
    assert with_packed_rows(packed, "counts") == with_packed_rows(plain, "counts")
    assert all(type(row) is Row for row in compiled[1])
    # A tuple of Python 3.14 remembers its hash: one that C makes must not remember a wrong one.
    assert list(map(hash, compiled[1])) == list(map(hash, plain[1]))


@pytest.mark.parametrize("some_values", [loops._some_values, loops.some_values])
@given(st.lists(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 9))
def test_some_values_are_all_of_them_in_the_end(
    some_values: Any, keys: list[int], gone: set[int], count: int
) -> None:
    """Also where others have gone before. The compiled loop and its twin may have other positions."""
    values = {key: f"value {key}" for key in keys}
    for key in gone:
        values.pop(key, None)
    position, found = some_values(values, 0, count)
    while position:
        position, more = some_values(values, position, count)
        assert len(more) <= count
        found += more
    assert found == list(values.values())
    assert some_values(values, 1_000, count) == (0, [])


@given(st.lists(st.lists(st.integers(0, 300))), st.integers(1, 99))
def test_what_a_capture_has_not_seen(batches: list[list[int]], each: int) -> None:
    objects = [[number] for number in range(301 * each)]
    compiled, plain = changed.no_addresses(), [set[int]() for _ in range(changed.SETS)]
    for batch in batches:
        given = [objects[number * each + more] for number in batch for more in range(each)]
        found = _loops.fresh(given, compiled)
        assert list(map(id, found)) == list(map(id, changed._fresh(given, plain)))
        assert list(map(len, compiled)) == list(map(len, plain))
    with pytest.raises(ValueError, match="must have 64 sets, got 63"):
        _loops.fresh([], compiled[1:])
    with pytest.raises(TypeError, match="must hold sets of addresses at 1, got set"):
        _loops.fresh([], [compiled[0], *plain[1:]])


@given(common_keys, st.binary(max_size=40))
def test_hashes(key: Any, other: bytes) -> None:
    assert _loops.hash_of_common(key) in (key_hash(key), None)
    assert _loops.hash_of_common(other) is _loops.hash_of_common(True) is None


def python_hash(key: Any) -> int | None:
    try:
        return key_hash(key)
    except TypeError:  # it equals nothing
        return None


@given(plain_keys)
def test_hashes_of_plain_keys(key: Any) -> None:
    hashed = _loops.hash_of_composite(key)
    expected = python_hash(key)
    assert hashed in (expected, None)
    if is_short(key):
        assert hashed == expected
        assert loops.is_common(key) is (expected is not None)


def is_short(key: Any) -> bool:
    """Whether what is compiled hashes it, if it can be hashed at all."""
    if type(key) is tuple:
        return len(encode_key_or_nothing(key)) < 128 and all(map(is_short, key))
    if type(key) is str:
        return "\ud800" not in key
    return type(key) not in (int, float) or key != key or isinf(key) or -(2**63) <= key < 2**63


def encode_key_or_nothing(key: Any) -> bytes:
    try:
        return encode_key(key)
    except TypeError:
        return b""


def test_keys_that_are_left_to_python() -> None:
    nested: Any = 1
    for _ in range(9):
        nested = (nested,)
    for key in (
        Pair(1, 2),
        nested,
        (date.min,),
        (2**63,),
        (2.0**63,),
        (float("nan"),),
        ("\ud800",),
    ):
        assert _loops.hash_of_composite(key) is None
    assert _loops.hash_of_composite(nested[0]) == key_hash(nested[0])


class Pair(NamedTuple):
    one: int
    other: int


@pytest.mark.parametrize("length", [0, 253, 254, 255, 256, 400, 600])
@pytest.mark.parametrize("count", [1, 2, 3, 60])
def test_tuples_of_any_length_are_hashed_or_left_to_python(length: int, count: int) -> None:
    key = ("z" * length, *range(count))
    hashed = _loops.hash_of_composite(key)
    assert hashed in (key_hash(key), None)
    of_length = 1 if length < 255 else 9
    assert (hashed is not None) == (1 + of_length + length + 10 * count <= 512)


def test_keys_of_any_length_are_hashed() -> None:
    for length in range(64):
        assert _loops.hash_of_common(1 << length >> 1) == key_hash(1 << length >> 1)
    for length in range(100):
        assert _loops.hash_of_common("ä" * length + "z") == key_hash("ä" * length + "z")


@given(st.text(min_size=1))
def test_a_hash_leaves_nothing_with_the_key(text: str) -> None:
    key = "".join([text, "ä"])  # one that nobody else has
    size = sys.getsizeof(key)
    _loops.hash_of_common(key)
    assert sys.getsizeof(key) == size


@pytest.mark.parametrize("character", ["z", "ä", "€", "\U0001f600"])
@pytest.mark.parametrize("length", [1, 127, 128, 129, 255, 256, 257, 512, 513, 5_000])
def test_keys_of_each_kind_of_text_are_hashed(character: str, length: int) -> None:
    key = character * length
    assert _loops.hash_of_common(key) == key_hash(key)
    assert _loops.hash_of_common(key + "\ud800") in (None, key_hash(key + "\ud800"))


def test_where_owners_are_not_by_hash_they_are_remembered_of_common_keys_too() -> None:
    items: list[FlatItem] = [((time, 0), 0, time % 3) for time in range(9)]
    for spread in (_loops.spread, loops._spread):
        dealt: list[list[FlatItem]] = [[], []]
        given = (dealt, lambda key: key, {0: 0, 1: 1}, [{0: 8}, {0: 9}], [])
        assert spread(items, 0, *given) == 2, "nobody knows whose 2 is"
        assert spread(items, 3, *given) == 5
        assert dealt == [
            [((0, 0), 8, 0), ((3, 0), 8, 0)],
            [((1, 0), 9, 1), ((4, 0), 9, 1)],
        ]


@given(places)
def test_front_of(identity: Place) -> None:
    report = (identity, 1, "payload")
    assert _loops.front_of(report) == front_of(report) == identity[1]


@given(st.tuples(numbers, numbers))
def test_closer_key(identity: Place) -> None:
    report = (identity, 1, "payload")
    assert _loops.closer_key(report) == closer_key(report)
    early = ((-identity[0] - 2**62, -identity[1]), 1, "payload")
    assert _loops.closer_key(early) == closer_key(early)


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        (
            [(1, 0)],
            r"argument 1 \(`report`\) must be a tuple that begins with an identity, got list",
        ),
        ((), "must be a tuple that begins with an identity, got tuple"),
        (((1,), 0), r"two ints, got \(1,\)"),
        ((("1", 0), 0), r"two ints, got \('1', 0\)"),
        (((None, None), 0), "two ints"),
    ],
)
def test_what_is_no_report_is_refused(report: Any, complaint: str) -> None:
    for function in (_loops.closer_key, _loops.front_of):
        with pytest.raises(TypeError, match=complaint):
            function(report)


def function(payload: Any) -> Any:
    if payload == 13:
        raise ValueError("a function that fails")
    if payload == 7:
        return At(1, "later")
    return (payload, At(1, "later")) if payload == 6 else (payload,) * (payload % 5)


def timed_function(time: int, payload: Any) -> Any:
    image = function(payload)
    return image if image.__class__ is At else (time, image)


usual = st.lists(st.tuples(places, marks, st.sampled_from([0, 1, 2, 3])), max_size=6)
unusual = st.lists(st.tuples(places, marks, st.sampled_from([0, 1, 2, 6, 7, 9, 13])), max_size=6)


@given(st.one_of(usual, unusual), st.booleans(), st.booleans(), st.integers(0, 5))
def test_machines_that_keep_nothing(
    items: list[FlatItem], alone: bool, carried: bool, depth: int
) -> None:
    child, children = (4,), ((0,), (1,), (2,))
    paired = [(place, mark, ("element", payload)) for place, mark, payload in items]
    for name, given_items, arguments in (
        ("extended", items, (child,)),
        ("mapped", items, (function, child, At)),
        ("mapped_with_time", items, (timed_function, child, At)),
        ("kept", items, (function, child)),
        ("flat_mapped", items, (function, children, At)),
        ("reports", items, (depth, 3)),
        ("accesses", paired if carried else items, (key_of, 2, depth % 3, alone, carried)),
        ("accesses", items, (str, 2, depth % 3, alone, False)),
        ("accesses", items, (function, 2, depth % 3, alone, False)),
    ):
        compiled, plain = getattr(_loops, name), getattr(loops, f"_{name}")
        assert repr(compiled(given_items, *arguments)) == repr(plain(given_items, *arguments)), name


def test_an_interrupt_is_not_taken_for_a_function_that_fails() -> None:
    def interrupted(payload: Any) -> Any:
        raise KeyboardInterrupt

    items = [((1, 0), 0, "a")]
    with pytest.raises(KeyboardInterrupt):
        _loops.spread(items, 0, [[]], interrupted, {}, [{}], [0])
    with pytest.raises(KeyboardInterrupt):
        _loops.reduce_in_order(
            items, 0, [], interrupted, combine, {}, [], (0,), True, Absent, Refused, None
        )
    triples = [((1, 0), 0, ("a", False, 1))]
    own = {"a": [((0, 0), 0, "a", 1)]}
    with pytest.raises(KeyboardInterrupt):
        _loops.reduce_triples(
            triples, 0, 1, [], combine, own, [], (0,), Absent, None, interrupted, []
        )
    with pytest.raises(KeyboardInterrupt):
        _loops.mapped(items, interrupted, (0,), At)


def test_an_argument_of_the_wrong_kind_is_named() -> None:
    items = [((1, 0), 0, "a")]
    with pytest.raises(TypeError, match=r"^extended takes 2 arguments, got 1$"):
        _loops.extended(items)
    with pytest.raises(
        TypeError, match=r"^reduce_in_order: argument 3 \(`output`\) must be a list, got tuple$"
    ):
        _loops.reduce_in_order(
            items, 0, (), key_of, combine, {}, [], (0,), True, Absent, Refused, None
        )
    with pytest.raises(
        TypeError, match=r"argument 12 \(`expires`\) must be None or an int above 0, got True$"
    ):
        _loops.reduce_in_order(
            items, 0, [], key_of, combine, {}, [], (0,), True, Absent, Refused, True
        )
    with pytest.raises(
        TypeError,
        match=r"^reduce_triples: argument 11 \(`ticks_of`\) must be None or callable, got int$",
    ):
        _loops.reduce_triples(items, 0, 1, [], combine, {}, [], (0,), Absent, None, 3, [])
    with pytest.raises(ValueError, match=r"argument 2 \(`start`\) must not be negative, got -1$"):
        _loops.spread(items, -1, [[]], key_of, {}, [{}], [0])
    with pytest.raises(TypeError, match=r"argument 6 \(`marks`\) must hold a dict at 0, got list$"):
        _loops.spread(items, 0, [[]], key_of, {}, [[]], [0])
    with pytest.raises(ValueError, match="2 lists to spread to, and marks for 1 workers"):
        _loops.spread(items, 0, [[], []], key_of, {}, [{}], [0])
    with pytest.raises(TypeError, match=r"must hold \(place, mark, payload\), got \(1, 2\)"):
        _loops.extended([(1, 2)], (0,))
    with pytest.raises(TypeError, match="bucket 1 must be a list of entries, got tuple"):
        _loops.trim_to_last([[], ()], (1, 0), (0, 0), key_of, Absent, Restored)
    with pytest.raises(
        TypeError, match="entry 0 of a bucket must be a tuple that begins with a place"
    ):
        _loops.trim_to_last([[7]], (1, 0), (0, 0), key_of, Absent, Restored)


class Renamed(NamedTuple):
    operation: str
    key_hash: int
    key: Any
    where: Place
    payload: Any


class Longer(NamedTuple):
    operation: str
    key_hash: int
    key: Any
    place: Place
    payload: Any
    more: Any


@pytest.mark.parametrize("kind", [Renamed, Longer, tuple, int, list, None])
def test_only_a_row_of_these_fields_is_taken_for_one(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"fields operation, key_hash, key, place and payload, got"):
        _loops.prepare(kind, Restored)
    _, rows, *_ = _loops.last_accumulators(
        [[((1, 0), 0, 2, "sum")]], (5, 0), (0, 0), key_of, "counts", Absent, Restored, False
    )
    assert rows == [Row("counts", key_hash(2), 2, (1, 0), "sum")], "the row it knew stays"
    assert type(rows[0]) is Row
