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

from emberflow.checkpoint.files import make_folder, private_opener, sync_folder
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


class Files:
    """Stores each bundle as a file in ``folder/partition-0000/``.

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
        self.folder = Path(folder).absolute()
        self.format = format
        self.commit_every = seconds(commit_every, "sinks.Files(commit_every=)")

    def check(self) -> None:
        """Raises `InputError` if files cannot be written there. Makes the folder if it is missing."""
        try:
            make_folder(self.folder)
        except OSError as error:
            raise InputError(f"sinks.Files cannot make {self.folder}: {error}.") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
            raise InputError(f"sinks.Files may not write to {self.folder}.") from denied

    def open(self, partition: int) -> FilesWriter:
        self.check()
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
        return read_files(self.folder, partition)


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
    own = partition_folder(Path(folder), partition)
    if not own.is_dir():
        return []
    return [
        payload
        for name in sorted(bundle_names(own))
        for payload in decoded(name.rpartition(".")[2], (own / name).read_bytes())
    ]


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / f"partition-{partition:04d}"


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
