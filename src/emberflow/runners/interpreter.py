"""The interpreter of a worker process: tuned while we run in it, then as it was.

Spark's Python processes may serve other tasks after ours.

**Garbage.** What the engine makes has no cycles: reference counts see to it. Python's collector looks
only for cycles, at a cost of about a microsecond an object that lives, and everything waits for it
meanwhile. What users make may have cycles, so it cannot be done without. A `Collector` therefore
looks as often as it finds something: the longer nothing was found, the more of what is new is taken
for granted, and only now and then a part of it is looked at. If cycles do come up, all that was taken
for granted is given back to Python's own collector, which goes on as ever.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Of each generation so many collections until the next older one is looked at, too.
_OLDER = (20, 100)
#: New objects that are looked at, or taken for granted, at once: tens of milliseconds.
_OBJECTS = 100_000
#: What is found of those has to be more than this: a few cycles are everywhere.
_FOUND_MIN = _OBJECTS // 100
_GRANTED_MAX = 32


class Collector:
    """Looks for cycles, seldom where there are none. Call `look` again and again."""

    def __init__(self) -> None:
        self._granted = 0
        self._granted_next = 1
        gc.collect(0)
        gc.freeze()  # code, graph and plan: they stay
        gc.disable()

    def look(self) -> None:
        if gc.get_count()[0] < _OBJECTS or gc.isenabled():
            return
        if self._granted:
            self._granted -= 1
            gc.freeze()
        elif gc.collect(0) <= _FOUND_MIN:
            gc.freeze()
            self._granted = self._granted_next
            self._granted_next = min(2 * self._granted_next, _GRANTED_MAX)
        else:
            gc.unfreeze()
            gc.enable()


@contextmanager
def seldom_collecting(objects: int) -> Iterator[None]:
    """Let Python's own collector look only when there are so many new objects."""
    before = gc.get_threshold()
    gc.set_threshold(objects, *_OLDER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def serving(switch_seconds: float) -> Iterator[Collector]:
    """Tune for a loop that serves sockets beside other threads.

    It lets go of the interpreter at every call to a socket, and waits for as long as threads may keep
    it before it has it back: Python's five milliseconds, again and again, would be most of its
    latency while a cut is encoded beside it.
    """
    switching = sys.getswitchinterval()
    sys.setswitchinterval(switch_seconds)
    with seldom_collecting(4 * _OBJECTS):
        try:
            yield Collector()
        finally:
            gc.enable()
            sys.setswitchinterval(switching)
