"""State of slices that will come to a worker, made ahead of the moment T at which they move.

What is guaranteed: **what is made of an earlier cut, and corrected with what each later one adds, is what is made
of the cut at T.** A cut that adds to another one has all rows of every bucket that has changed since, and
these replace those of the earlier one; a bucket that is no more has a row that says so. What is scheduled
stays what it is: a later cut only has more of it, and what is below T is over.

So the machines here restore rows long before anybody needs them. At T the worker takes their buckets as they
are (`Trimmed.take_in`), and the ticks that wait (`machines.ticking`). Nothing is processed here, nothing is
captured, and nothing expires: what has expired by T is forgotten like any bucket that ends.

Some steps may be left out: then whoever moves the slices has their rows elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.pending import is_with_its_key
from emberflow.engine.layout import Layout, Machines
from emberflow.engine.messages import Moment
from emberflow.engine.worker.worker import Worker
from emberflow.values.item import Place


class StateAhead:
    """The buckets and ticks of some keys, as of the last cut that was given."""

    def __init__(
        self, layout: Layout, arrives: Callable[[int], bool], left_out: Collection[str] = ()
    ) -> None:
        """``arrives`` tells of a hash whether its keys will come."""
        machines = Machines(layout)
        self._machines = {
            machine.operation: machine
            for machine in machines.stateful.values()
            if machine.kept and machine.operation not in left_out
        }
        self._ticking = {
            machine.pending.operation: machine for machine in machines.ticking.values()
        }
        self._arrives = arrives
        self._seen: set[tuple[str, Place]] = set()
        #: What is scheduled and waits at no worker of a key: for those who have to send it.
        self._others: list[Scheduled] = []

    @property
    def steps(self) -> Collection[str]:
        """The steps whose rows are here."""
        return self._machines.keys()

    def replace(self, moment: Moment, step: str, key: Any, rows: list[Row]) -> None:
        """A bucket has these rows in a cut at a moment; with none it is no more."""
        machine = self._machines[step]
        machine.buckets.pop(key, None)
        if rows:
            machine.restore(moment, rows)

    def restore(self, moment: Moment, step: str, rows: list[Row]) -> None:
        """The same of many buckets at once, none of which is here."""
        self._machines[step].restore(moment, rows)

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
