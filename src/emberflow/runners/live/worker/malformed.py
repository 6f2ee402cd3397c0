"""Malformed records of a front, and their places among all else.

What a front reads and cannot make an element of ends the query, or, where errors are diverted, goes
to the errors sink. The first one that ends a query does so at a place like any function's failure,
behind all elements before it, so that which error it is does not depend on who is faster.

Of what is diverted, its place has to be a function of the source's content, as that of all output is,
or a replay would put it elsewhere and the sink could not tell what it has.

- Where elements have the time of their arrival, so has the record: it is like any element.
- Where they have times of their own, the record has none, and must not take one that an element may
  need: times are strictly increasing, and there may be no free one. So it waits for the next good
  element and takes *its* global time, with a negative child id: ahead of all that comes of the
  element, behind all that was before it. Of three records ahead of one element the child ids are -3,
  -2 and -1, in the order of the source.
- Those behind the last element enter when the source ends, at a time of their own after it. If the
  query is stopped before that, they stay in the source: what place they get is not known yet.

How the source is cut into batches plays no part in any of this. What waits is bounded: so many
records without an element between are no accident, and end the query.
"""

from __future__ import annotations

from typing import Any

from emberflow.errors import Diverted, InputError
from emberflow.values.item import TIME_MIN, Place

#: Malformed records that wait for the next element.
HELD_MAX = 10_000


class Aside:
    """The malformed records of one partition of a front, until the worker takes them.

    >>> aside = Aside(0, "front 'words'")
    >>> aside.hold("line 7 is not JSON", "{oops")
    >>> aside.hold("line 8 is not JSON", "{again")
    >>> aside.enter_with(12)
    >>> [(place, record.payload) for place, record in aside.take()]
    [((12, 0, -2), '{oops'), ((12, 0, -1), '{again')]
    """

    __slots__ = ("_entered", "_index", "_step", "held")

    def __init__(self, index: int, step: str) -> None:
        self._index = index
        self._step = step
        self._entered: list[tuple[Place, Diverted | Exception]] = []
        #: The problem and the payload of each that waits.
        self.held: list[tuple[str, Any]] = []

    def enter(self, at: int, problem: str, payload: Any) -> None:
        """A record with a time of its own."""
        self._entered.append(((at, self._index), self._record(at, problem, payload)))

    def hold(self, problem: str, payload: Any) -> None:
        """A record that waits for the next element."""
        if len(self.held) >= HELD_MAX:
            raise InputError(
                f"{self._step} gave {HELD_MAX:,} malformed records in a row, and no element. Is it "
                f"the right source, and the right time=? The last one: {problem}"
            )
        self.held.append((problem, payload))

    def enter_with(self, at: int) -> None:
        """The next element is there, and has this time."""
        for number, (problem, payload) in enumerate(self.held, -len(self.held)):
            place = (at, self._index, number)
            self._entered.append((place, self._record(at, problem, payload)))
        self.held = []

    def end(self, least: int, refused: Exception | None = None) -> list[int]:
        """Nothing more enters, and the last element was below this time. Returns the time used.

        ``refused`` is what the query is to end with.
        """
        at = least if least >= TIME_MIN else 0  # after no element at all
        if refused is not None:
            self._entered.append(((at, self._index), refused))
        elif self.held:
            self.enter_with(at)
        else:
            return []
        return [at]

    def take(self) -> list[tuple[Place, Diverted | Exception]]:
        """What has entered since this was last called, in the order of the source."""
        entered, self._entered = self._entered, []
        return entered

    def _record(self, at: int, problem: str, payload: Any) -> Diverted:
        return Diverted(at, self._index, self._step, "-", problem, payload)
