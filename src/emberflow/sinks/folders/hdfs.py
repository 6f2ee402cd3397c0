"""`sinks.Files` in a folder on HDFS: the same files, and the same guarantees without locks.

::

    <folder>/partition-0000/p0000000000000000012-p0000000000.jsonl   a bundle
    <folder>/partition-0000/.writer-5a…/                             what its writer has in hand

1. *All or nothing.* The writer writes a bundle into a folder of its own, durably, and renames it to its
   name. The rename is one transaction of the name node, and it never replaces a file.
2. *The name is the record*, as in `sinks.files`.
3. *One writer.* Whoever opens a partition makes a folder of its own, removes the folders of all other
   writers, and only then lists what is stored. The name node orders these steps: a writer before it
   has renamed its bundle before its folder is removed, and then the list has that bundle, or its rename
   finds no file, and never will. Writers that open a partition at the same time may remove each other's
   folders. Then neither stores anything, and the next one to open it does.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from emberflow.checkpoint.hdfs import Hdfs, parsed
from emberflow.errors import EmberflowError, InputError
from emberflow.sinks.folders.names import bundles_among, name_of, partition_name, time_of
from emberflow.sinks.formats import decoded, encoded
from emberflow.sinks.protocol import SinkMovedError, StoredBundle
from emberflow.values.item import GlobalTime

_WRITER = ".writer-"
#: As Hadoop's own tools make them.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


class HdfsFolder:
    """A folder on HDFS in which `sinks.Files` stores bundles."""

    def __init__(self, folder: str, format: str) -> None:
        self._url = parsed(folder)
        self._format = format
        self._hdfs = Hdfs(self._url.place)

    def __str__(self) -> str:
        return str(self._url)

    def check(self) -> None:
        try:
            self._hdfs.make_folder(self._url.path, _FOLDER_MODE)
        except OSError as error:
            raise InputError(f"sinks.Files cannot make {self}: {error}.") from error

    def open(self, partition: int) -> HdfsFilesWriter:
        return HdfsFilesWriter(self._hdfs, self._partition(partition), self._format, str(self))

    def payloads(self, partition: int) -> list[Any]:
        folder = self._partition(partition)
        return [
            payload
            for name in sorted(bundles_among(self._hdfs.names(folder)))
            for payload in decoded(name.rpartition(".")[2], self._hdfs.read(f"{folder}/{name}"))
        ]

    def folders(self) -> list[str]:
        if self._hdfs.status(self._url.path) is None:
            raise InputError(f"there is nothing at {self}.")
        return self._hdfs.names(self._url.path)

    def _partition(self, partition: int) -> str:
        return f"{self._url.path}/{partition_name(partition)}"


class HdfsFilesWriter:
    """Stores the bundles of one partition."""

    def __init__(self, hdfs: Hdfs, folder: str, format: str, shown: str) -> None:
        self._hdfs = hdfs
        self._folder = folder
        self._format = format
        self._shown = f"{shown}/{folder.rpartition('/')[2]}"
        own = f"{_WRITER}{uuid.uuid4().hex}"
        self._own = f"{folder}/{own}"
        hdfs.make_folder(self._own, _FOLDER_MODE)
        for name in hdfs.names(folder):
            if name.startswith(_WRITER) and name != own:
                hdfs.remove(f"{folder}/{name}")
        self._last = max(map(time_of, bundles_among(hdfs.names(folder))), default=None)

    def last(self) -> GlobalTime | None:
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"sinks.Files: {self._shown} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        data = encoded(self._format, bundle.payloads)
        name = f"{name_of(bundle.last)}.{self._format}"
        # Unique, because an earlier try to store the same bundle may have left a file.
        temporary = f"{self._own}/{name}.{uuid.uuid4().hex[:8]}"
        target = f"{self._folder}/{name}"
        try:
            with self._hdfs.create(temporary, permission=_FILE_MODE, make_folders=False) as file:
                file.write(data)
            self._hdfs.rename(temporary, target, replace=False)
        except OSError as error:
            if self._hdfs.status(self._own) is None:
                raise SinkMovedError(
                    f"sinks.Files: {self._shown} was opened by another writer, and this one may "
                    "store nothing more. Do two queries write to one folder?"
                ) from error
            raise
        self._last = bundle.last

    def close(self) -> None:
        with contextlib.suppress(OSError):  # whoever opens the partition next removes it
            self._hdfs.remove(self._own)
