"""Joins in which all payloads of a key meet: of a whole stream, or of a window.

A *cell* is what such a join holds, ``(lefts, rights)``. A payload meets all of the other side that
came before it. Of a semi and an anti join no left payload is held any longer than until the first
right one comes, and of the right side nothing but that it came.

A window is a cell that ends. Everything in it has met everything of the other side, so at its end those
are alone whose other side is empty.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from emberflow.dsl.operators.joins.ending import Ending, Held
from emberflow.dsl.operators.joins.kinds import Kind
from emberflow.dsl.operators.joins.sides import LEFT, Mapped, Side, Step
from emberflow.dsl.operators.windows import Window
from emberflow.values.persistent import PersistentList

Cell: TypeAlias = tuple[PersistentList[Any], PersistentList[Any]]

_NONE: PersistentList[Any] = PersistentList()
#: The right side of a semi or anti join, once it has a payload.
_SEEN: PersistentList[Any] = PersistentList((None,))
EMPTY: Cell = (_NONE, _NONE)


def entered(kind: Kind, cell: Cell, side: Side, payload: Any) -> tuple[Cell, tuple[Any, ...]]:
    """The cell with a payload, and what that emits."""
    lefts, rights = cell
    if kind.pairs:
        if side is LEFT:
            emitted = tuple([(payload, right) for right in rights]) if rights else ()
            return (lefts.append(payload), rights), emitted
        emitted = tuple([(left, payload) for left in lefts]) if lefts else ()
        return (lefts, rights.append(payload)), emitted
    if side is LEFT:
        if rights:
            return cell, (payload,) if kind.is_semi else ()
        return (lefts.append(payload), rights), ()
    return (_NONE, _SEEN), tuple(lefts) if kind.is_semi else ()


def ended(kind: Kind, cell: Cell) -> tuple[Any, ...]:
    """What leaves when nothing enters the cell any more."""
    lefts, rights = cell
    if kind.left_alone and not rights:
        return tuple(map(kind.of_left, lefts))
    if kind.right_alone and not lefts:
        return tuple([(None, right) for right in rights])
    return ()


class Unbounded(Step):
    """All payloads of a key meet."""

    nothing_held = EMPTY

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(self, accumulator: tuple[Cell, Any], mapped: Mapped) -> Any:
        return entered(self.kind, accumulator[0], mapped[0], mapped[2])


#: The windows that have not ended.
_Open: TypeAlias = tuple[tuple[Window, Cell], ...]


class Windowed(Ending[_Open]):
    """The payloads of a key meet that are in the same window, in each window that they share."""

    nothing = ()
    sides = 1
    form = " in windows"

    def __init__(self, kind: Kind, windows: Any) -> None:
        super().__init__(kind)
        self.windows = windows

    def expired(self, state: _Open, now: int) -> Held[_Open]:
        over = [entry for entry in state if entry[0].end <= now]
        if not over:
            return state, ()
        over.sort(key=lambda entry: entry[0].end)
        emitted = tuple([one for _, cell in over for one in ended(self.kind, cell)])
        return tuple([entry for entry in state if entry[0].end > now]), emitted

    def entered(self, state: _Open, side: Side, now: int, payload: Any) -> Held[_Open]:
        cells = dict(state)
        emitted: tuple[Any, ...] = ()
        for window in self.windows.containing(now):
            cells[window], more = entered(self.kind, cells.get(window, EMPTY), side, payload)
            emitted += more
        return tuple(cells.items()), emitted

    def deadlines(self, state: _Open) -> tuple[int | None, ...]:
        return (min((window.end for window, _ in state), default=None),)


class Sessions(Windowed):
    """Sessions of the payloads of both sides. At most one is open."""

    form = " in sessions"

    def entered(self, state: _Open, side: Side, now: int, payload: Any) -> Held[_Open]:
        end = now + self.windows.gap
        window, cell = state[0] if state else (Window(now, end), EMPTY)
        cell, emitted = entered(self.kind, cell, side, payload)
        return ((Window(window.start, end), cell),), emitted
