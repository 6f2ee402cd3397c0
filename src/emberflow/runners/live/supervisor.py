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
processes, and so they need no other job (`lives.succession`). What it needs is prepared beside what works.
Then the old version halts, and its last cut is stored and does not count yet. The new version takes the state
over in memory, while the driver claims its life; then the cut counts, with the note of the new version in it.
A life that is lost on the way has changed nothing: the next one is of the old version, and goes on from the
cut before.

**Another number of workers** takes over in the same way (`rescale`): it is the same version, with another owner
table, and there is nothing to note.

Whether a loss is followed by another life is a question of its own (`lives.losses`), and so is how one begins
(`lives.claims`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.backfills import check_begins
from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.files import is_unwritable
from emberflow.checkpoint.lease import LeaseHolder
from emberflow.engine.messages import Moment
from emberflow.errors import EmberflowError
from emberflow.runners.interpreter import driving
from emberflow.runners.live.driver.cluster import ClusterError, check_cluster
from emberflow.runners.live.driver.coordinator import Coordinator, Inheritance
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.life import Settings
from emberflow.runners.live.lives.claims import UNWRITABLE_SECONDS, Claims
from emberflow.runners.live.lives.crews import Crews
from emberflow.runners.live.lives.current import Current
from emberflow.runners.live.lives.losses import LOST, Losses
from emberflow.runners.live.lives.shadows import Shadows
from emberflow.runners.live.lives.succession import Succession
from emberflow.runners.live.processes.launch import JobFailedError
from emberflow.runners.live.processes.member import Here, Seat
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.wire.sockets import WireKeys
from emberflow.sinks.writer import WriterThread
from emberflow.values.owners import Owners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.driver.chronicle import Chronicle

#: How long the supervisor waits for a writer that is to end.
_END_SECONDS = 3.0
_PAUSE_SECONDS = 0.05
#: How often the supervisor looks whether another driver has claimed the checkpoint.
_LOOK_SECONDS = 2.0
#: A new version that loses so many lives before it runs does not take over.
_TAKEOVERS_LOST_MAX = 3


def _begins_with(plan: Plan) -> str:
    """The state that a life begins with."""
    cut = plan.restored
    return "with no state" if cut is None else f"from cut {cut.number}"


class Supervision:
    """Runs the lives of a query, in a thread. The constructor begins the first one, so its errors go
    to the caller."""

    def __init__(self, spark: SparkSession, settings: Settings, tag: str, log: QueryLog) -> None:
        self._spark = spark
        keys = WireKeys.made()
        self.current = Current(settings, log)
        self._losses = Losses()
        self._claims = Claims(self.current, keys, self._losses, self._runs)
        self._claims.begin()
        #: From here on there is something to close.
        self._crews = Crews(spark, tag, self.current, keys)
        self._shadows = Shadows(self.current, keys)
        self._succession = Succession(
            spark, self.current, keys, self._crews, self._shadows, self._runs
        )
        #: Tells drivers that stand by that this one works.
        self._lease: LeaseHolder | None = None
        if settings.checkpoint is not None:
            self._lease = LeaseHolder(settings.checkpoint, lambda: self.current.number)
        self.current.note("begun", _begins_with(self.current.plan))
        self._thread = threading.Thread(target=self._run, name="emberflow lives", daemon=True)

    @property
    def settings(self) -> Settings:
        return self.current.settings

    @property
    def coordinator(self) -> Coordinator:
        return self.current.coordinator

    @property
    def chronicle(self) -> Chronicle:
        return self.current.chronicle

    @property
    def failure(self) -> BaseException | None:
        return self.current.failure

    @property
    def processes(self) -> dict[Seat, Here]:
        """What the processes of the workers have reported last, by their seats."""
        return {} if self._crews.roster is None else self._crews.roster.working()

    @property
    def losses(self) -> list[BaseException]:
        """The error that ended each life before this one."""
        return self._losses.errors

    def start(self) -> None:
        if self._lease is not None:
            self._lease.start()
        self._thread.start()

    def stop(self) -> None:
        """Read no more elements, store all output that is final, then end."""
        if not self.current.stop_requested.is_set():
            self.current.note("stopping")
        self.current.stop_requested.set()
        self.coordinator.stop()

    def upgrade(self, settings: Settings, at: Moment | None, seconds: float) -> None:
        """See `Succession`, also for the two below."""
        self._succession.upgrade(settings, at, seconds)

    def rescale(self, workers: int, seconds: float, leaving: Collection[Seat] = ()) -> None:
        self._succession.rescale(workers, seconds, leaving)

    def rebalance(self, planned_on: Owners, of_slice: Sequence[int], seconds: float) -> None:
        self._succession.rebalance(planned_on, of_slice, seconds)

    def shadow(self, settings: Settings, compared: Any) -> Coordinator:
        return self._shadows.begin(settings, compared)

    def end_shadow(self, reason: BaseException) -> None:
        self._shadows.end(reason)

    def fail(self, error: BaseException) -> None:
        """End now, with this error, and begin no other life."""
        self.current.stop_requested.set()
        if self.failure is None:
            self.current.failure = error
        self.coordinator.fail(error)

    def wait(self, seconds: float | None) -> bool:
        return self.current.over.wait(seconds)

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
                    failure = self._claims.taken_over(failure)
                keeps = self._keeps_processes(failure)
                if not keeps:
                    self._crews.end_jobs()
                if self._changes_version(failure):
                    if self.current.stop_requested.is_set():
                        self.coordinator.stop()
                    continue
                if failure is None or self.current.stop_requested.is_set():
                    break
                fatal = self._losses.forbid(failure, self.coordinator, self.settings)
                if fatal is not None:
                    failure = fatal
                    break
                reason = str(failure).partition("\n")[0]
                self.current.note("lost", reason)
                self.current.tell(logging.WARNING, "lost", f"lost, the next one begins: {reason}")
                if is_unwritable(failure):
                    time.sleep(UNWRITABLE_SECONDS)
                if not keeps:
                    time.sleep(_PAUSE_SECONDS)
                    # Replacing a lost executor takes a moment.
                    check_cluster(self._spark, self.settings.workers)
                self._claims.begin_when_writable()
                self.current.note("begun", _begins_with(self.current.plan))
                self._losses.errors.append(failure)
                if self.current.stop_requested.is_set():
                    self.coordinator.stop()
                else:
                    self._ask_again()
            if self.failure is None:
                self.current.failure = failure
        except Exception as error:
            self.current.failure = error
        finally:
            self._crews.end()
            if self._lease is not None:
                self._lease.end(is_over=self.failure is None)
            if self.failure is None:
                self.current.note("ended")
            else:
                self.current.note("failed", str(self.failure))
            self.current.over.set()
            ended = EmberflowError("the query has ended before the new version, or workers, ran.")
            ended.__cause__ = self.failure
            self._succession.end(ended)

    def _changes_version(self, failure: BaseException | None) -> bool:
        """Begin a life of another version, if one is to take over and this life allows it."""
        if self.coordinator.hands_over:
            return self._goes_on_in_place()
        current = self.current
        successor = current.successor
        if successor is None or isinstance(failure, FencedError) or current.stop_requested.is_set():
            return False
        if self.settings is successor.settings and failure is None:
            return False  # it has run to its end
        if self.settings is successor.settings and (successor.is_noted or self._claims.is_noted()):
            successor.is_noted = True  # there is no way back: its next life goes on
            return False
        if self.settings is successor.settings and isinstance(failure, LOST):
            successor.lost += 1
            if successor.lost < _TAKEOVERS_LOST_MAX:
                # Nobody is to blame. The next life takes over, from the same cut; if that was held, it is not
                # there, and the old version makes another one.
                if self.current.plan.inherits is not None:
                    self.current.settings = successor.before
                return False
        if self.settings is successor.settings:
            # It has not begun to run: nobody relies on it.
            told = f"the new {successor.kind} could not take over, the old one goes on: {failure}"
            self.current.tell(logging.WARNING, "upgraded", told)
            self.current.settings = successor.before
            self._claims.begin_when_writable()
            # Not before: who hears of it may ask for another version, and this life is to be asked.
            self._succession.end(failure)
            return True
        elif failure is None and self.coordinator.halted_before_the_end:
            self.current.settings = successor.settings
        else:
            return False  # it was lost on the way, and is asked again, or all fronts have ended
        try:
            self._claims.begin_when_writable()
        except Exception as error:
            self.current.settings = successor.before
            self._claims.begin_when_writable()
            self._succession.end(error)
        return True

    def _runs(self) -> None:
        """The workers of this life were told to begin."""
        self.current.note("running")
        successor = self.current.successor
        if successor is not None and self.settings is successor.settings:
            what = "the new version has"
            if successor.is_rescale:
                what = f"{self.current.plan.workers} workers have"
            self._succession.end(None)
            still = self.coordinator.standstill
            waited = "" if still is None else f"; elements waited for it {still}"
            told = f"{what} taken over{waited}"
            self.current.tell_later(logging.INFO, "upgraded", told)
        else:
            cut = self.current.plan.restored
            begun = "from the beginning" if cut is None else f"from cut {cut.number}"
            told = f"{self.current.plan.workers} workers run, {begun}"
            self.current.tell_later(logging.INFO, "running", told)

    def _ask_again(self, *, only_rescales: bool = False) -> None:
        """A life of the old version begins: what is to take over is asked for again."""
        successor = self.current.successor
        if (
            successor is not None
            and self.settings is successor.before
            and (successor.is_rescale or not only_rescales)
        ):
            self._succession.ask(successor)

    def _goes_on_in_place(self) -> bool:
        """The old version has ended for one that takes over in its processes. Begin the life of that one; or,
        if it has been given up since, another life of the old version."""
        with self.current.changing:
            successor, life = self.current.successor, None
            # Otherwise it was asked for after the one that was given up.
            if successor is not None and successor.is_prepared:
                life, successor.life = successor.life, None  # now it tells itself
        if successor is not None and life is not None:
            # In this order: whoever knows the settings knows where its workers are.
            self._crews.rescale(successor.seats)
            self.current.settings = successor.settings
            self._hand_over(*life)
            return True
        # The processes wait for the one that was given up, and the last cut is held for it: it never counts.
        self.coordinator.left_writers(frozenset())
        self._crews.end_jobs()
        if self.failure is not None:
            return False
        self._claims.begin_when_writable()
        successor = self.current.successor
        if successor is not None:
            self._succession.discard_life(successor)
            self._succession.ask(successor)
        return True

    def _hand_over(self, plan: Plan, successor: Coordinator) -> None:
        """The old version has ended at its last cut: the new one goes on, in the same processes.

        If it cannot, its life fails, and the next life is of the old version.
        """
        old = self.coordinator
        self.current.plan, self.current.coordinator = plan, successor
        writers = old.left_writers(plan.inherits or frozenset())
        try:
            if self.failure is not None:
                raise self.failure
            if self.current.stop_requested.is_set():  # perhaps when the old one had ended already
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
            committer = self._claims.claimed_for(inheritance, old)
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
        if self.current.plan.carried is not None:
            check_begins(self.current.plan.carried, cut.time)
        assert old.standstill is not None
        return Inheritance(cut, held, old.standstill, writers)

    def _live(self) -> BaseException | None:
        """Run one life, to the end of its job, or until another version takes over in its processes.

        Returns its failure, if it failed.
        """
        coordinator = self.coordinator
        if not coordinator.has_started:  # not one that takes over in place
            with self._succession.preparing:
                self._crews.set_to_work(self.current.plan, coordinator)
            self._ask_again(only_rescales=True)
        while not coordinator.wait(_LOOK_SECONDS):
            fenced = self._claims.taken_over()
            if fenced is not None:
                coordinator.fail(fenced)
        if coordinator.failure is None:
            self._shadows.wait_for_the_end()
        self.end_shadow(EmberflowError("the workers of the query have ended."))
        if not coordinator.hands_over:
            self._crews.pause()
            successor = self.current.successor
            if successor is not None:
                self._succession.discard_life(successor)
                if self.settings is successor.before:
                    self._succession.discard_added(successor)
        return coordinator.failure

    def _keeps_processes(self, failure: BaseException | None) -> bool:
        """Whether the processes that are left may go on: they begin the next life, or a version in place.

        Only after what has been understood: otherwise the next life has processes that Spark starts anew.
        """
        if self.coordinator.hands_over:
            return True
        successor = self.current.successor
        # Those that were to be added are of another crew, which has been given up.
        is_as_before = (
            successor is not None and successor.is_rescale and self.settings is successor.before
        )
        return (
            self._crews.may_go_on
            and (successor is None or is_as_before)
            and isinstance(failure, LOST)
            and not isinstance(failure, JobFailedError | ClusterError | FencedError)
            and not self.current.stop_requested.is_set()
        )
