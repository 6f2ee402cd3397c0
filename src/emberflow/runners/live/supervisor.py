"""Supervision: one life of the workers after another, until the query is over.

A *life* (an incarnation) is a coordinator, a Spark job and its workers. When something is lost (a
worker, an executor, a connection, a heartbeat), the supervisor ends the whole life and its job, and
begins the next one from the last committed cut. Workers recompute everything to the byte and barriers
ask their sinks what is stored, so the output is the same and only later.

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
life are taken over too, the query ends.

**A new version of the flow** takes over between two lives. The supervisor lets the fronts halt, as for a
stop: what is below the last moment of the old version is stored, and its last cut is at that moment. (After
a loss they halt only once all is computed again that sinks have already: it is of the old version.) The
next life is of the new version, and restores that cut translated (`graph.versions`). When all workers
have restored, the driver notes the new version with the cut, and only then it begins to run. Until then
nothing has changed: if a worker cannot restore, because a migration raises or a module is missing, the
next life is of the old version again, and whoever asked for the new one gets the error.

Some errors would happen again, so they end the query at once: those of a user's function, of a front,
or of a sink (whose operations were retried before). So does an element that kills the process that
handles it: several lives in a row end at the same minimal time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.manifest import fitted
from emberflow.checkpoint.cuts.store import CheckpointStore, Life
from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.files import is_unwritable
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges
from emberflow.errors import EmberflowError, InputError, OnError
from emberflow.fronts.protocol import Front, FrontGrewError, front_contract
from emberflow.graph.description import steps_of
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry, CarryPlan, carry_plan
from emberflow.runners.live.arrival.driver import DriverSnapshots
from emberflow.runners.live.driver.cluster import ClusterError, check_cluster
from emberflow.runners.live.driver.coordinator import Coordinator, WorkersMissingError
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime, DriverCuts, tell_passed
from emberflow.runners.live.driver.takeover import check_fronts, check_not_ahead
from emberflow.runners.live.launch import JobFailedError, cancel_workers, job_failure, run_workers
from emberflow.runners.live.wire.plan import Guarantee, Ordering, Plan, Snapshots
from emberflow.runners.live.wire.sockets import RunKeys, WireError
from emberflow.runners.live.worker.link import CoordinatorGoneError
from emberflow.sinks.protocol import SinkMovedError, sink_contract
from emberflow.values.shares import Shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.driver.cluster import CoordinatorAddress

#: The query ends when so many lives in a row are lost while the minimal time does not advance.
LIVES_WITHOUT_PROGRESS_MAX = 4
#: How long the supervisor waits for a job to end by itself, and then after cancelling it.
_END_SECONDS = 3.0
_CANCEL_SECONDS = 30.0
#: By then a failed worker has sent its own error, which says more than Spark's.
_ECHO_SECONDS = 0.3
_PAUSE_SECONDS = 0.05
#: The pause before the next life, or the next attempt at it, while the disk takes no writes.
_UNWRITABLE_SECONDS = 2.0
#: How often the supervisor looks whether another driver has claimed the checkpoint.
_LOOK_SECONDS = 2.0
#: The query ends when so many lives in a row end because others have opened their sinks.
_MOVED_MAX = 2

#: Losses after which another life may succeed.
_LOST = (
    JobFailedError,
    WorkersMissingError,
    CoordinatorGoneError,
    WireError,
    SinkMovedError,
    ClusterError,
    FrontGrewError,
    OSError,
)

_log = logging.getLogger("emberflow")


class PoisonedError(EmberflowError):
    """Several lives were lost at the same minimal time; the last loss is the ``__cause__``."""


class Settings(NamedTuple):
    """The settings that all lives of a query share."""

    graph: Graph
    fronts: Mapping[str, Front]
    sinks: Mapping[str, Any]
    workers: int
    shares: Shares
    credit: int
    batch: int
    on_error: OnError
    place: CoordinatorAddress
    guarantee: Guarantee
    checkpoint: str | None
    interval_ms: int
    kept: int
    keep_logs: bool
    ordering: Ordering = "time"
    snapshots: Snapshots = "markers"
    #: Where other processes reach the query's bridge, and their token; by default a random one.
    bridge_place: CoordinatorAddress | None = None
    bridge_token: str | None = None
    #: How far reads of state may look back, in the time of the elements.
    history: int = 0
    #: Who decides how far workers compute ahead.
    judges: Judges = DEFAULT_JUDGES
    #: What else than its steps' own names says where a new version has its state from.
    carry: Carry | None = None


class _Upgrade:
    """A version that is to take over, and what has become of it."""

    def __init__(self, settings: Settings, before: Settings, at: int | None) -> None:
        self.settings = settings
        self.before = before
        self.at = at
        self.over = threading.Event()
        self.failure: BaseException | None = None

    def end(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.over.set()


class Supervision:
    """Runs the lives of a query, in a thread. The constructor begins the first one, so its errors go
    to the caller."""

    def __init__(self, spark: SparkSession, settings: Settings, tag: str) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        #: The error that ended each life before this one.
        self.losses: list[BaseException] = []
        self._spark = spark
        self._tag = tag
        self._keys = RunKeys.made()
        self._over = threading.Event()
        self._changing = threading.Lock()
        self._stop_requested = threading.Event()
        self._number = 0
        self._lost_at: list[Moment] = []
        #: The version that the query goes over to, until it runs or has failed.
        self._upgrade: _Upgrade | None = None
        self._plan, self.coordinator = self._begun()
        self._thread = threading.Thread(target=self._run, name="emberflow lives", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Read no more elements, store all output that is final, then end."""
        self._stop_requested.set()
        self.coordinator.stop()

    def upgrade(self, settings: Settings, at: int | None, seconds: float) -> None:
        """Go over to another version of the flow, at a time or as soon as possible.

        Returns when it runs, and raises if it does not. Then the old version goes on.
        """
        before = self.settings
        if before.checkpoint is None or before.ordering != "time":
            raise InputError(
                "a version takes over from a cut by time: start the query with "
                ".option('checkpointLocation', ...), and leave ordering at 'time'."
            )
        carry_plan(
            steps_of(before.graph), settings.graph, settings.carry
        )  # raises before anything ends
        upgrade = _Upgrade(settings, before, at)
        with self._changing:
            if self._upgrade is not None:
                raise EmberflowError("another version is taking over just now: wait for it.")
            if self._over.is_set() or self._stop_requested.is_set():
                raise EmberflowError(
                    "the query is over, or about to be: it takes no other version."
                )
            self._upgrade = upgrade
            self.coordinator.stop_for_takeover(at, self._refused)
        if not upgrade.over.wait(seconds):
            raise EmberflowError(
                f"the new version has not taken over within {seconds:.0f} s. It still may."
            )
        if upgrade.failure is not None:
            raise upgrade.failure

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

    def _run(self) -> None:
        try:
            while True:
                failure = self._live()
                if failure is not None:
                    failure = self._taken_over(failure)
                if self._changes_version(failure):
                    continue
                if (
                    failure is None
                    or self._stop_requested.is_set()
                    or not self._may_live_on(failure)
                ):
                    break
                reason = str(failure).partition("\n")[0]
                _log.warning("life %d was lost, the next one begins: %s", self._number, reason)
                time.sleep(_UNWRITABLE_SECONDS if is_unwritable(failure) else _PAUSE_SECONDS)
                # Replacing a lost executor takes a moment.
                check_cluster(self._spark, self.settings.workers)
                self._plan, self.coordinator = self._begun_when_writable()
                self.losses.append(failure)
                if self._stop_requested.is_set():
                    self.coordinator.stop()
                elif self._upgrade is not None:
                    self.coordinator.stop_for_takeover(self._upgrade.at, self._refused)
            if self.failure is None:
                self.failure = failure
        except Exception as error:
            self.failure = error
        finally:
            self._over.set()
            ended = EmberflowError("the query has ended before the new version ran.")
            ended.__cause__ = self.failure
            self._ends_upgrade(ended)

    def _changes_version(self, failure: BaseException | None) -> bool:
        """Begin a life of another version, if one is to take over and this life allows it."""
        upgrade = self._upgrade
        if upgrade is None or isinstance(failure, FencedError) or self._stop_requested.is_set():
            return False
        if self.settings is upgrade.settings and failure is None:
            return False  # it has run to its end
        if self.settings is upgrade.settings:
            # It has not begun to run: nobody relies on it.
            _log.warning("the new version could not take over, the old one goes on: %s", failure)
            self.settings = upgrade.before
            self._ends_upgrade(failure)
        elif failure is None and self.coordinator.halted_before_the_end:
            self.settings = upgrade.settings
        else:
            return False  # it was lost on the way, and is asked again, or all fronts have ended
        try:
            self._plan, self.coordinator = self._begun_when_writable()
        except Exception as error:
            if self.settings is not upgrade.settings:
                raise
            self.settings = upgrade.before
            self._ends_upgrade(error)
            self._plan, self.coordinator = self._begun_when_writable()
        return True

    def _runs(self) -> None:
        """The workers of this life were told to begin."""
        if self._upgrade is not None and self.settings is self._upgrade.settings:
            self._ends_upgrade(None)

    def _refused(self, reached: int) -> None:
        """The time at which a version was to take over has passed."""
        at = None if self._upgrade is None else self._upgrade.at
        self._ends_upgrade(
            InputError(
                f"upgrade(at={at!r}): elements up to the time {reached} have entered the old version. "
                f"Give a later time, or none, and the query chooses one."
            )
        )

    def _ends_upgrade(self, failure: BaseException | None) -> None:
        with self._changing:
            upgrade, self._upgrade = self._upgrade, None
        if upgrade is not None:
            upgrade.end(failure)

    def _begun_when_writable(self) -> tuple[Plan, Coordinator]:
        while True:
            try:
                return self._begun()
            except OSError as error:
                if not is_unwritable(error) or self._stop_requested.is_set():
                    raise
                _log.warning("the next life waits for the disk: %s", error)
                self._stop_requested.wait(_UNWRITABLE_SECONDS)

    def _begun(self) -> tuple[Plan, Coordinator]:
        """The next life, ready to start."""
        settings = self.settings
        life, carried = self._claimed()
        self._number = life.incarnation
        for name, front in settings.fronts.items():
            if self.losses and isinstance(self.losses[-1], FrontGrewError):
                # Not after other losses: the source may be down, and has no new partitions.
                front_contract(front).look_again()
            known = life.restored.positions.get(name) if life.restored is not None else None
            _check_partitions(name, front, known)
        told = {
            name: front
            for name, front in settings.fronts.items()
            if front_contract(front).passed is not None
        }
        if life.restored is not None:
            for name, front in told.items():
                tell_passed(name, front, life.restored)
        strategy = self._strategy()
        committer = None
        if settings.checkpoint is not None:
            committer = CutCommitter(
                settings.graph,
                settings.checkpoint,
                life,
                strategy,
                workers=settings.workers,
                interval_ms=settings.interval_ms,
                keep=settings.kept,
                logged={
                    name: front.partitions
                    for name, front in settings.fronts.items()
                    if front_contract(front).chooses and not settings.keep_logs
                },
                retaining=told,
                trims=not settings.keep_logs,
            )
        coordinator = Coordinator(
            settings.graph,
            workers=settings.workers,
            incarnation=life.incarnation,
            keys=self._keys,
            place=settings.place,
            fronts=settings.fronts,
            sinks=settings.sinks,
            on_error=settings.on_error,
            committer=committer,
            strategy=strategy,
            since=BEFORE_ALL if life.restored is None else life.restored.time,
            history=settings.history,
            carried=carried,
            running=self._runs,
        )
        plan = Plan(
            graph=settings.graph,
            workers=settings.workers,
            shares=settings.shares,
            incarnation=life.incarnation,
            keys=self._keys,
            coordinator=coordinator.address,
            fronts=dict(settings.fronts),
            sinks={
                name: None if sink_contract(sink).on_driver else sink
                for name, sink in settings.sinks.items()
            },
            credit=settings.credit,
            batch=settings.batch,
            on_error=settings.on_error,
            guarantee=settings.guarantee,
            checkpoint=settings.checkpoint,
            restored=life.restored,
            carried=carried,
            ordering=settings.ordering,
            snapshots=settings.snapshots,
            judges=settings.judges,
        )
        return plan, coordinator

    def _strategy(self) -> DriverCuts:
        settings = self.settings
        if settings.ordering == "time":
            return CutsByTime()
        return DriverSnapshots(
            workers=settings.workers,
            holds_output=settings.guarantee == "exactly-once",
            stops=settings.snapshots == "stop",
        )

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
                    is_new=self._upgrade is not None and settings is self._upgrade.settings,
                )
                if carried is not None and cut.successor is None:
                    check_fronts(cut, settings.graph)
                    if not self._number:  # a life of this driver has stored all, or nothing ended
                        check_not_ahead(cut, settings.graph, settings.sinks, settings.on_error)
                    told = "\n".join(f"  {line}" for line in carried.lines())
                    _log.warning("a new version takes over from cut %d:\n%s", cut.number, told)
            return cut

        return store.begin(fitting, after=self._number or None), carried

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
            _log.warning("the checkpoint cannot be looked at: %s", error)
        return failure

    def _live(self) -> BaseException | None:
        """Run one life, from its start to the end of its job. Returns its failure, if it failed."""
        coordinator, plan = self.coordinator, self._plan
        job = threading.Thread(
            target=self._run_job, args=(plan, coordinator), name="emberflow job", daemon=True
        )
        coordinator.start()
        job.start()
        while not coordinator.wait(_LOOK_SECONDS):
            successor = self._taken_over()
            if successor is not None:
                coordinator.fail(successor)
        job.join(_END_SECONDS)
        if job.is_alive():  # a worker does not read messages: it is stuck, or suspended
            cancel_workers(self._spark, self._tag)
            job.join(_CANCEL_SECONDS)
        if job.is_alive():
            raise EmberflowError(
                f"the Spark job of life {plan.incarnation} could not be ended within "
                f"{_CANCEL_SECONDS:.0f} s, so no other one was begun. "
                f"It was lost by: {coordinator.failure}"
            )
        return coordinator.failure

    def _run_job(self, plan: Plan, coordinator: Coordinator) -> None:
        try:
            run_workers(self._spark, plan, self._tag)
        except Exception as error:
            coordinator.wait(_ECHO_SECONDS)
            failure = job_failure(error, plan.workers)
            failure.__cause__ = error
            coordinator.fail(failure)
        else:
            # All tasks have ended. If the coordinator goes on waiting, they ended without a word.
            if not coordinator.wait(_END_SECONDS):
                coordinator.fail(JobFailedError("the workers have ended before the query did"))

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


def _check_partitions(name: str, front: Front, known: Mapping[int, Any] | None) -> None:
    """Raises `InputError` if a front's partitions do not fit those of the cut to begin from."""
    if known is None or set(known) == set(range(front.partitions)):
        return
    before, now = len(known), front.partitions
    if now < before:
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. A "
            f"source keeps its partitions; for another source take another checkpointLocation."
        )
    if not front_contract(front).chooses:
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. "
            f"The output is already past the times of the elements in the new ones, and no log "
            f"records when they joined. Let the front promise while it is idle (fronts.Kafka: "
            f"idle_ms=), or use times of arrival, or begin anew with another checkpointLocation."
        )
