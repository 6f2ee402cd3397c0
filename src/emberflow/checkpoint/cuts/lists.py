"""Pickling that stores of a `PersistentList` only the elements that no earlier cut has.

A posting list of a million entries that grew by ten must cost a cut ten entries. So the pickler knows
the lists that earlier parts hold for the bucket. If it finds a list, however deep in tuples,
dataclasses or other lists, that begins with one of those, it writes
``continued(number, base, start, elements)``: take list ``base`` of the earlier bucket up to ``start``,
and continue with these elements; the result is list ``number`` of this bucket. It writes other lists
as ``whole(number, elements)``.

*Begins with* means that the elements are identical, not only equal: equal elements may have different
bytes. Versions of a list share their chunks, so this costs one comparison if nothing was replayed, and
one per chunk if the spine was copied.

`SavedLists` remembers the lists of the *chain* of cuts, and not those that were written last: a cut
may be abandoned. So the lists of a cut are pending until a later cut names it as its base.

Payloads without such lists cost nothing: pickle's C code calls ``reducer_override`` only for objects
of types that it does not know itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from emberflow.checkpoint.errors import DamagedCutError
from emberflow.values.nesting import Flat
from emberflow.values.persistent import PersistentList, Tail

List: TypeAlias = PersistentList[Any]
#: The number of the cut that has the bucket, and the bucket's lists by their numbers.
Stored: TypeAlias = tuple[int, tuple[List, ...]]

PROTOCOL = 5
#: A bucket stores lists beyond this number whole, because each new list is compared with each old one.
LISTS_MAX = 16


def whole(number: int, elements: list[Any]) -> List:
    """A list that is stored whole; ``pickle.loads`` alone can read it."""
    return PersistentList(elements)


def continued(number: int, base: int, start: int, elements: tuple[Any, ...]) -> List:
    """A list of which only the end is stored here."""
    raise DamagedCutError(
        f"this payload continues list {base} of an earlier part of its cut, from element "
        f"{start} on, and cannot be read alone. Read it with CheckpointStore.rows()."
    )


def begins_with(new: List, old: List) -> bool:
    """Whether the first elements of ``new`` are those of ``old``: the very same objects.

    >>> old = PersistentList([1, 2])
    >>> begins_with(old.append(3), old), begins_with(PersistentList([True, 2, 3]), old)
    (True, False)
    """
    length = len(old)
    if len(new) < length:
        return False
    if not length:
        return True
    # The usual case in constant time: both are versions of one list. Up to the shorter's length a
    # shared buffer is the same for both, because buffers only grow.
    if new._spine is old._spine and (
        new._last is old._last
        or (new._full() > old._full() and new._spine[old._full()] is old._last)
    ):
        return True
    for mine, yours in zip(new[:length]._chunks(), old._chunks(), strict=True):
        if mine is not yours and not all(map(_is, mine, yours)):
            return False
    return True


def _is(one: object, other: object) -> bool:
    return one is other


class PayloadPickler(pickle.Pickler):
    """Pickles the payloads of a bucket, one by one, and numbers the lists in them."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol=PROTOCOL)
        self._known: tuple[List, ...] = ()
        self._found: list[List] = []
        self._continues = False

    def begin_bucket(self, known: tuple[List, ...]) -> None:
        self._known = known
        self._found = []

    @property
    def found(self) -> list[List]:
        """The lists of the bucket so far."""
        return self._found

    def pickled(self, payload: Any) -> tuple[bytes, bool]:
        """The bytes of a payload, and whether it continues lists of the earlier bucket."""
        found = len(self._found)
        try:
            return self._dumped(payload)
        except RecursionError:  # it is nested too deeply for pickle
            del self._found[found:]
            return self._dumped(Flat(payload))

    def _dumped(self, payload: Any) -> tuple[bytes, bool]:
        self._continues = False
        buffer = self._buffer
        buffer.seek(0)
        buffer.truncate()
        self.clear_memo()
        self.dump(payload)
        return buffer.getvalue(), self._continues

    def reducer_override(self, value: Any) -> Any:
        if value.__class__ is not PersistentList:
            return NotImplemented
        number = len(self._found)
        self._found.append(value)
        best = -1
        for base, known in enumerate(self._known):
            if (best < 0 or len(known) > len(self._known[best])) and begins_with(value, known):
                best = base
        if best < 0 or not len(self._known[best]):
            return whole, (number, list(value))
        self._continues = True
        start = len(self._known[best])
        return continued, (number, best, start, value.tail(start).elements)


