"""What a front is to a live query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Element(NamedTuple):
    """A payload, the position it was read at, and its time; without one it is that of arrival."""

    position: Any
    payload: Any
    time: int | None = None


class Front(Protocol):
    """Gives elements from a position on. See `emberflow.fronts`."""

    @property
    def partitions(self) -> int: ...

    def read(self, partition: int, position: Any) -> Iterator[Element | None]: ...
