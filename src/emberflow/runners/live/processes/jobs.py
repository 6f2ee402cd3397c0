"""The Spark jobs whose tasks keep the workers: the first one, and one more for each time that workers were added.

What is guaranteed: **a worker is of one job, and the end of a job concerns the coordinators that have workers
in it, and no others.** A job that was begun for workers that are not added after all (`discard`) concerns
nobody any more, nor does one whose workers have all left (`leave`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from emberflow.errors import EmberflowError
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.processes.launch import (
    JobFailedError,
    cancel_workers,
    job_failure,
    run_workers,
)
from emberflow.runners.live.processes.member import Crew, Seat, seats_of
from emberflow.runners.live.wire.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long to wait for a job to end by itself, and then after cancelling it.
_END_SECONDS = 3.0
_CANCEL_SECONDS = 30.0
#: By then a failed worker has sent its own error, which says more than Spark's.
_ECHO_SECONDS = 0.3


class Job:
    """A Spark job, in a thread that waits for its end."""

    def __init__(self, tag: str, crew: Crew | None, seats: Collection[Seat]) -> None:
        #: Its own tag; all jobs of the query share another one.
        self.tag = tag
        self.crew = crew
        #: Where it still keeps a worker.
        self.seats = frozenset(seats)
        self.thread: threading.Thread

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive()


class Jobs:
    """All jobs of a query."""

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        working: Callable[[Collection[Seat]], Sequence[Coordinator]],
    ) -> None:
        """``working`` gives the coordinators that have a worker at one of these seats, or will have one."""
        self._spark = spark
        self._tag = tag
        self._working = working
        self._lock = threading.Lock()
        self._begun = 0
        #: Those that keep workers, and those that are to end.
        self._jobs: list[Job] = []
        self._ending: list[Job] = []

    @property
    def are_there(self) -> bool:
        """Whether any job was begun, and was not ended."""
        return bool(self._jobs)

    def are_alive(self) -> bool:
        """Whether the workers have a job, and all jobs of workers are alive."""
        jobs = list(self._jobs)
        return bool(jobs) and all(job.is_alive for job in jobs)

    def start(self, plan: Plan, crew: Crew | None, workers: Sequence[int]) -> Job:
        """Begin a job of these workers, at the seats of a crew."""
        seats = seats_of(crew, len(workers))
        with self._lock:
            self._begun += 1
            job = Job(f"{self._tag}-{self._begun}", crew, seats)
            job.thread = threading.Thread(
                target=self._run, args=(plan, job, workers), name="emberflow job", daemon=True
            )
            self._jobs.append(job)
            self._ending = [one for one in self._ending if one.is_alive]
            job.thread.start()
        return job

    def leave(self, staying: Collection[Seat]) -> None:
        """From now on there are workers at these seats only."""
        with self._lock:
            for job in self._jobs:
                job.seats = job.seats.intersection(staying)
            self._ending += [job for job in self._jobs if not job.seats]
            self._jobs = [job for job in self._jobs if job.seats]

    def discard(self, job: Job) -> None:
        """End a job whose workers are not added after all: it may still wait for slots."""
        with self._lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
            self._ending.append(job)
            job.seats = frozenset()

        def discard() -> None:
            job.thread.join(_END_SECONDS)
            if job.is_alive:
                cancel_workers(self._spark, job.tag)

        threading.Thread(target=discard, name="emberflow job's end", daemon=True).start()

    def end(self) -> None:
        """Wait for all jobs to end, and cancel them if they do not. Raises if that does not help."""
        with self._lock:
            jobs = [*self._jobs, *self._ending]
            self._jobs, self._ending = [], []
        _join(jobs, _END_SECONDS)
        if any(job.is_alive for job in jobs):
            # A worker does not read messages: it is stuck, or suspended.
            cancel_workers(self._spark, self._tag)
            _join(jobs, _CANCEL_SECONDS)
        if any(job.is_alive for job in jobs):
            raise EmberflowError(
                f"the Spark job of the workers could not be ended within {_CANCEL_SECONDS:.0f} s, so no "
                f"other one was begun."
            )

    def _run(self, plan: Plan, job: Job, workers: Sequence[int]) -> None:
        """Run a job. Its end concerns the coordinators that its workers have then."""
        try:
            run_workers(self._spark, plan, (self._tag, job.tag), job.crew, workers)
        except Exception as error:
            for coordinator in self._concerned(job):
                coordinator.wait(_ECHO_SECONDS)
            failure = job_failure(error, plan.workers)
            failure.__cause__ = error
            for coordinator in self._concerned(job):
                coordinator.fail(failure)
        else:
            # All tasks have ended. If a coordinator goes on waiting, they ended without a word.
            for coordinator in self._concerned(job):
                if not coordinator.wait(_END_SECONDS) and coordinator in self._concerned(job):
                    coordinator.fail(JobFailedError("the workers have ended before the query did"))

    def _concerned(self, job: Job) -> Sequence[Coordinator]:
        seats = job.seats
        return self._working(seats) if seats else ()


def _join(jobs: Sequence[Job], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for job in jobs:
        job.thread.join(max(0.0, deadline - time.monotonic()))
