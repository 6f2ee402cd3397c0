"""The reader of one partition of a front: a thread that fills a queue with what the front gives.

Guarantees:

1. *A slow source never holds up the worker's loop, and a slow loop holds up the source.* The thread
   does nothing but read and fill the queue, and the queue has a bound, in elements and in bytes.
2. *What earlier lives of the query chose comes first, as it was.* The front's `journal` has the times
   of arrival that earlier lives gave, and all elements of a source that cannot be read again. The
   reader gives them under the times that they had, and then what the source has besides. A source
   that does not give again what it gave before is a `ReplayError`.
3. *What a backfill had is not given again.* The cut of a backfill may not say where a front goes on
   (``Beginning.passes_over``). Then the reader reads the source from its beginning and passes over
   the elements with times below the cut, up to the first that is not below it. It hands over only
   the position of the last one it passed over (`Behind`).

The queue is a deque, whose two ends are safe to use from two threads: a lock for each element would
cost more than all other work on it.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat, takewhile
from typing import Any, NamedTuple, TypeAlias

from emberflow.checkpoint.logs.segments import LogEntry, OwnTime
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.progress.gate import least_time
from emberflow.errors import EmberflowError, InputError, shortened
from emberflow.fronts.protocol import (
    Batch,
    Element,
    FrontContract,
    FrontGrewError,
    Idle,
    Malformed,
)
from emberflow.runners.live.wire.bell import no_bell
from emberflow.runners.live.worker.journal import Journal
from emberflow.values.sizes import payload_bytes, payloads_bytes

#: Elements in the queue, and their bytes. A single element may have more.
QUEUE_MAX = 4_096
QUEUE_BYTES_MAX = 16 << 20
_PUT_SECONDS = 0.1

#: Elements of a journal given again at once.
_REPLAYED_AT_ONCE = 1_000
#: The reader puts a longer batch into the queue in pieces. Otherwise each take would copy all that it
#: leaves in the queue, and a front that has fallen behind would fall behind further.
_PIECE_MAX = 1_000
_PIECE_BYTES_MAX = 2 << 20


class Replayed(NamedTuple):
    """Elements that the journal has: they are not noted again.

    They keep the times of arrival that they had. Where elements have times of their own, ``promised`` are
    the promises that were in force when they were read.
    """

    batch: Batch
    promised: Sequence[int] | None = None

    def part(self, begin: int, end: int) -> Replayed:
        promised = None if self.promised is None else self.promised[begin:end]
        return Replayed(self.batch.part(begin, end), promised)


class Behind(NamedTuple):
    """The reader passed over elements, and this is the position of the last one."""

    position: Any


#: What the queue holds; None when the source has ended.
Read: TypeAlias = Element | Batch | Replayed | Behind | Idle | BaseException | None


class Beginning(NamedTuple):
    """Where a feed begins: behind a position, with times not below a moment.

    ``until`` is for at-most-once: what the journal has above it is dropped for good. ``joins_at`` is
    for a partition that earlier lives did not know: sinks have output up to that time, so the
    partition gives nothing up to it. ``passes_over`` says that the source has elements below the
    moment that must not be given. ``promised`` is what the elements up to the position have promised,
    and the tie of the last one (`event_time.Resume`); None if the cut does not tell. ``late`` is how
    many late ones earlier lives had below the moment.
    """

    position: Any = None
    moment: Moment = BEFORE_ALL
    until: Moment | None = None
    joins_at: Moment = BEFORE_ALL
    passes_over: bool = False
    promised: tuple[int, int] | None = None
    late: int = 0


class FrontFailedError(EmberflowError):
    """A front raised while it was read; the original exception is the ``__cause__``."""


class ReplayError(EmberflowError):
    """A source did not give again what it gave before."""


class Reader:
    """Reads one partition of a front. The loop's thread calls `take`, and nothing else blocks it."""

    def __init__(
        self,
        name: str,
        contract: FrontContract,
        partition: int,
        index: int,
        *,
        journal: Journal | None = None,
        ring: Callable[[], None] = no_bell,
    ) -> None:
        """``ring`` wakes the loop when there is something to take."""
        self._name = name
        self._contract = contract
        self._partition = partition
        self._index = index
        self._journal = journal
        self._ring = ring
        self._beginning = Beginning()
        #: Whether all that the journal has is in the queue. Before that an idle front must not
        #: promise the present.
        self.caught_up = journal is None
        #: What was read, each with its bytes.
        self.queue: deque[tuple[Read, int]] = deque()
        #: Elements put by the thread, and taken by the loop, and their bytes. Each counter has one
        #: writer.
        self._put_count = self._put_bytes = 0
        self._taken_count = self._taken_bytes = 0
        #: The bytes of what `take` gave last.
        self.last_bytes = 0
        self._space = threading.Event()
        self._stop = threading.Event()
        self.thread = threading.Thread(
            target=self._run, name=f"emberflow front {name} {partition}", daemon=True
        )

    def start(self, beginning: Beginning) -> None:
        self._beginning = beginning
        self.thread.start()

    def stop(self) -> None:
        """Take nothing more from the source."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        self._stop.set()
        if self.thread.is_alive():
            self.thread.join(seconds)

    @property
    def waiting(self) -> int:
        """How many elements are in the queue."""
        return self._put_count - self._taken_count

    def take(
        self, most: int, most_bytes: int = sys.maxsize
    ) -> Batch | Replayed | Behind | Idle | None:
        """The head of the queue, with at most so many elements and bytes, but for a single element
        that has more; None when the source has ended.

        Raises what ended the reading. The queue must not be empty.
        """
        given = self._take(most, most_bytes)
        self._taken_bytes += self.last_bytes
        return given

    def _take(self, most: int, most_bytes: int) -> Batch | Replayed | Behind | Idle | None:
        waiting = self.queue
        given, self.last_bytes = waiting.popleft()
        is_replayed = given.__class__ is Replayed
        if is_replayed or given.__class__ is Batch:
            batch: Batch = given.batch if is_replayed else given  # type: ignore[union-attr, assignment]
            count, size = len(batch.payloads), self.last_bytes
            if size > most_bytes:
                most = min(most, max(1, count * most_bytes // size))
            if count > most:
                self.last_bytes = size * most // count
                waiting.appendleft((given.part(most, count), size - self.last_bytes))  # type: ignore[union-attr]
                given = given.part(0, most)  # type: ignore[union-attr]
            self._taken_count += min(count, most)
            return given  # type: ignore[return-value]
        self._taken_count += 1
        if isinstance(given, BaseException):
            raise given
        if given is None or isinstance(given, Idle | Behind):
            return given
        if not isinstance(given, Element):
            raise self.failed(
                InputError(
                    f"it gave {shortened(given)}. A front gives an Element, a Batch, an Idle or None."
                )
            )
        # Elements that come one by one, all with times or all without, are a batch as well.
        elements = [given]
        untimed = elements[0].time is None
        while len(elements) < most and waiting:
            ahead, size = waiting[0]
            if ahead.__class__ is not Element or (ahead.time is None) is not untimed:
                break
            if self.last_bytes + size > most_bytes:
                break
            waiting.popleft()
            elements.append(ahead)
            self.last_bytes += size
        self._taken_count += len(elements) - 1
        positions, payloads, times = zip(*elements, strict=True)
        return Batch(positions, payloads, None if untimed else times)

    def put_back(self, given: Batch | Replayed, taken: int) -> None:
        """All but the first elements of what was taken last will be taken again."""
        batch = given.batch if isinstance(given, Replayed) else given
        count = len(batch.payloads)
        size = self.last_bytes * (count - taken) // count
        self.queue.appendleft((given.part(taken, count), size))
        self.last_bytes -= size
        self._taken_bytes -= size
        self._taken_count -= count - taken

    def tell_space(self) -> None:
        """Wake the thread if it waits for space in the queue, and there is plenty."""
        if (
            self._put_count - self._taken_count < QUEUE_MAX // 2
            and self._put_bytes - self._taken_bytes < QUEUE_BYTES_MAX // 2
        ):
            self._space.set()

    def failed(self, error: Exception) -> FrontFailedError:
        """The error that the query ends with, for an error of the front."""
        failure = FrontFailedError(
            f"front {self._name!r} partition {self._partition} failed: "
            f"{type(error).__qualname__}: {error}"
        )
        failure.__cause__ = error
        return failure

    # The thread.

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            for given in self._given():
                if self._stop.is_set():
                    return
                for piece, size in _pieces(given):
                    if not self._put(piece, size):
                        return
        except FrontGrewError as grown:
            last = grown
        except Exception as error:
            last = self.failed(error)
        self._put(last)

    def _put(self, given: Read, size: int = 0) -> bool:
        while (
            self._put_count - self._taken_count >= QUEUE_MAX
            or self._put_bytes - self._taken_bytes >= QUEUE_BYTES_MAX
        ):
            self._space.clear()
            if self._stop.is_set():
                return False
            self._space.wait(_PUT_SECONDS)
        # Count first: then `waiting` is never 0 while the queue has an element.
        self._put_count += _count(given)
        self._put_bytes += size
        self.queue.append((given, size))
        self._ring()
        return True

    def _given(self) -> Iterator[Element | Batch | Replayed | Behind | Idle | None]:
        """The elements of the journal, with the times they had, and then those of the source."""
        position, moment = self._beginning.position, self._beginning.moment
        journal = self._journal
        if journal is None:
            yield from self._reading(position)
            return
        before = journal.given_before(position, moment)
        if not self._contract.replayable:
            while entries := list(islice(before, _REPLAYED_AT_ONCE)):
                position = entries[-1][0]
                kept = [entry for entry in entries if not journal.is_dropped(entry[1])]
                if kept:
                    positions, times, payloads = zip(*kept, strict=True)
                    yield _replayed(positions, times, payloads)
            reading = self._reading(position)
        else:
            reading = self._reading(position)
            yield from self._with_times_of(journal, before, reading)
        yield None  # when this returns, all that came before is in the queue
        self.caught_up = True
        yield from reading

    def _reading(self, position: Any) -> Iterator[Element | Batch | Behind | Idle | None]:
        """The elements of the source behind a position, without those that a backfill had."""
        reading = self._contract.reading(self._partition, position)
        if not self._beginning.passes_over or position is not None:
            return reading
        if self._contract.event_time.waits:
            return (
                reading  # what is late depends on all records, and the feed leaves out what it must
            )
        return _not_below(reading, least_time(self._beginning.moment, self._index))

    def _with_times_of(
        self,
        journal: Journal,
        before: Iterator[LogEntry],
        reading: Iterator[Element | Batch | Behind | Idle | None],
    ) -> Iterator[Element | Batch | Replayed | Behind | None]:
        """The source's elements with the times that the journal has, as many as it has."""
        entries = list(islice(before, _REPLAYED_AT_ONCE))
        while entries:
            given = next(reading, ...)
            if given is ...:
                raise ReplayError(
                    f"front {self._name!r} partition {self._partition} has ended, and gave an "
                    f"element at position {entries[0][0]!r} before. A source must keep its elements "
                    f"until they are part of a cut."
                )
            if given is None or isinstance(given, Idle):
                yield None
                continue
            if isinstance(given, Behind):
                yield given
                continue
            batch: Batch = (
                given
                if isinstance(given, Batch)
                else Batch(
                    (given.position,),
                    (given.payload,),
                    None if given.time is None else (given.time,),
                )
            )
            while len(entries) < len(batch.payloads) and (
                more := list(islice(before, _REPLAYED_AT_ONCE))
            ):
                entries += more
            count = min(len(entries), len(batch.payloads))
            again, entries = entries[:count], entries[count:]
            self._check_positions(again, batch)
            kept = [
                (position, payload, at, own)
                for (_, at), position, payload, own in zip(
                    again,
                    batch.positions,
                    batch.payloads,
                    batch.times or repeat(None),
                    strict=False,
                )
                if not journal.is_dropped(at)
            ]
            if kept:
                positions, payloads, times, own_times = zip(*kept, strict=True)
                if self._contract.promises:
                    yield Replayed(Batch(positions, payloads, own_times), times)
                else:
                    yield Replayed(Batch(positions, payloads, times))
            if count < len(batch.payloads):
                yield batch.part(count, len(batch.payloads))
            if not entries:
                entries = list(islice(before, _REPLAYED_AT_ONCE))

    def _check_positions(self, again: list[LogEntry], batch: Batch) -> None:
        for entry, found in zip(again, batch.positions, strict=False):
            if entry[0] != found:
                raise ReplayError(
                    f"front {self._name!r} partition {self._partition} gave an element at position "
                    f"{entry[0]!r} before, and has one at {found!r} now. A source must keep its "
                    f"elements as they are until they are part of a cut."
                )


