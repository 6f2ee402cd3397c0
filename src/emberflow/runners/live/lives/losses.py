"""Losses: whether another life may follow one that was lost, and would get further.

What is guaranteed: **a query whose lives make no progress ends.** An element that kills the process which
handles it kills that of the next life too. So after some lives in a row that end at the same minimal time
the query ends, and its error names that time.

Some errors would happen again, so they end the query at once: those of a user's function, of a front, or of a
sink (whose operations were retried before).
"""

from __future__ import annotations

from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.files import is_unwritable
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import EmberflowError
from emberflow.fronts.protocol import FrontGrewError
from emberflow.runners.live.driver.cluster import ClusterError
from emberflow.runners.live.driver.coordinator import Coordinator, WorkersMissingError
from emberflow.runners.live.life import Settings
from emberflow.runners.live.processes.launch import JobFailedError
from emberflow.runners.live.wire.sockets import WireError
from emberflow.runners.live.worker.link import CoordinatorGoneError
from emberflow.sinks.protocol import SinkMovedError

#: The query ends when so many lives in a row are lost while the minimal time does not advance.
LIVES_WITHOUT_PROGRESS_MAX = 4
#: The query ends when so many lives in a row end because others have opened their sinks.
_MOVED_MAX = 2


class WorkerLostError(EmberflowError):
    """A worker's process has died, and another one is there for it."""


class PoisonedError(EmberflowError):
    """Several lives were lost at the same minimal time; the last loss is the ``__cause__``."""


#: Losses after which another life may succeed.
LOST = (
    JobFailedError,
    WorkerLostError,
    WorkersMissingError,
    CoordinatorGoneError,
    WireError,
    SinkMovedError,
    ClusterError,
    FrontGrewError,
    OSError,
)


class Losses:
    """The losses of a query."""

    def __init__(self) -> None:
        #: The error that ended each life before this one.
        self.errors: list[BaseException] = []
        #: Where lives in a row were lost that got no further.
        self.lost_at: list[Moment] = []

    def forbid(
        self, failure: BaseException, coordinator: Coordinator, settings: Settings
    ) -> BaseException | None:
        """The error that ends the query; None if another life may succeed, and would give the same output."""
        never_there = isinstance(failure, ClusterError | WorkersMissingError)
        if never_there and not self.errors and not coordinator.met:
            return failure  # there never were enough slots; later an executor may be replaced
        if not isinstance(failure, LOST) or isinstance(failure, FencedError):
            return failure
        moved = [isinstance(loss, SinkMovedError) for loss in [*self.errors, failure]]
        if len(moved) >= _MOVED_MAX and all(moved[-_MOVED_MAX:]):
            failure.add_note(
                f"The sinks of {_MOVED_MAX} lives in a row were opened by others, so the query has "
                f"ended: another query writes to them."
            )
            return failure
        if (
            settings.checkpoint is None
            and settings.guarantee != "at-least-once"
            and any(news.chose for news in coordinator.news.values())
        ):
            failure.add_note(
                "The query was not restarted: its fronts have assigned times of arrival, or cannot "
                "be read again, and there is no log of it. Set .option('checkpointLocation', ...)."
            )
            return failure
        if is_unwritable(failure):
            return None  # no element is to blame
        return self._poison(failure, coordinator.progress.of_all())

    def _poison(self, failure: BaseException, at: Moment) -> PoisonedError | None:
        if self.lost_at and at > max(self.lost_at):
            self.lost_at = []
        self.lost_at.append(at)
        if len(self.lost_at) < LIVES_WITHOUT_PROGRESS_MAX:
            return None
        # A life that restores right before that element is lost before it makes progress, so the
        # greatest minimal time is the one to report.
        furthest = max(self.lost_at)
        where = "before it began" if furthest == BEFORE_ALL else f"at the minimal time {furthest}"
        poisoned = PoisonedError(
            f"{len(self.lost_at)} lives in a row were lost {where}, so the query has ended. An "
            f"element there may kill the process that handles it. The last loss: {failure}"
        )
        poisoned.__cause__ = failure
        return poisoned
