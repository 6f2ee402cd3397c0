"""Supervision: one life of the workers after another, until the query is over.

A *life* (an incarnation) is a coordinator and its workers. When something is lost (a worker, an
executor, a connection, a heartbeat), the supervisor ends the whole life, and begins the next one from the
last committed cut. Workers recompute everything to the byte and barriers ask their sinks what is stored,
so the output is the same and only later.

**A lost worker is one lost worker.** Its task's process, the keeper, forks another one, and those that are
left stay (`processes`). The supervisor claims the next life meanwhile, waits until all processes are free,
and sends them its plan. Whatever else is lost, or if they are not free soon, it ends the Spark job and
starts another one: after the loss of an executor or a keeper, while another version takes over, and where
the port of the coordinator is fixed.

A life must not change anything once the next one has begun. Messages carry the number of their life,
and other lives drop them. Readers refuse cuts and logs of an older life (`checkpoint`). A bundle that
an older life still stores is identical to the one that the next life would have stored, and a sink
refuses to store a bundle twice (`sinks`).

A disk that takes no writes (it is full, or read-only) loses no query: the supervisor begins the next life
when the disk takes them again, and such lives do not count among those without progress.

**A driver that has a successor ends.** Somebody who starts the program again takes the query over, also
from a driver that was only cut off. The successor claims the next incarnation of the checkpoint. From then
on the older driver begins no other life: the claim refuses it, in one step. It finds out when a life
ends, and by looking every few seconds; its error says who took over. Without a common checkpoint nobody
claims anything, and only sinks tell that somebody else has opened them (`SinkMovedError`). An old worker
of the same query may do that once, so the supervisor begins another life once; when the sinks of that
life are taken over too, the query ends. A driver that stands by takes over when the lease of this one
lapses (`checkpoint.lease`).

**A new version of the flow** takes over between two lives. The supervisor lets the fronts halt, as for a
stop: what is below the last moment of the old version is stored, and its last cut is at that moment. (After
a loss they halt only once all is computed again that sinks have already: it is of the old version.) The
next life is of the new version, and restores that cut translated (`graph.versions`). When all workers
have restored, the driver notes the new version with the cut, and only then it begins to run. Until then
nothing has changed: if a worker cannot restore, because a migration raises or a module is missing, the
next life is of the old version again, and whoever asked for the new one gets the error. From then on there
is no way back.

If the new version has the same fronts, and its sinks are new or the same, its workers are the same
processes, and so they need no other job (`_prepare`). Its coordinator and the loops of its workers are made
beside those that work, and meet. If that fails, nothing has happened. Then the old version halts, and its
last cut is stored and does not count yet. The new version takes the state over in memory, while the driver
claims its life; then the cut counts, with the note of the new version in it. A life that is lost on the way
has changed nothing: the next one is of the old version, and goes on from the cut before.

**Another number of workers** takes over in the same way (`rescale`): it is the same version, with another owner
table, and there is nothing to note.

Some errors would happen again, so they end the query at once: those of a user's function, of a front,
or of a sink (whose operations were retried before). So does an element that kills the process that
handles it: several lives in a row end at the same minimal time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle

from emberflow.checkpoint.cuts.backfills import check_begins, known_cut, planned
from emberflow.checkpoint.cuts.manifest import Manifest, fitted
from emberflow.checkpoint.cuts.store import CheckpointStore, Life
from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.files import is_unwritable
from emberflow.checkpoint.lease import LeaseHolder
from emberflow.dsl.versions import told
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts.protocol import FrontGrewError, front_contract
from emberflow.graph.description import steps_of
from emberflow.graph.versions import CarryPlan, has_backfills
from emberflow.runners.interpreter import driving
from emberflow.runners.live.driver.chronicle import Chronicle
from emberflow.runners.live.driver.cluster import ClusterError, check_cluster
from emberflow.runners.live.driver.coordinator import (
    Coordinator,
    Inheritance,
    OtherVersion,
    WorkersMissingError,
)
from emberflow.runners.live.driver.cuts import CutCommitter
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.driver.takeover import check_fronts, check_not_ahead
from emberflow.runners.live.life import (
    Settings,
    committer_of,
    coordinator_of,
    have_same_fronts,
    inherited_sinks,
    plan_of,
)
from emberflow.runners.live.processes.jobs import Job, Jobs
from emberflow.runners.live.processes.launch import JobFailedError
from emberflow.runners.live.processes.roster import Roster
from emberflow.runners.live.rescale import check_rescale, not_there, rescaled
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.wire.sockets import WireError, WireKeys
from emberflow.runners.live.worker.link import CoordinatorGoneError
from emberflow.sinks.protocol import SinkMovedError
from emberflow.sinks.writer import WriterThread
from emberflow.values.item import GlobalTime
from emberflow.values.owners import Owners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The query ends when so many lives in a row are lost while the minimal time does not advance.
LIVES_WITHOUT_PROGRESS_MAX = 4
#: How long the supervisor waits for a coordinator or a writer that is to end.
_END_SECONDS = 3.0
_PAUSE_SECONDS = 0.05
#: How long the supervisor waits for the processes that are left; and how long for those that are stuck,
#: before it lets their keepers replace them.
_GATHER_SECONDS = 5.0
_PATIENCE_SECONDS = 1.0
#: The pause before the next life, or the next attempt at it, while the disk takes no writes.
_UNWRITABLE_SECONDS = 2.0
#: How often the supervisor looks whether another driver has claimed the checkpoint.
_LOOK_SECONDS = 2.0
#: A new version that loses so many lives before it runs does not take over.
_TAKEOVERS_LOST_MAX = 3
#: The numbers of lives that run beside others.
_SHADOWS_FROM = 1 << 32
#: The query ends when so many lives in a row end because others have opened their sinks.
_MOVED_MAX = 2


class WorkerLostError(EmberflowError):
    """A worker's process has died, and another one is there for it."""


