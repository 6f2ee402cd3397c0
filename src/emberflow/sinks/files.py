"""`sinks.Files`: each bundle is a file, JSON Lines or Parquet, in a folder for each partition.

Guarantees:

1. *All or nothing.* The writer writes a bundle under a temporary name in the same folder, syncs it to
   disk, renames it to its own name, and syncs the folder. A file with a proper name is whole. Once
   `store` has returned, it survives a power loss, and so do the folders above it. Readers ignore files
   with temporary names, and the next writer removes them.
2. *The name is the record.* A file is named after the last global time of its bundle. So the last
   global time of a partition is its last name, and no second record can disagree with it.
3. *Names sort as times do*, negative ones as well. So ``ls``, Spark and `fronts.Files` read a partition
   in its order: see `name_of`.
4. *One writer.* A writer takes the partition over when it is opened. The writer before it, perhaps of a
   worker that is dying slowly, can store nothing more, not even if it is in the middle of a bundle.
   Otherwise both could store what follows the same last time. This needs locks (`flock`) that work on
   the folder's file system. No two writers share a temporary file, even for the same bundle: its name is
   unique and the writer creates it exclusively. So an old writer never writes to a file that its
   successor renames.

**On an object store** there is neither a rename nor a lock, and the same holds all the same. A bundle is
first created as a record of the partition's chain, below ``_emberflow/``, where only the writer that
opened last can add one (`checkpoint.chains`). The record's note is the name of the file. Then the store
copies it to that name. Both show a whole object or none. If the writer dies in between, the next one makes
the copy. So a bundle is two requests, and the data travels once.

How many files there are depends on how the query made bundles, which differs from run to run. The
content of the files of a partition, one behind the other, does not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from emberflow.checkpoint.chains import Chain
from emberflow.checkpoint.errors import TakenError
from emberflow.checkpoint.files import make_folder, private_opener, sync_folder
from emberflow.checkpoint.objects import Objects, is_object_url
from emberflow.checkpoint.ownership import OwnedFolder
from emberflow.errors import EmberflowError, InputError
from emberflow.sinks.formats import FORMATS, check, decoded, encoded, pyarrow
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, refusal
from emberflow.values.item import GlobalTime
from emberflow.values.times import Duration, seconds

_TIME_DIGITS = 19
_FRONT_DIGITS = 10
#: Of fronts with a tie (`values.item.TIE`) too great for the other names.
_TIED_DIGITS = 19
_NAME = re.compile(
    rf"([np]\d{{{_TIME_DIGITS}}})-([np]\d{{{_FRONT_DIGITS}}}|q\d{{{_TIED_DIGITS}}})"
    rf"\.(jsonl|parquet|arrow)"
)
_TEMPORARY_SUFFIX = ".temporary"
#: Where the chains of partitions are on an object store. Readers such as Spark skip such names.
_CHAINS = "_emberflow"
#: So many records are removed at once, which is one request.
_REMOVED_AT_ONCE = 100
_PARTITION = re.compile(r"partition-(\d{4,})")


class Files:
    """Stores each bundle as a file in ``folder/partition-0000/``. The folder may be the URL of one on an
    object store (``s3://bucket/folder``): see ``docs/object-stores.md``.

    ``commit_every``, in seconds or as ``"1 minute"``, makes fewer and bigger files: a live query holds
    output for so long, or until it is much, and stores it as one bundle.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> writer = Files(folder).open(0)
    >>> writer.store(StoredBundle("words", 0, GlobalTime(7, 0), [{"word": "ash"}, "ember"]))
    >>> writer.close()
    >>> read_files(folder)
    [{'word': 'ash'}, 'ember']
    >>> Files(folder).open(0).last()
    GlobalTime(time=7, front=0)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        format: str = "jsonl",
        commit_every: float | Duration = 0,
    ) -> None:
        if format not in FORMATS:
            raise InputError(
                f"sinks.Files(format=) takes {' or '.join(map(repr, FORMATS))}, got {format!r}."
            )
        if format == "parquet":
            pyarrow()
        #: None on an object store.
        self.folder: Path | None = None
        self.objects: Objects | None = None
        text = os.fspath(folder)
        if is_object_url(text):
            self.objects = Objects(text)
        elif "://" in text:
            raise InputError(
                f"sinks.Files writes to a folder of a local disk, or to an object store as in "
                f"s3://bucket/folder, got {text!r}."
            )
        else:
            self.folder = Path(text).absolute()
        self.format = format
        self.commit_every = seconds(commit_every, "sinks.Files(commit_every=)")

    @property
    def place(self) -> str:
        """The folder or its URL, for messages."""
        return str(self.objects or self.folder)

    def check(self) -> None:
        """Raises `InputError` if files cannot be written there. Makes the folder if it is missing."""
        if self.objects is not None:
            self.objects.check()
            return
        assert self.folder is not None
        try:
            make_folder(self.folder)
        except OSError as error:
            raise InputError(f"sinks.Files cannot make {self.folder}: {error}.") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
            raise InputError(f"sinks.Files may not write to {self.folder}.") from denied

    def open(self, partition: int) -> FilesWriter | ObjectsWriter:
        self.check()
        if self.objects is not None:
            return ObjectsWriter(self.objects, partition, self.format)
        assert self.folder is not None
        # Another process may have made the folder, and not have synced its entry yet. Where this one may
        # not read the parent, the folder is older than the query.
        with contextlib.suppress(PermissionError):
            sync_folder(self.folder.parent)
        return FilesWriter(partition_folder(self.folder, partition), self.format)

    def refuses(self, payload: Any) -> str | None:
        """Why no file could hold the payload; None if one can.

        Payloads that only do not fit each other (in Parquet, where a file has one schema) end a query.
        """
        return refusal(partial(check, self.format), payload)

    def payloads(self, partition: int = 0) -> list[Any]:
        """What a partition has stored so far."""
        return _read(self.objects or self.folder, partition)

    def partitions(self) -> set[int]:
        """The numbers of the partitions that have a folder. Raises `InputError` if there is no such place."""
        if self.objects is not None:
            names = self.objects.listed()[0]
            if not names:
                raise InputError(f"there is nothing at {self.place}.")
        else:
            assert self.folder is not None
            if not self.folder.is_dir():
                raise InputError(f"{self.folder} is not a folder.")
            names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        found = (_PARTITION.fullmatch(name) for name in names)
        return {int(match[1]) for match in found if match is not None}


