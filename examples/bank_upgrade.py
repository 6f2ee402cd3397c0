"""A running bank makes money out of nothing; a new version of its flow takes over without losing any.

Of each transfer the bank keeps a fee of one hundredth. The first version takes the fee from nobody: the
target gets the whole amount, and the sum of all balances grows. The second version takes it from the
target.

Before it goes live, `ef.compare` runs both versions on the same orders and tells exactly what changes:
the balances of who gets something, and what follows from them. Then the query that runs goes over to the
new version while orders come in. Balances are carried, and each order goes through one of the versions,
once. Some orders went through the old one, so some money was made; from the upgrade on there is no more
of it.

    $ python examples/bank_upgrade.py
    compared on 4 orders
      balances: 5 the same, 7 only old, 7 only new
        - 0: ('ada', 1000)
        + 0: ('ada', 990)
        - 1: ('ada', 700)
        - 1: ('bob', 300)
        + 1: ('ada', 690)
        + 1: ('bob', 297)
        - 2: ('bob', 100)
        - 2: ('cy', 200)
        + 2: ('bob', 97)
        + 2: ('cy', 198)
        ...
    what becomes of the state
      carried: balances
    live
      money that the old version made: ...
      money that the new version made: 0
"""

import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.session import spark_session

BANK = "the bank"


class Order(NamedTuple):
    source: str
    target: str
    amount: int


class Entry(NamedTuple):
    """What an order does to one account."""

    account: str
    change: int


def with_a_gift(order: Order) -> list[Entry]:
    """The bank's fee comes from nowhere.

    >>> sum(entry.change for entry in with_a_gift(Order("ada", "bob", 300)))
    3
    """
    fee = order.amount // 100
    return [
        Entry(order.source, -order.amount),
        Entry(order.target, order.amount),
        Entry(BANK, fee),
    ]


def with_a_fee(order: Order) -> list[Entry]:
    """The target pays it.

    >>> sum(entry.change for entry in with_a_fee(Order("ada", "bob", 300)))
    0
    """
    fee = order.amount // 100
    return [
        Entry(order.source, -order.amount),
        Entry(order.target, order.amount - fee),
        Entry(BANK, fee),
    ]


def bank(entries: Callable[[Order], list[Entry]]) -> ef.Flow:
    flow = ef.Flow("bank")
    accounts = flow.front("orders").flat_map(entries).key_by(lambda entry: entry.account)
    accounts.sum(of=lambda entry: entry.change, name="balances").sink("balances")
    return flow


ORDERS = [
    Order("safe", "ada", 1_000),
    Order("ada", "bob", 300),
    Order("bob", "cy", 200),
    Order("cy", "ada", 150),
]


def coming_in() -> Iterator[Order]:
    names = itertools.cycle(["ada", "bob", "cy"])
    targets = itertools.cycle(["bob", "cy", "ada", "dan"])
    return (Order(source, target, 100) for source, target in zip(names, targets, strict=False))


def live(old: ef.Flow, new: ef.Flow) -> tuple[int, int]:
    """Upgrade a running query. Returns what the sum of balances was at the upgrade, and at the end."""
    kept = sinks.Memory()

    def wait_for(count: int) -> None:
        while len(kept.payloads(0)) < count:
            time.sleep(0.05)

    with spark_session(master="local[2]", name="bank") as spark:
        query = (
            old.live(spark)
            .read(orders=fronts.Iterable(coming_in, rate=500))
            .write(balances=kept)
            .option("checkpointLocation", tempfile.mkdtemp())
            .start()
        )
        wait_for(150)
        query.upgrade(new)
        upgraded = len(kept.payloads(0))
        wait_for(upgraded + 150)
        query.stop()
    entries = kept.payloads(0)
    return sum_of_balances(entries[:upgraded]), sum_of_balances(entries)


def sum_of_balances(entries: list[tuple[str, int]]) -> int:
    """After the last whole order; an order is three entries.

    >>> sum_of_balances([("safe", -300), ("bob", 297), ("the bank", 3), ("bob", 197)])
    0
    """
    return sum(dict(entries[: len(entries) // 3 * 3]).values())


flow, new = bank(with_a_gift), bank(with_a_fee)


def main() -> None:
    old = flow
    logging.getLogger("emberflow").setLevel(logging.ERROR)  # it tells of the upgrade
    print(f"compared on {len(ORDERS)} orders")
    for line in str(ef.compare(old, new, orders=ORDERS)).splitlines():
        print(f"  {line}")
    print("what becomes of the state")
    for line in ef.Versions(old, (0, new))[1].plan.lines():
        if not line.startswith("changed"):
            print(f"  {line}")
    print("live")
    at_the_upgrade, at_the_end = live(old, new)
    print(f"  money that the old version made: {at_the_upgrade}")
    print(f"  money that the new version made: {at_the_end - at_the_upgrade}")


if __name__ == "__main__":
    main()
