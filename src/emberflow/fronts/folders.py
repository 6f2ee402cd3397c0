"""The folders that `fronts.Files` reads: of a local disk, and of an object store.

An object is whole when it is there, and nobody can append to it. Who replaces it with a longer one that
begins with the same bytes has appended to it all the same: that is how such a file grows here.

A look at a folder of a local disk costs microseconds. On an object store it is a request for each 1,000
objects. So the front asks there for what sorts from the current file on, and for everything, to find
names that come too late and files that grew too late, once in a while.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from typing import Protocol

from emberflow.checkpoint.objects import Meta, ObjectFile, Objects

#: Of so many looks at a folder of objects one is at all of it.
_LOOKS_FOR_ONE_AT_ALL = 60


class OpenFile(Protocol):
    def read(self, size: int = -1, /) -> bytes | None: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def close(self) -> None: ...


class Folder(Protocol):
    """A folder, and the file in it that is being read."""

    #: How long the front waits before it looks again, in milliseconds, if nobody says.
    poll_ms: float

    def problem(self) -> str | None:
        """Why the folder cannot be read."""

    def path(self, name: str) -> str:
        """The full name of a file, for messages."""

    def names(self) -> list[str]:
        """The names of files, without those that begin with a dot: at least of those that are new."""

    def open(self, name: str) -> OpenFile:
        """Open a file. Raises `FileNotFoundError`."""

    def begin(self, name: str) -> OpenFile:
        """Open the file to read from now on."""

    def size(self) -> int | None:
        """How many bytes the file has that was begun last; None if it was removed or replaced."""

    def size_of(self, name: str) -> int:
        """How many bytes another file has, as far as that is known; 0 if it was removed."""


class LocalFolder:
    poll_ms = 20.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: tuple[str, int] = ("", 0)

    def problem(self) -> str | None:
        return None if self._folder.is_dir() else f"{self._folder} is not a folder. Make it first."

    def path(self, name: str) -> str:
        return str(self._folder / name)

    def names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries if entry.name[0] != "." and entry.is_file()]

    def open(self, name: str) -> FileIO:
        return FileIO(self._folder / name)

    def begin(self, name: str) -> FileIO:
        file = self.open(name)
        self._begun = name, os.fstat(file.fileno()).st_ino
        return file

    def size(self) -> int | None:
        name, node = self._begun
        try:
            found = os.stat(self._folder / name)
        except FileNotFoundError:
            return None
        return found.st_size if found.st_ino == node else None

    def size_of(self, name: str) -> int:
        try:
            return os.stat(self._folder / name).st_size
        except FileNotFoundError:
            return 0


class ObjectFolder:
    poll_ms = 1_000.0

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._looks = 0
        #: What the last look at everything found.
        self._all: dict[str, Meta] = {}
        #: The file being read, as it was when somebody looked last.
        self._begun: Meta | None = None
        self._file: ObjectFile | None = None

    def problem(self) -> str | None:
        return None  # a folder without objects is not there

    def path(self, name: str) -> str:
        return self._objects.shown(name)

    def names(self) -> list[str]:
        begun = self._begun
        # A part of a name sorts right before it, and what comes behind includes the name itself.
        behind = begun.name[:-1] if begun is not None and len(begun.name) > 1 else None
        if self._looks % _LOOKS_FOR_ONE_AT_ALL == 0:
            behind = None
        self._looks += 1
        found = {meta.name: meta for meta in self._objects.metas(behind=behind)}
        if behind is None:
            self._all = found
        if begun is not None:
            self._look_at(begun, found.get(begun.name))
        return [name for name in found if name[0] != "."]

    def _look_at(self, before: Meta, now: Meta | None) -> None:
        replaced = now is not None and now.bytes == before.bytes and now != before
        self._begun = None if replaced else now
        if self._begun is not None and self._file is not None:
            self._file.bytes = self._begun.bytes

    def open(self, name: str) -> ObjectFile:
        return self._objects.open(name)

    def begin(self, name: str) -> ObjectFile:
        self._begun = self._objects.meta(name)
        self._file = ObjectFile(self._objects, name, self._begun.bytes)
        return self._file

    def size(self) -> int | None:
        return None if self._begun is None else self._begun.bytes

    def size_of(self, name: str) -> int:
        return self._all[name].bytes if name in self._all else 0


def folder_of(place: Path | Objects) -> Folder:
    return ObjectFolder(place) if isinstance(place, Objects) else LocalFolder(place)
