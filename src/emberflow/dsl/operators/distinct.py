"""`distinct`: the first payload of each key, or the first one in a while.

Without a time to live, a grouping of window 2 tells whether a payload is the first of its key: the first
tuple of a bucket has one element, every other tuple has two. This needs no cycle, and the bucket of a key
keeps only its last item.

With one (``ttl``), a payload passes unless another one of its key has passed less than ``ttl`` before. Keys
are forgotten when their time is over: what is held are the keys of the last ``ttl``, and not all keys that
there have ever been. For that many keys share a bucket, which a hash picks. A bucket has the keys that are
alive, in a persistent map, and the order in which they passed, as a list and where it begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from emberflow.dsl.operators.reduce import drift, keyed_map
from emberflow.errors import FlowError
from emberflow.values.functions import caller, itself
from emberflow.values.hashing import encode_key, key_hash
from emberflow.values.persistent import PersistentList
from emberflow.values.persistent_map import PersistentMap
from emberflow.values.proofs.functions import declare
from emberflow.values.times import Duration, TimeError

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream

#: It is part of what a cut holds: never change it.
_BUCKETS = 1024

#: Time, the key in its canonical form, payload.
_Mapped: TypeAlias = tuple[int, bytes, Any]


def distinct(
    stream: KeyedStream[Any, Any], *, ttl: Duration | None, name: str | None
) -> Stream[Any]:
    """See `KeyedStream.distinct`."""
    if ttl is not None:
        return _for_a_while(stream, _counted(stream, ttl), name)
    with stream.flow._scope("distinct", name):
        return stream.group(window=2, name="group")._map(_if_first, "many", name="first")


def _if_first(window: tuple[Any, ...]) -> tuple[Any, ...]:
    return window if len(window) == 1 else ()


declare(_if_first, itself)


def _counted(stream: KeyedStream[Any, Any], ttl: Duration) -> int:
    try:
        counted = stream.flow._counted(ttl)
    except TimeError as error:
        raise FlowError(f"distinct(ttl=): {error} ({caller()})") from None
    if counted < 1:
        raise FlowError(f"distinct(ttl=) takes a duration above 0, got {ttl!r} at {caller()}.")
    return counted


def _for_a_while(stream: KeyedStream[Any, Any], ttl: int, name: str | None) -> Stream[Any]:
    key, step = stream._key, _Alive(ttl)
    with stream.flow._scope("distinct", name):
        mapped = keyed_map(stream, _Bucketed(key.function), timed=True, name="bucket")
        accumulators = drift(mapped, step.first, step, key=key.given, given=(), shown=itemgetter(2))
        return accumulators._map(_passed, "many", name="passed", schedules=False)


class _Bucketed:
    """Payload to mapped item: ``(bucket, False, (time, key, payload))``."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    def __call__(self, time: int, payload: Any) -> tuple[int, bool, _Mapped]:
        key = self.key(payload)
        return key_hash(key) % _BUCKETS, False, (time, encode_key(key), payload)


def _passed(accumulator: tuple[Any, bool, Any]) -> tuple[Any, ...]:
    passed: tuple[Any, ...] = accumulator[2][3]
    return passed


_time_of = itemgetter(0)


class _Alive:
    """From ``(alive, passed, begin, payloads)`` and the next payload to the next of these.

    ``alive`` are the keys that hold back others, ``passed`` all with their times, from ``begin`` on. A key is
    there once: it passes again only when it is no longer alive.
    """

    __slots__ = ("ttl",)

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl

    def first(self, mapped: _Mapped) -> Any:
        return self((PersistentMap(), PersistentList(), 0, ()), mapped)

    def __call__(self, accumulator: Any, mapped: _Mapped) -> Any:
        alive, passed, begin, _ = accumulator
        time, key, payload = mapped
        end = bisect_right(passed, time - self.ttl, lo=begin, key=_time_of)
        for number in range(begin, end):
            alive = alive.remove(passed[number][1])
        begin = end
        if begin and 2 * begin >= len(passed):
            passed, begin = passed[begin:], 0
        if key in alive:
            return alive, passed, begin, ()
        return alive.set(key, None), passed.append((time, key)), begin, (payload,)
