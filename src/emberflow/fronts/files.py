"""`fronts.Files`: the lines of the files of a folder that grows.

Guarantees:

1. *The order is a property of the folder, not of the moment.* The front reads files in the order of
   their names, and lines in the order of the file. It leaves a file only when a later file is there
   and this one is at its end. It then reads this one once more, so that it misses nothing that was
   written before the later file.
2. *A position is the name of a file and the byte offset behind the line.* Reading from it gives
   exactly the lines that follow, whoever reads, as often as they like.
3. *What would break the order is an error, not a loss.* The front raises an error that says what
   happened when a file grows after a later one was begun, when a new name sorts before the file being
   read, when a file shrinks or is removed or replaced, and when a file that is done ends in a line
   without a newline. It looks for growth in the files it left last, and only while it is idle.
4. *A line that cannot be decoded is `Malformed`*, and the front reads on: see `lines`.

So the writer appends to the last file, begins each new file with a later name (a number or a time with
leading zeros), and never touches earlier files again.

The folder may be one of an object store (``s3://bucket/folder``): see `folders`.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time as clock
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from emberflow.checkpoint.objects import Objects, is_object_url
from emberflow.errors import InputError
from emberflow.fronts.folders import OpenFile, folder_of
from emberflow.fronts.lines import LINE_BYTES_MAX, LineFormat, TimeOf
from emberflow.fronts.protocol import Element
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.times import DEFAULT_UNIT, Duration, Time, Unit, milliseconds

_CHUNK_BYTES = 256 * 1024
#: Files that were left and are still watched for growth.
_WATCHED_MAX = 100


class Files:
    """The lines of a folder's files: JSON Lines (``"jsonl"``) or plain ones (``"text"``).

    ``pattern`` selects files by name (``"*.log"``). The front ignores folders, and names that begin
    with a dot. Names sort by their code points. ``time`` is a field of the payload or a function of
    it; without it elements get the time of their arrival. ``disorder`` is how far times may go back,
    and ``on_late`` what happens to a line that is later: `docs/event-time.md` explains both,
    ``watermark`` and ``ahead``. Datetimes and durations are counted in ``unit``. Blank lines are not
    JSON, and the front skips them; lines of text may be blank.

    The front waits for more and looks every ``poll_ms``: 20 ms, and 1 s on an object store, where a look
    costs money. With ``until_end=True`` it ends at the end of
    the last file. The worker that reads the front must see the folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "1.txt").write_text("ash\\nember\\n")
    >>> front = Files(folder, format="text", until_end=True)
    >>> list(front.read(0, ("1.txt", 4)))
    [Element(position=('1.txt', 10), payload='ember', time=None)]
    """

    partitions = 1

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        format: str = "jsonl",
        pattern: str = "*",
        time: TimeOf | None = None,
        poll_ms: float | Duration | None = None,
        until_end: bool = False,
        disorder: Duration = 0,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
        unit: Unit = DEFAULT_UNIT,
    ) -> None:
        #: None on an object store.
        self.folder: Path | None = None
        self.objects: Objects | None = None
        text = os.fspath(folder)
        if is_object_url(text):
            self.objects = Objects(text)
        elif "://" in text:
            raise InputError(
                f"fronts.Files reads a folder of a local disk, or of an object store as in "
                f"s3://bucket/folder, got {text!r}."
            )
        else:
            self.folder = Path(text).absolute()
        if poll_ms is None:
            poll_ms = folder_of(self.place).poll_ms
        poll_ms = milliseconds(poll_ms, "fronts.Files(poll_ms=)")
        if not poll_ms > 0:
            raise InputError(f"fronts.Files(poll_ms=) takes milliseconds, got {poll_ms!r}.")
        self.lines = LineFormat("Files", format, time, unit)
        self.arrival = time is None
        self.event_time = event_time(
            "fronts.Files",
            disorder=disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self.unit = unit
        self.pattern = pattern
        self.poll_seconds = poll_ms / 1_000
        self.until_end = until_end

    @property
    def place(self) -> Path | Objects:
        place = self.objects or self.folder
        assert place is not None
        return place

    def check(self) -> None:
        """Raises `InputError` if there is no such folder, or no such bucket."""
        if self.objects is not None:
            self.objects.listed()
        problem = folder_of(self.place).problem()
        if problem is not None:
            raise InputError(f"fronts.Files: {problem}")

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        self.check()
        reading = _Reading(self)
        try:
            if position is not None:
                reading.go_on_from(*position)
            yield from reading.elements()
        finally:
            reading.close()


class _Reading:
    """One pass through the folder."""

    def __init__(self, front: Files) -> None:
        self._front = front
        self._folder = folder_of(front.place)
        self._matches = re.compile(fnmatch.translate(front.pattern)).match
        self._known: set[str] = set()
        self._later: deque[str] = deque()
        self._left: deque[tuple[str, int]] = deque(maxlen=_WATCHED_MAX)
        self._file: OpenFile | None = None
        self._name = ""
        self._offset = 0  # behind the last whole line
        self._rest = b""  # the bytes read behind it
        self._counted = (0, 0)  # an offset in this file, and how many lines are before it

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def go_on_from(self, name: str, offset: int) -> None:
        try:
            self._open(name)
        except FileNotFoundError:
            raise InputError(
                f"fronts.Files cannot go on from byte {offset} of {self._path(name)}: there is no "
                "such file. A file is needed until all that it held is part of a cut."
            ) from None
        assert self._file is not None
        self._offset = self._file.seek(offset)
        # An earlier life has read the files that are there and sort before this one.
        self._known.update(found for found in self._names() if found <= name)
        self._check_file()

    def elements(self) -> Iterator[Element | None]:
        while True:
            if self._file is not None:
                yield from self._lines()
            if not self._later and self._look() and self._file is not None:
                # Lines written before the later file: the first pass may have missed them.
                yield from self._lines()
            if self._later:
                self._leave_for(self._later.popleft())
            elif self._front.until_end:
                self._check_whole("it is read until the end")
                return
            else:
                self._check_file()
                self._check_left()
                clock.sleep(self._front.poll_seconds)
                yield None

    def _lines(self) -> Iterator[Element | None]:
        """Elements of this file up to its present end."""
        assert self._file is not None
        lines_of, name = self._front.lines, self._name
        while chunk := self._file.read(_CHUNK_BYTES):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                if lines_of.is_element(line):
                    try:
                        payload = lines_of.payload(line, self._where)
                        time = lines_of.time(payload, self._where)
                    except InputError as error:
                        payload, time = lines_of.malformed(line, error), None
                    self._offset += len(line) + 1
                    yield Element((name, self._offset), payload, time)
                else:
                    self._offset += len(line) + 1
            if len(self._rest) > LINE_BYTES_MAX:
                raise InputError(f"{self._where()} is longer than {LINE_BYTES_MAX} bytes.")
            if not lines:
                yield None

    def _look(self) -> bool:
        """Whether there are later files."""
        new = sorted(name for name in self._names() if name not in self._known)
        if new and new[0] < self._name:
            raise InputError(
                f"fronts.Files: {self._path(new[0])} appeared after {self._name} was begun, and "
                "sorts before it. Files are read in the order of their names: give new ones later "
                "names."
            )
        self._known.update(new)
        self._later.extend(new)
        return bool(new)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names() if self._matches(name)]

    def _leave_for(self, name: str) -> None:
        if self._file is not None:
            self._check_whole(f"{name} was begun")
            self._left.append((self._name, self._offset))
            self.close()
        try:
            self._open(name)
        except FileNotFoundError:
            raise InputError(
                f"fronts.Files: {self._path(name)} was removed before it was read."
            ) from None

    def _open(self, name: str) -> None:
        self._file = self._folder.begin(name)
        self._name, self._offset, self._rest = name, 0, b""
        self._counted = 0, 0

    def _check_whole(self, why: str) -> None:
        if self._rest:
            raise InputError(
                f"{self._where()} has no newline at its end, and {why}, so that no more may "
                f"come: {self._rest[:100]!r}. Only lines that end in a newline are elements."
            )

    def _check_file(self) -> None:
        """Raise unless the file being read is still the one that was opened, and has not shrunk."""
        if self._file is None:
            return
        size = self._folder.size()
        if size is None:
            raise InputError(
                f"fronts.Files: {self._path(self._name)} was removed or replaced while it was the "
                "one to be read. Files only grow; begin a new one with a later name."
            )
        if size < self._offset:
            raise InputError(
                f"fronts.Files: {self._path(self._name)} has {size} bytes, and was read "
                f"up to byte {self._offset}. Files only grow."
            )

    def _check_left(self) -> None:
        for name, size in self._left:
            grown = self._folder.size_of(name) > size
            if grown:
                raise InputError(
                    f"fronts.Files: {self._path(name)} grew after {self._name} was begun. Files are "
                    "read in the order of their names: append to the last one only."
                )

    def _path(self, name: str) -> str:
        return self._folder.path(name)

    def _where(self) -> str:
        """The line that is being read, for a message. A position has bytes, so this counts lines.

        It counts on from where it was last called. So a file of malformed lines is read twice, and not
        once for each of them.
        """
        path = self._path(self._name)
        offset, number = self._counted
        try:
            with closing(self._folder.open(self._name)) as file:
                file.seek(offset)
                while offset < self._offset:
                    chunk = file.read(min(_CHUNK_BYTES, self._offset - offset))
                    if not chunk:
                        break
                    offset += len(chunk)
                    number += chunk.count(b"\n")
        except OSError:
            return f"fronts.Files: {path}, byte {self._offset},"
        self._counted = offset, number
        return f"fronts.Files: {path}, line {number + 1},"
