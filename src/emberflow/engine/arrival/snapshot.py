"""A snapshot by markers on one worker: what it gathers while the marker passes through, and saves.

It holds, as of the marker at each task:

- the states of groupings and reductions, or those that changed since the snapshot before;
- the **output of its epoch**: what came to the sinks here behind the marker before this one (`outputs`).
  It has to be saved because a crash may come between the commit and the sink's storing of it, and nobody
  could compute it again: its elements are not replayed, and in arrival order it would come out
  otherwise;
- the **back-edge logs**: what came round a cycle between the local snapshot and the marker's return.

It is stored as a cut is (`cuts.cut`): states as rows of their buckets. Output and logs belong to one
snapshot only. They are stored like scheduled rows, of which a chain of cuts keeps those at or above its
newest time; the time of snapshot ``n`` is ``(n, 0)``. The origin says what such a row is: ``(node,
partition)`` of output, ``(~edge, 0)`` of a log. Each row holds some hundred items.
"""

from __future__ import annotations

from collections.abc import Iterator

from emberflow.engine.arrival.channels import Channel
from emberflow.engine.arrival.machines import ArrivalGrouping, ArrivalReducing, States
from emberflow.engine.cuts.cut import Row, Scheduled, scheduled_row
from emberflow.engine.messages import Moment
from emberflow.graph.nodes import Graph
from emberflow.values.item import FlatItem

#: Items of output, or of a log, in one row.
_ITEMS_A_ROW = 500


class Snapshot:
    """Snapshot ``number`` of one worker. It is complete when no task is ``left``."""

    def __init__(self, number: int, *, full: bool, tasks: int) -> None:
        self.number = number
        self.full = full
        self.left = tasks
        self.states: list[tuple[ArrivalGrouping | ArrivalReducing, States]] = []
        #: By node and partition.
        self.outputs: dict[tuple[int, int], list[FlatItem]] = {}
        #: By back edge channel.
        self.logs: dict[Channel, list[FlatItem]] = {}

    @property
    def moment(self) -> Moment:
        return (self.number, 0)

    def saved(self, graph: Graph, worker: int) -> Iterator[Row | Scheduled | None]:
        """All rows. States are immutable, so the worker may go on while they are saved."""
        for machine, states in self.states:
            for rows in machine.rows(states, self.number):
                yield from rows
        serial = 0
        for (node, partition), items in self.outputs.items():
            for first in range(0, len(items), _ITEMS_A_ROW):
                serial += 1
                yield scheduled_row(
                    graph.nodes[node].name,
                    (node, partition),
                    (self.number, worker, serial),
                    [payload for _, _, payload in items[first : first + _ITEMS_A_ROW]],
                )
        for (edge, _), items in self.logs.items():
            for first in range(0, len(items), _ITEMS_A_ROW):
                serial += 1
                yield scheduled_row(
                    f"back edge {edge}",
                    (~edge, 0),
                    (self.number, worker, serial),
                    items[first : first + _ITEMS_A_ROW],
                )
