"""Objects of a store such as S3: what the protocols on it rely on, and nothing else.

Guarantees:

1. *An object is whole.* It appears when all of it is stored, and it is durable then. An upload that a
   crash cuts off is never seen.
2. *One of many creates an object.* `create` puts with ``If-None-Match: *``: of all that create an object
   of one name, at any time and from anywhere, one succeeds. The others get `TakenError`.
3. *A lost answer is no doubt.* The connection may break after the store has done what it was asked, and
   the next attempt then finds an object of that name. Each call of `create` has a token, which is stored
   in the object's metadata. An object with this token is its own, any other one is somebody else's.
4. *Waiting ends.* Requests that the store turns away (503 SlowDown), answers too late or not at all are
   made again with growing pauses. After a limit there is an `UnavailableError`. Whoever can try again later
   does: see `emberflow.checkpoint.files.is_unwritable`.

Other processes see what is stored at once: reads and lists are strongly consistent, as those of S3
(since 2020), GCS and Azure are.

Not all stores that speak S3's protocol have conditional puts. Some refuse them. Others ignore the header
and overwrite, which nobody would notice before it is too late. So `check` tries it, and refuses a store
that cannot do it. ``?conditional=no`` at the end of the URL uses such a store all the same: then `create`
looks first and puts afterwards, and two processes that do so at once may both succeed.

The library is `obstore`, with the stores S3 (and what speaks its protocol), GCS and Azure. Credentials and
endpoints come from the environment variables that these stores' own tools read.
"""

from __future__ import annotations

import errno
import io
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from emberflow.checkpoint.errors import TakenError
from emberflow.errors import InputError
from emberflow.extras import need

#: The schemes of URLs, and the extra that opens them.
_S3, _GCS = ("s3", "s3a"), ("gs",)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE = ("az", "azure", "abfs", "abfss")
EXTRA = "s3"
#: A request is made again for about so long, whatever it is.
_RETRY_SECONDS = 20.0
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.1, 5.0
_REQUEST_SECONDS_MAX = 30.0
_CONNECT_SECONDS_MAX = 5.0
#: obstore makes requests again by itself where that is safe; not for as long as this module does.
_OWN_RETRIES_MAX = 4
#: Larger objects are uploaded in pieces of this size, so many at a time.
_PIECE_BYTES = 8 << 20
_PIECES_MAX = 4
_READ_AT_ONCE = 16
#: Whoever reads on where the last read ended gets more with each request, up to this.
_AHEAD_BYTES_MAX = 8 << 20
#: Metadata of an object. Azure takes only names that are identifiers.
_TOKEN, _NOTE = "emberflowtoken", "emberflownote"
_STATUS = re.compile(r"status code: (\d{3})")
_ANSWER = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?")
#: Status codes that may be others next time.
_PASSING = frozenset((408, 409, 429, 500, 502, 503, 504))

_T = TypeVar("_T")


class UnavailableError(OSError):
    """The store did not do what it was asked, and may do it later. It may also have done it."""


class Meta(NamedTuple):
    """What a listing says of an object. The name is relative to the URL."""

    name: str
    bytes: int
    modified: float


def is_object_url(place: str) -> bool:
    """
    >>> (
    ...     is_object_url("s3://bucket/cuts"),
    ...     is_object_url("hdfs://names/cuts"),
    ...     is_object_url("/cuts"),
    ... )
    (True, False, False)
    """
    return place.partition("://")[0] in (*_S3, *_GCS, *_AZURE) and "://" in place


