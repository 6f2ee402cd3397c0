"""What transactions mean, by the reference, and the errors for those that cannot be built."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import emberflow as ef
from emberflow.graph.description import changed_functions, differences, steps_of
from emberflow.graph.drawing import dot, mermaid
from emberflow.graph.transactions import Values

Transfer = tuple[str, str, int]


def not_negative(balance: int) -> bool:
    return balance >= 0


def minus(balance: int, transfer: Transfer) -> int:
    return balance - transfer[2]


def plus(balance: int, transfer: Transfer) -> int:
    return balance + transfer[2]


def source(transfer: Transfer) -> str:
    return transfer[0]


def target(transfer: Transfer) -> str:
    return transfer[1]


def bank(**names: Any) -> tuple[ef.Flow, ef.State[int], ef.Transaction[Transfer]]:
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction(**names) as tx:
        tx.key_by(source).update(accounts, minus, check=not_negative)
        tx.key_by(target).update(accounts, plus)
    return flow, accounts, tx


def both(flow: ef.Flow, **elements: Any) -> dict[str, list[Any]]:
    """The output of the reference, which two simulated clusters must match."""
    outputs = ef.run(flow, **elements)
    for workers in (1, 3):
        assert ef.simulate(flow, seed=5, workers=workers, **elements).outputs == outputs
    return outputs


def test_all_of_it_or_nothing() -> None:
    flow, _, tx = bank()
    tx.committed.sink("done")
    tx.rejected.sink("refused")
    outputs = both(flow, transfers=[("a", "b", 8), ("a", "c", 8), ("c", "a", 10), ("b", "a", 18)])
    assert outputs["done"] == [("a", "b", 8), ("c", "a", 10), ("b", "a", 18)]
    assert outputs["refused"] == [
        ef.Rejected(("a", "c", 8), "not_negative", Values({("accounts", "a"): -6}))
    ]


def test_within_a_transaction_later_updates_see_earlier_ones() -> None:
    flow, _, tx = bank()
    tx.committed.sink("done")
    # A transfer to oneself: 10 - 10 + 10 is fine; 10 - 11 is refused although 10 - 11 + 11 would
    # do.
    assert both(flow, transfers=[("a", "a", 10), ("a", "a", 11)])["done"] == [("a", "a", 10)]


def test_updates_count_also_where_nobody_reads_the_outcome() -> None:
    """Then there is no closer that would apply them."""
    flow = ef.Flow("unread")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction(name="transfer") as tx:
        tx.key_by(source).update(accounts, minus)
        tx.key_by(target).update(accounts, plus)
    with flow.front("questions").transaction(name="question") as tx:
        balances = tx.output(tx.key_by(lambda name: name).read(accounts))
    balances.sink("balances")
    assert "close" not in {node.kind for node in flow.graph().nodes}
    transfers = [ef.At(1, ("a", "b", 3)), ef.At(3, ("b", "a", 1))]
    questions = [ef.At(2, "a"), ef.At(4, "b")]
    outputs = both(flow, transfers=transfers, questions=questions)
    assert outputs["balances"] == [("a", 7), ("b", 12)]


def test_reads_whose_outcome_nobody_reads_may_have_checks() -> None:
    """Such reads once sent votes to a missing closer, and the flow was refused."""
    flow = ef.Flow("unread")
    accounts = flow.state("accounts", default=10)
    numbers = flow.front("numbers")
    with numbers.transaction() as tx:
        tx.key_by(lambda n: n).read(accounts, check=not_negative)
        tx.key_by(lambda n: n + 1).read(accounts)
    numbers.sink("numbers")
    assert both(flow, numbers=[1]) == {"numbers": [1]}


def test_an_element_may_open_several_transactions_one_after_another() -> None:
    """Behind a flat_map they share a global time; their places order them."""
    flow = ef.Flow("parts")
    accounts = flow.state("accounts", default=10)
    parts = flow.front("orders").flat_map(lambda n: [("a", "b", n)] * 3)
    with parts.transaction() as tx:
        tx.key_by(source).update(accounts, minus, check=not_negative)
        after = tx.output(tx.key_by(target).update(accounts, plus))
    after.map(lambda pair: pair[1]).sink("after")
    tx.rejected.map(lambda rejected: rejected.values["accounts", "a"]).sink("refused")
    assert both(flow, orders=[4, 1]) == {"after": [14, 18, 19, 20], "refused": [-2, -1]}


def test_a_transaction_opened_by_another_comes_after_it_and_before_the_next() -> None:
    flow, accounts, first = bank()
    with first.committed.transaction() as second:
        # Pass the received amount on, if something is left.
        onward = second.map(lambda t: (t[1], "z", t[2])).key_by(source)
        onward.update(accounts, minus, check=lambda balance: balance > 5)
        received = second.output(second.key_by(lambda t: "z").update(accounts, plus))
    received.map(lambda pair: pair[1]).sink("z")
    ef.merge(
        first.rejected.map(lambda r: ("first", r.element)),
        second.rejected.map(lambda r: ("second", r.element)),
    ).sink("refused")
    outputs = both(flow, transfers=[("a", "b", 4), ("b", "a", 3), ("a", "z", 9), ("b", "a", 8)])
    assert outputs["z"] == [14, 17]
    assert outputs["refused"] == [
        ("first", ("a", "z", 9)),
        ("first", ("b", "a", 8)),
    ]


def test_keys_may_depend_on_what_was_read() -> None:
    flow = ef.Flow("links")
    links = flow.state("links", default="end")
    counts = flow.state("counts", default=0)
    with flow.front("linked").transaction(name="set") as tx:
        tx.key_by(lambda pair: pair[0]).update(links, lambda _, pair: pair[1])
    tx.committed.sink("set")
    with flow.front("visits").transaction(name="visit") as tx:
        at = tx.key_by(lambda name: name).read(links)
        visits = at.key_by(lambda pair: pair[1]).update(counts, lambda n, _: n + 1)
        tx.output(visits.map(lambda pair: (pair[0][1], pair[1]))).sink("visits")
    outputs = both(
        flow,
        linked=[ef.At(1, ("a", "x")), ef.At(4, ("a", "y"))],
        visits=[ef.At(time, "a") for time in (0, 2, 3, 5)],
    )
    assert outputs["visits"] == [("end", 1), ("x", 1), ("x", 2), ("y", 1)]


def test_a_constraint_over_several_states() -> None:
    flow = ef.Flow("limits")
    money, goods = flow.state("money", default=10), flow.state("goods", default=0)
    with flow.front("orders").transaction() as tx:
        tx.key_by(lambda o: o[0]).update(money, lambda m, o: m - o[1])
        tx.key_by(lambda o: o[0]).update(goods, lambda g, o: g + o[1])
        tx.require(lambda values: sum(values.of(goods).values()) < 9, name="room")
        tx.require(lambda values: min(values.of("money").values()) >= 0)
    tx.committed.sink("done")
    tx.rejected.map(lambda r: (r.check, dict(r.values))).sink("refused")
    outputs = both(flow, orders=[("a", 5), ("a", 6), ("b", 8), ("a", 4), ("b", -20)])
    assert outputs["done"] == [("a", 5), ("b", 8), ("b", -20)]
    assert outputs["refused"] == [
        ("room", {("money", "a"): -1, ("goods", "a"): 11}),
        ("room", {("money", "a"): 1, ("goods", "a"): 9}),
    ]


def test_nothing_goes_on_from_an_access_that_failed() -> None:
    """A step can rely on the check before it, so it does not raise."""
    flow = ef.Flow("roots")
    accounts = flow.state("accounts", default=0)
    seen = flow.state("seen", default=0)
    with flow.front("numbers").transaction() as tx:
        checked = tx.key_by(lambda n: 0).update(accounts, lambda a, n: a + n, check=not_negative)
        roots = checked.map(lambda pair: pair[1] ** 0.5 if pair[1] >= 0 else 1 // 0)
        tx.key_by(lambda n: 0).update(seen, lambda s, n: s + 1)
        tx.output(roots).sink("roots")
    assert both(flow, numbers=[4, -5, 5])["roots"] == [2.0, 3.0]


def test_a_transaction_that_touches_nothing_commits() -> None:
    flow = ef.Flow("some")
    totals = flow.state("totals", default=0)
    with flow.front("numbers").transaction() as tx:
        even = tx.filter(lambda n: n % 2 == 0).key_by(lambda n: 0)
        even.update(totals, lambda t, n: t + n, check=lambda t: t < 5)
        tx.require(lambda values: len(values) > 0)
    tx.committed.sink("done")
    assert both(flow, numbers=[1, 2, 4, 3])["done"] == [1, 2, 3]


def test_what_time_it_is() -> None:
    flow = ef.Flow("times")
    last = flow.state("last", default=-1)
    with flow.front("beats").transaction() as tx:
        timed = tx.with_time().key_by(lambda t: t.payload)
        timed.update(last, lambda _, t: t.time)
    tx.committed.sink("done")
    with flow.front("asked").transaction() as query:
        query.output(query.key_by(lambda name: name).read(last)).sink("answers")
    outputs = both(flow, beats=[ef.At(3, "a"), ef.At(9, "a")], asked=[ef.At(5, "a"), ef.At(9, "b")])
    assert outputs["answers"] == [("a", 3), ("b", -1)]


# --- What goes wrong while it runs -----------------------------------------------------------------


def told_alike(flow: ef.Flow, kind: type[ef.StepError], **elements: Any) -> ef.StepError:
    """The error that the reference raises, which two workers must raise as well."""
    with pytest.raises(kind) as by_reference:
        ef.run(flow, **elements)
    for seed in range(3):
        with pytest.raises(kind) as by_engine:
            ef.simulate(flow, seed=seed, workers=2, **elements)
        assert str(by_engine.value) == str(by_reference.value)
    return by_reference.value


@pytest.mark.parametrize("others", [0, 1])
def test_a_check_that_raises(others: int) -> None:
    def fragile(balance: int) -> bool:
        return 10 // (balance - 7) > 0

    flow = ef.Flow("fragile")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(source).update(accounts, minus, check=fragile, name="take")
        for _ in range(others):
            tx.key_by(target).update(accounts, plus)
    tx.committed.sink("done")
    error = told_alike(flow, ef.FunctionError, transfers=[("a", "b", 1), ("c", "d", 3)])
    assert error.global_time == (1, 0)
    assert error.payload == ("c", "d", 3)
    assert "transaction/take" in error.step
    assert error.function.startswith("check=")
    assert "where state 'accounts' held 10" in error.problem


def test_an_update_that_raises() -> None:
    flow, _, tx = bank()
    tx.committed.sink("done")
    error = told_alike(flow, ef.FunctionError, transfers=[("a", "b", 1), ("a", "b", "x")])
    assert error.function.startswith("update=minus")


def test_a_constraint_that_raises() -> None:
    flow = ef.Flow("constraint")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(source).update(accounts, minus)
        tx.key_by(target).update(accounts, plus)
        tx.require(lambda values: values["accounts", "a"] >= 0)
    tx.committed.sink("done")
    error = told_alike(flow, ef.FunctionError, transfers=[("a", "b", 1), ("b", "c", 1)])
    assert error.function.startswith("require=")
    assert error.payload == ("b", "c", 1)
    assert "where the values were {('accounts', 'b'): 10, ('accounts', 'c'): 11}" in error.problem


def test_speculation_may_show_a_constraint_a_part_of_the_values() -> None:
    """The constraint raises then, but the error is taken back like everything that never happened."""
    flow = ef.Flow("constraint")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(source).update(accounts, minus)
        tx.key_by(target).update(accounts, plus)
        tx.require(lambda values: values["accounts", "a"] + values["accounts", "b"] == 20)
    tx.committed.sink("done")
    transfers = [("a", "b", 3), ("b", "a", 4)] * 10
    for seed in range(10):
        result = ef.simulate(flow, transfers=transfers, seed=seed, workers=4)
        assert result.outputs["done"] == transfers


def test_a_key_that_cannot_be_hashed() -> None:
    flow = ef.Flow("lists")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(lambda t: [t[0]]).update(accounts, minus)
        tx.key_by(target).update(accounts, plus)
    tx.committed.sink("done")
    error = told_alike(flow, ef.UnstableKeyError, transfers=[("a", "b", 1)])
    assert "transaction/update" in error.step


def test_a_key_function_that_raises() -> None:
    flow = ef.Flow("keys")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(lambda t: t[5]).update(accounts, minus)
    tx.committed.sink("done")
    told_alike(flow, ef.FunctionError, transfers=[("a", "b", 1)])


@pytest.mark.parametrize("others", [0, 1])
def test_a_map_that_raises_inside(others: int) -> None:
    flow = ef.Flow("fragile")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        halves = tx.map(lambda t: (*t[:2], t[2] + 1)).map(lambda t: (*t[:2], 12 // t[2]))
        halves.key_by(source).update(accounts, minus)
        for _ in range(others):
            tx.key_by(target).update(accounts, plus)
    tx.committed.sink("done")
    error = told_alike(flow, ef.FunctionError, transfers=[("a", "b", 1), ("a", "b", -1)])
    assert error.payload == ("a", "b", 0)


@pytest.mark.parametrize("others", [0, 1])
def test_a_map_that_schedules_inside(others: int) -> None:
    flow = ef.Flow("later")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        later: Any = tx.map(lambda t: ef.At(99, t))
        later.key_by(source).update(accounts, minus)
        for _ in range(others):
            tx.key_by(target).update(accounts, plus)
    tx.committed.sink("done")
    error = told_alike(flow, ef.OutputError, transfers=[("a", "b", 1)])
    assert "not within a transaction" in str(error)


def test_a_value_that_is_scheduled() -> None:
    flow = ef.Flow("later")
    accounts: ef.State[Any] = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        tx.key_by(source).update(accounts, lambda b, t: ef.At(99, b))
    tx.committed.sink("done")
    error = told_alike(flow, ef.OutputError, transfers=[("a", "b", 1)])
    assert "cannot be the value of a state" in str(error)


# --- Diverted errors: see simulation/test_diverted_transactions.py too ------------------------------


def diverting(flow: ef.Flow, **elements: Any) -> dict[str, list[Any]]:
    """The output of the reference, which simulated clusters must match, with crashes too."""
    outputs = ef.run(flow, on_error="divert", **elements)
    for workers, crashes in ((1, 0), (3, 0), (2, 2)):
        result = ef.simulate(
            flow, seed=5, workers=workers, crashes=crashes, on_error="divert", **elements
        )
        assert result.outputs == outputs
    return outputs


def inverse(transfer: Transfer) -> Transfer:
    """Raises for an amount of 0."""
    return (*transfer[:2], 12 // transfer[2])


def raising_map(tx: Any, accounts: Any) -> None:
    tx.map(inverse).key_by(target).update(accounts, plus)


def raising_filter(tx: Any, accounts: Any) -> None:
    tx.filter(inverse).key_by(target).update(accounts, plus)


def raising_flat_map(tx: Any, accounts: Any) -> None:
    """Raises when it has given something already."""
    tx.flat_map(lambda t: (part for part in [t, inverse(t)])).key_by(target).update(accounts, plus)


def raising_key(tx: Any, accounts: Any) -> None:
    tx.key_by(lambda t: inverse(t)[1]).update(accounts, plus)


def raising_update(tx: Any, accounts: Any) -> None:
    tx.key_by(target).update(accounts, lambda balance, t: balance + inverse(t)[2])


def raising_check(tx: Any, accounts: Any) -> None:
    tx.key_by(target).update(accounts, plus, check=lambda balance, t: inverse(t))


def raising_check_of_a_read(tx: Any, accounts: Any) -> None:
    tx.key_by(target).read(accounts, check=lambda balance, t: inverse(t))


def raising_before_a_read(tx: Any, accounts: Any) -> None:
    """The read cannot fail, and nobody needs its value."""
    tx.map(inverse).key_by(target).read(accounts)


def raising_behind_a_read(tx: Any, accounts: Any) -> None:
    read = tx.key_by(target).read(accounts)
    read.map(lambda pair: inverse(pair[0])).key_by(source).update(accounts, plus)


def raising_constraint(tx: Any, accounts: Any) -> None:
    tx.key_by(target).update(accounts, lambda balance, t: t[2])
    tx.require(lambda values: 12 // values["accounts", "b"])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "raising",
    [
        raising_map,
        raising_filter,
        raising_flat_map,
        raising_key,
        raising_update,
        raising_check,
        raising_check_of_a_read,
        raising_before_a_read,
        raising_behind_a_read,
        raising_constraint,
    ],
)
def test_a_function_that_raises_undoes_all_of_its_transaction(raising: Any, is_first: bool) -> None:
    """Nothing is applied, nothing leaves but the record, and the next transaction goes on."""
    flow = ef.Flow("undone")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        if is_first:
            raising(tx, accounts)
        taken = tx.key_by(source).update(accounts, minus)
        left = tx.output(taken.map(lambda pair: pair[1]))
        if not is_first:
            raising(tx, accounts)
    tx.committed.sink("done")
    tx.rejected.sink("refused")
    left.sink("left")
    with flow.front("asked").transaction() as query:
        query.output(query.key_by(lambda name: name).read(accounts)).sink("balances")
    transfers = [ef.At(0, ("a", "b", 1)), ef.At(2, ("a", "b", 0)), ef.At(3, ("a", "b", 3))]
    asked = [ef.At(time, name) for time, name in ((1, "a"), (4, "a"), (5, "b"))]
    outputs = diverting(flow, transfers=transfers, asked=asked)
    assert outputs["done"] == [("a", "b", 1), ("a", "b", 3)]
    assert outputs["refused"] == []
    assert len(outputs["left"]) == 2
    (record,) = outputs["errors"]
    assert (record.time, record.front) == (2, 0)
    assert "raised ZeroDivisionError" in record.problem
    without = diverting(flow, transfers=[transfers[0], transfers[2]], asked=asked)
    assert without == {**outputs, "errors": []}


@pytest.mark.parametrize("kind", ["update", "read"])
def test_a_function_behind_the_only_access_undoes_it(kind: str) -> None:
    """Without diverting, such an access decides alone, and what is behind it comes after the commit."""
    flow = ef.Flow("behind")
    accounts = flow.state("accounts", default=3)
    with flow.front("numbers").transaction() as tx:
        keyed = tx.map(lambda n: n).key_by(lambda n: 0)
        done = (
            keyed.update(accounts, lambda b, n: b - n) if kind == "update" else keyed.read(accounts)
        )
        ratio = tx.output(done.map(lambda pair: 12 // (pair[1] - pair[0])))
    ratio.sink("ratios")
    tx.committed.sink("done")
    outputs = diverting(flow, numbers=[1, 3, 2] if kind == "read" else [1, 1, -1])
    assert outputs["done"] == ([1, 2] if kind == "read" else [1, -1])
    assert outputs["ratios"] == ([6, 12] if kind == "read" else [12, 3])
    assert [record.time for record in outputs["errors"]] == [1]


def test_an_access_that_decides_alone_does_so_where_errors_are_diverted() -> None:
    flow = ef.Flow("alone")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        taken = tx.map(inverse).key_by(source).update(accounts, minus, check=not_negative)
        tx.output(taken).sink("taken")
    tx.committed.sink("done")
    tx.rejected.map(lambda rejected: rejected.element).sink("refused")
    graph = flow.graph(on_error="divert")
    assert "close" not in {node.kind for node in graph.nodes}
    transfers = [("a", "b", 2), ("a", "b", 0), ("a", "b", 1), ("a", "b", "x"), ("a", "b", 6)]
    outputs = diverting(flow, transfers=transfers)
    assert outputs["taken"] == [(("a", "b", 6), 4), (("a", "b", 2), 2)]
    assert outputs["done"] == [("a", "b", 2), ("a", "b", 6)]
    assert outputs["refused"] == [("a", "b", 1)]
    assert [record.payload for record in outputs["errors"]] == [("a", "b", 0), ("a", "b", "x")]


def test_a_transaction_has_one_record_of_the_first_error_in_order() -> None:
    """However many of its functions raise, and whatever checks say of it."""
    flow = ef.Flow("several")
    accounts = flow.state("accounts", default=0)

    def positive(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return n

    with flow.front("numbers").transaction() as tx:
        tx.key_by(lambda ns: "first").update(accounts, lambda b, ns: b - 1, check=not_negative)
        parts = tx.flat_map(lambda ns: ns).map(positive)
        parts.key_by(lambda n: 10 // n).update(accounts, lambda b, n: b + n)
        tx.map(lambda ns: positive(ns[-1])).key_by(lambda n: n).read(accounts)
    tx.committed.sink("done")
    tx.rejected.map(lambda rejected: rejected.element).sink("refused")
    outputs = diverting(flow, numbers=[[5, 0, -1, -2], [5, -3, 0, -4], [5, 6], [5, -6]])
    assert outputs["done"] == []
    assert outputs["refused"] == [[5, 6]]
    assert [(record.time, record.payload) for record in outputs["errors"]] == [
        (0, 0),
        (1, -3),
        (3, -6),
    ]


def test_errors_of_one_element_are_in_the_order_of_its_transactions() -> None:
    """Among those outside of transactions, and behind what a transaction let out."""
    flow = ef.Flow("order")
    accounts = flow.state("accounts", default=0)
    parts = flow.front("numbers").flat_map(lambda n: range(n, n + 4))
    with parts.transaction() as tx:
        tx.key_by(lambda n: 0).update(accounts, lambda b, n: b + n)
        tx.key_by(lambda n: 12 // (n % 3)).update(accounts, lambda b, n: b + n)
    tx.committed.map(lambda n: 12 // (n % 2)).sink("out")
    outputs = diverting(flow, numbers=[1, 2])
    assert [record.payload for record in outputs["errors"]] == [2, 3, 4, 2, 3, 4]
    assert outputs["out"] == [12, 12]


def test_a_transaction_that_only_reads_is_told_of_though_nobody_reads_it() -> None:
    flow = ef.Flow("unread")
    accounts = flow.state("accounts", default=10)
    numbers = flow.front("numbers")
    with numbers.transaction() as tx:
        tx.key_by(lambda n: 12 // n).read(accounts)
        tx.map(lambda n: 12 // n).key_by(lambda n: n).read(accounts)
    numbers.sink("numbers")
    outputs = diverting(flow, numbers=[1, 0, 2])
    assert outputs["numbers"] == [1, 0, 2]
    assert [record.time for record in outputs["errors"]] == [1]


def test_a_cut_fits_a_run_that_diverts_errors_and_one_that_does_not() -> None:
    """All that a cut knows of the flow is the same: its steps, and the fingerprint of all of them."""
    flow = ef.Flow("both")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction(name="plain") as tx:
        tx.key_by(source).update(accounts, minus)
        tx.key_by(target).update(accounts, plus)
    with flow.front("more").transaction(name="alone") as tx:
        taken = tx.key_by(source).update(accounts, minus)
        tx.output(taken.map(lambda pair: pair[1])).sink("left")
    ef.merge(tx.committed, tx.committed).sink("done")
    fails, diverts = flow.graph(), flow.graph(on_error="divert")
    kinds = [[node.kind for node in graph.nodes] for graph in (fails, diverts)]
    assert [own.count("close") for own in kinds] == [0, 2]
    assert fails.fingerprint == diverts.fingerprint
    assert steps_of(fails) == steps_of(diverts)
    assert differences(flow.name, steps_of(fails), diverts) == []
    assert changed_functions(steps_of(fails), diverts) == []


def test_versions_of_a_flow_divert_errors_of_transactions() -> None:
    def version(factor: int) -> ef.Flow:
        flow = ef.Flow("bank")
        accounts = flow.state("accounts", default=10)
        with flow.front("transfers").transaction() as tx:
            tx.key_by(source).update(accounts, minus)
            tx.map(inverse).key_by(target).update(accounts, lambda b, t: b + factor * t[2])
        with flow.front("asked").transaction() as query:
            query.output(query.key_by(lambda name: name).read(accounts)).sink("balances")
        return flow

    versions = ef.Versions(version(1), (3, version(100)))
    elements: dict[str, Any] = {
        "transfers": [("a", "b", 1), ("a", "b", 0), ("a", "b", 2), ("b", "a", 0), ("b", "a", 6)],
        "asked": [ef.At(9, "a"), ef.At(10, "b")],
    }
    expected = ef.run(versions, on_error="divert", **elements)
    assert expected["balances"] == [("a", 10 - 1 - 2 + 200), ("b", 10 + 12 + 6 - 6)]
    assert [record.time for record in expected["errors"]] == [1, 3]
    for seed in range(4):
        result = ef.simulate(versions, seed=seed, crashes=2, on_error="divert", **elements)
        assert result.outputs == expected


# --- What goes wrong while it is built -------------------------------------------------------------


def test_a_state_used_in_no_transaction() -> None:
    flow, _, tx = bank()
    tx.committed.sink("done")
    flow.state("forgotten", default=0)
    with pytest.raises(ef.FlowError, match=r"state 'forgotten' .* is used in no transaction"):
        flow.graph()


def test_a_state_of_another_flow() -> None:
    _, accounts, _ = bank()
    other = ef.Flow("other")
    with (
        pytest.raises(ef.FlowError, match=r"'accounts' of flow 'bank' into flow 'other'"),
        other.front("transfers").transaction() as tx,
    ):
        tx.key_by(source).update(accounts, minus)


def test_two_flows_with_a_state_of_one_name_share_nothing() -> None:
    first, _, one = bank()
    second, _, two = bank()
    one.committed.sink("done")
    two.committed.sink("done")
    transfers = [("a", "b", 10)]
    assert ef.run(first, transfers=transfers) == ef.run(second, transfers=transfers)


def test_two_states_of_one_name() -> None:
    flow, _, _ = bank()
    with pytest.raises(ef.FlowError, match="have the name 'accounts'"):
        flow.state("accounts", default=0)


def test_a_transaction_that_is_never_entered() -> None:
    flow, _, tx = bank()
    tx.committed.sink("done")
    flow.front("more").transaction(name="lost")
    with pytest.raises(ef.FlowError, match=r"transaction 'lost' .* is never closed"):
        flow.graph()


def test_a_transaction_that_is_never_closed() -> None:
    """Each runner reports it before it takes an element."""
    flow, accounts, tx = bank()
    tx.committed.sink("done")
    left_open = flow.front("more").transaction(name="left open").__enter__()
    left_open.key_by(source).update(accounts, minus)
    for run in (ef.run, ef.simulate):
        with pytest.raises(ef.FlowError, match=r"'left open' \(.*py:\d+\) is never closed.*Write"):
            run(flow, transfers=[], more=[])
    left_open.__exit__(None, None, None)
    flow.graph()


def test_a_transaction_is_entered_only_once() -> None:
    _, _, tx = bank()
    with pytest.raises(ef.FlowError, match=r"is opened again at .*py:\d+"), tx:
        pass


def test_transactions_do_not_nest() -> None:
    flow = ef.Flow("nested")
    with (
        pytest.raises(AttributeError, match=r"do not nest, at .*py:\d+.*tx\.committed"),
        flow.front("in").transaction() as tx,
    ):
        tx.transaction()  # type: ignore[attr-defined]


def test_a_transaction_left_by_an_exception() -> None:
    flow, accounts, tx = bank()
    tx.committed.sink("done")
    with (
        pytest.raises(ZeroDivisionError),
        flow.front("more").transaction(name="broken") as broken,
    ):
        broken.key_by(source).update(accounts, minus, name=f"half {1 // 0}")
    with pytest.raises(ef.FlowError, match=r"transaction 'broken' .* was left by an exception"):
        flow.graph()


def test_a_step_on_a_closed_transaction() -> None:
    flow, accounts, tx = bank()
    with pytest.raises(ef.FlowError, match=r"is closed, and map\(\) is called on it at .*py:\d+"):
        tx.map(lambda t: t)
    with flow.front("more").transaction() as other:
        kept = other.key_by(source)
        kept.update(accounts, minus)
    with pytest.raises(ef.FlowError, match=r"is closed, and update\(\) is called"):
        kept.update(accounts, minus)
    with pytest.raises(ef.FlowError, match=r"is closed, and require\(\) is called"):
        other.require(lambda values: True)


def test_a_step_on_a_transaction_that_is_not_open_yet() -> None:
    flow, _, _ = bank()
    made = flow.front("more").transaction()
    with pytest.raises(ef.FlowError, match="is not open at"):
        made.map(lambda t: t)


def test_a_transaction_that_touches_no_state() -> None:
    flow = ef.Flow("nothing")
    with pytest.raises(ef.FlowError, match="touches no state"), flow.front("in").transaction():
        pass


@pytest.mark.parametrize("method", ["update", "read"])
def test_an_access_outside_of_a_transaction(method: str) -> None:
    flow, accounts, _ = bank()
    with pytest.raises(AttributeError, match="works within a transaction"):
        getattr(flow.front("more").key_by(source), method)(accounts)
    with pytest.raises(AttributeError, match="works within a transaction"):
        getattr(flow.front("some"), method)


def test_an_access_without_a_key() -> None:
    flow = ef.Flow("keyless")
    with (
        pytest.raises(AttributeError, match=r"update\(\) works on a keyed stream"),
        flow.front("in").transaction() as tx,
    ):
        tx.map(lambda t: t).update  # type: ignore[attr-defined]  # noqa: B018
    with (
        pytest.raises(AttributeError, match=r"read\(\) works on a keyed stream: call tx.key_by"),
        flow.front("more").transaction() as other,
    ):
        other.read  # type: ignore[attr-defined]  # noqa: B018


def test_what_belongs_outside() -> None:
    flow, accounts, _ = bank()
    with (
        pytest.raises(AttributeError, match=r"sink\(\) is not for streams within a transaction"),
        flow.front("more").transaction() as tx,
    ):
        tx.key_by(source).read(accounts).sink("here")  # type: ignore[attr-defined]


def test_an_output_that_nobody_reads() -> None:
    flow, accounts, tx = bank()
    tx.committed.sink("done")
    with flow.front("more").transaction() as other:
        other.output(other.key_by(source).read(accounts), name="lost")
    with pytest.raises(ef.FlowError, match=r"lost' .* goes nowhere"):
        flow.graph()


def test_an_output_of_another_transaction() -> None:
    flow, accounts, _ = bank()
    with flow.front("more").transaction() as one:
        read = one.key_by(source).read(accounts)
    with (
        pytest.raises(ef.FlowError, match="takes a stream of this transaction"),
        flow.front("other").transaction() as two,
    ):
        two.output(read)


def test_a_keyed_stream_opens_none() -> None:
    flow = ef.Flow("keyed")
    with pytest.raises(ef.FlowError, match="takes a stream without a key"):
        flow.front("in").key_by(source).transaction()


class _Limit:
    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, balance: int, change: tuple[str, int]) -> bool:
        return balance <= self.most * abs(change[1])


@pytest.mark.parametrize(
    ("check", "committed"),
    [
        (lambda balance: balance <= 5, [4, 1]),
        (lambda balance, change: balance <= change[1] + 4, [4, 2]),
        (lambda balance, change=("", 0): balance <= change[1] + 5, [4, 1]),  # as if it took one
        (lambda *arguments: len(arguments) == 1, [4, 2, 1, 3]),
        (_Limit(3), [4, 2, 3]),
        (functools.partial(lambda most, balance, change: balance <= most, 5), [4, 1]),
        (bool, [4, 2, 1, 3]),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
def test_a_check_of_two_arguments_gets_the_payload(
    check: Any, committed: list[int], others: int
) -> None:
    """Alone in its transaction, or with another access."""
    flow = ef.Flow("changes")
    accounts = flow.state("accounts", default=0)
    counts = flow.state("counts", default=0) if others else None
    with flow.front("changes").transaction() as tx:
        tx.key_by(lambda c: c[0]).update(accounts, lambda b, c: b + c[1], check=check)
        if counts is not None:
            tx.key_by(lambda c: c[0]).update(counts, lambda n, c: n + 1)
    tx.committed.map(lambda c: c[1]).sink("committed")
    changes = [("ada", change) for change in (4, 2, 1, 3)]
    assert ef.run(flow, changes=changes) == {"committed": committed}
    for seed in range(3):
        found = ef.simulate(flow, seed=seed, workers=2, changes=changes)
        assert found.outputs == {"committed": committed}


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        (lambda: True, "which takes ()"),
        (lambda balance, change, more: True, "which takes (balance, change, more)"),
        (lambda balance, *, least: True, "which takes (balance, *, least)"),
    ],
)
def test_a_check_of_another_number_of_arguments_is_refused(check: Any, complaint: str) -> None:
    flow, accounts, _ = bank()
    with flow.front("more").transaction() as tx:
        with pytest.raises(ef.FlowError) as raised:
            tx.key_by(source).update(accounts, minus, check=check)
        tx.key_by(source).read(accounts)
    assert "a function of the new value, or of the new value and the payload" in str(raised.value)
    assert complaint in str(raised.value)
    assert "test_transactions.py" in str(raised.value)


def test_not_a_state_and_not_a_check() -> None:
    flow, accounts, _ = bank()
    with flow.front("more").transaction() as tx:
        with pytest.raises(ef.FlowError, match="takes a state"):
            tx.key_by(source).read("accounts")  # type: ignore[arg-type]
        with pytest.raises(ef.FlowError, match="takes check= as a function"):
            tx.key_by(source).update(accounts, minus, check=5)  # type: ignore[arg-type]
        with pytest.raises(ef.FlowError, match="takes a function"):
            tx.key_by(source).update(accounts, 5)  # type: ignore[arg-type]
        tx.key_by(source).read(accounts)


def test_a_loop_through_a_transaction_that_never_ends() -> None:
    flow = ef.Flow("round")
    accounts = flow.state("accounts", default=0)
    again = flow.loop()
    with ef.merge(flow.front("in"), again).transaction() as tx:
        tx.key_by(source).update(accounts, plus, check=lambda balance: balance < 5)
        tx.key_by(target).update(accounts, plus)
    again.close(tx.committed)
    tx.rejected.sink("done")
    with pytest.raises(ef.FlowError, match="a cycle has no map"):
        flow.graph()


def test_a_loop_that_tries_again() -> None:
    """A rejected transfer is tried again with less until it succeeds."""
    flow = ef.Flow("less")
    accounts = flow.state("accounts", default=10)
    again = flow.loop()
    with ef.merge(flow.front("in"), again).transaction() as tx:
        tx.key_by(source).update(accounts, minus, check=not_negative)
        tx.key_by(target).update(accounts, plus)
    tx.committed.sink("done")
    again.close(tx.rejected.map(lambda r: (*r.element[:2], r.element[2] // 2)))
    outputs = both(flow, **{"in": [("a", "b", 9), ("a", "b", 9), ("b", "a", 99)]})
    assert outputs["done"] == [("a", "b", 9), ("a", "b", 1), ("b", "a", 12)]


def test_a_loop_that_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engine.worker.regions", "runners.reference"):
        monkeypatch.setattr(f"emberflow.{module}.CHILD_IDS_MAX", 200)
    flow = ef.Flow("for ever")
    accounts = flow.state("accounts", default=10)
    again = flow.loop()
    with ef.merge(flow.front("in"), again).transaction() as tx:
        tx.key_by(source).update(accounts, minus, check=not_negative)
        tx.key_by(target).update(accounts, plus)
    again.close(tx.committed.map(lambda t: (t[1], t[0], t[2])))
    tx.rejected.sink("done")
    told_alike(flow, ef.EndlessLoopError, **{"in": [("a", "b", 1)]})


def test_a_drawing_shows_states_checks_and_the_way_of_votes() -> None:
    flow, _, tx = bank(name="transfer")
    tx.committed.sink("done")
    text = flow.explain()
    for line in (
        "state accounts",
        "<~ accounts/accesses by the key (cycle)",
        "update: state accounts, key=source (tests/test_transactions.py",
        "check=not_negative (tests/test_transactions.py",
        "<- transfer/votes by the transaction",
    ):
        assert line in text
    assert 'state_accounts[("state accounts")]:::state' in mermaid(flow.graph())
    assert "shape=cylinder" in dot(flow.graph())


def test_graphs_that_differ_have_different_fingerprints() -> None:
    def made(check: Any, state: str = "accounts") -> int:
        flow = ef.Flow("bank")
        accounts = flow.state(state, default=10)
        with flow.front("transfers").transaction() as tx:
            tx.key_by(source).update(accounts, minus, check=check)
        tx.committed.sink("done")
        return flow.graph().fingerprint

    assert made(not_negative) == made(not_negative)
    assert len({made(not_negative), made(None), made(not_negative, "others")}) == 3
