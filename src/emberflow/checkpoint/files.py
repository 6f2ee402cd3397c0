"""A location of files: each is written whole or not at all, and durable when the call returns.

On a local disk that takes a temporary name, ``fsync`` of the file, ``rename``, and ``fsync`` of the
folder; the entry of a new folder has to be synced too. `checkpoint.hdfs` says why it holds on HDFS. An
object store shows an object only when its upload is complete, so there the file gets its final name at once
(`checkpoint.objects`). Other file systems are reached through ``pyarrow.fs``: there a temporary file is moved.

`lock` excludes other processes on *one* local disk. Elsewhere there is no lock, and correctness does
not depend on one: `checkpoint.cuts.store` explains how fencing works without. On an object store
`ObjectLocation.create` decides between processes.

**Only the owner can read a local location.** It holds the users' data, and whoever can write to it can
run code: parts and logs are pickled. So files have the mode 0600 and folders 0700, whatever the umask.

Paths are relative to the location and have ``/`` between their parts. A name that begins with a
dot is temporary, and readers, Spark among them, do not see it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from xxhash import xxh64

from emberflow.checkpoint.errors import CheckpointError, UnreachableError, UntrustedFileError
from emberflow.checkpoint.hdfs import Hdfs, is_hdfs, parsed
from emberflow.checkpoint.objects import Objects, UnavailableError, is_object_url
from emberflow.errors import InputError
from emberflow.extras import need

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Object stores as ``pyarrow.fs`` calls them. Its writes are not conditional.
_OBJECT_STORES = {"s3": "s3://", "gcs": "gs://", "abfs": "abfss://"}
_LOCK = ".lock"
_LOCK_WAIT_S_MAX = 60.0
_LOCK_PAUSE_S = 0.01
_READ_BYTES = 1 << 20
#: A file that is read in pieces has a checksum for each block of this size.
BLOCK_BYTES = 1 << 20
TEMPORARY_PREFIX = "."
#: The errors of a file system that takes no writes now, and may take them again: it is full, over its
#: quota, read-only, or the folder was made read-only.
_UNWRITABLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM))


class Written:
    """A new file that counts its length and computes its checksums while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxh64()
        self._block = xxh64()
        self._blocks: list[str] = []
        self.block_bytes = BLOCK_BYTES
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        rest = view
        while rest:
            # A block ends when the next one begins, so the last one is never empty.
            if self.bytes and self.bytes % self.block_bytes == 0:
                self._blocks.append(self._block.hexdigest())
                self._block.reset()
            piece = rest[: self.block_bytes - self.bytes % self.block_bytes]
            self._block.update(piece)
            self.bytes += len(piece)
            rest = rest[len(piece) :]
        self._file.write(view)
        return len(view)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The checksum of each block; none if there is one block, whose checksum is that of the file."""
        return (*self._blocks, self._block.hexdigest()) if self._blocks else ()

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Nothing: `Location.new` closes the file, after the block has ended without an error."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class Location(Protocol):
    """A folder that holds a checkpoint."""

    @property
    def is_local(self) -> bool: ...
    def shown(self, path: str) -> str:
        """The full name of a file, for messages."""

    def new(self, path: str) -> contextlib.AbstractContextManager[Written]:
        """A new file. It exists, durably, when the block ends without an error."""

    def open(self, path: str) -> Any:
        """A file for random access that pyarrow accepts. The caller closes it."""

    def read(self, path: str) -> bytes: ...
    def names(self, folder: str, *, temporary: bool = False) -> list[str]:
        """The names in a folder, sorted: proper ones, or temporary ones. Empty if it does not exist."""

    def modified(self, path: str) -> float | None:
        """When a file was written, in seconds since 1970; None if the storage does not tell."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""

    def lock(self) -> contextlib.AbstractContextManager[None]: ...


def write(location: Location, path: str, data: bytes) -> None:
    with location.new(path) as file:
        file.write(data)


def digest(location: Location, path: str) -> tuple[int, str]:
    """The length and the checksum of a file as it is now."""
    found = xxh64()
    length = 0
    with location.open(path) as file:
        while data := file.read(_READ_BYTES):
            found.update(data)
            length += len(data)
    return length, found.hexdigest()


