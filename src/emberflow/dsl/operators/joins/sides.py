"""Two keyed streams that share buckets and accumulators: what all joins are built on.

Payloads get a side, are merged and then reduced together. The total order tells which payload came
first, so there is no 'late' side and no buffer to tune. A *step* makes the next accumulator of a key:
``(held, emitted)``, the payloads that later ones may meet, and the output of the last payload, which
a map behind the cycle emits.

The step of a join that tells what found no partner also has to hear when time passes. Its accumulator
is ``(held, emitted, ticks)``: a map schedules a *tick* for each of the times in ``ticks``, as for windows that
emit when they close (`reduce.ticking_drift`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from emberflow.dsl.operators.reduce import Ticks, keyed_map, ticking_drift
from emberflow.values.functions import UserFunction
from emberflow.values.item import At

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream

#: Of which side a mapped value ``(side, time, payload)`` is; that of a tick is None.
Side: TypeAlias = bool | None
LEFT, RIGHT, TICK = False, True, None

Mapped: TypeAlias = tuple[Side, int, Any]


class Step:
    """From ``(held, emitted)`` and the next mapped value to the next ``(held, emitted)``."""

    nothing_held: Any = ((), ())
    #: How to tell it from other joins of the same kind, for people.
    form = ""
    #: Whether the accumulator has ticks.
    waits = False

    def first(self, mapped: Mapped) -> Any:
        return self((self.nothing_held, ()), mapped)

    def __call__(self, accumulator: Any, mapped: Mapped) -> Any:
        raise AssertionError("every step defines __call__")


def two_sided(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    step: Step,
    *given: UserFunction,
) -> Stream[Any]:
    """What the step emits. ``given`` are the user's functions that it calls."""
    sides = [
        keyed_map(stream, Sided(stream._key.function, side), timed=True, name=name)
        for stream, side, name in ((left, LEFT, "left"), (right, RIGHT, "right"))
    ]
    return ticking_drift(
        sides,
        "sides",
        step.first,
        step,
        results=lambda accumulators: accumulators._map(
            _emitted, "many", *given, name="pairs", schedules=False
        ),
        ticks=_ticks if step.waits else None,
        key=UserFunction("key", left._key.given.given),
        given=given,
        shown=itemgetter(2),
    )


class Sided:
    """Payload to mapped item of one side: ``(key, False, (side, time, payload))``."""

    __slots__ = ("key", "side")

    def __init__(self, key: Callable[[Any], Any], side: bool) -> None:
        self.key = key
        self.side = side

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, Mapped]:
        return self.key(payload), False, (self.side, time, payload)


def _emitted(accumulator: tuple[Any, bool, Any]) -> tuple[Any, ...]:
    emitted: tuple[Any, ...] = accumulator[2][1]
    return emitted


def _follows(accumulator: tuple[Any, bool, Any]) -> list[At[Any]] | tuple[()] | None:
    key, _, (_, emitted, times) = accumulator
    if not times:
        return () if emitted else None
    return [At(time, (key, False, (TICK, time, None))) for time in times]


_ticks = Ticks(_follows)

#: Maps that send items back into the bucket they come from: such a cycle stays within one key.
KEEPS_KEY = frozenset({_ticks})
