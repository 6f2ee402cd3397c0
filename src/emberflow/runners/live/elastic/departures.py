"""Departures: executors that Spark decommissions are left in time, by a thread of the driver.

What is guaranteed: **a worker leaves an executor as workers leave in a rescale**, at a moment just ahead, with all
its slices handed over, and with nothing lost or doubled. If that comes too late, or cannot be, the executor's
end is a loss like any other, and the next life begins from the last cut.

- If slots are free elsewhere, others take the places of those who leave: there are as many workers as before.
- Otherwise there are fewer, and they have all slices. When there are slots again, the query goes back to its
  number by itself, unless that follows the load (`elastic.automatic`): then load decides.
- If no worker can go elsewhere, the log says so, and so does ``lastProgress["leaving"]``. It is tried again for as
  long as the executor is there, because a new one may come.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.balance import pace
from emberflow.runners.live.balance.pace import Steady
from emberflow.runners.live.driver.cluster import ClusterError, is_in_one_process, slots_of
from emberflow.runners.live.driver.coordinator import WorkersMissingError
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.processes.executors import Executors
from emberflow.runners.live.processes.member import Seat
from emberflow.runners.live.supervisor import Supervision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5
#: How long those who are to take the places may take to come, if the others could do without them: other jobs may
#: hold their slots, and the executor does not wait for long. And how long any other change may take.
_COMING_SECONDS = 15.0
_CHANGE_SECONDS = 120.0
#: The query goes back to its number when there have been slots for so long.
_RETURN_HOLDS_SECONDS = 3.0
_RETURN_RESTS_SECONDS = 10.0


class Departures:
    """Leaves the executors of one query that are decommissioned, until the query is over."""

    def __init__(self, spark: SparkSession, lives: Supervision, log: QueryLog) -> None:
        self._spark = spark
        self._lives = lives
        self._log = log
        self._executors = Executors(spark)
        #: What was told, and of whom, since one had to leave.
        self._told: set[tuple[tuple[int, ...], str]] = set()
        #: How many workers there are to be again, and how many there are since some have left.
        self._back_to: tuple[int, int] | None = None
        self._returns = Steady(_RETURN_HOLDS_SECONDS, _RETURN_RESTS_SECONDS)
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="emberflow departures", daemon=True)

    def start(self) -> None:
        if not is_in_one_process(self._spark):
            self._thread.start()

    def _run(self) -> None:
        lives = self._lives
        while not lives.wait(_LOOK_SECONDS):
            leaving = self._executors.leaving(lives.processes)
            seats = lives.current.seats
            numbers = tuple(number for number, seat in enumerate(seats) if seat in leaving)
            lives.current.leaving = numbers
            if numbers and lives.coordinator.phase == "running":
                self._leave(leaving, numbers)
            elif not numbers:
                self._told.clear()
                self._return()

    def _leave(self, leaving: set[Seat], numbers: tuple[int, ...]) -> None:
        now = self._lives.settings.workers
        staying = now - len(numbers)
        wanted = now
        if self._back_to is not None and self._back_to[1] == now:
            wanted = self._back_to[0]
        slots = slots_of(self._spark)
        workers = wanted if slots is None else min(wanted, max(slots, staying))
        if workers == 0:
            self._tell(numbers, "and no other executor has a slot. What ends with it is recovered")
            return
        self._tell(numbers, f"the query goes on with {workers} workers on others")
        try:
            try:
                seconds = _COMING_SECONDS if staying else _CHANGE_SECONDS
                self._lives.rescale(workers, seconds, leaving)
            except (WorkersMissingError, ClusterError):
                if not staying:
                    raise
                workers = staying  # the slots are taken, or were those of another one that ends
                self._lives.rescale(workers, _CHANGE_SECONDS, leaving)
        except InputError as error:
            self._tell(numbers, f"and they cannot leave it: {error}")
            return
        except EmberflowError as error:
            self._tell(numbers, f"and they have not left it yet: {error}")
            return
        self._back_to = (wanted, workers) if workers < wanted else None
        self._returns.rest(time.monotonic())
        gone = ", ".join(map(str, numbers))
        self._log.event(
            logging.WARNING, "left", 0, f"workers {gone} have left; {workers} workers go on"
        )

    def _tell(self, numbers: tuple[int, ...], what: str) -> None:
        """Tell it once."""
        if (numbers, what) not in self._told:
            self._told.add((numbers, what))
            who = ", ".join(map(str, numbers))
            told = f"Spark decommissions the executor of workers {who}: {what}"
            self._log.event(logging.WARNING, "leaving", 0, told)

    def _return(self) -> None:
        """Go back to the number of workers that there were, when there are slots."""
        if self._back_to is None:
            return
        wanted, now = self._back_to
        lives = self._lives
        if lives.settings.workers != now or lives.settings.elasticity.workers is not None:
            self._back_to = None  # somebody else has decided since, or load does
            return
        slots = slots_of(self._spark)
        has_slots = slots is not None and slots >= wanted
        if not self._returns.look(time.monotonic(), "back" if has_slots else None):
            return
        try:
            lives.rescale(wanted, pace.RESTS_SECONDS)
        except EmberflowError as error:
            self._failures += 1
            told = f"it cannot go back to {wanted} workers yet: {error}"
            self._log.event(logging.WARNING, "kept", 0, told)
        else:
            self._failures, self._back_to = 0, None
        self._returns.rest(time.monotonic(), failures=self._failures)