def _replayed(positions: Sequence[Any], times: Sequence[int], payloads: Sequence[Any]) -> Replayed:
    """Entries of a journal that has the payloads."""
    if payloads[0].__class__ is OwnTime:
        own_times = [own.time for own in payloads]
        return Replayed(Batch(positions, [own.payload for own in payloads], own_times), times)
    return Replayed(Batch(positions, payloads, times))


def _not_below(
    reading: Iterator[Element | Batch | Idle | None], least: int
) -> Iterator[Element | Batch | Behind | Idle | None]:
    """The elements that are read, without those at the beginning that have lower times.

    A malformed element without a time shares the fate of the element that follows it.
    """
    behind: Behind | None = None
    malformed: list[Element] = []
    for number, given in enumerate(reading):
        begin = 0
        if isinstance(given, Element):
            if given.time is None and isinstance(given.payload, Malformed):
                malformed.append(given)
                if len(malformed) >= QUEUE_MAX:  # hand them over rather than hold without a bound
                    yield from malformed
                    malformed = []
                continue
            passed_over = _is_below(given.time, least)
        elif isinstance(given, Batch) and given.payloads:
            begin = sum(1 for _ in takewhile(lambda at: _is_below(at, least), given.times or ()))
            passed_over = begin == len(given.payloads)
        else:
            if behind is not None:
                yield behind
                behind = None
            yield None if isinstance(given, Batch) else given
            continue
        if passed_over:
            malformed = []
            behind = Behind(given.position if isinstance(given, Element) else given.positions[-1])
            if number % _REPLAYED_AT_ONCE == 0:
                yield None  # so that the thread can stop
            continue
        if begin and isinstance(given, Batch):
            behind, malformed = Behind(given.positions[begin - 1]), []
            given = given.part(begin, len(given.payloads))
        if behind is not None:
            yield behind
        yield from malformed
        yield given
        yield from reading
        return
    if behind is not None:
        yield behind
    yield from malformed


