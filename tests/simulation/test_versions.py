"""Versions of a flow over crashes: the sinks hold what the reference says, and breaks are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partialmethod
from itertools import chain, count
from typing import Any

import pytest

import emberflow as ef
from emberflow.checkpoint.cuts import backfills
from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Row, owned
from emberflow.engine.machines.cold import Cooling
from emberflow.engine.machines.group import GroupMachine
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.worker import succession
from emberflow.graph.versions import CarryPlan
from emberflow.runners.simulation.crashes import recovery as recovery_module
from emberflow.runners.simulation.crashes.recovery import CrashSimulation, Driver, Life
from emberflow.runners.simulation.crashes.storage import Manifest, Restorable
from tests.backfilled import BACKFILLED
from tests.effort import tried
from tests.simulation.cases import wrong_by
from tests.simulation.hunt import Break, Breaks, caught, hunted, name_of
from tests.simulation.versioned import VersionCase, judged_with_versions

CHUNK = 25

#: Items behind a restored state came two versions ago, and were not yet trimmed when the next one took over.
KEYS_OF_EARLIER_VERSIONS = VersionCase.of(30_114).with_faults(takeovers=0.0)


def test_what_was_scheduled_for_the_moment_of_a_backfill_is_in_the_cuts_behind_it() -> None:
    """A version begins at ``(21, 0)`` with a count whose last item was scheduled for 21; its workers crash."""
    judged_with_versions(VersionCase.of(2_000_052))


@pytest.mark.parametrize("first", range(0, tried("simulated versions"), CHUNK))
def test_the_sinks_have_what_the_reference_has(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        _, simulation = judged_with_versions(VersionCase.of(seed))
        lives = [life for life in simulation.lives if life.serves]
        assert lives[-1].version == len(simulation.versions) - 1
        assert [life.version for life in lives] == sorted(life.version for life in lives)
        happened["lost while it took over"] += len(simulation.lives) - len(lives)
        happened["before T"] += sum(life.version == 0 for life in lives) > 1
        happened["behind T"] += (
            sum(life.version > 0 for life in lives) > len(simulation.versions) - 1
        )
        happened["carried"] += sum(
            bool(life.cut.rows)
            for life in lives
            if life.cut and life.cut.manifest.version < life.version
        )
        happened["in memory"] += sum(life.predecessor is not None for life in lives)
        happened["timers"] += sum(
            bool(life.cut.scheduled)
            for life in lives
            if life.cut and life.cut.manifest.version < life.version
        )
        happened["backfilled"] += sum(
            version.plan is not None and bool(version.plan.backfills)
            for version in simulation.versions
        )
    seen = (
        *("backfilled", "before T", "behind T", "carried", "in memory", "timers"),
        "lost while it took over",
    )
    assert min(happened[what] for what in seen) > 4, happened


def test_items_behind_a_restored_state_keep_the_key_of_their_version() -> None:
    judged_with_versions(KEYS_OF_EARLIER_VERSIONS)


def test_workers_do_not_hand_over_at_a_cut_that_is_torn() -> None:
    """The next life would go on from an older cut than they did."""
    judged_with_versions(VersionCase.of(1_523))


def test_versions_are_simulated_by_users_too() -> None:
    def counted(key: Callable[[str], str]) -> ef.Flow:
        flow = ef.Flow("words")
        flow.front("words").key_by(key).count(name="counts").sink("out")
        return flow

    versions = ef.Versions(counted(str), (5, counted(str.lower)))
    words = [*"aAbBaAbBaA"]
    expected = ef.run(versions, words=words)
    for seed in range(5):
        assert ef.simulate(versions, words=words, seed=seed).outputs == expected
        assert ef.simulate(versions, words=words, seed=seed, crashes=2).outputs == expected
    with pytest.raises(ef.InputError, match="queries of one flow"):
        ef.simulate(versions, words=words, queries=[{"counts": ["a"]}])


def test_a_migration_that_raises_ends_the_run_with_its_error() -> None:
    old, new = ef.Flow("words"), ef.Flow("words")
    for flow in (old, new):
        flow.front("words").key_by(str).count(name="counts").sink("out")
    wrong = ef.Migrate("counts", lambda key, value: key / value)
    versions = ef.Versions(old, (2, new, {"counts": wrong}))
    with pytest.raises(ef.EmberflowError, match=r"migration of step .* key 'a'"):
        ef.simulate(versions, words=["a", "a", "a"])


# --- Breaks ----------------------------------------------------------------------------------------

#: They may return the simulation to run.
breaks = Breaks()


def with_translation(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[[Restorable], Restorable]
) -> None:
    true = recovery_module.translated_cut
    monkeypatch.setattr(recovery_module, "translated_cut", lambda *given: changed(true(*given)))


@breaks
def a_timer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_translation(monkeypatch, lambda cut: cut._replace(scheduled=[]))


@breaks
def a_timer_is_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with_translation(monkeypatch, lambda cut: cut._replace(scheduled=2 * cut.scheduled))


@breaks
def state_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_translation(monkeypatch, lambda cut: cut._replace(rows=[]))


@breaks
def items_of_groups_are_carried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(cut: Restorable) -> Restorable:
        return cut._replace(rows=[row for row in cut.rows for _ in range(2)])

    with_translation(monkeypatch, twice)


@breaks
def a_migration_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    true = recovery_module.translated_cut

    def translated_cut(cut: Restorable, plan: CarryPlan) -> Restorable:
        found = true(cut, plan)
        migrations = {carried.new: carried.migrate for carried in plan.carried.values()}
        rows = [
            row if migrate is None else row._replace(payload=migrate(row.key, row.payload))
            for row in found.rows
            for migrate in [migrations[row.operation]]
        ]
        return found._replace(rows=rows)

    monkeypatch.setattr(recovery_module, "translated_cut", translated_cut)


class InBoth(CrashSimulation):
    """The first element of a version goes through the one before it as well."""

    def run(self, elements: Any = ()) -> Any:
        for old, new in zip(self.versions, self.versions[1:], strict=False):
            for front, entries in new.sources.items():
                if front in old.sources:
                    old.sources[front].extend(entries[:1])
        return super().run(elements)


class InNeither(CrashSimulation):
    """The first element of a version is lost."""

    def run(self, elements: Any = ()) -> Any:
        for new in self.versions[1:]:
            for entries in new.sources.values():
                del entries[:1]
        return super().run(elements)


@breaks
def an_element_is_in_both_versions(monkeypatch: pytest.MonkeyPatch) -> type[CrashSimulation]:
    return InBoth


@breaks
def an_element_is_in_neither_version(monkeypatch: pytest.MonkeyPatch) -> type[CrashSimulation]:
    return InNeither


@breaks
def cuts_do_not_say_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Manifest.__new__

    def nameless(cls: Any, *given: Any) -> Any:
        return true(cls, *given[:5])

    monkeypatch.setattr(recovery_module, "Manifest", lambda *given: nameless(Manifest, *given))


@breaks
def a_version_goes_on_from_an_increment_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Driver.start_workers

    def start_workers(driver: Driver) -> None:
        true(driver)
        if driver.life.cut is not None:
            driver._committed = driver.life.cut.manifest

    monkeypatch.setattr(Driver, "start_workers", start_workers)


@breaks
def a_version_goes_on_at_positions_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Life.__init__

    def made(life: Life, *given: Any) -> None:
        true(life, *given)
        for front in [front for process in life.processes for front in process.fronts]:
            if life.cut is not None:
                front._begun_at = front._position = life.cut.manifest.positions.get(front.index, 0)

    monkeypatch.setattr(Life, "__init__", made)


def only_in_memory(content: Iterable[Any]) -> Iterator[Row]:
    return (row for row in content if isinstance(row, Row))


def with_inheritance(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any, Any, Any, Any], bool]
) -> None:
    """``changed`` is called with the true method, the machine, the one that it inherits from, and T."""
    for machine in (ReduceMachine, GroupMachine, AccessMachine):
        monkeypatch.setattr(machine, "inherit", partialmethod(_calling, changed, machine.inherit))


def _calling(machine: Any, changed: Any, true: Any, other: Any, moment: Any) -> bool:
    return bool(changed(true, machine, other, moment))


@breaks
def heirs_take_what_is_noted_nowhere_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "all", lambda changes: [])


@breaks
def a_version_lets_out_before_its_cut_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Driver._take_over

    def restored(driver: Driver, index: int) -> None:
        driver._unrestored.discard(index)
        if not driver._unrestored:
            driver._go()
            life, held = driver.life, driver._held
            if held is not None:
                driver.later(60, lambda: late(driver, life, held))

    def late(driver: Driver, life: Life, held: Manifest) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Driver, "_go", lambda driver: None)
            true(driver, life, held)

    monkeypatch.setattr(Driver, "restored", restored)


@breaks
def heirs_take_what_is_not_below_t(monkeypatch: pytest.MonkeyPatch) -> None:
    with_inheritance(
        monkeypatch, lambda true, machine, other, moment: true(machine, other, AFTER_ALL)
    )


@breaks
def heirs_take_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_inheritance(monkeypatch, lambda true, machine, other, moment: True)


@breaks
def heirs_forget_cold_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cooling, "inherit_cold", lambda machine, other, moment: None)


@breaks
def heirs_forget_cold_keys_of_steps_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "rows_in", only_in_memory)


@breaks
def heirs_take_state_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(true: Any, machine: Any, other: Any, moment: Any) -> bool:
        true(machine, other, moment)
        return False

    with_inheritance(monkeypatch, twice)


@breaks
def heirs_make_keys_of_what_they_did_not_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReduceMachine, "_of_earlier_versions", lambda machine, given: [])


@breaks
def heirs_forget_what_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "kept_timers", lambda worker, moment, **how: iter(()))


def with_backfills(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any, Any], Any]) -> None:
    """``changed`` gets the rows and the scheduled items that a version begins with; in the runs, not in the
    reference."""
    true = recovery_module.all_rows
    monkeypatch.setattr(recovery_module, "all_rows", lambda plan: changed(*true(plan)))


@breaks
def what_was_backfilled_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backfills(monkeypatch, lambda rows, due: ([*rows, *rows], [*due, *due]))


@breaks
def what_was_backfilled_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backfills(monkeypatch, lambda rows, due: ([], due))


@breaks
def what_a_backfill_has_scheduled_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_backfills(monkeypatch, lambda rows, due: (rows, []))


@breaks
def rows_of_a_backfill_go_to_the_wrong_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory; from a cut, whoever restores it gives out all rows alike."""
    monkeypatch.setattr(
        recovery_module,
        "owned",
        lambda rows, index, owners: owned(rows, (index + 1) % owners.workers, owners),
    )


