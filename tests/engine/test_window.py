"""The window of transactions: so many elements at once, the least first, and none for ever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.engine.speculation.judge import Stubborn
from emberflow.engine.speculation.window import _PLENTY, AdaptiveWindow, Window
from emberflow.values.item import FlatItem


class Fixed:
    """A window of one size, which counts the elements that passed it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.elements = 0

    def passed(self, elements: int, items: int, replays: int, events: int) -> None:
        self.elements += elements


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), max_size=12), max_size=12),
    st.sampled_from((1, 2, 5, 10 + _PLENTY)),
)
@settings(deadline=None)
def test_so_many_at_once_the_least_first(batches: list[list[tuple[int, int]]], size: int) -> None:
    """Each draw is a batch of times, with child ids. After each, the least that is in is done."""
    judge = Fixed(size)
    window = Window(7, (0, 0), {}, {}, judge, Stubborn(patient=True))
    held: list[FlatItem] = []
    let_in: list[FlatItem] = []
    under_way: set[int] = set()
    late: set[int] = set()
    minimal = BEFORE_ALL
    done_below = -1
    for batch in batches:
        fresh = sorted({draw for draw in batch if draw[0] > done_below})
        items: list[FlatItem] = [((time, 0, child), 0, (time, child)) for time, child in fresh]
        held += items
        latest = max((item[0][0] for item in let_in), default=-1)
        gone_in = (
            window.add(items, minimal, BEFORE_ALL) if items else window.due(minimal, BEFORE_ALL)
        )
        assert [item[0] for item in gone_in] == sorted(item[0] for item in gone_in)
        for item in gone_in:
            held.remove(item)
        let_in += gone_in
        late |= {item[0][0] for item in gone_in if item[0][0] <= latest}
        under_way |= {item[0][0] for item in gone_in}
        assert len(under_way - late) <= size, "but for what is late, which goes in at once"
        assert not held or under_way, "the least is never kept waiting"
        assert all(item[0][0] > max(under_way) for item in held if under_way)
        if under_way:
            done_below = min(under_way)
            under_way.remove(done_below)
            minimal = (done_below + 1, 0)
    let_in += window.due(AFTER_ALL, AFTER_ALL)
    while window.hold.count:
        more = window.due(AFTER_ALL, AFTER_ALL)
        assert more, "it lets in all that is left"
        for item in more:
            held.remove(item)
    assert window.hold.least is None


def test_nothing_leaves_from_the_bound_on_and_what_has_left_is_below_it() -> None:
    """Into the region, or to its host: while the arrangement changes, a tombstone must follow its item."""
    for host in (None, 1):
        window = Window(7, (0, 1), {}, {}, Fixed(100), Stubborn(patient=False))
        window.open(forwards_to=host, is_host=False)
        first = window.add([((time, 0), 0, time) for time in (3, 9)], BEFORE_ALL, BEFORE_ALL)
        assert [item[2] for item in first] == [3, 9]
        assert window.close() == (9, 0)
        later = window.add([((time, 0), 0, time) for time in (5, 12)], BEFORE_ALL, BEFORE_ALL)
        assert [item[2] for item in later] == [5]
        window.bound = (12, 1)
        assert [item[2] for item in window.due(BEFORE_ALL, BEFORE_ALL)] == [12]
        assert window.close() == (12, 0)


def test_a_host_waits_for_what_may_come_below_but_not_for_itself() -> None:
    window = Window(7, (0, 1), {}, {}, Fixed(100), Stubborn(patient=True))
    window.open(forwards_to=None, is_host=True)
    assert window.add([((5, 0), 0, "five")], BEFORE_ALL, (4, 0)) == []
    assert window.level == 1, "the frontier of its own stage passes what it holds"
    assert [item[2] for item in window.due(BEFORE_ALL, (6, 0))] == ["five"]
    window.add([((8, 0), 0, "eight")], BEFORE_ALL, (6, 0))
    window.bound = (9, 0)
    assert window.level == 0, "it may still go to another worker"
    assert [item[2] for item in window.due(BEFORE_ALL, (8, 0))] == ["eight"]


def judged(
    judge: AdaptiveWindow, periods: int, *, conflicts: float = 0.0, refused: float = 0.0
) -> int:
    """The size after so many periods. Each element conflicts with a share of those under way, and another
    share of its items is computed again however few they are. A window takes three events."""
    for _ in range(periods):
        elements = max(64, judge.size)
        replays = elements * (6 * refused + conflicts * judge.size)
        judge.passed(elements, 6 * elements, round(replays), round(3 * elements / judge.size))
    return judge.size


def test_it_grows_while_nothing_is_replayed() -> None:
    judge = AdaptiveWindow()
    first = judge.size
    assert judged(judge, 12) > 100 * first


def test_it_finds_the_size_at_which_an_element_costs_least() -> None:
    for conflicts, least, most in ((0.2, 4, 16), (0.01, 24, 64), (5.0, 1, 3)):
        judge = AdaptiveWindow()
        for _ in range(20):
            assert least <= judged(judge, 21, conflicts=conflicts) <= most


def test_it_does_not_shrink_because_of_replays_that_a_smaller_window_has_too() -> None:
    assert judged(AdaptiveWindow(), 60, refused=0.5) >= 256


def test_it_forgets_what_it_knows_when_other_elements_come() -> None:
    judge = AdaptiveWindow()
    assert judged(judge, 12) > 1_000
    assert judged(judge, 40, conflicts=0.2) <= 16
    assert judged(judge, 12) > 1_000
