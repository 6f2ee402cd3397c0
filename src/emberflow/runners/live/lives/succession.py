"""Succession: what takes over is asked for, prepared beside the life that works, and given up if it cannot.

What is guaranteed: **one takes over at a time, and whoever asked for it hears once what has become of it.** Until
its first cut counts, the life before is as it was (`supervisor` says what happens between the two).

If the new version has the same fronts, and its sinks are new or the same, its workers are the same processes,
and so they need no other job. Its coordinator and the loops of its workers are made beside those that work,
and meet. If that fails, nothing has happened.

A life that is lost meanwhile takes what was prepared with it, and the next one is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import cloudpickle

from emberflow.checkpoint.cuts.backfills import planned
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.store import Life
from emberflow.dsl.versions import told
from emberflow.engine.messages import Moment
from emberflow.engine.staffing import staffed
from emberflow.errors import EmberflowError, InputError
from emberflow.graph.description import steps_of
from emberflow.graph.versions import CarryPlan, has_backfills
from emberflow.runners.live.balance.ledger import Load
from emberflow.runners.live.driver.cluster import ClusterError, check_cluster
from emberflow.runners.live.driver.coordinator import (
    Coordinator,
    OtherVersion,
    WorkersMissingError,
)
from emberflow.runners.live.life import Settings, coordinator_of, inherited_sinks, plan_of
from emberflow.runners.live.lives.crews import Crews
from emberflow.runners.live.lives.current import Current
from emberflow.runners.live.lives.losses import LOST, WorkerLostError
from emberflow.runners.live.lives.shadows import Shadows
from emberflow.runners.live.lives.successor import Successor
from emberflow.runners.live.processes.member import Seat, seats_of
from emberflow.runners.live.rescale import check_number, check_rescale, not_there, rescaled
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.wire.sockets import WireKeys
from emberflow.values.item import GlobalTime
from emberflow.values.owners import Owners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long to wait for a life that is about to be over.
_END_SECONDS = 3.0


class Succession:
    """What takes over next."""

    def __init__(
        self,
        spark: SparkSession,
        current: Current,
        keys: WireKeys,
        crews: Crews,
        shadows: Shadows,
        running: Callable[[], None],
    ) -> None:
        """``running`` is called when the workers of a life are told to begin."""
        self._spark = spark
        self._current = current
        self._keys = keys
        self._crews = crews
        self._shadows = shadows
        self._running = running
        #: What was known last of what the slices cost.
        self._load: Load | None = None
        #: Held while processes are set to work, or asked to prepare what takes over.
        self.preparing = threading.Lock()

    # What is asked for, in the threads of those who ask.

    def upgrade(self, settings: Settings, at: Moment | None, seconds: float) -> None:
        """Go over to another version of the flow, at a moment or as soon as possible.

        A version with steps that begin from backfills takes over at the moment at which these end.

        Returns when it runs, and raises if it does not. Then the old version goes on.
        """
        before = self._current.settings
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
        self._shadows.end(EmberflowError("the query goes over to another version."))
        if inherited_sinks(before, settings) is not None:
            # Keys stay in their processes.
            settings = settings._replace(owners=before.owners, workers=before.workers)
        successor = Successor(settings, before, at)
        self._begin(successor)
        asked = "as soon as possible" if at is None else f"at the time {told(GlobalTime(*at))}"
        self._current.note("upgrading", f"{settings.graph.flow}, {asked}")
        self.ask(successor)
        if not successor.over.wait(seconds):
            raise EmberflowError(
                f"the new version has not taken over within {seconds:.0f} s. It still may."
            )
        if successor.failure is not None:
            raise successor.failure

    def _begin(self, successor: Successor) -> None:
        with self._current.changing:
            before = self._current.successor
            if before is not None:
                raise EmberflowError(f"another {before.kind} is taking over just now: wait for it.")
            if self._current.over.is_set() or self._current.stop_requested.is_set():
                raise EmberflowError("the query is over, or about to be: nothing takes over.")
            if successor.before is not self._current.settings:
                raise EmberflowError("something else has taken over just now: ask again.")
            self._current.successor = successor

    def rescale(self, workers: int, seconds: float, leaving: Collection[Seat] = ()) -> None:
        """Go on with another number of workers, at a moment just ahead (`rescale`), and without those at the
        seats that are to be left, if any.

        Returns when they run, and raises if they do not. Then the old number goes on.
        """
        check_number(workers)
        before, seats = self._current.settings, self._current.seats
        staffing = staffed(
            before.workers, workers, [at for at, seat in enumerate(seats) if seat in leaving]
        )
        settings = rescaled(before, staffing, self._known_load())
        if staffing.is_trivial:
            return
        if not leaving:
            check_cluster(self._spark, workers)
        self._change_owners(Successor(settings, before, None, staffing=staffing), seconds)

    def rebalance(self, planned_on: Owners, of_slice: Sequence[int], seconds: float) -> None:
        """Go on with other owners of the slices, at a moment just ahead, and as many workers (`balance`).

        ``planned_on`` is the table that they were planned on. Returns and raises as `rescale` does.
        """
        before = self._current.settings
        staffing = staffed(before.workers, before.workers)
        check_rescale(before, staffing)
        if before.owners is not planned_on:
            raise EmberflowError("the slices have other owners by now: plan again.")
        owners = before.owners.next(of_slice, before.workers)
        self._known_load()  # for a rescale that follows: the next life is too young to know its own
        successor = Successor(before._replace(owners=owners), before, None, staffing=staffing)
        self._change_owners(successor, seconds)

    def _known_load(self) -> Load:
        """The load of the present life; if it is too young, that of one before: slices are what they were."""
        load = self._current.coordinator.ledger.look()
        if load.is_ripe or self._load is None:
            self._load = load
        return self._load

    def _change_owners(self, successor: Successor, seconds: float) -> None:
        before, workers, staffing = successor.before, successor.settings.workers, successor.staffing
        assert staffing is not None
        self._shadows.end(EmberflowError("the query goes on with other owners of its keys."))
        self._begin(successor)
        self._current.note("rescaling", successor.told)
        self.ask(successor)
        if not successor.over.wait(seconds):
            with self._current.changing:
                gives_up = not successor.is_prepared and self._current.successor is successor
                if gives_up:
                    self.discard_life(successor)
            if gives_up:
                self.end(not_there(staffing, seconds))
            elif not successor.over.is_set():
                raise EmberflowError(
                    f"the query does not run with {workers} workers after {seconds:.0f} s. It still may."
                )
        if isinstance(successor.failure, LOST) and not isinstance(
            successor.failure, WorkersMissingError | ClusterError
        ):
            raise WorkerLostError(
                f"the query goes on with {before.workers} workers: {successor.failure}"
            ) from successor.failure
        if successor.failure is not None:
            raise successor.failure

    # The life that works, and what is prepared beside it.

    def ask(self, successor: Successor) -> None:
        """Let the workers that work now end, for those of the new version."""
        inherited = inherited_sinks(successor.before, successor.settings)
        if inherited is None:
            self._current.coordinator.stop_for_takeover(successor.at, self._refused, in_place=False)
            return
        try:
            with self.preparing:
                old = self._current.coordinator
                if successor.is_rescale and (
                    successor.asked is old or not old.has_started or old.wait(0)
                ):
                    # The next life is asked when its own workers have their job. Those of one that is over end, and
                    # would take with them whom this adds.
                    return
                successor.asked = old
                self._prepare(successor, inherited)
                if successor.over.is_set():  # it was given up meanwhile
                    self.discard_life(successor)
                    self.discard_added(successor)
        except Exception as error:
            self.end(error)

    def _prepare(self, successor: Successor, inherited: frozenset[str]) -> None:
        """Make the coordinator of the new version, and let the workers make its loops."""
        old = self._current.coordinator
        # Another thread may have prepared this when the life before was about to be lost.
        self.discard_life(successor)
        self.discard_added(successor)
        successor.is_prepared = False

        def prepared(failure: BaseException | None) -> None:
            """All workers have the new version, or one has not: it was lost, or cannot have it."""
            with self._current.changing:
                if not successor.waits_for(coordinator):
                    return  # it was given up, or has the state: its life tells
                successor.is_prepared = successor.is_prepared or failure is None
            is_lost = isinstance(failure, LOST)
            if is_lost and successor.is_rescale:
                # With the life that was to hand over? Then the next one is asked again; or, if it has handed over
                # to this one already, that life tells.
                if not old.wait(_END_SECONDS):
                    self.end(failure, coordinator)
            elif failure is None or is_lost:
                in_place = failure is None
                if successor.is_rescale:
                    old.stop_for_takeover(None, self._refused, in_place=True, bring_up=bring_up)
                elif successor.at is None:
                    old.stop_for_takeover(None, self._refused, in_place=in_place)
                else:
                    old.takeover_prepared(in_place=in_place)
            else:
                self.end(failure, coordinator)

        def met() -> None:
            """All workers are there: they read ahead what will come to them, and are prepared then."""
            with self._current.changing:
                if successor.waits_for(coordinator):  # otherwise it was given up
                    old.give_cut(read)

        def read(cut: Manifest | None) -> None:
            coordinator.copy(cut, is_last=False, copied=lambda: prepared(None))

        def bring_up(cut: Manifest | None, is_last: bool) -> None:
            coordinator.copy(cut, is_last=is_last, copied=old.brought_up)

        def refused(problem: BaseException) -> None:
            self.end(problem, coordinator)

        if successor.at is not None:  # it may be near
            old.stop_for_takeover(successor.at, self._refused, in_place=None)
        settings = successor.settings
        carried: CarryPlan | None = None
        if not successor.is_rescale:
            before = steps_of(successor.before.graph)
            carried = planned(before, settings.graph, settings.carry, successor.at)
        life = Life(self._current.number + 1, None)  # its cut is still to be made
        coordinator = coordinator_of(
            settings,
            life,
            carried,
            self._keys,
            running=self._running,
            inherits=inherited,
            prepared=prepared,
            met=met if successor.is_rescale else None,
            log=self._current.log,
        )
        plan = plan_of(settings, life, carried, self._keys, coordinator)
        plan = plan._replace(inherits=inherited)
        if successor.staffing is not None:
            plan = plan._replace(moved_from=successor.staffing.renamed(successor.before.owners))
        successor.life = (plan, coordinator)
        coordinator.start()
        numbers = self._seat(successor, plan)
        old.prepare(OtherVersion(cloudpickle.dumps(plan), refused, numbers=numbers))

    def _seat(self, successor: Successor, plan: Plan) -> Mapping[int, int] | None:
        """Say where the workers of its life will be, and let Spark start those that are added. Returns which worker
        of it each of the present ones will be; None if all stay who they are."""
        seats, staffing = self._current.seats, successor.staffing
        if staffing is None or staffing.is_trivial:
            successor.seats = seats
            return None
        at = {number: seats[worker] for worker, number in staffing.stays.items()}
        added = staffing.added
        crew = self._crews.admit(added) if added else None
        at |= zip(added, seats_of(crew, len(added)), strict=True)
        # Before the job begins, whose end concerns who is there.
        successor.seats = tuple(at[number] for number in range(plan.workers))
        if added:
            successor.job = self._crews.jobs.start(plan, crew, added)
        return staffing.stays

    def discard_added(self, successor: Successor) -> None:
        """The workers that were to be added are not."""
        job, successor.job = successor.job, None
        if job is not None:
            self._crews.discard(job)

    def discard_life(self, successor: Successor) -> None:
        """End the coordinator of a version that does not take over."""
        life, successor.life = successor.life, None
        if life is not None:
            life[1].fail(EmberflowError("the version does not take over"))

    def _refused(self, reached: int) -> None:
        """The time at which a version was to take over has passed."""
        successor = self._current.successor
        told_at, advice = None, "Give a later time, or none, and the query chooses one."
        if successor is not None and successor.at is not None:
            told_at = told(GlobalTime(*successor.at))
            if has_backfills(successor.settings.carry):
                advice = (
                    "The backfill that the new version begins from ends there. Stop the query, backfill "
                    "until=ef.last_moment(checkpoint), and start it again with .carry({...})."
                )
        self.end(
            InputError(
                f"upgrade(at={told_at}): elements up to the time {reached} have entered the old version, or "
                f"its fronts are beyond that time. {advice}"
            )
        )

    def end(self, failure: BaseException | None, coordinator: Coordinator | None = None) -> None:
        """The version that is to take over runs, or will not.

        With a ``coordinator``, only if that one is still to take over: it has no state yet.
        """
        current = self._current
        with current.changing:
            successor = current.successor
            if coordinator is not None and (
                successor is None or not successor.waits_for(coordinator)
            ):
                return
            current.successor = None
        if successor is not None:
            self.discard_life(successor)
            if failure is not None and current.settings is successor.before:
                current.coordinator.cancel_takeover()
                self.discard_added(successor)
            if failure is None and successor.is_rescale:
                current.note("rescaled", successor.told)
            elif failure is None:
                current.note("upgraded", successor.settings.graph.flow)
            else:
                current.note("kept", str(failure))
            successor.end(failure)
