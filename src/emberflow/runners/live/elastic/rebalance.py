"""Rebalances: slices move from the busiest workers to the idlest, while the query runs.

A plan is made of the load of the last seconds (`balance.plan`). It takes over as another number of workers
does (`live.rescale`): the same machinery, with as many workers and another owner table.
"""

from __future__ import annotations

import time

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.balance.ledger import Load
from emberflow.runners.live.balance.plan import Plan, planned
from emberflow.runners.live.supervisor import Supervision
from emberflow.values.owners import Owners

#: A plan that takes less than this from the busiest worker does not pay: it is within what loads vary by.
RELIEF_MIN = 0.05
_SECONDS_MIN = 0.02
_LOOK_SECONDS = 0.1


def rebalance(lives: Supervision, seconds: float) -> int:
    """Move slices, if it pays. Returns how many have moved when they have."""
    deadline = time.monotonic() + seconds
    owners, plan = _planned_when_known(lives, deadline)
    if not pays(plan):
        return 0
    lives.rebalance(owners, plan.applied(owners.of_slice), max(deadline - time.monotonic(), 1.0))
    return len(plan.moves)


def pays(plan: Plan) -> bool:
    """Whether a plan is worth the moment that it takes, if somebody asks for it."""
    return plan.relief >= RELIEF_MIN and plan.before - plan.after >= _SECONDS_MIN


def known_now(lives: Supervision) -> tuple[Owners, Load] | None:
    """The owners and the load of the last seconds; None if too little is known of it."""
    coordinator = lives.coordinator
    owners, load = coordinator.owners, coordinator.ledger.look()
    if owners is None or coordinator.phase != "running" or not load.is_ripe:
        return None
    return owners, load


def plan_of(owners: Owners, load: Load) -> Plan:
    """What would move by this load."""
    return planned(owners.of_slice, load.workers, load.slices)


def _planned_when_known(lives: Supervision, deadline: float) -> tuple[Owners, Plan]:
    if lives.settings.ordering != "time":
        raise InputError("slices of keys move between workers by time: leave ordering at 'time'.")
    while (found := known_now(lives)) is None:
        if lives.wait(_LOOK_SECONDS):
            raise EmberflowError("the query is over: nothing moves.")
        if time.monotonic() > deadline:
            raise EmberflowError("the workers have not told enough of their load yet: ask again.")
    owners, load = found
    return owners, plan_of(owners, load)
