"""Output by arrival: what comes to the sinks of a worker, and when it may leave.

What is guaranteed: **where output is held, a sink gets the output of an epoch only after the snapshot
that ends the epoch is committed.** After a crash the same output would come out otherwise, so it must
not leave before it can be restored. What comes to a sink between markers ``n - 1`` and ``n`` is the
output of epoch ``n``. It is part of snapshot ``n`` and becomes one bundle, with ``(n, 0)`` for its last
global time, when the runner says that snapshot ``n`` is committed. A worker that restores the snapshot
releases the same bundle again; a sink that has it already says so.

Where output is not held (at least once), it leaves at once. Each bundle then has the next number.
"""

from __future__ import annotations

from emberflow.engine.layout import Layout
from emberflow.engine.messages import Bundle, Moment
from emberflow.errors import EmberflowError
from emberflow.values.item import FlatItem, GlobalTime

#: By node of a sink, and partition.
Outputs = dict[tuple[int, int], list[FlatItem]]


class SnapshotGoneError(EmberflowError):
    """A sink has output of a snapshot that can no longer be restored."""


class EpochOutputs:
    """The output of one worker. ``delivered`` is what each sink partition has from earlier."""

    def __init__(
        self, layout: Layout, delivered: dict[tuple[str, int], Moment], *, holds: bool
    ) -> None:
        self.holds = holds
        self.released = 0
        self._layout = layout
        self._delivered = dict(delivered)
        #: Of the epoch under way; and of snapshots that are not committed, by their number.
        self._current: Outputs = {}
        self._uncommitted: dict[int, Outputs] = {}

    def check_restored(self, restored: int) -> None:
        """Raise if a sink is ahead of snapshot ``restored``, which the worker begins from."""
        for (sink, partition), last in self._delivered.items():
            if self.holds and sink in self._layout.graph.sinks and last[0] > restored:
                raise SnapshotGoneError(
                    f"sink {sink!r} partition {partition} has the output of snapshot {last[0]}, and "
                    f"the newest one to begin from is {restored or 'none'}. With "
                    f"ordering='arrival' that output would come out otherwise. Begin with an empty "
                    f"sink, or with the checkpointLocation that it was written from."
                )

    @property
    def held_items(self) -> int:
        """Items that wait for a snapshot to be committed."""
        return sum(map(len, self._current.values())) + sum(
            len(items) for held in self._uncommitted.values() for items in held.values()
        )

    def add(self, node: int, partition: int, items: list[FlatItem]) -> None:
        """Items that have come to a sink, behind the last marker."""
        self._current.setdefault((node, partition), []).extend(items)

    def end_epoch(self, node: int, number: int) -> Outputs:
        """Marker ``number`` has come to this sink: what its snapshot has to save."""
        if not self.holds:
            return {}
        ended = {key: items for key, items in self._current.items() if key[0] == node}
        for key in ended:
            del self._current[key]
        self._uncommitted.setdefault(number, {}).update(ended)
        return ended

    def owes(self, number: int) -> bool:
        """Whether output of a snapshot before this one waits for its commit."""
        return any(known < number for known in self._uncommitted)

    def committed(self, number: int) -> list[Bundle]:
        """Snapshot ``number`` is committed: its output, and that of older ones, leaves."""
        bundles: list[Bundle] = []
        for known in sorted(known for known in self._uncommitted if known <= number):
            bundles += self.bundled(self._uncommitted.pop(known), known)
        return bundles

    def bundled(self, outputs: Outputs, number: int) -> list[Bundle]:
        """Output of a snapshot as bundles, without what the sinks have."""
        bundles = []
        last = GlobalTime(number, 0)
        for (node, partition), items in outputs.items():
            sink = self._layout.sinks[node].name
            if items and self._delivered.get((sink, partition), (0, 0)) < last:
                self.released += len(items)
                bundles.append(Bundle(sink, partition, last, items))
        return bundles

    def leaving(self) -> list[Bundle]:
        """What leaves at once. Each bundle is above what the sink has."""
        if self.holds:
            return []
        bundles = []
        for (node, partition), items in self._current.items():
            sink = self._layout.sinks[node].name
            last = GlobalTime(self._delivered.get((sink, partition), (0, 0))[0] + 1, 0)
            self._delivered[sink, partition] = last
            self.released += len(items)
            bundles.append(Bundle(sink, partition, last, items))
        self._current = {}
        return bundles
