"""Stock reservations: an order takes all its items or none.

An order has any number of lines; a `flat_map` makes a payload of each, and all that they do is still
one transaction. Which warehouse an item is taken from is itself read from a state, so the key of the
update depends on what was read before. Deliveries are transactions of one update each: the system
sees that these can be decided where the item is, and spares them the vote.

    $ python examples/stock.py
    order 1 is reserved: 2 x lamp from oslo, 1 x chair from rome
    order 2 waits: enough says no to 5 lamps, oslo would have -2
    order 3 is reserved: 3 x lamp from oslo
    order 4 waits: enough says no to 4 chairs, rome would have -2
    left in oslo: 0 lamps
    left in rome: 2 chairs
"""

from typing import NamedTuple

import emberflow as ef


class Delivery(NamedTuple):
    warehouse: str
    item: str
    pieces: int


class Line(NamedTuple):
    item: str
    pieces: int


class Order(NamedTuple):
    number: int
    lines: tuple[Line, ...]


class Move(NamedTuple):
    item: str
    warehouse: str


MOVES = [ef.At(0, Move("lamp", "oslo")), ef.At(1, Move("chair", "rome"))]
DELIVERIES = [
    ef.At(2, Delivery("oslo", "lamp", 5)),
    ef.At(3, Delivery("rome", "chair", 3)),
]
ORDERS = [
    ef.At(10, Order(1, (Line("lamp", 2), Line("chair", 1)))),
    ef.At(11, Order(2, (Line("chair", 1), Line("lamp", 5)))),
    ef.At(12, Order(3, (Line("lamp", 3),))),
    ef.At(13, Order(4, (Line("chair", 4), Line("lamp", 1)))),
]


def enough(pieces: int) -> bool:
    return pieces >= 0


flow = ef.Flow("stock")
places = flow.state("places", default="nowhere")
stock = flow.state("stock", default=0)

with flow.front("moves").transaction(name="move") as move:
    move.key_by(lambda m: m.item).update(places, lambda _, m: m.warehouse)

with flow.front("deliveries").transaction(name="delivery") as delivery:
    delivered = delivery.key_by(lambda d: (d.warehouse, d.item))
    delivered.update(stock, lambda pieces, d: pieces + d.pieces)

with flow.front("orders").transaction(name="order") as order:
    lines = order.flat_map(lambda o: o.lines)
    found = lines.key_by(lambda line: line.item).read(places)
    taken = found.key_by(lambda pair: (pair[1], pair[0].item)).update(
        stock, lambda pieces, pair: pieces - pair[0].pieces, check=enough
    )
    picks = order.output(taken.map(lambda taken: (*taken[0], taken[1])))

order.committed.sink("reserved")
order.rejected.sink("waiting")
picks.sink("picks")


def main() -> None:
    outputs = ef.run(flow, moves=MOVES, deliveries=DELIVERIES, orders=ORDERS)
    picks = iter(outputs["picks"])
    told = {}
    left = {}
    for number, lines in outputs["reserved"]:
        parts = []
        for line in lines:
            _, warehouse, pieces = next(picks)
            left[warehouse, line.item] = pieces
            parts.append(f"{line.pieces} x {line.item} from {warehouse}")
        told[number] = f"order {number} is reserved: {', '.join(parts)}"
    for (number, lines), check, values in outputs["waiting"]:
        (((_, (warehouse, item)), pieces),) = values.items()
        asked = next(line.pieces for line in lines if line.item == item)
        no = f"{check} says no to {asked} {item}s, {warehouse} would have {pieces}"
        told[number] = f"order {number} waits: {no}"
    for number in sorted(told):
        print(told[number])
    for (warehouse, item), pieces in left.items():
        print(f"left in {warehouse}: {pieces} {item}s")


if __name__ == "__main__":
    main()