def is_unwritable(error: BaseException) -> bool:
    """Whether a write failed only because the file system takes no writes now, or the object store does
    not answer. Then wait and try again.

    >>> (
    ...     is_unwritable(OSError(errno.ENOSPC, "No space left on device")),
    ...     is_unwritable(OSError(5, "I/O")),
    ... )
    (True, False)
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnavailableError | UnreachableError):
            return True
        if isinstance(cause, OSError) and cause.errno in _UNWRITABLE:
            return True
        cause = cause.__cause__
    return False


def temporary_name(path: str) -> str:
    folder, _, name = path.rpartition("/")
    own = f"{TEMPORARY_PREFIX}{name}.{uuid.uuid4().hex[:8]}"
    return f"{folder}/{own}" if folder else own


class LocalLocation:
    """A folder of a local disk, or of one that behaves like it."""

    is_local = True

    def __init__(self, root: Path, *, own_files: bool = False) -> None:
        self.root = root
        self._own_files = own_files

    def shown(self, path: str) -> str:
        return str(self.root / path)

    @contextlib.contextmanager
    def new(self, path: str) -> Iterator[Written]:
        target = self.root / path
        make_private_folder(target.parent)
        temporary = self.root / temporary_name(path)
        try:
            with open(temporary, "xb", opener=private_opener) as file:
                yield Written(file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)

    def mark(self, path: str) -> None:
        """Make an empty file that need not survive a loss of power. Nobody waits for the disk."""
        target = self.root / path
        make_private_folder(target.parent)
        os.close(private_opener(target, os.O_WRONLY | os.O_CREAT))

    def open(self, path: str) -> io.BufferedReader:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(self.root / path, "rb"))
            if self._own_files:
                _check_own(file)
            opened.pop_all()
        return file

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def names(self, folder: str, *, temporary: bool = False) -> list[str]:
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in found if name.startswith(TEMPORARY_PREFIX) == temporary)

    def modified(self, path: str) -> float | None:
        try:
            return os.stat(self.root / path).st_mtime
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.root / path).unlink()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        import fcntl  # not on all systems, and only writers need it

        make_private_folder(self.root)
        descriptor = private_opener(self.root / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            deadline = time.monotonic() + _LOCK_WAIT_S_MAX
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise CheckpointError(
                            f"{self.root} is locked by another process for more than "
                            f"{_LOCK_WAIT_S_MAX:.0f} s. Does a stopped query still use it?"
                        ) from None
                    time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(descriptor)  # which unlocks it


class ArrowLocation:
    """A folder of a file system of ``pyarrow.fs``."""

    is_local = False

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")

    def shown(self, path: str) -> str:
        return f"{self.filesystem.type_name}:{self._full(path)}"

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    @contextlib.contextmanager
    def new(self, path: str) -> Iterator[Written]:
        filesystem = self.filesystem
        filesystem.create_dir(self._full(path).rpartition("/")[0], recursive=True)
        target = self._full(path)
        written_to = self._full(temporary_name(path))
        file = filesystem.open_output_stream(written_to)
        try:
            yield Written(cast(BinaryIO, file))
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
                filesystem.delete_file(written_to)
            raise
        file.close()
        filesystem.move(written_to, target)

    def open(self, path: str) -> Any:
        return self.filesystem.open_input_file(self._full(path))

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return bytes(file.read())

    def names(self, folder: str, *, temporary: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._full(folder), allow_not_found=True)
        found = (str(entry.base_name) for entry in self.filesystem.get_file_info(selector))
        return sorted(name for name in found if name.startswith(TEMPORARY_PREFIX) == temporary)

    def modified(self, path: str) -> float | None:
        at = self.filesystem.get_file_info(self._full(path)).mtime
        return None if at is None else float(at.timestamp())

    def remove(self, path: str) -> None:
        from pyarrow.fs import FileType

        full = self._full(path)
        kind = self.filesystem.get_file_info(full).type
        with contextlib.suppress(FileNotFoundError):
            if kind == FileType.Directory:
                self.filesystem.delete_dir(full)
            elif kind != FileType.NotFound:
                self.filesystem.delete_file(full)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield


class ObjectLocation:
    """A folder of an object store."""

    is_local = False

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def shown(self, path: str) -> str:
        return self.objects.shown(path)

    @contextlib.contextmanager
    def new(self, path: str) -> Iterator[Written]:
        upload = self.objects.upload(path)
        try:
            yield Written(cast(BinaryIO, upload))
        except BaseException:
            upload.abandon()
            raise
        upload.complete()

    def create(self, path: str, data: bytes, *, token: str | None = None) -> None:
        """Write a file that does not exist. Raises `TakenError` if it does; see `Objects.create`."""
        self.objects.create(path, data, token=token)

    def open(self, path: str) -> Any:
        return self.objects.open(path)

    def read(self, path: str) -> bytes:
        return self.objects.read(path)

    def names(self, folder: str, *, temporary: bool = False) -> list[str]:
        if temporary:
            return []  # an object that is not complete is not there
        folders, objects = self.objects.listed(folder)
        found = {*folders, *(one.name for one in objects)}
        return sorted(name for name in found if not name.startswith(TEMPORARY_PREFIX))

    def modified(self, path: str) -> float | None:
        try:
            return self.objects.meta(path).modified
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        self.objects.remove([*self.objects.all_below(path), path])

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield


class HdfsLocation:
    """A folder on HDFS that holds a checkpoint."""

    is_local = False

    def __init__(self, location: str) -> None:
        self._url = parsed(location)
        self._hdfs = Hdfs(self._url.place)

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}" if path else str(self._url)

    def _full(self, path: str) -> str:
        return f"{self._url.path}/{path}" if path else self._url.path

    @contextlib.contextmanager
    def new(self, path: str) -> Iterator[Written]:
        folder = self._full(path).rpartition("/")[0]
        temporary = self._full(temporary_name(path))
        self._hdfs.make_folder(folder, 0o700)
        try:
            with self._hdfs.create(temporary, permission=0o600, make_folders=False) as file:
                yield Written(file)
            self._hdfs.rename(temporary, self._full(path), replace=True)
        except BaseException:
            with contextlib.suppress(OSError):
                self._hdfs.remove(temporary)
            raise

    def open(self, path: str) -> io.BufferedReader:
        return self._hdfs.open(self._full(path))

    def read(self, path: str) -> bytes:
        return self._hdfs.read(self._full(path))

    def names(self, folder: str, *, temporary: bool = False) -> list[str]:
        found = self._hdfs.names(self._full(folder))
        return [name for name in found if name.startswith(TEMPORARY_PREFIX) == temporary]

    def modified(self, path: str) -> float | None:
        found = self._hdfs.status(self._full(path))
        return None if found is None else found.modification_time / 1000

    def remove(self, path: str) -> None:
        self._hdfs.remove(self._full(path))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield


def location_of(
    path: str | os.PathLike[str],
    filesystem: FileSystem | None = None,
    *,
    own_files: bool = False,
) -> Location:
    """The location of a path, of a URI (``file:///``, ``s3://``, ``gs://``, ``az://``, ``hdfs://`` and
    what else ``pyarrow.fs`` opens), or of a path of ``filesystem``.

    With ``own_files``, `Location.open` raises `UntrustedFileError` for a local file that a user other
    than this one and root may have written.

    >>> location_of("file:///tmp/cuts").shown("parts")
    '/tmp/cuts/parts'
    """
    text = os.fspath(path)
    if filesystem is None and "://" not in text:
        return LocalLocation(Path(text).absolute(), own_files=own_files)
    if filesystem is None and is_object_url(text):
        return ObjectLocation(Objects(text))
    if filesystem is None and is_hdfs(text):
        return HdfsLocation(text)
    if filesystem is None:
        arrow = need("pyarrow.fs", extra="spark", what=f"the location {text!r}")
        filesystem, text = arrow.FileSystem.from_uri(text)
    if filesystem.type_name == "local":
        return LocalLocation(Path(text).absolute(), own_files=own_files)
    if filesystem.type_name in _OBJECT_STORES:
        raise InputError(
            f"{text}: pyarrow's file system for {filesystem.type_name} has no conditional puts. Give the "
            f"location as a URL, {_OBJECT_STORES[filesystem.type_name]}..."
        )
    return ArrowLocation(filesystem, text)


def _check_own(file: io.BufferedReader) -> None:
    # The open file, and not its path, which could name another file by now.
    found = os.fstat(file.fileno())
    if found.st_uid not in (os.getuid(), 0):
        problem = f"belongs to user {found.st_uid}, and this process to user {os.getuid()}"
    elif found.st_mode & 0o022:
        problem = f"can be changed by other users (mode {found.st_mode & 0o777:o})"
    else:
        return
    raise UntrustedFileError(f"{file.name} {problem}. Reading it could run their code.")


def private_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file that only its owner can read, if it is new. For ``open(..., opener=)``."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, durably."""
    make_folder(folder, mode=0o700)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder, and those above it, so that it survives a loss of power."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(mode, exist_ok=True)
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
