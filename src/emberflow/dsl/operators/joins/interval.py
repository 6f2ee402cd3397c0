"""Joins of payloads whose times are near: ``low <= right's time - left's time <= high``.

Payloads come in the order of time, so those that are too old for the newest one are the first of what is
held, and each step moves the beginning past them. The list is copied only when half of it is past, so
a payload costs no more than the pairs that it makes.

A payload that is told of if it has met none also *waits*, in a list of its own. Those that a new payload
meets are the first of the list, too, since the older ones have ended: so they leave by moving its
beginning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow.dsl.operators.joins.ending import Ending, Held
from emberflow.dsl.operators.joins.kinds import Kind
from emberflow.dsl.operators.joins.sides import LEFT, Side
from emberflow.values.persistent import PersistentList

_time_of = itemgetter(0)

#: Times and payloads in order, and where those begin that count.
_Queue: TypeAlias = tuple[PersistentList[tuple[int, Any]], int]

_NONE: _Queue = (PersistentList(), 0)


#: What later payloads of the other side may meet, left and right; and what has met none so far. A plain
#: tuple: each payload makes two.
_State: TypeAlias = tuple[_Queue, _Queue, _Queue, _Queue]


class Interval(Ending[_State]):
    """A future right payload meets left ones of its time less ``high`` and later; a future left payload
    meets right ones of its time plus ``low`` and later."""

    nothing = (_NONE, _NONE, _NONE, _NONE)
    form = " within an interval"

    def __init__(self, kind: Kind, low: int, high: int) -> None:
        super().__init__(kind)
        self.low = low
        self.high = high

    def expired(self, state: _State, now: int) -> Held[_State]:
        left_since, right_since = now - self.high, now + self.low
        left, right, left_waiting, right_waiting = state
        left, right = _since(left, left_since), _since(right, right_since)
        emitted: tuple[Any, ...] = ()
        if left_waiting is not _NONE:
            if self.kind.left_alone:
                emitted = tuple(map(self.kind.of_left, _up_to(left_waiting, left_since - 1)))
            left_waiting = _since(left_waiting, left_since)
        if right_waiting is not _NONE:
            emitted += tuple([(None, one) for one in _up_to(right_waiting, right_since - 1)])
            right_waiting = _since(right_waiting, right_since)
        return (left, right, left_waiting, right_waiting), emitted

    def entered(self, state: _State, side: Side, now: int, payload: Any) -> Held[_State]:
        return (self._left if side is LEFT else self._right)(state, now, payload)

    def _left(self, state: _State, now: int, payload: Any) -> Held[_State]:
        left, right, left_waiting, right_waiting = state
        kind, is_held = self.kind, self.high >= 0
        emitted: tuple[Any, ...] = ()
        met = _up_to(right, now + self.high)
        if met:
            if kind.pairs:
                emitted = tuple([(payload, one) for one in met])
            elif kind.is_semi:
                emitted = (payload,)
            right_waiting = _since(right_waiting, now + self.high + 1)
        elif is_held and (kind.left_alone or kind.is_semi):
            left_waiting = _with(left_waiting, now, payload)
        elif kind.left_alone:
            emitted = (kind.of_left(payload),)
        if is_held and kind.pairs:
            left = _with(left, now, payload)
        return (left, right, left_waiting, right_waiting), emitted

    def _right(self, state: _State, now: int, payload: Any) -> Held[_State]:
        left, right, left_waiting, right_waiting = state
        kind, is_held = self.kind, self.low <= 0
        emitted: tuple[Any, ...] = ()
        met = _up_to(left, now - self.low)
        if met:
            emitted = tuple([(one, payload) for one in met])
        elif kind.right_alone and is_held:
            right_waiting = _with(right_waiting, now, payload)
        elif kind.right_alone:
            emitted = ((None, payload),)
        if kind.is_semi:
            emitted = tuple(_up_to(left_waiting, now - self.low))
        left_waiting = _since(left_waiting, now - self.low + 1)
        if is_held:
            # Of a semi or anti join only the time counts.
            right = _with(right, now, payload if kind.pairs else None)
        return (left, right, left_waiting, right_waiting), emitted

    def deadlines(self, state: _State) -> tuple[int | None, ...]:
        left, right = map(_first, state[2:])
        return (
            None if left is None else left + self.high + 1,
            None if right is None else right - self.low + 1,
        )


def _with(queue: _Queue, time: int, payload: Any) -> _Queue:
    return queue[0].append((time, payload)), queue[1]


def _first(queue: _Queue) -> int | None:
    """The time of the first."""
    payloads, begin = queue
    return payloads[begin][0] if begin < len(payloads) else None


def _since(queue: _Queue, time: int) -> _Queue:
    """Without those before a time."""
    payloads, begin = queue
    if begin == len(payloads) or payloads[begin][0] >= time:
        return queue
    begin = bisect_left(payloads, time, lo=begin, key=_time_of)
    if begin == len(payloads):
        return _NONE
    if 2 * begin < len(payloads):
        return payloads, begin
    return payloads[begin:], 0


def _up_to(queue: _Queue, time: int) -> list[Any]:
    """The payloads up to a time."""
    payloads, begin = queue
    end = len(payloads)
    if begin == end or payloads[begin][0] > time:
        return []
    if payloads[end - 1][0] > time:
        end = bisect_right(payloads, time, lo=begin, key=_time_of)
    return [payload for _, payload in payloads[begin:end]]
