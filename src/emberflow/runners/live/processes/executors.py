"""Executors that Spark decommissions: which workers are on one of them.

Spark decommissions an executor when it knows that the executor will end: its node drains, its spot instance is
taken away, an operator scales in. Spark starts no task there any more, lets those run that do, and the executor
ends when they have. It has so long as whoever takes the machine away leaves it.

In classic Spark the driver asks Spark's scheduler, for the executor of each worker's task. On Spark Connect the
scheduler is out of reach. There the keeper of each worker looks at the executor that it belongs to, on Linux:
an executor that is decommissioned has a thread which waits until it may end (`is_leaving`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberflow.runners.live.driver.cluster import context_of
from emberflow.runners.live.processes.member import Here, Seat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The thread of a decommissioned executor is called 'wait-for-blocks-to-migrate', and Linux keeps 15 characters.
_LEAVING_THREAD = "wait-for-blocks"
_ANCESTORS_MAX = 8

_log = logging.getLogger("emberflow")


class Executors:
    """Spark's scheduler, as far as it is within reach."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = context_of(spark)
        #: By seat: the task that was asked for, and its executor.
        self._known: dict[Seat, tuple[int, str]] = {}
        self._has_failed = False

    def leaving(self, processes: Mapping[Seat, Here]) -> set[Seat]:
        """The seats on executors that are decommissioned."""
        found = {seat for seat, here in processes.items() if here.is_leaving}
        if self._context is None or self._has_failed or not processes:
            return found
        try:
            found |= self._asked(processes)
        except Exception as error:  # these are not public methods, and may change
            self._has_failed = True
            _log.warning("Spark does not tell which executors it decommissions: %s", error)
        return found

    def _asked(self, processes: Mapping[Seat, Here]) -> set[Seat]:
        scheduler: Any = self._context._jsc.sc().taskScheduler()
        executors: dict[Seat, str] = {}
        for seat, here in processes.items():
            task, executor = self._known.get(seat, (None, ""))
            if task != here.task:
                entry = scheduler.taskIdToExecutorId().get(here.task)
                if not entry.isDefined():
                    continue  # it has ended
                executor = str(entry.get())
                self._known[seat] = (here.task, executor)
            executors[seat] = executor
        gone = {
            executor
            for executor in set(executors.values())
            if scheduler.getExecutorDecommissionState(executor).isDefined()
        }
        self._known = {seat: known for seat, known in self._known.items() if seat in processes}
        return {seat for seat, executor in executors.items() if executor in gone}


def executor_of(process: int) -> int | None:
    """The JVM that a Python process works for: one of its ancestors. None if that cannot be told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for _ in range(_ANCESTORS_MAX):
            name, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(") ")
            if name.endswith("(java"):
                return process
            process = int(rest.split()[1])
    return None


def is_leaving(executor: int) -> bool:
    """Whether an executor, on this machine, is decommissioned."""
    with contextlib.suppress(OSError):
        return any(
            name.read_text().startswith(_LEAVING_THREAD)
            for name in Path(f"/proc/{executor}/task").glob("*/comm")
        )
    return False
