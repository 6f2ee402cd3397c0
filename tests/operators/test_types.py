"""Flows as users write them, under mypy's strict rules: what each step gives, and what is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operators.user_code import checked_by_mypy

BEGINNING = """
from dataclasses import dataclass
from typing import NamedTuple, assert_type

import emberflow as ef


@dataclass(frozen=True)
class Order:
    id: int
    person: str
    price: int


class Person(NamedTuple):
    name: str
    city: str


flow = ef.Flow("typed")
order_stream: ef.Stream[Order] = flow.front("orders")
person_stream: ef.Stream[Person] = flow.front("people")
orders = order_stream.key_by(lambda order: order.person)
people = person_stream.key_by(lambda person: person.name)
order_table = order_stream.key_by(lambda order: order.id).changes()
person_table = people.changes(deletes=lambda person: not person.city)
"""

RIGHT = (
    BEGINNING
    + """
assert_type(orders, ef.KeyedStream[str, Order])
assert_type(orders.join(people), ef.Stream[tuple[Order, Person]])
assert_type(orders.join(people, lambda o, p: (p.city, o.price)), ef.Stream[tuple[str, int]])
assert_type(orders.join(people, how="left", within=3), ef.Stream[tuple[Order, Person | None]])
assert_type(orders.join(people, how="right", within=3), ef.Stream[tuple[Order | None, Person]])
assert_type(
    orders.join(people, how="outer", window=ef.Tumbling("5 s")),
    ef.Stream[tuple[Order | None, Person | None]],
)
assert_type(orders.join(people, how="semi"), ef.Stream[Order])
assert_type(orders.join(people, how="anti", window=ef.Session(3)), ef.Stream[Order])
assert_type(
    orders.join(people, lambda o, p: o.price if p is None else p.city, how="left", within=("0 s", "5 s")),
    ef.Stream[int | str],
)
assert_type(orders.join_latest(people), ef.Stream[tuple[Order, Person]])

assert_type(order_table, ef.Changes[int, Order])
assert_type(order_table.as_stream(), ef.Stream[ef.Change[int, Order]])
assert_type(order_table.latest(), ef.Stream[tuple[int, Order | None]])
assert_type(order_table.map(lambda order: order.price), ef.Changes[int, int])
assert_type(order_table.filter(lambda order: order.price > 3), ef.Changes[int, Order])
assert_type(order_table.with_key(), ef.Changes[int, tuple[int, Order]])
assert_type(ef.changes_from(order_table.latest()), ef.Changes[int, Order])
known = orders.enrich(person_table, lambda o, p: (o.id, p.city), default=Person("?", "?"))
assert_type(known, ef.Stream[tuple[int, str]])
maybe = orders.enrich(person_table, lambda o, p: (o.id, None if p is None else p.city))
assert_type(maybe, ef.Stream[tuple[int, str | None]])
groups = order_table.group_by(lambda order: order.person)
assert_type(groups, ef.GroupedChanges[str, int, Order])
assert_type(groups.count(), ef.Changes[str, int])
assert_type(groups.max(lambda order: order.price), ef.Changes[str, int])
assert_type(groups.collect(lambda order: order.id), ef.Changes[str, tuple[int, ...]])
assert_type(
    groups.fold(initial=0, combine=lambda held, order: held + order.price), ef.Changes[str, int]
)
tables = person_table.join(groups.count(), how="left")
assert_type(tables, ef.Changes[str, tuple[Person, int | None]])
pairs = groups.join(person_table.group_by(lambda person: person.name), how="left")
assert_type(pairs, ef.Changes[tuple[int, str | None], tuple[Order, Person | None]])
"""
)

MISTAKES = {
    "what a payload meets may be None": (
        "orders.enrich(people, lambda o, p: p.city)",
        'Item "None" of',
    ),
    "the person may be missing": (
        'orders.join(people, lambda o, p: p.city, how="left", within=3)',
        "No overload variant",
    ),
    "a kind that is none": ('orders.join(people, how="full")', "No overload variant"),
    "keys of two types": (
        "orders.join(order_stream.key_by(lambda o: o.id))",
        "incompatible type",
    ),
    "a field that is none": ("order_table.map(lambda o: o.prize)", 'has no attribute "prize"'),
    "a value that may be gone": (
        "order_table.latest().map(lambda upsert: upsert[1].price)",
        'has no attribute "price"',
    ),
}


@pytest.mark.xdist_group("mypy")
def test_a_flow_of_dataclasses_and_named_tuples_is_typed(tmp_path: Path) -> None:
    assert checked_by_mypy(tmp_path, user=RIGHT) == []


@pytest.mark.xdist_group("mypy")
def test_mistakes_are_found_where_they_are_made(tmp_path: Path) -> None:
    lines = [line for line, _ in MISTAKES.values()]
    told = checked_by_mypy(tmp_path, user="\n".join([BEGINNING, *lines]))
    first = BEGINNING.count("\n") + 2
    for number, (line, complaint) in enumerate(MISTAKES.values(), first):
        here = [each for each in told if f"user.py:{number}:" in each]
        assert any(complaint in each for each in here), (line, told)
