"""What a sink is to a live query."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from emberflow.errors import EmberflowError
from emberflow.values.item import GlobalTime


class SinkMovedError(EmberflowError):
    """Another writer has stored in a partition, or taken it over, since this one was opened."""


class StoredBundle(NamedTuple):
    """What a sink is handed at once: payloads in order, and the global time of the last one.

    A sink with ``places = True`` also gets the place of each payload: its global time and child ids.
    """

    sink: str
    partition: int
    last: GlobalTime
    payloads: list[Any]
    places: list[tuple[int, ...]] | None = None


class Writer(Protocol):
    """Stores the bundles of one partition."""

    def last(self) -> GlobalTime | None: ...

    def store(self, bundle: StoredBundle) -> None: ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Opens writers. See `emberflow.sinks`."""

    def open(self, partition: int) -> Writer: ...
