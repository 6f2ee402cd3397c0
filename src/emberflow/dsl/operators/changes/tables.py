"""Joins of tables: of two streams of changes, which give changes.

**By key** (`OfKeys`). Each side has at most one value for a key, so the joined table has at most one, too.

**By group** (`OfGroups`). Each side has any number of rows in a group, and each row of one meets all of the
other. A row of the joined table is known by the keys of both, ``(left key, right key)``, with None for a
side that is not there. In a semi or anti join it is known by the left key. What is held for a group are the
rows of both sides, in persistent maps by the encodings of their keys: a change costs what it changes,
and a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from emberflow.dsl.operators.changes.change import Change, changed, derived
from emberflow.dsl.operators.changes.values import changed_value
from emberflow.dsl.operators.joins.join import Combining
from emberflow.dsl.operators.joins.kinds import Kind
from emberflow.dsl.operators.joins.sides import LEFT, Mapped, Step
from emberflow.values.functions import UserFunction
from emberflow.values.hashing import encode_key
from emberflow.values.persistent_map import PersistentMap

if TYPE_CHECKING:
    from emberflow.dsl.streams import Stream


def combined(
    pairs: Stream[Change[Any, Any]], combine: Callable[[Any, Any], Any] | None
) -> Stream[Change[Any, Any]]:
    """The changes of ``combine(left, right)``, of those of pairs."""
    if combine is None:
        return pairs
    given = UserFunction("combine", combine)
    return derived(pairs, Combining(combine), changed_value, given)


class OfKeys(Step):
    """Holds the values of a key, ``(left, right)``. A mapped payload is a change of one side."""

    nothing_held = (None, None)

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __call__(self, accumulator: tuple[tuple[Any, Any], Any], mapped: Mapped) -> Any:
        left, right = accumulator[0]
        side, _, change = mapped
        held = (change.after, right) if side is LEFT else (left, change.after)
        return held, changed(change.key, self._row(left, right), self._row(*held))

    def _row(self, left: Any, right: Any) -> Any:
        """The row of the joined table; None if there is none."""
        kind = self.kind
        if not kind.pairs:
            is_there = left is not None and (right is not None) == kind.is_semi
            return left if is_there else None
        if left is None and not (kind.right_alone and right is not None):
            return None
        if right is None and not (kind.left_alone and left is not None):
            return None
        return left, right


#: Keys and values of rows, by the encodings of their keys.
_Rows: TypeAlias = PersistentMap[bytes, tuple[Any, Any]]


class _Side(NamedTuple):
    """How a change of one side meets the rows of the other."""

    #: The key and the value of a joined row, of those of the changed row and of one it meets.
    paired: Callable[[Any, Any], Any]
    #: Whether a row that meets none is told: of the changed side, and of the other.
    alone: bool
    other_alone: bool


class OfGroups(Step):
    """Holds the rows of a group, ``(lefts, rights)``. A mapped payload is ``(group, key, before, after)``."""

    nothing_held = (PersistentMap[bytes, Any](), PersistentMap[bytes, Any]())

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._left = _Side(_as_left, kind.left_alone, kind.right_alone)
        self._right = _Side(_as_right, kind.right_alone, kind.left_alone)

    def __call__(self, accumulator: tuple[tuple[_Rows, _Rows], Any], mapped: Mapped) -> Any:
        lefts, rights = accumulator[0]
        side, _, (_, key, before, after) = mapped
        own = lefts if side is LEFT else rights
        encoded = encode_key(key)
        kept = own.remove(encoded) if after is None else own.set(encoded, (key, after))
        held = (kept, rights) if side is LEFT else (lefts, kept)
        change = Change(key, before, after)
        if not self.kind.pairs:
            emitted = self._of_lefts(change, side is LEFT, lefts, bool(rights), bool(held[1]))
        elif side is LEFT:
            emitted = _pairs(self._left, change, rights, bool(own), bool(kept))
        else:
            emitted = _pairs(self._right, change, lefts, bool(own), bool(kept))
        return held, tuple(emitted)

    def _of_lefts(
        self, change: Change[Any, Any], is_left: bool, lefts: _Rows, had: bool, has: bool
    ) -> Iterator[Change[Any, Any]]:
        """Of a semi or anti join: ``had`` and ``has`` say whether there are right rows."""
        shown = self.kind.is_semi
        if is_left:
            if has is shown:
                yield from changed(*change)
        elif had is not has:
            for key, value in lefts.values():
                yield Change(key, None, value) if has is shown else Change(key, value, None)


def _pairs(
    side: _Side, change: Change[Any, Any], others: _Rows, had: bool, has: bool
) -> Iterator[Change[Any, Any]]:
    """The changes of joined rows. ``had`` and ``has`` say whether the changed side has rows."""
    key, before, after = change
    paired = side.paired
    if not others:
        if side.alone:
            yield from changed(
                paired(key, None),
                None if before is None else paired(before, None),
                None if after is None else paired(after, None),
            )
        return
    for other, value in others.values():
        if side.other_alone and not had:
            yield Change(paired(None, other), paired(None, value), None)
        yield from changed(
            paired(key, other),
            None if before is None else paired(before, value),
            None if after is None else paired(after, value),
        )
        if side.other_alone and not has:
            yield Change(paired(None, other), None, paired(None, value))


def _as_left(own: Any, other: Any) -> tuple[Any, Any]:
    return own, other


def _as_right(own: Any, other: Any) -> tuple[Any, Any]:
    return other, own
