"""The isolation checker is right: it finds all anomalies and nothing else.

On small histories it is compared with a search over all orders, so neither can be wrong alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from emberflow.guarantees import cycles, isolation
from emberflow.guarantees.isolation import (
    Anomaly,
    Append,
    Observed,
    Read,
    find_anomalies,
    find_disorder,
)
from tests.effort import examples
from tests.isolation.serial import (
    Lists,
    cycle_kinds,
    serial_history,
    some_order_explains,
    with_operation,
)

seeds = st.integers(0, 2**32)
many = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def t(name: str, *operations: Append | Read, committed: bool = True) -> Observed:
    return Observed(name, operations, committed)


def w(key: str, value: int) -> Append:
    return Append(key, value)


def r(key: str, *seen: int) -> Read:
    return Read(key, seen)


# --- Each kind, by hand ----------------------------------------------------------------------------

BY_HAND: dict[str, tuple[list[Observed], str, set[str], set[str]]] = {
    "two writers interleaved": (
        [
            t("a", w("x", 1), w("y", 1)),
            t("b", w("x", 2), w("y", 2)),
            t("c", r("x", 1, 2), r("y", 2, 1)),
        ],
        "G0",
        {"a", "b"},
        {"x", "y"},
    ),
    "one writer in the middle of another": (
        [t("a", w("x", 1), w("x", 3)), t("b", w("x", 2)), t("c", r("x", 1, 2, 3))],
        "G0",
        {"a", "b"},
        {"x"},
    ),
    "an aborted read": (
        [t("a", w("x", 1), committed=False), t("b", r("x", 1))],
        "G1a",
        {"a", "b"},
        {"x"},
    ),
    "an aborted value below a committed one": (
        [t("a", w("x", 1), committed=False), t("b", w("x", 2)), t("c", r("x", 1, 2))],
        "G1a",
        {"a", "c"},
        {"x"},
    ),
    "an intermediate read": (
        [t("a", w("x", 1), w("x", 2)), t("b", r("x", 1)), t("c", r("x", 1, 2))],
        "G1b",
        {"a", "b"},
        {"x"},
    ),
    "information in a circle": (
        [t("a", w("x", 1), r("y", 2)), t("b", w("y", 2), r("x", 1))],
        "G1c",
        {"a", "b"},
        {"x", "y"},
    ),
    "version order by one's own read": (
        [t("a", w("x", 1), r("x", 1), r("y", 1)), t("b", w("x", 2), w("y", 1))],
        "G1c",
        {"a", "b"},
        {"x", "y"},
    ),
    "interleaved by what both saw of themselves": (
        [t("a", w("x", 1), r("x", 1), w("y", 1)), t("b", w("x", 2), w("y", 2), r("y", 2))],
        "G0",
        {"a", "b"},
        {"x", "y"},
    ),
    "a lost update that both saw done": (
        [t("a", r("x"), w("x", 1), r("x", 1)), t("b", r("x"), w("x", 2), r("x", 2))],
        "lost update",
        {"a", "b"},
        {"x"},
    ),
    "a circle of three": (
        [
            t("a", w("x", 1), r("z", 3)),
            t("b", r("x", 1), w("y", 2)),
            t("c", r("y", 2), w("z", 3)),
        ],
        "G1c",
        {"a", "b", "c"},
        {"x", "y", "z"},
    ),
    "a lost update": (
        [t("a", r("x"), w("x", 1)), t("b", r("x"), w("x", 2)), t("c", r("x", 1, 2))],
        "lost update",
        {"a", "b"},
        {"x"},
    ),
    "a lost update that nobody looked at": (
        [t("a", r("x"), w("x", 1)), t("b", r("x"), w("x", 2))],
        "lost update",
        {"a", "b"},
        {"x"},
    ),
    "a read that is split by a writer": (
        [t("a", w("x", 1), w("y", 2)), t("b", r("x", 1), r("y"))],
        "G-single",
        {"a", "b"},
        {"x", "y"},
    ),
    "write skew": (
        [t("a", r("x"), w("y", 1)), t("b", r("y"), w("x", 2))],
        "G2",
        {"a", "b"},
        {"x", "y"},
    ),
    "long fork": (
        [
            t("a", w("x", 1)),
            t("b", w("y", 2)),
            t("c", r("x", 1), r("y")),
            t("d", r("x"), r("y", 2)),
        ],
        "G2",
        {"a", "b", "c", "d"},
        {"x", "y"},
    ),
    "not one's own append": (
        [t("a", w("x", 1), r("x"))],
        "internal",
        {"a"},
        {"x"},
    ),
    "now this, now that": (
        [t("a", w("x", 1)), t("b", r("x"), r("x", 1))],
        "internal",
        {"b"},
        {"x"},
    ),
    "what one is going to append": (
        [t("a", r("x", 1), w("x", 1))],
        "internal",
        {"a"},
        {"x"},
    ),
    "a value twice": (
        [t("a", w("x", 1)), t("b", r("x", 1, 1))],
        "duplicate",
        {"b"},
        {"x"},
    ),
    "a transaction twice": (
        [t("a", w("x", 1)), t("a", w("x", 1))],
        "duplicate",
        {"a"},
        set(),
    ),
    "a value from nowhere": (
        [t("a", w("x", 1)), t("b", r("x", 1, 7))],
        "unknown value",
        {"b"},
        {"x"},
    ),
    "what one appended, the other way round": (
        [t("a", w("x", 1), w("x", 2)), t("b", r("x", 2, 1))],
        "version order",
        {"a"},
        {"x"},
    ),
    "what one appended, without the first": (
        [t("a", w("x", 1), w("x", 2)), t("b", r("x", 2))],
        "version order",
        {"a"},
        {"x"},
    ),
    "two orders of one key": (
        [t("a", w("x", 1)), t("b", w("x", 2)), t("c", r("x", 1, 2)), t("d", r("x", 2))],
        "version order",
        set(),
        {"x"},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_it_is_found_and_told(name: str) -> None:
    history, kind, transactions, keys = BY_HAND[name]
    found = [anomaly for anomaly in find_anomalies(history) if anomaly.kind == kind]
    assert found, find_anomalies(history)
    assert set(found[0].transactions) == transactions
    assert set(found[0].keys) == keys
    assert all(repr(name) in found[0].evidence for name in transactions | keys)
    # And it is no invention: no order explains it either.
    names = {transaction.name for transaction in history}
    if len(names) == len(history):
        assert not some_order_explains(history, None)


@pytest.mark.parametrize(
    "name",
    [
        "version order by one's own read",
        "interleaved by what both saw of themselves",
        "a read that is split by a writer",
        "write skew",
        "information in a circle",
    ],
)
def test_a_cycle_is_told_once_and_as_what_it_is(name: str) -> None:
    history, kind, *_ = BY_HAND[name]
    assert [anomaly.kind for anomaly in find_anomalies(history)] == [kind]


RING = 120


def ring(*closing: Append | Read) -> list[Observed]:
    """Each transaction overlooks an append of the next one, in a ring that the last one closes."""
    around = [t(f"t{n}", Append(n, "v"), Read(n + 1, ())) for n in range(RING)]
    return [*around, t("last", Append(RING, "v"), *closing)]


@pytest.mark.parametrize(
    ("history", "kind"),
    [
        # A ring of anti-dependencies, all of them.
        (ring(Read(0, ())), "G2"),
        # Each passes information on to the one before, and the second overlooks the first.
        (
            [
                t("t0", Append(0, "v")),
                t("t1", Append(1, "v"), Read(2, ["v"]), Read(0, ())),
                *(t(f"t{n}", Append(n, "v"), Read((n + 1) % RING, ["v"])) for n in range(2, RING)),
            ],
            "G-single",
        ),
        (
            [*ring(Read(0, ())), t("p", w("p", 1), w("q", 1)), t("q", r("p", 1), r("q"))],
            "G-single",
        ),
        (
            [
                *(t(f"w{n}", Append(n, "v"), Append(n + 1, "u")) for n in range(RING)),
                t("c", Append(RING, "v"), Append(0, "u")),
                *(t(f"r{n}", Read(n, ["v", "u"])) for n in range(RING + 1)),
            ],
            "G0",
        ),
    ],
    ids=["G2", "G-single", "G2 and G-single", "G0"],
)
def test_a_long_ring_is_told_as_what_it_is(history: list[Observed], kind: str) -> None:
    assert kind in kinds(find_anomalies(history))


def test_one_cycle_with_one_rw_is_found_among_many_with_more() -> None:
    """The single anti-dependency is the last of hundreds in its component."""
    history = ring(Read(0, ()))
    history += [t("p", Append("p", 1), Read(RING // 2, ["v"]), Append("q", 1), Read(0, ()))]
    history += [t("q", Read("p", [1]), Read("q", ()), Append("z", 1))]
    history += [t("back", Read("z", [1]), Read(1, ()))]
    assert "G-single" in kinds(find_anomalies(history))


def test_a_cycle_is_told_step_by_step() -> None:
    history, *_ = BY_HAND["a read that is split by a writer"]
    assert str(find_anomalies(history)[0]) == (
        "G-single: 'a' -> 'b': 'a' appended 1 to 'x', and 'b' read that;\n"
        "    'b' -> 'a': 'b' read no value in 'y', and 'a' appended 2 to it"
    )


@pytest.mark.parametrize(
    ("final", "kind"),
    [
        ({"x": (1,)}, "lost append"),
        ({}, "lost append"),
        ({"x": (1, 2, 3)}, "G1a"),
        ({"x": (1, 2, 2)}, "duplicate"),
        ({"x": (1, 2, 9)}, "unknown value"),
        ({"x": (2, 1)}, "version order"),
        ({"x": (1, 2), "y": (4,)}, "unknown value"),
    ],
)
def test_what_is_there_at_the_end_counts(final: Lists, kind: str) -> None:
    history = [t("a", w("x", 1)), t("b", r("x", 1), w("x", 2)), t("c", w("x", 3), committed=False)]
    assert find_anomalies(history) == find_anomalies(history, final={"x": (1, 2)}) == []
    assert kind in kinds(find_anomalies(history, final=final))


def test_what_rejected_transactions_read_is_nobodys_business_but_that_of_the_order() -> None:
    history = [
        Observed("a", [w("x", 1)], at=1),
        Observed("b", [r("x")], committed=False, at=2),
    ]
    assert find_anomalies(history) == []
    assert kinds(find_disorder(history)) == {"out of order"}


def test_values_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 is appended to 'x' by 'a' and by 'b'"):
        find_anomalies([t("a", w("x", 1)), t("b", w("x", 1))])


def test_a_long_history_needs_no_recursion() -> None:
    chain = [t(f"c{n}", Read(n, ["v"] if n else []), Append(n + 1, "v")) for n in range(6_000)]
    assert find_anomalies(chain) == []
    closed = [*chain[1:], t("c0", Read(6_000, ["v"]), Append(1, "v"))]
    assert kinds(find_anomalies(closed)) == {"G1c"}


def test_it_knows_nothing_of_what_it_judges() -> None:
    """It imports neither the engine nor any runner: it is only an algorithm on graphs."""
    for module in (isolation, cycles):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} | {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        own = {name for name in imported if name and name.startswith("emberflow")}
        assert own <= {"emberflow.guarantees.cycles"}


# --- Any history -----------------------------------------------------------------------------------


def kinds(found: list[Anomaly]) -> set[str]:
    return {anomaly.kind for anomaly in found}


@given(seeds)
@many
def test_a_serial_history_passes(seed: int) -> None:
    random = Random(seed)
    history, final = serial_history(random, transactions=30, keys=random.choice((1, 2, 5, 20)))
    assert find_anomalies(history) == []
    assert find_anomalies(history, final=final) == []
    assert find_disorder(history, final=final) == []


@given(seeds, st.booleans(), st.integers(0, 4))
@settings(max_examples=examples(500), deadline=None)
def test_it_says_what_trying_all_orders_says(seed: int, ends: bool, mistakes: int) -> None:
    """Some reads of a serial history are changed: is there still an order that explains it?"""
    random = Random(seed)
    history, final = serial_history(random, transactions=5, keys=2, operations=3)
    for _ in range(mistakes):
        history = another_read(random, history, final)
    known = final if ends else None
    found = find_anomalies(history, final=known)
    assert some_order_explains(history, known) == (not found), found


def another_read(random: Random, history: list[Observed], final: Lists) -> list[Observed]:
    """A read that sees an earlier version, a later one, or one that never existed."""
    reads = places(history, Read)
    if not reads:
        return history
    index, number = random.choice(reads)
    key, seen = history[index].operations[number]
    versions = final.get(key, ())
    if random.random() < 0.8:
        seen = versions[: random.randint(0, len(versions))]
    else:
        seen = tuple(random.sample(versions, random.randint(0, len(versions))))
    return with_operation(history, index, number, Read(key, seen))


def places(history: list[Observed], kind: type) -> list[tuple[int, int]]:
    return [
        (index, number)
        for index, transaction in enumerate(history)
        for number, one in enumerate(transaction.operations)
        if transaction.committed and isinstance(one, kind)
    ]


@given(seeds)
@settings(max_examples=examples(400), deadline=None)
def test_it_tells_the_kinds_that_trying_all_cycles_tells(seed: int) -> None:
    """Transactions read any version of a given order of each key, with their own appends behind."""
    random = Random(seed)
    history = [
        replace(each, committed=True)
        for each in serial_history(random, transactions=5, keys=2, operations=4)[0]
    ]
    orders: Lists = {}
    for key in ("k0", "k1"):
        in_order = random.sample(history, len(history))
        orders[key] = tuple(value for each in in_order for value in each.appended(key))
    history = [any_versions(random, each, orders) for each in history]
    found = kinds(find_anomalies(history))
    assume(not found - {"G0", "G1c", "G-single", "G2", "lost update", "G1b"})
    expected = cycle_kinds(history)
    assert found & {"G0", "G1c"} == expected & {"G0", "G1c"}
    assert bool(found & {"G-single", "G2", "lost update"}) == bool(expected & {"single", "several"})
    assert found & {"lost update"} or ("G-single" in found) == ("single" in expected)
    assert found & {"lost update"} or ("G2" in found) == ("several" in expected)


def any_versions(random: Random, transaction: Observed, orders: Lists) -> Observed:
    """The transaction with reads of any versions that fit what it appended itself."""
    done: list[Append | Read] = []
    for one in transaction.operations:
        if isinstance(one, Read):
            order = orders.get(one.key, ())
            own = [each.value for each in done if isinstance(each, Append) and each.key == one.key]
            begins = order.index(own[0]) if own else random.randint(0, len(order))
            fits = order[begins : begins + len(own)] == tuple(own)
            one = Read(one.key, order[: begins + len(own)] if fits else (*order[:begins], *own))
        done.append(one)
    return replace(transaction, operations=tuple(done))


# --- Unknown outcomes ------------------------------------------------------------------------------


def test_a_transaction_of_unknown_outcome_may_have_happened_or_not() -> None:
    unknown = Observed("a", [w("x", 1), w("y", 1)], committed=None)
    assert find_anomalies([unknown, t("b", r("x"))]) == []
    assert find_anomalies([unknown, t("b", r("x", 1))]) == []
    assert find_anomalies([unknown], final={}) == []
    assert find_anomalies([unknown], final={"x": (1,), "y": (1,)}) == []


def test_what_was_read_of_it_proves_that_all_of_it_happened() -> None:
    unknown = Observed("a", [w("x", 1), w("y", 1)], committed=None)
    assert kinds(find_anomalies([unknown, t("b", r("x", 1), r("y"))])) == {"G-single"}
    assert kinds(find_anomalies([unknown], final={"x": (1,)})) == {"lost append"}
    # What a rejected transaction read proves nothing.
    rejected = t("b", r("x", 1), committed=False)
    assert find_anomalies([unknown, rejected, t("c", r("x"), r("y"))], final={}) == []


def test_what_it_read_counts_if_it_happened() -> None:
    first = Observed("a", [w("x", 1)], committed=None)
    second = Observed("b", [r("x", 1), w("y", 2)], committed=None)
    assert find_anomalies([first, second, t("c", r("x"))], final={}) == []
    assert kinds(find_anomalies([first, second, t("c", r("y", 2), r("x"))])) == {"G-single"}


def test_the_order_of_unknown_outcomes_counts() -> None:
    unknown = Observed("a", [w("x", 1)], committed=None, at=1)
    seen, unseen = Observed("b", [r("x", 1)], at=2), Observed("c", [r("x")], at=3)
    assert find_disorder([unknown, seen]) == []
    assert find_disorder([unknown, unseen]) == []
    assert kinds(find_disorder([unknown, seen, unseen])) == {"out of order"}
    # The read of a rejected transaction has to match as well, so here it proves.
    rejected = Observed("b", [r("x", 1)], committed=False, at=2)
    assert find_disorder([unknown, rejected]) == []


@given(seeds, st.booleans(), st.integers(0, 3))
@settings(max_examples=examples(300), deadline=None)
def test_unknown_outcomes_are_judged_as_trying_all_of_them_would(
    seed: int, ends: bool, mistakes: int
) -> None:
    random = Random(seed)
    history, final = serial_history(random, transactions=5, keys=2, operations=3)
    history = [replace(each, committed=None) if random.random() < 0.4 else each for each in history]
    for _ in range(mistakes):
        history = another_read(random, history, final)
    known = final if ends else None
    found = find_anomalies(history, final=known)
    assert some_order_explains(history, known) == (not found), found


# --- One mistake in a big history ------------------------------------------------------------------

Corrupted = tuple[list[Observed], Lists]


def a_read_without_a_value(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    """Drops a value that is not the last, so that the list is no longer any version."""
    choices = [at for at in places(history, Read) if len(_seen(history, at)) > 1]
    assume(choices)
    at = random.choice(choices)
    seen = list(_seen(history, at))
    del seen[random.randrange(len(seen) - 1)]
    return _with_seen(history, at, seen), final


def a_read_in_another_order(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    choices = [at for at in places(history, Read) if len(_seen(history, at)) > 1]
    assume(choices)
    at = random.choice(choices)
    seen = list(_seen(history, at))
    one = random.randrange(len(seen) - 1)
    seen[one], seen[one + 1] = seen[one + 1], seen[one]
    return _with_seen(history, at, seen), final


def a_read_with_a_value_twice(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    choices = [at for at in places(history, Read) if _seen(history, at)]
    assume(choices)
    at = random.choice(choices)
    seen = list(_seen(history, at))
    seen.insert(random.randrange(len(seen)), random.choice(seen))
    return _with_seen(history, at, seen), final


def a_read_of_a_rejected_value(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    rejected = [
        one
        for transaction in history
        if not transaction.committed
        for one in transaction.operations
        if isinstance(one, Append)
    ]
    assume(rejected)
    appended = random.choice(rejected)
    choices = [
        at for at in places(history, Read) if history[at[0]].operations[at[1]].key == appended.key
    ]
    assume(choices)
    at = random.choice(choices)
    seen = list(_seen(history, at))
    seen.insert(random.randint(0, len(seen)), appended.value)
    return _with_seen(history, at, seen), final


def a_commit_that_was_a_rejection(
    random: Random, history: list[Observed], final: Lists
) -> Corrupted:
    """Its appends are there, but it is recorded as rejected."""
    choices = {index for index, _ in places(history, Append)}
    assume(choices)
    index = random.choice(sorted(choices))
    was = history[index]
    turned = Observed(was.name, was.operations, committed=False, at=was.at)
    return [turned if each is was else each for each in history], final


def a_rejection_that_was_a_commit(
    random: Random, history: list[Observed], final: Lists
) -> Corrupted:
    choices = [
        index
        for index, transaction in enumerate(history)
        if not transaction.committed
        and any(isinstance(one, Append) for one in transaction.operations)
    ]
    assume(choices)
    was = history[random.choice(choices)]
    turned = Observed(was.name, was.operations, committed=True, at=was.at)
    return [turned if each is was else each for each in history], final


def an_append_that_is_lost(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    assume(final)
    key = random.choice(sorted(final))
    values = list(final[key])
    del values[random.randrange(len(values))]
    return history, {**final, key: tuple(values)}


def a_transaction_told_twice(random: Random, history: list[Observed], final: Lists) -> Corrupted:
    return [*history, random.choice(history)], final


def _seen(history: list[Observed], at: tuple[int, int]) -> tuple[int, ...]:
    read = history[at[0]].operations[at[1]]
    assert isinstance(read, Read)
    return tuple(read.seen)  # type: ignore[arg-type]


def _with_seen(history: list[Observed], at: tuple[int, int], seen: list[int]) -> list[Observed]:
    return with_operation(history, *at, Read(history[at[0]].operations[at[1]].key, tuple(seen)))


MISTAKES: list[Callable[[Random, list[Observed], Lists], Corrupted]] = [
    a_read_without_a_value,
    a_read_in_another_order,
    a_read_with_a_value_twice,
    a_read_of_a_rejected_value,
    a_commit_that_was_a_rejection,
    a_rejection_that_was_a_commit,
    an_append_that_is_lost,
    a_transaction_told_twice,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
@given(seeds)
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
def test_one_mistake_is_found(
    mistake: Callable[[Random, list[Observed], Lists], Corrupted], seed: int
) -> None:
    random = Random(seed)
    history, final = serial_history(random, transactions=25, keys=random.choice((2, 5, 20)))
    corrupted, ends = mistake(random, history, final)
    assert find_anomalies(corrupted, final=ends)
    assert find_disorder(corrupted, final=ends)


@given(seeds)
@many
def test_a_stale_read_is_out_of_order_though_it_may_be_serializable(seed: int) -> None:
    random = Random(seed)
    history, final = serial_history(random, transactions=25, keys=3)
    choices = [at for at in places(history, Read) if _seen(history, at)]
    assume(choices)
    at = random.choice(choices)
    seen = list(_seen(history, at))
    stale = _with_seen(history, at, seen[: random.randrange(len(seen))])
    assert find_disorder(stale, final=final)