class FilesWriter:
    """Stores the bundles of one partition; ``encode`` makes the bytes of a file from a bundle.

    Only the owner can read what is ``private``.
    """

    def __init__(
        self,
        folder: Path,
        format: str,
        encode: Callable[[StoredBundle], bytes] | None = None,
        *,
        private: bool = False,
    ) -> None:
        self._folder = folder
        self._format = format
        self._encode = encode or (lambda bundle: encoded(format, bundle.payloads))
        self._opener = private_opener if private else None
        self._owned = OwnedFolder(folder, private=private)
        with self._owned.taking():
            for entry in os.listdir(folder):
                if entry.endswith(_TEMPORARY_SUFFIX):
                    (folder / entry).unlink()
            self._last = max((time_of(name) for name in bundle_names(folder)), default=None)
        # The query relies on the last time, and the writer before may have died before its sync.
        self._owned.sync()

    def last(self) -> GlobalTime | None:
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"sinks.Files: {self._folder} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        data = self._encode(bundle)
        name = f"{name_of(bundle.last)}.{self._format}"
        temporary = self._folder / f".{name}.{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}"
        try:
            self._write(temporary, data)
            with self._owned.keeping() as is_owner:
                if not is_owner:
                    raise SinkMovedError(
                        f"sinks.Files: {self._folder} was opened by another writer, and this one may "
                        "store nothing more. Do two queries write to one folder?"
                    )
                os.rename(temporary, self._folder / name)
        except BaseException:
            with contextlib.suppress(OSError):  # the successor may have removed it
                temporary.unlink()
            raise
        self._owned.sync()
        self._last = bundle.last

    def close(self) -> None:
        self._owned.close()

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file that no other process has opened, and sync it."""
        with open(path, "xb", opener=self._opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


class ObjectsWriter:
    """Stores the bundles of one partition on an object store."""

    def __init__(self, objects: Objects, partition: int, format: str) -> None:
        self._objects = objects
        self._folder = _partition_name(partition)
        self._format = format
        #: Whether it is unknown what the store has.
        self._has_failed = False
        self._chain = Chain(objects, f"{_CHAINS}/{self._folder}")
        tail = self._chain.take_over()
        if tail.note is None:  # perhaps somebody has copied files here
            names = _object_names(objects, self._folder)
            self._last = max(map(time_of, names), default=None)
        else:
            self._last = time_of(tail.note)
        if tail.record is not None:
            self._publish(tail.record.name, tail.record.note)
        self._chain.remove_old()

    def last(self) -> GlobalTime | None:
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"sinks.Files: {self._shown()} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        data = encoded(self._format, bundle.payloads)
        name = f"{name_of(bundle.last)}.{self._format}"
        try:
            record = self._chain.add(data, name)
            self._publish(record, name)
        except TakenError:
            self._has_failed = True
            raise SinkMovedError(
                f"sinks.Files: {self._shown()} was opened by another writer, and this one may store "
                "nothing more. Do two queries write to one folder?"
            ) from None
        except BaseException:
            self._has_failed = True
            raise
        self._last = bundle.last
        if self._chain.removable >= _REMOVED_AT_ONCE:
            self._chain.remove_old()

    def close(self) -> None:
        """End the chain, so that the next writer has nothing to copy. It can do without."""
        if not self._has_failed:
            self._has_failed = True
            with contextlib.suppress(OSError):
                self._chain.end()

    def _publish(self, record: str, name: str) -> None:
        with contextlib.suppress(
            FileNotFoundError
        ):  # a successor has done so, and removed the record
            self._objects.copy(record, f"{self._folder}/{name}")

    def _shown(self) -> str:
        return self._objects.shown(self._folder)


def read_files(folder: str | os.PathLike[str], partition: int = 0) -> list[Any]:
    """The payloads of a partition, in order, as JSON values or as rows of Parquet."""
    text = os.fspath(folder)
    return _read(Objects(text) if is_object_url(text) else Path(text), partition)


def _read(place: Objects | Path | None, partition: int) -> list[Any]:
    assert place is not None
    read: Callable[[str], bytes]
    if isinstance(place, Path):
        own = partition_folder(place, partition)
        if not own.is_dir():
            return []
        names, read = sorted(bundle_names(own)), lambda name: (own / name).read_bytes()
    else:
        folder = _partition_name(partition)
        names, read = (
            sorted(_object_names(place, folder)),
            lambda name: place.read(f"{folder}/{name}"),
        )
    return [payload for name in names for payload in decoded(name.rpartition(".")[2], read(name))]


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / _partition_name(partition)


def _partition_name(partition: int) -> str:
    return f"partition-{partition:04d}"


def _object_names(objects: Objects, folder: str) -> list[str]:
    return [meta.name for meta in objects.metas(folder) if _NAME.fullmatch(meta.name)]


def name_of(last: GlobalTime) -> str:
    """The name of a file, without its ending: time and front, each with a sign and leading zeros.

    ``p`` is for numbers from 0 on. ``n`` is for negative numbers, which are written as their distance
    from the least number of so many digits. So names sort as numbers: ``n`` before ``p``, and a greater
    distance after a smaller one. ``q`` is for fronts of more digits: those of elements behind many others
    of the same time.

    >>> name_of(GlobalTime(12, 0))
    'p0000000000000000012-p0000000000'
    >>> name_of(GlobalTime(-1, -3))
    'n9999999999999999999-n9999999997'
    >>> name_of(GlobalTime(12, 5 * 2**32))
    'p0000000000000000012-q0000000021474836480'
    """
    time = _digits(last.time, _TIME_DIGITS)
    if last.front >= 10**_FRONT_DIGITS:
        return f"{time}-q{last.front:0{_TIED_DIGITS}d}"
    return f"{time}-{_digits(last.front, _FRONT_DIGITS)}"


def time_of(name: str) -> GlobalTime:
    """The last global time that a file is named after.

    >>> time_of("n9999999999999999999-n9999999997.jsonl")
    GlobalTime(time=-1, front=-3)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a bundle")
    return GlobalTime(_number(match[1]), _number(match[2]))


def _digits(number: int, digits: int) -> str:
    if not -(10**digits) <= number < 10**digits:
        raise EmberflowError(f"{number} does not fit into the name of a file.")
    sign, distance = ("p", number) if number >= 0 else ("n", number + 10**digits)
    return f"{sign}{distance:0{digits}d}"


def _number(text: str) -> int:
    number = int(text[1:])
    return number - 10 ** (len(text) - 1) if text[0] == "n" else number


def bundle_names(folder: Path) -> Iterator[str]:
    """The names of the files that writers have finished. Other programs may have put files there."""
    return (name for name in os.listdir(folder) if _NAME.fullmatch(name))
