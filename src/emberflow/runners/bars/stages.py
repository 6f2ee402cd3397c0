"""Tell a watcher (`emberflow.work`) how far the stages of Spark's jobs are.

A batch is lazy: its work is done by a job that the user starts, of any number of stages. So nothing in
the plan can tell how far it is, but Spark can. A thread asks it a few times a second while the block runs,
and ends with the block. It changes nothing, and whatever goes wrong there harms no job.

A stage is told of once the first of its tasks is done. So the job of a live query, whose tasks run as long
as the query does, is not told of at all. Spark Connect has nobody to ask: there is nothing told then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from emberflow.work import Watcher

#: Between two questions to Spark.
_SECONDS = 0.25
#: Stages of fewer tasks are over before anybody has read about them.
_TASKS_MIN = 2


class StageWatch:
    """What has been told of each stage."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        #: By stage: how to tell of one more task, how many tasks there are, and of how many it was told.
        self._told: dict[int, tuple[Callable[[], None], int, int]] = {}

    def look(self, tracker: Any) -> None:
        """Ask Spark once. Stages that are no longer active have completed, or nobody needs them."""
        active = set(tracker.getActiveStageIds())
        for stage in [stage for stage in self._told if stage not in active]:
            one_more, tasks, told = self._told.pop(stage)
            for _ in range(told, tasks):
                one_more()
        for stage in sorted(active):
            found = tracker.getStageInfo(stage)
            if found is not None and found.numTasks >= _TASKS_MIN and found.numCompletedTasks:
                self._tell(stage, found.numTasks, found.numCompletedTasks)

    def _tell(self, stage: int, tasks: int, completed: int) -> None:
        if stage not in self._told:
            self._told[stage] = self._watcher.begin(f"stage {stage} of Spark", tasks), tasks, 0
        one_more, tasks, told = self._told[stage]
        for _ in range(told, completed):
            one_more()
        self._told[stage] = one_more, tasks, max(told, completed)


@contextmanager
def stages_told(watcher: Watcher) -> Iterator[None]:
    """Tell the watcher of all stages that run during a block."""
    over = threading.Event()
    watch = StageWatch(watcher)

    def ask() -> None:
        while not over.wait(_SECONDS):
            tracker = _tracker()
            if tracker is not None:
                try:
                    watch.look(tracker)
                except Exception:
                    return  # Spark has ended: so have its stages

    thread = threading.Thread(target=ask, name="stage watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5.0)


def _tracker() -> Any:
    """Spark's own account of its jobs; None without a session of classic Spark in this process."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return None
    context = SparkContext._active_spark_context
    return None if context is None else context.statusTracker()