class Objects:
    """The objects below a URL. It can be pickled, and connects when it is used first.

    >>> str(Objects("s3://bucket/a/b/?conditional=no"))
    's3://bucket/a/b'
    """

    def __init__(self, url: str) -> None:
        _obstore(url)
        self.given = url
        text, mark, query = url.partition("?")
        self.url = text.rstrip("/")
        options = dict(parse_qsl(query, keep_blank_values=True))
        conditional = options.pop("conditional", "yes")
        if options or (mark and not query) or conditional not in ("yes", "no"):
            raise InputError(
                f"{url}: behind ? there may be conditional=yes or conditional=no, and nothing else."
            )
        #: Whether `create` decides between two that create one object at the same time.
        self.is_conditional = conditional == "yes"
        self._lock = threading.Lock()
        self._made: tuple[int, Any] | None = None

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> Any:
        return Objects, (self.given,)

    def shown(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    # Writing

    def put(self, name: str, data: Any) -> None:
        """Store an object, in the place of another one if there is one."""
        obstore = _obstore(self.url)
        self._tried(name, lambda store: obstore.put(store, name, data, use_multipart=False))

    def create(self, name: str, data: bytes, *, token: str | None = None, note: str = "") -> None:
        """Store an object that does not exist, with a note. Raises `TakenError` if it does.

        After an `UnavailableError` the object may be there all the same. Whoever calls again gives the
        same token, to be told that it is.
        """
        own = uuid.uuid4().hex if token is None else token
        attributes = {_TOKEN: own, _NOTE: note}
        obstore = _obstore(self.url)
        begin = time.monotonic()
        for pause in _pauses():
            try:
                with self._translated(name):
                    if not self.is_conditional and (found := self._token(name)) is not None:
                        if found == own:
                            return
                        raise self._taken(name)
                    obstore.put(
                        self._store,
                        name,
                        data,
                        mode="create" if self.is_conditional else "overwrite",
                        attributes=attributes,
                        use_multipart=False,
                    )
                return
            except FileExistsError:
                # None if it is gone again, or not yet there: S3 tells of a put under way, too.
                found = self._token(name)
                if found == own:
                    return
                if found is not None:
                    raise self._taken(name) from None
                if time.monotonic() - begin > _RETRY_SECONDS:
                    raise UnavailableError(
                        f"{self.shown(name)} was there and gone for {_RETRY_SECONDS:g} s."
                    ) from None
            except UnavailableError:
                if time.monotonic() - begin > _RETRY_SECONDS:
                    raise
            time.sleep(pause)
        raise AssertionError("pauses do not end")

    def _taken(self, name: str) -> TakenError:
        return TakenError(f"{self.shown(name)} exists: another process has created it.")

    def _token(self, name: str) -> str | None:
        """The token of an object, empty if it has none; None if there is no such object."""
        attributes = self._attributes(name)
        return None if attributes is None else str(attributes.get(_TOKEN, ""))

    def note(self, name: str) -> str | None:
        """The note that an object was created with; None if there is no such object."""
        attributes = self._attributes(name)
        return None if attributes is None else str(attributes.get(_NOTE, ""))

    def _attributes(self, name: str) -> Any:
        obstore = _obstore(self.url)
        try:
            return self._tried(
                name, lambda store: obstore.get(store, name, options={"head": True}).attributes
            )
        except FileNotFoundError:
            return None

    def copy(self, name: str, target: str) -> None:
        """Copy an object within the store, whole. Raises `FileNotFoundError` if it does not exist."""
        obstore = _obstore(self.url)
        self._tried(name, lambda store: obstore.copy(store, name, target))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, if they exist."""
        found = list(names)
        if found:
            obstore = _obstore(self.url)
            self._tried(found[0], lambda store: obstore.delete(store, found))

    def upload(self, name: str) -> Upload:
        """An object that is written piece by piece. It exists when `Upload.complete` has returned."""
        return Upload(self, name)

    # Reading

    def read(self, name: str) -> bytes:
        obstore = _obstore(self.url)
        return bytes(self._tried(name, lambda store: obstore.get(store, name).bytes()))

    def read_all(self, names: list[str]) -> list[bytes]:
        """Many small objects: most of the time of a request is waiting."""
        if len(names) < 2:
            return [self.read(name) for name in names]
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            return list(pool.map(self.read, names))

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` up to ``end``, which has to be above it and within the object."""
        obstore = _obstore(self.url)
        found = self._tried(
            name, lambda store: obstore.get_range(store, name, start=begin, end=end)
        )
        return bytes(found)

    def open(self, name: str) -> ObjectFile:
        """A file for random access. Raises `FileNotFoundError`."""
        return ObjectFile(self, name, self.meta(name).bytes)

    def meta(self, name: str) -> Meta:
        """Raises `FileNotFoundError`."""
        obstore = _obstore(self.url)
        return _meta(self._tried(name, lambda store: obstore.head(store, name)))

    def metas(self, folder: str = "", *, behind: str | None = None) -> list[Meta]:
        """The objects right in a folder, or only those whose names sort behind one, sorted by name."""
        if behind is None:
            return self.listed(folder)[1]
        obstore = _obstore(self.url)
        offset = f"{folder}/{behind}" if folder else behind
        found = self._tried(
            folder,
            lambda store: [
                one for page in obstore.list(store, folder or None, offset=offset) for one in page
            ],
        )
        return _right_in(folder, found)

    def listed(self, folder: str = "") -> tuple[list[str], list[Meta]]:
        """The names of the folders right in a folder, and the objects there, sorted."""
        obstore = _obstore(self.url)
        found = self._tried(
            folder, lambda store: obstore.list_with_delimiter(store, folder or None)
        )
        folders = sorted(path.rpartition("/")[2] for path in found["common_prefixes"])
        return folders, _right_in(folder, found["objects"])

    def all_below(self, folder: str) -> list[str]:
        """The names of all objects at any depth below a folder."""
        obstore = _obstore(self.url)
        return self._tried(
            folder,
            lambda store: [one["path"] for page in obstore.list(store, folder) for one in page],
        )

    # The store

    def check(self) -> None:
        """Raises `InputError` if the store cannot be written to, or has no conditional puts."""
        endpoints = tuple(os.environ.get(name, "") for name in _ENDPOINTS)
        key = (self.url.split("/")[2], endpoints, self.is_conditional)
        if key in _checked:
            return
        name = f".emberflow-check-{uuid.uuid4().hex}"
        obstore = _obstore(self.url)
        try:
            self.create(name, b"first", note="a check")
            try:
                if self.note(name) != "a check":
                    raise InputError(
                        f"{self}: the store does not keep the metadata of objects, and Emberflow needs it."
                    )
                if self.is_conditional:
                    self._tried(
                        name,
                        lambda store: obstore.put(store, name, b"second", mode="create"),
                    )
                    raise self._no_conditional_puts("ignores")
            except FileExistsError:
                pass  # as it should be
            finally:
                self.remove([name])
        except UnsupportedError:
            raise self._no_conditional_puts("refuses") from None
        except PermissionError as error:
            raise InputError(f"{self} may not be written to. {error.strerror}") from error
        _checked.add(key)

    def _no_conditional_puts(self, does: str) -> InputError:
        return InputError(
            f"{self}: the store {does} conditional puts (If-None-Match: *). Without them two processes "
            f"that take over from one another can both write, and output may be there twice. Use a store "
            f"that has them, as S3, GCS and Azure do. If you make sure that only one process at a time "
            f"uses this location, write {self}?conditional=no."
        )

    @property
    def _store(self) -> Any:
        with self._lock:
            # A forked process does not have the threads that serve the connections.
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), _store_of(self.url)
            return self._made[1]

    def _tried(self, name: str, request: Callable[[Any], _T]) -> _T:
        """Make a request that may be repeated, until there is an answer or the time is over."""
        begin = time.monotonic()
        for pause in _pauses():
            try:
                with self._translated(name):
                    return request(self._store)
            except UnavailableError:
                if time.monotonic() - begin > _RETRY_SECONDS:
                    raise
                time.sleep(pause)
        raise AssertionError("pauses do not end")

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Errors of obstore as those that everything else raises, in one line."""
        errors = need("obstore.exceptions", extra=EXTRA, what=f"the location {self.url!r}")
        try:
            yield
        except errors.AlreadyExistsError as error:
            raise FileExistsError(self._line(name, error)) from None
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, self._line(name, error)) from None
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from None
            raise FileNotFoundError(self._line(name, error)) from None
        except errors.NotSupportedError as error:
            raise UnsupportedError(self._line(name, error)) from None
        except errors.BaseError as error:
            status = _STATUS.search(str(error))
            code = int(status[1]) if status else None
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from None
            if code == 501:
                raise UnsupportedError(self._line(name, error)) from None
            if code is None or code in _PASSING:
                raise UnavailableError(self._line(name, error)) from None
            raise OSError(self._line(name, error)) from None

    def _no_bucket(self) -> InputError:
        return InputError(f"{self}: there is no such bucket. Make it first, or correct the URL.")

    def _line(self, name: str, error: BaseException) -> str:
        # What follows is the same once more, for people who debug obstore.
        said = str(error).partition("\n\nDebug source")[0].replace("\n", " ")
        answer = _ANSWER.search(said)
        if answer is not None:  # without the request, which is repeated in some answers
            status = _STATUS.search(said)
            said = f"{status[1] + ' ' if status else ''}{answer[1]}: {answer[2] or 'no message'}"
        return f"{self.shown(name)}: {said}"


class UnsupportedError(OSError):
    """The store does not have an operation, and will not have it later."""


class Upload(io.RawIOBase):
    """Bytes that become an object when they are complete, and nothing when they are abandoned.

    A small object is one put. A large one is uploaded in pieces, and a store keeps the pieces of an upload
    that nobody completes until a rule of the bucket removes them.
    """

    def __init__(self, objects: Objects, name: str) -> None:
        super().__init__()
        self._objects = objects
        self._name = name
        self._start = bytearray()
        self._writer: Any = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if self._writer is None and len(self._start) + len(view) <= _PIECE_BYTES:
            self._start += view
            return len(view)
        with self._objects._translated(self._name):
            if self._writer is None:
                self._writer = _obstore(self._objects.url).open_writer(
                    self._objects._store,
                    self._name,
                    buffer_size=_PIECE_BYTES,
                    max_concurrency=_PIECES_MAX,
                )
                self._writer.write(bytes(self._start))
                self._start = bytearray()
            self._writer.write(bytes(view))
        return len(view)

    def complete(self) -> None:
        if self._writer is None:
            self._objects.put(self._name, bytes(self._start))
            return
        with self._objects._translated(self._name):
            self._writer.close()

    def abandon(self) -> None:
        self._writer = None
        self._start = bytearray()

    def writable(self) -> bool:
        return True


class ObjectFile(io.RawIOBase):
    """An object for reading at any place. ``read`` returns as much as it is asked for, up to the end.

    ``bytes`` is how long it is; whoever knows that it was replaced by a longer one may raise it.
    """

    def __init__(self, objects: Objects, name: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._name = name
        self.bytes = size
        self._position = 0
        self._data = b""
        self._begin = 0  # of the data
        self._ahead = 0

    def read(self, size: int = -1, /) -> bytes:
        end = self.bytes if size < 0 else min(self._position + size, self.bytes)
        if end <= self._position:
            return b""
        have = self._begin + len(self._data)
        if not self._begin <= self._position < end <= have:
            goes_on = have == self._position and have > 0
            self._ahead = min(max(2 * self._ahead, 1 << 20), _AHEAD_BYTES_MAX) if goes_on else 0
            until = min(max(end, self._position + self._ahead), self.bytes)
            self._data = self._objects.read_range(self._name, self._position, until)
            self._begin = self._position
        found = self._data[self._position - self._begin : end - self._begin]
        self._position = end
        return found

    def readinto(self, buffer: Any, /) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.bytes}
        self._position = begins[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


#: The buckets that this process has checked.
_checked: set[tuple[str, tuple[str, ...], bool]] = set()


def _right_in(folder: str, found: Iterable[Any]) -> list[Meta]:
    below = f"{folder}/" if folder else ""
    metas = (_meta(one) for one in found)
    own = (one._replace(name=one.name[len(below) :]) for one in metas)
    return sorted(one for one in own if one.name and "/" not in one.name)


def _meta(found: Any) -> Meta:
    return Meta(found["path"], found["size"], found["last_modified"].timestamp())


def _pauses() -> Iterator[float]:
    pause = _PAUSE_SECONDS_MIN
    while True:
        yield random.uniform(0.5, 1) * pause
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def _obstore(url: str) -> Any:
    return need("obstore", extra=EXTRA, what=f"the location {url!r}")


def _store_of(url: str) -> Any:
    stores = need("obstore.store", extra=EXTRA, what=f"the location {url!r}")
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise InputError(f"{url}: which bucket? Write {scheme}://BUCKET/PATH.")
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    client = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS_MAX),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS_MAX),
    }
    retries = {
        "max_retries": _OWN_RETRIES_MAX,
        "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
        "backoff": {
            "init_backoff": timedelta(seconds=_PAUSE_SECONDS_MIN),
            "max_backoff": timedelta(seconds=_PAUSE_SECONDS_MAX),
            "base": 2,
        },
    }
    if scheme in _S3:
        # Only who writes http:// wants it.
        plain = {"allow_http": True} if endpoint.startswith("http://") else {}
        return stores.S3Store(
            bucket, prefix=prefix or None, client_options={**client, **plain}, retry_config=retries
        )
    if scheme in _GCS:
        return stores.GCSStore(
            bucket, prefix=prefix or None, client_options=client, retry_config=retries
        )
    return stores.from_url(url, client_options=client, retry_config=retries)
