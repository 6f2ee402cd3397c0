"""What takes over: a version, or another owner table, that is to go on where the present life ends."""

from __future__ import annotations

import threading

from emberflow.engine.messages import Moment
from emberflow.engine.staffing import Staffing
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.life import Settings
from emberflow.runners.live.processes.jobs import Job
from emberflow.runners.live.processes.member import Seat
from emberflow.runners.live.wire.plan import Plan


class Successor:
    """A version, or another number of workers, that is to take over, and what has become of it."""

    def __init__(
        self,
        settings: Settings,
        before: Settings,
        at: Moment | None,
        *,
        staffing: Staffing | None = None,
    ) -> None:
        """``staffing`` is given if only the owners change, and perhaps the workers."""
        self.settings = settings
        self.staffing = staffing
        self.before = before
        #: The moment at which it takes over; None for as soon as possible.
        self.at = at
        self.over = threading.Event()
        self.failure: BaseException | None = None
        #: How many lives of the new version were lost before it ran.
        self.lost = 0
        #: Whether one of them was lost when the checkpoint said already that it has taken over.
        self.is_noted = False
        #: The plan of the life that takes over in place, and its coordinator.
        self.life: tuple[Plan, Coordinator] | None = None
        #: Where the workers of that life are.
        self.seats: tuple[Seat, ...] = ()
        #: The coordinator that was asked last to hand over; and the job of the workers that are added.
        self.asked: Coordinator | None = None
        self.job: Job | None = None
        #: Whether all workers have made its loops.
        self.is_prepared = False

    @property
    def is_rescale(self) -> bool:
        """Whether only the owners change, and perhaps the workers."""
        return self.staffing is not None

    @property
    def kind(self) -> str:
        return "number of workers" if self.is_rescale else "version"

    @property
    def told(self) -> str:
        """What takes over, if only the owners change."""
        before, settings, staffing = self.before, self.settings, self.staffing
        if settings.workers != before.workers:
            return f"{before.workers} to {settings.workers} workers"
        if staffing is not None and staffing.added:
            return f"others in place of workers {', '.join(map(str, staffing.added))}"
        return f"{settings.owners.moved(before.owners)} slices"

    def waits_for(self, coordinator: Coordinator) -> bool:
        """Whether this one is to take over in place, and has not been given up."""
        return self.life is not None and self.life[1] is coordinator

    def end(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.over.set()
