"""Ways to break ranges of keys, each of which the simulation has to notice (`engine.worker.ranges`)."""

from __future__ import annotations

from typing import Any

import pytest

from emberflow.engine.layout import Layout
from emberflow.engine.messages import Entries, Frame, Moment, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.speculation.patience import Patience, Stop
from emberflow.engine.worker import outbox as outbox_module
from emberflow.engine.worker import ranges as ranges_module
from emberflow.engine.worker.barriers import Barriers
from emberflow.engine.worker.outbox import Outbox, Part
from emberflow.engine.worker.ranges import Reached
from emberflow.values.proofs.shapes import KEY, Shape
from tests.simulation.hunt import Breaks

breaks = Breaks()


@breaks
def another_key_passes_for_the_key(patch: pytest.MonkeyPatch) -> None:
    """An input by another key is behind a node, and the node is owned all the same."""
    patch.setattr(ranges_module, "applied", lambda function, shape: KEY)


@breaks
def a_sink_by_another_key_passes_for_one_by_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranges_module, "Reached", lambda sink, by_key: Reached(sink, True))


@breaks
def all_that_a_map_gives_keeps_the_key(patch: pytest.MonkeyPatch) -> None:
    passed = ranges_module._passed

    def changed(layout: Layout, node: int, shape: Shape) -> Shape | None:
        return None if passed(layout, node, shape) is None else shape

    patch.setattr(ranges_module, "_passed", changed)


@breaks
def ranges_that_reach_further_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A partition waits for one of the ranges that can reach it."""
    reaching = ranges_module.ranges_reaching

    def changed(*given: Any) -> dict[tuple[int, int], tuple[int, ...]]:
        return {barrier: workers[:1] for barrier, workers in reaching(*given).items()}

    patch.setattr(ranges_module, "ranges_reaching", changed)


@breaks
def a_frame_counts_for_its_sender(patch: pytest.MonkeyPatch) -> None:
    """It is acked under the range of the worker that sent it."""
    xor = outbox_module._xor

    def changed(frame: Frame, destination: int, entries: Entries) -> None:
        xor(frame._replace(least_own=None), destination, entries)
        only_own = frame._replace(least=None, least_bound=None)
        xor(only_own, frame.sender, entries)

    patch.setattr(outbox_module, "_xor", changed)


@breaks
def what_is_held_counts_nowhere(patch: pytest.MonkeyPatch) -> None:
    hold_frame = Outbox.hold_frame

    def changed(self: Outbox, level: int, least: Moment, node: int | None = None) -> Frame:
        frame = hold_frame(self, level, least, node)
        return frame._replace(least_own=None)

    patch.setattr(Outbox, "hold_frame", changed)


@breaks
def what_is_held_counts_for_its_own_stage(patch: pytest.MonkeyPatch) -> None:
    """Then a node waits for itself."""
    hold_frame = Outbox.hold_frame

    def changed(self: Outbox, level: int, least: Moment, node: int | None = None) -> Frame:
        frame = hold_frame(self, level, least, node)
        return frame._replace(level_own=max(0, frame.level_own - 1))

    patch.setattr(Outbox, "hold_frame", changed)


@breaks
def a_node_does_not_wait_for_its_own_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Patience, "_frontier_at", lambda self, stop: self.frontier(stop.stage))


@breaks
def a_node_waits_for_the_least_of_all_ranges(patch: pytest.MonkeyPatch) -> None:
    """Its own hold is among what it waits for."""

    def frontier_at(self: Patience, stop: Stop) -> Moment:
        return min(self.frontier(stop.stage), self._progress.of_all())

    patch.setattr(Patience, "_frontier_at", frontier_at)


@breaks
def a_frame_has_the_level_of_its_last_node(patch: pytest.MonkeyPatch) -> None:
    frame = Outbox.frame

    def changed(self: Outbox, parts: list[Part]) -> Frame:
        stages = [self._stage[node] for node, _ in parts if node in self._owned]
        return frame(self, parts)._replace(level_own=2 * max(stages, default=0))

    patch.setattr(Outbox, "frame", changed)


@breaks
def the_errors_sink_does_not_wait_for_all(patch: pytest.MonkeyPatch) -> None:
    release = Barriers.release_by_range

    def changed(self: Barriers, minimal: Moment, own: Any, reaching: Any, of_all: Moment) -> Any:
        return release(self, minimal, own, reaching, min(minimal, own[0]))

    patch.setattr(Barriers, "release_by_range", changed)


@breaks
def the_minimal_time_of_all_is_without_ranges(patch: pytest.MonkeyPatch) -> None:
    """Buckets are trimmed, cuts taken and credits given below it."""
    patch.setattr(Progress, "of_all", lambda self: min(self.anywhere, *self.failing, *self.ranges))


@breaks
def no_progress_where_only_ranges_have_moved(patch: pytest.MonkeyPatch) -> None:
    receive = Acker.receive

    def changed(self: Acker, ack: Any) -> Progress:
        before = self.progress
        after = receive(self, ack)
        is_known = before._replace(own=after.own, bound=after.bound) == after
        if before.own and is_known and ack.own:
            self.progress = before
        return self.progress

    patch.setattr(Acker, "receive", changed)
