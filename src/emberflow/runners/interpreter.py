"""The interpreter of a worker process, and of the driver: tuned while a query runs, and restored afterwards.

Spark's Python processes may serve other tasks later, and the driver is a program of the user's. So the settings
are put back.

**Garbage.** The engine's objects have no cycles, and reference counts free them. Python's collector looks
for cycles only. It takes about a microsecond for each object that lives, and everything waits for it
meanwhile. Users' objects may have cycles, so a worker cannot do without it. A `Collector` therefore calls
`gc.freeze()` on new objects, some twenty times a second, so that Python's collector skips them; that costs
nothing. Now and then it collects the objects that came since the last freeze, which are never many. When
there are very many more objects than there were, it collects all of them. If either finds cycles, the
`Collector` unfreezes all objects and leaves the work to Python's own collector.

**In the driver** the coordinator and the sinks that live there have threads beside the user's program. Elements
that pass by are many objects for a moment. Python's collector counts them as new ones that stay, and looks at all
objects of the program every few seconds: 50 ms or more, in which no output leaves. So while a live query runs, it
begins later. It still finds all cycles, and what garbage may wait for it has a bound.

**Memory** is taken in huge pages, where the system gives them and `_arenas` is compiled: a state touches
its objects in random order, and the processor finds them faster. This stays when the worker leaves: who
frees an object later must know where it came from.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from emberflow import native

#: For each generation, the number of its collections until the next older one is collected too.
_OLDER = (20, 100)
#: The time between two freezes, and the greatest number of freezes between two collections.
_WINDOW_SECONDS = 0.05
_WINDOWS_MAX = 64
#: A few cycles are always there. More than this, and than a twentieth of the new objects, are the user's.
_FOUND_MIN = 100
#: After so many new objects, all objects are collected; after twice as many the next time.
_MORE_OBJECTS = 4_000_000
#: The number of new objects that Python's own collector waits for, if it has to do the work.
_OBJECTS = 400_000
#: In the driver: more than pass by at a time, and a few milliseconds to look at. All objects are collected after
#: 25 times as many, some hundreds of megabytes at the most.
_DRIVER_THRESHOLDS = (100_000, 5, 5)
_PAGE: Final = resource.getpagesize()


class MemoryUsed(NamedTuple):
    """Bytes of this process: of its address space, in memory, and of these the pages of files."""

    virtual: int
    resident: int
    of_files: int


def memory_used() -> MemoryUsed:
    """What this process uses; zeros where the system does not tell.

    >>> used = memory_used()
    >>> used.virtual >= used.resident >= used.of_files >= 0
    True
    """
    try:
        pages = Path("/proc/self/statm").read_text().split()[:3]
        return MemoryUsed(*(int(count) * _PAGE for count in pages))
    except (OSError, ValueError, TypeError):
        return MemoryUsed(0, 0, 0)


def use_huge_pages() -> bool:
    """Have Python take memory in huge pages from now on; whether it does."""
    return native.arenas is not None and bool(native.arenas.use_huge_pages())


class Collector:
    """Looks for cycles, and seldom where there are none. Call `look` again and again."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _WINDOW_SECONDS
        self._windows = 0
        self._look_next = 1
        self._more = 0
        self._more_max = _MORE_OBJECTS
        gc.collect(0)
        gc.freeze()  # code, graph and plan stay
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
    """Let Python's own collector begin only when there are so many new objects."""
    before = gc.get_threshold()
    gc.set_threshold(objects, *_OLDER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Driving:
    """Counts the live queries of this process: settings of the interpreter are for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: tuple[int, int, int] | None = None

    def begin(self) -> None:
        with self._lock:
            self._count += 1
            before = gc.get_threshold()
            # A program that collects still later, or not at all (0), has its reasons.
            if self._count == 1 and 0 < before[0] < _DRIVER_THRESHOLDS[0]:
                self._before = before
                gc.set_threshold(*_DRIVER_THRESHOLDS)

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._before is not None:
                if gc.get_threshold() == _DRIVER_THRESHOLDS:  # nobody else has changed it
                    gc.set_threshold(*self._before)
                self._before = None


_driving = _Driving()


@contextmanager
def driving() -> Iterator[None]:
    """Let Python's collector begin later, as long as any live query runs in this process."""
    _driving.begin()
    try:
        yield
    finally:
        _driving.end()


@contextmanager
def serving(switch_seconds: float) -> Iterator[Collector]:
    """Tune for a loop that serves sockets beside other threads.

    The loop releases the interpreter's lock at every call to a socket, and waits to get it back for as
    long as a thread may keep it. With Python's five milliseconds, again and again, this would be most of
    its latency while another thread encodes a cut.
    """
    use_huge_pages()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(switch_seconds)
    with seldom_collecting(_OBJECTS):
        try:
            yield Collector()
        finally:
            # Spark collects between two tasks: that frees what the worker left, the whole state.
            gc.unfreeze()
            gc.enable()
            sys.setswitchinterval(switching)
