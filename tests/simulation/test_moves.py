"""Slices move between workers over crashes: the sinks hold what the reference says, and breaks are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from emberflow.engine.cuts.cut import KeptTicks
from emberflow.engine.cuts.pending import PendingTicks
from emberflow.engine.cuts.resting import TicksInMemory
from emberflow.engine.machines.cold import Cooling, RowsInMemory
from emberflow.engine.machines.group import GroupMachine
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.machines.ticking import Ticks
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.staffing import Staffing
from emberflow.engine.worker import succession
from emberflow.engine.worker.succession import StateAhead
from emberflow.engine.worker.worker import Worker
from emberflow.runners.simulation.crashes import processes as processes_module
from emberflow.runners.simulation.crashes import recovery as recovery_module
from emberflow.runners.simulation.crashes.processes import FrontOfProcess, WorkerProcess
from emberflow.runners.simulation.crashes.recovery import CrashSimulation, Life
from emberflow.values.owners import Owners
from tests.effort import tried
from tests.simulation.crash_cases import CrashCase, judged_with_crashes, wrong
from tests.simulation.hunt import Break, Breaks, caught, hunted, name_of
from tests.simulation.transactional import judged_with_crashes_and_cuts, transactions_with_moves

CHUNK = 25


@pytest.mark.parametrize("first", range(0, tried("simulated moves of slices"), CHUNK))
def test_the_sinks_have_what_the_reference_has(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        _, simulation = judged_with_crashes(CrashCase.moving(seed))
        happened += what_happened(simulation)
    assert happened["moved in memory"] > 6, happened
    assert happened["grown"] > 0, happened
    assert happened["shrunk"] > 0, happened
    assert happened["as many workers"] > 3, happened
    assert happened["rows that moved"] > 10, happened
    assert happened["replaced"] > 0, happened
    assert happened["renumbered"] > 0, happened
    assert happened["lost afterwards"] > 1, happened


@pytest.mark.parametrize("first", range(0, tried("simulated moves of ticks"), CHUNK))
def test_windows_close_once_wherever_their_keys_have_moved(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        _, simulation = judged_with_crashes(CrashCase.ticking(seed))
        happened += what_happened(simulation)
    assert happened["moved in memory"] > 6, happened


def what_happened(simulation: CrashSimulation) -> Counter[str]:
    happened: Counter[str] = Counter()
    lives = simulation.lives
    for life, following in zip(lives, [*lives[1:], None], strict=True):
        before = life.predecessor
        if before is None or life.cut is None:
            continue
        happened["moved in memory"] += 1
        happened["grown"] += life.workers > before.workers
        happened["shrunk"] += life.workers < before.workers
        happened["as many workers"] += life.workers == before.workers
        staffing = life.staffing
        if staffing is not None:
            happened["replaced"] += any(number < before.workers for number in staffing.added)
            happened["renumbered"] += any(old != new for old, new in staffing.stays.items())
        happened["rows that moved"] += sum(
            life.owners.owner(row.key_hash) != before.owners.owner(row.key_hash)
            for row in life.cut.rows
        )
        happened["lost afterwards"] += following is not None and following.predecessor is None
    return happened


def test_a_driver_that_stands_by_takes_over_and_the_first_one_comes_back() -> None:
    taken = came_back = 0
    for seed in range(tried("simulated drivers that stand by")):
        _, simulation = judged_with_crashes(CrashCase.standing_by(seed))
        assert simulation.standby is not None
        taken += simulation.standby.takeovers
        came_back += simulation.standby.came_back
    assert taken > 6
    assert came_back > 2


def test_transactions_go_on_while_slices_move() -> None:
    moved = 0
    for seed in range(8):
        judged_with_crashes_and_cuts(transactions_with_moves(seed))
        moved += 1
    assert moved


def test_a_cut_of_everything_behind_cuts_that_were_given_up_has_all_keys() -> None:
    """One of everything was given up, then one of what had changed, and then all was to be saved."""
    judged_with_crashes(CrashCase.ticking(20_161))


def test_a_key_that_went_and_came_back_is_in_a_cut_once() -> None:
    """Cuts before it were lost, and had noted the bucket that it had then."""
    judged_with_crashes(CrashCase.moving(60_109))


@pytest.mark.parametrize("broken", ["is_followed", "end_if_followed"])
def test_a_driver_that_does_not_look_for_its_successor_is_caught(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda driver: False) if broken == "is_followed" else lambda driver: False
    monkeypatch.setattr(recovery_module.Driver, broken, never)
    told = caught(broken, map(CrashCase.standing_by, count()), wrong, 300)
    assert "has a successor" in told, told


# --- Breaks ----------------------------------------------------------------------------------------

breaks = Breaks()


def with_move(monkeypatch: pytest.MonkeyPatch, changed: Callable[..., Any]) -> None:
    """``changed`` is called with the true function, then with what it is given."""
    true = recovery_module.move
    monkeypatch.setattr(recovery_module, "move", lambda *given, **how: changed(true, *given, **how))


@breaks
def a_slice_is_owned_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old owner keeps what the new one gets."""
    for machine in (ReduceMachine, GroupMachine, AccessMachine):
        monkeypatch.setattr(machine, "give_away", lambda machine, owners, worker: True)