@breaks
def every_worker_takes_all_rows_of_a_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_module, "owned", lambda rows, index, owners: rows)


@breaks
def a_backfill_of_another_time_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its elements end some time before the version begins; the reference has the right one."""

    def earlier(plan: CarryPlan) -> Any:
        found: tuple[list[Any], list[Any]] = ([], [])
        for backfill in plan.backfills:
            shorter = BACKFILLED[backfill.cut.checkpoint](4)
            name, _ = backfills.known_cut(shorter)
            rows, due = backfills.rows_of(replace(backfill, cut=name))
            found[0].extend(rows)
            found[1].extend(item for item in due if item.place[0] >= backfill.cut.moment[0])
        return found

    monkeypatch.setattr(recovery_module, "all_rows", earlier)


@pytest.mark.parametrize("broken", hunted(breaks, name_of))
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = broken(monkeypatch) or CrashSimulation

    @wrong_by
    def wrong(case: VersionCase) -> None:
        judged_with_versions(case, kind=kind)

    is_rare = broken is heirs_make_keys_of_what_they_did_not_map
    cases = chain([KEYS_OF_EARLIER_VERSIONS] if is_rare else [], map(VersionCase.of, count()))
    told = caught(name_of(broken), cases, wrong, 500)
    assert "nobody noticed" not in told, told
