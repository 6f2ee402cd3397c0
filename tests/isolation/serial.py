"""Histories of list-append transactions executed one after another, and a search over all orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

from emberflow.guarantees.isolation import Append, Read, Transaction

Lists = dict[Any, tuple[Any, ...]]


def serial_history(
    random: Random, *, transactions: int, keys: int, operations: int = 4
) -> tuple[list[Transaction], Lists]:
    """Transactions executed in the order of ``at``, recorded in another order, and the final state."""
    lists: Lists = {}
    history = []
    value = 0
    for at in range(transactions):
        own = dict(lists)
        done: list[Append | Read] = []
        for _ in range(random.randint(1, operations)):
            key = f"k{random.randrange(keys)}"
            if random.random() < 0.5:
                done.append(Read(key, own.get(key, ())))
            else:
                value += 1
                own[key] = (*own.get(key, ()), value)
                done.append(Append(key, value))
        committed = random.random() < 0.8
        history.append(Transaction(f"t{at}", tuple(done), committed, at))
        if committed:
            lists = own
    random.shuffle(history)
    return history, lists


def executed(history: Iterable[Transaction]) -> Lists | None:
    """The state after executing all transactions; None if one of them read something else."""
    lists: Lists = {}
    for transaction in history:
        for one in transaction.operations:
            there = lists.get(one.key, ())
            if isinstance(one, Append):
                lists[one.key] = (*there, one.value)
            elif tuple(one.seen) != there:
                return None
    return lists


def some_order_explains(history: Sequence[Transaction], final: Lists | None) -> bool:
    """Whether some serial order explains the committed transactions, by trying all of them."""
    committed = [transaction for transaction in history if transaction.committed]
    for order in permutations(committed):
        lists = executed(order)
        if lists is not None and (final is None or lists == final):
            return True
    return False


def with_operation(
    history: list[Transaction], index: int, number: int, operation: Append | Read
) -> list[Transaction]:
    """The same history with one operation of one transaction replaced."""
    changed = list(history[index].operations)
    changed[number] = operation
    return [
        replace(each, operations=tuple(changed)) if each is history[index] else each
        for each in history
    ]
