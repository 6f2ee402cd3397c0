"""The compiled loops of a state give what the ones in Python give, and stop where they stop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.cuts.cut import Row
from emberflow.engine.loops import accesses as accessing
from emberflow.engine.loops.accesses import NO_ABORTS, AccessEntry, StateBucket, Use
from emberflow.values.item import At, FlatItem, Place
from tests.engine.test_loops import marks, places

_versions = pytest.importorskip(
    "emberflow.native._versions", reason="the compiled loops are not built: no compiler was there"
)

KEYS = (3, 2, True, "a", ("a", 1))


def updated(before: Any, payload: Any) -> Any:
    if payload == 5:
        raise LookupError("a function that fails")
    return At(1, before) if payload == 6 else before + payload


def not_negative(value: Any) -> Any:
    if value == 13:
        raise ValueError("a check that fails")
    return [value] if value >= 0 else []


def outcome(before: Any, payload: Any, moment: Any) -> tuple[Any, Any]:
    raise AssertionError("the loops do not ask for it")


@st.composite
def uses(draw: st.DrawFn, ports: int) -> Use:
    alone = draw(st.booleans())
    port = st.integers(-1, ports - 1)
    return Use(
        function=draw(st.sampled_from([updated, None])),
        check=draw(st.sampled_from([not_negative, None])),
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
    return tuple(repr(getattr(bucket, name)) for name in StateBucket.__slots__)


def copied(bucket: StateBucket) -> StateBucket:
    copy = StateBucket(bucket.key, 0)
    for name in StateBucket.__slots__:
        setattr(copy, name, getattr(bucket, name))
    copy.entries = list(bucket.entries)
    return copy


@given(accesses(), st.sets(st.sampled_from(KEYS), max_size=1), st.sets(places, max_size=1))
def test_access_in_order(
    case: tuple[list[FlatItem], int, list[Use], dict[Any, StateBucket]],
    other_keys: set[Any],
    other_places: set[Place],
) -> None:
    items, start, given_uses, given_buckets = case
    results = []
    for access_in_order in (_versions.access_in_order, accessing._access_in_order):
        own = {key: copied(bucket) for key, bucket in given_buckets.items()}
        outputs: list[list[FlatItem]] = [[], [], []]
        touched: list[StateBucket] = []
        reached = []
        position = start
        while position < len(items):  # what it leaves is passed over
            position = access_in_order(
                items, position, outputs, own, given_uses, touched, other_keys, other_places
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
    for trim_accesses in (_versions.trim_accesses, accessing._trim_accesses):
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
    arguments = (own, moment[:2], since[:2], writes, "accounts", Row)
    compiled, plain = (
        last_versions(*arguments)
        for last_versions in (_versions.last_versions, accessing._last_versions)
    )
    assert compiled == plain
    assert all(type(row) is Row for row in compiled[1])


def test_an_interrupt_is_not_taken_for_an_update_that_fails() -> None:
    def interrupted(before: Any, payload: Any) -> Any:
        raise KeyboardInterrupt

    use = Use(interrupted, None, False, True, False, False, 0, -1, -1, -1, -1, -1, None, outcome)
    bucket = StateBucket("a", 0)
    bucket.entries.append(((1, 0), 0, 0, 2, 0, 0, 0, None))
    items = [((2, 0), 0, ("a", 0, 2, 1))]
    with pytest.raises(KeyboardInterrupt):
        _versions.access_in_order(items, 0, [], {"a": bucket}, [use], [], set(), set())
