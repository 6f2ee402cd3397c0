"""Ways to break the protocol of transactions, each of which the simulation has to notice.

As in `mutations`, each is put over the real machines from outside. `breaks` show without a crash;
`breaks_cuts` are mistakes of cuts and of what is restored from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from emberflow.engine import layout as program_module
from emberflow.engine.machines import state as versions_module
from emberflow.engine.machines.closer import Ballot, CloserMachine
from emberflow.engine.machines.state import AccessMachine, StateBucket
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import AFTER_ALL, Effects, Frame, Moment, Progress
from emberflow.engine.speculation import budget as budget_module
from emberflow.engine.speculation import turns as turns_module
from emberflow.engine.worker import regions as regions_module
from emberflow.engine.worker.dataflow import Dataflow, Send
from emberflow.engine.worker.regions import Cycle, QueuedItem
from emberflow.engine.worker.worker import Worker
from emberflow.graph.transactions import ABORT, COMMITTED, RESULT
from emberflow.values.item import FlatItem
from tests.simulation.hunt import Breaks

breaks = Breaks()
breaks_cuts = Breaks()


def changed_output(
    patch: pytest.MonkeyPatch, machine: type, change: Callable[[list[FlatItem]], list[FlatItem]]
) -> None:
    """A machine whose output, on every port, is changed."""
    process = machine.process  # type: ignore[attr-defined]

    def changed(self: Any, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        return [change(output) for output in process(self, items, failed)]

    patch.setattr(machine, "process", changed)


def is_abort(item: FlatItem) -> bool:
    payload = item[2]
    return isinstance(payload, tuple) and len(payload) == 4 and payload[1] == ABORT


def is_vote(item: FlatItem) -> bool:
    payload = item[2]
    return isinstance(payload, tuple) and len(payload) == 5


@breaks
def an_abort_that_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    changed_output(
        patch,
        CloserMachine,
        lambda output: [item for item in output if not (is_abort(item) and item[1] & 1)],
    )


@breaks
def an_abort_that_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    changed_output(
        patch, CloserMachine, lambda output: [item for item in output if not is_abort(item)]
    )


@breaks
def a_vote_lost_on_replay(patch: pytest.MonkeyPatch) -> None:
    """A vote that takes the place of another one is not sent, nor is the other one taken back."""

    def change(output: list[FlatItem]) -> list[FlatItem]:
        back = {item[0] for item in output if item[1] & 1 and is_vote(item)}
        return [item for item in output if not (is_vote(item) and item[0] in back)]

    changed_output(patch, AccessMachine, change)


@breaks
def a_read_of_an_uncommitted_version(patch: pytest.MonkeyPatch) -> None:
    """Others see what an aborted transaction left."""

    class NoAborts(dict[Any, int]):
        def __contains__(self, place: object) -> bool:
            return False

    def bucket(key: Any, default: Any) -> StateBucket:
        made = StateBucket(key, default)
        made.aborts = NoAborts()
        return made

    patch.setattr(versions_module, "StateBucket", bucket)


@breaks
def a_late_voter_that_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    """Only those that have voted when a transaction fails first are told."""
    due_now = CloserMachine._due_now

    def changed(self: Any, record: Ballot) -> Any:
        due = due_now(self, record)
        told = {
            where
            for where, payload in record.sent.items()
            if is_abort((where[1], where[2], payload))
        }
        if not told:
            return due
        return {
            where: payload
            for where, payload in due.items()
            if where in told or not is_abort((where[1], where[2], payload))
        }

    patch.setattr(CloserMachine, "_due_now", changed)


@breaks
def a_last_version_that_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """Trimming keeps the last version, whether or not it counts."""

    def last(self: Any, bucket: StateBucket, final: int) -> Any:
        writes = [entry for entry in bucket.entries[:final] if self._uses[entry[2]].writes]
        return writes[-1] if writes else None

    patch.setattr(AccessMachine, "_last_counting", last)


@breaks
def a_replay_that_ends_too_soon(patch: pytest.MonkeyPatch) -> None:
    """A value that differs by one is taken for the same."""
    same = versions_module.same_value

    def about(one: Any, other: Any) -> bool:
        if type(one) is int and type(other) is int:
            return abs(one - other) < 2
        return same(one, other)

    patch.setattr(versions_module, "same_value", about)


@breaks
def constraints_that_nobody_looks_at(patch: pytest.MonkeyPatch) -> None:
    init = CloserMachine.__init__

    def changed(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self._requires = False

    patch.setattr(CloserMachine, "__init__", changed)


@breaks
def what_is_held_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    """Of one place, what came last goes ahead of what waits there."""
    patch.setattr("emberflow.engine.worker.regions._order_of", lambda entry: (entry[0], -entry[1]))


@breaks
def what_goes_beyond_a_slice_overtakes(patch: pytest.MonkeyPatch) -> None:
    """It goes ahead of what waits there for a later slice, such as the item that it takes back."""
    patch.setattr(budget_module, "_REPLAYS_MAX", 3)
    patch.setattr(regions_module, "_SLICE_FIRST", 3)
    patch.setattr(regions_module, "_CHUNK", 2)
    numbers = count(-1, -1)

    def within(
        self: Cycle, node: int, items: list[FlatItem], limit: Moment, later: list[QueuedItem]
    ) -> list[FlatItem]:
        behind = (limit[0], limit[1] + 1)
        later += [(item[0], next(numbers), node, item) for item in items if item[0] >= behind]
        return [item for item in items if item[0] < behind]

    patch.setattr(Cycle, "_within", within)


@breaks
def what_goes_beyond_a_slice_runs_with_it(patch: pytest.MonkeyPatch) -> None:
    """A tombstone, say, ahead of the item that waits for a later slice."""
    patch.setattr(budget_module, "_REPLAYS_MAX", 3)
    patch.setattr(regions_module, "_SLICE_FIRST", 3)
    patch.setattr(regions_module, "_CHUNK", 2)
    patch.setattr(Cycle, "_within", lambda self, node, items, limit, later: items)


@breaks
def what_passes_in_a_region_is_turned_round(patch: pytest.MonkeyPatch) -> None:
    """Images of one batch are filed the last one first: an item ahead of the tombstone before it."""
    sender = Dataflow.sender

    def changed(self: Dataflow, region: Any, passing: Any, file: Send) -> Send:
        return sender(self, region, passing, lambda node, items: file(node, items[::-1]))

    patch.setattr(Dataflow, "sender", changed)


@breaks
def frames_that_come_with_progress_are_only_acked(patch: pytest.MonkeyPatch) -> None:
    progress = Worker.progress

    def changed(self: Worker, heard: Progress, frames: Sequence[Frame] = ()) -> Effects:
        self._outbox.finish(frames)
        return progress(self, heard)

    patch.setattr(Worker, "progress", changed)


# --- What is decided, and on what ------------------------------------------------------------------


@breaks
def a_turn_for_every_access(patch: pytest.MonkeyPatch) -> None:
    """An abort may be for an access whose turn it was before the vote's."""
    patch.setattr(turns_module, "_of_access", turns_module._of_place)
    patch.setattr(budget_module, "_REPLAYS_MAX", 0)
    patch.setattr(budget_module, "_REPLAYS_OF_ONE_TIME_MAX", 0)


