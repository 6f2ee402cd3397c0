"""Workers that keep one key in memory, and all others on disk as soon as they can go.

A test that is over in a second has too few keys for a bound. So a worker of the daemon that tests share
(`worker_daemon`) evicts all that it may if its `stateMemory` is `ALL_COLD`, and lets its fronts run at full speed.
"""

from __future__ import annotations

from emberflow.runners.live.cold.bound import StateBound

#: Bytes: the least that the option takes, and one.
ALL_COLD = (1 << 20) + 1


def evict_all() -> None:
    """In a process that has not begun a worker yet."""
    bounded, of_bound = StateBound.go_on, StateBound.pressure.fget
    assert of_bound is not None

    def go_on(self: StateBound, now: float, pressure: float = 0.0) -> None:
        if self._limit == ALL_COLD:
            self._looked_at, self.keys_max = now, 1
        bounded(self, now, pressure)

    def pressure(self: StateBound) -> float:
        return 0.0 if self._limit == ALL_COLD else of_bound(self)

    StateBound.go_on = go_on  # type: ignore[method-assign]
    StateBound.pressure = property(pressure)  # type: ignore[method-assign, assignment]
