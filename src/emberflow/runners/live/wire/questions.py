"""Questions on their way: from the threads that ask, through the coordinator, to the workers and back.

Who asks never touches a socket. A question is put into a list and the coordinator's thread is woken;
what comes of it is put into the queue of the question's `Ticket`. `engine.queries.coordinator` decides what is
said to whom, and when; here is what it does not know: threads, clocks and bytes.

Bounds: so many questions are open at a time (`engine.queries.coordinator`), a ticket's queue holds a page a worker
at most, since the next one is asked for when that was taken, and a question is closed when its time
is over, whatever became of who asked.

What is asked, and what is answered, travels as bytes inside of the messages. So the coordinator's
thread never unpickles what users ask for, nor the answers, and a key or a value of a class that a
script defines changes nothing about how everything else is sent (see `Wire.encode`).
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

#: How often it is looked for questions whose time is over.
_LOOK_SECONDS = 0.2
#: Keys that scans look at in one round of a worker's loop.
_KEYS_A_ROUND = 1_000


class Lost(NamedTuple):
    """In place of an answer: the life of the workers that was asked is over."""


class ReadRequest(NamedTuple):
    """A question as it is handed over: what is asked of each worker, in bytes."""

    asks: Mapping[int, bytes]
    at: Moment | None
    floor: Moment
    ordered: bool
    holds: bool
    #: By the monotonic clock.
    deadline: float


class Ticket:
    """A question that was handed over. What comes of it is in ``events``.

    What is about keys alone comes all at once, when the last worker has answered: who asks can do
    nothing with a part of it, and would be woken for each.
    """

    def __init__(self, number: int, asked: ReadRequest) -> None:
        self.number = number
        self.asked = asked
        self.events: queue.SimpleQueue[ReadBegan | ReadRefused | ReadPage | Lost] = (
            queue.SimpleQueue()
        )
        #: Workers that have more to answer; None until they were asked.
        self.unanswered: int | None = None
        self._waiting: list[ReadBegan | ReadPage] = []

    def hear(self, event: ReadBegan | ReadRefused | ReadPage | Lost) -> None:
        """For the coordinator's thread."""
        if isinstance(event, ReadBegan):
            self.unanswered = event.workers
        elif isinstance(event, ReadPage) and not event.more:
            assert self.unanswered is not None
            self.unanswered -= 1
        if self.asked.holds or isinstance(event, ReadRefused | Lost):
            self.events.put(event)
            return
        self._waiting.append(event)
        if self.unanswered == 0:
            for each in self._waiting:
                self.events.put(each)


class Questions:
    """The questions of one life: handed over by any thread, dealt with by the coordinator's."""

    def __init__(self, workers: int, *, since: Moment = BEFORE_ALL, history: int = 0) -> None:
        self._asking = ReadCoordinator(workers, since=since, history=history)
        self._lock = threading.Lock()
        self._closed = False
        self._number = 0
        self._orders: list[Callable[[], list[Outgoing]]] = []
        self._tickets: dict[int, Ticket] = {}
        self._looked_at = 0.0
        #: Rung when something was handed over.
        self.bell = Bell()

    # For any thread.

    @property
    def range(self) -> tuple[Moment, Moment]:
        return self._asking.range

    def ask(self, asked: ReadRequest) -> Ticket:
        with self._lock:
            self._number += 1
            ticket = Ticket(self._number, asked)
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
        """The page of this worker was taken: it may make the next one."""
        self._order(lambda: self._asking.more(ticket.number, worker))

    def done(self, ticket: Ticket) -> None:
        """All was answered, or nothing will be."""
        self._forget(ticket.number)

    def close(self, ticket: Ticket) -> None:
        """Nobody waits for the rest."""
        self._order(lambda: self._closed_now(ticket.number))

    def _order(self, order: Callable[[], list[Outgoing]]) -> None:
        with self._lock:
            if self._closed:
                return
            self._orders.append(order)
            self.bell.ring()

    # For the coordinator's thread.

    def taken(self) -> list[tuple[int, Any]]:
        """Deal with what was handed over, and with what has come to its time; what to tell whom."""
        with self._lock:
            orders, self._orders = self._orders, []
        said: list[Outgoing] = []
        for order in orders:
            said += order()
        now = time.monotonic()
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            late = [each for each in self._tickets.values() if each.asked.deadline < now]
            for ticket in late:
                said += self._closed_now(ticket.number)
        return self._routed(said)

    def kept_at(self, progress: Progress) -> Moment:
        return self._asking.kept_at(progress.of_all())

    def told(self, progress: Progress, kept: Moment) -> list[tuple[int, Any]]:
        """The workers were just told this progress."""
        return self._routed(self._asking.told(progress.of_all(), kept))

    def heard(self, answers: list[ReadPage | FrontsReply]) -> list[tuple[int, Any]]:
        """What a worker has answered."""
        said: list[Outgoing] = []
        for answer in answers:
            if isinstance(answer, ReadPage):
                said += self._asking.page(answer)
            else:
                said += self._asking.marked(answer)
        return self._routed(said)

    def end(self) -> None:
        """This life is over: nothing will be answered any more."""
        with self._lock:
            self._closed = True
            self._orders = []
            tickets, self._tickets = list(self._tickets.values()), {}
        for ticket in tickets:
            ticket.hear(Lost())
        self.bell.close()

    def _begun(self, ticket: Ticket) -> list[Outgoing]:
        asked = ticket.asked
        return self._asking.begin(
            ticket.number,
            asked.asks,
            at=asked.at,
            floor=asked.floor,
            ordered=asked.ordered,
            holds=asked.holds,
        )

    def _closed_now(self, number: int) -> list[Outgoing]:
        self._forget(number)
        return self._asking.close(number)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._tickets.pop(number, None)

    def _routed(self, said: list[Outgoing]) -> list[tuple[int, Any]]:
        """What goes to workers; what is for who asked is in the queue of the ticket already."""
        to_workers: list[tuple[int, Any]] = []
        for worker, message in said:
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
    """A worker's end: questions in bytes come in, pages in bytes go out."""

    def __init__(self, worker: int, reading: StateReader, reached: Callable[[], Moment]) -> None:
        self._worker = worker
        self._reading = reading
        self._reached = reached
        self._answers: list[ReadPage | FrontsReply] = []

    @property
    def is_busy(self) -> bool:
        return self._reading.is_busy

    def hear(self, messages: list[WorkerRead | FrontsRequest | NextPage | CancelRead]) -> None:
        """Keys are looked up now, before any progress that comes behind is heard of."""
        reading = self._reading
        for message in messages:
            if isinstance(message, WorkerRead):
                try:
                    parts = pickle.loads(message.parts)
                except Exception as error:
                    told = f"the question cannot be read: {type(error).__qualname__}: {error}"
                    self._answer(ReadPage(self._worker, message.number, [], False, told))
                    continue
                self._answer(reading.ask(message._replace(parts=parts)))
            elif isinstance(message, NextPage):
                reading.more(message.number)
            elif isinstance(message, CancelRead):
                reading.close(message.number)
            else:
                self._answers.append(FrontsReply(self._worker, message.number, self._reached()))

    def answers(self) -> list[ReadPage | FrontsReply]:
        """What there is to tell, after a bit more of the scans under way."""
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
            told = f"a value cannot be sent: {type(error).__qualname__}: {error}"
            page = ReadPage(self._worker, page.number, [], False, shortened_text(told))
            rows = packed([])
        self._answers.append(page._replace(rows=rows))


def packed(body: Any) -> bytes:
    """As bytes, of classes that can be found by name; else with their classes."""
    try:
        return pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return bytes(cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL))
