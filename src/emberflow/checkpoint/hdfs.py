"""HDFS, by the protocol of its name node: without a JVM, libhdfs or a Hadoop install.

The package ``hdfs-native`` (extra ``hdfs``) is the client, on the driver and on the workers. It reads
``core-site.xml`` and ``hdfs-site.xml`` from ``HADOOP_CONF_DIR`` or ``HADOOP_HOME``, as any Hadoop client
does, and in a container of YARN from what Spark has put there.

What a checkpoint relies on, and what of HDFS gives it:

1. *Whole or not at all.* `files.HdfsLocation` writes a file under a temporary name, which its writer
   alone creates (`create` without overwriting is exclusive), and renames it. A rename is one transaction
   of the name node: readers see no file, or the whole one, or the one before, never a part.
2. *Durable.* ``hsync`` returns when every data node of the pipeline has the data on its disk, and the
   name node writes its journal before it answers a rename.
3. *One order for all.* The name node orders all operations. A listing that begins after a rename has
   ended shows the file. So a driver that claims an incarnation and then lists the claims sees every claim
   that was there before, as `checkpoint.cuts.store` needs.
4. *Who takes a folder away ends its users.* A file cannot be renamed out of a folder that was deleted,
   or be created in it. `sinks.folders.hdfs` fences writers by that.
5. *Only the owner can read it*: files have the mode 0600, folders 0700.

`lock` does nothing here. HDFS has no lock that ends with its holder at once, and the store needs none.

While the name node cannot be reached, or is in safe mode, or a quota is used up, writes fail with errors
that `checkpoint.files.is_unwritable` knows, so a query waits and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from emberflow.checkpoint.errors import UnreachableError
from emberflow.errors import InputError
from emberflow.extras import need

_READ_BYTES = 1 << 18
#: Where Spark puts the configuration of Hadoop in a container of YARN.
_IN_CONTAINER = Path("__spark_conf__", "__hadoop_conf__")
#: The client tries for seconds to reach a name node, or the active one of several, and by default for
#: minutes. A query then waits by itself, says so, and can be stopped.
_PATIENCE = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}

#: What exceptions of Hadoop mean here. For all others the error number is EIO.
_MEANINGS = (
    (re.compile(r"SafeModeException|StandbyException|RetriableException"), errno.EROFS),
    (re.compile(r"QuotaExceededException"), errno.EDQUOT),
    (re.compile(r"AccessControlException"), errno.EACCES),
    (re.compile(r"could only be written to \d+ of the"), errno.ENOSPC),
    (re.compile(r"DataTransferError|connection closed|early eof", re.IGNORECASE), errno.ECONNRESET),
    (re.compile(r"timed out|timeout|failed to lookup address", re.IGNORECASE), errno.ETIMEDOUT),
)
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_UNREACHABLE = frozenset(
    (
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN),
    )
)


class HdfsUrl(NamedTuple):
    """A name node, or a name service of several, and a path there."""

    #: ``hdfs://host:port``; None for the one that ``fs.defaultFS`` names.
    place: str | None
    path: str

    def __str__(self) -> str:
        return f"{self.place or 'hdfs://'}{self.path}"


def is_hdfs(location: str) -> bool:
    """
    >>> is_hdfs("hdfs://cluster/flows"), is_hdfs("/flows"), is_hdfs("s3://flows")
    (True, False, False)
    """
    return location.startswith(("hdfs://", "viewfs://"))


def parsed(location: str) -> HdfsUrl:
    """
    >>> parsed("hdfs://cluster:8020/flows/shop/")
    HdfsUrl(place='hdfs://cluster:8020', path='/flows/shop')
    >>> parsed("hdfs:///flows")
    HdfsUrl(place=None, path='/flows')
    >>> parsed("hdfs://flows")
    Traceback (most recent call last):
    emberflow.errors.InputError: 'hdfs://flows' names a name node and no path. Write hdfs://HOST:PORT/PATH,
    hdfs://NAMESERVICE/PATH, or hdfs:///PATH for the one of fs.defaultFS.
    """
    url = urlsplit(location)
    path = url.path.rstrip("/")
    if not path:
        raise InputError(
            f"{location!r} names a name node and no path. Write hdfs://HOST:PORT/PATH, "
            f"hdfs://NAMESERVICE/PATH, or hdfs:///PATH for the one of fs.defaultFS."
        )
    return HdfsUrl(f"{url.scheme}://{url.netloc}" if url.netloc else None, path)


class Hdfs:
    """What this package needs of an HDFS, with paths of it and errors of Python.

    It can be pickled, and used by several threads and after a fork: each process has clients of its own.
    """

    def __init__(self, place: str | None) -> None:
        _module()  # raises an error here, where the user has named the location
        self.place = place

    def __reduce__(self) -> Any:
        return Hdfs, (self.place,)

    @property
    def _client(self) -> Any:
        return _client_of(self.place)

    @contextlib.contextmanager
    def create(
        self, path: str, *, permission: int, make_folders: bool = True
    ) -> Iterator[BinaryIO]:
        """A new file that nobody else has. It is durable when the block ends without an error."""
        options = _module().WriteOptions(
            permission=permission, overwrite=False, create_parent=make_folders
        )
        with self._errors(path):
            file = self._client.create(path, options)
        try:
            yield cast(BinaryIO, _Sender(file, path))
            with self._errors(path):
                file.hsync()
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
            raise
        with self._errors(path):
            file.close()

    def make_folder(self, path: str, permission: int, *, parents: bool = True) -> None:
        with self._errors(path):
            self._client.mkdirs(path, permission, parents)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        """Raises `FileExistsError` for a target that exists, unless it may ``replace`` it."""
        with self._errors(source):
            self._client.rename(source, target, replace)

    def open(self, path: str) -> io.BufferedReader:
        with self._errors(path):
            return io.BufferedReader(_Reader(self._client.read(path), path), _READ_BYTES)

    def read(self, path: str) -> bytes:
        with self._errors(path):
            return bytes(self._client.read(path).read())

    def names(self, folder: str) -> list[str]:
        """The names in a folder; empty if there is none."""
        try:
            with self._errors(folder):
                entries = list(self._client.list_status(folder))
        except FileNotFoundError:
            return []
        return sorted(str(entry.path).rpartition("/")[2] for entry in entries)

    def status(self, path: str) -> Any:
        """What the name node knows of a file or folder; None if it does not exist."""
        try:
            with self._errors(path):
                return self._client.get_file_info(path)
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._errors(path):
            self._client.delete(path, True)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        with _errors(f"{self.place or 'hdfs://'}{path}"):
            yield


class _Sender(io.RawIOBase):
    """A file that is being written, which `Hdfs.create` closes."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _errors(self._path):
            return int(self._file.write(data))


