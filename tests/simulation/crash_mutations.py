"""Ways to break recovery, each of which the simulation with crashes has to notice.

As in `mutations`, a mistake is put over the real thing from outside. Most are mistakes that a runner
can make, so they are put over the processes of the simulation; what they break is what the prose of
`engine/cut.py` asks of any runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import pytest

import emberflow as ef
from emberflow.engine.cuts.changes import Changes
from emberflow.engine.cuts.cut import Scheduled, combined, owned
from emberflow.engine.cuts.pending import Pending
from emberflow.engine.machines.group import GroupMachine
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.runners.simulation import Faults, Options
from emberflow.runners.simulation import network as network_module
from emberflow.runners.simulation.crashes import processes as processes_module
from emberflow.runners.simulation.crashes import recovery as recovery_module
from emberflow.runners.simulation.crashes import storage as storage_module
from emberflow.runners.simulation.crashes.processes import FrontOfProcess, Outlet, WorkerProcess
from emberflow.runners.simulation.crashes.recovery import Driver
from emberflow.runners.simulation.crashes.storage import (
    CutStorage,
    FrontLog,
    Restorable,
    SinkPartition,
)
from emberflow.values.item import FlatItem
from tests.simulation.crash_cases import CrashCase

Machines: TypeAlias = dict[str, Any]

#: The content of the sinks, or an item that is missing where a tombstone looks for it.
CONTENT = r"the reference has|the log of front"
#: What a life of its own can see already.
WITHIN = (
    r"nobody here sent|released .* after|the minimal time|found no item|emits .* below|promised"
    r"|was restored as of"
)
STUCK = r"has not ended its work|the minimal time stays|never entered"


@dataclass(frozen=True)
class CrashMutation:
    """A mistake: ``make`` puts it in and returns the machines to run."""

    make: Callable[[pytest.MonkeyPatch], Machines | None]
    caught_by: str
    cases: Callable[[], Iterable[CrashCase]]
    cases_most: int

    @property
    def name(self) -> str:
        return self.make.__name__.replace("_", " ")


CRASH_MUTATIONS: list[CrashMutation] = []


def seeds() -> Iterable[CrashCase]:
    return map(CrashCase.of, count())


def mutation(
    caught_by: str = CONTENT,
    *,
    cases: Callable[[], Iterable[CrashCase]] = seeds,
    most: int = 150,
) -> Callable[[Callable[[pytest.MonkeyPatch], Machines | None]], Any]:
    def noted(make: Callable[[pytest.MonkeyPatch], Machines | None]) -> Any:
        CRASH_MUTATIONS.append(CrashMutation(make, caught_by, cases, most))
        return make

    return noted


# --- Cases of their own ----------------------------------------------------------------------------


def dense() -> Iterable[CrashCase]:
    """Those with much state, and crashes in the middle of it."""
    for case in seeds():
        if case.name == "dense":
            yield case.with_faults(crash_events_max=500, crashes=4)


def arriving() -> Iterable[CrashCase]:
    """All fronts take arrival times, from clocks that are off by more than a pause lasts."""
    for case in seeds():
        everywhere = frozenset(front.index for front in case.graph.fronts.values())
        yield case.with_faults(arrival=everywhere, skew_ticks_max=500)


def idling() -> Iterable[CrashCase]:
    """Fronts that have nothing for most of the time, and say so at once."""
    for case in arriving():
        calm = replace(
            case.options, pause_ticks_max=40, skew=10, burst_max=1, delay_ticks_max=5, slowness=1
        )
        yield replace(case, options=calm).with_faults(log_ticks_max=1, sink_ticks_max=1)


def trimming() -> Iterable[CrashCase]:
    """Captures that take long, while everything is trimmed at once."""
    for case in dense():
        slow = case.with_faults(capture_limit=1, capture_ticks_max=10, cut_ticks=1)
        yield replace(slow, trims_always=True)


def trimming_over_slow_links() -> Iterable[CrashCase]:
    """The same, and some ranges are far ahead of others."""
    for case in trimming():
        yield replace(
            case, options=replace(case.options, slow_links=0.3, slowness=200, delay_ticks_max=10)
        )


def torn() -> Iterable[CrashCase]:
    for case in dense():
        yield case.with_faults(torn=1.0, cut_ticks=1)


def losing() -> Iterable[CrashCase]:
    """Every other cut is given up, just before it would have been committed."""
    for case in dense():
        yield case.with_faults(
            cuts_lost=0.1, cut_ticks=1, torn=0.0, capture_ticks_max=1, sink_ticks_max=10
        )


def storing_slowly() -> Iterable[CrashCase]:
    for case in dense():
        yield case.with_faults(
            sink_ticks_max=300, write_ticks_max=1, capture_ticks_max=1, cut_ticks=1, lingers=0.0
        )


def lingering() -> Iterable[CrashCase]:
    """What was replaced lives on, behind links that are slow."""
    for case in seeds():
        slow = case.with_faults(lingers=1.0, linger_ticks_max=2000, restart_ticks_max=1)
        yield replace(slow, options=replace(case.options, slow_links=0.5, slowness=50))


def overtaken() -> Iterable[CrashCase]:
    """Sinks take long to store, and those that were replaced have more for them."""
    for case in lingering():
        slow = case.with_faults(sink_ticks_max=100, cut_ticks=100, arrival=frozenset())
        quick = replace(case.options, slow_links=0.0, delay_ticks_max=5, credit=20)
        yield replace(slow, options=quick)


def reminders() -> Iterable[CrashCase]:
    """Many items that are scheduled for long after, by what was scheduled itself."""
    flow = ef.Flow("reminders")
    names = flow.front("names")
    soon = names.with_time().map(lambda timed: ef.At(timed.time + 20, timed.payload))
    later = soon.with_time().map(lambda timed: ef.At(timed.time + 15, timed.payload))
    later.key_by(lambda name: name % 5).count().sink("out")
    for seed in count():
        yield CrashCase(
            name=flow.name,
            graph=flow.graph(),
            elements={"names": [ef.At(2 * time, time) for time in range(25)]},
            options=Options.drawn(seed, workers=1 + seed % 3),
            faults=Faults.drawn(seed, crashes=3),
            again=f"case {seed} of its flow",
        )


# --- What is released ------------------------------------------------------------------------------


@mutation()
def release_before_asking_the_sink(patch: pytest.MonkeyPatch) -> None:
    """What it has is found out when it is told to store, which is too late for the barrier."""
    patch.setattr(WorkerProcess, "ask_sinks", lambda self: self._restore())
    original = Outlet._try

    def try_(self: Outlet) -> None:
        self.last = self._sink.last
        original(self)

    patch.setattr(Outlet, "_try", try_)


@mutation(cases=overtaken)
def believe_an_answer_only_once(patch: pytest.MonkeyPatch) -> None:
    """A refused bundle loses what the sink has; what is released after it does not (seed 243 once)."""

    def add(self: Outlet, items: list[FlatItem]) -> None:
        self._items += items
        self._store()

    patch.setattr(Outlet, "add", add)


@mutation()
def store_half_a_bundle(patch: pytest.MonkeyPatch) -> None:
    """A sink that shows what a crash left of a bundle."""
    begin = SinkPartition.begin

    def shown(self: SinkPartition, items: list[FlatItem]) -> None:
        begin(self, items)
        self.items = [item for item in self.items if item not in self.torn] + self.torn

    def commit(self: SinkPartition, after: Moment, items: list[FlatItem], last: Moment) -> bool:
        if self.last != after:
            return False
        self.items = [item for item in self.items if item not in items] + items
        self.last = last
        return True

    patch.setattr(SinkPartition, "begin", shown)
    patch.setattr(SinkPartition, "commit", commit)


# --- Fences ----------------------------------------------------------------------------------------


@mutation(
    rf"{CONTENT}|{WITHIN}|{STUCK}|InternalError|AttributeError|AssertionError", cases=lingering
)
def forget_the_fence_of_messages(patch: pytest.MonkeyPatch) -> None:
    for module in (processes_module, recovery_module):
        patch.setattr(module, "is_of_another", lambda incarnation, own: False)


@mutation(cases=lingering)
def forget_the_fence_of_sinks(patch: pytest.MonkeyPatch) -> None:
    """A bundle is stored behind whatever is there."""
    commit = SinkPartition.commit
    patch.setattr(
        SinkPartition, "commit", lambda self, after, *bundle: commit(self, self.last, *bundle)
    )


@mutation(rf"{CONTENT}|{WITHIN}|IndexError", cases=lambda: both(arriving, lingering))
def forget_the_fence_of_logs(patch: pytest.MonkeyPatch) -> None:
    """Who was replaced goes on to write."""
    append = FrontLog.append
    patch.setattr(
        FrontLog, "append", lambda self, incarnation, *entry: append(self, self._writer, *entry)
    )


def both(
    one: Callable[[], Iterable[CrashCase]], other: Callable[[], Iterable[CrashCase]]
) -> Iterable[CrashCase]:
    for first, second in zip(one(), other(), strict=False):
        faults = replace(
            second.faults, arrival=first.faults.arrival, skew_ticks_max=first.faults.skew_ticks_max
        )
        yield replace(second, faults=faults)


# --- Connections ---------------------------------------------------------------------------------


def breaking() -> Iterable[CrashCase]:
    """Connections break under load, and it takes long until anybody notices."""
    for case in seeds():
        yield case.with_faults(breaks=1.0, crashes=4, crash_events_max=100, restart_ticks_max=200)


@mutation(rf"{CONTENT}|{WITHIN}|{STUCK}|InternalError", cases=breaking)
def take_what_comes_behind_a_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(network_module, "takes_behind_a_gap", lambda: True)


@mutation(STUCK, cases=breaking)
def do_not_notice_that_a_connection_broke(patch: pytest.MonkeyPatch) -> None:
    """The last messages of a link are lost, and nothing comes behind them to show the gap."""
    hears = Driver.hears_of_death

    def deaf(self: Driver, life: recovery_module.Life) -> Callable[[], None]:
        broke = all(process.alive for process in life.processes)
        return (lambda: None) if broke else hears(self, life)

    patch.setattr(Driver, "hears_of_death", deaf)


# --- Logs of fronts --------------------------------------------------------------------------------


@mutation(rf"{CONTENT}|{WITHIN}", cases=arriving)
def report_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    append, report = FrontLog.append, FrontOfProcess._report

    def at_once(self: FrontOfProcess, new_times: list[int]) -> None:
        report(self, new_times)
        self._process.enter(self._node, [], {self.index: self._gate.promise})

    def silently(self: FrontLog, *entry: Any) -> bool:
        append(self, *entry)
        return False  # and is not reported again

    patch.setattr(FrontOfProcess, "_report", at_once)
    patch.setattr(FrontLog, "append", silently)


@mutation(rf"{CONTENT}|{WITHIN}", cases=idling)
def log_no_promises(patch: pytest.MonkeyPatch) -> None:
    """Only the times of elements, and not what was promised while there were none."""
    append = FrontLog.append
    patch.setattr(
        FrontLog,
        "append",
        lambda self, incarnation, times, promise: append(
            self, incarnation, times, times[-1] + 1 if times else self.promise
        ),
    )


@mutation(rf"{CONTENT}|{WITHIN}", cases=arriving)
def give_new_times_on_replay(patch: pytest.MonkeyPatch) -> None:
    begin = FrontOfProcess.begin

    def forgetful(self: FrontOfProcess) -> None:
        self._log.times = self._log.times[: self._position]
        begin(self)

    patch.setattr(FrontOfProcess, "begin", forgetful)


# --- What is in a cut ------------------------------------------------------------------------------


@mutation(cases=reminders)
def forget_what_is_scheduled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage_module, "combined", lambda cuts, moment: (combined(cuts, moment)[0], []))


@mutation(rf"{CONTENT}|{WITHIN}", cases=reminders)
def save_what_is_scheduled_by_its_own_time_alone(patch: pytest.MonkeyPatch) -> None:
    """Also what was scheduled from at or above the cut, which the replay schedules again."""
    capture = Pending.capture

    def more(self: Pending, moment: Moment, since: Moment) -> Any:
        known = [
            ((*place,), origin, payload)
            for (place, mark), (origin, payload) in self._open.items()
            if origin >= moment and not mark & 1
        ]
        yield from capture(self, moment, since)
        for place, origin, payload in known:
            yield Scheduled(self.operation, 0, origin, place, payload)

    patch.setattr(Pending, "capture", more)


@mutation(rf"{CONTENT}|{WITHIN}")
def save_the_speculated_future(patch: pytest.MonkeyPatch) -> None:
    for machine in (GroupMachine, ReduceMachine):
        for name in ("looked_at", "rows_of"):
            found = getattr(machine, name)
            patch.setattr(
                machine,
                name,
                lambda self, given, moment, since, found=found, **more: found(
                    self, given, AFTER_ALL, since, **more
                ),
            )


@mutation(cases=trimming)
def trim_what_a_cut_under_way_needs(patch: pytest.MonkeyPatch) -> None:
    """And has not come to yet."""
    patch.setattr(Changes, "unseen", lambda self, buckets: [])


@mutation(cases=trimming)
def forget_what_trims_took_for_a_cut(patch: pytest.MonkeyPatch) -> None:
    trim = Trimmed.trim

    def forgetful(self: Trimmed[Any], minimal: Moment, most: int | None = None) -> None:
        trim(self, minimal, most)
        self._taken_by_trims = []

    patch.setattr(Trimmed, "trim", forgetful)


@mutation(cases=trimming_over_slow_links, most=400)
def trim_by_the_own_range(_: pytest.MonkeyPatch) -> Machines:
    """Which may be ahead of the minimal time of all, where the next cut will be."""

    class Mutant(Worker):
        def tidy(self, *, is_waited_for: bool = False) -> None:
            with self.ahead():
                super().tidy(is_waited_for=is_waited_for)

        def trim(self, most: int | None = None) -> None:
            with self.ahead():
                super().trim(most)

        @contextmanager
        def ahead(self) -> Iterator[None]:
            of_all = self.retention.minimal
            self.retention.minimal = self.minimal
            yield
            self.retention.minimal = of_all

    return {"worker": Mutant}


@mutation(cases=losing)
def count_changes_from_the_last_cut_begun(patch: pytest.MonkeyPatch) -> None:
    """And not from the last one committed."""
    begin = Changes.begin

    def forgetful(self: Changes[Any], moment: Moment, more: list[Any]) -> None:
        self._ahead, self._captured = [], {}
        begin(self, moment, more)

    patch.setattr(Changes, "begin", forgetful)


@mutation(cases=dense)
def note_no_bucket_that_a_trim_is_done_with(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "note_all", lambda self, buckets: None)


@mutation(cases=dense)
def note_no_bucket_that_is_begun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changes, "note", lambda self, bucket: None)


# --- Which cut, and when ---------------------------------------------------------------------------


@mutation(rf"{CONTENT}|{WITHIN}")
def restore_the_wrong_cut(patch: pytest.MonkeyPatch) -> None:
    """The state of the cut before, at the positions of the last one."""
    newest = CutStorage.newest

    def wrong(self: CutStorage) -> Restorable | None:
        found = newest(self)
        if found is None or found.manifest.parent is None:
            return found
        before = CutStorage()
        before.parts = self.parts
        chain = self.chain(found.manifest)[:-1]
        before.manifests = chain
        earlier = newest(before)
        return None if earlier is None else earlier._replace(manifest=found.manifest)

    patch.setattr(CutStorage, "newest", wrong)


@mutation()
def restore_only_the_last_increment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CutStorage, "chain", lambda self, manifest: [manifest])


@mutation(cases=torn)
def restore_a_torn_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CutStorage, "is_whole", lambda self, name, rows: True)


@mutation(cases=storing_slowly)
def commit_before_the_sinks_have_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerProcess, "has_stored_below", lambda self, moment: True)


@mutation(rf"{CONTENT}|{WITHIN}", most=300)
def commit_without_all_parts(patch: pytest.MonkeyPatch) -> None:
    """As soon as the first worker has stored its own."""
    stored = Driver.part_is_stored

    def hasty(
        self: Driver, number: int, index: int, part: tuple[str, int], positions: dict[int, int]
    ) -> None:
        if self._cut is not None and self._cut.number == number:
            self._cut.missing = {index}
            every = {
                f.index: f.position_at(self._cut.moment)
                for p in self.life.processes
                for f in p.fronts
            }
            positions = {**every, **positions}
        stored(self, number, index, part, positions)

    patch.setattr(Driver, "part_is_stored", hasty)


@mutation(rf"{CONTENT}|{WITHIN}")
def replay_from_one_too_early(patch: pytest.MonkeyPatch) -> None:
    position_at = FrontOfProcess.position_at
    patch.setattr(
        FrontOfProcess, "position_at", lambda self, moment: max(0, position_at(self, moment) - 1)
    )


@mutation(rf"{CONTENT}|{WITHIN}|{STUCK}")
def replay_from_one_too_late(patch: pytest.MonkeyPatch) -> None:
    position_at = FrontOfProcess.position_at

    def too_late(self: FrontOfProcess, moment: Moment) -> int:
        return min(position_at(self, moment) + 1, len(self._source))

    patch.setattr(FrontOfProcess, "position_at", too_late)


@mutation(rf"{CONTENT}|{WITHIN}", cases=reminders)
def report_before_what_was_restored_is_acked(patch: pytest.MonkeyPatch) -> None:
    """A worker says that it is ready, and emits what was scheduled a little later."""
    restore = Worker.restore

    def in_two_steps(self: WorkerProcess) -> None:
        cut = self.life.cut
        with pytest.MonkeyPatch.context() as within:
            within.setattr(
                Worker, "restore", lambda self, moment, rows, _: restore(self, moment, rows, [])
            )
            original(self)
        if cut is not None:
            scheduled = owned(cut.scheduled, self.index, self.life.owners)
            self.later(
                20, lambda: self._effects(self.worker.restore(cut.manifest.moment, [], scheduled))
            )

    original = WorkerProcess._restore
    patch.setattr(WorkerProcess, "_restore", in_two_steps)
