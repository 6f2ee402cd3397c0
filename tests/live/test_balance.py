"""Who is to own which slices: plans of moves, and the load that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.worker.loads import KeyLoad, SliceLoad
from emberflow.runners.live.balance.heat import HotKey, hot_keys
from emberflow.runners.live.balance.ledger import Ledger
from emberflow.runners.live.balance.meter import MEMORY_SECONDS, LoadReport
from emberflow.runners.live.balance.pace import Steady, wanted_workers
from emberflow.runners.live.balance.plan import MOVES_MAX, Plan, planned
from emberflow.runners.live.balance.shares import shared
from emberflow.values.owners import SLICES, equal_owners


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[int], list[float], dict[int, float]]:
    """Owners of few or many slices, what each slice makes its owner do, and what that does besides."""
    workers = draw(st.integers(1, 6))
    some = st.one_of(st.just(0.0), st.floats(0, 1), st.sampled_from([0.25, 0.25, 1e-12]))
    count = draw(st.sampled_from([1, 5, 40, 200]))
    random = draw(st.randoms(use_true_random=False))
    owners = [random.randrange(workers) for _ in range(count)]
    of_slice = dict(enumerate(draw(st.lists(some, max_size=count))))
    besides = draw(st.lists(some, min_size=workers, max_size=workers))
    of_worker = list(besides)
    for number, load in of_slice.items():
        of_worker[owners[number]] += load
    return owners, of_worker, of_slice


@given(loads())
def test_a_plan_is_bounded_relieves_the_busiest_and_is_the_same_again(
    given: tuple[list[int], list[float], dict[int, float]],
) -> None:
    owners, workers, slices = given
    plan = planned(owners, workers, slices)
    assert plan == planned(owners, workers, dict(reversed(slices.items())))
    assert len(plan.moves) <= MOVES_MAX
    assert len({move.number for move in plan.moves}) == len(plan.moves)
    after = list(workers)
    for move in plan.moves:
        assert owners[move.number] == move.source != move.target
        assert 0 <= move.target < len(workers)
        load, busiest = slices[move.number], max(after)
        assert after[move.source] == pytest.approx(busiest)
        after[move.source] -= load
        after[move.target] += load
        assert max(after) <= busiest + 1e-9
        assert max(after[move.source], after[move.target]) < busiest
    assert plan.before == max(workers)
    assert plan.after == pytest.approx(max(after)) or not plan.moves
    assert plan.after <= plan.before
    assert set(plan.applied(owners)) == set(owners) | {move.target for move in plan.moves}
    # A worker that has slices keeps one.
    assert set(owners) <= set(plan.applied(owners))


@given(loads(), st.integers(0, 3))
def test_more_moves_relieve_the_busiest_no_less(
    given: tuple[list[int], list[float], dict[int, float]], most: int
) -> None:
    owners, workers, slices = given
    plan = planned(owners, workers, slices, moves_max=most)
    assert len(plan.moves) <= most
    assert planned(owners, workers, slices, moves_max=most + 1).after <= plan.after
    assert planned(owners, workers, slices).after <= plan.after


@given(loads(), st.lists(st.sampled_from([0.0, 0.1, 2.0]), min_size=1, max_size=5))
def test_other_workers_share_the_load(
    given: tuple[list[int], list[float], dict[int, float]], besides: list[float]
) -> None:
    """None has more than its share by more than a slice, and who has less than that loses nothing."""
    before, _, slices = given
    after = shared(before, slices, besides)
    assert after == shared(before, dict(reversed(slices.items())), besides)
    assert set(after) == set(range(len(besides))) or len(before) < len(besides)
    alike = sum(slices.values()) / 10 / len(before) if sum(slices.values()) else 1.0
    known = 0.9 if sum(slices.values()) else 0.0
    of_slice = [known * slices.get(number, 0.0) + alike for number in range(len(before))]
    busy = list(besides)
    for number, worker in enumerate(after):
        busy[worker] += of_slice[number]
    level = (sum(of_slice) + sum(besides)) / len(besides)
    level = max(level, *besides) if len(besides) > 1 else level
    assert max(busy) <= 1.05 * level + max(of_slice) + 1e-9


def test_another_number_of_workers_does_not_undo_a_rebalance() -> None:
    """The first slices make most of the work. By their number alone they would all have one owner."""
    slices = {number: 1.0 if number < 100 else 0.01 for number in range(SLICES)}
    skewed = equal_owners(2)
    plan = planned(skewed.of_slice, _busy(skewed.of_slice, slices, 2), slices, moves_max=SLICES)
    for workers in (3, 2, 4, 1, 3):
        owners = shared(plan.applied(skewed.of_slice), slices, [0.0] * workers)
        busy = _busy(owners, slices, workers)
        assert max(busy) < 1.1 * sum(busy) / workers + 1
        if workers == 2:
            assert owners == plan.applied(skewed.of_slice)


def _busy(of_slice: Sequence[int], slices: dict[int, float], workers: int) -> list[float]:
    return [
        sum(slices[number] for number, owner in enumerate(of_slice) if owner == worker)
        for worker in range(workers)
    ]


def test_plans_in_a_row_bring_workers_near_each_other() -> None:
    """All slices make as much work, and one worker has nearly all of them."""
    owners = [0] * 1_000 + [1] * 12 + [2] * 12
    each = dict.fromkeys(range(SLICES), 1 / SLICES)
    plans: list[Plan] = []
    while not plans or plans[-1].moves:
        workers = [owners.count(worker) / SLICES for worker in range(3)]
        plans.append(planned(owners, workers, each))
        owners = plans[-1].applied(owners)
    assert len(plans) < 15
    assert plans[-1].after < 0.36


def test_a_hot_slice_stays_if_its_neighbours_can_leave_it() -> None:
    """To let it change places would help, but less."""
    slices = {0: 0.62, **dict.fromkeys(range(1, 13), 0.01)}
    plan = planned([0] * 13 + [1], [0.75, 0.1], slices)
    assert {move.number for move in plan.moves} == set(range(1, 13))
    # And if the others are too light, it goes.
    slices = {0: 0.4, **dict.fromkeys(range(1, 200), 0.001)}
    (first, *_) = planned([0] * 200 + [1], [0.75, 0.1], slices).moves
    assert first.number == 0


def test_the_work_that_does_not_move_is_left_where_it_is() -> None:
    assert not planned([0, 0, 1], [0.9, 0.1], {}).moves
    assert not planned([0, 0, 1], [0.9, 0.1], {0: 0.85}).moves, "it would only change places"
    assert not planned([0, 1], [0.9, 0.1], {0: 0.3}).moves, "it is the last one of its worker"


def report(elapsed: float, busy: float, fronts: float, **slices: float) -> LoadReport:
    told = {int(name[1:]): SliceLoad(100.0, 5.0, seconds) for name, seconds in slices.items()}
    return LoadReport(elapsed, busy, fronts, told)


def test_slices_share_what_their_worker_does_for_keys() -> None:
    ledger = Ledger(2)
    assert not ledger.look().is_ripe
    for _ in range(40):
        ledger.hear(0, report(0.25, busy=0.2, fronts=0.1, s3=0.01, s7=0.03))
        ledger.hear(1, report(0.25, busy=0.05, fronts=0.0))
    load = ledger.look()
    assert load.is_ripe
    assert load.workers == pytest.approx((0.8, 0.2))
    assert load.slices == pytest.approx({3: 0.1, 7: 0.3})
    assert load.items == pytest.approx({3: 400, 7: 400})
    assert load.replays == pytest.approx({3: 20, 7: 20})


def test_what_is_old_fades() -> None:
    ledger = Ledger(1)
    for _ in range(100):
        ledger.hear(0, report(0.5, busy=0.5, fronts=0.0, s1=0.1))
    for _ in range(int(MEMORY_SECONDS * 2)):
        ledger.hear(0, report(0.5, busy=0.0, fronts=0.0, s2=0.1))
    load = ledger.look()
    assert load.workers[0] == pytest.approx(exp(-1), rel=0.05)
    assert load.slices[2] > load.slices[1]
    for _ in range(int(MEMORY_SECONDS * 40)):
        ledger.hear(0, report(0.5, busy=0.0, fronts=0.0))
    assert not ledger.look().slices


looks = st.lists(
    st.tuples(st.floats(0.01, 20), st.sampled_from([None, None, "more", "less"])), max_size=60
)


@given(looks, st.floats(0.1, 30), st.floats(0.1, 60))
def test_what_is_done_was_called_for_long_enough_and_not_shortly_before(
    given: list[tuple[float, str | None]], holds: float, rests: float
) -> None:
    steady, now = Steady(holds, rests), 0.0
    seen: list[tuple[float, str | None]] = []
    done: list[float] = []
    for elapsed, wanted in given:
        now += elapsed
        seen.append((now, wanted))
        if steady.look(now, wanted):
            since = next(at for at, each in reversed(seen[:-1]) if at <= now - holds + 1e-9)
            assert {each for at, each in seen if at >= since} == {wanted}
            assert not done or now - done[-1] >= rests
            done.append(now)


def test_what_is_called_for_all_the_time_is_done() -> None:
    steady = Steady(10, 30)
    assert [at for at in range(100) if steady.look(at, "more")] == [10, 50, 90]


def test_keys_are_too_hot_that_take_most_of_a_busy_worker_alone() -> None:
    ada, bob = KeyLoad("counts", "'ada'", 0.9), KeyLoad("counts", "'bob'", 0.1)
    ledger = Ledger(3)
    for worker, (busy, fronts) in enumerate([(0.24, 0.02), (0.24, 0.12), (0.1, 0.0)]):
        for _ in range(40):
            told = report(0.25, busy, fronts, s3=0.1)._replace(hot_keys=(ada, bob))
            ledger.hear(worker, told)
    assert hot_keys(ledger.look()) == [HotKey("counts", "'ada'", 0, 0.825)]
    ledger.hear(0, report(0.25, 0.24, 0.02))
    assert not hot_keys(ledger.look())


parts = st.floats(0, 1)


@given(st.lists(parts, min_size=1, max_size=40), st.integers(1, 20), st.integers(0, 40))
def test_the_number_that_load_calls_for_is_within_bounds_and_calls_for_no_other(
    busy: list[float], least: int, more: int
) -> None:
    most, total = least + more, sum(busy)
    wanted = wanted_workers(busy, least, most)
    assert least <= wanted <= most
    if total / wanted <= 1:  # more than that no worker can do
        assert wanted_workers([total / wanted] * wanted, least, most) == wanted
    if wanted > max(least, len(busy)):
        assert total > 0.8 * len(busy)
    if wanted < min(most, len(busy)):
        assert total <= 0.5 * wanted, "they would be busier than that"


@given(st.lists(st.tuples(parts, parts), min_size=1, max_size=40))
def test_more_load_never_calls_for_fewer_workers(pairs: list[tuple[float, float]]) -> None:
    less, more = ([choose(pair) for pair in pairs] for choose in (min, max))
    assert wanted_workers(less, 1, 100) <= wanted_workers(more, 1, 100)


def test_a_change_that_fails_is_tried_again_later_and_later() -> None:
    steady, now = Steady(1, 10), 0.0
    tried = []
    for failures in range(1, 8):
        while not steady.look(now, "more"):
            now += 1
        tried.append(now)
        steady.rest(now, failures=failures)
    assert [b - a for a, b in pairwise(tried)] == [21, 41, 81, 161, 321, 321]
