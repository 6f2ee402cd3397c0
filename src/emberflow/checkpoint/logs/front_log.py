"""Front logs: a global time once given is given again on replay.

A front that takes arrival time, or that promised something while idle, has chosen what the source
does not know. It appends its choices here, and the report that covers them is sent only when `sync`
has returned: durability overlaps with processing and delays nothing but the report.

::

    <location>/fronts/<front>-<partition>/<incarnation>-<sequence>.log

**Segments.** An incarnation writes segments of its own and never touches another's. The first block
of a segment is its header, which lists the older segments and how long they were when it was begun.
So the newest segment says what the log is: the older ones that it lists, exactly so far, and then
itself. A worker of an older incarnation that is only slow may go on appending to its segment, or even
begin another: no reader of the newer one sees it. For this the writer is opened *before* the
log is replayed, and replays what `FrontLogWriter.entries` gives. What the older segments hold is
synced before the header lists it, since it may be the first that relies on it.

**Entries** are ``(position, time)``, or ``(position, time, payload)`` for a source that cannot
replay. Times go up. A *reservation* is how far promises may have gone without an element: new ones of
the next incarnation get no time below it. What one incarnation *drops* (at most once) stays dropped
for all that follow, also for one that begins from the same cut: there is output by then that does
without it. It stays in the log, which tells what came in.

Entries are stored in batches as columns: of whole numbers, such as times and most positions, the first
one and the differences, each in as few bytes as they need.

**Group commit.** `append_columns` costs a tuple; `sync` writes all that was appended since the last
one as a block and waits for the disk once, while others append. A thread beside the worker does it
again and again; the longer the disk takes, the more it covers::

    def keep_durable(log, appended, ended, report):
        while not ended.is_set():
            if appended.wait(timeout=0.1):  # set by the worker after it appended
                appended.clear()
                report(log.sync(mark=False))  # 'I shall not emit below ...' up to here
            else:
                log.mark()  # nothing comes that would witness to what is durable
        log.close()

Elsewhere than on a local disk there is no append: a segment is a folder there, and each block a file,
durable when it is complete.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.errors import CheckpointError, FencedError
from emberflow.checkpoint.files import location_of
from emberflow.checkpoint.logs.segments import (
    BATCH,
    DROPPED,
    FORMAT_VERSION,
    HEADER,
    Columns,
    Log,
    LogEntry,
    Piece,
    Segment,
    batch_data,
    segment_name,
    sequence_of,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: More entries than this make a block without waiting for a sync: what waits is bounded.
_WAITING_MAX = 32_768
#: A segment that has come to this is followed by another: bytes, or files where a block is one.
_SEGMENT_BYTES = 64 << 20
_SEGMENT_OBJECTS = 4096


class Durable(NamedTuple):
    """How far a log is durable: its last entry, if this writer had any, and its reservation."""

    entries: int
    position: Any
    time: int | None
    reservation: int | None


class FrontLogWriter:
    """Appends to the log of one partition of a front, for one incarnation.

    `append` and `reserve` are for one thread and `sync` may be another's. After an error of the
    disk it takes nothing more: what an ``fsync`` that failed has left is unknown.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> log = FrontLogWriter(folder, "words", 0, 1)
    >>> log.append([(0, 1700), (1, 1703)])
    >>> log.append([(2, 1703 + 1)])
    >>> log.reserve(1800)
    >>> log.sync()
    Durable(entries=3, position=2, time=1704, reservation=1800)
    >>> log.close()
    >>> list(read_log(folder, "words", 0, from_time=1703)), last_reservation(folder, "words", 0)
    ([(1, 1703), (2, 1704)], 1800)
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        front: str,
        partition: int,
        incarnation: int,
        *,
        payloads: bool = False,
        filesystem: FileSystem | None = None,
        segment_size: int | None = None,
    ) -> None:
        self._log = Log(location_of(location, filesystem), front, partition)
        default = _SEGMENT_BYTES if self._log.location.is_local else _SEGMENT_OBJECTS
        self._segment_size = default if segment_size is None else segment_size
        self._incarnation = incarnation
        self._width = 3 if payloads else 2
        self._lock = threading.Lock()  # what waits
        self._sync_lock = threading.Lock()  # the segment; taken before the other
        self._waiting: list[Columns] = []
        self._waiting_count = 0
        self._waiting_reservation: int | None = None
        self._unsynced = False
        self._unmarked = False
        self._failure: BaseException | None = None
        self._closed = False
        self._count = 0
        self._position: Any = None
        newest = max(self._log.names(), default=None)
        if newest is not None and newest[0] >= incarnation:
            raise FencedError(
                f"{self._log}: incarnation {newest[0]} has a log here already, and incarnation "
                f"{incarnation} comes too late. Begin the next incarnation."
            )
        self._before = self._log.pieces()
        self._time, self._reservation, self._dropped = self._log.ends(self._before)
        self._inherited = self._reservation
        self._pieces = list(self._before)
        self._segment = self._begin_segment(0)

    @property
    def time(self) -> int | None:
        """The last time given so far, also by incarnations before; the next one is greater."""
        return self._time

    @property
    def reservation(self) -> int | None:
        """What this incarnation, or one before, may have promised."""
        return self._reservation

    @property
    def is_first(self) -> bool:
        """Whether no incarnation before this one had a log of this partition."""
        return not self._before

    def entries(self, *, from_time: int | None = None) -> Iterator[LogEntry]:
        """What the incarnations before this one have given, from a time on: to be given again
        unless it `is_dropped`.

        To be read before old segments are trimmed.
        """
        for batch in self._log.batches(self._before):
            yield from batch.entries_from(from_time)

    def drop_above(self, time: int) -> None:
        """Let nobody give again what the incarnations before this one gave above a time.

        Durable when it returns, so that whatever is given after it comes without what was dropped.
        """
        with self._sync_lock:
            with self._lock:
                self._check_usable()
                last = self._time
                if last is None or last <= time:
                    return
                self._dropped.append((time, last))
            with self._noting_failure():
                self._segment.add(DROPPED + json.dumps((time, last)).encode())
            self._unsynced = True
            self._sync()
            self._mark()

    def is_dropped(self, time: int) -> bool:
        """Whether the entry of this time is not to be given again."""
        return any(above < time <= last for above, last in self._dropped)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add what was given. It becomes durable with the next `sync`."""
        for entry in entries:
            if len(entry) != self._width:
                raise self._not_so(self._time, entry[:2], len(entry))
        if entries:
            self.append_columns(*zip(*entries, strict=True))

    def append_columns(
        self,
        positions: Sequence[Any],
        times: Sequence[int],
        payloads: Sequence[Any] | None = None,
    ) -> None:
        """The same by column."""
        if not times:
            return
        with self._lock:
            self._check_usable()
            self._check(positions, times, payloads)
            kept = None if payloads is None else _kept(payloads)
            self._waiting.append((_kept(positions), _kept(times), kept))
            self._waiting_count += len(times)
            self._time = times[-1]
            self._count += len(times)
            self._position = positions[-1]
            is_too_much = self._waiting_count >= _WAITING_MAX
        if is_too_much:
            with self._sync_lock:
                data, _ = self._taken()
                if data is not None:
                    self._unsynced = True
                    with self._noting_failure():
                        self._segment.add(data)

    def reserve(self, time: int) -> None:
        """Let promises up to this time be made. Durable with the next `sync`.

        Reserved ahead, so that an idle front may promise again and again without another sync. The
        incarnation that reserved knows what it really promised and goes on from there; the next one
        does not, and gives no new element a time below this.
        """
        with self._lock:
            self._check_usable()
            if self._reservation is None or time > self._reservation:
                self._reservation = self._waiting_reservation = time

    def sync(self, *, mark: bool = True) -> Durable:
        """Make all that was appended durable, and say how far that is.

        Who syncs again and again need not `mark` each time: the next batch is a witness as well.
        """
        with self._sync_lock:
            reached = self._sync()
            if mark:
                self._mark()
            return reached

    def mark(self) -> None:
        """Add a witness to what is durable, if there is none yet (see `blocks`)."""
        with self._sync_lock:
            self._check_usable()
            self._mark()

    def close(self) -> None:
        """Sync and end. Closing again does nothing."""
        with self._sync_lock:
            if self._closed:
                return
            try:
                if self._failure is None:
                    self._sync()
                    self._mark()
            finally:
                with self._lock:
                    self._closed = True
                    self._segment.close()

    def _sync(self) -> Durable:
        """What waits is taken at once, and written while others append."""
        data, reached = self._taken()
        segment = self._segment
        with self._noting_failure():
            if data is not None:
                segment.add_durably(data)
            elif self._unsynced:
                segment.sync()
            else:
                return reached
            self._unsynced = False
            self._unmarked = True
            if segment.end >= self._segment_size:
                self._mark()
                self._roll()
        return reached

    def _mark(self) -> None:
        if self._unmarked:
            with self._noting_failure():
                self._segment.mark()
            self._unmarked = False

    def _taken(self) -> tuple[bytes | None, Durable]:
        """The block of what waits, if anything does, and how far the log is durable with it."""
        with self._lock:
            self._check_usable()
            waiting, self._waiting = self._waiting, []
            self._waiting_count = 0
            reservation, self._waiting_reservation = self._waiting_reservation, None
            reached = Durable(self._count, self._position, self._time, self._reservation)
        if not waiting and reservation is None:
            return None, reached
        with self._noting_failure():
            return BATCH + batch_data(waiting, reservation, payloads=self._width == 3), reached

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise CheckpointError(
                f"{self._log}: a write failed before ({self._failure!r}), and what came of it is "
                f"unknown. Begin the next incarnation."
            ) from self._failure
        if self._closed:
            raise CheckpointError(f"{self._log}: this writer is closed.")

    def _check(
        self, positions: Sequence[Any], times: Sequence[int], payloads: Sequence[Any] | None
    ) -> None:
        width = 2 if payloads is None else 3
        before = self._time
        if self._inherited is not None and (before is None or before < self._inherited):
            before = self._inherited - 1
        others = times if payloads is None else payloads
        rising = times.step > 0 if isinstance(times, range) else all(map(lt, times, times[1:]))
        if (
            len(positions) == len(times) == len(others)
            and width == self._width
            and rising
            and (before is None or times[0] > before)
        ):
            return
        for position, time, _ in zip(positions, times, others, strict=True):
            if width != self._width or not (before is None or time > before):
                raise self._not_so(before, (position, time), width)
            before = time

    def _not_so(self, before: int | None, got: Any, parts: int) -> CheckpointError:
        return CheckpointError(
            f"{self._log}: expected an entry of {self._width} parts with a time above "
            f"{before}, got {got!r} with {parts} parts."
        )

    def _roll(self) -> None:
        """Go on in a new segment, so that old ones can be dropped."""
        old = self._segment
        old.sync()
        self._pieces.append(Piece(old.name, old.end))
        self._segment = self._begin_segment(sequence_of(old.name) + 1)
        old.close()

    def _begin_segment(self, sequence: int) -> Segment:
        if self._pieces:
            self._log.sync(self._pieces[-1])
        header = {
            "format": FORMAT_VERSION,
            "front": self._log.front,
            "partition": self._log.partition,
            "incarnation": self._incarnation,
            "older": {piece.name: piece.limit for piece in self._pieces},
        }
        segment = self._log.new_segment(segment_name(self._incarnation, sequence))
        try:
            segment.add(HEADER + json.dumps(header).encode())
            segment.sync()
            segment.mark()
        except BaseException:
            segment.close()
            raise
        return segment


def _kept(column: Sequence[Any]) -> Sequence[Any]:
    """A column that nobody changes until it is written."""
    return column if isinstance(column, range | tuple) else tuple(column)


def read_log(
    location: str | os.PathLike[str],
    front: str,
    partition: int,
    *,
    from_time: int | None = None,
    after_position: Any = ...,
    incarnation: int | None = None,
    filesystem: FileSystem | None = None,
) -> Iterator[LogEntry]:
    """The entries of a log in their order, as the newest incarnation sees it, or the given one.

    ``from_time`` leaves out those with smaller times: a cut at ``(t, front)`` wants those from ``t``
    on. ``after_position`` leaves out all up to the entry with this position, if there is one.
    """
    log = Log(location_of(location, filesystem), front, partition)
    pieces = log.pieces(incarnation)
    entries = (entry for batch in log.batches(pieces) for entry in batch.entries_from(from_time))
    if after_position is ...:
        yield from entries
        return
    skipped: list[LogEntry] = []
    for entry in entries:
        skipped.append(entry)
        if entry[0] == after_position:
            skipped.clear()
            break
    yield from skipped  # all, if none has that position
    yield from entries


def last_reservation(
    location: str | os.PathLike[str],
    front: str,
    partition: int,
    *,
    incarnation: int | None = None,
    filesystem: FileSystem | None = None,
) -> int | None:
    """The greatest promise that was durable; None if there was none."""
    log = Log(location_of(location, filesystem), front, partition)
    return log.ends(log.pieces(incarnation)).reservation


def trim(
    location: str | os.PathLike[str],
    front: str,
    partition: int,
    before: int,
    *,
    filesystem: FileSystem | None = None,
) -> list[str]:
    """Remove the segments that have nothing from time ``before`` on: that of the oldest kept cut.

    The newest segment stays, whatever it holds. Returns the names of those that were removed.
    """
    log = Log(location_of(location, filesystem), front, partition)
    removed = []
    for piece in log.pieces()[:-1]:
        time, reservation, _ = log.ends([piece])
        if any(end is not None and end >= before for end in (time, reservation)):
            break
        log.location.remove(f"{log.folder}/{piece.name}")
        removed.append(piece.name)
    return removed
