"""Histories of list-append transactions executed one after another, and a search over all orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from random import Random
from typing import Any

from emberflow.guarantees.isolation import Append, Observed, Read

Lists = dict[Any, tuple[Any, ...]]


def serial_history(
    random: Random, *, transactions: int, keys: int, operations: int = 4
) -> tuple[list[Observed], Lists]:
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
        history.append(Observed(f"t{at}", tuple(done), committed, at))
        if committed:
            lists = own
    random.shuffle(history)
    return history, lists


def executed(history: Iterable[Observed]) -> Lists | None:
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


def some_order_explains(history: Sequence[Observed], final: Lists | None) -> bool:
    """Whether some serial order explains the committed transactions, by trying all of them.

    Of those whose outcome is unknown, it tries all subsets.
    """
    committed = [transaction for transaction in history if transaction.committed]
    unknown = [transaction for transaction in history if transaction.committed is None]
    for count in range(len(unknown) + 1):
        for happened in combinations(unknown, count):
            for order in permutations([*committed, *happened]):
                lists = executed(order)
                if lists is not None and (final is None or lists == final):
                    return True
    return False


def cycle_kinds(history: Sequence[Observed]) -> set[str]:
    """The kinds of cycles of a history, by trying all of them.

    The lists of each key have to agree on an order, and all transactions to be committed. Each strong
    component counts once among ``single`` (a cycle with one rw) and ``several``.
    """
    orders: dict[Any, tuple[Any, ...]] = {}
    writers: dict[tuple[Any, Any], int] = {}
    for number, transaction in enumerate(history):
        for one in transaction.operations:
            if isinstance(one, Append):
                writers[one.key, one.value] = number
            elif len(one.seen) >= len(orders.get(one.key, ())):
                orders[one.key] = tuple(one.seen)
    edges: dict[tuple[int, int], str] = {}

    def edge(one: int, other: int, kind: str) -> None:
        if one != other:
            edges[one, other] = min(edges.get((one, other), kind), kind, key=_KINDS.index)

    def following(key: Any, seen: Sequence[Any]) -> list[Any]:
        """The next value that was read, or all that nobody read: their order is unknown."""
        order = orders.get(key, ())
        unread = [value for of, value in writers if of == key and value not in order]
        return [order[len(seen)]] if len(seen) < len(order) else unread

    for key, order in orders.items():
        for count, value in enumerate(order, start=1):
            for follower in following(key, order[:count]):
                edge(writers[key, value], writers[key, follower], "ww")
    for reader, transaction in enumerate(history):
        own: set[tuple[Any, Any]] = set()
        for one in transaction.operations:
            if isinstance(one, Append):
                own.add((one.key, one.value))
                continue
            for value in [value for value in one.seen if (one.key, value) not in own][-1:]:
                edge(writers[one.key, value], reader, "wr")
            for value in following(one.key, one.seen):
                edge(reader, writers[one.key, value], "rw")
    nodes = range(len(history))
    cycles = [
        [edges[step] for step in pairwise((*nodes, nodes[0]))]
        for count in range(2, len(history) + 1)
        for nodes in permutations(range(len(history)), count)
        if nodes[0] == min(nodes) and all(step in edges for step in pairwise((*nodes, nodes[0])))
    ]
    kinds = {"G0" for kinds in cycles if set(kinds) == {"ww"}}
    kinds |= {"G1c" for kinds in cycles if "wr" in kinds and "rw" not in kinds}
    reached = {one: _reached(edges, one) for one in nodes}
    for one in nodes:
        component = [other for other in reached[one] if one in reached[other]]
        plain = {step: kind for step, kind in edges.items() if kind != "rw"}
        inside = [step for step in edges if set(step) <= set(component) and edges[step] == "rw"]
        if inside:
            is_single = any(begin in _reached(plain, end) for begin, end in inside)
            kinds.add("single" if is_single else "several")
    return kinds


_KINDS = ["ww", "wr", "rw"]


def _reached(edges: Iterable[tuple[int, int]], start: int) -> set[int]:
    found = {start}
    while more := {other for one, other in edges if one in found} - found:
        found |= more
    return found


def with_operation(
    history: list[Observed], index: int, number: int, operation: Append | Read
) -> list[Observed]:
    """The same history with one operation of one transaction replaced."""
    changed = list(history[index].operations)
    changed[number] = operation
    return [
        replace(each, operations=tuple(changed)) if each is history[index] else each
        for each in history
    ]
