"""The inbox of a front: batches of rows, kept from their acknowledgement until a cut has them.

A micro-batch comes in two steps. Its tasks *stage* their rows, each in a file of its own. Then the
driver *commits* the batch, with the list of those files in the order of the tasks. Guarantees:

1. *Acknowledged is durable.* `commit` copies the staged rows into one file, syncs it and renames it to
   ``batch-<sequence>``. A file with that name is whole. Staged rows without one are not part of the
   input, so half a batch is discarded by doing nothing.
2. *A repeated batch is dropped.* A batch is known by the id of its stream (that of the streaming
   query, which its checkpoint keeps) and its number. Each file has the last number of every stream, so
   the numbers are durable in the same step as the rows. An empty batch changes only the numbers:
   it writes the file ``numbers``.
3. *Damage is found.* A batch has a checksum of its head and one of each part. Every read checks them
   and raises `DamagedFileError`: a batch is the rows that were committed, or an error.
4. *The order is a fact of the folder.* It is by sequence, then by task, then by row. Every reader reads
   the same, from wherever it begins.
5. *One owner.* A driver that has a successor commits nothing more (`OwnedFolder`).

Staged rows survive the death of the driver, so the next driver can still commit a batch whose rows are
all here. They are removed when their batch or a later one is committed, by `abort`, and when the inbox
is opened more than a day later.

A batch file has a head and the parts, each an Arrow stream, one behind the other::

    magic 4 | length of the head 4 | head, JSON with a seal (`checkpoint.seals`) | parts

Staging a part again from its beginning, and committing a batch again, change nothing: a client that
got no answer asks again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from xxhash import xxh64, xxh64_hexdigest

from emberflow.checkpoint.errors import DamagedFileError
from emberflow.checkpoint.files import make_private_folder, private_opener
from emberflow.checkpoint.ownership import OwnedFolder
from emberflow.checkpoint.seals import sealed, unsealed
from emberflow.errors import EmberflowError, InputError

_MAGIC = b"EFB2"
_HEADER = struct.Struct("!4sI")
_BATCH = re.compile(r"batch-(\d{16})")
_PART = re.compile(r"(?P<stream>[0-9A-Za-z-]{1,64})_(?P<batch>\d+)_\d+_[0-9a-f]{32}")
_TEMPORARY = ".temporary"
_NUMBERS = "numbers"
_STAGED = "staged"
#: Streams whose numbers are kept. Each is a streaming query with a checkpoint of its own.
_STREAMS_MAX = 256
_STAGED_SECONDS_MAX = 86_400


#: What a task has staged: the name, the number of bytes and their xxh64.
Part: TypeAlias = tuple[str, int, str]

_NOT_HERE = (
    "a part of the batch is not here: {found} of {expected} bytes. The live query was begun elsewhere "
    "since. Nothing of the batch was taken in; the streaming query gives it again when it is started "
    "again."
)


class StoredBatch(NamedTuple):
    """The head of a batch file, and where its rows begin."""

    stream: str
    batch: int
    schema: str
    parts: list[tuple[int, str]]  # bytes of each, and their xxh64
    numbers: dict[str, int]
    begins_at: int


class Inbox:
    """The driver's end of a folder of batches. Several threads may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private_folder(folder)
        self._owned = OwnedFolder(folder)
        self._staged = folder / _STAGED
        self._staged.mkdir(0o700, exist_ok=True)
        self._lock = threading.Lock()
        with self._owned.taking():
            for name in os.listdir(folder):
                if name.endswith(_TEMPORARY):
                    (folder / name).unlink()
            self._tidy_staged()
            self._sequence = max(sequences(folder), default=0)
            self._numbers = _numbers_of(folder, self._sequence)
        self._owned.sync()

    def close(self) -> None:
        self._owned.close()

    def last(self, stream: str) -> int | None:
        """The number of the last batch of a stream that is here."""
        with self._lock:
            return self._numbers.get(stream)

    def bytes_above(self, sequence: int) -> int:
        """How many bytes the batches above a sequence have."""
        known = batch_name(sequence)
        with os.scandir(self._folder) as entries:
            return sum(
                _size(entry)
                for entry in entries
                if _BATCH.fullmatch(entry.name) and entry.name > known
            )

    def stage(self, part: str, offset: int, data: bytes) -> None:
        """Write bytes of a part at their offset."""
        descriptor = private_opener(self._part(part), os.O_WRONLY | os.O_CREAT)
        with open(descriptor, "wb") as file:
            if os.fstat(descriptor).st_size < offset:
                raise InputError(
                    _NOT_HERE.format(found=os.fstat(descriptor).st_size, expected=offset)
                )
            file.truncate(offset)
            file.seek(offset)
            file.write(data)

    def commit(
        self, stream: str, batch: int, schema: str, parts: Sequence[Part], rows: int
    ) -> bool:
        """Make a batch part of the input, durably. Returns whether it was new."""
        with self._lock:
            if not self._is_next(stream, batch):
                return False
            self._check_parts(parts)
            numbers = {**self._numbers}
            numbers.pop(stream, None)
            numbers[stream] = batch
            while len(numbers) > _STREAMS_MAX:
                del numbers[next(iter(numbers))]
            if rows:
                self._store_batch(StoredBatch(stream, batch, schema, [], numbers, 0), parts)
            else:
                data = sealed(json.dumps(numbers).encode(), _NUMBERS)
                self._put(self._folder / _NUMBERS, data, [])
            self._numbers = numbers
            self._remove_staged(stream, batch)
            return True

    def abort(self, parts: Sequence[str]) -> None:
        for part in parts:
            self._part(part).unlink(missing_ok=True)

    def _is_next(self, stream: str, batch: int) -> bool:
        known = self._numbers.get(stream)
        if known is None or batch == known + 1:
            return True
        if batch <= known:
            return False
        raise InputError(
            f"batch {batch} of streaming query {stream} comes after batch {known}: those between "
            f"them are not here. Was the live query's checkpointLocation put back to an older state, "
            f"or did the streaming query write elsewhere meanwhile? To go on without them, start the "
            f"streaming query with another checkpointLocation."
        )

    def _check_parts(self, parts: Sequence[Part]) -> None:
        for part, expected, checksum in parts:
            try:
                found = self._part(part).stat().st_size
            except FileNotFoundError:
                found = 0
            if found != expected:
                raise InputError(_NOT_HERE.format(found=found, expected=expected))
            if checksum_of(self._part(part)) != checksum:  # after a power loss, for example
                raise InputError(_NOT_HERE.format(found="other bytes, not the", expected=expected))

    def _store_batch(self, stored: StoredBatch, parts: Sequence[Part]) -> None:
        described = stored._asdict() | {"parts": [part[1:] for part in parts]}
        path = self._folder / batch_name(self._sequence + 1)
        head = sealed(json.dumps(described).encode(), path.name)
        self._put(
            path,
            _HEADER.pack(_MAGIC, len(head)) + head,
            [self._part(part) for part, _, _ in parts],
            is_new=True,
        )
        self._sequence += 1

    def _put(self, path: Path, data: bytes, rest: list[Path], *, is_new: bool = False) -> None:
        """Write a file so that it is whole and durable, or not there."""
        temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            self._put_by(temporary, path, data, rest, is_new=is_new)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)  # on a full disk it is in the way
            raise
        self._owned.sync()

    def _put_by(
        self, temporary: Path, path: Path, data: bytes, rest: list[Path], *, is_new: bool
    ) -> None:
        with open(temporary, "xb", opener=private_opener) as file:
            file.write(data)
            for part in rest:
                with open(part, "rb") as staged:
                    shutil.copyfileobj(staged, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        with self._owned.keeping() as is_owner:
            if not is_owner or (is_new and path.exists()):
                raise EmberflowError(
                    f"{self._folder} was taken over by another driver of the live query, and this "
                    f"one may take in nothing more."
                )
            os.rename(temporary, path)

    def _part(self, name: str) -> Path:
        if not _PART.fullmatch(name):
            raise InputError(f"{name!r} is not the name of a part of a batch.")
        return self._staged / name

    def _remove_staged(self, stream: str, batch: int) -> None:
        for name in os.listdir(self._staged):
            match = _PART.fullmatch(name)
            if match and match["stream"] == stream and int(match["batch"]) <= batch:
                (self._staged / name).unlink(missing_ok=True)

    def _tidy_staged(self) -> None:
        """Remove parts that nobody has committed for long."""
        now = time.time()
        for name in os.listdir(self._staged):
            path = self._staged / name
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > _STAGED_SECONDS_MAX:
                    path.unlink()


def part_name(stream: str, batch: int, partition: int) -> str:
    """A new name for what a task stages: each attempt at a task has its own."""
    return f"{stream}_{batch}_{partition}_{uuid.uuid4().hex}"


def checksum_of(path: Path) -> str:
    digest = xxh64()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def batch_name(sequence: int) -> str:
    return f"batch-{sequence:016d}"


def sequences(folder: Path) -> list[int]:
    """The batches of a folder."""
    matches = map(_BATCH.fullmatch, os.listdir(folder))
    return [int(match[1]) for match in matches if match]


def read_head(folder: Path, sequence: int) -> StoredBatch:
    """The head of a batch."""
    with open(folder / batch_name(sequence), "rb") as file:
        header = file.read(_HEADER.size)
        magic, length = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        if magic != _MAGIC:
            raise DamagedFileError(
                f"{file.name} is damaged, or of another version of Emberflow: it does not begin as a "
                f"batch does. Restore the file from a backup."
            )
        head: Mapping[str, Any] = json.loads(
            unsealed(file.read(length), batch_name(sequence), file.name)
        )
        return StoredBatch(**{**head, "begins_at": file.tell()})


def read_parts(folder: Path, sequence: int, stored: StoredBatch) -> Iterator[bytes]:
    """The parts of a batch that have rows, one at a time, each as it was staged."""
    with open(folder / batch_name(sequence), "rb") as file:
        file.seek(stored.begins_at)
        for number, (size, checksum) in enumerate(stored.parts):
            data = file.read(size)
            if len(data) != size or xxh64_hexdigest(data) != checksum:
                raise DamagedFileError(
                    f"{file.name} is damaged: part {number} does not have the checksum that it was "
                    f"committed with. Restore the file from a backup."
                )
            if data:
                yield data


def trim(folder: Path, before: int) -> None:
    """Remove the batches below a sequence. The newest one stays: it has the numbers of streams."""
    found = sorted(sequences(folder))
    for sequence in found[:-1]:
        if sequence < before:
            (folder / batch_name(sequence)).unlink(missing_ok=True)


def _numbers_of(folder: Path, sequence: int) -> dict[str, int]:
    numbers: dict[str, int] = {}
    if sequence:
        numbers.update(read_head(folder, sequence).numbers)
    with contextlib.suppress(FileNotFoundError):
        path = folder / _NUMBERS
        found = json.loads(unsealed(path.read_bytes(), _NUMBERS, str(path)))
        for stream, batch in found.items():
            numbers[stream] = max(batch, numbers.get(stream, batch))
    return numbers


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # trimmed meanwhile: a cut has it
        return 0
