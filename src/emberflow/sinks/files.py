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

On HDFS (``hdfs://...``) and on object stores (``s3://...``) the same holds by other means: `sinks.folders`
has them.

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
from typing import Any, Protocol

from emberflow.checkpoint.files import make_folder, private_opener, sync_folder
from emberflow.checkpoint.hdfs import is_hdfs
from emberflow.checkpoint.objects import is_object_url
from emberflow.checkpoint.ownership import OwnedFolder
from emberflow.errors import EmberflowError, InputError
from emberflow.sinks.folders.hdfs import HdfsFolder
from emberflow.sinks.folders.names import bundles_among, name_of, partition_name, time_of
from emberflow.sinks.folders.objects import ObjectsFolder
from emberflow.sinks.formats import FORMATS, check, decoded, encoded, pyarrow
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, Writer, refusal
from emberflow.values.item import GlobalTime
from emberflow.values.times import Duration, seconds

_TEMPORARY_SUFFIX = ".temporary"
_PARTITION = re.compile(r"partition-(\d{4,})")


class Folder(Protocol):
    """A folder that is not one of this machine. ``str`` of it is its URL."""

    def check(self) -> None:
        """Raises `InputError` if files cannot be written there. Makes the folder if it is missing."""

    def open(self, partition: int) -> Writer: ...

    def payloads(self, partition: int) -> list[Any]: ...

    def folders(self) -> list[str]:
        """The names of the folders in it. Raises `InputError` if there is no such place."""
        ...


class Files:
    """Stores each bundle as a file in ``folder/partition-0000/``. The folder may be on HDFS
    (``hdfs://cluster/folder``), or on an object store (``s3://bucket/folder``).

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
        #: The folder if it is one of this machine, and if it is elsewhere: one of both is None.
        self.folder: Path | None = None
        self.elsewhere = _folder_elsewhere(os.fspath(folder), format)
        if self.elsewhere is None:
            self.folder = Path(folder).absolute()
        self.format = format
        self.commit_every = seconds(commit_every, "sinks.Files(commit_every=)")

    @property
    def place(self) -> str:
        """The folder or its URL, for messages."""
        return str(self.elsewhere or self.folder)

    def check(self) -> None:
        """Raises `InputError` if files cannot be written there. Makes the folder if it is missing."""
        if self.elsewhere is not None:
            self.elsewhere.check()
            return
        assert self.folder is not None
        try:
            make_folder(self.folder)
        except OSError as error:
            raise InputError(f"sinks.Files cannot make {self.folder}: {error}.") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
            raise InputError(f"sinks.Files may not write to {self.folder}.") from denied

    def open(self, partition: int) -> Writer:
        self.check()
        if self.elsewhere is not None:
            return self.elsewhere.open(partition)
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
        if self.elsewhere is not None:
            return self.elsewhere.payloads(partition)
        assert self.folder is not None
        return read_files(self.folder, partition)

    def partitions(self) -> set[int]:
        """The numbers of the partitions that have a folder. Raises `InputError` if there is no such place."""
        if self.elsewhere is not None:
            names = self.elsewhere.folders()
        else:
            assert self.folder is not None
            if not self.folder.is_dir():
                raise InputError(f"{self.folder} is not a folder.")
            names = [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        found = (_PARTITION.fullmatch(name) for name in names)
        return {int(match[1]) for match in found if match is not None}


def _folder_elsewhere(folder: str, format: str) -> Folder | None:
    """The folder if it is not one of this machine."""
    if is_hdfs(folder):
        return HdfsFolder(folder, format)
    if is_object_url(folder):
        return ObjectsFolder(folder, format)
    if "://" in folder:
        raise InputError(
            f"sinks.Files writes to a folder of a local disk, to HDFS as in hdfs://cluster/folder, or to an "
            f"object store as in s3://bucket/folder, got {folder!r}."
        )
    return None


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


def read_files(folder: str | os.PathLike[str], partition: int = 0) -> list[Any]:
    """The payloads of a partition, in order, as JSON values or as rows of Parquet."""
    elsewhere = _folder_elsewhere(os.fspath(folder), "jsonl")
    if elsewhere is not None:
        return elsewhere.payloads(partition)
    own = partition_folder(Path(folder), partition)
    if not own.is_dir():
        return []
    return [
        payload
        for name in sorted(bundle_names(own))
        for payload in decoded(name.rpartition(".")[2], (own / name).read_bytes())
    ]


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / partition_name(partition)


def bundle_names(folder: Path) -> Iterator[str]:
    """The names of the files that writers have finished. Other programs may have put files there."""
    return bundles_among(os.listdir(folder))