def _pieces(given: Read) -> Iterator[tuple[Read, int]]:
    """The same, in pieces that are not too large, each with its bytes; nothing for None.

    >>> pieces = list(_pieces(Batch(range(2_500), ["word"] * 2_500)))
    >>> [len(piece.payloads) for piece, _ in pieces], pieces[-1][0].positions[-1]
    ([1000, 1000, 500], 2499)
    >>> [len(piece.payloads) for piece, _ in _pieces(Batch(range(4), ["x" * (1 << 20)] * 4))]
    [1, 1, 1, 1]
    """
    if given is None:
        return
    if isinstance(given, Batch):
        count = len(given.payloads)
        for begin in range(0, count, _PIECE_MAX):
            piece = given if count <= _PIECE_MAX else given.part(begin, begin + _PIECE_MAX)
            yield from _small(piece, payloads_bytes(piece.payloads))
    elif isinstance(given, Replayed):
        yield given, payloads_bytes(given.batch.payloads)
    else:
        yield given, payload_bytes(given.payload) if isinstance(given, Element) else 0


def _small(batch: Batch, size: int) -> Iterator[tuple[Batch, int]]:
    """A batch in halves of halves, until each has few bytes or one element."""
    count = len(batch.payloads)
    if size <= _PIECE_BYTES_MAX or count == 1:
        yield batch, size
        return
    for half in (batch.part(0, count // 2), batch.part(count // 2, count)):
        yield from _small(half, payloads_bytes(half.payloads))


def _is_below(time: Any, least: int) -> bool:
    return time.__class__ is int and time < least


def _count(given: Read) -> int:
    if given.__class__ is Batch:
        return len(given.payloads)
    return len(given.batch.payloads) if given.__class__ is Replayed else 1
