"""The flows that are measured, their elements, and the limit: a plain loop over a dict.

A transfer is ``(number, source, target, amount)``. Every account begins with `OPENING`, the state's
default, so that 100,000 accounts need not be filled first.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import emberflow as ef

Transfer: TypeAlias = tuple[int, int, int, int]

OPENING = 100_000
AMOUNT_MAX = 10
#: More than any account has: a transfer of it violates the constraint.
TOO_MUCH = 10**12


def transfers(
    count: int, accounts: int, *, violating: float = 0.0, seed: int = 1
) -> list[Transfer]:
    """Transfers between two different accounts, uniform; a share of them violates the constraint."""
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
    """What the fast path is compared with: a plain fold."""
    flow = ef.Flow("plain withdrawals")
    keyed = flow.front("transfers").key_by(source_of)
    keyed.fold(
        initial=(OPENING, None),
        combine=lambda held, transfer: (withdrawn(held[0], transfer), transfer),
    ).map(lambda held: held[1]).sink("done")
    return flow


def separate_updates() -> ef.Flow:
    """The same two updates of each transfer without a transaction: two keyed folds."""
    flow = ef.Flow("separate updates")
    entries = flow.front("transfers").flat_map(
        lambda transfer: (
            (transfer[0], transfer[1], -transfer[3]),
            (transfer[0], transfer[2], transfer[3]),
        )
    )
    keyed = entries.key_by(lambda entry: entry[1])
    keyed.fold(
        initial=(0, OPENING), combine=lambda held, entry: (entry[0], held[1] + entry[2])
    ).sink("done")
    return flow


def plain_loop(given: Sequence[Transfer]) -> list[Any]:
    """The limit: one transfer at a time over a dict, in one process; it keeps its output."""
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


# Several states: an element is ``(number, key)``, and each state is accessed by another key derived
# from it.


def spread_elements(count: int, keys: int, *, seed: int = 1) -> list[tuple[int, int]]:
    random = Random(seed)
    return [(number, int(random.random() * keys)) for number in range(count)]


def several_states(states: int, keys: int, *, series: bool, separate: bool) -> ef.Flow:
    """An update of each state, in series or in parallel, in one transaction or in separate ones.

    Each element gives one output; in parallel and separate transactions, one per state.
    """
    kind = f"{'series' if series else 'parallel'} {'separate' if separate else 'one'}"
    flow = ef.Flow(f"{states} states, {kind}")
    made = [flow.state(f"state-{number}", default=0) for number in range(states)]
    source: Any = flow.front("elements")
    if separate:
        done = []
        for number, state in enumerate(made):
            with source.transaction(name=f"transaction-{number}") as tx:
                tx.key_by(_key_of(number, keys)).update(state, counted, check=not_negative)
            done.append(tx.committed)
            if series:
                source = tx.committed
        (done[-1] if series or states == 1 else ef.merge(*done)).sink("done")
        return flow
    with source.transaction(name="transaction") as tx:
        stream: Any = tx
        for number, state in enumerate(made):
            updated = stream.key_by(_key_of(number, keys)).update(
                state, counted, check=not_negative
            )
            if series and number < states - 1:
                stream = updated.map(lambda pair: pair[0])
    tx.committed.sink("done")
    return flow


def counted(value: int, element: tuple[int, int]) -> int:
    return value + 1


def _key_of(number: int, keys: int) -> Any:
    return lambda element: (element[1] * (2 * number + 1) + number) % keys
