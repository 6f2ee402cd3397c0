"""Asking: the coordinator's part of reading state. It picks the moment, and sees that it is kept.

What is guaranteed: **every worker is asked as of the same moment T, at or below the minimal time,
and no worker trims below T before it has answered.** (See `queries.worker` for why that is enough.)

*Picking T.* Without a wish T is the minimal time that the workers were told last, or the moment of
the cut that this life began with, if they were told nothing beyond it yet: below a cut all is final
too. ``at`` is a wish for a moment; while the minimal time is below it, the question waits.
An *ordered* question takes a place of its own in the order. All workers are asked how far their
fronts have come; T is above all that any of them has let in, so the question sees all of it, and it
waits until the minimal time has come to T. Whatever else enters below T by then is seen as well, and
nothing at or above T: the answer is that of a transaction at T that only reads.
``floor`` is the greatest T that was answered before. After a crash the minimal time begins further
back; who has seen T must not see less, so the question waits for the floor.

*Keeping T.* Workers trim by the progress they are told. The coordinator says with it what is to be
kept, which is the least of

- the minimal time, less the history that the query keeps, in the time of the elements;
- every T at which a scan is open, and every one that a question waits for.

A question is sent behind the progress that was told last, on the same links, and they are FIFO. No T
is below what was told to be kept: a wish for one that is, is refused. So when a worker hears the
question, T is there; keys are then answered at once, and for a scan it stays there until the last
worker has given its last page or the scan is closed. Somebody else limits how long that may take
(this machine knows no clock), and how many there are is limited here, so memory has a bound.

``kept`` never goes back: what was once said to be trimmed may be gone.
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

#: Questions that wait or are not wholly answered, and how many of them may be scans.
QUESTIONS_MAX = 10_000
SCANS_MAX = 16

#: To a worker; to who asked, where that is None.
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
        #: Whether it takes several steps, so that its moment has to be kept.
        self.holds = holds
        #: From when on it is being answered.
        self.moment: Moment | None = None
        self.unmarked: set[int] = set()
        self.unanswered = set(asks)

    @property
    def least(self) -> Moment:
        """It cannot be answered as of an earlier moment than this."""
        return self.floor if self.at is None else self.at

    @property
    def has_place(self) -> bool:
        """Whether it is to be answered as of just that moment."""
        return self.ordered or self.at is not None

    @property
    def held(self) -> Moment | None:
        if self.moment is not None:
            return self.moment if self.holds else None
        return self.least if self.has_place else None


class ReadCoordinator:
    """The questions of one life."""

    def __init__(self, workers: int, *, since: Moment = BEFORE_ALL, history: int = 0) -> None:
        """``since`` is the moment of the cut that this life begins with."""
        self._workers = workers
        self._since = since
        self._history = history
        #: The minimal time that the workers were told last, and what they were told to keep.
        self._told: Moment = BEFORE_ALL
        self._kept: Moment = BEFORE_ALL
        self._questions: dict[int, _Question] = {}
        self._waiting: dict[int, _Question] = {}
        #: Those whose moment is kept for them.
        self._holding: dict[int, _Question] = {}

    @property
    def range(self) -> tuple[Moment, Moment]:
        """From when to when it can be asked: as of any moment between."""
        return max(self._kept, self._since), max(self._told, self._since)

    @property
    def open(self) -> int:
        return len(self._questions)

    # Progress.

    def kept_at(self, minimal: Moment) -> Moment:
        """What to tell the workers to keep, with the progress to this minimal time."""
        kept = minimal
        if self._history:
            # At the end of all fronts the minimal time is no time to count from.
            last = minimal if minimal < AFTER_ALL else max(self._told, self._since)
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
        """The workers were just told this; some that waited may be asked now."""
        self._kept = kept
        self._told = max(self._told, minimal)
        said: list[Outgoing] = []
        for number in list(self._waiting):
            said += self._ask_if_there(number)
        return said

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
        """Ask: ``asks`` is what is asked of each worker. One that ``holds`` comes in pages."""
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
        """A worker says how far its fronts have come."""
        question = self._waiting.get(mark.number)
        if question is None:
            return []
        question.floor = max(question.floor, mark.moment)
        question.unmarked.discard(mark.worker)
        return self._ask_if_there(mark.number)

    def _ask_if_there(self, number: int) -> list[Outgoing]:
        """Ask the workers, if the minimal time has come to the moment of the question."""
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
            self._holding.pop(number, None)  # answered before any later progress is heard
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
        """Who asked has dealt with a page, and wants the next one of that worker."""
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
        """Nobody waits for the answer any more."""
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
