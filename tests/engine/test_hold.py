"""A hold gives back in order what it was given, never an item behind its own tombstone."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.speculation.hold import Hold
from emberflow.values.item import FlatItem, Place

#: A step is a batch of (place, trace) that arrives, or a frontier that is passed.
PLACES = st.tuples(st.integers(0, 12), st.integers(0, 2))
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(PLACES, st.integers(0, 1)), min_size=1, max_size=8),
        st.integers(0, 13),
    ),
    max_size=60,
)


class Sender:
    """Sends an item where none is, and a tombstone where one is: what a node ahead may do."""

    def __init__(self) -> None:
        self.sent: dict[tuple[Place, int], int] = {}
        self.versions = 0

    def item(self, place: Place, trace: int) -> FlatItem:
        version = self.sent.pop((place, trace), None)
        if version is not None:
            return place, trace << 1 | 1, version
        self.versions += 1
        self.sent[place, trace] = self.versions
        return place, trace << 1, self.versions


@given(STEPS)
def test_what_leaves_is_in_order_and_has_the_net_effect_of_what_came(steps: list[object]) -> None:
    hold, sender = Hold(), Sender()
    alive: dict[tuple[Place, int], int] = {}
    left: list[FlatItem] = []
    for step in [*steps, None]:
        if isinstance(step, list):
            batch = [sender.item(place, trace) for place, trace in step]
            hold.add(sorted(batch, key=lambda item: item[0]))
            continue
        frontier = AFTER_ALL if step is None else (step, 0)
        taken = hold.take(frontier)  # type: ignore[arg-type]
        assert [place for place, _, _ in taken] == sorted(place for place, _, _ in taken)
        assert all(place < frontier for place, _, _ in taken)
        assert all(place >= frontier for place, _, _ in hold.items())
        assert hold.count == len(hold.items())
        assert hold.least == min((item[0] for item in hold.items()), default=None)
        left += taken
    for place, mark, version in left:
        if mark & 1:
            assert alive.pop((place, mark >> 1)) == version, "a tombstone takes back its own item"
        else:
            assert (place, mark >> 1) not in alive, "an item left before the tombstone ahead of it"
            alive[place, mark >> 1] = version
    assert alive == sender.sent
    assert hold.count == 0


@given(st.lists(st.lists(PLACES, min_size=1, max_size=20), max_size=80))
def test_many_batches_in_disorder_leave_in_order(batches: list[list[Place]]) -> None:
    hold = Hold()
    expected: dict[Place, list[int]] = defaultdict(list)
    number = 0
    for batch in batches:
        items = []
        for place in sorted(batch):
            number += 1
            expected[(*place, number)].append(number)
            items.append(((*place, number), 0, number))
        hold.add(items)
    assert [item[2] for item in hold.take(AFTER_ALL)] == [
        number for place in sorted(expected) for number in expected[place]
    ]
