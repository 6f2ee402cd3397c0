"""What runs now: the one place that says so, for all who act on the lives of a query.

Only the thread of the supervisor changes the settings, the plan and the coordinator, between two lives. Others
look at them at any time, and may see the life before for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from emberflow.runners.live.driver.chronicle import Chronicle, EventKind
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.life import Settings
from emberflow.runners.live.lives.successor import Successor
from emberflow.runners.live.processes.member import Seat
from emberflow.runners.live.wire.plan import Plan


class Current:
    """The life that runs, and whether the query is to go on."""

    def __init__(self, settings: Settings, log: QueryLog) -> None:
        self.settings = settings
        self.plan: Plan
        self.coordinator: Coordinator
        #: Where its workers are: the seats of their processes.
        self.seats: tuple[Seat, ...] = ()
        #: The number of the life that was claimed last.
        self.number = 0
        #: The workers whose executors Spark decommissions, while they are there.
        self.leaving: tuple[int, ...] = ()
        self.log = log
        self.chronicle = Chronicle()
        self.stop_requested = threading.Event()
        self.over = threading.Event()
        #: Held by who says what is to run next, or beside.
        self.changing = threading.Lock()
        #: What the query goes over to, until that runs or has failed.
        self.successor: Successor | None = None
        #: The error that ends the query, or has.
        self.failure: BaseException | None = None

    def note(self, event: EventKind, told: str = "") -> None:
        self.chronicle.note(event, self.number, told)

    def tell(self, level: int, event: str, message: str) -> None:
        self.log.event(level, event, self.number, message)

    def tell_later(self, level: int, event: str, message: str) -> None:
        self.log.event_later(level, event, self.number, message)

    def working(self, seats: Collection[Seat]) -> list[Coordinator]:
        """The coordinators that have a worker at one of these seats: two, while another one takes over."""
        found = [] if set(self.seats).isdisjoint(seats) else [self.coordinator]
        successor = self.successor
        if successor is not None and not set(successor.seats).isdisjoint(seats):
            life = successor.life  # before it becomes the current one
            found += [] if life is None else [life[1]]
        return found

    def takes_version(self, settings: Settings) -> bool:
        """Whether the version of these settings is about to take over."""
        successor = self.successor
        return successor is not None and settings is successor.settings and not successor.is_rescale
