"""Claims: how a life begins, from the last cut that counts.

What is guaranteed: **of two lives only one counts.** Each life has the next number (an incarnation), claimed in
the checkpoint in one step; the claim is refused if another driver has claimed one since. Without a checkpoint
nobody claims anything, and numbers are those of this driver alone.

A disk that takes no writes (it is full, or read-only) loses no query: the next life begins when the disk takes
them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from emberflow.checkpoint.cuts.backfills import known_cut
from emberflow.checkpoint.cuts.manifest import fitted
from emberflow.checkpoint.cuts.store import CheckpointStore, Life
from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.files import is_unwritable
from emberflow.errors import EmberflowError
from emberflow.fronts.protocol import FrontGrewError, front_contract
from emberflow.graph.versions import CarryPlan
from emberflow.runners.live.driver.coordinator import Coordinator, Inheritance
from emberflow.runners.live.driver.cuts import CutCommitter
from emberflow.runners.live.driver.takeover import check_fronts, check_not_ahead
from emberflow.runners.live.life import Settings, committer_of, coordinator_of, plan_of
from emberflow.runners.live.lives.current import Current
from emberflow.runners.live.lives.losses import Losses
from emberflow.runners.live.wire.sockets import WireKeys

#: The pause before the next life, or the next attempt at it, while the disk takes no writes.
UNWRITABLE_SECONDS = 2.0


class Claims:
    """Begins the lives of a query."""

    def __init__(
        self,
        current: Current,
        keys: WireKeys,
        losses: Losses,
        running: Callable[[], None],
    ) -> None:
        """``running`` is called when the workers of a life are told to begin."""
        self._current = current
        self._keys = keys
        self._losses = losses
        self._running = running

    def begin_when_writable(self) -> None:
        """Begin the next life, as soon as the disk takes its claim."""
        while True:
            try:
                return self.begin()
            except OSError as error:
                stop_requested = self._current.stop_requested
                if not is_unwritable(error) or stop_requested.is_set():
                    raise
                self._current.tell(
                    logging.WARNING, "lost", f"the next life waits for the disk: {error}"
                )
                stop_requested.wait(UNWRITABLE_SECONDS)

    def begin(self) -> None:
        """Make the next life the current one, ready to start."""
        current = self._current
        settings = current.settings
        life, carried = self._claimed(settings)
        current.number = life.incarnation
        if self._losses.errors and isinstance(self._losses.errors[-1], FrontGrewError):
            # Not after other losses: the source may be down, and has no new partitions.
            for front in settings.fronts.values():
                front_contract(front).look_again()
        committer = committer_of(settings, life)
        coordinator = coordinator_of(
            settings,
            life,
            carried,
            self._keys,
            committer=committer,
            running=self._running,
            log=current.log,
        )
        current.plan = plan_of(settings, life, carried, self._keys, coordinator)
        current.coordinator = coordinator

    def _claimed(self, settings: Settings) -> tuple[Life, CarryPlan | None]:
        """The next incarnation; and if its cut is of an earlier version, what becomes of the state."""
        current = self._current
        if settings.checkpoint is None:
            return Life(current.number + 1, None), None
        store = CheckpointStore(settings.checkpoint)
        carried: CarryPlan | None = None

        def fitting(store: CheckpointStore) -> Any:
            nonlocal carried
            cut = store.latest()
            if cut is not None:
                carried = fitted(
                    cut,
                    settings.graph,
                    carry=settings.carry,
                    ordering=settings.ordering,
                    is_new=current.takes_version(settings),
                    look=known_cut,
                )
                if carried is not None and cut.successor is None:
                    check_fronts(cut, settings.graph)
                    if not current.number:  # a life of this driver has stored all, or nothing ended
                        check_not_ahead(cut, settings.graph, settings.sinks, settings.on_error)
                    told = "\n".join(
                        [f"a new version takes over from cut {cut.number}", *carried.lines()]
                    )
                    current.tell(logging.WARNING, "upgraded", told)
            return cut

        return store.begin(fitting, after=current.number or settings.follows), carried

    def claimed_for(self, inheritance: Inheritance, old: Coordinator) -> CutCommitter:
        """Claim the current life for one that takes over in place. It goes on from the last cut that counts; and
        from a cut that is held, as soon as it is committed."""
        current = self._current
        settings, plan = current.settings, current.plan
        assert settings.checkpoint is not None
        assert old.committer is not None
        store = CheckpointStore(settings.checkpoint)
        before = old.committer.last
        life = store.begin(lambda store: before, after=current.number)
        current.number = life.incarnation
        if life.incarnation != plan.incarnation:
            raise EmberflowError(f"life {life.incarnation} is not the one that was prepared")
        cut = inheritance.cut
        store.check_whole(cut, old.committer.known_whole)
        told = [f"{plan.workers} workers take over from cut {cut.number}"]
        if plan.carried is not None:
            told = [f"a new version takes over from cut {cut.number}", *plan.carried.lines()]
        current.tell_later(logging.WARNING, "upgraded", "\n".join(told))
        committer = committer_of(
            settings, life._replace(restored=cut), counts=inheritance.held is None
        )
        assert committer is not None
        return committer

    def is_noted(self) -> bool:
        """Whether the current life has committed anything. If its version is new, the first of it is the note
        that it has taken over.

        Its number is that of the plan: a life that is lost before it is claimed has not become the newest.
        """
        checkpoint, incarnation = self._current.settings.checkpoint, self._current.plan.incarnation
        assert checkpoint is not None
        cuts = CheckpointStore(checkpoint).cuts()
        return any(cut.incarnation == incarnation for cut in cuts)

    def taken_over(self, failure: BaseException | None = None) -> BaseException | None:
        """The error that names the driver that has claimed the checkpoint since; else ``failure``."""
        current = self._current
        if current.settings.checkpoint is None:
            return failure
        try:
            CheckpointStore(current.settings.checkpoint).check_incarnation(current.number)
        except FencedError as fenced:
            fenced.__cause__ = failure
            return fenced
        except OSError as error:  # a claim will find out
            current.tell(logging.WARNING, "lost", f"the checkpoint cannot be looked at: {error}")
        return failure
