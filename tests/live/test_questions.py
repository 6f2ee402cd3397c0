"""Questions between asking threads and the coordinator's thread: who is woken when, and with what."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from emberflow.engine.messages import (
    BEFORE_ALL,
    FrontsReply,
    Progress,
    ReadBegan,
    ReadPage,
    ReadRefused,
    WorkerRead,
)
from emberflow.runners.live.wire.questions import Lost, Questions, ReadRequest, Ticket

MOMENT = (5, 0)


@pytest.fixture
def questions() -> Iterator[Questions]:
    """Questions to two workers that have been sent progress up to `MOMENT`."""
    made = Questions(2)
    made.told(Progress(MOMENT, (MOMENT, MOMENT)), MOMENT)
    yield made
    made.end()


def asked(questions: Questions, *, holds: bool, workers: tuple[int, ...] = (0, 1)) -> Ticket:
    asks = dict.fromkeys(workers, b"")
    deadline = time.monotonic() + 60
    ticket = questions.ask(ReadRequest(asks, None, BEFORE_ALL, False, holds, deadline))
    told = questions.taken()
    assert told == [(worker, WorkerRead(ticket.number, MOMENT, b"")) for worker in workers]
    return ticket


def events(ticket: Ticket) -> list[object]:
    return [ticket.events.get_nowait() for _ in range(ticket.events.qsize())]


def test_what_is_about_keys_is_answered_in_one_go(questions: Questions) -> None:
    ticket = asked(questions, holds=False)
    pages: list[ReadPage | FrontsReply] = [
        ReadPage(worker, ticket.number, b"", False) for worker in (1, 0)
    ]
    questions.heard(pages[:1])
    assert (events(ticket), ticket.unanswered) == ([], 1)
    questions.heard(pages[1:])
    assert events(ticket) == [ReadBegan(ticket.number, MOMENT, 2), *pages]


def test_a_scan_is_answered_page_by_page(questions: Questions) -> None:
    ticket = asked(questions, holds=True)
    assert events(ticket) == [ReadBegan(ticket.number, MOMENT, 2)]
    for page in (ReadPage(1, ticket.number, b"", more) for more in (True, False)):
        questions.heard([page])
        assert events(ticket) == [page]
    assert ticket.unanswered == 1


def test_no_keys_are_answered_at_once(questions: Questions) -> None:
    ticket = asked(questions, holds=False, workers=())
    assert events(ticket) == [ReadBegan(ticket.number, MOMENT, 0)]


def test_who_asks_hears_of_it_when_there_will_be_no_answer(questions: Questions) -> None:
    half_way = asked(questions, holds=False)
    questions.heard([ReadPage(0, half_way.number, b"", False)])
    too_early = ReadRequest({0: b""}, (1, 0), BEFORE_ALL, False, False, time.monotonic() + 60)
    refused = questions.ask(too_early)
    questions.taken()
    (why,) = events(refused)
    assert isinstance(why, ReadRefused)
    questions.end()
    late = questions.ask(half_way.request)
    assert events(half_way) == events(late) == [Lost()]
