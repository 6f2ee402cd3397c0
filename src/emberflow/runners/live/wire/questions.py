"""Transport of questions: from the user's threads, through the coordinator, to the workers and back.

A thread that asks never touches a socket. It puts its question into a list and wakes the coordinator's
thread, which puts the answers into the queue of the question's `Ticket`.
`engine.queries.coordinator` decides which messages to send, to which workers, and when; this module
adds what it does not know: threads, clocks and bytes.

Bounds: the number of open questions is limited (`engine.queries.coordinator`). A ticket's queue holds
at most one page per worker, since the next one is requested only when that was taken. A question is
closed at its deadline, even if the thread that asked is gone.

Requests and answers travel as bytes inside of the messages. So the coordinator's thread never unpickles
them, and a key or a value of a class that a script defines does not change how other messages are
encoded (see `Wire.encode`).
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cloudpickle

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
from emberflow.engine.queries.coordinator import QUESTIONS_MAX, Outgoing, ReadCoordinator
from emberflow.engine.queries.worker import StateReader, shortened_text
from emberflow.runners.live.wire.bell import Bell
from emberflow.values.owners import Owners, equal_owners

#: How often the coordinator looks for questions past their deadline.
_LOOK_SECONDS = 0.2
#: The number of keys that scans visit in one round of a worker's loop.
_KEYS_A_ROUND = 1_000


class Lost(NamedTuple):
    """Instead of an answer: the life of the workers that were asked is over."""


class ReadRequest(NamedTuple):
    """A question for the coordinator, with the part for each worker in bytes."""

    asks: Mapping[int, bytes]
    at: Moment | None
    floor: Moment
    ordered: bool
    holds: bool
    #: By the monotonic clock.
    deadline: float


class Ticket:
    """A question that the coordinator has. ``events`` gets the answers.

    The answers to a read of keys come all at once, when the last worker has answered: the thread that
    asked could do nothing with a part of them, and would be woken for each.
    """

    def __init__(self, number: int, request: ReadRequest) -> None:
        self.number = number
        self.request = request
        self.events: queue.SimpleQueue[ReadBegan | ReadRefused | ReadPage | Lost] = (
            queue.SimpleQueue()
        )
        #: The number of workers that have more to answer; None until they were asked.
        self.unanswered: int | None = None
        self._waiting: list[ReadBegan | ReadPage] = []

    def hear(self, event: ReadBegan | ReadRefused | ReadPage | Lost) -> None:
        """For the coordinator's thread."""
        if isinstance(event, ReadBegan):
            self.unanswered = event.workers
        elif isinstance(event, ReadPage) and not event.more:
            assert self.unanswered is not None
            self.unanswered -= 1
        if self.request.holds or isinstance(event, ReadRefused | Lost):
            self.events.put(event)
            return
        self._waiting.append(event)
        if self.unanswered == 0:
            for each in self._waiting:
                self.events.put(each)