@breaks
def what_follows_from_a_turn_has_none(patch: pytest.MonkeyPatch) -> None:
    """Who has budget left acks by global times, whatever came by turns."""
    deliver, progress = Worker.deliver, Worker.progress

    def cleared(frames: Sequence[Frame]) -> list[Frame]:
        return [
            frame if frame.least is None else frame._replace(least=frame.least[:2])
            for frame in frames
        ]

    def acked_as_sent(frames: Sequence[Frame], effects: Effects) -> Effects:
        for frame in frames:
            if frame.least is not None:
                for least in (frame.least[:2], frame.least):
                    effects.ack.anywhere[least] = effects.ack.anywhere.get(least, 0) ^ frame.id
        return effects

    def delivered(self: Worker, frames: Sequence[Frame]) -> Effects:
        return acked_as_sent(frames, deliver(self, cleared(frames)))

    def progressed(self: Worker, heard: Progress, frames: Sequence[Frame] = ()) -> Effects:
        return acked_as_sent(frames, progress(self, heard, cleared(frames)))

    patch.setattr(Worker, "deliver", delivered)
    patch.setattr(Worker, "progress", progressed)


@breaks
def a_constraint_decided_on_a_stale_value(patch: pytest.MonkeyPatch) -> None:
    """The closer keeps the value that a version first told, whatever it tells later."""
    failed = CloserMachine._failed
    first: dict[Any, Any] = {}

    def stale(self: Any, record: Ballot) -> Any:
        votes = record.votes
        record.votes = {
            where: (*vote[:3], first.setdefault((id(self), where, vote[:2]), vote[3]))
            for where, vote in votes.items()
        }
        try:
            return failed(self, record)
        finally:
            record.votes = votes

    patch.setattr(CloserMachine, "_failed", stale)


@breaks
def a_check_decided_on_a_stale_value(patch: pytest.MonkeyPatch) -> None:
    """A replay gives a version another value, and does not look at its check again."""
    put_right = AccessMachine._put_right

    def stale(self: Any, old: Any, new: Any, key: Any, *rest: Any) -> None:
        if isinstance(old[7], str | None) and isinstance(new[7], str | None):
            new = (*new[:7], old[7])
            bucket = self.buckets[key]
            bucket.entries[[entry[:2] for entry in bucket.entries].index(new[:2])] = new
        put_right(self, old, new, key, *rest)

    patch.setattr(AccessMachine, "_put_right", stale)


@breaks
def the_check_that_failed_last_is_told(patch: pytest.MonkeyPatch) -> None:
    failed = CloserMachine._failed

    def last(self: Any, record: Ballot) -> Any:
        votes = record.votes
        noes = [where for where, vote in votes.items() if vote[2] is not None]
        if not noes:
            return failed(self, record)
        record.votes = {where: vote for where, vote in votes.items() if where == max(noes)}
        try:
            return failed(self, record)
        finally:
            record.votes = votes

    patch.setattr(CloserMachine, "_failed", last)