class _Reader(io.RawIOBase):
    """A file that is being read. The client reads whole ranges."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path
        self._length = len(file)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "negative position", self._path)
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        if count:
            with _errors(self._path):
                buffer[:count] = self._file.read_range(self._at, count)
            self._at += count
        return count


# --- Clients --------------------------------------------------------------------------------------

_clients: dict[tuple[int, str | None], Any] = {}
_clients_lock = threading.Lock()


def _module() -> Any:
    return need("hdfs_native", extra="hdfs", what="a location on HDFS")


def _client_of(place: str | None) -> Any:
    """The client of this process. A client of the parent's process has threads that a fork loses."""
    with _clients_lock:
        key = (os.getpid(), place)
        if key not in _clients:
            _be_sparks_user()
            with _errors(place or "hdfs://"):
                _clients[key] = _module().Client(place, _PATIENCE, _configuration())
        return _clients[key]


def _be_sparks_user() -> None:
    """Without Kerberos a process is who it says it is.

    A container of YARN may run as another user than the one who submitted the application. Spark's JVMs
    then act for SPARK_USER, and so do its Python processes here.
    """
    user = os.environ.get("SPARK_USER")
    if user:
        os.environ.setdefault("HADOOP_USER_NAME", user)


def _configuration() -> str | None:
    """The folder of Hadoop's configuration; None where the client finds it by itself."""
    if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("HADOOP_HOME"):
        return None
    return str(_IN_CONTAINER) if _IN_CONTAINER.is_dir() else None


@contextlib.contextmanager
def _errors(shown: str) -> Iterator[None]:
    """Errors of the client as errors of Python, without the name node's stack."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(error), shown) from None
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, _first_line(error), shown) from None
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        number = _number_of(error)
        kind = UnreachableError if number in _UNREACHABLE else OSError
        raise kind(number, _first_line(error), shown) from None


def _first_line(error: BaseException) -> str:
    text = str(error).replace("\\n", "\n").replace("\\t", "\t")
    return next(iter(text.splitlines()), type(error).__name__)


def _number_of(error: BaseException) -> int:
    """
    >>> errno.errorcode[_number_of(OSError("Connection refused (os error 111)"))]
    'ECONNREFUSED'
    >>> errno.errorcode[
    ...     _number_of(RuntimeError("RPCError(...hdfs.server.namenode.SafeModeException..."))
    ... ]
    'EROFS'
    >>> errno.errorcode[_number_of(RuntimeError("something else"))]
    'EIO'
    """
    text = str(error)
    system = _SYSTEM_ERROR.search(text)
    if system is not None:
        return int(system[1])
    if isinstance(error, PermissionError):
        return errno.EACCES
    return next((number for pattern, number in _MEANINGS if pattern.search(text)), errno.EIO)
