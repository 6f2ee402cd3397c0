"""The examples of transactions match an independent oracle: a loop over plain dicts.

`test_examples` checks that they print what they show.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

import emberflow as ef
from tests.test_examples import example

bank = example("bank")
ledger = example("ledger")
seats = example("seats")
stock = example("stock")


def everywhere(flow: ef.Flow, **elements: Any) -> dict[str, list[Any]]:
    outputs = ef.run(flow, **elements)
    for workers in (1, 2, 5):
        result = ef.simulate(flow, seed=workers, workers=workers, **elements)
        assert result.outputs == outputs
    return outputs


@pytest.mark.parametrize("seed", range(3))
def test_bank(seed: int) -> None:
    draw = Random(seed)
    names = [f"account {number}" for number in range(draw.choice((2, 5, 20)))]
    orders = []
    for _ in range(150):
        kind = draw.choice(("deposit", "withdrawal", "transfer"))
        source = None if kind == "deposit" else draw.choice(names)
        target = None if kind == "withdrawal" else draw.choice(names)
        orders.append(bank.Order(kind, source, target, draw.randint(0, 40)))
    balances: dict[str, int] = defaultdict(int)
    history: dict[str, list[Any]] = defaultdict(list)
    done = []
    for order in orders:
        if order.source and balances[order.source] < order.amount:
            continue
        for entry in bank.entries(order):
            balances[entry.account] += entry.change
            history[entry.account].append(entry)
        done.append(order)
    outputs = everywhere(bank.flow, orders=orders)
    assert outputs["done"] == done
    assert len(outputs["done"]) + len(outputs["refused"]) == len(orders)
    assert dict(outputs["balances"]) == {name: balances[name] for name in history}
    assert dict(outputs["histories"]) == {name: tuple(all_[-10:]) for name, all_ in history.items()}


def test_ledger() -> None:
    draw = Random(5)
    clients = ["ada", "bob", "eve", "joe"]
    deposits = [
        ef.At(time, ledger.Deposit(draw.choice(clients), draw.randint(5, 60), draw.randint(0, 3)))
        for time in range(0, 120, 3)
    ]
    transfers = [
        ef.At(
            time,
            ledger.Transfer(*draw.sample(clients, 2), draw.randint(0, 60), draw.randint(0, 3)),
        )
        for time in range(1, 120, 2)
    ]
    euro: dict[str, int] = defaultdict(int)
    assets: dict[str, int] = defaultdict(int)
    booked = []
    # At equal times the front that was declared first comes first.
    for at in sorted([*deposits, *transfers], key=lambda at: at.time):
        order = at.payload
        if isinstance(order, ledger.Deposit):
            euro[order.client] += order.euro
            assets[order.client] += order.assets
        else:
            after = {
                order.source: (
                    euro[order.source] - order.euro,
                    assets[order.source] - order.assets,
                ),
                order.target: (
                    euro[order.target] + order.euro,
                    assets[order.target] + order.assets,
                ),
            }
            if min(after[order.source]) < 0 or any(m < 5 * count for m, count in after.values()):
                continue
            for client, (money, count) in after.items():
                euro[client], assets[client] = money, count
        booked.append(order)
    outputs = everywhere(ledger.flow, deposits=deposits, transfers=transfers)
    assert outputs["booked"] == booked
    assert {"has_money", "has_assets", "covered"} == {check for _, check, _ in outputs["refused"]}
    last = {client: (money, count) for client, money, count in outputs["balances"]}
    assert last == {client: (euro[client], assets[client]) for client in last}


def test_stock() -> None:
    draw = Random(3)
    items, warehouses = ["lamp", "chair", "desk"], ["oslo", "rome"]
    moves = [
        ef.At(4 * t, stock.Move(draw.choice(items), draw.choice(warehouses))) for t in range(30)
    ]
    deliveries = [
        ef.At(4 * t + 1, stock.Delivery(draw.choice(warehouses), draw.choice(items), 3))
        for t in range(30)
    ]
    orders = [
        ef.At(
            4 * t + 2,
            stock.Order(
                t,
                tuple(
                    stock.Line(item, draw.randint(1, 3))
                    for item in draw.sample(items, draw.randint(1, 3))
                ),
            ),
        )
        for t in range(30)
    ]
    places: dict[str, str] = defaultdict(lambda: "nowhere")
    left: dict[tuple[str, str], int] = defaultdict(int)
    reserved = []
    for at in sorted([*moves, *deliveries, *orders], key=lambda at: at.time):
        payload = at.payload
        if isinstance(payload, stock.Move):
            places[payload.item] = payload.warehouse
        elif isinstance(payload, stock.Delivery):
            left[payload.warehouse, payload.item] += payload.pieces
        elif all(left[places[line.item], line.item] >= line.pieces for line in payload.lines):
            for line in payload.lines:
                left[places[line.item], line.item] -= line.pieces
            reserved.append(payload)
    outputs = everywhere(stock.flow, moves=moves, deliveries=deliveries, orders=orders)
    assert outputs["reserved"] == reserved
    assert 0 < len(reserved) < len(orders)


def test_seats() -> None:
    requests = seats.REQUESTS + seats.crowd(40)
    taken: set[str] = set()
    booked = []
    for request in requests:
        if taken.isdisjoint(request.seats):
            taken |= set(request.seats)
            booked.append(request)
    assert everywhere(seats.flow, requests=requests)["booked"] == booked
