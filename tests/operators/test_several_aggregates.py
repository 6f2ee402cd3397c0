"""Several aggregates at once, against plain Python over the whole history of each key."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.dsl.operators.aggregates.catalogue import count_distinct
from emberflow.dsl.operators.aggregates.record import record_of
from emberflow.rows.codec import decode_all, encode_all
from emberflow.values.hashing import encode_key, key_hash
from tests.operators.inputs import (
    Event,
    events,
    keyed_outputs_of,
    searching,
    value_of,
)


def parity(event: Event) -> int:
    return event.value % 2


def is_positive(event: Event) -> bool:
    return event.value > 0


def unique(values: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


def best(values: list[Event], sign: int) -> int:
    """The value of the event with the greatest parity, or the least; the first of those."""
    return sorted(values, key=lambda event: sign * parity(event))[0].value


#: Aggregates: by Emberflow, given ``where``; and of a list of events, which may be empty.
AGGREGATES: dict[str, tuple[Callable[[Any], ef.Aggregate[Event]], Callable[[list[Event]], Any]]] = {
    "count": (lambda where: ef.count(where=where), len),
    "sum": (
        lambda where: ef.sum(value_of, where=where),
        lambda es: sum(map(value_of, es)) if es else None,
    ),
    "min": (
        lambda where: ef.min(value_of, where=where),
        lambda es: min(map(value_of, es), default=None),
    ),
    "max": (
        lambda where: ef.max(value_of, where=where),
        lambda es: max(map(value_of, es), default=None),
    ),
    "min by": (
        lambda where: ef.min(value_of, by=parity, where=where),
        lambda es: best(es, 1) if es else None,
    ),
    "max by": (
        lambda where: ef.max(value_of, by=parity, where=where),
        lambda es: best(es, -1) if es else None,
    ),
    "whole payload": (
        lambda where: ef.max(by=value_of, where=where),
        lambda es: max(es, key=value_of, default=None),
    ),
    "mean": (
        lambda where: ef.mean(value_of, where=where),
        lambda es: sum(map(value_of, es)) / len(es) if es else None,
    ),
    "first": (
        lambda where: ef.first(value_of, where=where),
        lambda es: es[0].value if es else None,
    ),
    "last": (
        lambda where: ef.last(value_of, where=where),
        lambda es: es[-1].value if es else None,
    ),
    "collect": (lambda where: ef.collect(where=where), tuple),
    "collect of": (
        lambda where: ef.collect(value_of, where=where),
        lambda es: tuple(map(value_of, es)),
    ),
    "distinct": (
        lambda where: ef.distinct(parity, where=where),
        lambda es: unique(list(map(parity, es))),
    ),
    "count distinct": (
        lambda where: ef.count_distinct(value_of, where=where),
        lambda es: len(set(map(value_of, es))),
    ),
    "top": (
        lambda where: ef.top(2, by=value_of, where=where),
        lambda es: tuple(sorted(es, key=lambda event: -event.value)[:2]),
    ),
    "own": (
        lambda where: own() if where is None else own().where(where, otherwise=()),
        lambda es: tuple(map(value_of, es)),
    ),
}


def own() -> ef.Aggregate[Event]:
    return ef.Aggregate(
        first=lambda event: [event.value],
        combine=lambda held, event: [*held, event.value],
        result=tuple,
    )


#: Which aggregates, and which of them are over positive values only.
everything = st.dictionaries(st.sampled_from(sorted(AGGREGATES)), st.booleans(), min_size=1)
#: Those that cannot fail and so travel as what they need of a payload, if they are alone.
counts = st.dictionaries(st.sampled_from(["count", "count distinct"]), st.booleans(), min_size=1)
drawn = everything | counts


def arguments(chosen: dict[str, bool]) -> dict[str, ef.Aggregate[Event]]:
    return {
        name.replace(" ", "_"): AGGREGATES[name][0](is_positive if positive else None)
        for name, positive in chosen.items()
    }


def expected_of(chosen: dict[str, bool], history: list[Event]) -> dict[str, Any]:
    positive = list(filter(is_positive, history))
    return {
        name.replace(" ", "_"): AGGREGATES[name][1](positive if is_where else history)
        for name, is_where in chosen.items()
    }


@searching
@given(events(), drawn)
def test_each_of_several_aggregates_is_a_function_of_the_history(
    events: list[Event], chosen: dict[str, bool]
) -> None:
    found = keyed_outputs_of(events, lambda stream: stream.aggregate(**arguments(chosen)))
    assert len(found) == len(events)
    for place, (event, (key, values)) in enumerate(zip(events, found, strict=True)):
        history = [e for e in events[: place + 1] if e.key == event.key]
        assert key == event.key
        assert values._asdict() == expected_of(chosen, history)


@searching
@given(events(), drawn, st.sampled_from(["update", "close"]))
def test_and_in_a_window_of_what_is_in_it(
    events: list[Event], chosen: dict[str, bool], emit: Any
) -> None:
    def both(stream: ef.KeyedStream[Any, Event]) -> ef.Stream[Any]:
        windowed = stream.window(ef.Tumbling(5), emit=emit)
        return ef.merge(
            windowed.aggregate(**arguments(chosen)),
            windowed.collect(),
        )

    found = keyed_outputs_of(events, both)
    several = [result for result in found if type(result.value) is not tuple]
    collected = [result for result in found if type(result.value) is tuple]
    assert len(several) == len(collected)
    for result, members in zip(several, collected, strict=True):
        assert result[:2] == members[:2]
        assert result.value._asdict() == expected_of(chosen, list(members.value))


# --- The class of the values ----------------------------------------------------------------------


class Prices(NamedTuple):
    low: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Range:
    low: int
    high: int


@pytest.mark.parametrize("into", [Prices, Range])
def test_values_have_a_class_of_the_user_whatever_the_order_of_the_aggregates(into: Any) -> None:
    flow = ef.Flow("prices")
    keyed = flow.front("prices").key_by(lambda price: "all")
    keyed.aggregate(into, high=ef.max(), low=ef.min()).sink("out")
    found = ef.run(flow, prices=[4, 2, 8])["out"]
    assert found[-1] == ("all", into(low=2, high=8))
    assert type(found[-1][1]) is into


def test_the_class_that_is_made_is_known_in_a_process_that_has_not_built_the_flow() -> None:
    made = record_of(("total", "count"))
    data = pickle.dumps([made(1, 2), made(3, 4)])
    program = (
        "import pickle, sys\n"
        "one, other = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print(one, other.total, type(one) is type(other), pickle.dumps([one, other]).hex())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, data.hex()], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split(" ", 2)[0:2] == ["Aggregates(total=1,", "count=2)"]
    *_, is_one, again = ran.stdout.split()
    assert is_one == "True"
    assert bytes.fromhex(again) == data


def test_a_value_is_a_key_like_its_tuple_and_goes_through_spark_by_name() -> None:
    made = record_of(("total", "count"))
    assert key_hash(made("a", 2)) == key_hash(("a", 2))
    encoded = encode_all([made("a", 2)])
    assert b"Aggregates(total,count)" in encoded[0]
    (decoded,) = decode_all(encoded)
    assert type(decoded) is made
    assert decoded == made("a", 2)


def test_a_value_can_be_the_key_of_the_next_step_on_many_workers() -> None:
    flow = ef.Flow("counts of counts")
    counts = flow.front("words").key_by(lambda word: word).aggregate(number=ef.count())
    counts.map(lambda pair: pair[1]).key_by(lambda value: value).count().sink("out")
    words = list("abacabadabacaba")
    found = ef.simulate(flow, seed=3, workers=3, crashes=1, words=words)
    assert found.outputs == ef.run(flow, words=words)


# --- What it costs --------------------------------------------------------------------------------


def test_a_distinct_count_of_many_shares_what_it_holds_with_the_version_before() -> None:
    def nodes(tree: Any) -> set[int]:
        return set() if tree is None else {id(tree)} | nodes(tree[3]) | nodes(tree[4])

    aggregate = count_distinct()
    held = aggregate.first(0)
    for number in range(1, 3_000):
        held = aggregate.combine(held, number)
    later = aggregate.combine(held, 3_000)
    assert len(nodes(later._tree) - nodes(held._tree)) <= 2 * math.ceil(1.44 * math.log2(3_000))
    assert aggregate.combine(later, 7) is later


def test_several_aggregates_are_one_reduction() -> None:
    flow = ef.Flow("one")
    keyed = flow.front("numbers").key_by(lambda n: n)
    keyed.aggregate(total=ef.sum(), mean=ef.mean(), number=ef.count()).sink("out")
    assert len(flow.graph().reductions) == 1


def test_counts_let_only_what_they_count_travel() -> None:
    def price_of(bid: tuple[str, int]) -> int:
        return bid[1]

    flow = ef.Flow("travels")
    keyed = flow.front("bids").key_by(lambda bid: bid[0])
    high = ef.count(where=lambda bid: bid[1] > 5)
    keyed.aggregate(all=ef.count(), high=high, prices=ef.count_distinct(price_of)).sink("out")
    graph = flow.graph()
    (reduction,) = graph.reductions
    (pair,) = [node for node in graph.nodes if node.name.endswith("pair")]
    assert pair.function(("ada", 7)) == ("ada", False, (True, encode_key(7)))
    assert reduction.pair is None, "the pair is made ahead of the shuffle"
    assert ef.run(flow, bids=[("ada", 7), ("ada", 3), ("ada", 7)])["out"] == [
        ("ada", (1, 1, 1)),
        ("ada", (2, 1, 2)),
        ("ada", (3, 2, 2)),
    ]


def test_an_element_whose_condition_raises_is_diverted_whole() -> None:
    flow = ef.Flow("diverted")
    keyed = flow.front("numbers").key_by(lambda n: n % 2)
    keyed.aggregate(all=ef.count(), exact=ef.count(where=lambda n: 6 % n == 0)).sink("out")
    found = ef.run(flow, numbers=[2, 0, 4], on_error="divert")
    assert found["out"] == [(0, (1, 1)), (0, (2, 1))]
    (diverted,) = found["errors"]
    assert diverted.payload == 0
    assert "exact.where=" in diverted.function


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda keyed: keyed.aggregate(), "takes at least one aggregate"),
        (lambda keyed: keyed.aggregate(ef.count()), "takes each aggregate by a name"),
        (lambda keyed: keyed.aggregate(number=ef.count), "Call it: number=ef.count()"),
        (
            lambda keyed: keyed.aggregate(total=value_of),
            "Say what to do with it: total=ef.sum(value",
        ),
        (lambda keyed: keyed.aggregate(total=7), "aggregate(total=) takes an aggregate, got 7"),
        (lambda keyed: keyed.aggregate(name=ef.first()), "is the name of the step"),
        (lambda keyed: keyed.aggregate(_total=ef.sum()), "'_total' cannot be a field"),
        (
            lambda keyed: keyed.aggregate(int, low=ef.min()),
            "a class of named tuples or a dataclass",
        ),
        (
            lambda keyed: keyed.aggregate(Prices, low=ef.min(), hi=ef.max()),
            "an aggregate for each field of the class: low, high. Got low, hi.",
        ),
        (lambda keyed: keyed.aggregate(low=ef.min("price")), "of= takes a function of the payload"),
        (lambda keyed: keyed.aggregate(low=ef.min(by=3)), "by= takes a function of the payload"),
        (lambda keyed: keyed.aggregate(n=ef.count(where=1)), "where= takes a function"),
        (lambda keyed: keyed.aggregate(best=ef.top(0)), "takes n as an int of at least 1, got 0"),
        (
            lambda keyed: keyed.aggregate(own=ef.Aggregate(first=1, combine=max)),
            "Aggregate(first=) takes a function, got 1",
        ),
        (
            lambda keyed: keyed.window(ef.Tumbling(3)).aggregate(number=ef.count),
            "Call it: number=ef.count()",
        ),
    ],
)
def test_what_is_no_aggregate_is_refused_at_the_line_that_has_it(ask: Any, complaint: str) -> None:
    keyed: Any = ef.Flow("refused").front("numbers").key_by(lambda n: n)
    with pytest.raises(ef.FlowError) as raised:
        ask(keyed)
    assert complaint in str(raised.value)
    assert "test_several_aggregates.py" in str(raised.value)


def test_a_function_that_raises_is_named_with_its_field() -> None:
    flow = ef.Flow("raises")
    keyed = flow.front("numbers").key_by(lambda n: None)
    keyed.aggregate(number=ef.count(), rate=ef.sum(lambda n: 1 // n)).sink("out")
    with pytest.raises(ef.FunctionError) as raised:
        ef.run(flow, numbers=[1, 0])
    assert raised.value.function.startswith("rate.of=")
    assert "ZeroDivisionError" in str(raised.value)


def test_values_that_cannot_be_told_apart_are_refused_with_advice() -> None:
    flow = ef.Flow("lists")
    keyed = flow.front("lists").key_by(lambda own: None)
    keyed.aggregate(number=ef.count_distinct()).sink("out")
    with pytest.raises(ef.FunctionError, match=r"instead of such an x return tuple\(x\)"):
        ef.run(flow, lists=[[1, 2]])
