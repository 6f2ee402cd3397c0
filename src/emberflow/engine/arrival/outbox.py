"""The outbox of a worker by arrival: items and markers for other workers, in the order of sending.

What is guaranteed: *FIFO on every channel.* What goes to another worker on an edge goes as parts in one
list, items and markers as they came. A marker closes the part of its edge: items that follow it begin a
new part behind it.

A part is ``(edge, items)``, or ``(~edge, [((n, 0), 0, full)])`` for marker ``n``. Markers have no
global time, so they are not acked. What is buffered behind a marker is in flight: the worker acks it as
frames that it sends to itself, until nothing is buffered any more.
"""

from __future__ import annotations

from emberflow.engine.arrival.channels import Edge
from emberflow.engine.messages import Ack, Frame
from emberflow.engine.worker.outbox import FrameLedger, Part
from emberflow.values.item import FlatItem


class MarkerOutbox(FrameLedger):
    """The outbox of one worker."""

    def __init__(self, index: int, incarnation: int) -> None:
        super().__init__(index, incarnation)
        #: By destination: parts in the order of sending; and the part of an edge that is still open.
        self._outgoing: dict[int, list[Part]] = {}
        self._open: dict[tuple[int, int], list[FlatItem]] = {}
        #: Parts that were buffered since the last ack, and the frames that stand for earlier ones.
        self._newly_buffered: list[Part] = []
        self._buffered_as: list[Frame] = []

    def post(self, destination: int, edge: Edge, items: list[FlatItem]) -> None:
        self.items_sent += len(items)
        part = self._open.get((destination, edge.number))
        if part is None:
            part = self._open[destination, edge.number] = []
            self._outgoing.setdefault(destination, []).append((edge.number, part))
        part += items

    def post_marker(self, destination: int, edge: Edge, number: int, *, full: bool) -> None:
        marker: FlatItem = ((number, 0), 0, full)
        self._outgoing.setdefault(destination, []).append((~edge.number, [marker]))
        self._open.pop((destination, edge.number), None)  # what follows is behind the marker

    def buffer(self, edge: Edge, items: list[FlatItem]) -> None:
        """These items wait behind a marker: ack them as in flight."""
        self._newly_buffered.append((edge.number, items))

    def emptied(self, buffered: int) -> tuple[list[tuple[int, Frame]], Ack]:
        """All that was posted, a frame for each worker, and the ack that goes with it.

        ``buffered`` is how many items still wait behind markers.
        """
        frames = [
            (destination, self._frame(parts)) for destination, parts in self._outgoing.items()
        ]
        self._outgoing, self._open = {}, {}
        if self._newly_buffered:
            frame = self._frame(self._newly_buffered)
            self._newly_buffered = []
            self._buffered_as.append(frame)
            self.hold(frame)
        if self._buffered_as and not buffered:
            self.finish(self._buffered_as)
            self._buffered_as = []
        entries, _ = self.entries(frames)
        reports, self.reports = self.reports, {}
        return frames, Ack(self.index, entries.levels.get(0, {}), entries.ranges, reports)

    def _frame(self, parts: list[Part]) -> Frame:
        least = min(
            (item[0] for number, items in parts if number >= 0 for item in items), default=None
        )
        return self.numbered(parts, None if least is None else (least[0], least[1]), None)
