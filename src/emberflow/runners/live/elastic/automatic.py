"""What a query does by itself about its load, if its options say so: a thread of the driver.

It looks once a second, and decides by pure functions of what it sees (`balance.pace`). What it does is what
`query.rescale` and `query.rebalance` do, so it changes nothing but who does the work. If that fails, the query
goes on as it was, its log says why, and the thread waits longer and longer before it tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from emberflow.errors import EmberflowError
from emberflow.runners.live.balance import pace
from emberflow.runners.live.balance.pace import (
    Elasticity,
    Steady,
    calls_for_rebalance,
    wanted_workers,
)
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.elastic.rebalance import known_now, plan_of
from emberflow.runners.live.supervisor import Supervision

_LOOK_SECONDS = 1.0
#: How long a change may take.
_CHANGE_SECONDS = 120.0


class Automatic:
    """Acts on the load of one query until that is over."""

    def __init__(
        self,
        lives: Supervision,
        elasticity: Elasticity,
        rescale: Callable[[int, float], None],
        log: QueryLog,
    ) -> None:
        """``rescale`` takes a number of workers and seconds."""
        self._lives = lives
        self._elasticity = elasticity
        self._rescale = rescale
        self._log = log
        self._failures = 0
        rests = pace.RESTS_SECONDS
        self._grows = Steady(pace.GROWTH_HOLDS_SECONDS, rests)
        self._shrinks = Steady(pace.SHRINKING_HOLDS_SECONDS, rests)
        self._rebalances = Steady(pace.REBALANCE_HOLDS_SECONDS, rests)
        self._thread = threading.Thread(target=self._run, name="emberflow elastic", daemon=True)

    def start(self) -> None:
        if self._elasticity.is_on:
            self._thread.start()

    def _run(self) -> None:
        while not self._lives.wait(_LOOK_SECONDS):
            change = self._called_for()
            if change is None:
                continue
            try:
                change()
                self._failures = 0
            except Exception as error:
                if self._lives.wait(0):
                    return
                self._failures += 1
                told = f"it could not follow its load, and goes on as it was: {error}"
                self._log.event(logging.WARNING, "kept", 0, told)
                if not isinstance(error, EmberflowError):
                    raise
            for each in (self._grows, self._shrinks, self._rebalances):
                each.rest(time.monotonic(), failures=self._failures)

    def _called_for(self) -> Callable[[], None] | None:
        """What is to be done now."""
        found = known_now(self._lives)
        if found is None:
            return None
        now, lives, elasticity = time.monotonic(), self._lives, self._elasticity
        owners, load = found
        if elasticity.workers is not None:
            wanted = wanted_workers(load.workers, *elasticity.workers)
            number = len(load.workers)
            grows = self._grows.look(now, "more" if wanted > number else None)
            shrinks = self._shrinks.look(now, "fewer" if wanted < number else None)
            if grows or shrinks:
                return lambda: self._rescale(wanted, _CHANGE_SECONDS)
        if elasticity.rebalances:
            plan = plan_of(owners, load)
            wants = "rebalance" if calls_for_rebalance(plan) else None
            if self._rebalances.look(now, wants):
                of_slice = plan.applied(owners.of_slice)
                return lambda: lives.rebalance(owners, of_slice, _CHANGE_SECONDS)
        return None
