"""`sinks.Files` on an object store: the same files, and the same guarantees without renames and locks.

::

    <folder>/partition-0000/p0000000000000000012-p0000000000.jsonl   a bundle
    <folder>/_emberflow/partition-0000/                              the chain of the partition

A bundle is first created as a record of the partition's chain, where only the writer that opened last can
add one (`checkpoint.chains`). The record's note is the name of the file. Then the store copies it to that
name. Both show a whole object or none. If the writer dies in between, the next one makes the copy. So a
bundle is two requests, and the data travels once.
"""

from __future__ import annotations

import contextlib
from typing import Any

from emberflow.checkpoint.chains import Chain
from emberflow.checkpoint.errors import TakenError
from emberflow.checkpoint.objects import Objects
from emberflow.errors import EmberflowError, InputError
from emberflow.sinks.folders.names import bundles_among, name_of, partition_name, time_of
from emberflow.sinks.formats import decoded, encoded
from emberflow.sinks.protocol import SinkMovedError, StoredBundle
from emberflow.values.item import GlobalTime

#: Where the chains of partitions are. Readers such as Spark skip such names.
_CHAINS = "_emberflow"
#: So many records are removed at once, which is one request.
_REMOVED_AT_ONCE = 100


class ObjectsFolder:
    """A folder on an object store in which `sinks.Files` stores bundles."""

    def __init__(self, folder: str, format: str) -> None:
        self._objects = Objects(folder)
        self._format = format

    def __str__(self) -> str:
        return str(self._objects)

    def check(self) -> None:
        self._objects.check()

    def open(self, partition: int) -> ObjectsWriter:
        return ObjectsWriter(self._objects, partition, self._format)

    def payloads(self, partition: int) -> list[Any]:
        folder = partition_name(partition)
        return [
            payload
            for name in sorted(_bundles(self._objects, folder))
            for payload in decoded(name.rpartition(".")[2], self._objects.read(f"{folder}/{name}"))
        ]

    def folders(self) -> list[str]:
        names = self._objects.listed()[0]
        if not names:
            raise InputError(f"there is nothing at {self}.")
        return list(names)


class ObjectsWriter:
    """Stores the bundles of one partition on an object store."""

    def __init__(self, objects: Objects, partition: int, format: str) -> None:
        self._objects = objects
        self._folder = partition_name(partition)
        self._format = format
        #: Whether it is unknown what the store has.
        self._has_failed = False
        self._chain = Chain(objects, f"{_CHAINS}/{self._folder}")
        tail = self._chain.take_over()
        if tail.note is None:  # perhaps somebody has copied files here
            self._last = max(map(time_of, _bundles(objects, self._folder)), default=None)
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
        # A successor may have done so, and removed the record.
        with contextlib.suppress(FileNotFoundError):
            self._objects.copy(record, f"{self._folder}/{name}")

    def _shown(self) -> str:
        return self._objects.shown(self._folder)


def _bundles(objects: Objects, folder: str) -> list[str]:
    return list(bundles_among(meta.name for meta in objects.metas(folder)))
