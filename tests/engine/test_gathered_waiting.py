"""What waits for rows on the host of a gathered region: who goes on when, and what a row costs that comes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import Ack, Effects, Frame, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.speculation.patience import Judges
from emberflow.engine.worker.gathering.waiting import Waiting, identity_of
from emberflow.engine.worker.worker import Worker
from emberflow.runners.simulation.judges import StubbornGathering
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


class Pair:
    """Two workers and their acker. Each message takes one step; it runs until nothing is under way."""

    def __init__(self, flow: ef.Flow, judges: Judges) -> None:
        graph = flow.graph()
        layout = Layout(graph)
        self.workers = [Worker(layout, index, 2, judges=judges) for index in range(2)]
        self.stored = 0
        self._acker = Acker(workers=2, fronts=[0])
        (self._front,) = [front.id for front in graph.fronts.values()]
        self._frames: list[list[Frame]] = [[], []]
        self._acks: list[Ack] = []

    @property
    def replays(self) -> int:
        return sum(worker.statistics(sizes_too=False).replays for worker in self.workers)

    def enter(self, *elements: tuple[int, Any]) -> None:
        times = [((time, 0), payload) for time, payload in elements]
        self._take(self.workers[0].enter(self._front, times, {0: (times[-1][0][0] + 1, 0)}))
        progress: Progress | None = None
        while any(self._frames) or self._acks or progress is not None:
            frames, self._frames = self._frames, [[], []]
            acks, self._acks = self._acks, []
            news = [found for ack in acks if (found := self._acker.receive(ack)) is not None]
            for worker, came in zip(self.workers, frames, strict=True):
                if progress is not None:
                    self._take(worker.progress(progress, came))
                elif came:
                    self._take(worker.deliver(came))
            progress = news[-1] if news else None

    def _take(self, effects: Effects) -> None:
        for destination, frame in effects.frames:
            self._frames[destination].append(frame)
        ack = effects.ack
        if ack.anywhere or ack.ranges or ack.deeper or ack.reports or ack.said:
            self._acks.append(ack)
        self.stored += sum(len(bundle.items) for bundle in effects.bundles)


def test_a_host_computes_nothing_with_rows_that_are_not_there() -> None:
    """Many transactions of one element on few rows, a part of which the other worker owns."""
    flow = ef.Flow("crowds")
    purses = flow.state("purses", default=20)
    numbers = flow.front("crowds").flat_map(range)
    with numbers.transaction() as tx:
        for factor, step in ((1, 7), (5, 11), (3, -5)):
            tx.key_by(lambda n, factor=factor: (n * factor + factor) % 7).update(
                purses, lambda value, n, step=step: value + n % step, check=lambda value: value < 30
            )
    tx.committed.sink("committed")
    tx.rejected.sink("rejected")
    pair = Pair(flow, Judges(gathering=lambda: StubbornGathering(True)))
    pair.enter((0, 1))
    assert {gathering.host for gathering in pair.workers[0]._gatherings.values()} == {0}
    before = pair.replays
    pair.enter((5, 60), (6, 60))
    assert pair.stored == 121
    assert pair.replays == before