@breaks
def rows_of_a_slice_go_to_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_module, "owned", lambda rows, index, owners: list(rows))


@breaks
def a_slice_is_owned_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with_move(
        monkeypatch,
        lambda true, old, new, moment, owners, rows, *given, **how: true(
            old, new, moment, owners, rows[1:], *given, **how
        ),
    )


@breaks
def a_number_is_taken_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gets the number of a worker that leaves is taken to have had its slices."""
    monkeypatch.setattr(Staffing, "renamed", lambda staffing, owners: owners)


@breaks
def cold_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsInMemory, "keep_only", lambda store, ranges: store.rows.clear())


@breaks
def cold_keys_stay_with_the_old_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsInMemory, "keep_only", lambda store, ranges: None)


@breaks
def what_has_left_goes_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not dropped before keys are evicted, and comes back with its slice."""
    monkeypatch.setattr(Cooling, "drop_left", lambda machine, most=None: machine.left.clear())


@breaks
def what_was_scheduled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "kept_timers", lambda worker, moment, **how: iter(()))


@breaks
def what_a_leaving_worker_has_scheduled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(true: Any, *given: Any, keeps_scheduled: bool) -> Any:
        return true(*given[:-1], [], keeps_scheduled=True)

    with_move(monkeypatch, changed)


@breaks
def what_is_scheduled_is_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_move(
        monkeypatch,
        lambda true, *given, keeps_scheduled: true(*given, keeps_scheduled=True),
    )


@breaks
def state_is_copied_but_a_later_change_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that move are those of the cut before the last one."""

    true = Life._moved

    def moved(life: Life, before: Any, cut: Any, index: int, worker: Worker) -> Any:
        cuts = life.storage.cuts
        parents = [one for one in cuts.manifests if one.number == cut.manifest.parent]
        older = cuts.restorable(parents[0]) if parents else None
        if older is not None:
            cut = cut._replace(rows=older.rows)
        return true(life, before, cut, index, worker)

    monkeypatch.setattr(Life, "_moved", moved)


@breaks
def what_changed_since_it_was_copied_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    true = recovery_module.copied_ahead
    monkeypatch.setattr(recovery_module, "copied_ahead", lambda *given: true(*given)[:1])


@breaks
def what_was_made_ahead_is_not_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateAhead, "replace", lambda ahead, *given: None)


@breaks
def what_was_made_ahead_stays_beside_what_corrects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groupings, whose buckets have several rows."""

    def replace(ahead: StateAhead, moment: Any, step: str, keys: Any, rows: list[Any]) -> None:
        ahead._machines[step].restore(moment, rows)

    monkeypatch.setattr(StateAhead, "replace", replace)


@breaks
def what_is_scheduled_later_is_not_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    true, known = StateAhead.schedule, set[int]()

    def schedule(ahead: StateAhead, *given: Any) -> None:
        if id(ahead) not in known:
            true(ahead, *given)
        known.add(id(ahead))

    monkeypatch.setattr(StateAhead, "schedule", schedule)


@breaks
def ticks_of_keys_that_come_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticks, "take_in", lambda ticks, other, moment: None)


@breaks
def ticks_of_keys_that_stay_cold_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    true = StateAhead.hand_over

    def hand_over(ahead: StateAhead, *given: Any) -> None:
        for step in ahead._machines.keys() - ahead.steps:
            del ahead._machines[step]
        true(ahead, *given)

    monkeypatch.setattr(StateAhead, "hand_over", hand_over)


