"""A shop's catalogue: a table that changes, followed by everything that is made of it.

The catalogue lives in a database, and Debezium tells its changes: rows are created, updated and deleted.

- `changes_from`: envelopes become a table, one row for each item.
- `group_by(...).sum(...)`: what is the latest price of each item worth, by category? A price that changes
  replaces the old one in its sum. An item that moves to another category is taken out of the one and put
  into the other.
- `join` of two tables: which items are in stock? The joined table takes back what does not hold any more.
- `join(how="anti", within=...)`: which orders were for an item that nobody had shown within the hour
  before?

    $ python examples/catalogue.py
    worth by category
      drinks: 3
      drinks: 7
      drinks: 9
      drinks: 5
      food: 4
      drinks: none

    in stock
      tea at 3, 12 pieces
      milk at 4, 30 pieces
      tea at 5, 12 pieces
      tea no more

    ordered without being shown
      milk
"""

from typing import Any, NamedTuple

import emberflow as ef

SHOWN_WITHIN_MINUTES = 60


class Item(NamedTuple):
    name: str
    category: str
    price: int


class Stock(NamedTuple):
    item: str
    pieces: int


def envelope(op: str, before: Item | None, after: Item | None) -> dict[str, Any]:
    """As Debezium writes it."""
    rows = [None if row is None else row._asdict() for row in (before, after)]
    return {"op": op, "before": rows[0], "after": rows[1]}


TEA, DEARER_TEA = Item("tea", "drinks", 3), Item("tea", "drinks", 5)
MILK, MILK_AS_FOOD = Item("milk", "drinks", 4), Item("milk", "food", 4)
CATALOGUE = [
    ef.At(0, envelope("r", None, TEA)),
    ef.At(10, envelope("c", None, MILK)),
    ef.At(20, envelope("u", TEA, DEARER_TEA)),
    ef.At(30, envelope("u", MILK, MILK_AS_FOOD)),
    ef.At(50, envelope("d", DEARER_TEA, None)),
]
STOCK = [ef.At(1, Stock("tea", 12)), ef.At(2, Stock("milk", 30))]
SHOWN = [ef.At(5, "tea")]
ORDERS = [ef.At(40, "tea"), ef.At(45, "milk")]

flow = ef.Flow("catalogue")
catalogue = ef.changes_from(flow.front("catalogue"), format="debezium", key="name")

worth = catalogue.group_by(lambda row: row["category"]).sum(lambda row: row["price"])
worth.latest().sink("worth")

stock = flow.front("stock").key_by(lambda stock: stock.item).changes()
in_stock = catalogue.join(stock, lambda row, stock: (row["price"], stock.pieces))
in_stock.sink("in stock", partitions=2)

shown = flow.front("shown").key_by(lambda item: item)
orders = flow.front("orders").key_by(lambda item: item)
unseen = orders.join(shown, how="anti", within=(-SHOWN_WITHIN_MINUTES, 0))
unseen.sink("unseen")


def elements() -> dict[str, list[ef.At[Any]]]:
    return {"catalogue": CATALOGUE, "stock": STOCK, "shown": SHOWN, "orders": ORDERS}


def main() -> None:
    outputs = ef.run(flow, **elements())
    print("worth by category")
    for category, euro in outputs["worth"]:
        print(f"  {category}: {'none' if euro is None else euro}")
    print("\nin stock")
    for item, _, now in outputs["in stock"]:
        print(f"  {item} at {now[0]}, {now[1]} pieces" if now else f"  {item} no more")
    print("\nordered without being shown")
    for item in outputs["unseen"]:
        print(f"  {item}")


if __name__ == "__main__":
    main()
