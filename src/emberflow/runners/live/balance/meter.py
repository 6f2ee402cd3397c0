"""What a worker tells of its load, four times a second with its news.

What is guaranteed: it costs next to nothing. The loop looks at its thread's clock twice for each round that
takes in elements, and the engine for each batch that has a sample (`engine.worker.loads`).

The time that the loop's thread has worked is told in two parts. What it takes to read elements, to run them
as far as their first hop and to send them on, it spends for *fronts*: that stays where it is, whoever owns
the slices. All else it spends for *keys*: it takes in frames, runs what they bring, and releases output.
The slices of a worker share that, by their samples. Some of it belongs to no slice, such as the barrier of a
sink with one partition. So the load of a slice is rather overestimated: a plan then moves too little, and
the next one moves the rest.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from emberflow.engine.worker.loads import KeyLoad, SliceLoad
from emberflow.engine.worker.worker import Worker

#: What is as old as this counts about a third of what is new.
MEMORY_SECONDS = 8.0
#: Samples whose keys are looked at in a round of the loop.
_SETTLED_A_ROUND = 8


def fading(seconds: float) -> float:
    """How much less what is known counts after so many seconds."""
    return math.exp(-seconds / MEMORY_SECONDS)


class LoadReport(NamedTuple):
    """What a worker has done since its last report, in seconds."""

    #: How long that was.
    elapsed: float
    #: How long the loop's thread has worked; and of that, for fronts.
    busy: float
    fronts: float
    slices: dict[int, SliceLoad]
    #: The keys that took the most in the last seconds.
    hot_keys: tuple[KeyLoad, ...] = ()


class Meter:
    """Measures the load of one worker. All of it happens in the thread of its loop."""

    def __init__(self, engine: Worker) -> None:
        self._loads = engine.weigh(time.thread_time)
        self._at = time.monotonic()
        self._worked = time.thread_time()
        self._fronts = 0.0
        self._begun = (0.0, 0.0)

    def begin_fronts(self) -> None:
        """Elements may be taken in now."""
        self._begun = time.thread_time(), self._loads.seconds

    def end_fronts(self) -> None:
        """Elements were taken in, and what came of them was sent."""
        begun, sampled = self._begun
        # What was run at its own keys meanwhile is not spent for fronts.
        spent = time.thread_time() - begun - (self._loads.seconds - sampled)
        self._fronts += max(spent, 0.0)

    def settle(self) -> None:
        """Do a bit of what nobody waits for."""
        self._loads.settle(_SETTLED_A_ROUND)

    def report(self) -> LoadReport:
        now, worked = time.monotonic(), time.thread_time()
        busy, fronts = worked - self._worked, self._fronts
        elapsed = now - self._at
        slices, hot_keys = self._loads.report(), self._loads.hot_keys(fading(elapsed))
        report = LoadReport(elapsed, busy, min(fronts, busy), slices, hot_keys)
        self._at, self._worked, self._fronts = now, worked, 0.0
        return report