class Questions:
    """The questions of one life. Any thread asks, the coordinator's thread handles them."""

    def __init__(
        self,
        workers: int,
        *,
        since: Moment = BEFORE_ALL,
        history: int = 0,
        owners: Owners | None = None,
    ) -> None:
        #: By which each part of a question is for one of the workers of this life.
        self.owners = equal_owners(workers) if owners is None else owners
        self._asking = ReadCoordinator(workers, since=since, history=history)
        self._lock = threading.Lock()
        self._closed = False
        self._number = 0
        self._orders: list[Callable[[], list[Outgoing]]] = []
        self._tickets: dict[int, Ticket] = {}
        self._looked_at = 0.0
        #: Rung for each new order.
        self.bell = Bell()

    # For any thread.

    @property
    def range(self) -> tuple[Moment, Moment]:
        return self._asking.range

    def ask(self, request: ReadRequest) -> Ticket:
        with self._lock:
            self._number += 1
            ticket = Ticket(self._number, request)
            if self._closed:
                ticket.hear(Lost())
                return ticket
            if len(self._tickets) >= QUESTIONS_MAX:
                problem = f"{QUESTIONS_MAX:,} questions are open already"
                ticket.hear(ReadRefused(ticket.number, problem, self.range))
                return ticket
            self._tickets[ticket.number] = ticket
        self._order(lambda: self._begun(ticket))
        return ticket

    def more(self, ticket: Ticket, worker: int) -> None:
        """The reader has taken the page of this worker, which may make the next one."""
        self._order(lambda: self._asking.more(ticket.number, worker))

    def done(self, ticket: Ticket) -> None:
        """The question is answered, or never will be."""
        self._forget(ticket.number)

    def close(self, ticket: Ticket) -> None:
        """Cancel the rest of a question."""
        self._order(lambda: self._closed_now(ticket.number))

    def _order(self, order: Callable[[], list[Outgoing]]) -> None:
        with self._lock:
            if self._closed:
                return
            self._orders.append(order)
            self.bell.ring()

    # For the coordinator's thread.

    def taken(self) -> list[tuple[int, Any]]:
        """Handle new orders and questions past their deadline. Returns messages for workers."""
        outgoing: list[Outgoing] = []
        if self._orders:
            with self._lock:
                orders, self._orders = self._orders, []
            for order in orders:
                outgoing += order()
        now = time.monotonic()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            late = [each for each in self._tickets.values() if each.request.deadline < now]
            for ticket in late:
                outgoing += self._closed_now(ticket.number)
        return self._routed(outgoing)

    def kept_at(self, progress: Progress) -> Moment:
        return self._asking.kept_at(progress.of_all())

    def told(self, progress: Progress, kept: Moment) -> list[tuple[int, Any]]:
        """The coordinator has just sent this progress to the workers. Returns messages for them."""
        return self._routed(self._asking.told(progress.of_all(), kept))

    def heard(self, answers: list[ReadPage | FrontsReply]) -> list[tuple[int, Any]]:
        """Handle the answers of a worker. Returns messages for workers."""
        outgoing: list[Outgoing] = []
        for answer in answers:
            if isinstance(answer, ReadPage):
                outgoing += self._asking.page(answer)
            else:
                outgoing += self._asking.marked(answer)
        return self._routed(outgoing)

    def end(self) -> None:
        """This life is over: open questions get `Lost`."""
        with self._lock:
            self._closed = True
            self._orders = []
            tickets, self._tickets = list(self._tickets.values()), {}
        for ticket in tickets:
            ticket.hear(Lost())
        self.bell.close()

    def _begun(self, ticket: Ticket) -> list[Outgoing]:
        request = ticket.request
        return self._asking.begin(
            ticket.number,
            request.asks,
            at=request.at,
            floor=request.floor,
            ordered=request.ordered,
            holds=request.holds,
        )

    def _closed_now(self, number: int) -> list[Outgoing]:
        self._forget(number)
        return self._asking.close(number)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._tickets.pop(number, None)

    def _routed(self, outgoing: list[Outgoing]) -> list[tuple[int, Any]]:
        """The messages for workers. Those for threads that asked go to the queues of their tickets."""
        to_workers: list[tuple[int, Any]] = []
        for worker, message in outgoing:
            if worker is not None:
                to_workers.append((worker, message))
                continue
            ticket = self._tickets.get(message.number)
            if ticket is not None:
                ticket.hear(message)
                if isinstance(message, ReadRefused):
                    self._forget(message.number)
        return to_workers


class Answering:
    """The worker's side: it receives questions in bytes and sends pages in bytes."""

    def __init__(self, worker: int, reading: StateReader, reached: Callable[[], Moment]) -> None:
        self._worker = worker
        self._reading = reading
        self._reached = reached
        self._answers: list[ReadPage | FrontsReply] = []

    @property
    def is_busy(self) -> bool:
        return self._reading.is_busy

    def hear(self, messages: list[WorkerRead | FrontsRequest | NextPage | CancelRead]) -> None:
        """Handle messages. Keys are looked up now, before the worker handles any later progress."""
        reading = self._reading
        for message in messages:
            if isinstance(message, WorkerRead):
                try:
                    parts = pickle.loads(message.parts)
                except Exception as error:
                    problem = f"the question cannot be read: {type(error).__qualname__}: {error}"
                    self._answer(ReadPage(self._worker, message.number, [], False, problem))
                    continue
                self._answer(reading.ask(message._replace(parts=parts)))
            elif isinstance(message, NextPage):
                reading.more(message.number)
            elif isinstance(message, CancelRead):
                reading.close(message.number)
            else:
                self._answers.append(FrontsReply(self._worker, message.number, self._reached()))

    def answers(self) -> list[ReadPage | FrontsReply]:
        """Continue open scans for a round, and return all answers."""
        if self._reading.is_busy:
            self._answer(self._reading.go_on(_KEYS_A_ROUND))
        answers, self._answers = self._answers, []
        return answers

    def _answer(self, page: ReadPage | None) -> None:
        if page is None:
            return
        try:
            rows = packed(page.rows)
        except Exception as error:
            self._reading.close(page.number)
            problem = f"a value cannot be sent: {type(error).__qualname__}: {error}"
            page = ReadPage(self._worker, page.number, [], False, shortened_text(problem))
            rows = packed([])
        self._answers.append(page._replace(rows=rows))


def packed(body: Any) -> bytes:
    """Pickled by name if all classes can be found by name; otherwise with their classes."""
    try:
        return pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return bytes(cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL))
