"""`TableWriter`: what the writers of Delta and Iceberg tables share, which is how they commit.

Guarantee: a writer commits a bundle only behind the last global time that it knows. The format refuses a
commit if the table is not as the writer knows it. The writer then loads the table again and looks for
the last time of its partition. If that has moved on, another writer has the partition, and this one
raises `SinkMovedError`. Otherwise another partition or another program was first, and it commits again.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from emberflow.errors import EmberflowError, PayloadError
from emberflow.sinks.protocol import SinkMovedError, StoredBundle
from emberflow.sinks.tables.description import TableSink
from emberflow.sinks.tables.edits import Operation
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    import pyarrow as pa

#: How often a writer commits again that others were ahead of, and the pause before it does.
_ATTEMPTS_MAX = 20
_PAUSE_SECONDS_MIN = 0.01
_PAUSE_SECONDS_MAX = 0.5

S = TypeVar("S", bound=TableSink)
T = TypeVar("T")


class ConflictError(Exception):
    """The table is not as the writer knows it, and nothing was committed."""


class TableWriter(ABC, Generic[S, T]):
    """Commits the bundles of one partition to a table. ``T`` is the library's object for a table."""

    def __init__(self, sink: S, partition: int) -> None:
        self._sink = sink
        self._partition = partition
        with self._explained("cannot be opened"):
            self._table = self._loaded()
            self._last = None if self._table is None else self._last_in(self._table)

    @abstractmethod
    def _loaded(self) -> T | None:
        """The table as it is now; None if there is none."""

    @abstractmethod
    def _made(self, schema: pa.Schema) -> T:
        """The table, made with this schema unless another writer has made it."""

    @abstractmethod
    def _refresh(self, table: T) -> None:
        """Bring the table up to what is committed."""

    @abstractmethod
    def _last_in(self, table: T) -> GlobalTime | None:
        """The last global time that is in the table for this partition."""

    @abstractmethod
    def _commit(self, table: T, operations: Sequence[Operation], last: GlobalTime) -> None:
        """Commit operations and their last time, durably. Raises `ConflictError`."""

    def last(self) -> GlobalTime | None:
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        sink = self._sink
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"{sink.what}: {sink.place!r} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        operations = sink.operations(bundle)
        with self._explained("could not store a bundle"):
            if self._table is None:
                self._table = self._made(sink.first_schema(operations))
                self._check_owner(self._table)
            self._commit_behind_others(self._table, operations, bundle.last)
        self._last = bundle.last

    def close(self) -> None:
        self._table = None

    def _commit_behind_others(
        self, table: T, operations: Sequence[Operation], last: GlobalTime
    ) -> None:
        pause = _PAUSE_SECONDS_MIN
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                self._commit(table, operations, last)
                return
            except ConflictError as conflict:
                self._refresh(table)
                self._check_owner(table)
                if attempt == _ATTEMPTS_MAX:
                    raise EmberflowError(
                        f"others were first {attempt} times. The last time: {conflict}"
                    ) from conflict
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _check_owner(self, table: T) -> None:
        """Raises `SinkMovedError` if another writer has stored since this one was opened."""
        found = self._last_in(table)
        if found != self._last:
            raise SinkMovedError(
                f"{self._sink.what}: another writer has stored for {self._sink.name!r} partition "
                f"{self._partition} of {self._sink.place!r}: up to {found}, and this one left it at "
                f"{self._last}. Do two queries write under one name? Then give each its own name=."
            )

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Errors of the library, and of what it uses, as ours."""
        try:
            yield
        except (SinkMovedError, PayloadError):
            raise
        except Exception as error:
            kind: Any = PayloadError if self._is_of_payload(error) else EmberflowError
            raise kind(f"{self._sink.what}: {self._sink.place!r} {what}: {error}") from error

    def _is_of_payload(self, error: Exception) -> bool:
        """Whether the table refuses a row, and would refuse it again."""
        return False
