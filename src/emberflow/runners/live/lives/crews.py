"""The processes of a query, as the supervisor uses them: those that are left begin the next life, or others do.

With a fixed port of the coordinator there is room for one listener only, and no roster: then each life has
processes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import cloudpickle

from emberflow.errors import EmberflowError
from emberflow.runners.live.driver.cluster import check_cluster, context_of
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.lives.current import Current
from emberflow.runners.live.lives.losses import WorkerLostError
from emberflow.runners.live.processes.jobs import Job, Jobs
from emberflow.runners.live.processes.member import Crew, Seat, seats_of
from emberflow.runners.live.processes.roster import Roster
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.wire.sockets import WireKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long the supervisor waits for the processes that are left; and how long for those that are stuck,
#: before it lets their keepers replace them.
_GATHER_SECONDS = 5.0
_PATIENCE_SECONDS = 1.0


class Crews:
    """Spark's jobs, and the roster of the processes that their tasks keep."""

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        current: Current,
        keys: WireKeys,
    ) -> None:
        self._spark = spark
        self._current = current
        self.jobs = Jobs(spark, tag, current.working)
        self.roster: Roster | None = None
        settings = current.settings
        if settings.place.port == 0:
            looks = context_of(spark) is None
            self.roster = Roster(keys, settings.place, settings.workers, self._lost, looks=looks)

    @property
    def may_go_on(self) -> bool:
        """Whether all processes of workers may work in another life."""
        return self.roster is not None and self.jobs.are_alive()

    def set_to_work(self, plan: Plan, coordinator: Coordinator) -> None:
        """Let processes work in a life: those of the life before, or those of another job."""
        jobs, roster = self.jobs, self.roster
        try:
            if jobs.are_there and not (
                roster is not None
                and roster.gathered(_GATHER_SECONDS, _PATIENCE_SECONDS, jobs.are_alive)
            ):
                self.end_jobs()
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
        self._current.seats = seats_of(crew, plan.workers)
        jobs.start(plan, crew, range(plan.workers))

    def _lost(self, seat: Seat) -> None:
        """The roster has seen another process in the place of one that works, or a free one that should."""
        seats = self._current.seats
        who = f"worker {seats.index(seat)}" if seat in seats else "a worker that was to be added"
        lost = WorkerLostError(f"the process of {who} is lost")
        for coordinator in self._current.working([seat]):
            coordinator.fail_unless_over(lost)

    def pause(self) -> None:
        """The life that runs is over: its processes will be free."""
        if self.roster is not None:
            self.roster.pause(self._current.number)

    def admit(self, workers: Sequence[int]) -> Crew:
        """There will be processes for workers that are added, for a life that is prepared."""
        assert self.roster is not None
        return self.roster.add(workers)

    def discard(self, job: Job) -> None:
        """The workers of a job that were to be added are not."""
        assert self.roster is not None
        assert job.crew is not None
        self.roster.give_up(job.crew)
        self.jobs.discard(job)

    def rescale(self, seats: tuple[Seat, ...]) -> None:
        """A life takes over that has its workers at these seats."""
        self._current.seats = seats
        if self.roster is not None:
            self.roster.rescale(seats)
        self.jobs.leave(seats)

    def end_jobs(self) -> None:
        """End all processes; others may come."""
        if self.roster is not None:
            self.roster.finish()
        try:
            self.jobs.end()
        except EmberflowError as error:
            current = self._current
            error.add_note(f"Life {current.number} was lost by: {current.coordinator.failure}")
            raise

    def end(self) -> None:
        """The query is over."""
        try:
            self.end_jobs()
        except Exception as error:
            if self._current.failure is None:
                self._current.failure = error
        finally:
            if self.roster is not None:
                self.roster.close()
