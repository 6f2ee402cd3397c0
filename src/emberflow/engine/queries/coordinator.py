"""Reads of state, the coordinator's side: it picks the moment of a read, and sees that it is kept.

What is guaranteed: **every worker reads as of the same moment T, at or below the minimal time, and no
worker trims below T before it has answered.** (`queries.worker` says why that is enough.)

*Picking T.* Without a wish, T is the minimal time that was sent to the workers last, or the moment of
the cut that this life began with, if nothing beyond it was sent yet: below a cut all is final too.
``at`` is a wish for a moment; while the minimal time is below it, the question waits.
An *ordered* question takes a place of its own in the order. The coordinator asks all workers how far
their fronts have come; T is above all that any of them has let in, so the question sees all of it, and
it waits until the minimal time has come to T. Whatever else enters below T by then is seen as well, and
nothing at or above T: the answer is that of a transaction at T that only reads.
``floor`` is the greatest T that was answered before. After a crash the minimal time begins further
back; a caller that has seen T must not see less, so the question waits for the floor.

*Keeping T.* Workers trim by the progress that they receive. With it the coordinator says from when on
versions have to be kept, which is the least of

- the minimal time, less the history that the query keeps, in the time of the elements;
- every T at which a scan is open, and every one that a question waits for.

A question goes out behind the last progress, on the same links, and they are FIFO. No T is below what
the workers were told to keep: a wish for an earlier one is refused. So when a worker receives the
question, it has T; it answers keys at once, and for a scan it keeps T until the last worker has given
its last page or the scan is closed. The runner limits how long that may take (this machine knows no
clock); how many there are is limited here, so memory has a bound.

``kept`` never goes back: what may once be trimmed may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    CancelRead,
    FrontsReply,
    FrontsRequest,
    Moment,
    NextPage,
    ReadBegan,
    ReadPage,
    ReadRefused,
    WorkerRead,
)

#: Questions that wait or are not fully answered, and how many of them may be scans.
QUESTIONS_MAX = 10_000
SCANS_MAX = 16

#: A message, and the worker that it goes to; None for the caller.
Outgoing: TypeAlias = tuple[int | None, Any]


class _Question:
    __slots__ = ("asks", "at", "floor", "holds", "moment", "ordered", "unanswered", "unmarked")

    def __init__(
        self,
        asks: Mapping[int, Any],
        at: Moment | None,
        floor: Moment,
        ordered: bool,
        holds: bool,
    ) -> None:
        self.asks = asks
        self.at = at
        self.floor = floor
        self.ordered = ordered
        #: Whether it takes several steps, so that its moment has to be kept meanwhile.
        self.holds = holds
        #: Set when the workers are asked.
        self.moment: Moment | None = None
        self.unmarked: set[int] = set()
        self.unanswered = set(asks)

    @property
    def least(self) -> Moment:
        """The least moment that it can be answered as of."""
        return self.floor if self.at is None else self.at

    @property
    def has_place(self) -> bool:
        """Whether it has to be answered as of exactly that moment."""
        return self.ordered or self.at is not None

    @property
    def held(self) -> Moment | None:
        if self.moment is not None:
            return self.moment if self.holds else None
        return self.least if self.has_place else None


class ReadCoordinator:
    """The reads of one life of the query."""

    def __init__(self, workers: int, *, since: Moment = BEFORE_ALL, history: int = 0) -> None:
        """``since`` is the moment of the cut that this life begins with."""
        self._workers = workers
        self._since = since
        self._history = history
        #: The minimal time that was sent to the workers last, and from when on they have to keep versions.
        self._sent: Moment = BEFORE_ALL
        self._kept: Moment = BEFORE_ALL
        self._questions: dict[int, _Question] = {}
        self._waiting: dict[int, _Question] = {}
        #: Questions whose moment is kept for them.
        self._holding: dict[int, _Question] = {}

    @property
    def range(self) -> tuple[Moment, Moment]:
        """The first and the last moment that can be read."""
        return max(self._kept, self._since), max(self._sent, self._since)

    @property
    def open(self) -> int:
        return len(self._questions)

    # Progress.

    def kept_at(self, minimal: Moment) -> Moment:
        """From when on workers have to keep versions, to be sent with this minimal time."""
        kept = minimal
        if self._history:
            # When all fronts have ended, the minimal time is no time to count back from.
            last = minimal if minimal < AFTER_ALL else max(self._sent, self._since)
            if last in (BEFORE_ALL, AFTER_ALL):
                kept = self._kept
            else:
                kept = max(BEFORE_ALL, (last[0] - self._history, last[1]))
        for question in self._holding.values():
            held = question.held
            if held is not None and held < kept:
                kept = held
        return max(kept, self._kept)

    def told(self, minimal: Moment, kept: Moment) -> list[Outgoing]:
        """This was just sent to the workers: some questions that waited may go out now."""
        self._kept = kept
        self._sent = max(self._sent, minimal)
        outgoing: list[Outgoing] = []
        for number in list(self._waiting):
            outgoing += self._ask_if_there(number)
        return outgoing

    # Questions.

    def begin(
        self,
        number: int,
        asks: Mapping[int, Any],
        *,
        at: Moment | None = None,
        floor: Moment = BEFORE_ALL,
        ordered: bool = False,
        holds: bool = False,
    ) -> list[Outgoing]:
        """Begin a question. ``asks`` is what each worker has to read; with ``holds`` it comes in pages."""
        if len(self._questions) >= QUESTIONS_MAX:
            return self._refused(number, f"{QUESTIONS_MAX:,} questions are open already")
        if holds and sum(each.holds for each in self._holding.values()) >= SCANS_MAX:
            return self._refused(number, f"{SCANS_MAX} scans are open already")
        if ordered:
            floor = max(floor, self.range[1])
        question = _Question(asks, at, floor, ordered, holds)
        self._questions[number] = self._waiting[number] = question
        if holds or question.has_place:
            self._holding[number] = question
        if ordered:
            question.unmarked = set(range(self._workers))
            return [(worker, FrontsRequest(number)) for worker in range(self._workers)]
        return self._ask_if_there(number)

    def marked(self, mark: FrontsReply) -> list[Outgoing]:
        """A worker has said how far its fronts have come."""
        question = self._waiting.get(mark.number)
        if question is None:
            return []
        question.floor = max(question.floor, mark.moment)
        question.unmarked.discard(mark.worker)
        return self._ask_if_there(mark.number)

    def _ask_if_there(self, number: int) -> list[Outgoing]:
        """Ask the workers, if the minimal time has reached the moment of the question."""
        question = self._waiting[number]
        if question.unmarked:
            return []
        (first, last), least = self.range, question.least
        if question.has_place and least < first:
            self._forget(number)
            return self._refused(number, "it is not kept any more")
        if last < least:
            return []
        del self._waiting[number]
        moment = question.moment = least if question.has_place else last
        if not question.holds:
            self._holding.pop(number, None)  # workers answer before they receive later progress
        if not question.asks:
            self._forget(number)
        began: Outgoing = (None, ReadBegan(number, moment, len(question.asks)))
        return [
            began,
            *(
                (worker, WorkerRead(number, moment, parts))
                for worker, parts in question.asks.items()
            ),
        ]

    def more(self, number: int, worker: int) -> list[Outgoing]:
        """The caller has dealt with a page, and wants the next one of that worker."""
        return [(worker, NextPage(number))] if number in self._questions else []

    def page(self, page: ReadPage) -> list[Outgoing]:
        """A worker has answered."""
        question = self._questions.get(page.number)
        if question is None:
            return []  # it was closed
        if not page.more:
            question.unanswered.discard(page.worker)
            if not question.unanswered:
                self._forget(page.number)
        return [(None, page)]

    def close(self, number: int) -> list[Outgoing]:
        """The caller does not wait for the answer any more."""
        question = self._questions.get(number)
        if question is None:
            return []
        self._forget(number)
        if question.moment is None or not question.holds:
            return []
        return [(worker, CancelRead(number)) for worker in sorted(question.unanswered)]

    def _forget(self, number: int) -> None:
        for questions in (self._questions, self._waiting, self._holding):
            questions.pop(number, None)

    def _refused(self, number: int, problem: str) -> list[Outgoing]:
        return [(None, ReadRefused(number, problem, self.range))]
