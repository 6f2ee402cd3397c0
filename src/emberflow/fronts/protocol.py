"""What a front is to a live query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from emberflow.errors import EmberflowError


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


class Idle(NamedTuple):
    """There is nothing just now, and nothing that comes later gets a time below ``until``.

    Only a front with ``promises = True`` may say so. Such a promise is a choice that its source
    knows nothing of, so the query notes it, and the times of all its elements, before it relies on
    them. An element that comes later with a time below is given ``until``, or the next free time.

    ``ahead`` is how much later than this the next promises may be for a second or so: that is noted
    with it, so that not each of them has to be written.
    """

    until: int
    ahead: int = 1_000


class FrontGrewError(EmberflowError):
    """A source has more partitions than this life of the query knows: the next one will."""


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
