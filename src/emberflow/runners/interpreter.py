"""The interpreter of a worker process: tuned while we run in it, then as it was.

Spark's Python processes may serve other tasks after ours.

**Garbage.** What the engine makes has no cycles: reference counts see to it. Python's collector looks
only for cycles, at a cost of about a microsecond an object that lives, and everything waits for it
meanwhile. What users make may have cycles, so it cannot be done without. A `Collector` therefore
takes what is new for granted, some twenty times a second, which costs nothing, and only now and then
looks at what has come since: there is never much of it. If that shows cycles, or if a look at
everything does, which is due when there are very many more objects than there were, then all that
was taken for granted is given back to Python's own collector, which goes on as ever.

**Memory** is asked for in huge pages, where the system gives them and `_arenas` could be built: what a
state touches in random order is found faster. This stays when we leave: who frees an object
later must know where it came from.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from emberflow import native

#: Of each generation so many collections until the next older one is looked at, too.
_OLDER = (20, 100)
#: How often what is new is taken for granted, and at most every how many times it is looked at.
_WINDOW_SECONDS = 0.05
_WINDOWS_MAX = 64
#: A few cycles are everywhere: more than this, and than a twentieth of what is new, are the user's.
_FOUND_MIN = 100
#: So many more objects, and all are looked at; twice as many the next time.
_MORE_OBJECTS = 4_000_000
#: What Python's own collector waits for, if it has to be.
_OBJECTS = 400_000


def use_huge_pages() -> bool:
    """Have Python take memory in huge pages from now on; whether it does."""
    return native.arenas is not None and bool(native.arenas.use_huge_pages())


class Collector:
    """Looks for cycles, seldom where there are none. Call `look` again and again."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _WINDOW_SECONDS
        self._windows = 0
        self._look_next = 1
        self._more = 0
        self._more_max = _MORE_OBJECTS
        gc.collect(0)
        gc.freeze()  # code, graph and plan: they stay
        gc.disable()

    def look(self) -> None:
        if time.monotonic() < self._due or gc.isenabled():
            return
        self._windows += 1
        new, found = gc.get_count()[0], 0
        self._more += new
        if self._more > self._more_max:
            gc.unfreeze()
            new, found = self._more, gc.collect()
            self._more, self._more_max = 0, 2 * self._more_max
        elif self._windows >= self._look_next:
            found = gc.collect(0)
            self._look_next = self._windows + min(self._windows, _WINDOWS_MAX)
        if found > max(_FOUND_MIN, new // 20):
            gc.unfreeze()
            gc.enable()
        else:
            gc.freeze()
        self._due = time.monotonic() + _WINDOW_SECONDS


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
    use_huge_pages()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(switch_seconds)
    with seldom_collecting(_OBJECTS):
        try:
            yield Collector()
        finally:
            # Spark collects between two tasks: then what we leave behind goes, the whole state.
            gc.unfreeze()
            gc.enable()
            sys.setswitchinterval(switching)
