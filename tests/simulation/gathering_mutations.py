"""Ways to break gathering, each of which the simulation has to notice (`engine.worker.gathering`)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest

from emberflow.engine.loops.accesses import NO_ABORTS, StateBucket
from emberflow.engine.messages import Arrangement, Moment, Phase
from emberflow.engine.progress import arrangements as arrangements_module
from emberflow.engine.speculation.window import Window
from emberflow.engine.worker.gathering import guests as guests_module
from emberflow.engine.worker.gathering import region as region_module
from emberflow.engine.worker.gathering.guests import Guests
from emberflow.engine.worker.gathering.region import Gathering
from emberflow.engine.worker.gathering.waiting import Waiting
from emberflow.engine.worker.regions import Cycle
from emberflow.values.item import FlatItem, Place
from tests.simulation.hunt import Breaks

breaks = Breaks()


@breaks
def a_row_that_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The host begins with the default."""
    begin = Guests._begin
    patch.setattr(Guests, "_begin", lambda self, key, row: begin(self, key, None))


@breaks
def a_moment_below_what_was_let_in(patch: pytest.MonkeyPatch) -> None:
    """It is above what the first worker has let in, not all of them."""
    step = arrangements_module._next

    def changed(now: Arrangement, said: list[Any]) -> Arrangement:
        then = step(now, said)
        if then.phase == Phase.TELL and now.phase == Phase.CLOSE:
            time, front = said[0].through
            return then._replace(since=(time, front + 1))
        return then

    patch.setattr(arrangements_module, "_next", changed)


@breaks
def a_window_that_does_not_close(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "close", lambda self: self._through)


@breaks
def a_worker_that_goes_over_too_soon(patch: pytest.MonkeyPatch) -> None:
    """As soon as all workers know the moment, whatever is below it."""
    hear = Gathering.hear
    patch.setattr(
        Gathering, "hear", lambda self, heard, minimal: hear(self, heard, max(minimal, heard.since))
    )


@breaks
def a_worker_that_does_not_look_what_comes(patch: pytest.MonkeyPatch) -> None:
    """Items from the moment on come before the news of it, and go by the arrangement before."""
    patch.setattr(Gathering, "look_at", lambda self, node, items: None)


@breaks
def versions_that_nobody_waits_for(patch: pytest.MonkeyPatch) -> None:
    """The minimal time does not wait for what the host has still to send."""
    patch.setattr(Gathering, "settle", lambda self: None)


@breaks
def versions_that_are_sent_too_soon(patch: pytest.MonkeyPatch) -> None:
    settle = Guests.settle

    def changed(self: Guests, frontier: Moment, most: int) -> None:
        settle(self, (frontier[0] + 2, frontier[1]), most)

    patch.setattr(Guests, "settle", changed)


@breaks
def versions_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    final = Guests._final

    def changed(self: Guests, bucket: StateBucket, frontier: Moment) -> list[FlatItem]:
        aborts, bucket.aborts = bucket.aborts, NO_ABORTS
        try:
            return final(self, bucket, frontier)
        finally:
            bucket.aborts = aborts

    patch.setattr(Guests, "_final", changed)


@breaks
def a_wait_that_nobody_knows_of(patch: pytest.MonkeyPatch) -> None:
    """What waits for its row is not in flight."""
    patch.setattr(Guests, "_hold", lambda self: None)


@breaks
def what_has_waited_for_a_row_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    """It goes to the end of what waits for the node, such as the tombstone that takes it back."""

    def run(self: Cycle, node: int, items: list[FlatItem]) -> None:
        self._dataflow.receive(node, items)

    patch.setattr(Cycle, "run_now", run)


@breaks
def what_has_waited_for_a_row_waits_again(patch: pytest.MonkeyPatch) -> None:
    """When its row is there, it goes to the end of what still waits."""
    arrive = Guests.arrive

    def changed(self: Guests, key: Any, row: tuple[Place, Any] | None) -> list[FlatItem]:
        taken = arrive(self, key, row)
        self._are_admitted = False
        return taken

    patch.setattr(Guests, "arrive", changed)


@breaks
def an_item_that_overtakes_another_of_its_place(patch: pytest.MonkeyPatch) -> None:
    """Its row is here, and the row of the other is not."""
    admit = Waiting.admit

    def changed(self: Waiting, items: list[FlatItem], known: Container[Any]) -> list[FlatItem]:
        admitted: list[FlatItem] = []
        for item in items:
            admitted += [item] if item[2][0] in known else admit(self, [item], known)
        return admitted

    patch.setattr(Waiting, "admit", changed)


@breaks
def a_row_that_comes_for_one_item_only(patch: pytest.MonkeyPatch) -> None:
    """Whatever else waits for it waits for ever."""
    arrive = Waiting.arrive

    def changed(self: Waiting, key: Any, known: Container[Any]) -> list[FlatItem]:
        del self._places_by_key.get(key, [])[1:]
        return arrive(self, key, known)

    patch.setattr(Waiting, "arrive", changed)


@breaks
def a_row_that_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """What the region has not begun, because something waited for a row, is never begun."""
    patch.setattr(Cycle, "wake", lambda self: None)


@breaks
def rows_that_are_forgotten_while_in_use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(region_module, "_ROWS_KEPT", 0)
    forget = Guests._forget

    def changed(self: Guests) -> None:
        self._dirty.clear()
        forget(self)

    patch.setattr(Guests, "_forget", changed)


@breaks
def an_owner_that_forgets_versions(patch: pytest.MonkeyPatch) -> None:
    """Of several versions of a row at once it takes the first."""

    def some(machine: Any, items: list[FlatItem]) -> None:
        first = {item[2][1]: item for item in reversed(items)}
        take(machine, sorted(first.values()))

    take = guests_module.take_versions
    patch.setattr(region_module, "take_versions", some)
    patch.setattr(guests_module, "take_versions", some)
