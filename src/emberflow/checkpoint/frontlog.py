"""Front logs: a global time once given is given again on replay.

A front that takes arrival time, or that promised something while idle, has chosen what the source
does not know. It appends its choices here, and the report that covers them is sent only when `sync`
has returned: durability overlaps with processing and delays nothing but the report.

::

    <location>/fronts/<front>-<partition>/<incarnation>-<sequence>.log

**Segments.** An incarnation writes segments of its own and never touches another's. The first frame
of a segment is its header, which lists the older segments and how long they were when it was begun.
So the newest segment says what the log is: the older ones that it lists, exactly so far, and then
itself. A worker of an older incarnation that is only slow may go on appending to its segment, or even
begin another: no reader of the newer one sees it. For this the writer is opened *before* the
log is replayed, and replays what `FrontLogWriter.entries` gives. What the older segments hold is
synced before the header lists it, since it may be the first that relies on it.

**Entries** are ``(position, time)``, or ``(position, time, payload)`` for a source that cannot
replay. Times go up. A *reservation* is how far promises may have gone without an element: new ones of
the next incarnation get no time below it.
They are stored in batches as columns: of whole numbers, such as times and most positions, the first
one and the differences, each in as few bytes as they need.

**Group commit.** `append` costs a list; `sync` writes all that was appended since the last one as a
frame and calls ``fsync`` once, while others append. A thread beside the worker does it again and
again; the longer an ``fsync`` takes, the more it covers::

    def keep_durable(log, appended, ended, report):
        while not ended.is_set():
            if appended.wait(timeout=0.1):  # set by the worker after append() or reserve()
                appended.clear()
                report(log.sync())  # 'I shall not emit below ...' up to here
        log.close()

Elsewhere than on a local disk there is no append: a segment is a folder there, and each frame a file,
durable when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

from emberflow.checkpoint.errors import CheckpointError, DamagedLogError, FencedError
from emberflow.checkpoint.files import (
    LocalLocation,
    Location,
    location_of,
    make_folder,
    sync_folder,
    write,
)
from emberflow.checkpoint.frames import Frame, frame_at, framed, frames

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: ``(position, time)`` or ``(position, time, payload)``
Entry: TypeAlias = tuple[Any, ...]

FORMAT_VERSION = 1
_SEGMENT = re.compile(r"(\d+)-(\d+)\.log")
_OBJECT = re.compile(r"(\d+)\.frame")
_HEADER, _BATCH, _MARK = b"H", b"B", b"M"
#: More entries than this make a frame without waiting for a sync: what waits is bounded.
_WAITING_MAX = 4096
#: A segment that has come to this is followed by another: bytes, or files where a frame is one.
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
        self._log = _Log(location_of(location, filesystem), front, partition)
        default = _SEGMENT_BYTES if self._log.location.is_local else _SEGMENT_OBJECTS
        self._segment_size = default if segment_size is None else segment_size
        self._incarnation = incarnation
        self._width = 3 if payloads else 2
        self._lock = threading.Lock()  # what waits, and the segment
        self._sync_lock = threading.Lock()  # one sync at a time
        self._waiting: list[Entry] = []
        self._waiting_reservation: int | None = None
        self._unsynced = False
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
        self._time, self._reservation = self._log.ends(self._before)
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

    def entries(self, *, from_time: int | None = None) -> Iterator[Entry]:
        """What the incarnations before this one have given, from a time on: to be given again.

        To be read before old segments are trimmed.
        """
        for batch in self._log.batches(self._before):
            yield from batch.entries_from(from_time)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add what was given. It becomes durable with the next `sync`."""
        if not entries:
            return
        with self._lock:
            self._check_usable()
            self._check(entries)
            self._waiting += entries
            self._time = entries[-1][1]
            self._count += len(entries)
            self._position = entries[-1][0]
            if len(self._waiting) >= _WAITING_MAX:
                self._write_waiting()

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

    def sync(self) -> Durable:
        """Make all that was appended durable, and say how far that is."""
        with self._sync_lock:
            return self._sync()

    def close(self) -> None:
        """Sync and end. Closing again does nothing."""
        with self._sync_lock:
            if self._closed:
                return
            try:
                if self._failure is None:
                    self._sync()
            finally:
                with self._lock:
                    self._closed = True
                    self._segment.close()

    def _sync(self) -> Durable:
        with self._lock:
            self._check_usable()
            self._write_waiting()
            reached = Durable(self._count, self._position, self._time, self._reservation)
            segment, needed, end = self._segment, self._unsynced, self._segment.end
            self._unsynced = False
        if needed:
            try:
                segment.sync(end)  # without the lock: others append meanwhile
                with self._lock:
                    segment.mark()
                    if segment.end >= self._segment_size:
                        self._roll()
            except BaseException as error:
                self._failure = error
                raise
        return reached

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise CheckpointError(
                f"{self._log}: a write failed before ({self._failure!r}), and what came of it is "
                f"unknown. Begin the next incarnation."
            ) from self._failure
        if self._closed:
            raise CheckpointError(f"{self._log}: this writer is closed.")

    def _check(self, entries: Sequence[Entry]) -> None:
        before = self._time
        if self._inherited is not None and (before is None or before < self._inherited):
            before = self._inherited - 1
        for entry in entries:
            time = entry[1]
            if len(entry) != self._width or not (before is None or time > before):
                raise CheckpointError(
                    f"{self._log}: expected an entry of {self._width} parts with a time above "
                    f"{before}, got {entry[:2]!r} with {len(entry)} parts."
                )
            before = time

    def _write_waiting(self) -> None:
        if not self._waiting and self._waiting_reservation is None:
            return
        batch = _Batch.of(self._waiting, self._waiting_reservation, self._width)
        try:
            self._segment.add(_BATCH + batch.data())
        except BaseException as error:
            self._failure = error
            raise
        self._waiting = []
        self._waiting_reservation = None
        self._unsynced = True

    def _roll(self) -> None:
        """Go on in a new segment, so that old ones can be dropped."""
        old = self._segment
        old.sync(old.end)
        self._unsynced = False
        self._pieces.append(_Piece(old.name, old.end))
        self._segment = self._begin_segment(_sequence_of(old.name) + 1)
        old.close()

    def _begin_segment(self, sequence: int) -> _Segment:
        if self._pieces:
            self._log.sync(self._pieces[-1])
        header = {
            "format": FORMAT_VERSION,
            "front": self._log.front,
            "partition": self._log.partition,
            "incarnation": self._incarnation,
            "older": {piece.name: piece.limit for piece in self._pieces},
        }
        segment = self._log.new_segment(_segment_name(self._incarnation, sequence))
        try:
            segment.add(_HEADER + json.dumps(header).encode())
            segment.sync(segment.end)
            segment.mark()
        except BaseException:
            segment.close()
            raise
        return segment


