"""Queries of state in a simulated run: asked at moments that the seed draws, beside all that goes on.

Whoever asks outlives every crash: a question that was not answered when the workers or the driver
died is asked again of those that come next. What it got by then is dropped.
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
from emberflow.values.shares import Shares

#: A question is asked after up to so many events.
_EVENTS_MAX = 400
#: Keys that a scan looks at between two events, at most, and how long it then pauses.
_KEYS_MAX = 4
_PAUSE_TICKS_MAX = 20


class SimulatedRead(NamedTuple):
    """A question, and how it is asked."""

    question: Question
    ordered: bool = False
    #: Whether it is asked as of some moment that is kept, or that comes soon, and not as of now.
    earlier_or_later: bool = False
    default: bool = False
    #: Whether who asks goes away after the first page.
    given_up: bool = False


class Answered(NamedTuple):
    """What came of a question: an answer as of a moment, or why there is none."""

    asked: SimulatedRead
    moment: Moment
    answer: Answer | None
    refused: ReadRefused | None
    #: What it was asked as of, if that was wished for.
    at: Moment | None
    #: What was answered before it was asked; of an ordered one, also what any front had let in.
    least: Moment


#: Sends something to a worker, behind all that the coordinator has told it.
Send = Callable[[int, Any], None]


class Asker:
    """Asks all questions of a run."""

    def __init__(self, network: Network, asked: Sequence[SimulatedRead], history: int) -> None:
        self._network = network
        self._asked = asked
        self._history = history
        self._asking: ReadCoordinator | None = None
        self._send: Send = lambda worker, message: None
        self._shares: Shares = ()
        self._number = 0
        self._floor: Moment = BEFORE_ALL
        #: How far fronts have come, seen from above: who asks could not know.
        self.reached: Callable[[], Moment] = lambda: BEFORE_ALL
        #: By the number of the question at the present coordinator.
        self._open: dict[int, _Open] = {}
        self.answered: list[Answered | None] = [None] * len(asked)

    def begin(self) -> None:
        for index in range(len(self._asked)):
            self._network.interrupt(self._network.count(_EVENTS_MAX), self._asking_of(index))

    def _asking_of(self, index: int) -> Callable[[], None]:
        def ask() -> None:
            self._ask(_Open(index, self._asked[index]))

        return ask

    # The coordinator.

    def attach(self, shares: Shares, since: Moment, send: Send) -> None:
        """There is a coordinator, of workers that have restored the cut at this moment."""
        self._asking = ReadCoordinator(max(shares) + 1, since=since, history=self._history)
        self._shares, self._send = shares, send
        again, self._open = list(self._open.values()), {}
        for question in again:
            self._ask(question)

    def detach(self) -> None:
        """The workers are lost, or the driver is."""
        self._asking = None

    def progress(self, progress: Progress, tell: Callable[[Progress], None]) -> None:
        """Tell progress, with what is to be kept, and behind it what has waited for it."""
        if self._asking is None:
            tell(progress)
            return
        minimal = progress.of_all()
        kept = self._asking.kept_at(minimal)
        tell(progress._replace(kept=kept))
        self._say(self._asking.told(minimal, kept))

    def hear(self, said: ReadPage | FrontsReply) -> None:
        if self._asking is None:
            return
        self._say(
            self._asking.page(said) if isinstance(said, ReadPage) else self._asking.marked(said)
        )

    def _say(self, said: list[Outgoing]) -> None:
        for worker, message in said:
            if worker is None:
                self._answer(message)
            else:
                self._send(worker, message)

    # Who asks.

    def _ask(self, question: _Open) -> None:
        self._number += 1
        number = self._number
        asking = self._asking
        question.rows = []
        if asking is None:
            self._open[number] = question  # until there is somebody to ask
            return
        asked = question.asked
        if asked.earlier_or_later and question.at is None:
            question.at = self._drawn(asking)
        self._open[number] = question
        question.least = max(self._floor, self.reached()) if asked.ordered else self._floor
        self._say(
            asking.begin(
                number,
                asked.question.asks(self._shares),
                at=question.at,
                floor=self._floor,
                ordered=asked.ordered,
                holds=asked.question.holds,
            )
        )

    def _drawn(self, asking: ReadCoordinator) -> Moment:
        """Some moment that is kept or a bit before, or that is still to come."""
        (first, _), (last, _) = asking.range
        least = min(max(first, -3), 200) - 2
        most = max(least, min(last, 200)) + 3
        return least - 1 + self._network.count(most - least + 1), self._network.count(4) - 2

    def _answer(self, message: ReadBegan | ReadRefused | ReadPage) -> None:
        question = self._open.get(message.number)
        if question is None:
            return
        if isinstance(message, ReadRefused):
            del self._open[message.number]
            self.answered[question.index] = Answered(
                question.asked, BEFORE_ALL, None, message, question.at, question.least
            )
            return
        if isinstance(message, ReadBegan):
            question.moment, question.unanswered = message.moment, message.workers
        else:
            if message.problem is not None:
                raise AssertionError(f"a worker could not answer: {message.problem}")
            question.rows += message.rows
            if message.more:
                self._take_page(message)
                return
            question.unanswered -= 1
        if not question.unanswered:
            self._end(message.number, question)

    def _take_page(self, page: ReadPage) -> None:
        question, asking = self._open[page.number], self._asking
        assert asking is not None
        if question.asked.given_up:
            del self._open[page.number]
            self._say(asking.close(page.number))
            return

        def more() -> None:
            if self._asking is asking:
                self._say(asking.more(page.number, page.worker))

        self._network.later(self._network.ticks(_PAUSE_TICKS_MAX), more)

    def _end(self, number: int, question: _Open) -> None:
        del self._open[number]
        self._floor = max(self._floor, question.moment)
        asked = question.asked
        answer = asked.question.assembled(question.rows, question.moment, default=asked.default)
        self.answered[question.index] = Answered(
            asked, question.moment, answer, None, question.at, question.least
        )

    @property
    def unanswered(self) -> int:
        return len(self._open)


class _Open:
    """A question under way."""

    def __init__(self, index: int, asked: SimulatedRead) -> None:
        self.index = index
        self.asked = asked
        self.at: Moment | None = None
        self.least: Moment = BEFORE_ALL
        self.moment: Moment = BEFORE_ALL
        self.unanswered = 0
        self.rows: list[tuple[int, Any, Any]] = []


class ReadingHost:
    """What a worker does about questions, beside its work."""

    def __init__(
        self,
        network: Network,
        worker: Worker,
        *,
        reached: Callable[[], Moment],
        tell: Callable[[ReadPage | FrontsReply], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._network = network
        self._worker = worker
        self._reached = reached
        self._tell = tell
        self._later = later
        self._going_on = False

    def hear(self, message: WorkerRead | FrontsRequest | NextPage | CancelRead) -> None:
        reading = self._worker.reading
        if isinstance(message, FrontsRequest):
            self._tell(FrontsReply(self._worker.index, message.number, self._reached()))
        elif isinstance(message, WorkerRead):
            page = reading.ask(message)
            if page is not None:
                self._tell(page)
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
            self._tell(page)
        self._go_on_later()
