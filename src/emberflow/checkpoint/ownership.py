"""A folder that belongs to whoever opened it last.

Who takes a folder over shuts out the one before, perhaps a process that is dying slowly or was only
stopped: it may finish nothing more, not even what it is in the middle of. Without this, both could
put what follows the same last file. It needs locks (`flock`) that work on the folder's file system.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from emberflow.checkpoint.files import sync_folder

#: Holds the token of the owner, and carries the lock.
_OWNER = ".writer"


class OwnedFolder:
    """Makes the folder if it is missing. Nothing is taken over before `taking`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        self._folder_descriptor = os.open(folder, os.O_RDONLY)
        self._owner_descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT, 0o644)
        self._closed = False
        self._token = uuid.uuid4().bytes

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Take the folder over; what is done inside is done before anybody else may do anything."""
        with self._locked():
            os.pwrite(self._owner_descriptor, self._token, 0)
            yield

    @contextlib.contextmanager
    def keeping(self) -> Iterator[bool]:
        """Whether the folder is still this owner's; nobody can take it over inside."""
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
        import fcntl  # not everywhere, and needed only by who writes

        fcntl.flock(self._owner_descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._owner_descriptor, fcntl.LOCK_UN)
