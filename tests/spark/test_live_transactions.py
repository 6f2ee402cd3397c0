"""Transactions live on Spark: the same engine, so the same decisions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
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
