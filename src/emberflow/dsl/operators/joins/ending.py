"""Joins whose payloads wait for a partner until a time: the part that all of them share.

Every payload or tick of a key first ends what has ended by its time. A step that has to tell what found
no partner schedules ticks, so that this happens on time, also for a key that gets no more payloads.
There is one tick under way for the next deadline of each side, not one for each payload: the tick that
ends something schedules the next one.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from emberflow.dsl.operators.joins.kinds import Kind
from emberflow.dsl.operators.joins.sides import TICK, Mapped, Side, Step

S = TypeVar("S")

#: What is held, and what leaves.
Held: TypeAlias = tuple[S, tuple[Any, ...]]
#: When the tick under way comes, by side; None if there is none.
_TicksAt: TypeAlias = tuple[int | None, ...]


class Ending(Step, Generic[S]):
    """The accumulator is ``((state, times of the ticks under way), emitted, new ticks)``."""

    nothing: S
    #: How many deadlines a state has.
    sides = 2

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.waits = kind.waits
        self.nothing_held = (self.nothing, (None,) * self.sides)

    def __call__(self, accumulator: Any, mapped: Mapped) -> Any:
        state, ticks_at = accumulator[0]
        side, now, payload = mapped
        state, emitted = self.expired(state, now)
        if side is not TICK:
            state, more = self.entered(state, side, now, payload)
            emitted = emitted + more if emitted else more
        if not self.waits:
            return (state, ticks_at), emitted
        ticks_at, ticks = _scheduled(self.deadlines(state), ticks_at, now)
        return (state, ticks_at), emitted, ticks

    def expired(self, state: S, now: int) -> Held[S]:
        """Without what can meet no payload of this time or later, and what is told of that."""
        raise AssertionError("every join that ends defines expired")

    def entered(self, state: S, side: Side, now: int, payload: Any) -> Held[S]:
        """With a payload."""
        raise AssertionError("every join that ends defines entered")

    def deadlines(self, state: S) -> tuple[int | None, ...]:
        """When the next of those ends that are told of."""
        raise AssertionError("every join that ends defines deadlines")


def _scheduled(
    deadlines: tuple[int | None, ...], ticks_at: _TicksAt, now: int
) -> tuple[_TicksAt, tuple[int, ...]]:
    """The times of the ticks under way, and of those to schedule."""
    under_way, new = [], []
    for deadline, at in zip(deadlines, ticks_at, strict=True):
        waiting = at if at is not None and at > now else None
        if deadline is not None and (waiting is None or deadline < waiting):
            waiting = deadline
            new.append(deadline)
        under_way.append(waiting)
    return tuple(under_way), tuple(new)
