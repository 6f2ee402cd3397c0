"""What a query does by itself about its load, if its options say so: a thread of the driver.

It looks once a second, and decides by pure functions of what it sees (`balance.pace`). What it does is what
`query.rebalance` does, so it changes nothing but who does the work. If that fails, the query goes on as it was,
its log says why, and the thread rests as if it had been done.
"""

from __future__ import annotations

import logging
import threading
import time

from emberflow.errors import EmberflowError
from emberflow.runners.live.balance import pace
from emberflow.runners.live.balance.pace import Elasticity, Steady, calls_for_rebalance
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.elastic.rebalance import plan_now
from emberflow.runners.live.supervisor import Supervision

_LOOK_SECONDS = 1.0
#: How long a change may take.
_CHANGE_SECONDS = 120.0


class Automatic:
    """Acts on the load of one query until that is over."""

    def __init__(self, lives: Supervision, elasticity: Elasticity, log: QueryLog) -> None:
        self._lives = lives
        self._elasticity = elasticity
        self._log = log
        self._rebalances = Steady(pace.REBALANCE_HOLDS_SECONDS, pace.RESTS_SECONDS)
        self._thread = threading.Thread(target=self._run, name="emberflow elastic", daemon=True)

    def start(self) -> None:
        if self._elasticity.is_on:
            self._thread.start()

    def _run(self) -> None:
        while not self._lives.wait(_LOOK_SECONDS):
            try:
                self._look()
            except EmberflowError as error:
                if not self._lives.wait(0):
                    self._log.event(logging.WARNING, "kept", 0, f"it goes on as it was: {error}")

    def _look(self) -> None:
        found = plan_now(self._lives)
        if found is None:
            return
        owners, plan = found
        wanted = "rebalance" if calls_for_rebalance(plan) else None
        if self._elasticity.rebalances and self._rebalances.look(time.monotonic(), wanted):
            try:
                self._lives.rebalance(owners, plan.applied(owners.of_slice), _CHANGE_SECONDS)
            finally:
                self._rebalances.rest(time.monotonic())