class PayloadUnpickler(pickle.Unpickler):
    """Reads the bytes of a `PayloadPickler`. ``base`` has the lists of the earlier bucket."""

    def __init__(self, data: bytes, base: Sequence[List], lists: dict[int, List]) -> None:
        super().__init__(io.BytesIO(data))
        self._base = base
        self._lists = lists
        self._ours: dict[tuple[str, str], Callable[..., List]] = {
            (__name__, "whole"): self._whole,
            (__name__, "continued"): self._continued,
        }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        ours = self._ours.get((module_name, global_name))
        return super().find_class(module_name, global_name) if ours is None else ours

    def _whole(self, number: int, elements: list[Any]) -> List:
        made = self._lists[number] = PersistentList(elements)
        return made

    def _continued(self, number: int, base: int, start: int, elements: tuple[Any, ...]) -> List:
        if base >= len(self._base) or start > len(self._base[base]):
            raise DamagedCutError(
                f"a list continues with element {start} of list {base} of its bucket in an earlier "
                f"part, which has the lengths {[len(one) for one in self._base]}."
            )
        made = self._lists[number] = self._base[base].with_tail(Tail(start, elements))
        return made


_NAMED = __name__.encode()


def has_lists(data: bytes) -> bool:
    """Whether a payload may hold lists: their pickle names this module. (A text may name it too.)"""
    return _NAMED in data


def unpickled(payloads: Iterable[bytes], base: Sequence[List]) -> tuple[list[Any], list[List]]:
    """The payloads of a bucket, and its lists by their numbers."""
    payloads = list(payloads)
    if not any(map(has_lists, payloads)):
        return [pickle.loads(data) for data in payloads], []
    lists: dict[int, List] = {}
    found = [PayloadUnpickler(data, base, lists).load() for data in payloads]
    return found, [lists[number] for number in sorted(lists)]


class SavedLists:
    """The lists that the chain holds for each bucket of a worker. The next part continues them.

    There is one for each worker and kind of rows, used by one thread at a time. It holds versions of
    the lists, which share their elements with the newest ones.
    """

    def __init__(self) -> None:
        self._cut: int | None = None
        self._stored: dict[tuple[str, Any], Stored] = {}
        self._pending_cut: int | None = None
        self._pending: dict[tuple[str, Any], tuple[List, ...]] = {}
        #: Steps that may have lists in the chain.
        self._steps: set[str] = set()

    def begin(self, cut: int, base: int | None) -> None:
        """A part of this cut is about to be written; its chain continues the cut ``base``."""
        if base is not None and base == self._pending_cut:
            for bucket, lists in self._pending.items():
                if lists:
                    self._stored[bucket] = (base, lists)
                    self._steps.add(bucket[0])
                else:
                    self._stored.pop(bucket, None)
        elif base is None or base != self._cut:
            # A full cut, or a base that this worker did not write.
            self._stored, self._steps = {}, set()
        self._cut = base
        self._pending_cut = cut
        self._pending = {}

    def begin_restore(self, cut: int) -> None:
        """The rows of this cut are about to be restored."""
        self._cut = cut
        self._stored, self._steps = {}, set()
        self._pending_cut = None
        self._pending = {}

    @property
    def is_empty(self) -> bool:
        """Whether the chain holds no lists at all."""
        return not self._stored

    def may_have(self, operation: str) -> bool:
        """Whether the chain may hold lists of this step."""
        return operation in self._steps

    def stored(self, operation: str, key: Any) -> Stored | None:
        return self._stored.get((operation, key)) if self._stored else None

    def wrote(self, operation: str, key: Any, lists: list[List]) -> None:
        if lists or (operation, key) in self._stored:
            self._pending[operation, key] = tuple(lists[:LISTS_MAX])

    def restored(self, operation: str, key: Any, cut: int, lists: list[List]) -> None:
        """A bucket of this cut has these lists, whatever an older one has."""
        if lists:
            self._stored[operation, key] = (cut, tuple(lists[:LISTS_MAX]))
            self._steps.add(operation)
        elif self._stored:
            self._stored.pop((operation, key), None)

    def go_on(self, cut: int) -> None:
        """All that is known is as of this cut."""
        self._cut = cut

    def adopt(self, other: SavedLists) -> None:
        """Take what is known of other buckets, as of the same cut."""
        self._stored.update(other._stored)
        self._steps |= other._steps
