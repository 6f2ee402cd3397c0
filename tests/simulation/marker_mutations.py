"""Ways to break the snapshots by markers, each of which has to be noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from emberflow.engine.arrival.alignment import Alignment
from emberflow.engine.arrival.channels import Channel, Edge
from emberflow.engine.arrival.outbox import MarkerOutbox
from emberflow.engine.arrival.snapshot import Snapshot
from emberflow.engine.arrival.worker import MarkerWorker
from emberflow.engine.cuts.cut import Capture
from emberflow.engine.messages import Moment
from tests.simulation.marked import Case, Host


class Mutation(NamedTuple):
    name: str
    hosts: type[Host]
    cases: Callable[[int], Case] = Case.of


def _with(kind: type[MarkerWorker]) -> type[Host]:
    class Mutant(Host):
        def made_worker(self, _: Any = None) -> MarkerWorker:
            return super().made_worker(kind)

    return Mutant


def _with_part(part: str, kind: type[Any]) -> type[Host]:
    """Workers of which one part is of another class."""

    class Mutant(MarkerWorker):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            getattr(self, part).__class__ = kind

    return _with(Mutant)


class DoesNotBlock(Alignment):
    """What comes behind a marker is processed at once, and is then in the snapshot before it."""

    def _block(self, channel: Channel) -> None:
        pass


class ForgetsTheLog(Alignment):
    def _begin_log(self, channel: Channel, snapshot: Snapshot) -> None:
        self._logging[channel] = []


class LogsTooLong(Alignment):
    """The log stays open until the next snapshot: what follows the marker is in it too."""

    def _close_log(self, node: int, channel: Channel) -> None:
        log = self._logging[channel]
        super()._close_log(node, channel)
        self._logging[channel] = log


class PassesTheMarkerFirst(MarkerOutbox):
    """What was sent on an edge ahead of the marker, and what follows it, are one part."""

    def post_marker(self, destination: int, edge: Edge, number: int, *, full: bool) -> None:
        part = self._open.get((destination, edge.number))
        super().post_marker(destination, edge, number, full=full)
        if part is not None:
            self._open[destination, edge.number] = part


class LeavesMailboxesFull(MarkerWorker):
    """A marker is dealt with before the items that came ahead of it."""

    def _run_ahead(self) -> None:
        pass


class ForgetsOutput(MarkerWorker):
    """The output of its epoch is not part of the snapshot."""

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        snapshot = self.complete_snapshot()
        assert snapshot is not None
        snapshot.outputs = {}
        return super().begin_cut(moment, since)


class ForgetsChanges(MarkerWorker):
    """An increment misses the states that changed while the snapshot before it was under way."""

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        for machine in self.machines.stateful.values():
            machine.captured(full=False)
        return super().begin_cut(moment, since)


class ReleasesEarly(Host):
    """Output leaves when the snapshot is taken, not when it is committed."""

    def go_on(self) -> None:
        if self.order is not None and self.worker.complete_snapshot() is not None:
            self.release(self.worker.committed(self.order))
        super().go_on()


class CommitsOverOutput(Host):
    """A part counts as stored although sinks lack output of the epoch before."""

    def may_tell_captured(self) -> bool:
        return True


class TellsLaterPositions(Host):
    """Positions are those of when the snapshot is complete, not of when the marker was injected."""

    def go_on(self) -> None:
        if self.order is not None and self.capture is None:
            self.positions = dict(self.next)
        super().go_on()


class StopsNobody(Host):
    """Stop the world: fronts go on while the snapshot is taken."""

    def pause(self) -> None:
        super().pause()
        self.is_paused = False


MUTATIONS = [
    Mutation("a channel is not blocked", _with_part("_alignment", DoesNotBlock)),
    Mutation(
        "the back-edge log is forgotten",
        _with_part("_alignment", ForgetsTheLog),
        lambda n: cyclic(n),
    ),
    Mutation(
        "the back-edge log is not closed",
        _with_part("_alignment", LogsTooLong),
        lambda n: cyclic(n),
    ),
    Mutation("items overtake a marker", _with_part("_outbox", PassesTheMarkerFirst)),
    Mutation("a marker overtakes items", _with(LeavesMailboxesFull)),
    Mutation("output is not saved", _with(ForgetsOutput)),
    Mutation("changes are forgotten", _with(ForgetsChanges)),
    Mutation("output is released before the commit", ReleasesEarly),
    Mutation("output that is not stored is forgotten", CommitsOverOutput),
    Mutation("positions are told too late", TellsLaterPositions),
    Mutation("the world does not stop", StopsNobody, lambda n: Case.of(n, stops=True)),
]


def cyclic(number: int) -> Case:
    return Case.of(number, cyclic=True, stops=False)
