"""The parts of a front log: batches of entries, in the blocks of segments.

A `Log` reads from the newest segment's header which segments belong to it, and up to which length. A
`Segment` is one that is being written. `logs.front_log` explains the purpose.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

from emberflow.checkpoint.errors import CheckpointError, DamagedLogError, FencedError
from emberflow.checkpoint.files import (
    LocalLocation,
    Location,
    ObjectLocation,
    make_private_folder,
    private_opener,
    sync_folder,
)
from emberflow.checkpoint.logs.blocks import Block, blocks, encoded_block
from emberflow.checkpoint.logs.object_segments import (
    ObjectSegment,
    SealedSegment,
    count,
    first_block,
    is_trimmed,
    object_blocks,
    remove,
    take_over,
)
from emberflow.values.nesting import Flat, can_be_pickled

#: ``(position, time)`` or ``(position, time, payload)``
LogEntry: TypeAlias = tuple[Any, ...]


class OwnTime(NamedTuple):
    """A payload in the log of a source that cannot be read again, with the time it came with."""

    time: Any
    payload: Any


FORMAT_VERSION = 1
_SEGMENT = re.compile(r"(\d+)-(\d+)\.log")
#: The flag of a write that returns when its data is durable. 0 if the system has no such flag.
_DURABLY = getattr(os, "RWF_DSYNC", 0)
#: The errors of file systems that do not support it.
_NO_SUCH_WRITE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
HEADER, BATCH, MARK, DROPPED = b"H", b"B", b"M", b"D"


# --- Batches --------------------------------------------------------------------------------------


#: Entries by column, as they were appended: positions, times and, if the log has them, payloads.
Columns: TypeAlias = tuple[Sequence[Any], Sequence[int], Sequence[Any] | None]


@dataclass(slots=True)
class Batch:
    positions: list[Any]
    times: list[int]
    payloads: list[Any] | None
    reservation: int | None

    @classmethod
    def read(cls, data: bytes) -> Batch:
        positions, times, payloads, reservation = pickle.loads(data)
        return cls(_unpacked(positions), _unpacked(times), payloads, reservation)

    def entries_from(self, time: int | None) -> Iterator[LogEntry]:
        columns: list[list[Any]] = [self.positions, self.times]
        if self.payloads is not None:
            columns.append(self.payloads)
        for entry in zip(*columns, strict=True):
            if time is None or entry[1] >= time:
                yield entry


def batch_data(parts: Sequence[Columns], reservation: int | None, *, payloads: bool) -> bytes:
    """All appended columns as one batch that `Batch.read` reads.

    >>> Batch.read(batch_data([(range(3), range(7, 10), None)], None, payloads=False))
    Batch(positions=[0, 1, 2], times=[7, 8, 9], payloads=None, reservation=None)
    """
    values = [payload for _, _, own in parts for payload in own or ()] if payloads else None
    positions, times = _packed([part[0] for part in parts]), _packed([part[1] for part in parts])
    try:
        return pickle.dumps((positions, times, values, reservation), 5)
    except RecursionError:  # a payload is nested too deeply for pickle
        flat = [each if can_be_pickled(each) else Flat(each) for each in values or ()]
        return pickle.dumps((positions, times, flat, reservation), 5)


def _packed(parts: Sequence[Sequence[Any]]) -> Any:
    """Integers as the first one and the differences; other values unchanged.

    Ranges are not expanded: a worker reads elements faster than a loop could visit their positions.

    >>> _packed([[1000, 1001, 1003]])
    (1000, 'b', b'\\x01\\x02')
    >>> _packed([range(1000, 1002), [1003]])
    (1000, 'b', b'\\x01\\x02')
    """
    parts = [part for part in parts if part]
    if not parts or not all(
        part.__class__ is range or set(map(type, part)) == {int} for part in parts
    ):
        return [value for part in parts for value in part]
    #: Lists of differences, and how often each list is repeated.
    found: list[tuple[Sequence[int], int]] = []
    for before, part in pairwise((parts[0][:1], *parts)):
        found.append(([part[0] - before[-1]], 1))
        if part.__class__ is range:
            found.append(([part.step], len(part) - 1))
        else:
            found.append((list(map(sub, part[1:], part)), 1))
    del found[0]  # the first one has no difference
    counted = [(some, times) for some, times in found if some and times]
    low = min((min(some) for some, _ in counted), default=0)
    high = max((max(some) for some, _ in counted), default=0)
    for typecode, bits in (("b", 7), ("h", 15), ("i", 31), ("q", 63)):
        if -(1 << bits) <= low and high < 1 << bits:
            data = b"".join(array(typecode, some).tobytes() * times for some, times in counted)
            return parts[0][0], typecode, data
    return [value for part in parts for value in part]


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


class Piece(NamedTuple):
    """A segment of a log, and how much of it belongs to the log: None for all of it."""

    name: str
    limit: int | None


class Ends(NamedTuple):
    """The greatest time and the greatest reservation of a log, and the times of its dropped entries:
    above the first of each pair, up to and including the second."""

    time: int | None
    reservation: int | None
    dropped: list[tuple[int, int]]


class Segment(Protocol):
    """A segment that is being written. ``end`` is the offset of the next block; all blocks up to
    ``durable`` are durable, whatever happens to others."""

    name: str
    end: int

    @property
    def is_resumed(self) -> bool:
        """Whether a write that failed is repeated here, and not in another segment."""

    @property
    def is_ending(self) -> bool:
        """Whether its seal was begun: nothing else may be added."""

    @property
    def durable(self) -> int: ...
    def add(self, body: bytes) -> None: ...
    def add_durably(self, body: bytes) -> None: ...
    def mark(self) -> None: ...
    def sync(self) -> None: ...
    def seal(self, following: str) -> None:
        """Say that the log goes on with that segment."""

    def close(self) -> None: ...


class _LocalSegment:
    """A file that is appended to."""

    is_resumed = False
    is_ending = False

    def __init__(self, path: Path) -> None:
        make_private_folder(path.parent)
        self.name = path.name
        self._descriptor = private_opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        sync_folder(path.parent)
        self.end = 0
        self.durable = 0
        self._durably = _DURABLY
        #: Whether all added blocks are durable.
        self._is_synced = True

    def add(self, body: bytes) -> None:
        self._is_synced = False
        self._add(body, 0)

    def add_durably(self, body: bytes) -> None:
        """Add a block and sync: in one system call, if no other block has to be synced.

        A thread that makes two system calls waits for the interpreter lock twice.
        """
        if self._durably and self._is_synced:
            try:
                self._add(body, self._durably)
                self.durable = self.end
                return
            except OSError as error:
                if error.errno not in _NO_SUCH_WRITE:
                    raise
                self._durably = 0
        self.add(body)
        self.sync()

    def _add(self, body: bytes, flags: int) -> None:
        block = memoryview(encoded_block(body, self.end, self.durable))
        end = self.end + len(block)
        while block:
            if flags:
                written = os.pwritev(self._descriptor, [block], end - len(block), flags)
            else:
                written = os.write(self._descriptor, block)
            block = block[written:]
        self.end = end

    def mark(self) -> None:
        self.add(MARK)

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._is_synced = True
        self.durable = self.end

    def seal(self, following: str) -> None:
        """Nothing: the header of the next segment says so."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Log:
    """The segments of one partition of a front."""

    def __init__(self, location: Location, front: str, partition: int) -> None:
        self.location = location
        self.front, self.partition = front, partition
        self.folder = f"fronts/{quote(front, safe='')}-{partition}"

    def __str__(self) -> str:
        return self.location.shown(self.folder)

    def names(self) -> list[tuple[int, int, str]]:
        """Incarnation, sequence and name of each segment, with a header or without, in order."""
        matches = map(_SEGMENT.fullmatch, self.location.names(self.folder))
        return sorted((int(match[1]), int(match[2]), match[0]) for match in matches if match)

    def new_segment(self, name: str) -> Segment:
        path = f"{self.folder}/{name}"
        if isinstance(self.location, ObjectLocation):
            return SealedSegment(self.location, path)
        if not isinstance(self.location, LocalLocation):
            return ObjectSegment(self.location, path)
        try:
            return _LocalSegment(self.location.root / path)
        except FileExistsError:
            raise FencedError(
                f"{self.location.shown(path)} exists: another writer has begun it. Does each "
                f"incarnation have only one writer per partition?"
            ) from None

    def take_over(self, own: str) -> None:
        """Let the log go on with the segment ``own``: from now on, writers of others can add nothing.

        Only an object store can tell them. Elsewhere readers ignore what they add.
        """
        if not isinstance(self.location, ObjectLocation):
            return

        def checked(following: str) -> None:
            if following >= own:
                raise FencedError(
                    f"{self}: the log goes on with {following}, and a writer of {own} comes too late. "
                    f"Begin the next incarnation."
                )

        begun = next((n for _, _, n in reversed(self.names()) if self._header(n)), None)
        take_over(self.location, self.folder, begun, own, checked)

    def remove(self, name: str) -> None:
        path = f"{self.folder}/{name}"
        if isinstance(self.location, ObjectLocation):
            remove(self.location, path)
        else:
            self.location.remove(path)

    def pieces(self, incarnation: int | None = None) -> list[Piece]:
        """The pieces of the log by the newest segment's header, or by that of an incarnation."""
        names = [name for of, _, name in self.names() if incarnation is None or of <= incarnation]
        for newest in reversed(names):
            header = self._header(newest)
            if header is not None:
                break
        else:
            return []
        found: list[Piece] = []
        for name, limit in sorted(header["older"].items()):
            if name in names and not is_trimmed(self.location, f"{self.folder}/{name}"):
                found.append(Piece(name, limit))
            elif found:
                raise DamagedLogError(
                    f"{self.location.shown(f'{self.folder}/{name}')} is missing, and an older "
                    f"segment is there. Restore the file from a backup."
                )
        # The length now: blocks that are added while this reader reads are for the next one.
        return [*found, Piece(newest, self._end(newest))]

    def older_than(self, piece: Piece) -> list[str]:
        """The older segments that a segment lists, whether or not they still exist."""
        header = self._header(piece.name)
        return [] if header is None else list(header["older"])

    def _end(self, name: str) -> int:
        if not isinstance(self.location, LocalLocation):
            return count(self.location, f"{self.folder}/{name}")
        end = 0
        for block in self._blocks(Piece(name, None)):
            end = block.end
        return end

    def _header(self, name: str) -> dict[str, Any] | None:
        """The header of a segment; None if a crash came before it was written."""
        if isinstance(self.location, LocalLocation):
            first = next(self._blocks(Piece(name, None)), None)
        else:
            first = first_block(self.location, f"{self.folder}/{name}")
        if first is None:
            return None
        header: dict[str, Any] = json.loads(first.body[1:])
        if header["format"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.location.shown(f'{self.folder}/{name}')} has version {header['format']} of "
                f"the format, and this Emberflow knows version {FORMAT_VERSION}."
            )
        return header

    def batches(self, pieces: Sequence[Piece]) -> Iterator[Batch]:
        for piece in pieces:
            for block in self._blocks(piece):
                if block.body[:1] == BATCH:
                    yield Batch.read(block.body[1:])

    def ends(self, pieces: Sequence[Piece]) -> Ends:
        """The last time and reservation of a log, and its dropped entries."""
        time: int | None = None
        reservation: int | None = None
        dropped: list[tuple[int, int]] = []
        for piece in pieces:
            for block in self._blocks(piece):
                kind, data = block.body[:1], block.body[1:]
                if kind == DROPPED:
                    above, last = json.loads(data)
                    dropped.append((above, last))
                elif kind == BATCH:
                    batch = Batch.read(data)
                    time = batch.times[-1] if batch.times else time
                    reservation = reservation if batch.reservation is None else batch.reservation
        return Ends(time, reservation, dropped)

    def sync(self, piece: Piece) -> None:
        if isinstance(self.location, LocalLocation):
            descriptor = os.open(self.location.root / self.folder / piece.name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _blocks(self, piece: Piece) -> Iterator[Block]:
        path = f"{self.folder}/{piece.name}"
        shown = self.location.shown(path)
        if isinstance(self.location, LocalLocation):
            return blocks(self.location.read(path), shown, piece.limit)
        return object_blocks(self.location, path, piece.limit)


def segment_name(incarnation: int, sequence: int) -> str:
    return f"{incarnation:06d}-{sequence:06d}.log"
