"""The load of slices, by samples: bounded, and right on average."""

from __future__ import annotations

from functools import partial
from itertools import count, cycle, islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.worker import loads as loads_module
from emberflow.engine.worker.loads import KeyLoad, Loads
from emberflow.values.hashing import key_hash, owner
from emberflow.values.item import FlatItem
from emberflow.values.owners import SLICES


def made() -> tuple[Loads, int]:
    """Loads of a running count, whose clock goes on by a second for each batch; and its node."""
    flow = ef.Flow("counts")
    flow.front("keys").key_by(int).count(name="counts").sink("out")
    loads = Loads(Layout(flow.graph()), partial(next, count()))
    (node,) = loads.nodes
    return loads, node


def ran(loads: Loads, node: int, payloads: list[Any]) -> None:
    items: list[FlatItem] = [((time, 0), 0, payload) for time, payload in enumerate(payloads)]
    if loads.is_due(node, len(items)):
        loads.run(node, lambda items, failed: [items], None, items, [])


@given(st.lists(st.one_of(st.none(), st.integers(1, 5_000)), max_size=40))
def test_samples_stand_for_all_items_and_are_few(steps: list[int | None]) -> None:
    loads, node = made()
    total = sampled = 0
    for step in steps:
        if step is None:
            sampled += sum(int(load.items) for load in loads.report().values())
        else:
            ran(loads, node, [7] * step)
            total += step
    sampled += sum(int(load.items) for load in loads.report().values())
    assert sampled + loads.unsampled == total
    assert loads.unsampled < 2 * max(1, sampled)


def test_a_burst_has_no_more_samples_than_a_report_may_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads, node = made()
    hashed: list[object] = []
    monkeypatch.setattr(loads_module, "key_hash", lambda key: hashed.append(key) or key_hash(key))
    for _ in range(1_000):
        ran(loads, node, [7] * 1_000)
    assert len(hashed) < 64 * loads_module.SAMPLES_WANTED
    assert next(iter(loads.report().values())).items == 1_000_000 - loads.unsampled


@pytest.mark.parametrize("period", [2, 8, 64, 1_000])
def test_what_repeats_itself_is_not_met_always_or_never(period: int) -> None:
    """The first of so many keys comes half of the time."""
    loads, node = made()
    keys = cycle([0 if number % 2 else 1 + number for number in range(period)])
    hot = owner(key_hash(0), SLICES)
    items = seen = 0.0
    for turn in range(400):
        ran(loads, node, list(islice(keys, 1_000)))
        if turn % 20 == 19:
            for number, load in loads.report().items():
                items += load.items
                seen += load.items * (number == hot)
    assert 0.45 < seen / items < 0.55


def test_after_a_burst_a_few_items_are_seen_again() -> None:
    loads, node = made()
    for _ in range(200):
        ran(loads, node, [7] * 1_000)
        loads.report()
    loads.report()
    for _ in range(5):
        ran(loads, node, [9])
    assert owner(key_hash(9), SLICES) in loads.report()


def test_an_item_whose_key_fails_is_left_out() -> None:
    loads, node = made()
    ran(loads, node, ["no number"])
    assert not loads.report()
    ran(loads, node, [3, 3])
    assert sum(load.seconds for load in loads.report().values()) == 1.0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("others", [50, 100_000])
def test_a_key_with_much_of_the_load_is_told_by_name(share: float, others: int) -> None:
    (loads, node), random = made(), Random(f"{share} {others}")
    told: tuple[KeyLoad, ...] = ()
    for _ in range(40):
        for _ in range(5):
            batch = [
                7 if random.random() < share else random.randrange(others) + 8 for _ in range(100)
            ]
            ran(loads, node, batch)
        loads.report()
        told = loads.hot_keys(fading=0.95)
    assert (told[0].step, told[0].key) == ("counts", "7")
    assert told[0].share == pytest.approx(share, abs=0.15)
    assert len(loads._keys) <= loads_module.KEYS_MAX


def test_what_was_hot_is_forgotten() -> None:
    loads, node = made()
    for key in (7, 9):
        for _ in range(50):
            ran(loads, node, [key] * 100)
            told = loads.hot_keys(fading=0.9)
        assert told[0].key == str(key)
    assert [key.key for key in told] == ["9"]
