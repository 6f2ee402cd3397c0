"""Global time, meta and item: the total order that everything else rests on.

What is guaranteed:

1. *Total.* Metas compare by global time, then child ids, then trace. Python's own comparison of
   tuples is that order, so no hot path ever calls a function to compare.
2. *Local.* The outputs of an item follow it and precede the next item: an output's child ids extend
   its input's, and a tuple sorts after its prefix and before whatever sorts after that prefix. This
   property puts an accumulator between the element that made it and the next one.
3. *Repeatable.* Nothing here comes from a clock or a random number. A path of child ids names one
   item among all that an element causes, so an item has the same global time and child ids on every
   run, every runner and every number of workers.

The names, for errors, tests and users, are `GlobalTime`, `Meta` and `Item`::

    global time   (time, front)
    meta          (global time, child ids, trace, tombstone)
    item          (meta, payload)

On the hot path the same is flat, because every operation makes a new item and a flat one costs a
third of a nested one::

    place         (time, front, *child ids)
    mark          trace << 1 | tombstone
    item          (place, mark, payload)

A place is the whole order except for the last tie-break. Two items with the same place are two
histories of one item; their marks tell them apart. An item and its tombstone have the same place
and trace, and links are FIFO, so the later of the two is always the tombstone. A global time is a
prefix of the places of its items, so comparing a place with a global time needs no conversion
either.

**Trace.** The papers' trace is the xor of the ids of the physical operations passed. Operations
without a key run where their input is, so two histories differ only in the sequence of workers that
keyed inputs sent the item to. `hopped` mixes in that worker, once a hop. It multiplies before it
adds, so that the order of the hops counts: with a plain xor, an item that a loop sends to worker A
and then B would have the trace of one sent to B and then A, and a tombstone could take back the
wrong one. (Rotating by a bit instead would be no better after 64 hops.)

**Equal times.** Elements of one partition may have equal times. Their *tie* tells them apart: the number
of elements of that time that the partition has before them. It is in the high bits of the front,
``index + tie * TIE``. So the first element of a time has the plain index, global times are still two
integers, and elements without equal times cost nothing more. At equal times the first elements of all
partitions come first, in the order of their indexes, then the second ones. A front that has emitted an
element may promise all but later ones of the same time (`after`), and holds up no other front's element
of that time unless it is itself a later one.

**Scheduled items.** A map that returns `At(time, payload)` makes an item with a global time of its
own, ``(time, scheduling front of the operation)``. Scheduling fronts are negative, so at equal
times scheduled items come before elements: a window ``[0, 10)`` closes before the element of time
10 is processed, and as soon as all fronts have reached 10. Two items that one operation schedules
for the same time differ in their child ids, which begin with the global time of the element they
descend from and continue with the path from there. A scheduled item that schedules another replaces
that path by a 64-bit digest: a timer that renews itself for a year must not carry its history with
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from emberflow.values.hashing import stable_id, stable_id_of

if TYPE_CHECKING:
    from emberflow.values.times import Time

T = TypeVar("T")

#: Times are signed 64-bit, so that cuts and the wire can store them. The least and the greatest
#: value stay free for 'before everything' and 'after everything'.
TIME_MIN = -(2**63) + 1
TIME_MAX = 2**63 - 2


#: What the front of a global time has more for each element of the same time and partition before it.
TIE = 2**32

#: An item with more child ids than this is going round a loop that does not end.
CHILD_IDS_MAX = 10_000


class GlobalTime(NamedTuple):
    """When an element entered, and through which front: unique, and a total order on elements.

    ``front`` is the index of the partition, and the element's tie in the high bits.

    >>> GlobalTime(3, 0) < GlobalTime(3, 1) < GlobalTime(3, 0 + TIE) < GlobalTime(4, 0)
    True
    """

    time: int
    front: int


ChildIds: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[int, ...]
#: ``(place, mark, payload)``
FlatItem: TypeAlias = tuple[Place, int, Any]


class Meta(NamedTuple):
    """An item's position in the order, its history, and whether it is a tombstone.

    >>> Meta(GlobalTime(3, 0), (0,), 0, False) < Meta(GlobalTime(3, 0), (0, 7), 0, False)
    True
    """

    global_time: GlobalTime
    child_ids: ChildIds
    trace: int
    tombstone: bool


class Item(NamedTuple):
    """What travels between operations."""

    meta: Meta
    payload: Any

    @classmethod
    def of(cls, item: FlatItem) -> Item:
        """The named form of a flat item.

        >>> Item.of(((3, 0, 7), 5, "x")).meta
        Meta(global_time=GlobalTime(time=3, front=0), child_ids=(7,), trace=2, tombstone=True)
        """
        (time, front, *child_ids), mark, payload = item
        meta = Meta(GlobalTime(time, front), tuple(child_ids), mark >> 1, bool(mark & 1))
        return cls(meta, payload)


@dataclass(frozen=True, slots=True)
class At(Generic[T]):
    """A payload with a time of its own.

    In a runner's input it is an element with an explicit time. Returned or yielded by a map it is
    an item scheduled for that later time. A time is a number or a datetime: `values.times`.

    >>> At(5, "late")
    At(time=5, payload='late')
    """

    time: Time
    payload: T

    def __reduce__(self) -> tuple[type[At[T]], tuple[Time, T]]:
        # Many of them are shipped to workers; what a dataclass does by itself takes ten times as long.
        return At, (self.time, self.payload)


class Timed(NamedTuple, Generic[T]):
    """A payload together with the time of the item that carried it, as `Stream.with_time` gives."""

    time: int
    payload: T


_TRACE_BITS = 2**64 - 1
#: Odd, and far from any pattern: 2**64 divided by the golden ratio.
_TRACE_FACTOR = 0x9E3779B97F4A7C15


def hopped(mark: int, hop: int) -> int:
    """The mark of an item after a keyed input sent it to the worker that ``hop`` stands for.

    >>> a_then_b = hopped(hopped(0, 0xA), 0xB)
    >>> b_then_a = hopped(hopped(0, 0xB), 0xA)
    >>> a_then_b != b_then_a
    True
    """
    return (((mark >> 1) * _TRACE_FACTOR + hop & _TRACE_BITS) << 1) | (mark & 1)


def is_time(value: object) -> bool:
    """Whether a value can be the time of an element: a 64-bit integer, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and TIME_MIN <= value <= TIME_MAX


