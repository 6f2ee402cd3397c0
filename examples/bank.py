"""A bank: deposits, withdrawals and transfers, and no balance below zero.

Two states change together: the balance of each account, and its last ten operations. A transfer
takes from one account and gives to another, possibly on two workers; either all four updates happen
or none. `check=` has to hold for every new balance. There are no locks: orders take effect in the
order of their times, as if one after another.

A query reads the balance and the last operations of some accounts together, at any moment, and they
always match: it is one read over both states, as of one time. Here a simulated run on three workers
answers it; for a live query it is ``query.read(STATEMENT)``.

    $ python examples/bank.py
    done
      deposit of 50 to ada
      deposit of 20 to bob
      transfer of 30 from ada to bob
      withdrawal of 50 from bob
      transfer of 20 from ada to bob
    refused
      withdrawal of 60 from bob: not_negative, it would leave -10
      transfer of 21 from ada to bob: not_negative, it would leave -1
    balances after each operation
      ada: 50, 20, 0
      bob: 20, 50, 0, 20
    last operations
      ada: deposit 50, transfer 30, transfer 20
      bob: deposit 20, transfer 30, withdrawal 50, transfer 20
    asked at three moments
      ada +50 = 50, bob nothing yet = 0
      ada +50 = 50, bob +20 = 20
      ada +50 -30 = 20, bob +20 +30 = 50
"""

from typing import NamedTuple

import emberflow as ef

OPERATIONS_KEPT = 10


class Order(NamedTuple):
    kind: str
    source: str | None
    target: str | None
    amount: int

    def __str__(self) -> str:
        from_ = f" from {self.source}" if self.source else ""
        to = f" to {self.target}" if self.target else ""
        return f"{self.kind} of {self.amount}{from_}{to}"


class Entry(NamedTuple):
    """One side of an order: what it does to one account."""

    account: str
    change: int
    kind: str


ORDERS = [
    Order("deposit", None, "ada", 50),
    Order("deposit", None, "bob", 20),
    Order("transfer", "ada", "bob", 30),
    Order("withdrawal", "bob", None, 60),
    Order("withdrawal", "bob", None, 50),
    Order("transfer", "ada", "bob", 21),
    Order("transfer", "ada", "bob", 20),
]


def entries(order: Order) -> list[Entry]:
    """The sides of an order.

    >>> [entry.account for entry in entries(Order("transfer", "ada", "bob", 5))]
    ['ada', 'bob']
    """
    sides = [(order.source, -order.amount), (order.target, order.amount)]
    return [Entry(account, change, order.kind) for account, change in sides if account]


def booked(balance: int, entry: Entry) -> int:
    return balance + entry.change


def not_negative(balance: int) -> bool:
    return balance >= 0


def noted(operations: tuple[Entry, ...], entry: Entry) -> tuple[Entry, ...]:
    return (*operations, entry)[-OPERATIONS_KEPT:]


#: A query of both states.
STATEMENT = {"accounts": ["ada", "bob"], "history": ["ada", "bob"]}


def statement(answer: ef.Answer, account: str) -> str:
    """Balance and last operations of an account, read together: they always add up."""
    changes = [entry.change for entry in answer["history"][account]]
    balance = answer["accounts"][account]
    assert sum(changes) == balance or len(changes) == OPERATIONS_KEPT
    return f"{account} {' '.join(f'{change:+}' for change in changes) or 'nothing yet'} = {balance}"


flow = ef.Flow("bank")
accounts = flow.state("accounts", default=0)
history = flow.state("history", default=())

with flow.front("orders").transaction(name="order") as tx:
    by_account = tx.flat_map(entries).key_by(lambda entry: entry.account)
    after = by_account.update(accounts, booked, check=not_negative)
    operations = by_account.update(history, noted)
    balances = tx.output(after)
    histories = tx.output(operations)

tx.committed.sink("done")
tx.rejected.sink("refused")
balances.map(lambda pair: (pair[0].account, pair[1])).sink("balances")
histories.map(lambda pair: (pair[0].account, pair[1])).sink("histories")


def main() -> None:
    outputs = ef.run(flow, orders=ORDERS)
    print("done")
    for order in outputs["done"]:
        print(f"  {order}")
    print("refused")
    for order, check, values in outputs["refused"]:
        (left,) = values.values()
        print(f"  {order}: {check}, it would leave {left}")
    print("balances after each operation")
    for account in ("ada", "bob"):
        found = [str(balance) for name, balance in outputs["balances"] if name == account]
        print(f"  {account}: {', '.join(found)}")
    print("last operations")
    for account, entries in dict(outputs["histories"]).items():
        print(f"  {account}:", ", ".join(f"{e.kind} {abs(e.change)}" for e in entries))
    print("asked at three moments")
    asked = ef.simulate(flow, orders=ORDERS, workers=3, seed=95, queries=[STATEMENT] * 3)
    for answer in sorted(asked.answers, key=lambda answer: answer.as_of):
        print(f"  {statement(answer, 'ada')}, {statement(answer, 'bob')}")


if __name__ == "__main__":
    main()