def read_log(
    location: str | os.PathLike[str],
    front: str,
    partition: int,
    *,
    from_time: int | None = None,
    after_position: Any = ...,
    incarnation: int | None = None,
    filesystem: FileSystem | None = None,
) -> Iterator[Entry]:
    """The entries of a log in their order, as the newest incarnation sees it, or the given one.

    ``from_time`` leaves out those with smaller times: a cut at ``(t, front)`` wants those from ``t``
    on. ``after_position`` leaves out all up to the entry with this position, if there is one.
    """
    log = _Log(location_of(location, filesystem), front, partition)
    pieces = log.pieces(incarnation)
    entries = (entry for batch in log.batches(pieces) for entry in batch.entries_from(from_time))
    if after_position is ...:
        yield from entries
        return
    skipped: list[Entry] = []
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
    log = _Log(location_of(location, filesystem), front, partition)
    return log.ends(log.pieces(incarnation))[1]


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
    log = _Log(location_of(location, filesystem), front, partition)
    removed = []
    for piece in log.pieces()[:-1]:
        time, reservation = log.ends([piece])
        if any(end is not None and end >= before for end in (time, reservation)):
            break
        log.location.remove(f"{log.folder}/{piece.name}")
        removed.append(piece.name)
    return removed


# --- Batches --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Batch:
    positions: list[Any]
    times: list[int]
    payloads: list[Any] | None
    reservation: int | None

    @classmethod
    def of(cls, entries: list[Entry], reservation: int | None, width: int) -> _Batch:
        return cls(
            [entry[0] for entry in entries],
            [entry[1] for entry in entries],
            [entry[2] for entry in entries] if width == 3 else None,
            reservation,
        )

    def data(self) -> bytes:
        columns = (_packed(self.positions), _packed(self.times), self.payloads, self.reservation)
        return pickle.dumps(columns, 5)

    @classmethod
    def read(cls, data: bytes) -> _Batch:
        positions, times, payloads, reservation = pickle.loads(data)
        return cls(_unpacked(positions), _unpacked(times), payloads, reservation)

    def entries_from(self, time: int | None) -> Iterator[Entry]:
        columns: list[list[Any]] = [self.positions, self.times]
        if self.payloads is not None:
            columns.append(self.payloads)
        for entry in zip(*columns, strict=True):
            if time is None or entry[1] >= time:
                yield entry


