"""`reduce` and `fold` equal a loop over each key's payloads, and a cycle of the four operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators.inputs import (
    KEYS,
    Event,
    events,
    histories,
    key_of,
    keyed_outputs_of,
    searching,
    value_of,
)


def begun(event: Event) -> tuple[int, ...]:
    return (event.value,)


def appended(values: tuple[int, ...], event: Event) -> tuple[int, ...]:
    """An accumulator that remembers all its payloads in order."""
    return (*values, event.value)


@searching
@given(events())
def test_reduce_is_a_loop_over_the_payloads_of_a_key(events: list[Event]) -> None:
    reduced = keyed_outputs_of(events, lambda s: s.reduce(first=begun, combine=appended))
    assert reduced == [tuple(history) for _, history in histories(events)]
    with_key = keyed_outputs_of(
        events, lambda s: s.reduce(first=begun, combine=appended, with_key=True)
    )
    # The key is that of the newest payload: 1 and True are one key, but look different.
    assert repr(with_key) == repr([(e.key, tuple(history)) for e, history in histories(events)])


@searching
@given(events())
def test_fold_begins_every_key_with_the_initial_accumulator(events: list[Event]) -> None:
    folded = keyed_outputs_of(events, lambda s: s.fold(initial=(7,), combine=appended))
    assert folded == [(7, *history) for _, history in histories(events)]
    with_key = keyed_outputs_of(
        events, lambda s: s.fold(initial=(), combine=appended, with_key=True)
    )
    assert with_key == [(e.key, tuple(history)) for e, history in histories(events)]


def reduced_by_hand(
    stream: ef.Stream[Any],
    key: Callable[[Any], Any],
    first: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
) -> ef.Stream[Any]:
    """The papers' graph, as a user would write it."""
    accumulators = stream.flow.loop()
    mapped = stream.map(lambda payload: ("mapped", key(payload), payload))
    tuples = ef.merge(mapped, accumulators).key_by(lambda item: item[1]).group(window=2)

    def combined(window: tuple[Any, ...]) -> list[Any]:
        match window:
            case (("mapped", of, payload),):
                return [("accumulator", of, first(payload))]
            case (("accumulator", _, held), ("mapped", of, payload)):
                return [("accumulator", of, combine(held, payload))]
        return []

    made = tuples.flat_map(combined)
    accumulators.close(made)
    return made.map(lambda item: item[2])


@searching
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-3, 3)), max_size=4), max_size=6)
)
def test_reduce_is_the_cycle_that_a_user_can_write(lines: list[list[tuple[Any, int]]]) -> None:
    """Also if one element becomes several payloads of one key, and if reductions are chained."""

    def flow_of(reduce: Callable[..., ef.Stream[Any]]) -> dict[str, list[Any]]:
        flow = ef.Flow("reduced")
        pairs = flow.front("lines").flat_map(lambda line: line)
        histories = reduce(pairs, lambda p: p[0], lambda p: (p,), lambda held, p: (*held, p))
        histories.sink("histories")
        lengths = reduce(histories, len, lambda h: h[-1][1], lambda held, h: 2 * held - h[-1][1])
        lengths.sink("chained")
        return ef.run(flow, lines=lines)

    operator = flow_of(lambda s, key, f, c: s.key_by(key).reduce(first=f, combine=c))
    assert operator == flow_of(reduced_by_hand)


def test_reduce_is_built_of_the_operations_of_the_papers() -> None:
    flow = ef.Flow("shape")
    flow.front("in").key_by(key_of).reduce(first=value_of, combine=max).sink("out")
    graph = flow.graph()
    inside = {node.name: node for node in graph.nodes if node.name.startswith("reduce/")}
    assert {name: node.kind for name, node in inside.items()} == {
        "reduce/pair": "map",
        "reduce/merge": "merge",
        "reduce/group": "group",
        "reduce/combine": "map",
        "reduce/broadcast": "broadcast",
        "reduce/value": "map",
    }
    sources = {
        name: [graph.nodes[source.node].name for source in node.inputs]
        for name, node in inside.items()
    }
    assert sources["reduce/merge"] == ["reduce/pair", "reduce/broadcast"]
    assert sources["reduce/group"] == ["reduce/merge"]
    assert inside["reduce/group"].window == 2
    assert graph.back_edges == {(inside["reduce/merge"].id, 1)}
