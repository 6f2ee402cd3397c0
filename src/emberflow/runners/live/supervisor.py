"""Supervision: one life of the workers after another, until the query is over.

A *life* (an incarnation) is a coordinator, a Spark job and its workers. When something is lost (a
worker, an executor, a connection, a heartbeat), the life is over as a whole: its job is ended, and
the next one begins from the last cut that counts. Since all is recomputed to the byte and barriers
ask their sinks what they have, nobody can tell but by the clock.

What a life must not do is change anything once the next one has begun. Messages carry the number of
their life and are dropped elsewhere. Cuts and logs of an older one are refused (`checkpoint`). A
bundle that it still stores is the very bundle that the next one would have stored, and a sink that
is asked to store something twice refuses (`sinks`).

What ends the query at once, because it would happen again: an error of a user's function, of a
front or of a sink (which has been tried several times before it is an error). And what happens
again and again at the same minimal time: an element that kills the process which looks at it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.manifest import check_fits
from emberflow.checkpoint.cuts.store import CheckpointStore, Life
from emberflow.checkpoint.errors import FencedError
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import EmberflowError, InputError, OnError
from emberflow.fronts.protocol import Front, FrontGrewError
from emberflow.graph.nodes import Graph
from emberflow.runners.live.arrival.coordinator import ArrivalCoordinator, Snapshotting
from emberflow.runners.live.driver.cluster import ClusterError, check_cluster
from emberflow.runners.live.driver.coordinator import Coordinator, WorkersMissingError
from emberflow.runners.live.driver.cuts import Committing, tell_passed
from emberflow.runners.live.launch import JobFailedError, cancel_workers, job_failure, run_workers
from emberflow.runners.live.wire.plan import Guarantee, Ordering, Plan, Snapshots
from emberflow.runners.live.wire.sockets import RunKeys, WireError
from emberflow.runners.live.worker.journal import chooses
from emberflow.runners.live.worker.loop import CoordinatorGoneError
from emberflow.sinks.protocol import SinkMovedError
from emberflow.values.shares import Shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.driver.cluster import CoordinatorAddress

#: So many lives in a row may end without the minimal time having moved.
LIVES_AT_ONE_PLACE_MAX = 4
#: How long a job gets to end by itself, and then to be ended.
_END_SECONDS = 3.0
_CANCEL_SECONDS = 30.0
#: A worker that failed has told its own error by then; Spark's is only its echo.
_ECHO_SECONDS = 0.3
_PAUSE_SECONDS = 0.05

#: What was lost, so that another life may do better.
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
    """Life after life was lost at the same place; the last loss is the ``__cause__``."""


class Settings(NamedTuple):
    """What all lives of a query have in common."""

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
    #: Where processes beside the query reach it, and what lets them in; by default it is made up.
    bridge_place: CoordinatorAddress | None = None
    bridge_token: str | None = None
    #: What queries of state may look back, in the time of the elements.
    history: int = 0


class Supervision:
    """Runs the lives of a query, in a thread. The first one is begun by whoever makes it."""

    def __init__(self, spark: SparkSession, settings: Settings, tag: str) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        #: What each life before this one was lost by.
        self.losses: list[BaseException] = []
        self._spark = spark
        self._tag = tag
        self._keys = RunKeys.made()
        self._over = threading.Event()
        self._stop_asked = threading.Event()
        self._number = 0
        self._lost_at: list[Moment] = []
        self._plan, self.coordinator = self._begun()
        self._thread = threading.Thread(target=self._run, name="emberflow lives", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more in, let out what is final, then end."""
        self._stop_asked.set()
        self.coordinator.stop()

    def fail(self, error: BaseException) -> None:
        """End now, with this error, and begin no other life."""
        self._stop_asked.set()
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
                if failure is None or self._stop_asked.is_set() or not self._may_live_on(failure):
                    break
                told = str(failure).partition("\n")[0]
                _log.warning("life %d was lost, the next one begins: %s", self._number, told)
                time.sleep(_PAUSE_SECONDS)
                # An executor that was lost takes a moment to be replaced.
                check_cluster(self._spark, self.settings.workers)
                self._plan, self.coordinator = self._begun()
                self.losses.append(failure)
                if self._stop_asked.is_set():
                    self.coordinator.stop()
            if self.failure is None:
                self.failure = failure
        except Exception as error:
            self.failure = error
        finally:
            self._over.set()

    def _begun(self) -> tuple[Plan, Coordinator]:
        """The next life, ready to start."""
        settings = self.settings
        life = self._claimed()
        self._number = life.incarnation
        for name, front in settings.fronts.items():
            if self.losses and isinstance(self.losses[-1], FrontGrewError):
                # Not after other losses: the source may be away, and nothing new is to be learnt.
                getattr(front, "look_again", lambda: None)()
            known = life.restored.positions.get(name) if life.restored is not None else None
            _check_partitions(name, front, known)
        told = {name: one for name, one in settings.fronts.items() if hasattr(one, "passed")}
        if life.restored is not None:
            for name, front in told.items():
                tell_passed(name, front, life.restored)
        committing = None
        if settings.checkpoint is not None:
            made = Snapshotting if settings.ordering == "arrival" else Committing
            committing = made(
                settings.graph,
                settings.checkpoint,
                life,
                workers=settings.workers,
                interval_ms=settings.interval_ms,
                keep=settings.kept,
                logged={
                    name: front.partitions
                    for name, front in settings.fronts.items()
                    if chooses(front) and not settings.keep_logs
                },
                told=told,
                trims=not settings.keep_logs,
            )
        coordinating: Any = Coordinator
        if settings.ordering == "arrival":
            coordinating = partial(
                ArrivalCoordinator,
                holds_output=settings.guarantee == "exactly-once",
                stops=settings.snapshots == "stop",
            )
        coordinator: Coordinator = coordinating(
            settings.graph,
            workers=settings.workers,
            incarnation=life.incarnation,
            keys=self._keys,
            place=settings.place,
            fronts=settings.fronts,
            sinks=settings.sinks,
            on_error=settings.on_error,
            committing=committing,
            since=BEFORE_ALL if life.restored is None else life.restored.time,
            history=settings.history,
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
                name: None if getattr(sink, "on_driver", False) else sink
                for name, sink in settings.sinks.items()
            },
            credit=settings.credit,
            batch=settings.batch,
            on_error=settings.on_error,
            guarantee=settings.guarantee,
            checkpoint=settings.checkpoint,
            restored=life.restored,
            ordering=settings.ordering,
            snapshots=settings.snapshots,
        )
        return plan, coordinator

    def _claimed(self) -> Life:
        settings = self.settings
        if settings.checkpoint is None:
            return Life(self._number + 1, None)
        store = CheckpointStore(settings.checkpoint)

        def fitting(store: CheckpointStore) -> Any:
            cut = store.latest()
            if cut is not None:
                check_fits(cut, settings.graph, ordering=settings.ordering)
            return cut

        return store.begin(fitting)

    def _live(self) -> BaseException | None:
        """One life, from its start to the end of its job; what it was lost by, if it was."""
        coordinator, plan = self.coordinator, self._plan
        job = threading.Thread(
            target=self._run_job, args=(plan, coordinator), name="emberflow job", daemon=True
        )
        coordinator.start()
        job.start()
        coordinator.wait(None)
        job.join(_END_SECONDS)
        if job.is_alive():  # a worker that hears nothing: it is stuck, or stopped
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
            # All tasks have ended; if the coordinator does not know why, they were lost quietly.
            if not coordinator.wait(_END_SECONDS):
                coordinator.fail(JobFailedError("the workers have ended before the query did"))

    def _may_live_on(self, failure: BaseException) -> bool:
        """Whether another life may do better, and would give the same output."""
        never_there = isinstance(failure, ClusterError | WorkersMissingError)
        if never_there and not self.losses and not self.coordinator.met:
            return False  # there were no slots; later on an executor may just have been lost
        if not isinstance(failure, _LOST) or isinstance(failure, FencedError):
            return False
        settings = self.settings
        if (
            settings.checkpoint is None
            and settings.guarantee != "at-least-once"
            and any(news.chose for news in self.coordinator.news.values())
        ):
            failure.add_note(
                "The query was not begun again: its fronts have chosen times of arrival, or cannot "
                "be read again, and there is no log of it. Set .option('checkpointLocation', ...)."
            )
            return False
        at = self.coordinator.progress.of_all()
        if self._lost_at and at > max(self._lost_at):
            self._lost_at = []
        self._lost_at.append(at)
        if len(self._lost_at) < LIVES_AT_ONE_PLACE_MAX:
            return True
        # A life that begins with it is lost before it has come anywhere.
        furthest = max(self._lost_at)
        where = "before it began" if furthest == BEFORE_ALL else f"at the minimal time {furthest}"
        poisoned = PoisonedError(
            f"{len(self._lost_at)} lives in a row were lost {where}, so the query has ended. An "
            f"element there may kill the process that looks at it. The last loss: {failure}"
        )
        poisoned.__cause__ = failure
        self.failure = poisoned
        return False


def _check_partitions(name: str, front: Front, known: Mapping[int, Any] | None) -> None:
    """Whether a front has the partitions that the cut to begin from knows, or may have more."""
    if known is None or set(known) == set(range(front.partitions)):
        return
    before, now = len(known), front.partitions
    if now < before:
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. A "
            f"source keeps its partitions; for another source take another checkpointLocation."
        )
    if not chooses(front):
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. "
            f"Output has passed the times of what the new ones hold, and nothing notes where they "
            f"joined. Let it promise while it is idle (fronts.Kafka: idle_ms=), or take the times "
            f"of arrival, or begin anew with another checkpointLocation."
        )