def _packed(values: list[Any]) -> Any:
    """Whole numbers as the first one and the differences; other values as they are.

    >>> _packed([1000, 1001, 1003])
    (1000, 'b', b'\\x01\\x02')
    """
    if not values or any(type(value) is not int for value in values):
        return values
    differences = [after - before for before, after in pairwise(values)]
    low, high = min(differences, default=0), max(differences, default=0)
    for typecode, bits in (("b", 7), ("h", 15), ("i", 31), ("q", 63)):
        if -(1 << bits) <= low and high < 1 << bits:
            return values[0], typecode, array(typecode, differences).tobytes()
    return values


def _unpacked(packed: Any) -> list[Any]:
    if isinstance(packed, list):
        return packed
    value, typecode, data = packed
    values = [value]
    for difference in array(typecode, data):
        value += difference
        values.append(value)
    return values


# --- Segments -------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A segment of a log, and how much of it counts: None for as much as there is."""

    name: str
    limit: int | None


class _Segment(Protocol):
    """A segment that is being written. ``end`` is where the next frame goes."""

    name: str
    end: int

    def add(self, body: bytes) -> None: ...
    def mark(self) -> None: ...
    def sync(self, end: int) -> None: ...
    def close(self) -> None: ...


class _LocalSegment:
    """A file that is appended to."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.name = path.name
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_folder(path.parent)
        self.end = 0
        self._durable = 0

    def add(self, body: bytes) -> None:
        frame = memoryview(framed(body, self.end, self._durable))
        self.end += len(frame)
        while frame:
            frame = frame[os.write(self._descriptor, frame) :]

    def mark(self) -> None:
        self.add(_MARK)

    def sync(self, end: int) -> None:
        os.fsync(self._descriptor)
        self._durable = max(self._durable, end)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _ObjectSegment:
    """A folder with a file for each frame, which are numbered: its end is their number."""

    def __init__(self, location: Location, path: str) -> None:
        self.name = path.rpartition("/")[2]
        self._location = location
        self._path = path
        self.end = 0

    def add(self, body: bytes) -> None:
        write(
            self._location, f"{self._path}/{self.end:010d}.frame", framed(body, self.end, self.end)
        )
        self.end += 1

    def mark(self) -> None:
        """Nothing: a file that is there is durable, and a missing one is missed."""

    def sync(self, end: int) -> None:
        """Nothing: `add` has returned."""

    def close(self) -> None:
        """Nothing is open."""


class _Log:
    """The segments of one partition of a front."""

    def __init__(self, location: Location, front: str, partition: int) -> None:
        self.location = location
        self.front, self.partition = front, partition
        self.folder = f"fronts/{quote(front, safe='')}-{partition}"

    def __str__(self) -> str:
        return self.location.shown(self.folder)

    def names(self) -> list[tuple[int, int, str]]:
        """Incarnation, sequence and name of each segment, begun or not, in order."""
        matches = map(_SEGMENT.fullmatch, self.location.names(self.folder))
        return sorted((int(match[1]), int(match[2]), match[0]) for match in matches if match)

    def new_segment(self, name: str) -> _Segment:
        path = f"{self.folder}/{name}"
        if not isinstance(self.location, LocalLocation):
            return _ObjectSegment(self.location, path)
        try:
            return _LocalSegment(self.location.root / path)
        except FileExistsError:
            raise FencedError(
                f"{self.location.shown(path)} exists: another writer has begun it. Does each "
                f"incarnation have one writer a partition?"
            ) from None

    def pieces(self, incarnation: int | None = None) -> list[_Piece]:
        """What the log is made of, as the newest segment says, or that of the incarnation."""
        names = [name for of, _, name in self.names() if incarnation is None or of <= incarnation]
        for newest in reversed(names):
            header = self._header(newest)
            if header is not None:
                break
        else:
            return []
        found: list[_Piece] = []
        for name, limit in sorted(header["older"].items()):
            if name in names:
                found.append(_Piece(name, limit))
            elif found:
                raise DamagedLogError(
                    f"{self.location.shown(f'{self.folder}/{name}')} is missing, and an older "
                    f"segment is there. Bring the file back from a copy."
                )
        # The length now: what is appended while we read is for the next reader.
        return [*found, _Piece(newest, self._end(newest))]

    def _end(self, name: str) -> int:
        end = 0
        for frame in self._frames(_Piece(name, None)):
            end = frame.end
        return end

    def _header(self, name: str) -> dict[str, Any] | None:
        """What a segment says of the older ones; None if a crash came before it was begun."""
        first = next(self._frames(_Piece(name, None)), None)
        if first is None:
            return None
        header: dict[str, Any] = json.loads(first.body[1:])
        if header["format"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.location.shown(f'{self.folder}/{name}')} has version {header['format']} of "
                f"the format, and this Emberflow knows version {FORMAT_VERSION}."
            )
        return header

    def batches(self, pieces: Sequence[_Piece]) -> Iterator[_Batch]:
        for piece in pieces:
            for frame in self._frames(piece):
                if frame.body[:1] == _BATCH:
                    yield _Batch.read(frame.body[1:])

    def ends(self, pieces: Sequence[_Piece]) -> tuple[int | None, int | None]:
        """The greatest time and the greatest reservation."""
        time: int | None = None
        reservation: int | None = None
        for batch in self.batches(pieces):
            if batch.times:
                time = batch.times[-1]
            if batch.reservation is not None:
                reservation = batch.reservation
        return time, reservation

    def sync(self, piece: _Piece) -> None:
        if isinstance(self.location, LocalLocation):
            descriptor = os.open(self.location.root / self.folder / piece.name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _frames(self, piece: _Piece) -> Iterator[Frame]:
        path = f"{self.folder}/{piece.name}"
        shown = self.location.shown(path)
        if isinstance(self.location, LocalLocation):
            return frames(self.location.read(path), shown, piece.limit)
        return self._object_frames(path, shown, piece.limit)

    def _object_frames(self, path: str, shown: str, limit: int | None) -> Iterator[Frame]:
        """A file a frame. They were written one by one, so none may be missing or damaged."""
        names = filter(_OBJECT.fullmatch, self.location.names(path))
        numbers = sorted(int(name.partition(".")[0]) for name in names)
        end = limit if limit is not None else max(numbers, default=-1) + 1
        for number in range(end):
            name = f"{path}/{number:010d}.frame"
            data = b""
            with contextlib.suppress(FileNotFoundError):
                data = self.location.read(name)
            frame = frame_at(data, 0, number=number)
            if frame is None or frame.end != len(data):
                raise DamagedLogError(
                    f"{shown} is damaged at offset {number}: the file of that number is "
                    f"{'damaged' if data else 'missing'}, and was durable. Bring it back from a copy."
                )
            yield frame._replace(offset=number, end=number + 1)


def _segment_name(incarnation: int, sequence: int) -> str:
    return f"{incarnation:06d}-{sequence:06d}.log"


def _sequence_of(name: str) -> int:
    match = _SEGMENT.fullmatch(name)
    assert match is not None
    return int(match[2])
