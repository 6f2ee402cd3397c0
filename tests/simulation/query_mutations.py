"""Ways to break the reading of state, each of which the oracle has to notice.

As in `mutations`, each is put over the real machines from outside.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest

from emberflow.engine.machines.state import AccessMachine, StateBucket
from emberflow.engine.messages import AFTER_ALL, FrontsReply, Moment, Progress, ReadPage, WorkerRead
from emberflow.engine.queries.coordinator import ReadCoordinator, _Question
from emberflow.engine.queries.worker import StateReader, _Cursor
from emberflow.engine.worker.retention import Retention
from emberflow.engine.worker.worker import Worker
from tests.simulation.hunt import Breaks

breaks = Breaks()


def unguarded(patch: pytest.MonkeyPatch) -> None:
    """A worker does not notice that it is asked for what it has trimmed."""
    patch.setattr(StateReader, "_check_kept", lambda self, moment: None)


@breaks
def a_read_of_an_uncommitted_version(patch: pytest.MonkeyPatch) -> None:
    """The last version below the moment, whether or not its transaction committed."""

    def row_at(self: Any, bucket: StateBucket, moment: Moment) -> Any:
        below = bucket.entries[: bisect_left(bucket.entries, (moment,))]  # type: ignore[arg-type]
        return (bucket.key, below[-1][6]) if below else None

    patch.setattr(AccessMachine, "row_at", row_at)


@breaks
def a_read_above_the_minimal_time(patch: pytest.MonkeyPatch) -> None:
    """What workers have speculated about, as if it were final."""
    ask = StateReader.ask

    def at_the_end(self: StateReader, asked: WorkerRead) -> ReadPage | None:
        return ask(self, asked._replace(moment=AFTER_ALL))

    patch.setattr(StateReader, "ask", at_the_end)


@breaks
def a_read_of_a_trimmed_version(patch: pytest.MonkeyPatch) -> None:
    """The coordinator tells the workers to trim what an open scan or a wish needs."""
    unguarded(patch)
    patch.setattr(_Question, "held", property(lambda self: None))


@breaks
def history_that_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    patch.setattr(Retention, "_bound_of", lambda self, node: self.minimal)


@breaks
def a_worker_that_notices_that_it_has_trimmed(patch: pytest.MonkeyPatch) -> None:
    """The guard itself: it refuses what the two above would read."""
    patch.setattr(_Question, "held", property(lambda self: None))


@breaks
def every_worker_reads_at_its_own_time(patch: pytest.MonkeyPatch) -> None:
    """At the minimal time that it has heard last, which is not that of the others."""
    ask = StateReader.ask

    def own_time(self: StateReader, asked: WorkerRead) -> ReadPage | None:
        return ask(self, asked._replace(moment=self.trimmed_below))

    patch.setattr(StateReader, "ask", own_time)


@breaks
def pages_that_go_on_at_a_later_time(patch: pytest.MonkeyPatch) -> None:
    """Each page of a scan is as of the minimal time that the worker knows by then."""
    go_on = StateReader.go_on

    def later(self: StateReader, limit: int) -> ReadPage | None:
        for cursor in self._cursors.values():
            cursor.moment = max(cursor.moment, self.trimmed_below)
        return go_on(self, limit)

    patch.setattr(StateReader, "go_on", later)
    patch.setattr(_Question, "held", property(lambda self: None))


@breaks
def a_page_that_is_lost(patch: pytest.MonkeyPatch) -> None:
    taken = _Cursor.taken

    def lost(self: _Cursor) -> Any:
        taken(self)
        return taken(self)

    patch.setattr(_Cursor, "taken", lost)


@breaks
def an_ordered_read_that_does_not_ask_the_fronts(patch: pytest.MonkeyPatch) -> None:
    marked = ReadCoordinator.marked

    def unmoved(self: ReadCoordinator, mark: FrontsReply) -> Any:
        return marked(self, mark._replace(moment=(-(2**63), 0)))

    patch.setattr(ReadCoordinator, "marked", unmoved)


@breaks
def a_read_that_goes_back_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    begin = ReadCoordinator.begin

    def no_floor(self: ReadCoordinator, *arguments: Any, floor: Moment, **named: Any) -> Any:
        return begin(self, *arguments, **named)

    patch.setattr(ReadCoordinator, "begin", no_floor)


@breaks
def a_read_before_what_was_restored(patch: pytest.MonkeyPatch) -> None:
    """After a crash the minimal time is that of the beginning, and the state that of the cut."""
    init = ReadCoordinator.__init__

    def forgetful(self: ReadCoordinator, workers: int, *, since: Moment, history: int) -> None:
        init(self, workers, history=history)

    patch.setattr(ReadCoordinator, "__init__", forgetful)


@breaks
def a_question_that_overtakes_the_progress(patch: pytest.MonkeyPatch) -> None:
    """Asked as of a time that the workers may have been told to trim long ago."""
    unguarded(patch)
    told = ReadCoordinator.told
    before: dict[int, Moment] = {}

    def late(self: ReadCoordinator, minimal: Moment, kept: Moment) -> Any:
        known = before.get(id(self), minimal)
        before[id(self)] = minimal
        return told(self, known, min(kept, known))

    patch.setattr(ReadCoordinator, "told", late)


@breaks
def progress_that_forgets_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    unguarded(patch)
    progress = Worker.progress

    def forgetful(self: Worker, heard: Progress) -> Any:
        return progress(self, heard._replace(kept=None))

    patch.setattr(Worker, "progress", forgetful)
