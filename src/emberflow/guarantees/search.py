"""The search for an input that explains an output: walks over the elements, with jumps.

A walk is a sequence of element numbers. A step to any element but the next one is a *jump*. `Losses`
may jump forward over elements, `Repetitions` back to elements that have entered and forward to any up
to the first that has not.

The search is depth first, over one `Trial` that it rewinds. It follows a straight stretch until an
output differs or all elements have entered. Then it tries jumps from the positions of the stretch,
the last one first, each with the stretch that follows it, and so on. `jumps_max` bounds the depth: if
that bound cut off no walk and the search found nothing, there is no explanation.

The stack is a list of iterators rather than recursion: an output in which everything is doubled has
as many jumps as elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from emberflow.errors import EmberflowError, InternalError
from emberflow.graph.nodes import Front
from emberflow.guarantees.trial import Bookmark, Differs, Trial
from emberflow.values.item import GlobalTime


class Exhausted(Exception):  # noqa: N818 - an answer, not an error
    """The search would have to enter more elements than the effort allows."""


class _Position(NamedTuple):
    """The state before a step of the walk."""

    bookmark: Bookmark
    next: int  # the element that enters next if there is no jump
    first: int  # the first element that has never entered


class _Search(ABC):
    """A search over one trial. ``effort`` bounds the number of elements that enter in all,
    ``copies_max`` how often one element may enter again.
    """

    def __init__(
        self,
        trial: Trial,
        elements: Sequence[tuple[GlobalTime, Front, Any]],
        *,
        finished: bool,
        effort: int,
        copies_max: int | None = None,
    ) -> None:
        self._trial = trial
        self._elements = elements
        self._finished = finished
        self._effort = effort
        self._walk: list[int] = []
        self._idle: list[bool] = []  # by step of the walk: whether it changed nothing
        self._positions: list[_Position] = []
        self._was_cut = False
        self._entries = [0] * len(elements)
        self._entries_max = None if copies_max is None else copies_max + 1

    def explanation(self) -> list[int] | None:
        """A walk that gives the output; None if there is none. Raises `Exhausted`."""
        begin = _Position(self._trial.bookmark(), 0, 0)
        total, self._effort = self._effort, self._effort // 2
        try:
            found = self._searched(begin, jumps_max=None, near=True)
            if found is not None:
                return found
        except Exhausted:
            pass
        self._effort += total - total // 2
        jumps_max = 1
        while True:
            self._was_cut = False
            found = self._searched(begin, jumps_max=jumps_max, near=False)
            if found is not None or not self._was_cut:
                return found
            jumps_max *= 2

    def _searched(self, begin: _Position, *, jumps_max: int | None, near: bool) -> list[int] | None:
        self._go_back(0, begin)
        if self._followed(begin.next, begin.first):
            return self._walk
        open_ = [self._jumps(0, near=near, is_first=True)]
        while open_:
            jump = next(open_[-1], None)
            if jump is None:
                open_.pop()
                continue
            step, to = jump
            position = self._positions[step]
            self._go_back(step, position)
            if self._followed(to, position.first, is_jump=True):
                return self._walk
            if len(self._walk) == step:
                continue  # the very first element after the jump was the wrong one
            if jumps_max is None or len(open_) < jumps_max:
                open_.append(self._jumps(step, near=near, is_first=False))
            else:
                self._was_cut = True
        return None

    def _go_back(self, step: int, position: _Position) -> None:
        self._trial.rewind(position.bookmark)
        for number in self._walk[step:]:
            self._entries[number] -= 1
        del self._walk[step:], self._idle[step:], self._positions[step:]
        self._positions.append(position)

    def _followed(self, to: int, first: int, *, is_jump: bool = False) -> bool:
        """Walk straight on until an output differs. True if that explains everything."""
        trial, elements = self._trial, self._elements
        next_ = to
        while True:
            if not self._finished and trial.explains_all:
                return True
            if next_ == len(elements):
                return self._ended(first)
            if self._entries_max is not None and self._entries[next_] == self._entries_max:
                return False
            self._pay()
            bookmark = self._positions[-1].bookmark
            try:
                trial.enter(*elements[next_])
            except InternalError:
                raise
            except (Differs, EmberflowError):  # functions may fail on inputs that never happened
                trial.rewind(bookmark)
                return False
            is_idle = not trial.changed_since(bookmark)
            if is_jump and is_idle and self._may_omit(next_, first):
                trial.rewind(bookmark)
                return False  # the same as a jump behind it
            is_jump = False
            self._walk.append(next_)
            self._idle.append(is_idle)
            self._entries[next_] += 1
            next_ += 1
            first = max(first, next_)
            self._positions.append(_Position(trial.bookmark(), next_, first))

    def _ended(self, first: int) -> bool:
        """Whether the walk explains everything, now that there is no next element."""
        if not self._is_whole(first):
            return False
        self._pay()
        bookmark = self._positions[-1].bookmark
        try:
            self._trial.finish()
        except (Differs, EmberflowError):
            self._trial.rewind(bookmark)
            return False
        return True

    def _pay(self) -> None:
        if self._effort == 0:
            raise Exhausted
        self._effort -= 1

    def _jumps(self, base: int, *, near: bool, is_first: bool) -> Iterator[tuple[int, int]]:
        """The steps to jump at, the last one first, and the targets. Two jumps without a step between
        are one. With ``near``, only steps since the last output.
        """
        last = len(self._walk)
        for step in range(last, base if not is_first else base - 1, -1):
            position = self._positions[step]
            if (
                near
                and step < last
                and position.bookmark.at != self._positions[step + 1].bookmark.at
            ):
                return
            for to in self._targets(position, is_idle=step < last and self._idle[step]):
                yield step, to

    @abstractmethod
    def _may_omit(self, number: int, first: int) -> bool:
        """Whether the search also tries a walk without this element."""

    @abstractmethod
    def _is_whole(self, first: int) -> bool:
        """Whether the walk may end with the last element."""

    @abstractmethod
    def _targets(self, position: _Position, *, is_idle: bool) -> Iterator[int]:
        """The elements that a walk may jump to."""


class Losses(_Search):
    """Whether the output is that of a part of the elements."""

    def _may_omit(self, number: int, first: int) -> bool:
        return True

    def _is_whole(self, first: int) -> bool:
        return True

    def _targets(self, position: _Position, *, is_idle: bool) -> Iterator[int]:
        if is_idle:  # dropping it changes nothing
            return iter(())
        return iter(range(position.next + 1, len(self._elements) + 1))


class Repetitions(_Search):
    """Whether the output is that of all elements, some of which entered again."""

    def _may_omit(self, number: int, first: int) -> bool:
        return number < first

    def _is_whole(self, first: int) -> bool:
        return first == len(self._elements)

    def _targets(self, position: _Position, *, is_idle: bool) -> Iterator[int]:
        if position.next < position.first:
            yield position.first
        for number in range(position.first - 1, -1, -1):
            if number != position.next:
                yield number
