"""What waits for rows on the host of a gathered region: who goes on when, and what a row costs that comes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from emberflow.engine.worker.gathering.waiting import Waiting, identity_of
from emberflow.values.item import FlatItem


class Plain:
    """It looks at all that waits for each row."""

    def __init__(self) -> None:
        self.items: list[FlatItem] = []

    def admitted(self, items: list[FlatItem], known: set[Any]) -> list[FlatItem]:
        admitted: list[FlatItem] = []
        left: list[FlatItem] = []
        places = set()
        for item in [*self.items, *items]:
            if item[2][0] in known and item[0] not in places:
                admitted.append(item)
            else:
                left.append(item)
                places.add(item[0])
        self.items = left
        return admitted


def drawn(dice: random.Random) -> Iterator[list[FlatItem]]:
    """Batches of items of few places and rows; some are of two transactions at one place."""
    number = 0
    while True:
        batch: list[FlatItem] = []
        for _ in range(dice.randrange(6)):
            place = (dice.randrange(4), 0, *[dice.randrange(2) for _ in range(dice.randrange(3))])
            batch.append((place, number, (dice.randrange(5), None, dice.randint(2, len(place)))))
            number += 1
        yield batch


def test_what_goes_on_is_what_looking_at_everything_says() -> None:
    waits = 0
    for seed in range(200):
        dice = random.Random(seed)
        waiting, plain, known = Waiting(), Plain(), set[Any]()
        rows = list(range(5))
        dice.shuffle(rows)
        for batch in drawn(dice):
            assert waiting.admit(batch, known) == plain.admitted(batch, known)
            if dice.random() < 0.3:
                if not rows:
                    break
                known.add(row := rows.pop())
                arrived = waiting.arrive(row, known)
                assert sorted(arrived, key=_by_place) == sorted(
                    plain.admitted([], known), key=_by_place
                )
            assert sorted(waiting) == sorted(plain.items)
            assert bool(waiting) == bool(plain.items)
            least = waiting.least()
            assert (least is None) == (not plain.items)
            if least is not None:
                waits += 1
                assert identity_of(least) <= min(map(identity_of, plain.items))
                assert least[0] in {item[0] for item in plain.items}
    assert waits > 500


def _by_place(item: FlatItem) -> Any:
    return item[0]


def test_a_row_that_comes_looks_at_what_waited_for_it() -> None:
    looks = 0

    class Known(set[Any]):
        def __contains__(self, key: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(key)

    waiting, known, count = Waiting(), Known(), 2_000
    items = [((time, 0), 0, (row, None, 2)) for row in range(count) for time in (row, row + count)]
    assert waiting.admit(items, known) == []
    for row in range(count):
        known.add(row)
        assert [item[2][0] for item in waiting.arrive(row, known)] == [row, row]
    assert not waiting
    assert waiting.least() is None
    assert looks <= 3 * len(items)
