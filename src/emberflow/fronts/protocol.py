"""What a front is to a live query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class Element(NamedTuple):
    """A payload, the position it was read at, and its time; without one it is that of arrival."""

    position: Any
    payload: Any
    time: int | None = None


class Batch(NamedTuple):
    """Elements that come together, as columns: a tenth of the cost of as many `Element`.

    ``times`` is None when all of them take the time of their arrival. Sequences are read, sliced
    and never changed; a `range` is one.

    >>> Batch(range(3), ["a", "b", "c"], range(3)).part(1, 3)
    Batch(positions=range(1, 3), payloads=['b', 'c'], times=range(1, 3))
    """

    positions: Sequence[Any]
    payloads: Sequence[Any]
    times: Sequence[int] | None = None

    def part(self, begin: int, end: int) -> Batch:
        times = None if self.times is None else self.times[begin:end]
        return Batch(self.positions[begin:end], self.payloads[begin:end], times)


class Malformed(NamedTuple):
    """In place of a payload: what was read at a position is no element, and why.

    A front does not decide what becomes of it. The query ends with ``problem``, or, with
    ``onError`` set to ``"divert"``, what was read goes to the errors sink and reading goes on.

    Where elements have the time of their arrival, so has this. Where they have times of their own,
    this has none that could be trusted: ``before_next`` says that it goes with the element that
    follows in the source, and is placed ahead of all that comes of it.
    """

    raw: str
    problem: str
    before_next: bool = False


class Front(Protocol):
    """Gives elements from a position on. See `emberflow.fronts`."""

    @property
    def partitions(self) -> int: ...

    def read(self, partition: int, position: Any) -> Iterator[Element | None]: ...
