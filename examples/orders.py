"""Orders of a shop: joined with their payments, enriched with customers, ranked by product.

Three questions that need two streams, or a memory, and the word for each:

- `join(within=...)`: which orders were paid within half an hour?
- `enrich`: where did a customer live *at the time of the order*? Ada moves from Rome to Oslo between
  two orders. Both streams are in one total order, so an order never sees a move of the future, not
  even when a batch over all of history computes it again.
- `sum`, then `fold`: which products lead in each city? A `fold` carries any value along: here a
  short ranking, in which a product's new total takes the place of its old one.

    $ python examples/orders.py
    paid in time
      order 1: 12 minutes after it was placed
      order 4: 25 minutes after it was placed

    orders with the city of the day
      order 1: ada in Rome, 2 x tea, 6 euro
      order 2: bob in Oslo, 1 x jam, 5 euro
      order 3: ada in Oslo, 3 x tea, 9 euro
      order 4: bob in Oslo, 2 x jam, 10 euro
      order 5: eve in ?, 1 x tea, 3 euro

    products that lead
      Rome: tea 6
      Oslo: jam 15, tea 9
      ?: tea 3
"""

from typing import Any, NamedTuple

import emberflow as ef

PAID_WITHIN_MINUTES = 30
PRODUCTS_IN_RANKING = 3


class Customer(NamedTuple):
    minute: int
    name: str
    city: str


class Order(NamedTuple):
    minute: int
    number: int
    customer: str
    product: str
    pieces: int
    price: int


class Payment(NamedTuple):
    minute: int
    order: int


CUSTOMERS = [Customer(0, "ada", "Rome"), Customer(1, "bob", "Oslo"), Customer(60, "ada", "Oslo")]
ORDERS = [
    Order(10, 1, "ada", "tea", 2, 3),
    Order(20, 2, "bob", "jam", 1, 5),
    Order(70, 3, "ada", "tea", 3, 3),
    Order(80, 4, "bob", "jam", 2, 5),
    Order(90, 5, "eve", "tea", 1, 3),  # an unknown customer
]
PAYMENTS = [Payment(22, 1), Payment(95, 2), Payment(105, 4)]


class Sale(NamedTuple):
    order: Order
    city: str
    euro: int


Ranking = tuple[tuple[str, int], ...]  # product and total, the leader first
NO_RANKING: Ranking = ()


def sale(order: Order, customer: Customer | None) -> Sale:
    return Sale(order, customer.city if customer else "?", order.pieces * order.price)


def ranked(ranking: Ranking, total: tuple[tuple[str, str], int]) -> Ranking:
    """Totals only grow, so a product that is not among the first can be forgotten: should it ever
    come back, then with a new total.

    >>> ranked((("jam", 5), ("tea", 4)), (("Oslo", "tea"), 9))
    (('tea', 9), ('jam', 5))
    """
    (_, product), euro = total
    totals = {**dict(ranking), product: euro}
    best_first = sorted(totals.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple(best_first[:PRODUCTS_IN_RANKING])


flow = ef.Flow("orders")
customers = flow.front("customers").key_by(lambda customer: customer.name)
orders = flow.front("orders")
payments = flow.front("payments").key_by(lambda payment: payment.order)

in_time = orders.key_by(lambda order: order.number).join(payments, within=(0, PAID_WITHIN_MINUTES))
in_time.sink("paid")

sales = orders.key_by(lambda order: order.customer).enrich(customers, sale)
sales.sink("sales")

totals = sales.key_by(lambda sale: (sale.city, sale.order.product)).sum(of=lambda sale: sale.euro)
rankings = totals.key_by(lambda total: total[0][0]).fold(
    initial=NO_RANKING, combine=ranked, with_key=True, name="ranking"
)
rankings.sink("rankings")


def elements() -> dict[str, list[ef.At[Any]]]:
    """What the fronts get: each record at its own minute."""
    return {
        "customers": [ef.At(customer.minute, customer) for customer in CUSTOMERS],
        "orders": [ef.At(order.minute, order) for order in ORDERS],
        "payments": [ef.At(payment.minute, payment) for payment in PAYMENTS],
    }


def main() -> None:
    outputs = ef.run(flow, **elements())
    print("paid in time")
    for order, payment in outputs["paid"]:
        minutes = payment.minute - order.minute
        print(f"  order {order.number}: {minutes} minutes after it was placed")
    print("\norders with the city of the day")
    for order, city, euro in outputs["sales"]:
        what = f"{order.pieces} x {order.product}, {euro} euro"
        print(f"  order {order.number}: {order.customer} in {city}, {what}")
    print("\nproducts that lead")
    for city, ranking in dict(outputs["rankings"]).items():  # the last ranking of each city
        print(f"  {city}:", ", ".join(f"{product} {euro}" for product, euro in ranking))


if __name__ == "__main__":
    main()
