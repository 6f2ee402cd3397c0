"""Reads of state in a simulated run, asked at moments drawn from the seed while the run goes on.

The asker survives every crash. When the workers or the driver die, it drops the rows of every
unanswered read and asks the next incarnation again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from emberflow.engine.messages import (
    BEFORE_ALL,
    CancelRead,
    FrontsReply,
    FrontsRequest,
    Moment,
    NextPage,
    Progress,
    ReadBegan,
    ReadPage,
    ReadRefused,
    WorkerRead,
)
from emberflow.engine.queries.coordinator import Outgoing, ReadCoordinator
from emberflow.engine.worker.worker import Worker
from emberflow.runners.questions import Answer, Question
from emberflow.runners.simulation.network import Network
from emberflow.values.owners import Owners, equal_owners

#: A read is asked after up to this many events.
_EVENTS_MAX = 400
#: How many keys a scan visits between two events, at most, and how long it then pauses.
_KEYS_MAX = 4
_PAUSE_TICKS_MAX = 20


class SimulatedRead(NamedTuple):
    """A read, and how it is asked."""

    question: Question
    ordered: bool = False
    #: Whether to read as of a drawn moment, in the history or soon to come, instead of now.
    earlier_or_later: bool = False
    default: bool = False
    #: Whether the asker cancels the read after the first page.
    given_up: bool = False


class Answered(NamedTuple):
    """The outcome of a read: an answer as of a moment, or a refusal."""

    read: SimulatedRead
    moment: Moment
    answer: Answer | None
    refused: ReadRefused | None
    #: The moment that the read asked for, if it asked for one.
    at: Moment | None
    #: The answer must not be before this: the latest answer before the read was asked and, for an
    #: ordered read, all elements that any front had let in.
    least: Moment


#: Sends a message to a worker, behind all earlier messages of the coordinator.
Send = Callable[[int, Any], None]


class Asker:
    """The client that asks all reads of a run."""

    def __init__(self, network: Network, reads: Sequence[SimulatedRead], history: int) -> None:
        self._network = network
        self._reads = reads
        self._history = history
        self._coordinator: ReadCoordinator | None = None
        self._send: Send = lambda worker, message: None
        self._owners = equal_owners(1)
        self._number = 0
        self._floor: Moment = BEFORE_ALL
        #: How far the fronts have come. The simulation knows; a real client would not.
        self.reached: Callable[[], Moment] = lambda: BEFORE_ALL
        #: Open reads, by their number at the present coordinator.
        self._open: dict[int, _OpenRead] = {}
        self.answered: list[Answered | None] = [None] * len(reads)

    def begin(self) -> None:
        for index in range(len(self._reads)):
            self._network.interrupt(self._network.count(_EVENTS_MAX), self._asking(index))

    def _asking(self, index: int) -> Callable[[], None]:
        def ask() -> None:
            self._ask(_OpenRead(index, self._reads[index]))

        return ask

    # Called by the coordinator's side.

    def attach(self, owners: Owners, since: Moment, send: Send) -> None:
        """A coordinator has started, for workers that have restored the cut at this moment."""
        self._coordinator = ReadCoordinator(owners.workers, since=since, history=self._history)
        self._owners, self._send = owners, send
        again, self._open = list(self._open.values()), {}
        for open_read in again:
            self._ask(open_read)

    def detach(self) -> None:
        """The workers or the driver have died."""
        self._coordinator = None

    def progress(self, progress: Progress, tell: Callable[[Progress], None]) -> None:
        """Send progress to the workers, with the moment to keep, then the reads that waited for it."""
        if self._coordinator is None:
            tell(progress)
            return
        minimal = progress.of_all()
        kept = self._coordinator.kept_at(minimal)
        tell(progress._replace(kept=kept))
        self._dispatch(self._coordinator.told(minimal, kept))

    def hear(self, message: ReadPage | FrontsReply) -> None:
        if self._coordinator is None:
            return
        self._dispatch(
            self._coordinator.page(message)
            if isinstance(message, ReadPage)
            else self._coordinator.marked(message)
        )

    def _dispatch(self, messages: list[Outgoing]) -> None:
        for worker, message in messages:
            if worker is None:
                self._answer(message)
            else:
                self._send(worker, message)

    # The client's side.

    def _ask(self, open_read: _OpenRead) -> None:
        self._number += 1
        number = self._number
        coordinator = self._coordinator
        open_read.rows = []
        if coordinator is None:
            self._open[number] = open_read  # asked once there is a coordinator
            return
        read = open_read.read
        if read.earlier_or_later and open_read.at is None:
            open_read.at = self._drawn(coordinator)
        self._open[number] = open_read
        open_read.least = max(self._floor, self.reached()) if read.ordered else self._floor
        self._dispatch(
            coordinator.begin(
                number,
                read.question.asks(self._owners),
                at=open_read.at,
                floor=self._floor,
                ordered=read.ordered,
                holds=read.question.holds,
            )
        )

    def _drawn(self, coordinator: ReadCoordinator) -> Moment:
        """A moment in the history, slightly before it, or still to come."""
        (first, _), (last, _) = coordinator.range
        least = min(max(first, -3), 200) - 2
        most = max(least, min(last, 200)) + 3
        return least - 1 + self._network.count(most - least + 1), self._network.count(4) - 2

    def _answer(self, message: ReadBegan | ReadRefused | ReadPage) -> None:
        open_read = self._open.get(message.number)
        if open_read is None:
            return
        if isinstance(message, ReadRefused):
            del self._open[message.number]
            self.answered[open_read.index] = Answered(
                open_read.read, BEFORE_ALL, None, message, open_read.at, open_read.least
            )
            return
        if isinstance(message, ReadBegan):
            open_read.moment, open_read.unanswered = message.moment, message.workers
        else:
            if message.problem is not None:
                raise AssertionError(f"a worker could not answer: {message.problem}")
            open_read.rows += message.rows
            if message.more:
                self._take_page(message)
                return
            open_read.unanswered -= 1
        if not open_read.unanswered:
            self._end(message.number, open_read)

    def _take_page(self, page: ReadPage) -> None:
        open_read, coordinator = self._open[page.number], self._coordinator
        assert coordinator is not None
        if open_read.read.given_up:
            del self._open[page.number]
            self._dispatch(coordinator.close(page.number))
            return

        def more() -> None:
            if self._coordinator is coordinator:
                self._dispatch(coordinator.more(page.number, page.worker))

        self._network.later(self._network.ticks(_PAUSE_TICKS_MAX), more)

    def _end(self, number: int, open_read: _OpenRead) -> None:
        del self._open[number]
        self._floor = max(self._floor, open_read.moment)
        read = open_read.read
        answer = read.question.assembled(open_read.rows, open_read.moment, default=read.default)
        self.answered[open_read.index] = Answered(
            read, open_read.moment, answer, None, open_read.at, open_read.least
        )

    @property
    def unanswered(self) -> int:
        return len(self._open)


class _OpenRead:
    """A read under way."""

    def __init__(self, index: int, read: SimulatedRead) -> None:
        self.index = index
        self.read = read
        self.at: Moment | None = None
        self.least: Moment = BEFORE_ALL
        self.moment: Moment = BEFORE_ALL
        self.unanswered = 0
        self.rows: list[tuple[int, Any, Any]] = []


class ReadingHost:
    """The part of a worker that answers reads, in small steps between its other work."""

    def __init__(
        self,
        network: Network,
        worker: Worker,
        *,
        reached: Callable[[], Moment],
        send: Callable[[ReadPage | FrontsReply], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._network = network
        self._worker = worker
        self._reached = reached
        self._send = send
        self._later = later
        self._going_on = False

    def hear(self, message: WorkerRead | FrontsRequest | NextPage | CancelRead) -> None:
        reading = self._worker.reading
        if isinstance(message, FrontsRequest):
            self._send(FrontsReply(self._worker.index, message.number, self._reached()))
        elif isinstance(message, WorkerRead):
            page = reading.ask(message)
            if page is not None:
                self._send(page)
        elif isinstance(message, NextPage):
            reading.more(message.number)
        else:
            reading.close(message.number)
        self._go_on_later()

    def _go_on_later(self) -> None:
        if self._worker.reading.is_busy and not self._going_on:
            self._going_on = True
            self._later(self._network.ticks(_PAUSE_TICKS_MAX), self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        page = self._worker.reading.go_on(self._network.count(_KEYS_MAX))
        if page is not None:
            self._send(page)
        self._go_on_later()
