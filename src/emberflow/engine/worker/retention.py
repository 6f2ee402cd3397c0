"""Retention: what a worker keeps of the past. How far machines are trimmed; cuts, taken and restored.

What is guaranteed: **no machine loses what an item at or above the minimal time of all can meet, what a
read may ask for, or what a cut under way holds.**

- *The minimal time of all* is the bound, not that of the worker's own barriers, which may be ahead of
  it: the next cut is taken at the minimal time of all.
- *Reads* of states and reduces may need more than that (`Progress.kept`): their machines are trimmed
  no further than it says.
- *Cuts* are the machines' own concern (`trimming`). Scheduled items are not trimmed while a capture
  visits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from emberflow.engine.cuts.cut import Capture, Content, Row, Scheduled
from emberflow.engine.cuts.pending import divided, is_with_its_key
from emberflow.engine.layout import Machines
from emberflow.engine.machines.cold import ColdRows, ColdStores, Cooling
from emberflow.engine.messages import BEFORE_ALL, Moment, Progress
from emberflow.engine.queries.worker import StateReader
from emberflow.errors import InternalError

#: Keys that each machine looks at in a round, where slices have left it.
_LOOKS_AT_LEFT = 2_048


class Retention:
    """The retention of one worker."""

    def __init__(self, worker: int, machines: Machines, reading: StateReader) -> None:
        self._worker = worker
        self._machines = machines
        self._reading = reading
        #: The minimal time of all that was heard last, and from when on versions are kept for reads.
        self.minimal: Moment = BEFORE_ALL
        self._kept: Moment = BEFORE_ALL
        #: Whether machines have something to trim: since the last `tidy`, or put off then.
        self._is_untidy = False
        self._capture: Capture | None = None

    def progress(self, progress: Progress) -> None:
        """Note how far machines may be trimmed now."""
        minimal = progress.of_all()
        kept = minimal if progress.kept is None else progress.kept
        if minimal > self.minimal or kept > self._kept:
            self.minimal = max(minimal, self.minimal)
            self._kept = max(kept, self._kept)
            self._is_untidy = True

    # Trimming.

    @property
    def is_untidy(self) -> bool:
        """Whether there is anything to trim, or to drop."""
        machines = self._machines.stateful.values()
        return self._is_untidy or any(machine.has_left for machine in machines)

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """Trim what the last progress made obsolete, as far as it is due and not put off."""
        for machine in self._machines.stateful.values():
            if machine.has_left:
                machine.drop_left(_LOOKS_AT_LEFT)
        if not self._is_untidy:
            return
        done = [
            machine.trim_if_due(self._bound_of(node), is_waited_for=is_waited_for)
            for node, machine in self._machines.stateful.items()
        ]
        self._is_untidy = not all(done)
        self._reading.trimmed_below = min(self.minimal, self._kept)
        if not self._is_capturing():
            for pending in self._machines.all_pending():
                pending.trim_if_due(self.minimal)

    def trim(self, most: int | None = None) -> None:
        """Trim now, whether or not it is due: every bucket, or so many of each machine at most."""
        for node, machine in self._machines.stateful.items():
            machine.drop_left(most)
            machine.trim(self._bound_of(node), most)
        self._reading.trimmed_below = min(self.minimal, self._kept)
        if not self._is_capturing():
            for pending in self._machines.all_pending():
                pending.trim(self.minimal)

    def evict(self, looks: int) -> int:
        """Look at so many buckets, over all machines, and evict some of those that are cold; how many."""
        machines = self._machines.stateful
        keys = sum(len(machine.buckets) for machine in machines.values())
        return sum(
            machine.evict(-(-looks * len(machine.buckets) // keys), self._bound_of(node))
            for node, machine in machines.items()
            if isinstance(machine, Cooling) and machine.buckets
        )

    def keep_cold(self, stores: ColdStores) -> None:
        """Let machines evict buckets."""
        for machine in self._machines.stateful.values():
            if isinstance(machine, Cooling):
                machine.keep_cold(stores)

    def cold_stores(self) -> dict[str, ColdRows]:
        """By operation: the stores of the machines that may evict buckets."""
        return {
            machine.operation: machine.cold
            for machine in self._machines.stateful.values()
            if isinstance(machine, Cooling) and machine.cold is not None
        }

    def close_cold(self) -> None:
        for machine in self._machines.stateful.values():
            if isinstance(machine, Cooling) and machine.cold is not None:
                machine.cold.close()

    def _bound_of(self, node: int) -> Moment:
        """Below which moment a machine is trimmed. Where it can be read, reads keep more."""
        return min(self.minimal, self._kept) if node in self._reading.nodes else self.minimal

    def _is_capturing(self) -> bool:
        return self._capture is not None and not self._capture.done

    # Cuts (`cuts.cut` says what the runner has to see to).

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """Begin to capture the state at the minimal time of all that was heard last.

        ``since`` is the moment of the last committed cut, or `BEFORE_ALL` for all there is. A cut
        that began before and is not committed is given up.
        """
        if moment != self.minimal:
            raise InternalError(
                f"worker {self._worker} was told to cut at {moment}, and the minimal time that it has "
                f"heard last is {self.minimal}: a cut follows the progress to its moment"
            )
        if self._capture is not None:
            self._capture.give_up()
        # Each machine notes what changes from now on, not from when the capture comes to it.
        parts: list[Iterator[Content | None]] = [
            machine.capture(moment, since, packs=True)
            for machine in self._machines.stateful.values()
        ]
        parts += [pending.capture(moment, since) for pending in self._machines.all_pending()]
        self._capture = Capture(moment, chain.from_iterable(parts))
        return self._capture

    def cut_committed(self, moment: Moment) -> None:
        """The cut at this moment can be restored from, whatever happens."""
        for machine in self._machines.stateful.values():
            machine.cut_committed(moment)
        for pending in self._machines.all_pending():
            pending.cut_committed(moment)

    def restore(
        self,
        flow: str,
        moment: Moment,
        rows: Iterable[Row],
        scheduled: Iterable[Scheduled],
        is_own: Callable[[int], bool],
    ) -> Iterator[tuple[int, list[Scheduled]]]:
        """Take over what a cut at this moment holds for this worker, which has the keys of hashes that are
        ``is_own``. Give back, by node, the scheduled items: they have to be sent again. Ticks of own keys
        wait here at once.
        """
        rows_of: dict[str, list[Row]] = {}
        scheduled_of: dict[str, list[Scheduled]] = {}
        for row in rows:
            rows_of.setdefault(row.operation, []).append(row)
        for item in scheduled:
            scheduled_of.setdefault(item.operation, []).append(item)
        for machine in self._machines.stateful.values():
            machine.restore(moment, rows_of.pop(machine.operation, []))
        for node, pending in self._machines.pending.items():
            items = scheduled_of.pop(pending.operation, [])
            ticking = self._machines.ticking.get(node)
            if ticking is not None:
                own, items = divided(
                    items, lambda item: is_with_its_key(item) and is_own(item.key_hash)
                )
                ticking.put_back(moment, own)
            pending.restore(moment, items)
            if items:
                yield node, items
        unknown = sorted([*rows_of, *scheduled_of])
        if unknown:
            raise InternalError(
                f"the cut at {moment} holds the state of operations that the flow {flow!r} does not "
                f"have: {unknown}"
            )
