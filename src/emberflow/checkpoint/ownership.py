"""A folder that belongs to the process that opened it last.

A process that takes over a folder fences the previous owner, which may be dying slowly or only
suspended: that owner can complete nothing more, not even a write that it has begun. Without the fence
both could write a successor of the same last file. It needs locks (`flock`) that work on the folder's
file system.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from emberflow.checkpoint.files import private_opener, sync_folder

#: The file that holds the token of the owner. Processes lock it.
_OWNER = ".writer"


class OwnedFolder:
    """Makes the folder if it is missing: one that only its owner can enter, if it is ``private``.

    `taking` takes it over, the constructor does not.
    """

    def __init__(self, folder: Path, *, private: bool = False) -> None:
        self.folder = folder
        folder.mkdir(0o700 if private else 0o777, exist_ok=True)
        sync_folder(folder.parent)
        self._folder_descriptor = os.open(folder, os.O_RDONLY)
        self._owner_descriptor = private_opener(folder / _OWNER, os.O_RDWR | os.O_CREAT)
        self._closed = False
        self._token = uuid.uuid4().bytes

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Take the folder over. Other processes wait until the block ends."""
        with self._locked():
            os.pwrite(self._owner_descriptor, self._token, 0)
            yield

    @contextlib.contextmanager
    def keeping(self) -> Iterator[bool]:
        """Whether this process still owns the folder. No other can take it over within the block."""
        with self._locked():
            yield os.pread(self._owner_descriptor, len(self._token), 0) == self._token

    def sync(self) -> None:
        """Make the names in the folder durable."""
        os.fsync(self._folder_descriptor)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._owner_descriptor)
            os.close(self._folder_descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not on all systems, and only writers need it

        fcntl.flock(self._owner_descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._owner_descriptor, fcntl.LOCK_UN)
