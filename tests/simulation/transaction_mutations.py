"""Ways to break the protocol of transactions, each of which the simulation has to notice.

As in `mutations`, each is put over the real machines from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emberflow.engine import versions as versions_module
from emberflow.engine.closing import Closing, Record
from emberflow.engine.slices import Slices
from emberflow.engine.versions import Bucket, Versions
from emberflow.item import FlatItem
from emberflow.transactional import ABORT

Break = Callable[[pytest.MonkeyPatch], None]
BREAKS: list[Break] = []


def breaks(make: Break) -> Break:
    BREAKS.append(make)
    return make


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
    return isinstance(payload, tuple) and payload[1:] == (ABORT, 0, None)


def is_vote(item: FlatItem) -> bool:
    payload = item[2]
    return isinstance(payload, tuple) and len(payload) == 5


@breaks
def an_abort_that_is_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    changed_output(
        patch,
        Closing,
        lambda output: [item for item in output if not (is_abort(item) and item[1] & 1)],
    )


@breaks
def an_abort_that_is_not_sent(patch: pytest.MonkeyPatch) -> None:
    changed_output(patch, Closing, lambda output: [item for item in output if not is_abort(item)])


@breaks
def a_vote_lost_on_replay(patch: pytest.MonkeyPatch) -> None:
    """A vote that takes the place of another one is not sent, nor is the other one taken back."""

    def change(output: list[FlatItem]) -> list[FlatItem]:
        back = {item[0] for item in output if item[1] & 1 and is_vote(item)}
        return [item for item in output if not (is_vote(item) and item[0] in back)]

    changed_output(patch, Versions, change)


@breaks
def a_read_of_an_uncommitted_version(patch: pytest.MonkeyPatch) -> None:
    """Others see what an aborted transaction left."""

    class NoAborts(dict[Any, int]):
        def __contains__(self, place: object) -> bool:
            return False

    def bucket(key: Any, default: Any) -> Bucket:
        made = Bucket(key, default)
        made.aborts = NoAborts()
        return made

    patch.setattr(versions_module, "Bucket", bucket)


@breaks
def a_late_voter_that_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    """Only those that have voted when a transaction fails first are told."""
    due_now = Closing._due_now

    def changed(self: Any, record: Record) -> Any:
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

    patch.setattr(Closing, "_due_now", changed)


@breaks
def a_last_version_that_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """Trimming keeps the last version, whether or not it counts."""

    def last(self: Any, bucket: Bucket, final: int) -> Any:
        writes = [entry for entry in bucket.entries[:final] if self._uses[entry[2]].writes]
        return writes[-1] if writes else None

    patch.setattr(Versions, "_last_counting", last)


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
    init = Closing.__init__

    def changed(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._requires = False

    patch.setattr(Closing, "__init__", changed)


@breaks
def what_is_held_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    """A replay that reaches beyond a slice goes ahead of what waits there."""
    patch.setattr(Slices, "_within", lambda self, node, items, limit, later: items)
    patch.setattr("emberflow.engine.slices._SLICE_FIRST", 2)
    patch.setattr("emberflow.engine.slices._SLICE_MAX", 4)
