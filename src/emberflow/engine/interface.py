"""What a runner may ask of an engine worker, whichever way the worker orders items.

Two classes implement it: `engine.worker.worker.Worker` processes items in the order of their global
times, `engine.arrival.worker.MarkerWorker` processes them as they arrive. A loop that is written
against `EngineWorker` runs either of them. What differs (how a cut begins, what its commit releases,
how a worker is restored) is not part of the interface: the runner has a strategy object for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from emberflow.engine.cuts.cut import Capture
from emberflow.engine.messages import Effects, Frame, Moment, Progress
from emberflow.errors import Diverted
from emberflow.values.item import FlatItem, Place


@dataclass(slots=True)
class Statistics:
    """What a worker has done: plain counters, always on.

    ``waited`` is the time that items spent at barriers, and ``buffered`` the time that they spent at
    patient nodes; all items together, in the unit of the runner.
    """

    items: int = 0
    elements: int = 0
    frames_sent: int = 0
    items_sent: int = 0
    replays: int = 0
    tombstones: int = 0
    arrived: int = 0
    released: int = 0
    waited: float = 0.0
    buffered: float = 0.0
    buckets: int = 0
    bucket_items: int = 0
    bucket_largest: int = 0
    items_of: dict[str, int] = field(default_factory=dict)


class NodeStatistics(NamedTuple):
    """What one node of the graph has done on one worker."""

    items: int
    #: By port: the items that it gave. Tombstones count, here and there.
    given: tuple[int, ...] = ()
    replays: int = 0
    keys: int = 0
    #: Items that wait there until its input is complete.
    held: int = 0


class BarrierStatistics(NamedTuple):
    """What one barrier has done."""

    held: int
    arrived: int
    released: int
    tombstones: int


class EngineWorker(Protocol):
    """One worker of a flow: each event returns what the runner has to do next."""

    @property
    def minimal(self) -> Moment:
        """Nothing below this can reach the sinks of this worker any more."""

    @property
    def keys(self) -> int:
        """The number of buckets that the worker keeps."""

    @property
    def held_items(self) -> int:
        """Items that have reached sinks here and are not released yet."""

    def enter_items(
        self,
        node: int,
        items: list[FlatItem],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """Take in elements of a front, and what the front promises after them.

        An element is an item whose place is its global time and whose mark is 0. ``malformed`` is
        what the front read and could not make elements of.
        """

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        """Take in frames of other workers, in the order they came."""

    def progress(self, progress: Progress, frames: Sequence[Frame] = ()) -> Effects:
        """Take in how far the acker says that things are, and frames that came at the same time."""

    @property
    def is_untidy(self) -> bool:
        """Whether `tidy` has anything to do."""

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """Drop what the last progress made obsolete, when nobody waits for the worker."""

    def pass_time(self, elapsed: float) -> None:
        """Add up how long items wait: so much time has passed since the last call."""

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """Begin to capture the state at ``moment``, or only what changed from ``since`` on."""

    def statistics(self, *, sizes_too: bool = True) -> Statistics:
        """All counters, as of now. ``sizes_too`` visits every bucket."""

    def node_statistics(self) -> dict[int, NodeStatistics]:
        """The counters of each node that runs here."""

    def barrier_statistics(self) -> dict[tuple[str, int], BarrierStatistics]:
        """The counters of each barrier here, by sink and partition."""

    @property
    def running(self) -> tuple[int, list[FlatItem]] | None:
        """The node that runs just now, and its items. Other threads may look at it."""
