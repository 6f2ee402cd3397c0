"""The compiled loops of a state give what the ones in Python give, and stop where they stop."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow import native
from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops import accesses as loops
from emberflow.engine.loops.accesses import NO_ABORTS, AccessEntry, StateBucket, Use
from emberflow.values.item import At, FlatItem, Place
from tests.engine.helpers import with_packed_rows
from tests.engine.test_items import marks, places

if native.versions is None:
    pytest.skip(f"the loops run in {native.status()['versions']}", allow_module_level=True)
_versions = native.versions

MEMBERS = ("aborts", "base", "counts", "entries", "key", "noted", "value")
KEYS = (3, 2, True, "a", ("a", 1))


def updated(before: Any, payload: Any) -> Any:
    if payload == 5:
        raise LookupError("a function that fails")
    return At(1, before) if payload == 6 else before + payload


def not_negative(value: Any) -> Any:
    if value == 13:
        raise ValueError("a check that fails")
    return [value] if value >= 0 else []


def not_less(value: Any, payload: Any) -> Any:
    """A check that gets the payload, and not the element beside it."""
    if value == 13:
        raise ValueError("a check that fails")
    return value >= payload


def outcome(before: Any, payload: Any, moment: Any) -> tuple[Any, Any]:
    raise AssertionError("the loops do not ask for it")


@st.composite
def uses(draw: st.DrawFn, ports: int) -> Use:
    alone = draw(st.booleans())
    port = st.integers(-1, ports - 1)
    check = draw(st.sampled_from([not_negative, not_less, None]))
    return Use(
        function=draw(st.sampled_from([updated, None])),
        check=check,
        alone=alone,
        silent=not alone and draw(st.booleans()),
        tells_yes=draw(st.booleans()),
        tells_value=draw(st.booleans()),
        number=draw(st.integers(0, 3)),
        vote=draw(port),
        result=draw(port),
        committed=draw(port),
        output=draw(port),
        rejected=-1,
        name=None,
        outcome=outcome,
        sees_payload=check is not_less,
    )


def entries_of(draw: st.DrawFn, given_uses: list[Use]) -> list[AccessEntry]:
    found = sorted(draw(st.lists(places, max_size=3, unique=True)))
    access = st.integers(0, len(given_uses) - 1)
    why = st.sampled_from([None, None, None, "refused"])
    return [
        (place, 0, draw(access), 2, draw(st.integers(-9, 9)), 0, draw(st.integers(0, 9)), draw(why))
        for place in found
    ]


@st.composite
def buckets(draw: st.DrawFn, given_uses: list[Use]) -> dict[Any, StateBucket]:
    made: dict[Any, StateBucket] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
        bucket = made[key] = StateBucket(key, 0)
        bucket.entries = entries_of(draw, given_uses)
        bucket.aborts = {(1, 0): 1} if draw(st.integers(0, 5)) == 5 else NO_ABORTS
        bucket.base, bucket.value = draw(st.integers(0, 20)), draw(st.integers(0, 20))
        bucket.counts, bucket.noted = draw(st.booleans()), draw(st.booleans())
    return made


@st.composite
def states(draw: st.DrawFn) -> tuple[list[Use], dict[Any, StateBucket]]:
    given_uses = draw(st.lists(uses(ports=3), min_size=1, max_size=3))
    return given_uses, draw(buckets(given_uses))


@st.composite
def accesses(draw: st.DrawFn) -> tuple[list[FlatItem], int, list[Use], dict[Any, StateBucket]]:
    given_uses, given_buckets = draw(states())
    payload = st.tuples(
        st.sampled_from(KEYS),
        st.integers(-1, len(given_uses) - 1),
        st.integers(0, 2),
        st.integers(-6, 6),
    )
    items = []
    for place, mark, (key, access, length, amount) in draw(
        st.lists(st.tuples(places, marks, payload), max_size=40)
    ):
        alone = access >= 0 and given_uses[access].alone
        items.append((place, mark, (key, access, length, (None, amount) if alone else amount)))
    if draw(st.booleans()):
        items.sort(key=lambda item: item[0])
    return items, draw(st.integers(0, len(items))), given_uses, given_buckets


def shown(bucket: StateBucket) -> tuple[Any, ...]:
    return tuple(repr(getattr(bucket, name)) for name in MEMBERS)


def copied(bucket: StateBucket) -> StateBucket:
    copy = StateBucket(bucket.key, 0)
    for name in MEMBERS:
        setattr(copy, name, getattr(bucket, name))
    copy.entries = list(bucket.entries)
    return copy


@given(
    accesses(),
    st.sets(st.sampled_from(KEYS), max_size=1),
    st.sets(places, max_size=1),
    st.sampled_from([None, 1, 2, 5]),
)
def test_access_in_order(
    case: tuple[list[FlatItem], int, list[Use], dict[Any, StateBucket]],
    other_keys: set[Any],
    other_places: set[Place],
    expires: int | None,
) -> None:
    items, start, given_uses, given_buckets = case
    results = []
    for access_in_order in (_versions.access_in_order, loops._access_in_order):
        own = {key: copied(bucket) for key, bucket in given_buckets.items()}
        outputs: list[list[FlatItem]] = [[], [], []]
        touched: list[StateBucket] = []
        reached = []
        position = start
        while position < len(items):  # what it leaves is passed over
            position = access_in_order(
                items,
                position,
                outputs,
                own,
                given_uses,
                touched,
                other_keys,
                other_places,
                expires,
            )
            reached.append(position)
            position += 1
        results.append(
            (
                reached,
                repr(outputs),
                [bucket.key for bucket in touched],
                list(map(shown, own.values())),
            )
        )
    assert results[0] == results[1]


@given(states(), places, places)
def test_trim_accesses(
    state: tuple[list[Use], dict[Any, StateBucket]], minimal: Place, begun: Place
) -> None:
    given_uses, given_buckets = state
    writes = tuple(use.writes for use in given_uses)
    results = []
    for trim_accesses in (_versions.trim_accesses, loops._trim_accesses):
        own = [copied(bucket) for bucket in given_buckets.values()]
        stays: list[StateBucket] = []
        told = trim_accesses(own, minimal[:2], writes, stays, begun[:2])
        results.append([list(map(shown, some)) for some in (own, stays, *told)])
    assert results[0] == results[1]


@given(states(), places, places)
def test_last_versions(
    state: tuple[list[Use], dict[Any, StateBucket]], moment: Place, since: Place
) -> None:
    given_uses, given_buckets = state
    writes = tuple(use.writes for use in given_uses)
    own = list(given_buckets.values())
    arguments = (own, moment[:2], since[:2], writes, "accounts")
    compiled, plain = (
        last_versions(*arguments, False)
        for last_versions in (_versions.last_versions, loops._last_versions)
    )
    assert compiled == plain
    packed = _versions.last_versions(*arguments, True)
    assert with_packed_rows(packed, "accounts") == with_packed_rows(plain, "accounts")
    assert all(type(row) is Row for row in compiled[1])
    # A tuple of Python 3.14 remembers its hash: one that C makes must not remember a wrong one.
    assert list(map(hash, compiled[1])) == list(map(hash, plain[1]))


BOTH_BUCKETS = pytest.mark.parametrize("kind", [_versions.StateBucket, loops._StateBucket])


def a_bucket(kind: Any) -> Any:
    bucket = kind("ada", 5)
    bucket.entries.append(((1, 0), 0, 0, 2, "payload", 5, 6, None))
    bucket.aborts, bucket.value, bucket.counts, bucket.noted = {(1, 0): 1}, 6, False, True
    return bucket


@BOTH_BUCKETS
def test_a_new_bucket_has_no_accesses(kind: Any) -> None:
    for bucket in (kind("ada", 5), kind(key="ada", default=5)):
        assert shown(bucket) == ("{}", "5", "True", "[]", "'ada'", "False", "5")
        assert bucket.aborts is NO_ABORTS
        assert not hasattr(bucket, "__dict__")
    with pytest.raises(TypeError):
        kind("ada")
    with pytest.raises(AttributeError):
        bucket.other = 1


@BOTH_BUCKETS
def test_a_bucket_is_copied_and_pickled_whole(kind: Any) -> None:
    bucket = a_bucket(kind)
    assert shown(copy.copy(bucket)) == shown(copy.deepcopy(bucket)) == shown(bucket)
    assert kind.__reduce__(bucket)[1:] == (
        ("ada", 5),
        (
            None,
            {
                "entries": bucket.entries,
                "aborts": bucket.aborts,
                "value": 6,
                "counts": False,
                "noted": True,
            },
        ),
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_bucket_is_the_kind_that_runs_where_it_is_read(protocol: int) -> None:
    """Its type is pickled by name, which is the same for both."""
    for kind in (_versions.StateBucket, loops._StateBucket):
        assert f"{kind.__module__}.{kind.__qualname__}" == (
            "emberflow.engine.loops.accesses.StateBucket"
        )
    bucket = a_bucket(StateBucket)
    again = pickle.loads(pickle.dumps(bucket, protocol))
    assert type(again) is StateBucket
    assert shown(again) == shown(bucket)


def test_a_value_that_refers_to_itself_is_collected_behind_its_bucket() -> None:
    """The collector does not see buckets, since no cycle goes through one, and it must not miss more."""

    class Value:
        lost = 0

        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            Value.lost += 1

    bucket = _versions.StateBucket("ada", Value())
    bucket.entries.append((bucket.value,))
    assert not gc.is_tracked(bucket)
    gc.collect()
    assert Value.lost == 0
    del bucket
    gc.collect()
    assert Value.lost == 1


def counted(before: int, payload: int) -> int:
    return before + payload


@given(st.integers(0, 2**32), st.sampled_from([None, 1, 3, 2**40]))
def test_what_is_kept_in_short_goes_on_like_the_rest(seed: int, expires: int | None) -> None:
    """A trim keeps little of a bucket that is final. Nobody can tell, unless they look at its size."""
    random = Random(seed)
    update = Use(counted, None, False, True, False, False, 0, -1, -1, -1, -1, -1, None, outcome)
    uses = [update._replace(function=None), update]
    kinds = [(_versions, _versions.StateBucket), (None, loops._StateBucket)]
    own: list[dict[Any, Any]] = [{key: kind(key, 0) for key in "ab"} for _, kind in kinds]
    first, front = random.choice((0, -(2**61), 2**61)), random.choice((0, 2**33, -(2**32), 2**60))
    time = first
    for buckets in own:
        for key, bucket in buckets.items():
            entry = ((first, front, 3), 0, 1, 2, "payload", 0, 7, None)
            bucket.entries.append(entry)
            bucket.value = 7
            assert bucket.key == key
    minimal = (first, front)
    for _ in range(12):
        what = random.choice(("access", "access", "trim", "trim", "cut", "read"))
        items = []
        for _ in range(random.randint(1, 3)):
            time += random.choice((0, 1, 1, 4))
            place = (time, front, *random.choice(((), (1,))))
            items.append((place, 0, (random.choice("ab"), random.choice((0, 1, 1)), 2, 5)))
        moment, since = (time + random.choice((-2, 0, 1)), front), (time - 3, front)
        if what == "trim":  # the minimal time never goes back
            minimal = max(minimal, moment)
        results = []
        for (module, _), buckets in zip(kinds, own, strict=True):
            values: list[Any] = list(buckets.values())
            if what == "access":
                access = loops._access_in_order if module is None else module.access_in_order
                touched: list[Any] = []
                end = access(items, 0, [], buckets, uses, touched, set(), set(), expires)
                results.append((end, [bucket.key for bucket in touched]))
            elif what == "trim":
                trim = loops._trim_accesses if module is None else module.trim_accesses
                stays: list[Any] = []
                lists = (*trim(values, minimal, (False, True), stays, since), stays)
                results.append([[bucket.key for bucket in each] for each in lists])
            elif what == "cut":
                look = loops._last_versions if module is None else module.last_versions
                looked = look(values, moment, since, (False, True), "s", True)
                found, rows, going_on, others = with_packed_rows(looked, "s")
                keys = [[bucket.key for bucket in each] for each in (found, going_on, others)]
                results.append((keys, rows))
            else:
                results.append([shown(bucket) for bucket in values])
        assert results[0] == results[1], what
    assert [list(map(shown, buckets.values())) for buckets in own][::-1] == [
        list(map(shown, buckets.values())) for buckets in own
    ]


def test_a_final_value_takes_little() -> None:
    bucket = _versions.StateBucket("ada", 0)
    bucket.entries.append(((5, 2**33, 1), 0, 1, 2, "payload", 0, 7, None))
    assert bucket.short is None
    assert _versions.trim_accesses([bucket], (6, 0), (False, True), [], (0, 0)) == ([], [])
    assert bucket.short == ((5, 2**33), 7)
    assert sys.getsizeof(bucket) == 48
    assert gc.get_referents(bucket) == []
    assert bucket.entries == [((5, 2**33), 0, 1, 2, None, None, 7, None)]
    assert bucket.short is None
    bucket = _versions.StateBucket("ada", 0)
    bucket.entries.append(((5, 2**62), 0, 1, 2, "payload", 0, 7, None))  # a front of too many bits
    _versions.trim_accesses([bucket], (6, 0), (False, True), [], (0, 0))
    assert bucket.short is None
    assert bucket.entries == [((5, 2**62), 0, 1, 2, None, None, 7, None)]


def test_a_bucket_lets_go_of_what_it_held() -> None:
    things = [object() for _ in range(5)]
    counts = [sys.getrefcount(thing) for thing in things]
    for _ in range(10):
        bucket = _versions.StateBucket(things[0], things[1])
        bucket.value, bucket.base = things[2], things[3]
        bucket.key = things[4]
        del bucket.value, bucket.base
    del bucket
    assert counts == [sys.getrefcount(thing) for thing in things]


def test_the_compiled_bucket_takes_only_bools_for_its_flags() -> None:
    bucket = _versions.StateBucket("ada", 5)
    for name in ("counts", "noted"):
        with pytest.raises(TypeError):
            setattr(bucket, name, 1)
    with pytest.raises(TypeError, match="immutable type"):
        _versions.StateBucket.entries = None
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Other", (_versions.StateBucket,), {})


@pytest.mark.parametrize("name", ["aborts", "base", "entries", "key", "value"])
def test_a_bucket_that_lacks_a_member_is_not_read(name: str) -> None:
    use = Use(None, None, False, True, False, False, 0, -1, -1, -1, -1, -1, None, outcome)
    bucket = a_bucket(_versions.StateBucket)
    bucket.aborts = NO_ABORTS
    delattr(bucket, name)
    items = [((2, 0), 0, ("ada", 0, 2, 1))]
    assert (
        _versions.access_in_order(items, 0, [], {"ada": bucket}, [use], [], set(), set(), None) == 0
    )
    for function, *more in (
        (_versions.trim_accesses, (3, 0), (True,), [], (0, 0)),
        (_versions.last_versions, (3, 0), (0, 0), (True,), "sum", True),
    ):
        with pytest.raises(TypeError, match=r"argument 1 \(`given`\) must hold buckets at 0, got"):
            function([bucket], *more)
    with pytest.raises(AttributeError):
        bucket.__reduce__()


def test_what_the_loops_are_given_is_checked() -> None:
    bucket = a_bucket(_versions.StateBucket)
    use = Use(None, None, False, False, False, False, 0, 4, -1, -1, -1, -1, None, outcome)
    items = [((2, 0), 0, ("ada", 0, 2, 1))]
    with pytest.raises(ValueError, match="sends to port 4, and there are 1 outputs"):
        _versions.access_in_order(items, 0, [[]], {"ada": bucket}, [use], [], set(), set(), None)
    with pytest.raises(
        TypeError, match=r"argument 3 \(`outputs`\) must hold a list at 0, got tuple"
    ):
        _versions.access_in_order(items, 0, [()], {"ada": bucket}, [use], [], set(), set(), None)
    with pytest.raises(TypeError, match=r"argument 9 \(`expires`\) must be None or an int above 0"):
        _versions.access_in_order(items, 0, [], {}, [], [], set(), set(), 0)
    buckets = [bucket]
    with pytest.raises(ValueError, match=r"argument 4 \(`stays`\) must be another list"):
        _versions.trim_accesses(buckets, (1, 0), (True,), buckets, (0, 0))
    bucket.aborts = NO_ABORTS
    with pytest.raises(IndexError, match="an entry of access 0, and there are 0"):
        _versions.last_versions([bucket], (9, 0), (0, 0), (), "sum", False)


def test_an_interrupt_is_not_taken_for_an_update_that_fails() -> None:
    def interrupted(before: Any, payload: Any) -> Any:
        raise KeyboardInterrupt

    use = Use(interrupted, None, False, True, False, False, 0, -1, -1, -1, -1, -1, None, outcome)
    bucket = StateBucket("a", 0)
    bucket.entries.append(((1, 0), 0, 0, 2, 0, 0, 0, None))
    items = [((2, 0), 0, ("a", 0, 2, 1))]
    with pytest.raises(KeyboardInterrupt):
        _versions.access_in_order(items, 0, [], {"a": bucket}, [use], [], set(), set(), None)