def after(time: int, front: int) -> tuple[int, int]:
    """The least global time that the next element of a partition can have.

    >>> after(3, 1) == (3, 1 + TIE)
    True
    """
    return (time, front + TIE)


def front_index(ordinal: int, fronts: int, partition: int) -> int:
    """The front index of a partition. It depends on the flow and the source, never on the workers.

    ``ordinal`` is the front's number among the ``fronts`` of the flow.

    >>> front_index(1, 2, 0), front_index(1, 2, 3)
    (1, 7)
    """
    return ordinal + fronts * partition


#: Below the front index of everything. Nothing of a time is below ``(time, FRONT_MIN)``.
FRONT_MIN = -(1 << 32)


def scheduling_front(operation: str) -> int:
    """The front index reserved for the items that an operation schedules: negative, and stable.

    It depends on the operation's name alone, so a version of the flow with more operations keeps
    the order of items that were scheduled before.

    >>> scheduling_front("window/ticks") < 0
    True
    """
    return -1 - (stable_id("scheduling front", operation) >> 32)


def scheduled_child_ids(global_time: tuple[int, int], child_ids: ChildIds, child: int) -> ChildIds:
    """The child ids of the item that an item schedules as its output number ``child``.

    >>> scheduled_child_ids((3, 0), (1,), 0)
    (3, 0, 1, 0)
    >>> scheduled_child_ids((9, -77), (3, 0, 1, 0), 2)
    (3, 0, 8099506477493547925, 2)
    """
    time, front = global_time
    if front >= 0:
        return (time, front, *child_ids, child)
    # Far above every child id and every front index, so that it cannot be mistaken for either.
    origin = 2**62 | stable_id_of("origin", (time, front, *child_ids)) >> 2
    return (child_ids[0], child_ids[1], origin, child)
