"""Succession in memory: the worker of a new version, or of another owner table, takes the state of the
old one, in one process.

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

**A move of slices** is a succession too: of the same flow, by workers with another owner table
(`values.owners`). What is guaranteed: **after it, each worker has the buckets of its slices and no others,
as the cut at T has them.** A worker that goes on keeps its machines, but for the keys of slices that leave
it, which are dropped a bit later (`Trimmed.give_away`). They note from now on what changes, because the next cut adds to that one. The
rows of slices that come to it are those of the cut, and so are all rows of a worker that is added. So
nothing of a moved slice is anywhere but in the cut for a moment, and a key is never at two workers.
Ticks go with their keys (`machines.ticking`). Other scheduled items do not depend on slices: they are sent to
their readers anew. They stay with the worker that scheduled them, or, if a worker leaves, go to whom the hash
of their place gives them.

**State of slices that come can be made ahead of T** (`StateAhead`). What is guaranteed: what is made of an earlier
cut, and corrected with what each later one adds, is what is made of the cut at T. A cut that adds to another
one has all rows of every bucket that has changed since, and these replace those of the earlier one; a bucket
that is no more has a row that says so. What is scheduled stays what it is: a later cut only has more of it, and
what is below T is over. So machines restore rows long before anybody needs them, and at T the worker takes
their buckets as they are (`Trimmed.take_in`), and the ticks that wait. Nothing is processed in them, nothing is
captured, and nothing expires: what has expired by T is forgotten like any bucket that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from emberflow.engine.cuts.cut import KeptTicks, Row, Scheduled, rows_in
from emberflow.engine.cuts.pending import is_with_its_key
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.layout import Layout, Machines, Stateful
from emberflow.engine.messages import BEFORE_ALL, Effects, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.graph.versions import CarryPlan
from emberflow.values.item import Place
from emberflow.values.owners import Owners


class StateAhead:
    """The buckets and ticks of some keys, as of the last cut that was given."""

    def __init__(
        self, layout: Layout, arrives: Callable[[int], bool], left_out: Collection[str] = ()
    ) -> None:
        """``arrives`` tells of a hash whether its keys will come. Of steps that are ``left_out`` there are only
        ticks here."""
        machines = Machines(layout)
        self._machines = {
            machine.operation: machine for machine in machines.stateful.values() if machine.kept
        }
        #: The steps whose rows are here.
        self.steps: Collection[str] = self._machines.keys() - set(left_out)
        self._ticking = {
            machine.pending.operation: machine for machine in machines.ticking.values()
        }
        self._arrives = arrives
        self._seen: set[tuple[str, Place]] = set()
        #: What is scheduled and waits at no worker of a key: for those who have to send it.
        self._others: list[Scheduled] = []

    def replace(self, moment: Moment, step: str, keys: Iterable[Any], rows: list[Row]) -> None:
        """The buckets of these keys have these rows in a cut at a moment, those of each one behind the other; a
        bucket without rows is no more."""
        machine = self._machines[step]
        pop = machine.buckets.pop
        for key in keys:
            pop(key, None)
        if rows:
            machine.restore(moment, rows)

    def schedule(self, moment: Moment, scheduled: Iterable[Scheduled]) -> None:
        """A cut has these, perhaps some that one before it has."""
        seen = self._seen
        ticks: dict[str, list[Scheduled]] = {}
        for item in scheduled:
            identity = item.operation, item.place
            if identity in seen:
                continue
            seen.add(identity)
            if item.operation not in self._ticking or not is_with_its_key(item):
                self._others.append(item)
            elif self._arrives(item.key_hash):
                ticks.setdefault(item.operation, []).append(item)
        for operation, own in ticks.items():
            self._ticking[operation].put_back(moment, own)

    def others(self, moment: Moment) -> Iterator[Scheduled]:
        """What is scheduled for a moment or later, but for ticks that go with their keys."""
        return (item for item in self._others if item.place >= moment)

    def hand_over(self, worker: Worker, moment: Moment) -> None:
        """Let a worker have all of it, as of the cut at a moment. This object must not be used any more,
        but for what is scheduled."""
        for machine in worker.machines.stateful.values():
            ahead = self._machines.get(machine.operation)
            if ahead is not None:
                machine.take_in(ahead, moment)  # type: ignore[arg-type]


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
        machine.drop_left()
        carried = plan.carried[machine.operation]
        is_migrated = carried.migrate is not None
        if is_migrated or not heirs[carried.new].inherit(machine, moment):
            others.append(machine)
    rows = translated_rows(_rows(others, moment), plan, moment)
    timers = translated_timers(kept_timers(old, moment, ticks_too=True), plan)
    return new.restore(moment, chain(rows, begun), chain(timers, due))


def move(
    old: Worker | None,
    new: Worker,
    moment: Moment,
    owners: Owners,
    rows: Iterable[Row],
    scheduled: Iterable[Scheduled],
    *,
    keeps_scheduled: bool,
    leave_cold: Callable[[Worker], None] = lambda worker: None,
    ahead: StateAhead | None = None,
) -> Effects:
    """Let a new worker, to which nothing has happened yet, have its slices by another table at a moment.

    ``old`` is the worker that goes on in it; None if it is added. ``rows`` are those of the slices that
    come to it, and ``scheduled`` are the items that it is to send (`moving`); with ``keeps_scheduled``, those
    of the old one are sent as well. ``leave_cold`` may put other rows of these slices into its stores of cold
    keys, and ``ahead`` may have others.
    """
    kept = iter(()) if old is None else kept_rows(old, new, moment, owners)
    leave_cold(new)
    if ahead is not None:
        ahead.hand_over(new, moment)
    timers = kept_timers(old, moment) if old is not None and keeps_scheduled else iter(())
    return new.restore(moment, chain(kept, rows), chain(timers, scheduled))


def kept_rows(old: Worker, new: Worker, moment: Moment, owners: Owners) -> Iterator[Row]:
    """Let the machines of a new worker keep in memory what stays its own, and return the rows of the rest.

    The new worker has to restore afterwards, even if there are no rows: by that it knows the cut that its next
    one adds to.
    """
    heirs = {machine.operation: machine for machine in new.machines.stateful.values()}
    others: list[Stateful] = []
    for machine in old.machines.stateful.values():
        if not machine.kept:
            continue
        heir = heirs[machine.operation]
        if not (
            machine.give_away(owners, new.index) and heir.inherit(machine, moment, is_same=True)
        ):
            others.append(machine)
    return (row for row in _rows(others, moment) if owners.owner(row.key_hash) == new.index)


def moving(
    scheduled: Iterable[Scheduled],
    layout: Layout,
    arrives: Callable[[int], bool],
    *,
    others_too: bool,
) -> Iterator[Scheduled]:
    """Of what a cut has scheduled: the ticks of keys whose hashes arrive, and perhaps all that are no ticks
    that go with their keys."""
    ticking = layout.ticking
    for item in scheduled:
        if item.operation in ticking and is_with_its_key(item):
            if arrives(item.key_hash):
                yield item
        elif others_too:
            yield item


def kept_timers(worker: Worker, moment: Moment, *, ticks_too: bool = False) -> Iterator[Scheduled]:
    """The items that a worker has scheduled, which stay with it; the ticks of its keys only if asked for."""
    machines = worker.machines
    for pending in machines.all_pending() if ticks_too else machines.pending.values():
        for item in pending.capture(moment, BEFORE_ALL):
            if isinstance(item, KeptTicks):
                yield from item
            elif item is not None:
                yield item


def copied_rows(worker: Worker, moment: Moment, plan: CarryPlan) -> Iterator[Row]:
    """The rows of a cut at this moment, for another version. The worker goes on, and its cuts too."""
    machines = worker.machines.stateful.values()
    rows = (row for one in machines for row in one.rows_at(moment))
    return translated_rows(rows, plan, moment)


def copied_timers(worker: Worker, moment: Moment, plan: CarryPlan) -> Iterator[Scheduled]:
    """The scheduled items of such a cut."""
    pending = worker.machines.all_pending()
    return translated_timers((item for one in pending for item in one.waiting_at(moment)), plan)


def _rows(machines: Iterable[Stateful], moment: Moment) -> Iterator[Row]:
    return rows_in(chain.from_iterable(one.capture(moment, BEFORE_ALL) for one in machines))
