"""The flows that are measured, their elements, and the limit: a plain loop over a dict.

A transfer is ``(number, source, target, amount)``. Every account begins with `OPENING`, which is the
state's default, so that nobody has to fill 100,000 accounts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import emberflow as ef

Transfer: TypeAlias = tuple[int, int, int, int]

OPENING = 1_000
AMOUNT_MAX = 10
#: Nobody has that much: a transfer of it violates the constraint.
TOO_MUCH = 10**12


def transfers(
    count: int, accounts: int, *, violating: float = 0.0, seed: int = 1
) -> list[Transfer]:
    """Between two different accounts, uniform; some of them of more than anybody has."""
    random = Random(seed)
    choose, number_of = random.random, range(count)
    made: list[Transfer] = []
    for number in number_of:
        source = int(choose() * accounts)
        target = (source + 1 + int(choose() * (accounts - 1))) % accounts
        amount = TOO_MUCH if choose() < violating else 1 + int(choose() * AMOUNT_MAX)
        made.append((number, source, target, amount))
    return made


def source_of(transfer: Transfer) -> int:
    return transfer[1]


def target_of(transfer: Transfer) -> int:
    return transfer[2]


def withdrawn(balance: int, transfer: Transfer) -> int:
    return balance - transfer[3]


def deposited(balance: int, transfer: Transfer) -> int:
    return balance + transfer[3]


def not_negative(balance: int) -> bool:
    return balance >= 0


def bank() -> ef.Flow:
    """Two accounts change together, or neither does."""
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=OPENING)
    with flow.front("transfers").transaction(name="transfer") as tx:
        tx.key_by(source_of).update(accounts, withdrawn, check=not_negative)
        tx.key_by(target_of).update(accounts, deposited)
    tx.committed.sink("done")
    tx.rejected.sink("refused")
    return flow


def withdrawals() -> ef.Flow:
    """The single-key fast path: a transaction of one update."""
    flow = ef.Flow("withdrawals")
    accounts = flow.state("accounts", default=OPENING)
    with flow.front("transfers").transaction(name="withdrawal") as tx:
        tx.key_by(source_of).update(accounts, withdrawn, check=not_negative)
    tx.committed.sink("done")
    tx.rejected.sink("refused")
    return flow


def plain_withdrawals() -> ef.Flow:
    """What the fast path is held against: a plain fold of the same."""
    flow = ef.Flow("plain withdrawals")
    keyed = flow.front("transfers").key_by(source_of)
    keyed.fold(initial=OPENING, combine=withdrawn).sink("done")
    return flow


def separate_updates() -> ef.Flow:
    """The same two updates of each transfer without a transaction: two keyed folds of entries."""
    flow = ef.Flow("separate updates")
    entries = flow.front("transfers").flat_map(
        lambda transfer: ((transfer[1], -transfer[3]), (transfer[2], transfer[3]))
    )
    keyed = entries.key_by(lambda entry: entry[0])
    keyed.fold(initial=OPENING, combine=lambda balance, entry: balance + entry[1]).sink("done")
    return flow


def plain_loop(given: Sequence[Transfer]) -> list[Any]:
    """The limit: one transfer at a time over a dict, in one process, with its output kept."""
    accounts: dict[int, int] = {}
    output: list[Any] = []
    for transfer in given:
        _, source, target, amount = transfer
        left = accounts.get(source, OPENING) - amount
        if left >= 0:
            accounts[source] = left
            accounts[target] = accounts.get(target, OPENING) + amount
            output.append(transfer)
        else:
            output.append((transfer, "not_negative", left))
    return output
