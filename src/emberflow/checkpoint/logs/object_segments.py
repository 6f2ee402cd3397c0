"""Segments where files cannot be appended to: a folder for each, with a numbered file for each block.

On an object store these segments are *sealed*, which fences their writer without a lock:

- Each block is created, so a number is given once. The writer of a segment gives the numbers one behind
  the other.
- Whoever takes the log over gives the next number itself, to a *seal*: a block that names the segment with
  which the log goes on. The writer before finds its next number taken, whatever it does and however
  late: `FencedError`. If it was faster, the successor sees its block, and tries the number behind it.
- The writer seals its own segment too when it begins another one. So the segments are a chain of seals,
  from an empty one (`ROOT`) on, and `take_over` follows it to its end. There may be segments without any
  block but the seal: of writers that were taken over before they began.

So all that a writer has ever called durable is what its successor reads. `trim` keeps the seals of
segments that others have taken over, because a number that is free again could be given again.

Other file systems (HDFS) do not create. There a slow writer may still add blocks, which readers ignore.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from emberflow.checkpoint.errors import DamagedLogError, FencedError, TakenError
from emberflow.checkpoint.files import Location, ObjectLocation, write
from emberflow.checkpoint.logs.blocks import Block, block_at, encoded_block

SEAL = b"S"
#: What the first writer of a log seals.
ROOT = "000000-000000.log"
_OBJECT = re.compile(r"(\d+)\.frame")
#: A block is a request, and most of its time is waiting.
_READ_AT_ONCE, _READ_AHEAD = 16, 256


class ObjectSegment:
    """A segment that is being written: its end is the number of blocks."""

    is_resumed = False
    is_ending = False

    def __init__(self, location: Location, path: str) -> None:
        self.name = path.rpartition("/")[2]
        self._location = location
        self._path = path
        self.end = 0

    def add(self, body: bytes) -> None:
        self._write(_frame(self._path, self.end), encoded_block(body, self.end, self.end))
        self.end += 1

    add_durably = add

    def _write(self, path: str, data: bytes) -> None:
        write(self._location, path, data)

    @property
    def durable(self) -> int:
        return self.end

    def mark(self) -> None:
        """Nothing: every file is durable, and the numbers reveal a missing one."""

    def sync(self) -> None:
        """Nothing: a block is durable when `add` returns."""

    def seal(self, following: str) -> None:
        """Nothing: there are no seals here."""

    def close(self) -> None:
        """Nothing is open."""


class SealedSegment(ObjectSegment):
    """One on an object store. A block that could not be added is added again with the next call."""

    is_resumed = True

    def __init__(self, location: ObjectLocation, path: str) -> None:
        super().__init__(location, path)
        self._objects = location
        #: Stays the same until the block is stored, so that the store tells whether it was before.
        self._token = uuid.uuid4().hex

    def _write(self, path: str, data: bytes) -> None:
        try:
            self._objects.create(path, data, token=self._token)
        except TakenError:
            raise FencedError(
                f"{self._location.shown(path)} exists: another writer has taken this log over, or has "
                f"begun it too. Does each incarnation have only one writer per partition?"
            ) from None
        self._token = uuid.uuid4().hex

    def seal(self, following: str) -> None:
        self.is_ending = True
        self.is_ending = True
        self.add(_seal(following))


def take_over(
    location: ObjectLocation,
    folder: str,
    begun: str | None,
    own: str,
    checked: Callable[[str], None],
) -> None:
    """Seal the end of a log, which goes on with the segment ``own``.

    ``begun`` is its newest segment that has begun. ``checked`` raises for a segment that a newer writer
    has taken the log over with.
    """
    name = begun or ROOT
    while True:
        path = f"{folder}/{name}"
        end = count(location, path)
        following = None
        if end:
            block = _block(location, path, end - 1, location.shown(path))
            following = _sealed_for(block)
        if following is not None:
            checked(following)
            name = following
            continue
        with contextlib.suppress(TakenError):  # the writer before was faster: look again
            location.create(_frame(path, end), encoded_block(_seal(own), end, end))
            return


def count(location: Location, path: str) -> int:
    """The number behind the last block of a segment; 0 if there is none."""
    return max(_numbers(location, path), default=-1) + 1


def first_block(location: Location, path: str) -> Block | None:
    """The first block; None if the segment has not begun, or was trimmed."""
    shown = location.shown(path)
    if isinstance(location, ObjectLocation):
        numbers = _numbers(location, path)
        if not numbers:
            return None
        if 0 not in numbers and len(numbers) == 1:
            only = _block(location, path, numbers[0], shown)
            if _sealed_for(only) is not None:
                return None
    elif not _numbers(location, path):
        return None
    block = _block(location, path, 0, shown)
    return None if block.body[:1] == SEAL else block


def object_blocks(location: Location, path: str, limit: int | None) -> Iterator[Block]:
    """One file per block, completed one by one, so none may be missing or damaged."""
    shown = location.shown(path)
    end = limit if limit is not None else count(location, path)
    if not isinstance(location, ObjectLocation) or end < 2:
        for number in range(end):
            yield _block(location, path, number, shown)
        return
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        for begin in range(0, end, _READ_AHEAD):
            numbers = range(begin, min(begin + _READ_AHEAD, end))
            yield from pool.map(lambda number: _block(location, path, number, shown), numbers)


def is_trimmed(location: Location, path: str) -> bool:
    """Whether only the seal of a segment is left, or what a crash has left of trimming it."""
    return isinstance(location, ObjectLocation) and 0 not in _numbers(location, path)


def remove(location: ObjectLocation, path: str) -> None:
    """Remove a segment, but not the seal of another writer. The first block goes first: see `is_trimmed`."""
    numbers = _numbers(location, path)
    if not numbers:
        return
    following = _sealed_for(_block(location, path, numbers[-1], location.shown(path)))
    own = path.rpartition("/")[2].partition("-")[0]
    if following is not None and following.partition("-")[0] != own:
        numbers.pop()
    location.objects.remove([_frame(path, 0)])
    location.objects.remove(_frame(path, number) for number in numbers if number)


def _frame(path: str, number: int) -> str:
    return f"{path}/{number:010d}.frame"


def _numbers(location: Location, path: str) -> list[int]:
    names = filter(_OBJECT.fullmatch, location.names(path))
    return sorted(int(name.partition(".")[0]) for name in names)


def _block(location: Location, path: str, number: int, shown: str) -> Block:
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = location.read(_frame(path, number))
    block = block_at(data, 0, number=number)
    if block is None or block.end != len(data):
        raise DamagedLogError(
            f"{shown} is damaged at offset {number}: the file of that number is "
            f"{'damaged' if data else 'missing'}, and was durable. Restore it from a backup."
        )
    return block._replace(offset=number, end=number + 1)


def _seal(following: str) -> bytes:
    return SEAL + json.dumps({"next": following}).encode()


def _sealed_for(block: Block) -> str | None:
    """The segment with which the log goes on behind this block, if it is a seal."""
    return str(json.loads(block.body[1:])["next"]) if block.body[:1] == SEAL else None
