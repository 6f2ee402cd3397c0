"""What machines say to each other. Plain, immutable, and the same on every wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from emberflow.values.item import FlatItem, GlobalTime, Place

#: ``(time, front)``, plain
Moment: TypeAlias = tuple[int, int]

#: Before and after every time that an element can have.
BEFORE_ALL: Moment = (-(2**63), 0)
AFTER_ALL: Moment = (2**63 - 1, 0)

#: Global time to the xor of the ids of the frames of which it is the least.
Xors: TypeAlias = dict[Moment, int]

#: The same by turns, where those are known; a global time is the least turn of its element (`turns`).
TurnXors: TypeAlias = dict[Place, int]


class Frame(NamedTuple):
    """Items from one worker to another. ``parts`` are ``(node, items)`` in the order of sending.

    A frame is sent as a whole and dealt with as a whole, so the acker needs one entry for it: its
    id, under the least global time of its items. The minimal time comes out the same as with an
    entry for every item. ``least`` is that time among items that may go anywhere from here, or the
    least turn of it (`turns`); ``least_bound`` is that time among those bound for a barrier of the
    receiver; None where there are none.
    """

    sender: int
    id: int
    parts: tuple[tuple[int, list[FlatItem]], ...]
    least: Place | None
    least_bound: Moment | None


class Ack(NamedTuple):
    """What a worker has finished with and what it has sent, in one message.

    One message, so that no received id ever disappears before the ids it caused appear. ``ranges``
    are acks of frames on their way to a barrier, by the worker that holds it; ``anywhere`` are all
    others. ``reports`` are promises of fronts: 'I shall not emit below this'. ``number`` is how many
    acks this worker has made: they come in order, and some may have been made one (`receipts`).
    """

    worker: int
    anywhere: TurnXors
    ranges: dict[int, Xors]
    reports: dict[int, Moment]
    number: int = 0

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.ranges or self.reports)


class Bound(NamedTuple):
    """What is bound for the barriers of one worker, below the minimal time of 'anywhere'.

    That is, as far as the acker knows when it has ``heard`` so many acks of that worker. None where
    the entries are too many to be told.
    """

    heard: int
    entries: tuple[tuple[Moment, int], ...] | None


class Progress(NamedTuple):
    """The minimal times: of all that may still go anywhere, and of what is bound for each worker.

    ``kept`` is how far what can be read has to reach back (`queries.coordinator`); None for no further than the
    minimal time itself. ``bound`` is what a worker may know better (`receipts`). ``within`` is the
    least turn of the minimal time, where that is known.
    """

    anywhere: Moment
    ranges: tuple[Moment, ...]
    kept: Moment | None = None
    bound: tuple[Bound, ...] = ()
    within: Place = ()

    @property
    def turn(self) -> Place:
        """Nothing with a turn before this is under way that may go anywhere."""
        return self.within or self.anywhere

    def of_range(self, worker: int) -> Moment:
        """Nothing below this can reach the barriers of a worker any more."""
        return min(self.anywhere, self.ranges[worker])

    def of_all(self) -> Moment:
        """Nothing below this is under way at all."""
        return min(self.anywhere, *self.ranges)


class Bundle(NamedTuple):
    """What a barrier hands its sink at once: payloads in order, and the last global time."""

    sink: str
    partition: int
    last: GlobalTime
    items: list[FlatItem]


class Effects(NamedTuple):
    """What a worker wants done after an event: frames sent, an ack, bundles stored, or the end."""

    frames: list[tuple[int, Frame]]
    ack: Ack
    bundles: list[Bundle]
    failure: Exception | None


class Keys(NamedTuple):
    """Some keys of a state that are asked for."""

    state: str
    keys: tuple[Any, ...]


class Scan(NamedTuple):
    """All keys of a state from ``low`` on and below ``high`` that a predicate lets through.

    The predicate gets key and value. None is no bound, and no predicate.
    """

    state: str
    low: Any = None
    high: Any = None
    predicate: Callable[[Any, Any], object] | None = None


#: What is asked of a state.
Selection: TypeAlias = Keys | Scan


class WorkerRead(NamedTuple):
    """To a worker: what do you hold of this, as of a moment? Parts have their number in the question."""

    number: int
    moment: Moment
    parts: Any  # tuple[tuple[int, Selection], ...]; on the wire, the bytes of it


class FrontsRequest(NamedTuple):
    """To a worker: how far have your fronts come?"""

    number: int


class NextPage(NamedTuple):
    """To a worker: the next page, please."""

    number: int


class CancelRead(NamedTuple):
    """To a worker: nobody waits for the rest."""

    number: int


class ReadPage(NamedTuple):
    """From a worker: rows ``(part, key, value)``, whether there are more, or why there are none."""

    worker: int
    number: int
    rows: Any  # list[tuple[int, Any, Any]]; on the wire, the bytes of it
    more: bool
    problem: str | None = None


class FrontsReply(NamedTuple):
    """From a worker: all that its fronts have let in is below this."""

    worker: int
    number: int
    moment: Moment


class ReadBegan(NamedTuple):
    """To who asked: it is read as of this moment, on so many workers."""

    number: int
    moment: Moment
    workers: int


class ReadRefused(NamedTuple):
    """To who asked: it cannot be answered. ``kept`` is what could be asked for, at most that."""

    number: int
    problem: str
    kept: tuple[Moment, Moment]
