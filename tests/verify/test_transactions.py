"""Functions of transactions are judged like all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import emberflow as ef

TRANSFERS = [("a", "b", 8), ("b", "a", 3), ("a", "a", 30), ("b", "a", 9)] * 3


def bank(**functions: Callable[..., Any]) -> ef.Flow:
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=10)
    take = functions.get("update", lambda balance, t: balance - t[2])
    with flow.front("transfers").transaction() as tx:
        keyed = tx.key_by(functions.get("key", lambda t: t[0]))
        keyed.update(accounts, take, check=functions.get("check", lambda balance: balance >= 0))
        tx.key_by(lambda t: t[1]).update(accounts, lambda balance, t: balance + t[2])
        tx.require(functions.get("require", lambda values: sum(values.values()) < 90))
    tx.committed.sink("done")
    return flow


def test_pure_ones_pass() -> None:
    verification = ef.verify(bank(), transfers=TRANSFERS, seeds=5)
    assert "is deterministic" in str(verification)


@pytest.mark.parametrize("role", ["update", "check", "key", "require"])
def test_the_one_that_is_not_is_named(role: str) -> None:
    calls: list[int] = []

    def impure(*arguments: Any) -> Any:
        calls.append(1)
        return len(calls) % 2

    with pytest.raises(ef.NondeterminismError) as found:
        ef.verify(bank(**{role: impure}), transfers=TRANSFERS, seeds=5)
    assert "impure" in found.value.function
