"""Front logs: on replay a front assigns the same global times again.

A front that assigns arrival times, or that promises something while idle, makes choices that the
source does not know. It appends its choices here, and the worker sends the report that covers them
only when `sync` has returned: durability overlaps with processing and delays nothing but the report.

::

    <location>/fronts/<front>-<partition>/<incarnation>-<sequence>.log

**Segments.** An incarnation writes segments of its own and never touches another's. The first block
of a segment is its header, which lists the older segments and their lengths when it was begun. So the
newest segment defines the log: the older ones that it lists, up to those lengths, and then itself. A
slow worker of an older incarnation may still append to its segment, or even begin another: readers of
the newer one ignore that. For this the worker opens the writer *before* it replays the log, and
replays `FrontLogWriter.entries`. The writer syncs older segments before its header lists them, since
it may be the first that relies on them.

**Entries** are ``(position, time)``, or ``(position, time, payload)`` for a source that cannot
replay. Times do not decrease. For a front with times of its own they are the promises that were in
force when each record was read. A *reservation* is an upper bound of promises that were made without an
element: the next incarnation assigns no new element a time below it. Entries that an incarnation
*drops* (at most once) stay dropped for all later ones, also for one that begins from the same cut: by
then there is output without them. They stay in the log, as a record of the input.

Entries are stored in batches, by column. Integers, such as times and most positions, are stored as the
first one and the differences, in as few bytes as the differences need.

**Group commit.** `append_columns` costs a tuple. `sync` writes all that was appended since the last
one as a block and waits for the disk once, while other threads append. A thread beside the worker
calls it in a loop; the longer the disk takes, the more the next sync covers::

    def keep_durable(log, appended, ended, report):
        while not ended.is_set():
            if appended.wait(timeout=0.1):  # set by the worker after it appended
                appended.clear()
                report(log.sync(mark=False))  # 'I shall not emit below ...' up to here
            else:
                log.mark()  # no batch follows that would be a witness of durability
        log.close()

**A disk that is full**, or read-only for a while: `sync` raises, and the caller may call it again. What
a failed write has left on the disk is unknown, so the writer begins another segment. Its header lists
the one before only up to where that was durable, and all later blocks are written again.

Other file systems than local disks have no append: there a segment is a folder, and each block a file,
which is durable when it is complete. On an object store the writer that takes a log over seals what is
there: the one before can add nothing more, and hears of it (`logs.object_segments`). A block is a request
there. One that the store does not answer is made again, with the same block under the same name.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import le
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.errors import CheckpointError, FencedError
from emberflow.checkpoint.files import is_unwritable, location_of
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
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: With so many entries in the buffer, the writer writes a block without waiting for a sync.
_WAITING_MAX = 32_768
#: A segment of this size is followed by another: in bytes, or in files if each block is a file.
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

    One thread calls `append` and `reserve`; another may call `sync`. If that raises because the disk
    takes no writes now (`is_unwritable`), call it again: nothing is lost. After any other error of the
    disk the writer accepts nothing more.

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
        self._lock = threading.Lock()  # guards the buffer
        self._sync_lock = threading.Lock()  # guards the segment; acquired before the other
        self._waiting: list[Columns] = []
        self._waiting_count = 0
        self._waiting_reservation: int | None = None
        #: The blocks that are not durable, and how many of these the segment has.
        self._undurable: list[bytes] = []
        self._added = 0
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
        # No block can follow those that are read now.
        self._log.take_over(segment_name(incarnation, 0))
        self._before = self._log.pieces()
        self._time, self._reservation, self._dropped = self._log.ends(self._before)
        self._inherited = self._reservation
        self._pieces = list(self._before)
        self._sequence = -1
        #: One that was begun, and could not be, and will be.
        self._beginning: Segment | None = None
        #: None after a write failed, until the next one begins another segment.
        self._segment: Segment | None = self._begun_segment()

    @property
    def time(self) -> int | None:
        """The last assigned time, also of earlier incarnations; the next one is greater."""
        return self._time

    @property
    def reservation(self) -> int | None:
        """The upper bound of what this incarnation, or an earlier one, may have promised."""
        return self._reservation

    @property
    def is_first(self) -> bool:
        """Whether no earlier incarnation had a log of this partition."""
        return not self._before

    def entries(self, *, from_time: int | None = None) -> Iterator[LogEntry]:
        """The entries of earlier incarnations, from a time on. The front assigns these times again,
        unless `is_dropped`.

        Read them before old segments are trimmed.
        """
        for batch in self._log.batches(self._before):
            yield from batch.entries_from(from_time)

    def drop_above(self, time: int) -> None:
        """Drop the entries of earlier incarnations above a time: no front assigns them again.

        This is durable when it returns, so every later entry follows a log without the dropped ones.
        """
        with self._sync_lock:
            with self._lock:
                self._check_usable()
                last = self._time
                if last is None or last <= time:
                    return
                self._dropped.append((time, last))
            self._undurable.append(DROPPED + json.dumps((time, last)).encode())
            self._sync()
            self._mark()

    def is_dropped(self, time: int) -> bool:
        """Whether the entry of this time was dropped."""
        return any(above < time <= last for above, last in self._dropped)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries. They become durable with the next `sync`."""
        for entry in entries:
            if len(entry) != self._width:
                raise self._entry_error(self._time, entry[:2], len(entry))
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
            values = None if payloads is None else _frozen(payloads)
            self._waiting.append((_frozen(positions), _frozen(times), values))
            self._waiting_count += len(times)
            self._time = times[-1]
            self._count += len(times)
            self._position = positions[-1]
            is_too_much = self._waiting_count >= _WAITING_MAX
        if is_too_much:
            with self._sync_lock:
                data, _ = self._drained()
                if data is not None:
                    self._undurable.append(data)
                    self._write_ahead()

    def reserve(self, time: int) -> None:
        """Allow promises up to this time. Durable with the next `sync`.

        A front reserves ahead, so that it can promise again and again while idle without another
        sync. This incarnation knows what it really promised and continues from there. The next one
        does not, and assigns no new element a time below the reservation.
        """
        with self._lock:
            self._check_usable()
            if self._reservation is None or time > self._reservation:
                self._reservation = self._waiting_reservation = time

    def sync(self, *, mark: bool = True) -> Durable:
        """Make all appended entries durable. Returns how far the log is durable.

        A thread that syncs in a loop need not `mark` each time: the next batch is a witness as well.
        """
        with self._sync_lock:
            reached = self._sync()
            if mark:
                self._mark()
            return reached

    def mark(self) -> None:
        """Add a witness of the last sync, if there is none yet (see `logs.blocks`)."""
        with self._sync_lock:
            self._check_usable()
            self._mark()

    def close(self) -> None:
        """Sync and close. Closing again does nothing."""
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
                    if self._segment is not None:
                        self._segment.close()

    def _sync(self) -> Durable:
        """Take the buffer, and write it while other threads append."""
        data, reached = self._drained()
        if data is not None:
            self._undurable.append(data)
        if not self._undurable:
            return reached
        with self._writing() as segment:
            self._add(segment, len(self._undurable) - 1)
            if self._added < len(self._undurable):
                segment.add_durably(self._undurable[-1])
            else:
                segment.sync()
            self._undurable, self._added = [], 0
            self._unmarked = True
            if segment.end >= self._segment_size:
                self._mark()
                segment.sync()
                self._go_on_behind(segment)
        return reached

    def _go_on_behind(self, segment: Segment) -> None:
        segment.seal(segment_name(self._incarnation, self._sequence + 1))
        self._leave_segment()
        self._segment = self._begun_segment()

    def _write_ahead(self) -> None:
        """Write blocks without waiting for the disk. If it takes none now, the next sync tries again."""
        if self._segment is not None:
            try:
                with self._writing() as segment:
                    self._add(segment, len(self._undurable))
            except OSError as error:
                if not is_unwritable(error):
                    raise

    def _add(self, segment: Segment, count: int) -> None:
        for body in self._undurable[self._added : count]:
            segment.add(body)
            self._added += 1

    def _mark(self) -> None:
        if self._unmarked:
            with self._writing() as segment:
                segment.mark()
            self._unmarked = False

    def _drained(self) -> tuple[bytes | None, Durable]:
        """Empty the buffer: its block, if it had anything, and how far that makes the log durable."""
        with self._lock:
            self._check_usable()
            waiting, self._waiting = self._waiting, []
            self._waiting_count = 0
            reservation, self._waiting_reservation = self._waiting_reservation, None
            reached = Durable(self._count, self._position, self._time, self._reservation)
        if not waiting and reservation is None:
            return None, reached
        with self._recording_failure():
            return BATCH + batch_data(waiting, reservation, payloads=self._width == 3), reached

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def _writing(self) -> Iterator[Segment]:
        """The segment to write to: another one, if a write failed before."""
        try:
            if self._segment is None:
                self._segment = self._begun_segment()
            elif self._segment.is_ending:
                self._go_on_behind(self._segment)
            yield self._segment
        except BaseException as error:
            if not is_unwritable(error):
                self._failure = error
            elif self._segment is None or not self._segment.is_resumed:
                self._leave_segment()
            raise

    def _leave_segment(self) -> None:
        """Close the segment. Later ones list what is durable of it."""
        segment, self._segment = self._segment, None
        self._added, self._unmarked = 0, False
        if segment is not None:
            self._pieces.append(Piece(segment.name, segment.durable))
            with suppress(OSError):  # all that counts is synced
                segment.close()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise CheckpointError(
                f"{self._log}: a write failed before ({self._failure!r}), so it is unknown how much "
                f"was written. Begin the next incarnation."
            ) from self._failure
        if self._closed:
            raise CheckpointError(f"{self._log}: this writer is closed.")

    def _check(
        self, positions: Sequence[Any], times: Sequence[int], payloads: Sequence[Any] | None
    ) -> None:
        width = 2 if payloads is None else 3
        before = self._time
        if self._inherited is not None and (before is None or before < self._inherited):
            before = self._inherited
        others = times if payloads is None else payloads
        rising = times.step > 0 if isinstance(times, range) else all(map(le, times, times[1:]))
        if (
            len(positions) == len(times) == len(others)
            and width == self._width
            and rising
            and (before is None or times[0] >= before)
        ):
            return
        for position, time, _ in zip(positions, times, others, strict=True):
            if width != self._width or not (before is None or time >= before):
                raise self._entry_error(before, (position, time), width)
            before = time

    def _entry_error(self, before: int | None, got: Any, parts: int) -> CheckpointError:
        return CheckpointError(
            f"{self._log}: expected an entry of {self._width} parts with a time of at least "
            f"{before}, got {got!r} with {parts} parts."
        )

    def _begun_segment(self) -> Segment:
        if self._pieces:
            self._log.sync(self._pieces[-1])
        header = {
            "format": FORMAT_VERSION,
            "front": self._log.front,
            "partition": self._log.partition,
            "incarnation": self._incarnation,
            "older": {piece.name: piece.limit for piece in self._pieces},
        }
        segment = self._beginning
        if segment is None:
            # A new name at each attempt: one that failed may have left a file, and this one supersedes it.
            self._sequence += 1
            segment = self._log.new_segment(segment_name(self._incarnation, self._sequence))
        try:
            segment.add(HEADER + json.dumps(header).encode())
            segment.sync()
            segment.mark()
        except BaseException:
            if segment.is_resumed:
                self._beginning = segment
                raise
            with suppress(OSError):
                segment.close()
                self._log.location.remove(f"{self._log.folder}/{segment.name}")
            raise
        self._beginning = None
        return segment


def _frozen(column: Sequence[Any]) -> Sequence[Any]:
    """A column that the caller cannot change before it is written."""
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
    """The entries of a log in order, as the newest incarnation sees it, or ``incarnation``.

    ``from_time`` leaves out those with smaller times: a cut at ``(t, front)`` needs those from ``t``
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
    """The greatest durable reservation; None if there is none."""
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
    """Remove the segments without entries from time ``before`` on, the time of the oldest kept cut.

    The newest segment always stays. Returns the names of the removed ones.
    """
    log = Log(location_of(location, filesystem), front, partition)
    removed = []
    for piece in log.pieces()[:-1]:
        time, reservation, _ = log.ends([piece])
        if any(end is not None and end >= before for end in (time, reservation)):
            break
        log.remove(piece.name)
        removed.append(piece.name)
    return removed
