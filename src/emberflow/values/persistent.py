"""An append-only sequence whose versions share structure, for accumulators that grow.

What this file guarantees:

- A version never changes. Whatever is appended to it or to any other version, in any order, it
  holds the elements that it was made with.
- To append to the newest version takes constant time, amortised. To append to an older one copies
  at most one chunk or one spine, never the elements: `CHUNK` or `n / CHUNK` references.
- The elements after the first k can be saved without the first k: `PersistentList.tail`.

Theory of operation. An accumulator such as a posting list grows by one element per update, and the
engine retains its versions: it speculates on the newest, and replays from an older one when an
earlier item arrives late. A tuple would be copied at each update. A list would change under the
versions that are still needed. So a version is a length and two buffers that it shares with other
versions, and it ignores everything beyond its length::

    spine    [chunk, chunk, chunk]   all chunks but the last, each of exactly CHUNK elements
    last     [a, b, c, x, y]         the last chunk
    length   3 * CHUNK + 3           this version ends at c; a newer one added x and y

To append to a version that ends where its last chunk ends is to append to that very list: all
other versions that share it end earlier, and don't see the difference. When the chunk extends
beyond the version's end, another version has appended before; then `append` copies the part up to
the version's end, and appends to the copy. Versions share the spine in the same way, one level up.
Nothing is ever overwritten or removed, so this is correct for any tree of versions.

The price: a version keeps alive the elements that newer versions added to shared buffers, even when
those versions are gone. `PersistentList(version)` makes a copy without them, at the cost of an
append to an older version. The empty list shares nothing: many lists may start from it.

Threads must not append to versions of one list at the same time: one could append between the
other's check of the chunk's end and its append. There is no lock, because a worker has a single
thread and lists travel between workers as copies. Reading is safe at any time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar, final, overload

__all__ = ["PersistentList", "Tail"]

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")

# Replays copy half a chunk on average, so small chunks suit them; large ones suit the spine and
# iteration. `bench/persistent.py --chunks` shows the trade-off. Lists made with one size can't be
# used with another: only the tests change it, to reach every boundary with few elements.
_CHUNK = 256

# The last chunk of the empty list. It isn't empty, so the empty list never seems to end where its
# chunk ends, and an append to it makes a new chunk.
_NO_CHUNK: list[Any] = [None]

_REPR_WHOLE = 12
_REPR_ENDS = 3


class Tail(NamedTuple, Generic[T_co]):
    """The elements of a list from position `start` on. A cut saves these if it has the others."""

    start: int
    elements: tuple[T_co, ...]


@final
class PersistentList(Sequence[T_co]):
    """A list that stays as it is: `append` and `extend` return a new version.

    >>> one = PersistentList("ab")
    >>> two = one.append("c")
    >>> three = one.extend("xyz")
    >>> one, two, three
    (PersistentList(['a', 'b']),
     PersistentList(['a', 'b', 'c']),
     PersistentList(['a', 'b', 'x', 'y', 'z']))

    Otherwise it is a sequence like `tuple`: equal when the elements are equal, hashable when they
    are, pickled as its elements. It equals no list or tuple, as a tuple equals no list.
    """

    # Elements are `Any` in here: other versions, of wider types, add to the same buffers.
    __slots__ = ("_last", "_length", "_spine")
    _spine: list[list[Any]]
    _last: list[Any]
    _length: int

    def __init__(self, elements: Iterable[T_co] = ()) -> None:
        if isinstance(elements, PersistentList):
            # Chunks of the spine are full and won't change, so the copy shares them. It has its own
            # copies of the buffers that other versions may add to: see 'the price' above.
            length: int = elements._length
            full = elements._full()
            self._spine = elements._spine[:full]
            self._last = elements._last[: length - full * _CHUNK] if length else _NO_CHUNK
            self._length = length
            return
        self._spine = []
        self._last = _NO_CHUNK
        self._length = 0
        whole = self.extend(elements)
        self._spine = whole._spine
        self._last = whole._last
        self._length = whole._length

    # Growing

    def append(self, element: S) -> PersistentList[T_co | S]:
        """The version with `element` added at the end.

        >>> PersistentList([1, 2]).append(3)
        PersistentList([1, 2, 3])
        """
        # The hot path of every growing accumulator: `_version`, inlined. One comparison covers both
        # special cases: a version that isn't the newest, and a full chunk, whose remainder is 0
        # while its length is not.
        last = self._last
        length = self._length
        if len(last) != length % _CHUNK:
            return self._append_elsewhere(element)
        last.append(element)
        version: PersistentList[T_co | S] = _new(PersistentList)
        version._spine = self._spine
        version._last = last
        version._length = length + 1
        return version

    def _append_elsewhere(self, element: S) -> PersistentList[T_co | S]:
        spine, last = self._room()
        last.append(element)
        return _version(spine, last, self._length + 1)

    def extend(self, elements: Iterable[S]) -> PersistentList[T_co | S]:
        """The version with all of `elements` added at the end.

        >>> PersistentList([1, 2]).extend(n * n for n in (3, 4))
        PersistentList([1, 2, 9, 16])
        """
        # Collect them all first: iterating may run code that appends to this version, or raises.
        added = list(elements)
        version: PersistentList[T_co | S] = self
        position = 0
        while position < len(added):
            spine, last = version._room()
            part = added[position : position + _CHUNK - len(last)]
            last += part
            position += len(part)
            version = _version(spine, last, version._length + len(part))
        return version

    def _room(self) -> tuple[list[list[Any]], list[Any]]:
        """A spine and a last chunk of this version that can be appended to."""
        spine = self._spine
        last = self._last
        used = self._length % _CHUNK
        if len(last) == used:
            return spine, last
        if used:
            return spine, last[:used]
        if not self._length:
            return [], []
        # The last chunk is full: add it to the spine, unless another version has added it before.
        # If another version added a different chunk there, copy the spine.
        full = self._full()
        if len(spine) == full:
            spine.append(last)
        elif spine[full] is not last:
            spine = spine[:full]
            spine.append(last)
        return spine, []

    # Cuts

    def tail(self, start: int) -> Tail[T_co]:
        """The elements after the first `start`, to be saved without those.

        >>> PersistentList("abcde").tail(3)
        Tail(start=3, elements=('d', 'e'))
        """
        if not 0 <= start <= self._length:
            raise ValueError(
                f"PersistentList.tail: expected a start from 0 to the list's length of "
                f"{self._length}, got {start}; give the length that the list had at the earlier cut"
            )
        return Tail(start, tuple(self._between(start, self._length)))

    def with_tail(self, tail: Tail[S]) -> PersistentList[T_co | S]:
        """The first `tail.start` elements of this list, then those of `tail`.

        >>> saved = PersistentList("abcde").tail(3)
        >>> PersistentList("abc").with_tail(saved)
        PersistentList(['a', 'b', 'c', 'd', 'e'])
        """
        if tail.start > self._length:
            raise ValueError(
                f"PersistentList.with_tail: expected a list of at least {tail.start} elements, "
                f"which the tail continues, got one of {self._length}; restore the earlier tails "
                f"first, in the order in which they were saved"
            )
        if tail.start < 0:
            raise ValueError(
                f"PersistentList.with_tail: expected a tail that starts at 0 or later, got one "
                f"that starts at {tail.start}; make tails with PersistentList.tail"
            )
        return self._prefix(tail.start).extend(tail.elements)

    # Reading

    def __len__(self) -> int:
        return self._length

    def _full(self) -> int:
        """How many chunks of the spine are this version's."""
        return (self._length - 1) // _CHUNK if self._length else 0

    def _chunks(self) -> Iterator[list[Any]]:
        """The elements in lists, none of which changes while it is read."""
        full = self._full()
        last = self._last[: self._length - full * _CHUNK]
        return chain(islice(self._spine, full), (last,)) if full else iter((last,))

    def __iter__(self) -> Iterator[T_co]:
        if self._length <= _CHUNK:  # most are short
            return iter(self._last[: self._length])
        return chain.from_iterable(self._chunks())

    def __reversed__(self) -> Iterator[T_co]:
        full = self._full()
        last = self._last[: self._length - full * _CHUNK]
        return chain.from_iterable(map(reversed, chain((last,), reversed(self._spine[:full]))))

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> PersistentList[T_co]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T_co | PersistentList[T_co]:
        length = self._length
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step == 1 and start == 0:
                return self._prefix(stop)
            picked = range(start, stop, step)
            if not picked:
                return PersistentList()
            low, high = min(picked[0], picked[-1]), max(picked[0], picked[-1])
            return PersistentList(self._between(low, high + 1)[::step])
        position = operator.index(index)
        if position < 0:
            position += length
        if not 0 <= position < length:
            raise IndexError(
                f"PersistentList index out of range: got {index} for a list of length {length}"
            )
        chunk, offset = divmod(position, _CHUNK)
        found: T_co = self._last[offset] if chunk == self._full() else self._spine[chunk][offset]
        return found

    def _prefix(self, length: int) -> PersistentList[T_co]:
        """The first `length` elements, without a copy: a version may be older than its buffers."""
        if length == self._length:
            return self
        if not length:
            return PersistentList()
        full = (length - 1) // _CHUNK
        last = self._last if full == self._full() else self._spine[full]
        return _version(self._spine, last, length)

    def _between(self, start: int, stop: int) -> list[Any]:
        first = start // _CHUNK
        full = self._full()
        elements: list[Any] = []
        for number in range(first, (stop - 1) // _CHUNK + 1 if stop > start else first):
            base = number * _CHUNK
            chunk = self._last if number == full else self._spine[number]
            elements += chunk[max(start - base, 0) : stop - base]
        return elements

    def __contains__(self, element: object) -> bool:
        return any(element in chunk for chunk in self._chunks())

    def count(self, value: Any) -> int:
        return sum(chunk.count(value) for chunk in self._chunks())

    # Comparing

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PersistentList):
            return NotImplemented
        length = self._length
        if length != other._length:
            return False
        full = self._full()
        # `is` first, for versions that share buffers: `==` of a list with itself still iterates.
        if self._spine is not other._spine and not all(
            map(_same, islice(self._spine, full), islice(other._spine, full))
        ):
            return False
        used = length - full * _CHUNK
        return self._last is other._last or self._last[:used] == other._last[:used]

    def __hash__(self) -> int:
        # Equal lists have their chunk boundaries at the same places.
        return hash(tuple([hash(tuple(chunk)) for chunk in self._chunks()]))

    def __repr__(self) -> str:
        if self._length <= _REPR_WHOLE:
            return f"PersistentList({list(self)!r})"
        first = ", ".join(map(repr, self[:_REPR_ENDS]))
        last = ", ".join(map(repr, self[-_REPR_ENDS:]))
        return f"PersistentList([{first}, <{self._length - 2 * _REPR_ENDS} more>, {last}])"

    # Copying

    def __reduce__(self) -> tuple[type[PersistentList[Any]], tuple[list[T_co]]]:
        return PersistentList, (list(self),)

    def __copy__(self) -> PersistentList[T_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PersistentList[T_co]:
        # As for a tuple: when no element needed a copy, neither does the list.
        elements = list(self)
        copies = [deepcopy(element, memo) for element in elements]
        return self if all(map(operator.is_, elements, copies)) else PersistentList(copies)


def _version(spine: list[list[Any]], last: list[Any], length: int) -> PersistentList[Any]:
    version: PersistentList[Any] = _new(PersistentList)
    version._spine = spine
    version._last = last
    version._length = length
    return version


def _same(one: list[Any], other: list[Any]) -> bool:
    return one is other or one == other


# Cheaper than calling the class, which runs `__init__`. It is `object.__new__`, taken from the
# class so that the file could also be compiled with mypyc.
_new = PersistentList.__new__
