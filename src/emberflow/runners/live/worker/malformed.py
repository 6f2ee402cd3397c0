"""Malformed records of a front, and their places among all else.

A record that a front reads and cannot decode ends the query or, where errors are diverted, goes to the
errors sink. The first one that ends a query does so at a place, like the failure of a function: behind
all elements before it. So which error ends the query does not depend on which worker is faster.

The place of a diverted record must be a function of the source's content, like that of all output.
Otherwise a replay would put it elsewhere, and the sink could not tell what it has.

- Where elements get the time of their arrival, the record gets one as well, like any element.
- Where elements have times of their own, the record has none. So it waits for the next good
  element and takes *its* global time, with a negative child id: ahead of all that comes of the element,
  behind all that was before it. Three records ahead of one element have the child ids -3, -2 and -1, in
  the order of the source.
- Records behind the last element enter when the source ends, at a time of their own after it. If the
  query is stopped before that, they stay in the source: their place is not known yet.

None of this depends on how the source is cut into batches. The number of records that wait is bounded:
that many in a row, without an element between them, end the query.
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
    >>> aside.enter_with((12, 0))
    >>> [(place, record.payload) for place, record in aside.take()]
    [((12, 0, -2), '{oops'), ((12, 0, -1), '{again')]
    """

    __slots__ = ("_entered", "_index", "held", "step")

    def __init__(self, index: int, step: str) -> None:
        self._index = index
        self.step = step
        self._entered: list[tuple[Place, Diverted | Exception]] = []
        #: The problem and the payload of each record that waits.
        self.held: list[tuple[str, Any]] = []

    def enter(self, moment: Place, problem: str, payload: Any) -> None:
        """Add a record that has a global time of its own. It is behind those that waited for it."""
        self._entered.append(((*moment, 0), self._record(moment, problem, payload)))

    def hold(self, problem: str, payload: Any) -> None:
        """Add a record that waits for the next element."""
        if len(self.held) >= HELD_MAX:
            raise self.too_many(problem)
        self.held.append((problem, payload))

    def too_many(self, problem: str) -> InputError:
        return InputError(
            f"{self.step} gave {HELD_MAX:,} malformed records in a row, and no element. Is it "
            f"the right source, and the right time=? The last one: {problem}"
        )

    def enter_with(self, moment: Place) -> None:
        """The next element has this global time: give the records that wait their places."""
        for number, (problem, payload) in enumerate(self.held, -len(self.held)):
            self._entered.append(((*moment, number), self._record(moment, problem, payload)))
        self.held = []

    def end(self, least: int, refused: Exception | None = None) -> list[int]:
        """Nothing more enters, and the last element was below this time. Returns the time it used.

        ``refused`` is the error that the query ends with.
        """
        at = least if least >= TIME_MIN else 0  # after no element at all
        if refused is not None:
            self._entered.append(((at, self._index), refused))
        elif self.held:
            self.enter_with((at, self._index))
        else:
            return []
        return [at]

    def take(self) -> list[tuple[Place, Diverted | Exception]]:
        """The records that have entered since the last call, in the order of the source."""
        entered, self._entered = self._entered, []
        return entered

    def _record(self, moment: Place, problem: str, payload: Any) -> Diverted:
        return Diverted(moment[0], moment[1], self.step, "-", problem, payload)
