"""Ways to break accounts, each of which the simulation has to notice (`engine.progress.accounts`)."""

from __future__ import annotations

import pytest

from emberflow.engine.messages import (
    AFTER_ALL,
    Ack,
    Dealt,
    Frame,
    Progress,
)
from emberflow.engine.progress import accounts as accounts_module
from emberflow.engine.progress.accounts import Account, Accounts
from emberflow.engine.progress.receipts import CountedReceipts
from emberflow.engine.worker.outbox import Outbox
from tests.simulation.hunt import Breaks

breaks = Breaks()


@breaks
def statements_are_taken_as_they_come(patch: pytest.MonkeyPatch) -> None:
    """Although what they follow from may not have come."""
    patch.setattr(accounts_module, "_follows", lambda statement, numbers: True)


@breaks
def a_frame_is_dealt_with_before_what_came_of_it_is_entered(patch: pytest.MonkeyPatch) -> None:
    """Its sender is told the number of the ack before."""
    receive = Account.receive

    def changed(self: Account, ack: Ack) -> list[tuple[int, Dealt]]:
        return [
            (sender, dealt._replace(number=dealt.number - 1))
            for sender, dealt in receive(self, ack)
        ]

    patch.setattr(Account, "receive", changed)


@breaks
def a_worker_forgets_what_it_has_heard(patch: pytest.MonkeyPatch) -> None:
    hear = Account.hear
    patch.setattr(Account, "hear", lambda self, dealt: hear(self, dealt._replace(number=0)))


@breaks
def nobody_tells_the_sender(patch: pytest.MonkeyPatch) -> None:
    receive = Account.receive

    def changed(self: Account, ack: Ack) -> list[tuple[int, Dealt]]:
        return receive(self, ack)[1:]

    patch.setattr(Account, "receive", changed)


@breaks
def only_what_a_worker_sends_is_stated(patch: pytest.MonkeyPatch) -> None:
    """Nothing new if it has only dealt with frames of others, who may wait for the number of that ack."""
    receive = Account.receive

    def changed(self: Account, ack: Ack) -> list[tuple[int, Dealt]]:
        told = receive(self, ack)
        self._known_elsewhere = 0
        return told

    patch.setattr(Account, "receive", changed)


@breaks
def what_is_held_is_in_no_account(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "hold", lambda self, frame: None)


@breaks
def the_last_frame_for_a_barrier_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    counted = Outbox._counted

    def changed(self: Outbox, frames: list[tuple[int, Frame]]) -> dict[int, int]:
        return {to: count - 1 for to, count in counted(self, frames).items()}

    patch.setattr(Outbox, "_counted", changed)


@breaks
def frames_from_anybody_count(patch: pytest.MonkeyPatch) -> None:
    """A barrier waits for so many frames, whoever has sent them."""

    def look(self: CountedReceipts) -> None:
        self.least = self._otherwise
        if self._awaited is not None and sum(self._came.values()) >= max(self._awaited.values()):
            self.least = AFTER_ALL

    patch.setattr(CountedReceipts, "_look", look)


@breaks
def barriers_wait_for_nothing_of_their_own(patch: pytest.MonkeyPatch) -> None:
    def progress(self: CountedReceipts, progress: Progress) -> None:
        self.least = AFTER_ALL

    patch.setattr(CountedReceipts, "progress", progress)
    patch.setattr(CountedReceipts, "came", lambda self, frames: None)


@breaks
def the_least_of_one_account_is_missing(patch: pytest.MonkeyPatch) -> None:
    least_times = Accounts._least_times

    def changed(self: Accounts) -> accounts_module.LeastTimes:
        taken = self._taken
        self._taken = taken[:-1] if len(taken) > 1 else taken
        try:
            return least_times(self)
        finally:
            self._taken = taken

    patch.setattr(Accounts, "_least_times", changed)
