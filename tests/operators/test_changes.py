"""Tables that change, against tables that are computed anew after each time.

A flow tells the changes of a table, with their times. `Followed` applies them one by one, as a consumer
would, and checks that each follows from the one before. The oracle has all events up to a time, and makes
the table of them from its definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.dsl.operators.changes.totals import Total
from tests.operators.inputs import Event, events, key_of, searching

Table = dict[Any, Any]
EventChanges = ef.Changes[Any, Event]

HOWS = ["inner", "left", "right", "outer", "semi", "anti"]


def is_gone(event: Event) -> bool:
    return event.value == 0


def tables(events: list[Event]) -> tuple[Table, Table]:
    """The table of each front: the last event of each key, unless it deletes."""
    found: tuple[Table, Table] = ({}, {})
    for event in events:
        table = found[event.front]
        table.pop(event.key, None)
        if not is_gone(event):
            table[event.key] = event
    return found


def followed(changes: list[ef.Timed[ef.Change[Any, Any]]]) -> dict[int, Table]:
    """The table after each time at which it changed."""
    table: Table = {}
    after: dict[int, Table] = {}
    for time, (key, before, value) in changes:
        assert table.get(key) == before
        assert before != value
        table.pop(key, None)
        if value is not None:
            table[key] = value
        after[time] = dict(table)
    return after


def check(
    events: list[Event],
    build: Callable[[EventChanges, EventChanges], ef.Changes[Any, Any]],
    expected: Callable[[Table, Table], Table],
    *,
    on_error: Any = "fail",
) -> dict[str, list[Any]]:
    """Compare the table that a flow tells with the expected one, after each time."""
    flow = ef.Flow("tables")
    fronts = [
        flow.front(name).key_by(key_of).changes(deletes=is_gone) for name in ("first", "second")
    ]
    build(*fronts).as_stream().with_time().sink("out")
    fronts[1].sink("second")  # not all flows read it
    first, second = (
        [ef.At(event.time, event) for event in reversed(events) if event.front == front]
        for front in (0, 1)
    )
    outputs = ef.run(flow, first=first, second=second, on_error=on_error)
    after = followed(outputs["out"])
    table: Table = {}
    for time in sorted({event.time for event in events}):
        table = after.get(time, table)
        assert table == expected(*tables([event for event in events if event.time <= time]))
    return outputs


# Values ---------------------------------------------------------------------------------------------


@searching
@given(events())
def test_the_last_payload_of_a_key_is_its_value(events: list[Event]) -> None:
    check(events, lambda first, second: first, lambda first, second: first)


@searching
@given(events())
def test_equal_values_are_no_change(events: list[Event]) -> None:
    check(
        events,
        lambda first, second: first.map(lambda event: event.value // 2 or None),
        lambda first, second: {k: e.value // 2 for k, e in first.items() if e.value // 2},
    )


@searching
@given(events())
def test_a_filter_deletes_what_it_holds_for_no_more(events: list[Event]) -> None:
    check(
        events,
        lambda first, second: first.filter(lambda event: event.value > 0),
        lambda first, second: {k: e for k, e in first.items() if e.value > 0},
    )


@searching
@given(events())
def test_latest_and_changes_from_are_inverse(events: list[Event]) -> None:
    check(
        events,
        lambda first, second: ef.changes_from(first.with_key().latest()),
        lambda first, second: {key: (key, event) for key, event in first.items()},
    )


@searching
@given(events())
def test_a_stream_is_enriched_with_the_value_of_now(events: list[Event]) -> None:
    flow = ef.Flow("enriched")
    orders = flow.front("orders").key_by(key_of)
    table = flow.front("table").key_by(key_of).changes(deletes=is_gone)
    orders.enrich(table, lambda event, row: (event, row), default="none").sink("out")
    left, right = ([ef.At(e.time, e) for e in events if e.front == f] for f in (0, 1))
    assert ef.run(flow, orders=left, table=right)["out"] == [
        (event, tables(events[:place])[1].get(event.key, "none"))
        for place, event in enumerate(events)
        if event.front == 0
    ]


# Aggregates -----------------------------------------------------------------------------------------

#: What is summed: exact sums of these need more than the 53 bits of a float.
NUMBERS = {-3: -1e300, -2: 0.1, -1: 7, 1: 1e300, 2: 1e-300, 3: math.inf}


def group_of(event: Event) -> Any:
    return str(event.value % 2)


def number_of(event: Event) -> Any:
    return NUMBERS[event.value]


def value_of(event: Event) -> int:
    return event.value


def exact(numbers: list[Any], count: int = 1) -> Any:
    if math.inf in numbers:
        return math.inf
    if not any(isinstance(number, float) for number in numbers) and count == 1:
        return sum(numbers)
    return float(sum(map(Fraction, numbers)) / count)


AGGREGATES: dict[
    str, tuple[Callable[[Any], ef.Changes[Any, Any]], Callable[[list[Event]], Any]]
] = {
    "count": (lambda groups: groups.count(), len),
    "sum": (
        lambda groups: groups.sum(number_of),
        lambda group: exact(list(map(number_of, group))),
    ),
    "mean": (
        lambda groups: groups.mean(number_of),
        lambda group: exact(list(map(number_of, group)), len(group)),
    ),
    "min": (lambda groups: groups.min(value_of), lambda group: min(map(value_of, group))),
    "max": (lambda groups: groups.max(value_of), lambda group: max(map(value_of, group))),
    "count_distinct": (
        lambda groups: groups.count_distinct(value_of),
        lambda group: len(set(map(value_of, group))),
    ),
    "fold with inverse": (
        lambda groups: groups.fold(
            initial=1,
            combine=lambda held, e: held + e.value**2,
            inverse=lambda held, e: held - e.value**2,
        ),
        lambda group: 1 + sum(event.value**2 for event in group),
    ),
}


@pytest.mark.parametrize("name", AGGREGATES)
@searching
@given(events=events())
def test_an_aggregate_is_that_of_the_values_of_now(name: str, events: list[Event]) -> None:
    aggregate, function = AGGREGATES[name]

    def expected(first: Table, second: Table) -> Table:
        rows = list(first.values())
        return {
            g: function([e for e in rows if group_of(e) == g]) for g in set(map(group_of, rows))
        }

    check(events, lambda first, second: aggregate(first.group_by(group_of)), expected)


@pytest.mark.parametrize("name", ["collect", "fold"])
@searching
@given(events=events())
def test_values_are_collected_in_the_order_in_which_their_keys_entered(
    name: str, events: list[Event]
) -> None:
    def build(first: EventChanges, second: EventChanges) -> ef.Changes[Any, Any]:
        groups = first.group_by(group_of)
        if name == "collect":
            return groups.collect(value_of)
        return groups.fold(initial=(), combine=lambda held, event: (*held, event.value))

    entered: dict[Any, dict[Any, int]] = {"0": {}, "1": {}}
    by_time: dict[int, Table] = {}
    for event in events:
        if event.front == 0:
            for group, rows in entered.items():
                if is_gone(event) or group_of(event) != group:
                    rows.pop(event.key, None)
                else:
                    rows[event.key] = event.value  # keeps the place of a key that is there
        table = {group: tuple(rows.values()) for group, rows in entered.items() if rows}
        by_time[event.time] = table
    times = iter(sorted(by_time))
    check(events, build, lambda first, second: by_time[next(times)])


def test_the_sum_of_the_latest_price_of_each_item_by_category() -> None:
    flow = ef.Flow("prices")
    items = flow.front("items").key_by(lambda item: item["id"]).changes()
    items.group_by(lambda item: item["category"]).sum(lambda item: item["price"]).latest().sink(
        "out"
    )
    rows = [(1, "tea", 3), (2, "tea", 4), (1, "tea", 5), (2, "jam", 4), (1, "jam", 1)]
    given = [{"id": id, "category": category, "price": price} for id, category, price in rows]
    assert ef.run(flow, items=given)["out"] == [
        ("tea", 3),
        ("tea", 7),
        ("tea", 9),
        ("tea", 5),
        ("jam", 4),
        ("tea", None),
        ("jam", 5),
    ]


@searching
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.floats(), st.integers(), st.booleans(), st.sampled_from([1e308, 5e-324, -0.0])
            ),
            st.booleans(),
        )
    )
)
def test_a_total_depends_on_what_is_in_it_alone(numbers: list[tuple[Any, bool]]) -> None:
    passing = Total()
    for number, stays in numbers:
        passing = passing.plus(number)
        if not stays:
            passing = passing.plus(number, -1)
    straight = Total()
    for number, stays in numbers:
        if stays:
            straight = straight.plus(number)
    assert repr(passing) == repr(straight)
    kept = [number for number, stays in numbers if stays]
    if kept and all(isinstance(n, float) and abs(n) < 1e300 for n in kept):
        assert passing.value() == math.fsum(kept)


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([Decimal("0.1"), Decimal("1e30"), 2], Decimal("1000000000000000000000000000002.1")),
        ([Fraction(1, 3), 1], Fraction(4, 3)),
        ([1e308, 1e308], math.inf),
        ([-1e308, -1e308], -math.inf),
        ([math.inf, 1.0], math.inf),
        ([True, 2], 3),
        ([2**70, 0.5], float(2**70)),
    ],
)
def test_totals_of_all_kinds_of_numbers(numbers: list[Any], total: Any) -> None:
    held = Total()
    for number in numbers:
        held = held.plus(number)
    assert held.value() == total
    assert type(held.value()) is type(total)
    assert held.plus(numbers[0]).plus(numbers[0], -1).value() == total


def test_infinities_that_cancel_are_no_number() -> None:
    assert math.isnan(Total().plus(math.inf).plus(-math.inf).value())
    assert math.isnan(Total().plus(math.nan).mean())


def test_a_cut_of_one_aggregate_does_not_fit_another() -> None:
    found = set()
    for aggregate, _ in AGGREGATES.values():
        flow = ef.Flow("aggregated")
        groups = flow.front("in").key_by(key_of).changes().group_by(group_of)
        aggregate(_Named(groups)).sink("out")
        found.add(flow.graph().fingerprint)
    assert len(found) == len(AGGREGATES)


class _Named:
    """Gives all aggregates one name."""

    def __init__(self, groups: ef.GroupedChanges[Any, Any, Any]) -> None:
        self._groups = groups

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._groups, method), name="aggregate")


# Joins ----------------------------------------------------------------------------------------------


def joined_by_key(how: str, left: Table, right: Table) -> Table:
    keys = {
        "inner": left.keys() & right.keys(),
        "left": left.keys(),
        "right": right.keys(),
        "outer": left.keys() | right.keys(),
        "semi": left.keys() & right.keys(),
        "anti": left.keys() - right.keys(),
    }[how]
    if how in ("semi", "anti"):
        return {key: left[key] for key in keys}
    return {key: (left.get(key), right.get(key)) for key in keys}


def joined_by_group(how: str, left: Table, right: Table) -> Table:
    pairs = {
        (one, other): (left[one], right[other])
        for one in left
        for other in right
        if group_of(left[one]) == group_of(right[other])
    }
    met_left, met_right = {one for one, _ in pairs}, {other for _, other in pairs}
    if how == "semi":
        return {key: left[key] for key in met_left}
    if how == "anti":
        return {key: left[key] for key in left if key not in met_left}
    alone: Table = {}
    if how in ("left", "outer"):
        alone |= {(key, None): (left[key], None) for key in left if key not in met_left}
    if how in ("right", "outer"):
        alone |= {(None, key): (None, right[key]) for key in right if key not in met_right}
    return pairs | alone


@pytest.mark.parametrize("how", HOWS)
@searching
@given(events=events())
def test_tables_are_joined_by_their_keys(how: Any, events: list[Event]) -> None:
    check(
        events,
        lambda first, second: first.join(second, how=how),
        lambda first, second: joined_by_key(how, first, second),
    )


# The key None would be taken for a side that is not there.
@pytest.mark.parametrize("how", HOWS)
@searching
@given(events=events().map(lambda drawn: [e for e in drawn if e.key is not None]))
def test_tables_are_joined_by_groups_of_their_rows(how: Any, events: list[Event]) -> None:
    check(
        events,
        lambda first, second: first.group_by(group_of).join(second.group_by(group_of), how=how),
        lambda first, second: joined_by_group(how, first, second),
    )


@searching
@given(events=events())
def test_a_table_is_joined_with_itself(events: list[Event]) -> None:
    """Both sides of a pair may change at once, and move to another group at once."""
    check(
        [event for event in events if event.key is not None],
        lambda first, second: first.group_by(group_of).join(first.group_by(group_of), how="outer"),
        lambda first, second: joined_by_group("outer", first, first),
    )


@searching
@given(events())
def test_what_is_joined_is_combined_and_aggregated(events: list[Event]) -> None:
    def build(first: EventChanges, second: EventChanges) -> ef.Changes[Any, Any]:
        joined = first.group_by(group_of).join(
            second.group_by(group_of), lambda one, other: one.value * other.value
        )
        return joined.group_by(lambda product: product % 3).sum()

    def expected(first: Table, second: Table) -> Table:
        pairs = joined_by_group("inner", first, second).values()
        products = [one.value * other.value for one, other in pairs]
        return {
            rest: sum(p for p in products if p % 3 == rest) for rest in {p % 3 for p in products}
        }

    check(events, build, expected)


# Errors ---------------------------------------------------------------------------------------------


def fails(event: Event) -> bool:
    return event.value in (-1, 2)


def failing(function: Callable[[Event], Any]) -> Callable[[Event], Any]:
    def called(event: Event) -> Any:
        if fails(event):
            raise ValueError(f"not {event.value}")
        return function(event)

    return called


DIVERTING: dict[str, Callable[[EventChanges], ef.Changes[Any, Any]]] = {
    "map": lambda table: table.map(failing(value_of)),
    "filter": lambda table: table.filter(failing(lambda event: True)).map(value_of),
    "group": lambda table: table.group_by(failing(group_of)).sum(value_of),
    "of": lambda table: table.group_by(group_of).sum(failing(value_of)),
    "combine": lambda table: table.join(table, lambda one, other: failing(value_of)(one)),
}


@pytest.mark.parametrize("name", DIVERTING)
@searching
@given(events=events())
def test_a_value_for_which_a_function_raises_counts_as_not_there(
    name: str, events: list[Event]
) -> None:
    """With diverted errors. Otherwise a change would take back what never came."""

    def expected(first: Table, second: Table) -> Table:
        values = {key: event.value for key, event in first.items() if not fails(event)}
        if name not in ("group", "of"):
            return values
        groups = {str(value % 2) for value in values.values()}
        return {g: sum(v for v in values.values() if str(v % 2) == g) for g in groups}

    outputs = check(
        events, lambda first, second: DIVERTING[name](first), expected, on_error="divert"
    )
    told = [record.payload for record in outputs.get("errors", [])]
    if name != "combine":  # its two sides change one after the other
        assert len(told) == sum(event.front == 0 and fails(event) for event in events)


FOLDS: dict[str, Callable[[EventChanges], ef.Changes[Any, Any]]] = {
    "fold": lambda table: table.group_by(group_of).fold(initial=0, combine=with_event),
    "fold with an inverse": lambda table: table.group_by(group_of).fold(
        initial=0, combine=with_event, inverse=lambda held, event: held - event.value
    ),
}


def with_event(held: int, event: Event) -> int:
    return held + failing(value_of)(event)


@pytest.mark.parametrize("name", FOLDS)
@searching
@given(events=events())
def test_a_value_on_which_a_fold_raises_counts_as_not_there(name: str, events: list[Event]) -> None:
    def expected(first: Table, second: Table) -> Table:
        there = [event for event in first.values() if not fails(event)]
        groups = {group_of(event) for event in there}
        if name == "fold":  # it holds a row that it cannot combine, so the group is there
            groups = {group_of(event) for event in first.values()}
        return {g: sum(e.value for e in there if group_of(e) == g) for g in groups}

    outputs = check(events, lambda first, second: FOLDS[name](first), expected, on_error="divert")
    told = [record.problem for record in outputs.get("errors", [])]
    assert all("not -1" in problem or "not 2" in problem for problem in told)
    failures = sum(event.front == 0 and fails(event) for event in events)
    assert len(told) >= failures if name == "fold" else len(told) == failures


@searching
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 3, "a", "b", None]))))
def test_of_a_minimum_what_cannot_be_compared_is_left_out_until_its_row_changes(
    rows: list[tuple[int, Any]],
) -> None:
    flow = ef.Flow("minimum")
    table = flow.front("rows").key_by(lambda row: row[0]).changes().map(lambda row: row[1])
    table.group_by(lambda value: "all").min().as_stream().with_time().sink("out")
    outputs = ef.run(flow, rows=rows, on_error="divert")
    after = followed(outputs["out"])
    there: dict[int, Any] = {}
    left_out, told, now, earlier = set[int](), 0, dict[str, Any](), dict[int, Any]()
    for time, (key, value) in enumerate(rows):
        if earlier.get(key) != value:
            left_out.discard(key)
            there.pop(key, None)
            if value is not None:
                kinds = {type(other) for other in there.values()} | {type(value)}
                if len(kinds) == 1:
                    there[key] = value
                else:
                    left_out.add(key)
                    told += 1
        earlier[key] = value
        now = after.get(time, now)
        assert now == ({"all": min(there.values())} if there else {})
    assert len(outputs.get("errors", [])) == told


def test_an_error_of_an_aggregate_shows_the_row() -> None:
    flow = ef.Flow("minimum")
    table = flow.front("rows").key_by(lambda row: row[0]).changes().map(lambda row: row[1])
    table.group_by(lambda value: "all").min().latest().sink("out")
    with pytest.raises(ef.FunctionError, match=r"not supported between") as error:
        ef.run(flow, rows=[("tea", 1), ("jam", "three")])
    assert "('all', 'jam', None, 'three')" in str(error.value)


def test_without_diverting_the_first_error_ends_the_run() -> None:
    flow = ef.Flow("failing")
    flow.front("in").key_by(lambda n: None).changes().map(lambda n: 1 // n).latest().sink("out")
    with pytest.raises(ef.FunctionError, match="ZeroDivisionError"):
        ef.run(flow, **{"in": [1, 0]})


@pytest.mark.parametrize(
    ("aggregate", "value", "complaint", "result"),
    [
        (lambda groups: groups.sum(), "three", "a sum takes what can be added", 1),
        (lambda groups: groups.max(), math.nan, "take values that have an order, got nan", 1),
        (lambda groups: groups.count_distinct(), ["a"], "list", 2),
    ],
)
def test_what_cannot_be_aggregated_is_diverted_alone(
    aggregate: Any, value: Any, complaint: str, result: int
) -> None:
    flow = ef.Flow("aggregated")
    table = flow.front("in").key_by(lambda pair: pair[0]).changes().map(lambda pair: pair[1])
    aggregate(table.group_by(lambda number: None)).latest().sink("out")
    outputs = ef.run(
        flow, on_error="divert", **{"in": [("a", 1), ("b", value), ("b", 1), ("b", 0)]}
    )
    assert complaint in outputs["errors"][0].problem
    assert len(outputs["errors"]) == 1
    assert dict(outputs["out"]) == {None: result}


def test_a_function_of_values_schedules_nothing() -> None:
    flow = ef.Flow("scheduling")
    flow.front("in").key_by(lambda n: None).changes().map(lambda n: ef.At(9, n)).latest().sink(
        "out"
    )
    with pytest.raises(ef.OutputError, match="only map and flat_map schedule"):
        ef.run(flow, **{"in": [1]})


# Debezium -------------------------------------------------------------------------------------------

ADA, EVE = {"id": 1, "name": "ada"}, {"id": 1, "name": "eve"}


def from_envelopes(*envelopes: Any, key: Any = "id") -> list[Any]:
    flow = ef.Flow("debezium")
    rows = ef.changes_from(flow.front("envelopes"), format="debezium", key=key)
    rows.as_stream().map(tuple).sink("out")
    return ef.run(flow, envelopes=list(envelopes))["out"]


def test_envelopes_create_update_delete_and_read() -> None:
    assert from_envelopes(
        {"op": "r", "before": None, "after": ADA, "source": {}, "ts_ms": 1},
        {"op": "u", "before": ADA, "after": EVE},
        {"op": "d", "before": EVE, "after": None},
        None,  # the tombstone
        {"op": "c", "before": None, "after": ADA},
    ) == [(1, None, ADA), (1, ADA, EVE), (1, EVE, None), (1, None, ADA)]


def test_an_envelope_may_have_its_schema_beside_it() -> None:
    wrapped = {"schema": {"type": "struct"}, "payload": {"op": "c", "before": None, "after": ADA}}
    assert from_envelopes(wrapped) == [(1, None, ADA)]


def test_what_was_before_follows_from_what_came_before() -> None:
    """PostgreSQL tells of the row before nothing, or its key, unless the table says otherwise."""
    assert from_envelopes(
        {"op": "u", "before": None, "after": ADA},
        {"op": "u", "before": {"id": 1}, "after": EVE},
        {"op": "d", "before": {"id": 1, "name": None}, "after": None},
        {"op": "d", "before": {"id": 1}, "after": None},
    ) == [(1, None, ADA), (1, ADA, EVE), (1, EVE, None)]


def test_a_row_whose_key_changes_leaves_its_old_one() -> None:
    moved = {"id": 2, "name": "ada"}
    assert from_envelopes(
        {"op": "c", "before": None, "after": ADA}, {"op": "u", "before": ADA, "after": moved}
    ) == [(1, None, ADA), (1, ADA, None), (2, None, moved)]


def test_a_key_of_several_columns_or_of_a_function() -> None:
    created = {"op": "c", "before": None, "after": ADA}
    assert from_envelopes(created, key=["id", "name"]) == [((1, "ada"), None, ADA)]
    assert from_envelopes(created, key=lambda row: row["name"]) == [("ada", None, ADA)]


def test_the_key_of_a_record_tells_which_row_is_deleted() -> None:
    from emberflow.fronts.kafka import Record

    assert from_envelopes(
        Record({"id": 1}, {"op": "c", "before": None, "after": ADA}),
        Record({"schema": {}, "payload": {"id": 1}}, {"op": "d", "before": None, "after": None}),
        Record({"id": 1}, None),
    ) == [(1, None, ADA), (1, ADA, None)]


@pytest.mark.parametrize(
    ("envelope", "complaint"),
    [
        ({"id": 1}, "not an envelope of Debezium: it has no 'op'"),
        ("c", "not an envelope of Debezium"),
        ({"op": "c", "before": None, "after": None}, "op 'c' has no row 'after'"),
        ({"op": "d", "before": None, "after": None}, "Give the table a replica identity"),
        ({"op": "t"}, "a truncation does not say which keys it deletes"),
        ({"op": "x"}, "none of 'c', 'r', 'u' and 'd'"),
        ({"op": "c", "before": None, "after": {"name": "ada"}}, "KeyError: 'id'"),
    ],
)
def test_an_envelope_that_cannot_be_understood_is_told_or_diverted(
    envelope: Any, complaint: str
) -> None:
    with pytest.raises(ef.FunctionError) as caught:
        from_envelopes(envelope)
    assert complaint in str(caught.value)
    flow = ef.Flow("debezium")
    ef.changes_from(flow.front("in"), format="debezium", key="id").latest().sink("out")
    good = {"op": "c", "before": None, "after": ADA}
    outputs = ef.run(flow, on_error="divert", **{"in": [envelope, good]})
    assert outputs["out"] == [(1, ADA)]
    assert [record.payload for record in outputs["errors"]] == [envelope]


def test_an_upsert_is_a_pair() -> None:
    flow = ef.Flow("upserts")
    ef.changes_from(flow.front("in")).latest().sink("out")
    with pytest.raises(ef.FunctionError, match="an upsert is a pair"):
        ef.run(flow, **{"in": ["ab"]})
