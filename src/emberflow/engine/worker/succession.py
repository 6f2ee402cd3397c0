"""Succession in memory: the worker of a new version takes the state of the old one, in one process.

What is guaranteed: **the new worker is as if it had restored the old worker's cut at T, translated**
(`cuts.translation`). T is the minimal time of all that the old worker has heard last, as for a cut. What
the old worker holds at or above T is left behind: items that were scheduled from below T begin anew, and
elements enter again.

Where the new version keeps the same of a step, and the user migrates nothing, its machine takes the
buckets of the old one as they are, but for what is not below T (`Trimmed.inherit`). The last cut has noted
which buckets that may be, so keys that have not changed for long cost nothing, and nothing of the old one is
left to be freed. All other state goes by way of rows, as do keys that expire in a grouping.

The new machines need not note what changes until the next cut: the first cut of a version holds
everything (`cuts.changes`). The old worker must not be used any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.layout import Stateful
from emberflow.engine.messages import BEFORE_ALL, Effects, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.graph.versions import CarryPlan


def succeed(
    old: Worker,
    new: Worker,
    moment: Moment,
    plan: CarryPlan,
    begun: Iterable[Row] = (),
    due: Iterable[Scheduled] = (),
) -> Effects:
    """Let a new worker, to which nothing has happened yet, go on from an old one at a moment.

    ``begun`` and ``due`` are what its steps begin with from backfills, of the keys that it owns.
    """
    heirs = {machine.operation: machine for machine in new.machines.stateful.values()}
    others: list[Stateful] = []
    for machine in old.machines.stateful.values():
        if not machine.kept or machine.operation in plan.dropped:
            continue
        carried = plan.carried[machine.operation]
        is_migrated = carried.migrate is not None
        if is_migrated or not heirs[carried.new].inherit(machine, moment):
            others.append(machine)
    rows = translated_rows(_rows(others, moment), plan, moment)
    timers = translated_timers(_scheduled(old, moment), plan)
    return new.restore(moment, chain(rows, begun), chain(timers, due))


def copied_rows(worker: Worker, moment: Moment, plan: CarryPlan) -> Iterator[Row]:
    """The rows of a cut at this moment, for another version. The worker goes on, and its cuts too."""
    machines = worker.machines.stateful.values()
    rows = (row for one in machines for row in one.rows_at(moment))
    return translated_rows(rows, plan, moment)


def copied_timers(worker: Worker, moment: Moment, plan: CarryPlan) -> Iterator[Scheduled]:
    """The scheduled items of such a cut."""
    pending = worker.machines.pending.values()
    return translated_timers((item for one in pending for item in one.waiting_at(moment)), plan)


def _rows(machines: Iterable[Stateful], moment: Moment) -> Iterator[Row]:
    for machine in machines:
        for row in machine.capture(moment, BEFORE_ALL):
            if row is not None:
                yield row


def _scheduled(worker: Worker, moment: Moment) -> Iterator[Scheduled]:
    for pending in worker.machines.pending.values():
        for item in pending.capture(moment, BEFORE_ALL):
            if item is not None:
                yield item