@breaks
def ticks_of_keys_that_come_are_in_no_later_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingTicks, "take_in", lambda pending, other: None)


@breaks
def ticks_of_keys_that_stay_are_in_no_later_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def inherit(pending: PendingTicks, other: PendingTicks, moment: Any) -> None:
        pending._since = moment

    monkeypatch.setattr(PendingTicks, "inherit", inherit)


@breaks
def ticks_of_keys_that_leave_run_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticks, "_owned", lambda ticks, mixed: mixed)


@breaks
def ticks_at_rest_are_in_no_later_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TicksInMemory, "kept", lambda ticks, moment: KeptTicks(lambda: iter(())))


@breaks
def ticks_that_were_at_rest_are_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingTicks, "woken", lambda pending, ticks: None)


@breaks
def ticks_at_rest_stay_when_slices_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TicksInMemory, "keep_only", lambda ticks, ranges: None)


@breaks
def nobody_waits_for_ticks_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticks, "_look_at_rest", lambda ticks, resting: None)


@breaks
def all_ticks_are_sent_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are kept in memory as well."""
    true = succession.kept_timers
    monkeypatch.setattr(
        succession,
        "kept_timers",
        lambda worker, moment, **how: true(worker, moment, ticks_too=True),
    )


@breaks
def a_front_halts_before_t(monkeypatch: pytest.MonkeyPatch) -> None:
    """It promises T while it holds elements below it: these enter at the new owners."""
    true = FrontOfProcess._is_below_bound

    def is_below(front: FrontOfProcess, position: int) -> bool:
        return front._bound == AFTER_ALL and true(front, position)

    monkeypatch.setattr(FrontOfProcess, "_is_below_bound", is_below)


@breaks
def a_worker_sends_to_the_old_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames go where the table before sends them."""
    true = Life.new_worker

    def new_worker(life: Life, index: int, delivered: Any) -> Worker:
        owners, before = life.owners, life.predecessor
        if before is not None and before.workers == life.workers and index == 0:
            life.owners = before.owners
        try:
            return true(life, index, delivered)
        finally:
            life.owners = owners

    monkeypatch.setattr(Life, "new_worker", new_worker)


@breaks
def an_ack_goes_to_the_old_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the state of a move caused is acked under the life before it."""
    true = WorkerProcess._effects

    def effects(process: WorkerProcess, given: Any) -> None:
        life = process.life
        is_first = life.predecessor is not None and process.worker is not None
        if is_first and process._reading is None and given.ack:
            number, life.number = life.number, life.number - 1
            try:
                true(process, given)
            finally:
                life.number = number
        else:
            true(process, given)

    monkeypatch.setattr(processes_module.WorkerProcess, "_effects", effects)


@breaks
def the_cut_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owners go on from what the old ones have in memory, and from an older cut."""
    true = recovery_module.Driver._commit

    def commit(driver: Any, cut: Any) -> None:
        if driver._move is not None and cut.moment == driver._move.moment:
            driver._committed = None
            committed = driver.storage.cuts.commit
            driver.storage.cuts.commit = lambda manifest: None
            newest = driver.storage.cuts.newest
            driver.storage.cuts.newest = lambda: (
                found._replace(manifest=found.manifest._replace(moment=cut.moment))
                if (found := newest()) is not None
                else None
            )
            try:
                true(driver, cut)
            finally:
                driver.storage.cuts.commit, driver.storage.cuts.newest = committed, newest
        else:
            true(driver, cut)

    monkeypatch.setattr(recovery_module.Driver, "_commit", commit)


@breaks
def a_table_has_another_owner_for_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    true = recovery_module.owned

    def owned(rows: Any, index: int, owners: Owners) -> Any:
        return true(rows, (index + 1) % owners.workers, owners)

    monkeypatch.setattr(recovery_module, "owned", owned)


#: These show where windows close.
OF_TICKS = "tick"


@pytest.mark.parametrize("broken", hunted(breaks, name_of))
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    name = name_of(broken)
    case = CrashCase.ticking if OF_TICKS in name else CrashCase.moving
    told = caught(name, map(case, count()), wrong, 300)
    assert "nobody noticed" not in told, told
