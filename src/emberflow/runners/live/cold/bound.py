"""How much state a worker keeps in memory: ``.option("stateMemory", "4g")``.

What is guaranteed: **a worker whose state grows beyond the bound evicts cold keys, and only if that
does not help its fronts slow down.** They never stop altogether, and the driver's log says why.

The bound is one of memory, and what can be evicted is keys. The worker learns how many keys fit by what
its process has grown to: when it comes near the bound for the first time, the keys that are in memory
then are as many as it keeps. It keeps fewer when the process goes on growing all the same, since the
values grow. It begins earlier when the machine, the container or the process itself runs short of
memory (`worker.memory`). It keeps more when there is room again. Mostly there is not, because an
allocator keeps what is freed.

Between two rounds the worker looks at a limited number of buckets, so that nothing waits for it. If
many keys cannot be evicted, since they have changed after the last cut that was committed or since the
disk is full, there are too many in memory, and the fronts let in less until there are not. Those that
are ahead of others nearly stop. One that all others wait for does not: what it brings makes keys final,
and only final ones can go.
"""

from __future__ import annotations

import logging
import os
import tempfile
from functools import partial
from typing import Final, Protocol

from emberflow.engine.machines.cold import ColdStores
from emberflow.runners.interpreter import memory_used
from emberflow.runners.live.cold.runs import SortedRuns

log = logging.getLogger("emberflow.live")

#: The share of the bound at which the worker begins to evict.
_FULL: Final = 0.85
#: When the process has grown by this share of the bound beyond it, or memory is short: so many keys stay.
_GROWN: Final = 0.03
_GROWN_BYTES_MIN: Final = 32 << 20
_KEPT_THEN: Final = 0.9
#: When there is room again, so many times the keys stay.
_MORE_THEN: Final = 1.05
#: From this share of the memory of the machine, the container or the process on, memory is short.
_SHORT_FROM: Final = 0.8
_LOOK_SECONDS: Final = 0.25
#: Buckets to look at in a round. Half of them may go.
_LOOKS_MIN: Final = 2_048
_LOOKS_MAX: Final = 8_192
#: How long nothing is evicted when the disk is full, and how often the worker says so.
_PAUSE_SECONDS: Final = 1.0
_WARNS_SECONDS: Final = 30.0
#: With so many times the keys that fit, the fronts begin to slow down; and with so many, they nearly stop.
_SLOW_FROM: Final = 1.15
_STOP_AT: Final = 1.6
#: Of so few keys, what a process has grown to says nothing, and so many stay.
_KEYS_MIN: Final = 1_000


class Evicting(Protocol):
    """The engine worker, as far as this module knows it."""

    @property
    def keys_in_memory(self) -> int: ...

    @property
    def cold_keys(self) -> int: ...

    def keep_cold(self, stores: ColdStores) -> None: ...

    def evict(self, looks: int) -> int: ...

    def close_cold(self) -> None: ...


class StateBound:
    """Keeps the state of one worker within a bound."""

    def __init__(
        self, engine: Evicting, limit: int, folder: str | None, begun_with: int | None = None
    ) -> None:
        """``begun_with`` is what a process had resident before the state of its first life: what that life
        has freed is used again, and so does not tell what the next one takes."""
        self._engine = engine
        self._limit = limit
        self._folder = folder or default_folder()
        self._begun_with = resident() if begun_with is None else begun_with
        #: How many keys stay in memory; None as long as all fit.
        self.keys_max: int | None = None
        self._looked_at = self._paused_until = self._warns_again_at = 0.0
        #: What the process had grown to when `keys_max` was set last.
        self._grown_to = 0
        self.problem: OSError | None = None
        engine.keep_cold(partial(SortedRuns, self._folder))

    def inherit(self, other: StateBound) -> None:
        """Go on from the bound of the version before, in the same process."""
        self._begun_with, self._grown_to = other._begun_with, other._grown_to
        self.keys_max = other.keys_max

    def go_on(self, now: float, pressure: float = 0.0) -> None:
        """Evict some keys, if there are too many. ``pressure`` is the share of all memory that is in use."""
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._learn(resident() - self._begun_with, pressure)
        if self.keys_max is None or now < self._paused_until:
            return
        excess = self._engine.keys_in_memory - self.keys_max
        if excess <= 0:
            return
        try:
            self._engine.evict(min(max(_LOOKS_MIN, 2 * excess), _LOOKS_MAX))
            self.problem = None
        except OSError as error:
            self.problem, self._paused_until = error, now + _PAUSE_SECONDS
            if now >= self._warns_again_at:
                self._warns_again_at = now + _WARNS_SECONDS
                log.warning(
                    "cold keys stay in memory, since %s takes no files: %s. Make room there, or set "
                    ".option('stateFolder', ...) to another disk.",
                    self._folder,
                    error,
                )

    def _learn(self, grown: int, pressure: float) -> None:
        keys = self._engine.keys_in_memory
        if keys < _KEYS_MIN:
            return
        is_full = grown >= _FULL * self._limit
        # What others use does not count against a worker that uses little.
        is_short = pressure >= _SHORT_FROM and grown >= self._limit // 4
        if self.keys_max is None:
            if is_full or is_short:
                self.keys_max = max(_KEYS_MIN, round(keys * _KEPT_THEN))
                self._grown_to = max(grown, self._limit)
        elif grown >= self._grown_to + max(_GROWN * self._limit, _GROWN_BYTES_MIN):
            self.keys_max = max(_KEYS_MIN, round(self.keys_max * _KEPT_THEN))
            self._grown_to = grown
        elif not is_full and not is_short:
            self.keys_max = round(self.keys_max * _MORE_THEN)

    @property
    def cold_keys(self) -> int:
        return self._engine.cold_keys

    def close(self) -> None:
        self._engine.close_cold()

    @property
    def pressure(self) -> float:
        """How much the fronts should slow down, as if it were a share of all memory (`worker.memory`)."""
        if self.keys_max is None:
            return 0.0
        times = self._engine.keys_in_memory / self.keys_max
        if times < _SLOW_FROM:
            return 0.0
        return 0.85 + 0.1 * min(1.0, (times - _SLOW_FROM) / (_STOP_AT - _SLOW_FROM))


def resident() -> int:
    """The bytes that this process has in memory, without the pages of files."""
    used = memory_used()
    return used.resident - used.of_files


def default_limit(available: int, workers: int) -> int:
    """The bound of each worker where nobody has set one: half of the memory that there is is for state.

    >>> default_limit(16 << 30, workers=4) >> 30
    2
    """
    return available // 2 // workers


def default_folder() -> str:
    """Where Spark keeps its own temporary files on this machine, or the system does."""
    for variable in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        first = os.environ.get(variable, "").split(",")[0].strip()
        if first:
            return first
    return tempfile.gettempdir()