@breaks
def a_commit_that_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    changed_output(
        patch,
        CloserMachine,
        lambda output: [item for item in output if not (item[1] & 1 and item[0][-1] == COMMITTED)],
    )


@breaks
def a_result_that_outlives_its_check(patch: pytest.MonkeyPatch) -> None:
    """What went on from an access stays, though the access fails by now."""

    def change(output: list[FlatItem]) -> list[FlatItem]:
        again = {item[0] for item in output if not item[1] & 1}
        return [
            item
            for item in output
            if not (item[1] & 1 and item[0][-1] == RESULT and len(item[2]) == 2) or item[0] in again
        ]

    changed_output(patch, AccessMachine, change)


# --- Who belongs to a transaction, and who hears of it ---------------------------------------------


@breaks
def an_abort_for_one_voter_only(patch: pytest.MonkeyPatch) -> None:
    """One of those that voted yes is told, and the others believe in a commit."""
    due_now = CloserMachine._due_now

    def changed(self: Any, record: Ballot) -> Any:
        due = due_now(self, record)
        aborts = sorted(
            where for where, payload in due.items() if is_abort((where[1], where[2], payload))
        )
        return {where: payload for where, payload in due.items() if where not in aborts[1:]}

    patch.setattr(CloserMachine, "_due_now", changed)


def with_identities(patch: pytest.MonkeyPatch, length_of: Callable[[int, int], int]) -> None:
    """Accesses whose transaction is another one: the length of its identity is changed."""
    process_of = program_module.access_process

    def changed(graph: Any, node: Any) -> Any:
        process = process_of(graph, node)

        def access(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            (output,) = process(items, failed)
            return [
                [
                    (place, mark, (*payload[:2], length_of(len(place), payload[2]), payload[3]))
                    for place, mark, payload in output
                ]
            ]

        return access

    patch.setattr(program_module, "access_process", changed)


@breaks
def accesses_that_do_not_see_each_other(patch: pytest.MonkeyPatch) -> None:
    """Each is a transaction of its own."""
    with_identities(patch, lambda whole, length: whole)


@breaks
def transactions_of_one_element_taken_for_one(patch: pytest.MonkeyPatch) -> None:
    """By global time, and not by place."""
    with_identities(patch, lambda whole, length: 2)


# --- What is final ---------------------------------------------------------------------------------


def later(moment: Moment) -> Moment:
    return moment if moment == AFTER_ALL else (moment[0] + 1, moment[1])


@breaks
def a_decision_that_is_final_too_soon(patch: pytest.MonkeyPatch) -> None:
    """The closer forgets a transaction at the minimal time, and not only those below it."""
    trim = CloserMachine.trim
    patch.setattr(
        CloserMachine, "trim", lambda self, minimal, most=None: trim(self, later(minimal), most)
    )


@breaks
def versions_that_are_final_too_soon(patch: pytest.MonkeyPatch) -> None:
    trim_one = AccessMachine.trim_one
    patch.setattr(
        AccessMachine,
        "trim_one",
        lambda self, bucket, minimal: trim_one(self, bucket, later(minimal)),
    )


# --- Cuts ------------------------------------------------------------------------------------------


def with_rows(patch: pytest.MonkeyPatch, rows_of: Callable[..., Any]) -> None:
    """Cuts are made of these rows, bucket by bucket, as those of other machines are."""
    patch.setattr(AccessMachine, "rows_of", rows_of)
    patch.setattr(AccessMachine, "_captured", Trimmed._captured)


@breaks_cuts
def a_cut_that_saves_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    rows_of = AccessMachine.rows_of

    def changed(self: Any, bucket: StateBucket, moment: Moment, since: Moment) -> Any:
        aborts, bucket.aborts = bucket.aborts, {}
        try:
            return rows_of(self, bucket, moment, since)
        finally:
            bucket.aborts = aborts

    with_rows(patch, changed)


@breaks_cuts
def a_cut_that_saves_what_is_still_to_come(patch: pytest.MonkeyPatch) -> None:
    """The last version that is there, and not the last one below the cut."""
    rows_of = AccessMachine.rows_of
    with_rows(patch, lambda self, bucket, moment, since: rows_of(self, bucket, AFTER_ALL, since))


@breaks_cuts
def a_cut_without_keys_that_speculation_goes_on_with(patch: pytest.MonkeyPatch) -> None:
    """A key that has accesses above the cut is left out of it."""
    rows_of = AccessMachine.rows_of

    def changed(self: Any, bucket: StateBucket, moment: Moment, since: Moment) -> Any:
        return [] if self.goes_on(bucket, moment) else rows_of(self, bucket, moment, since)

    with_rows(patch, changed)


@breaks_cuts
def restored_values_that_count_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """What was restored is there, but the next access begins with the default."""
    restore = AccessMachine.restore

    def changed(self: Any, moment: Moment, rows: Any) -> None:
        restore(self, moment, rows)
        for bucket in self.buckets.values():
            bucket.value = self._default

    patch.setattr(AccessMachine, "restore", changed)
