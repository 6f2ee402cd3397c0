"""Reading the state of a live query: ``query.state(name).get(...)``, ``query.read({...})``.

Reads are monotonic: no read is as of an earlier time than a read that was answered before it. So the
greatest moment of all answers is a lower bound for later reads. A read goes to the workers of the
current life. If that life is lost before they answer, it is retried with the next one, until its time
limit.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import cloudpickle

from emberflow.engine.layout import Layout
from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Keys,
    Moment,
    ReadBegan,
    ReadPage,
    ReadRefused,
    Selection,
)
from emberflow.engine.queries.worker import StateInfo, in_key_order, readable_states
from emberflow.errors import InputError, NotKeptError, ReadError, ReadTimeoutError
from emberflow.runners.live.supervisor import Supervision
from emberflow.runners.live.wire.questions import Lost, Questions, ReadRequest, Ticket
from emberflow.runners.questions import (
    Answer,
    Question,
    Scan,
    Wanted,
    checked_state,
    last_before,
    moment_after,
)
from emberflow.values.item import GlobalTime
from emberflow.values.times import DEFAULT_UNIT

#: Time limits in seconds: of reads of keys, and of scans.
KEYS_SECONDS = 10.0
SCAN_SECONDS = 60.0
_LOOK_SECONDS = 0.05

_Rows = list[tuple[int, Any, Any]]


class Reads:
    """All reads of one query, across the lives of its workers."""

    def __init__(self, lives: Supervision) -> None:
        self._lives = lives
        self._lock = threading.Lock()
        self._floor: Moment = BEFORE_ALL
        self.changed()

    def changed(self) -> None:
        """The query has gone over to another version of its flow."""
        settings = self._lives.settings
        self._flow = settings.graph.flow
        self._unit = settings.graph.unit or DEFAULT_UNIT
        self._by_arrival = settings.ordering == "arrival"
        self.states: Mapping[str, StateInfo] = readable_states(Layout(settings.graph))

    def state(self, name: object) -> StateInfo:
        self._check_ordering()
        return checked_state(self._flow, self.states, name)

    def read(
        self,
        wanted: Mapping[str, Wanted],
        *,
        default: bool,
        as_of: object,
        ordered: bool,
        timeout: float | None,
        first: int | None = None,
        rows_max: int | None = None,
    ) -> Answer:
        """One consistent read, retried if the workers are lost meanwhile.

        ``first`` is for a scan of one state: the answer has only so many rows, of the least keys, and
        memory holds few more. A read of more than ``rows_max`` rows is refused.
        """
        question, request = self._question(wanted, as_of, ordered, timeout)
        while True:
            open_read = self._opened(question, request)
            try:
                rows: _Rows = []
                for page in open_read.pages():
                    rows += page
                    if first is not None and len(rows) > _rows_held(first):
                        rows = _least_rows(rows, first)
                    if rows_max is not None and len(rows) > rows_max:
                        raise TooManyRowsError(
                            f"the answer has more than {rows_max:,} rows: ask for a smaller range."
                        )
                if first is not None:
                    rows = _least_rows(rows, first)
                answer = question.assembled(rows, open_read.moment, default=default)
            except _LostError:
                self._await_next_life(open_read.questions, request)
                request = request._replace(floor=max(request.floor, self._floor))
                continue
            finally:
                open_read.close()
            self._saw(open_read.moment)
            return answer

    def pages(
        self,
        wanted: Mapping[str, Wanted],
        *,
        as_of: object,
        ordered: bool,
        timeout: float | None,
    ) -> Pages:
        question, request = self._question(wanted, as_of, ordered, timeout)
        return Pages(self, question, request)

    def _question(
        self, wanted: Mapping[str, Wanted], as_of: object, ordered: bool, timeout: float | None
    ) -> tuple[Question, ReadRequest]:
        self._check_ordering()
        if ordered and as_of is not None:
            raise InputError(
                "a read that is ordered=True gets a time of its own: leave out as_of=, or ordered=."
            )
        at = None if as_of is None else moment_after(as_of, self._unit)
        question = Question(self._flow, self.states, wanted)
        if timeout is not None and not timeout > 0:
            raise InputError(f"timeout= takes a number of seconds, got {timeout!r}.")
        if timeout is None:
            timeout = SCAN_SECONDS if question.holds else KEYS_SECONDS
        return question, ReadRequest(
            {},
            at,
            self._floor,
            ordered,
            question.holds,
            time.monotonic() + timeout,
        )

    def _opened(self, question: Question, request: ReadRequest) -> _OpenRead:
        """Ask the workers of the current life. Each life has its own owner table."""
        questions = self._questions(request)
        asks = question.asks(questions.owners)
        packed = {worker: _packed(parts) for worker, parts in asks.items()}
        return _OpenRead(questions, request._replace(asks=packed))

    def _check_ordering(self) -> None:
        if self._by_arrival:
            raise InputError(
                f"flow {self._flow!r} runs with ordering='arrival', and there is no time that its "
                f"state could be read as of: items are processed as they come. Leave out "
                f".option('ordering', 'arrival') to read state."
            )

    def _questions(self, request: ReadRequest) -> Questions:
        """The questions of the current life."""
        if self._lives.wait(0):
            raise self._over()
        return self._lives.coordinator.questions

    def _over(self) -> ReadError:
        failure = self._lives.failure
        why = "" if failure is None else f" It failed: {failure}"
        return ReadError(f"the query of flow {self._flow!r} is over, and its state is gone.{why}")

    def _await_next_life(self, before: Questions, request: ReadRequest) -> None:
        while self._lives.coordinator.questions is before:
            if self._lives.wait(_LOOK_SECONDS):
                raise self._over()
            if time.monotonic() > request.deadline:
                raise ReadTimeoutError(
                    f"the workers of flow {self._flow!r} were lost while they were asked, and others "
                    f"have not come within the time limit of the read. Read again, or give it more "
                    f"time with timeout=."
                )

    def _saw(self, moment: Moment) -> None:
        with self._lock:
            # A read as of a future time may be answered at the very end.
            self._floor = max(self._floor, moment)


class TooManyRowsError(ReadError):
    """The answer has more rows than the caller accepts."""


def _rows_held(first: int) -> int:
    """How many rows to hold before selecting the least: each row costs a few comparisons."""
    return 4 * first + 1_000


def _least_rows(rows: _Rows, count: int) -> _Rows:
    ordered = in_key_order((key, (part, value)) for part, key, value in rows)
    return [(part, key, value) for key, (part, value) in ordered[:count]]


class _LostError(Exception):
    """The life of the workers that were asked is over."""


class _OpenRead:
    """A question to the workers of one life, and their answers."""

    def __init__(self, questions: Questions, request: ReadRequest) -> None:
        self.questions = questions
        self.moment: Moment = BEFORE_ALL
        self._request = request
        self._ticket: Ticket = questions.ask(request)
        self._unanswered = -1  # until it has begun
        self._began = False

    def began(self) -> None:
        """Wait until the moment that the read is as of is known."""
        while not self._began:
            self._hear(self._next())

    def pages(self) -> Iterator[_Rows]:
        """The pages of all workers, in the order of arrival."""
        self.began()
        while self._unanswered:
            page = self._next()
            assert isinstance(page, ReadPage)
            if page.problem is not None:
                raise ReadError(f"worker {page.worker} could not answer: {page.problem}")
            yield pickle.loads(page.rows)
            if page.more:
                self.questions.more(self._ticket, page.worker)
            else:
                self._unanswered -= 1

    def close(self) -> None:
        """Call it in any case."""
        if self._unanswered:
            self.questions.close(self._ticket)
        else:
            self.questions.done(self._ticket)
        self._unanswered = 0

    def _next(self) -> ReadBegan | ReadPage:
        left = self._request.deadline - time.monotonic()
        try:
            event = self._ticket.events.get(timeout=max(0.0, left))
        except queue.Empty:
            raise self._late() from None
        if isinstance(event, Lost):
            raise _LostError
        if isinstance(event, ReadRefused):
            raise self._refused(event)
        return event

    def _hear(self, event: ReadBegan | ReadPage) -> None:
        assert isinstance(event, ReadBegan)
        self._began = True
        self.moment, self._unanswered = event.moment, event.workers

    def _late(self) -> ReadTimeoutError:
        unanswered = self._ticket.unanswered
        if unanswered is not None:
            return ReadTimeoutError(
                f"{unanswered} workers have not answered within the time limit of the read. "
                f"Is a function of the flow slow? Give it more time with timeout=."
            )
        kept = self.questions.range
        if self._request.at is not None and self._request.at > kept[1]:
            wanted = f"the minimal time has not come to {shown(self._request.at)}"
        elif self._request.ordered:
            wanted = "the minimal time has not come to the place of the read"
        else:
            wanted = "the workers have not begun, or come back, yet"
        return ReadTimeoutError(
            f"the read could not begin within its time limit: {wanted}. What can be read is "
            f"{shown_range(kept)}. Is a front silent? Give it more time with timeout=."
        )

    def _refused(self, refused: ReadRefused) -> ReadError:
        if self._request.at is None:
            return ReadError(f"the read was refused: {refused.problem}. Read again later.")
        if self._request.at >= refused.kept[0]:
            return ReadError(f"the read was refused: {refused.problem}. Read again later.")
        return NotKeptError(
            f"the state as of {shown(self._request.at)} is not kept. What can be read is "
            f"{shown_range(refused.kept)}. Set .option('historyKept', ...) to what you want to "
            f"look back, in the time of the elements; after a recovery it begins with the cut that "
            f"was restored."
        )


class Pages:
    """The rows of a scan, some at a time, all as of one time: for states that do not fit into a dict.

    Iterate it once: it gives lists of ``(key, value)``, in no order. Close it if you leave early (it is
    a context manager). The workers retain the state as of its time until the scan ends, is closed, or
    reaches its time limit.
    """

    def __init__(self, reads: Reads, question: Question, request: ReadRequest) -> None:
        self._reads = reads
        while True:
            self._read = reads._opened(question, request)
            try:
                self._read.began()
                break
            except _LostError:
                reads._await_next_life(self._read.questions, request)
            except BaseException:
                self._read.close()
                raise
        reads._saw(self._read.moment)

    @property
    def as_of(self) -> GlobalTime:
        return last_before(self._read.moment)

    def __iter__(self) -> Iterator[list[tuple[Any, Any]]]:
        try:
            for rows in self._read.pages():
                if rows:
                    yield [(key, value) for _, key, value in rows]
        except _LostError:
            raise ReadError(
                f"the workers were lost in the middle of a scan as of {tuple(self.as_of)}, of which "
                f"some pages were given already. Begin it again."
            ) from None
        finally:
            self.close()

    def close(self) -> None:
        self._read.close()

    def __enter__(self) -> Pages:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class LiveState:
    """A state of a running flow, or a reduce by its name. Made by ``query.state(name)``.

    Every read is one consistent cut through all keys, as of the minimal time when it is request. All
    take ``as_of=`` for another time that is retained, or ``ordered=True`` for a place of its own among
    the elements, behind all that the fronts have read; and ``timeout=`` in seconds.
    """

    def __init__(self, reads: Reads, name: object) -> None:
        self._reads = reads
        self._info = reads.state(name)
        self.name = self._info.name

    def __repr__(self) -> str:
        return f"LiveState({self.name!r})"

    def get(
        self,
        *keys: Any,
        default: bool = True,
        as_of: Any = None,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """The values of some keys, by key. A key that was never updated has the state's default; with
        ``default=False``, or in a reduce, which has no default, it is left out."""
        return self._read(list(keys), default, as_of, ordered, timeout)

    def scan(
        self,
        low: Any = None,
        high: Any = None,
        *,
        limit: int | None = None,
        as_of: Any = None,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """All keys from ``low`` on and below ``high``, in their order; None is no bound.

        ``limit`` is the greatest number of keys: the least ones are returned.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InputError(f"scan(limit=) takes an int of at least 1, got {limit!r}.")
        return self._read(Scan(low, high), False, as_of, ordered, timeout, limit)

    def where(
        self,
        predicate: Callable[[Any, Any], object],
        low: Any = None,
        high: Any = None,
        *,
        as_of: Any = None,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """The rows of a scan for which ``predicate(key, value)`` holds. The workers call it."""
        return self._read(Scan(low, high, predicate), False, as_of, ordered, timeout)

    def pages(
        self,
        low: Any = None,
        high: Any = None,
        *,
        where: Callable[[Any, Any], object] | None = None,
        as_of: Any = None,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> Pages:
        """The same, some rows at a time and in no order: for states that do not fit into memory."""
        return self._reads.pages(
            {self.name: Scan(low, high, where)}, as_of=as_of, ordered=ordered, timeout=timeout
        )

    def _read(
        self,
        wanted: Wanted,
        default: bool,
        as_of: Any,
        ordered: bool,
        timeout: float | None,
        first: int | None = None,
    ) -> Answer:
        answer = self._reads.read(
            {self.name: wanted},
            default=default,
            as_of=as_of,
            ordered=ordered,
            timeout=timeout,
            first=first,
        )
        return Answer(answer[self.name], as_of=answer.as_of)


def shown(moment: Moment) -> str:
    """A moment in the user's terms.

    >>> shown(moment_after(7)), shown(moment_after((7, 0))), shown(BEFORE_ALL)
    ('time 7', '(7, 0)', 'the beginning')
    """
    if moment <= BEFORE_ALL:
        return "the beginning"
    if moment >= AFTER_ALL:
        return "the end"
    time_, front = last_before(moment)
    return f"time {time_}" if front == 2**63 - 1 else f"({time_}, {front})"


def shown_range(kept: tuple[Moment, Moment]) -> str:
    """The times that can be read, as whole times if there are any.

    >>> shown_range(((5, 0), (9, 1))), shown_range(((9, 1), (9, 1)))
    ('from time 5 to time 8', 'as of (9, 0) alone')
    """
    first, last = kept
    if first == last:
        return f"as of {shown(last)} alone"
    begin, end = shown(first), shown(last)
    if first > BEFORE_ALL and last < AFTER_ALL and first[0] < last[0]:
        begin, end = f"time {first[0]}", f"time {last[0] - 1}"
    return f"from {begin} to {end}"


#: Types that pickle handles without looking up a class of the user's script.
_PLAIN = frozenset((int, str, bytes, float, bool, type(None)))


def _packed(parts: tuple[tuple[int, Selection], ...]) -> bytes:
    """Pickled by value if necessary: the user's script may define a key's class, or a predicate."""
    try:
        if all(
            isinstance(part, Keys) and _PLAIN.issuperset(map(type, part.keys)) for _, part in parts
        ):
            return pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
        return bytes(cloudpickle.dumps(parts, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise InputError(
            f"the read cannot be sent to the workers: {type(error).__qualname__}: {error}. Do "
            f"the keys, or the predicate, hold something that is bound to this process?"
        ) from error