#: Losses after which another life may succeed.
_LOST = (
    JobFailedError,
    WorkerLostError,
    WorkersMissingError,
    CoordinatorGoneError,
    WireError,
    SinkMovedError,
    ClusterError,
    FrontGrewError,
    OSError,
)


def _begins_with(plan: Plan) -> str:
    """The state that a life begins with."""
    cut = plan.restored
    return "with no state" if cut is None else f"from cut {cut.number}"


def _wait_for_the_end(shadow: Coordinator) -> None:
    """Wait for a version beside the one that has ended, as long as it goes on: it has got all elements."""
    before: Moment | None = None
    while not shadow.wait(_END_SECONDS) and shadow.progress.of_all() != before:
        before = shadow.progress.of_all()


class PoisonedError(EmberflowError):
    """Several lives were lost at the same minimal time; the last loss is the ``__cause__``."""


class _Upgrade:
    """A version, or another number of workers, that is to take over, and what has become of it."""

    def __init__(
        self, settings: Settings, before: Settings, at: Moment | None, *, is_rescale: bool = False
    ) -> None:
        self.settings = settings
        self.before = before
        #: The moment at which it takes over; None for as soon as possible.
        self.at = at
        self.over = threading.Event()
        self.failure: BaseException | None = None
        #: How many lives of the new version were lost before it ran.
        self.lost = 0
        #: Whether one of them was lost when the checkpoint said already that it has taken over.
        self.is_noted = False
        #: The coordinator that takes over in place, and the plan of its life.
        self.successor: tuple[Plan, Coordinator] | None = None
        #: Whether only the owners change; the coordinator that was asked last to hand over; and the job of
        #: the workers that are added.
        self.is_rescale = is_rescale
        self.asked: Coordinator | None = None
        self.job: Job | None = None
        #: Whether all workers have made its loops.
        self.is_prepared = False

    @property
    def told(self) -> str:
        """What takes over, if only the owners change."""
        before, settings = self.before, self.settings
        if settings.workers != before.workers:
            return f"{before.workers} to {settings.workers} workers"
        return f"{settings.owners.moved(before.owners)} slices"

    def waits_for(self, coordinator: Coordinator) -> bool:
        """Whether this one is to take over in place, and has not been given up."""
        return self.successor is not None and self.successor[1] is coordinator

    def end(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.over.set()


class Supervision:
    """Runs the lives of a query, in a thread. The constructor begins the first one, so its errors go
    to the caller."""

    def __init__(self, spark: SparkSession, settings: Settings, tag: str, log: QueryLog) -> None:
        self.settings = settings
        self._log = log
        self.failure: BaseException | None = None
        #: The error that ended each life before this one.
        self.losses: list[BaseException] = []
        self.chronicle = Chronicle()
        self._spark = spark
        self._tag = tag
        self._keys = WireKeys.made()
        self._over = threading.Event()
        self._changing = threading.Lock()
        #: Held while processes are set to work, or asked to prepare what takes over.
        self._preparing = threading.Lock()
        self._stop_requested = threading.Event()
        self._number = 0
        self._lost_at: list[Moment] = []
        #: The version that the query goes over to, until it runs or has failed.
        self._upgrade: _Upgrade | None = None
        #: The coordinator of the version that runs beside the one that works.
        self._shadow: Coordinator | None = None
        #: The Spark jobs whose tasks keep the workers' processes.
        self._jobs = Jobs(spark, tag, self._working)
        #: Knows the processes. With a fixed port there is room for one coordinator only, and no roster:
        #: each life has processes of its own.
        self._roster: Roster | None = None
        self._plan, self.coordinator = self._begun()
        if settings.place.port == 0:
            self._roster = Roster(self._keys, settings.place, settings.workers, self._process_lost)
        #: Tells drivers that stand by that this one works.
        self._lease: LeaseHolder | None = None
        if settings.checkpoint is not None:
            self._lease = LeaseHolder(settings.checkpoint, lambda: self._number)
        self.chronicle.note("begun", self._number, _begins_with(self._plan))
        self._thread = threading.Thread(target=self._run, name="emberflow lives", daemon=True)

    def start(self) -> None:
        if self._lease is not None:
            self._lease.start()
        self._thread.start()

    def stop(self) -> None:
        """Read no more elements, store all output that is final, then end."""
        if not self._stop_requested.is_set():
            self.chronicle.note("stopping", self._number)
        self._stop_requested.set()
        self.coordinator.stop()

    def upgrade(self, settings: Settings, at: Moment | None, seconds: float) -> None:
        """Go over to another version of the flow, at a moment or as soon as possible.

        A version with steps that begin from backfills takes over at the moment at which these end.

        Returns when it runs, and raises if it does not. Then the old version goes on.
        """
        before = self.settings
        if before.checkpoint is None or before.ordering != "time":
            raise InputError(
                "a version takes over from a cut by time: start the query with "
                ".option('checkpointLocation', ...), and leave ordering at 'time'."
            )
        # Raises before anything ends.
        plan = planned(steps_of(before.graph), settings.graph, settings.carry, at)
        at = plan.moment if at is None else at
        if at is not None and at[1] > 0:
            raise InputError(
                f"while a query runs, a version takes over before all elements of a time, and {tuple(at)} is "
                f"between them. Let it take over at {at[0]} or at {(at[0], 0)}, which is behind what is "
                f"scheduled for that time; a backfill that it begins from ends there with until={at[0]}."
            )
        self.end_shadow(EmberflowError("the query goes over to another version."))
        if inherited_sinks(before, settings) is not None:
            # Keys stay in their processes.
            settings = settings._replace(owners=before.owners, workers=before.workers)
        upgrade = _Upgrade(settings, before, at)
        self._begin_upgrade(upgrade)
        asked = "as soon as possible" if at is None else f"at the time {told(GlobalTime(*at))}"
        self.chronicle.note("upgrading", self._number, f"{settings.graph.flow}, {asked}")
        self._ask_for_takeover(upgrade)
        if not upgrade.over.wait(seconds):
            raise EmberflowError(
                f"the new version has not taken over within {seconds:.0f} s. It still may."
            )
        if upgrade.failure is not None:
            raise upgrade.failure

    def _begin_upgrade(self, upgrade: _Upgrade) -> None:
        with self._changing:
            if self._upgrade is not None:
                what = "number of workers" if self._upgrade.is_rescale else "version"
                raise EmberflowError(f"another {what} is taking over just now: wait for it.")
            if self._over.is_set() or self._stop_requested.is_set():
                raise EmberflowError("the query is over, or about to be: nothing takes over.")
            self._upgrade = upgrade

    def rescale(self, workers: int, seconds: float) -> None:
        """Go on with another number of workers, at a moment just ahead (`rescale`).

        Returns when they run, and raises if they do not. Then the old number goes on.
        """
        before = self.settings
        settings = rescaled(before, workers)
        if workers == before.workers:
            return
        check_cluster(self._spark, workers)
        self._change_owners(_Upgrade(settings, before, None, is_rescale=True), seconds)

    def rebalance(self, planned_on: Owners, of_slice: Sequence[int], seconds: float) -> None:
        """Go on with other owners of the slices, at a moment just ahead, and as many workers (`balance`).

        ``planned_on`` is the table that they were planned on. Returns and raises as `rescale` does.
        """
        before = self.settings
        check_rescale(before, before.workers)
        if before.owners is not planned_on:
            raise EmberflowError("the slices have other owners by now: plan again.")
        owners = before.owners.next(of_slice, before.workers)
        upgrade = _Upgrade(before._replace(owners=owners), before, None, is_rescale=True)
        self._change_owners(upgrade, seconds)

    def _change_owners(self, upgrade: _Upgrade, seconds: float) -> None:
        before, settings, workers = upgrade.before, upgrade.settings, upgrade.settings.workers
        self.end_shadow(EmberflowError("the query goes on with other owners of its keys."))
        self._begin_upgrade(upgrade)
        self.chronicle.note("rescaling", self._number, upgrade.told)
        self._ask_for_takeover(upgrade)
        if not upgrade.over.wait(seconds):
            with self._changing:
                gives_up = not upgrade.is_prepared and self._upgrade is upgrade
                if gives_up:
                    self._discard_successor(upgrade)
            if gives_up:
                self._ends_upgrade(not_there(before, settings, seconds))
            elif not upgrade.over.is_set():
                raise EmberflowError(
                    f"the query does not run with {workers} workers after {seconds:.0f} s. It still may."
                )
        if isinstance(upgrade.failure, _LOST) and not isinstance(
            upgrade.failure, WorkersMissingError | ClusterError
        ):
            raise WorkerLostError(
                f"the query goes on with {before.workers} workers: {upgrade.failure}"
            ) from upgrade.failure
        if upgrade.failure is not None:
            raise upgrade.failure

    def shadow(self, settings: Settings, compared: Any) -> Coordinator:
        """Run another version beside the one that works, and return its coordinator.

        ``compared`` hears what the version that works releases. When the life of its workers ends, this
        one ends with it, and its coordinator fails.
        """
        before = self.settings
        if before.ordering != "time":
            raise InputError("versions run side by side by time: leave ordering at 'time'.")
        if not have_same_fronts(before, settings):
            raise InputError(
                "a shadow reads what the query reads: it has the same fronts, in order."
            )
        if has_backfills(settings.carry):
            raise InputError(
                "a shadow begins at a moment just ahead, and a step that begins from a backfill does at the "
                "moment at which that ends. Leave the step out of the shadow, or let it begin empty; or "
                "compare on history: ef.compare(old, ef.Versions(old, (moment, new, carry)), spark, ...)."
            )
        carried = planned(steps_of(before.graph), settings.graph, settings.carry)
        settings = settings._replace(owners=before.owners, workers=before.workers, checkpoint=None)
        with self._changing:
            if self._upgrade is not None or self._shadow is not None:
                raise EmberflowError("another version is taking over, or runs beside already.")
            life = Life(_SHADOWS_FROM + self._number, None)
            coordinator = coordinator_of(
                settings,
                life,
                None,  # nobody goes on from it
                self._keys,
                running=compared.running,
                released=compared.released,
                log=self._log,
            )
            plan = plan_of(settings, life, carried, self._keys, coordinator)
            self._shadow = coordinator
        self.chronicle.note("shadow", self._number, f"{settings.graph.flow} runs beside")
        coordinator.start()
        try:
            shipped = cloudpickle.dumps(plan._replace(is_mirror=True))
        except Exception as error:
            coordinator.fail(error)
            raise
        self.coordinator.prepare(OtherVersion(shipped, coordinator.fail, compared.begun))
        return coordinator

    def end_shadow(self, reason: BaseException) -> None:
        with self._changing:
            shadow, self._shadow = self._shadow, None
        if shadow is not None:
            shadow.fail(reason)
            shadow.wait(_END_SECONDS)

    def fail(self, error: BaseException) -> None:
        """End now, with this error, and begin no other life."""
        self._stop_requested.set()
        if self.failure is None:
            self.failure = error
        self.coordinator.fail(error)

    def wait(self, seconds: float | None) -> bool:
        return self._over.wait(seconds)

    def join(self, seconds: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    # The thread.

    @driving()
    def _run(self) -> None:
        try:
            while True:
                failure = self._live()
                if failure is not None:
                    failure = self._taken_over(failure)
                keeps = self._keeps_processes(failure)
                if not keeps:
                    self._end_jobs()
                if self._changes_version(failure):
                    if self._stop_requested.is_set():
                        self.coordinator.stop()
                    continue
                if (
                    failure is None
                    or self._stop_requested.is_set()
                    or not self._may_live_on(failure)
                ):
                    break
                reason = str(failure).partition("\n")[0]
                self.chronicle.note("lost", self._number, reason)
                self._tell(logging.WARNING, "lost", f"lost, the next one begins: {reason}")
                if is_unwritable(failure):
                    time.sleep(_UNWRITABLE_SECONDS)
                if not keeps:
                    time.sleep(_PAUSE_SECONDS)
                    # Replacing a lost executor takes a moment.
                    check_cluster(self._spark, self.settings.workers)
                self._plan, self.coordinator = self._begun_when_writable()
                self.chronicle.note("begun", self._number, _begins_with(self._plan))
                self.losses.append(failure)
                if self._stop_requested.is_set():
                    self.coordinator.stop()
                elif self._upgrade is not None and self.settings is self._upgrade.before:
                    self._ask_for_takeover(self._upgrade)
            if self.failure is None:
                self.failure = failure
        except Exception as error:
            self.failure = error
        finally:
            self._end_processes()
            if self._lease is not None:
                self._lease.end(is_over=self.failure is None)
            if self.failure is None:
                self.chronicle.note("ended", self._number)
            else:
                self.chronicle.note("failed", self._number, str(self.failure))
            self._over.set()
            ended = EmberflowError("the query has ended before the new version, or workers, ran.")
            ended.__cause__ = self.failure
            self._ends_upgrade(ended)

    def _tell(self, level: int, event: str, message: str) -> None:
        self._log.event(level, event, self._number, message)

    def _changes_version(self, failure: BaseException | None) -> bool:
        """Begin a life of another version, if one is to take over and this life allows it."""
        if self.coordinator.hands_over:
            return self._goes_on_in_place()
        upgrade = self._upgrade
        if upgrade is None or isinstance(failure, FencedError) or self._stop_requested.is_set():
            return False
        if self.settings is upgrade.settings and failure is None:
            return False  # it has run to its end
        if self.settings is upgrade.settings and (upgrade.is_noted or self._is_noted()):
            upgrade.is_noted = True  # there is no way back: its next life goes on
            return False
        if self.settings is upgrade.settings and isinstance(failure, _LOST):
            upgrade.lost += 1
            if upgrade.lost < _TAKEOVERS_LOST_MAX:
                # Nobody is to blame. The next life takes over, from the same cut; if that was held, it is not
                # there, and the old version makes another one.
                if self._plan.inherits is not None:
                    self.settings = upgrade.before
                return False
        if self.settings is upgrade.settings:
            # It has not begun to run: nobody relies on it.
            what = "number of workers" if upgrade.is_rescale else "version"
            told = f"the new {what} could not take over, the old one goes on: {failure}"
            self._tell(logging.WARNING, "upgraded", told)
            self.settings = upgrade.before
            self._plan, self.coordinator = self._begun_when_writable()
            # Not before: who hears of it may ask for another version, and this life is to be asked.
            self._ends_upgrade(failure)
            return True
        elif failure is None and self.coordinator.halted_before_the_end:
            self.settings = upgrade.settings
        else:
            return False  # it was lost on the way, and is asked again, or all fronts have ended
        try:
            self._plan, self.coordinator = self._begun_when_writable()
        except Exception as error:
            self.settings = upgrade.before
            self._plan, self.coordinator = self._begun_when_writable()
            self._ends_upgrade(error)
        return True

    def _is_noted(self) -> bool:
        """Whether this life has committed anything. The first of it is the note that its version has taken
        over.

        Its number is that of the plan: a life that is lost before it is claimed has not become the newest.
        """
        assert self.settings.checkpoint is not None
        cuts = CheckpointStore(self.settings.checkpoint).cuts()
        return any(cut.incarnation == self._plan.incarnation for cut in cuts)

    def _runs(self) -> None:
        """The workers of this life were told to begin."""
        self.chronicle.note("running", self._number)
        if self._upgrade is not None and self.settings is self._upgrade.settings:
            what = "the new version has"
            if self._upgrade.is_rescale:
                what = f"{self._plan.workers} workers have"
            self._ends_upgrade(None)
            still = self.coordinator.standstill
            waited = "" if still is None else f"; elements waited for it {still}"
            told = f"{what} taken over{waited}"
            self._log.event_later(logging.INFO, "upgraded", self._number, told)
        else:
            cut = self._plan.restored
            begun = "from the beginning" if cut is None else f"from cut {cut.number}"
            told = f"{self._plan.workers} workers run, {begun}"
            self._log.event_later(logging.INFO, "running", self._number, told)

    def _refused(self, reached: int) -> None:
        """The time at which a version was to take over has passed."""
        upgrade = self._upgrade
        told_at, advice = None, "Give a later time, or none, and the query chooses one."
        if upgrade is not None and upgrade.at is not None:
            told_at = told(GlobalTime(*upgrade.at))
            if has_backfills(upgrade.settings.carry):
                advice = (
                    "The backfill that the new version begins from ends there. Stop the query, backfill "
                    "until=ef.last_moment(checkpoint), and start it again with .carry({...})."
                )
        self._ends_upgrade(
            InputError(
                f"upgrade(at={told_at}): elements up to the time {reached} have entered the old version, or "
                f"its fronts are beyond that time. {advice}"
            )
        )

    def _ends_upgrade(
        self, failure: BaseException | None, successor: Coordinator | None = None
    ) -> None:
        """The version that is to take over runs, or will not.

        With a ``successor``, only if that one is still to take over: it has no state yet.
        """
        with self._changing:
            upgrade = self._upgrade
            if successor is not None and (upgrade is None or not upgrade.waits_for(successor)):
                return
            self._upgrade = None
        if upgrade is not None:
            self._discard_successor(upgrade)
            if failure is not None and self.settings is upgrade.before:
                self.coordinator.cancel_takeover()
                self._discard_added(upgrade)
            if failure is None and upgrade.is_rescale:
                told = upgrade.told
                self.chronicle.note("rescaled", self._number, told)
            elif failure is None:
                self.chronicle.note("upgraded", self._number, upgrade.settings.graph.flow)
            else:
                self.chronicle.note("kept", self._number, str(failure))
            upgrade.end(failure)

    # Versions that take over in the same processes.

    def _ask_for_takeover(self, upgrade: _Upgrade) -> None:
        """Let the workers that work now end, for those of the new version."""
        inherited = inherited_sinks(upgrade.before, upgrade.settings)
        if inherited is None:
            self.coordinator.stop_for_takeover(upgrade.at, self._refused, in_place=False)
            return
        try:
            with self._preparing:
                old = self.coordinator
                if upgrade.is_rescale and (upgrade.asked is old or not old.has_started):
                    return  # it is asked when its own workers have their job
                upgrade.asked = old
                self._prepare(upgrade, inherited)
                if upgrade.over.is_set():  # it was given up meanwhile
                    self._discard_successor(upgrade)
                    self._discard_added(upgrade)
        except Exception as error:
            self._ends_upgrade(error)

    def _prepare(self, upgrade: _Upgrade, inherited: frozenset[str]) -> None:
        """Make the coordinator of the new version, and let the workers make its loops."""
        old = self.coordinator
        # Another thread may have prepared this when the life before was about to be lost.
        self._discard_successor(upgrade)
        self._discard_added(upgrade)
        upgrade.is_prepared = False

        def prepared(failure: BaseException | None) -> None:
            """All workers have the new version, or one has not: it was lost, or cannot have it."""
            with self._changing:
                if not upgrade.waits_for(coordinator):
                    return  # it was given up, or has the state: its life tells
                upgrade.is_prepared = upgrade.is_prepared or failure is None
            is_lost = isinstance(failure, _LOST)
            if is_lost and upgrade.is_rescale:
                # With the life that was to hand over? Then the next one is asked again.
                if not old.wait(_END_SECONDS) or old.failure is None:
                    self._ends_upgrade(failure, coordinator)
            elif failure is None or is_lost:
                in_place = failure is None
                if upgrade.is_rescale:
                    old.stop_for_takeover(None, self._refused, in_place=True, bring_up=bring_up)
                elif upgrade.at is None:
                    old.stop_for_takeover(None, self._refused, in_place=in_place)
                else:
                    old.takeover_prepared(in_place=in_place)
            else:
                self._ends_upgrade(failure, coordinator)

        def met() -> None:
            """All workers are there: they read ahead what will come to them, and are prepared then."""
            with self._changing:
                if upgrade.waits_for(coordinator):  # otherwise it was given up
                    old.give_cut(read)

        def read(cut: Manifest | None) -> None:
            coordinator.copy(cut, is_last=False, copied=lambda: prepared(None))

        def bring_up(cut: Manifest | None) -> None:
            coordinator.copy(cut, is_last=True, copied=old.brought_up)

        def refused(problem: BaseException) -> None:
            self._ends_upgrade(problem, coordinator)

        if upgrade.at is not None:  # it may be near
            old.stop_for_takeover(upgrade.at, self._refused, in_place=None)
        settings = upgrade.settings
        carried: CarryPlan | None = None
        if not upgrade.is_rescale:
            before = steps_of(upgrade.before.graph)
            carried = planned(before, settings.graph, settings.carry, upgrade.at)
        life = Life(self._number + 1, None)  # its cut is still to be made
        coordinator = coordinator_of(
            settings,
            life,
            carried,
            self._keys,
            running=self._runs,
            inherits=inherited,
            prepared=prepared,
            met=met if upgrade.is_rescale else None,
            log=self._log,
        )
        plan = plan_of(settings, life, carried, self._keys, coordinator)
        plan = plan._replace(inherits=inherited)
        if upgrade.is_rescale:
            plan = plan._replace(moved_from=upgrade.before.owners)
        upgrade.successor = (plan, coordinator)
        coordinator.start()
        added = range(upgrade.before.workers, plan.workers)
        if added:
            assert self._roster is not None
            upgrade.job = self._jobs.start(plan, self._roster.add(added), added)
        old.prepare(OtherVersion(cloudpickle.dumps(plan), refused, workers=plan.workers))

    def _discard_added(self, upgrade: _Upgrade) -> None:
        """The workers that were to be added are not."""
        job, upgrade.job = upgrade.job, None
        if job is not None:
            assert self._roster is not None
            assert job.crew is not None
            self._roster.give_up(job.crew)
            self._jobs.discard(job)

    def _goes_on_in_place(self) -> bool:
        """The old version has ended for one that takes over in its processes. Begin the life of that one; or,
        if it has been given up since, another life of the old version."""
        with self._changing:
            upgrade, successor = self._upgrade, None
            # Otherwise it was asked for after the one that was given up.
            if upgrade is not None and upgrade.is_prepared:
                successor, upgrade.successor = upgrade.successor, None  # now its own life tells
        if upgrade is not None and successor is not None:
            self.settings = upgrade.settings
            if self._roster is not None:
                self._roster.rescale(self.settings.workers)
            self._jobs.leave(self.settings.workers)
            self._hand_over(*successor)
            return True
        # The processes wait for the one that was given up, and the last cut is held for it: it never counts.
        self.coordinator.left_writers(frozenset())
        self._end_jobs()
        if self.failure is not None:
            return False
        self._plan, self.coordinator = self._begun_when_writable()
        if self._upgrade is not None:
            self._discard_successor(self._upgrade)
            self._ask_for_takeover(self._upgrade)
        return True

    def _hand_over(self, plan: Plan, successor: Coordinator) -> None:
        """The old version has ended at its last cut: the new one goes on, in the same processes.

        If it cannot, its life fails, and the next life is of the old version.
        """
        old = self.coordinator
        self._plan, self.coordinator = plan, successor
        writers = old.left_writers(self._plan.inherits or frozenset())
        try:
            if self.failure is not None:
                raise self.failure
            if self._stop_requested.is_set():  # perhaps when the old one had ended already
                self.coordinator.stop()
            inheritance = self._left_by(old, writers)
            if not self.coordinator.take_over(inheritance):
                raise EmberflowError("the coordinator of the new version has failed before")
        except Exception as error:
            self.coordinator.fail(error)
            for writer in writers.values():
                writer.close(_END_SECONDS)
            return
        # The workers take over while this thread claims the next life. Nothing is let out before both.
        try:
            committer = self._claimed_for(inheritance, old)
        except Exception as error:
            self.coordinator.fail(error)
        else:
            self.coordinator.commit_with(committer)

    def _left_by(
        self, old: Coordinator, writers: dict[tuple[str, int], WriterThread]
    ) -> Inheritance:
        """What the old version has left in the driver. Raises if its last cut is not at its end."""
        assert old.committer is not None
        held, end = old.committer.held, old.progress.of_all()
        cut = old.committer.last if held is None else held.manifest
        if cut is None or cut.time != end:
            raise EmberflowError(
                f"the last cut of the version before, at {tuple(end)}, was not stored"
            )
        if self._plan.carried is not None:
            check_begins(self._plan.carried, cut.time)
        assert old.standstill is not None
        return Inheritance(cut, held, old.standstill, writers)

    def _claimed_for(self, inheritance: Inheritance, old: Coordinator) -> CutCommitter:
        """Claim the next life, which goes on from the last cut that counts; and from a cut that is held, as
        soon as it is committed."""
        assert self.settings.checkpoint is not None
        assert old.committer is not None
        store = CheckpointStore(self.settings.checkpoint)
        before = old.committer.last
        life = store.begin(lambda store: before, after=self._number)
        self._number = life.incarnation
        if life.incarnation != self._plan.incarnation:
            raise EmberflowError(f"life {life.incarnation} is not the one that was prepared")
        cut = inheritance.cut
        store.check_whole(cut, old.committer.known_whole)
        told = [f"{self._plan.workers} workers take over from cut {cut.number}"]
        if self._plan.carried is not None:
            told = [f"a new version takes over from cut {cut.number}", *self._plan.carried.lines()]
        self._log.event_later(logging.WARNING, "upgraded", self._number, "\n".join(told))
        committer = committer_of(
            self.settings, life._replace(restored=cut), counts=inheritance.held is None
        )
        assert committer is not None
        return committer

    def _discard_successor(self, upgrade: _Upgrade) -> None:
        """End the coordinator of a version that does not take over."""
        successor, upgrade.successor = upgrade.successor, None
        if successor is not None:
            successor[1].fail(EmberflowError("the version does not take over"))

    def _begun_when_writable(self) -> tuple[Plan, Coordinator]:
        while True:
            try:
                return self._begun()
            except OSError as error:
                if not is_unwritable(error) or self._stop_requested.is_set():
                    raise
                self._tell(logging.WARNING, "lost", f"the next life waits for the disk: {error}")
                self._stop_requested.wait(_UNWRITABLE_SECONDS)

    def _begun(self) -> tuple[Plan, Coordinator]:
        """The next life, ready to start."""
        settings = self.settings
        life, carried = self._claimed()
        self._number = life.incarnation
        if self.losses and isinstance(self.losses[-1], FrontGrewError):
            # Not after other losses: the source may be down, and has no new partitions.
            for front in settings.fronts.values():
                front_contract(front).look_again()
        committer = committer_of(settings, life)
        coordinator = coordinator_of(
            settings,
            life,
            carried,
            self._keys,
            committer=committer,
            running=self._runs,
            log=self._log,
        )
        return plan_of(settings, life, carried, self._keys, coordinator), coordinator

    def _claimed(self) -> tuple[Life, CarryPlan | None]:
        """The next incarnation; and if its cut is of an earlier version, what becomes of the state."""
        settings = self.settings
        if settings.checkpoint is None:
            return Life(self._number + 1, None), None
        store = CheckpointStore(settings.checkpoint)
        carried: CarryPlan | None = None

        def fitting(store: CheckpointStore) -> Any:
            nonlocal carried
            cut = store.latest()
            if cut is not None:
                carried = fitted(
                    cut,
                    settings.graph,
                    carry=settings.carry,
                    ordering=settings.ordering,
                    is_new=self._takes_version(settings),
                    look=known_cut,
                )
                if carried is not None and cut.successor is None:
                    check_fronts(cut, settings.graph)
                    if not self._number:  # a life of this driver has stored all, or nothing ended
                        check_not_ahead(cut, settings.graph, settings.sinks, settings.on_error)
                    told = "\n".join(
                        [f"a new version takes over from cut {cut.number}", *carried.lines()]
                    )
                    self._tell(logging.WARNING, "upgraded", told)
            return cut

        after = self._number or settings.follows
        return store.begin(fitting, after=after), carried

    def _takes_version(self, settings: Settings) -> bool:
        """Whether the version of these settings is about to take over."""
        upgrade = self._upgrade
        return upgrade is not None and settings is upgrade.settings and not upgrade.is_rescale

    def _taken_over(self, failure: BaseException | None = None) -> BaseException | None:
        """The error that names the driver that has claimed the checkpoint since; else ``failure``."""
        if self.settings.checkpoint is None:
            return failure
        try:
            CheckpointStore(self.settings.checkpoint).check_incarnation(self._number)
        except FencedError as fenced:
            fenced.__cause__ = failure
            return fenced
        except OSError as error:  # a claim will find out
            self._tell(logging.WARNING, "lost", f"the checkpoint cannot be looked at: {error}")
        return failure

    def _live(self) -> BaseException | None:
        """Run one life, to the end of its job, or until another version takes over in its processes.

        Returns its failure, if it failed.
        """
        coordinator = self.coordinator
        if not coordinator.has_started:  # not one that takes over in place
            with self._preparing:
                self._set_to_work(self._plan, coordinator)
            upgrade = self._upgrade
            if upgrade is not None and upgrade.is_rescale and self.settings is upgrade.before:
                self._ask_for_takeover(upgrade)
        while not coordinator.wait(_LOOK_SECONDS):
            successor = self._taken_over()
            if successor is not None:
                coordinator.fail(successor)
        if self._shadow is not None and coordinator.failure is None:
            _wait_for_the_end(self._shadow)
        self.end_shadow(EmberflowError("the workers of the query have ended."))
        if not coordinator.hands_over:
            if self._roster is not None:
                self._roster.pause(self._number)
            upgrade = self._upgrade
            if upgrade is not None:
                self._discard_successor(upgrade)
                if self.settings is upgrade.before:
                    self._discard_added(upgrade)
        return coordinator.failure

    def _set_to_work(self, plan: Plan, coordinator: Coordinator) -> None:
        """Let processes work in a life: those of the life before, or those of another job."""
        jobs, roster = self._jobs, self._roster
        try:
            if jobs.are_there and not (
                roster is not None
                and roster.gathered(_GATHER_SECONDS, _PATIENCE_SECONDS, jobs.are_alive)
            ):
                self._end_jobs()
                check_cluster(self._spark, plan.workers)
        except Exception as error:
            coordinator.fail(error)  # it closes what it has opened
            raise
        finally:
            coordinator.start()
        if jobs.are_there:
            assert roster is not None
            roster.go_on(plan.incarnation, cloudpickle.dumps(plan))
            return
        crew = None if roster is None else roster.begin(plan.incarnation, plan.workers)
        jobs.start(plan, crew, range(plan.workers))

    def _keeps_processes(self, failure: BaseException | None) -> bool:
        """Whether the processes that are left may go on: they begin the next life, or a version in place.

        Only after what has been understood: otherwise the next life has processes that Spark starts anew.
        """
        if self.coordinator.hands_over:
            return True
        upgrade = self._upgrade
        # Those that were to be added are of another crew, which has been given up.
        is_as_before = (
            upgrade is not None and upgrade.is_rescale and self.settings is upgrade.before
        )
        return (
            self._roster is not None
            and (upgrade is None or is_as_before)
            and self._jobs.are_alive()
            and isinstance(failure, _LOST)
            and not isinstance(failure, JobFailedError | ClusterError | FencedError)
            and not self._stop_requested.is_set()
        )

    def _process_lost(self, worker: int) -> None:
        """The roster has seen another process in the place of one that works, or a free one that should."""
        lost = WorkerLostError(f"the process of worker {worker} is lost")
        for coordinator in self._working(worker):
            coordinator.fail_unless_over(lost)

    def _end_processes(self) -> None:
        """The query is over."""
        try:
            self._end_jobs()
        except Exception as error:
            if self.failure is None:
                self.failure = error
        finally:
            if self._roster is not None:
                self._roster.close()

    def _end_jobs(self) -> None:
        if self._roster is not None:
            self._roster.finish()
        try:
            self._jobs.end()
        except EmberflowError as error:
            error.add_note(f"Life {self._number} was lost by: {self.coordinator.failure}")
            raise

    def _working(self, worker: int) -> list[Coordinator]:
        """The coordinators that have a worker of this number: two, while another one takes over."""
        upgrade = self._upgrade
        successor = (
            None if upgrade is None else upgrade.successor
        )  # before it becomes the current one
        both = [self.coordinator, *([] if successor is None else [successor[1]])]
        return [coordinator for coordinator in both if worker < coordinator.workers]

    def _may_live_on(self, failure: BaseException) -> bool:
        """Whether another life may succeed, and would give the same output."""
        never_there = isinstance(failure, ClusterError | WorkersMissingError)
        if never_there and not self.losses and not self.coordinator.met:
            return False  # there never were enough slots; later an executor may be replaced
        if not isinstance(failure, _LOST) or isinstance(failure, FencedError):
            return False
        moved = [isinstance(loss, SinkMovedError) for loss in [*self.losses, failure]]
        if len(moved) >= _MOVED_MAX and all(moved[-_MOVED_MAX:]):
            failure.add_note(
                f"The sinks of {_MOVED_MAX} lives in a row were opened by others, so the query has "
                f"ended: another query writes to them."
            )
            return False
        settings = self.settings
        if (
            settings.checkpoint is None
            and settings.guarantee != "at-least-once"
            and any(news.chose for news in self.coordinator.news.values())
        ):
            failure.add_note(
                "The query was not restarted: its fronts have assigned times of arrival, or cannot "
                "be read again, and there is no log of it. Set .option('checkpointLocation', ...)."
            )
            return False
        if is_unwritable(failure):
            return True  # no element is to blame
        at = self.coordinator.progress.of_all()
        if self._lost_at and at > max(self._lost_at):
            self._lost_at = []
        self._lost_at.append(at)
        if len(self._lost_at) < LIVES_WITHOUT_PROGRESS_MAX:
            return True
        # A life that restores right before that element is lost before it makes progress, so the
        # greatest minimal time is the one to report.
        furthest = max(self._lost_at)
        where = "before it began" if furthest == BEFORE_ALL else f"at the minimal time {furthest}"
        poisoned = PoisonedError(
            f"{len(self._lost_at)} lives in a row were lost {where}, so the query has ended. An "
            f"element there may kill the process that handles it. The last loss: {failure}"
        )
        poisoned.__cause__ = failure
        self.failure = poisoned
        return False
