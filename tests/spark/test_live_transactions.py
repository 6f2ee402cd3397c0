"""Transactions live on Spark: the same engine, so the same decisions and errors."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from tests.spark.test_live import live


def bank() -> ef.Flow:
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=0)
    history: ef.State[tuple[Any, ...]] = flow.state("history", default=())

    def not_negative(balance: int) -> bool:
        return balance >= 0

    with flow.front("deposits").transaction(name="deposit") as deposit:
        deposit.key_by(lambda d: d[0]).update(accounts, lambda b, d: b + d[1])
    with flow.front("transfers").transaction(name="transfer") as transfer:
        sides = transfer.flat_map(lambda t: [(t[0], -t[2]), (t[1], t[2])])
        keyed = sides.key_by(lambda side: side[0])
        balances = transfer.output(
            keyed.update(accounts, lambda b, s: b + s[1], check=not_negative)
        )
        keyed.update(history, lambda sides, side: (*sides, side)[-10:])
        transfer.require(lambda values: sum(values.of("accounts").values()) < 300, name="rich")
    transfer.committed.sink("done")
    transfer.rejected.sink("refused")
    balances.sink("balances")
    return flow


@pytest.mark.parametrize("workers", [1, 3])
def test_the_decisions_are_those_of_the_reference(spark: SparkSession, workers: int) -> None:
    draw = Random(workers)
    names = [f"account {number}" for number in range(8)]
    elements = {
        "deposits": [(draw.choice(names), draw.randint(0, 20)) for _ in range(300)],
        "transfers": [
            (draw.choice(names), draw.choice(names), draw.randint(0, 40)) for _ in range(300)
        ],
    }
    expected = ef.run(bank(), **elements)
    assert {check for _, check, _ in expected["refused"]} == {"bank.not_negative", "rich"}
    assert live(spark, bank(), workers, elements) == expected


def broken(where: str) -> ef.Flow:
    """One of its functions fails for the account 'c'."""

    def fails_at(place: str) -> bool:
        return place == where

    flow = ef.Flow("broken")
    accounts = flow.state("accounts", default=10)
    with flow.front("transfers").transaction() as tx:
        taken = tx.key_by(lambda t: {t[0]} if fails_at("key") and t[0] == "c" else t[0]).update(
            accounts,
            lambda b, t: b - (1 // 0 if fails_at("update") and t[0] == "c" else t[2]),
            check=lambda b: b > 0 or 1 // (0 if fails_at("check") else 1) > 9,
        )
        checked = taken.map(lambda pair: 1 // (0 if fails_at("map") and pair[0][0] == "c" else 1))
        given = tx.key_by(lambda t: t[1]).update(accounts, lambda b, t: b + t[2])
        tx.require(
            lambda values: not (fails_at("require") and ("accounts", "c") in values) or 1 // 0
        )
        after = [tx.output(checked), tx.output(given)]
    ef.merge(*after).sink("out")
    tx.rejected.sink("refused")
    return flow


@pytest.mark.parametrize("where", ["key", "update", "check", "map", "require"])
def test_a_function_that_fails_ends_the_query_with_the_reference_s_error(
    spark: SparkSession, where: str
) -> None:
    amount = 11 if where == "check" else 4
    transfers = [("a", "b", 3), ("b", "a", 5), ("c", "a", amount), ("a", "c", 1)]
    with pytest.raises(ef.StepError) as expected:
        ef.run(broken(where), transfers=transfers)
    assert expected.value.global_time == (2, 0)
    with pytest.raises(type(expected.value)) as found:
        live(spark, broken(where), 2, {"transfers": transfers})
    assert str(found.value) == str(expected.value)


def test_a_flow_that_cannot_be_is_refused_before_anything_starts(spark: SparkSession) -> None:
    reads = {"deposits": fronts.Iterable([]), "transfers": fronts.Iterable([])}

    def started(flow: ef.Flow, **options: str) -> None:
        writes = {name: sinks.Memory() for name in ("done", "refused", "balances")}
        builder = flow.live(spark).read(**reads).write(**writes)
        for name, value in options.items():
            builder.option(name, value)
        builder.start()

    unused = bank()
    unused.state("forgotten", default=0)
    with pytest.raises(ef.FlowError, match=r"state 'forgotten' .* is used in no transaction"):
        started(unused)
    left_open = bank()
    left_open.front("more").transaction(name="left open").__enter__()
    with pytest.raises(ef.FlowError, match=r"transaction 'left open' .* is never closed"):
        started(left_open)
    with pytest.raises(ef.InputError, match="has transactions, and their order is that of time"):
        started(bank(), ordering="arrival", guarantee="at-least-once")
