"""The messages of the engine: plain, immutable, and the same on every wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from emberflow.values.item import TIME_MIN, FlatItem, GlobalTime, Place

#: ``(time, front)``, plain
Moment: TypeAlias = tuple[int, int]

#: Before and after every time that an element can have.
BEFORE_ALL: Moment = (-(2**63), 0)
AFTER_ALL: Moment = (2**63 - 1, 0)

#: The levels of failures that end the run (`progress.acker`): on their way to worker 0, and held there.
FAILING = -2
FAILED = -1

#: By global time: the xor of the ids of all frames of which it is the least.
Xors: TypeAlias = dict[Moment, int]

#: The same by turns, where workers know them; a global time is the least turn of its element (`turns`).
TurnXors: TypeAlias = dict[Place, int]


class Frame(NamedTuple):
    """Items from one worker to another. ``parts`` are ``(node, items)`` in the order of sending.

    A worker sends a frame as a whole, and another one deals with it as a whole. So the acker needs one
    entry for it: its id, under the least global time of its items. The minimal time comes out the same
    as with an entry for every item. ``least`` is that time among items that may go anywhere from here, or the
    least turn of it (`turns`); ``least_bound`` is that time among those bound for a barrier of the
    receiver; None where there are none. ``level`` says how far the first ones of the others have come
    (`progress.acker`). ``least_own`` and ``level_own`` say the same of the items that concern the keys of the
    receiver alone (`worker.ranges`).
    """

    sender: int
    id: int
    parts: tuple[tuple[int, list[FlatItem]], ...]
    least: Place | None
    least_bound: Moment | None
    level: int = 0
    least_own: Moment | None = None
    level_own: int = 0


class Phase(IntEnum):
    """How far a new arrangement of a region has come (`progress.arrangements`)."""

    CLOSE = 0
    TELL = 1
    OPEN = 2
    DONE = 3


class Arrangement(NamedTuple):
    """Where the transactions of a region are computed from a moment on: by the ``host`` alone, or, where
    that is None, by each worker for the rows it owns."""

    number: int
    host: int | None
    phase: Phase
    since: Moment


class Said(NamedTuple):
    """What a worker says of the arrangement of a region: the last phase of the last one that it has dealt
    with. In the phase that closes it, all that it has let in is ``through`` or below. ``wish`` is the host
    that it would have instead; itself, or None; it counts if ``wishes``."""

    number: int
    phase: Phase
    through: Moment
    wishes: bool = False
    wish: int | None = None


class Entries(NamedTuple):
    """Xors of ids, by the tables that they belong to (`progress.tables`).

    ``levels`` are those of frames that may go anywhere, by level and turn; ``ranges`` those of frames on their
    way to a barrier, by the worker that holds it; ``own`` those of frames that concern the keys of a worker
    alone, by this worker and by level.
    """

    levels: dict[int, TurnXors]
    ranges: dict[int, Xors]
    own: dict[int, dict[int, Xors]]

    @classmethod
    def none(cls) -> Entries:
        return cls({}, {}, {})

    def __bool__(self) -> bool:
        return bool(self.levels or self.ranges or self.own)


class Ack(NamedTuple):
    """What a worker has finished and what it has sent, in one message.

    One message, so that no received id ever disappears before the ids it caused appear. ``ranges``
    are acks of frames on their way to a barrier, by the worker that holds it; ``own`` those of frames that
    concern the keys of a worker alone, by this worker and by level; ``anywhere`` are all others of level 0,
    and ``deeper`` those of other levels. ``reports`` are promises of fronts: 'I
    shall not emit below this'. ``number`` is how many acks this worker has made: they come in order,
    and some may have been made one (`receipts`). ``said`` is what has changed of the regions that may
    be gathered, by rank (`progress.arrangements`).

    Where each worker has an account of what it has sent (`progress.accounts`), ``dealt`` is what was finished of
    other workers' frames, by worker; all else here is of this worker's own. ``sent`` is how many frames that
    are bound for barriers it has sent to each worker so far.
    """

    worker: int
    anywhere: TurnXors
    ranges: dict[int, Xors]
    reports: dict[int, Moment]
    number: int = 0
    deeper: dict[int, TurnXors] = {}  # noqa: RUF012 - nobody writes to the default
    said: dict[int, Said] = {}  # noqa: RUF012 - nobody writes to the default
    own: dict[int, dict[int, Xors]] = {}  # noqa: RUF012 - nobody writes to the default
    dealt: dict[int, Entries] = {}  # noqa: RUF012 - nobody writes to the default
    sent: dict[int, int] = {}  # noqa: RUF012 - nobody writes to the default

    def __bool__(self) -> bool:
        return bool(
            self.anywhere
            or self.ranges
            or self.reports
            or self.deeper
            or self.said
            or self.own
            or self.dealt
        )

    @property
    def entries(self) -> Entries:
        """All that counts for the tables of whoever gets it."""
        levels = {0: self.anywhere, **self.deeper} if self.deeper else {0: self.anywhere}
        return Entries(levels, self.ranges, self.own)


class Dealt(NamedTuple):
    """From one worker to another: it has dealt with these frames of the other one. What came of them is in its
    account as of its ack of this ``number`` (`progress.accounts`)."""

    worker: int
    number: int
    entries: Entries


class Statement(NamedTuple):
    """What a worker's account says (`progress.accounts`): the least times of what it has sent or holds, and what is
    not known to be dealt with, behind so many (``number``) of its acks.

    ``heard`` are, by worker, the numbers of the last `Dealt` that it knows. ``sent`` is as in an ack, ``levels``
    are the least turns of what may go anywhere, by level; ``ranges``, ``own`` and ``failing`` are the least times
    of these tables, without what there is none of. ``reports`` and ``said`` are what is new of them. ``entries``
    is how many times are open.
    """

    worker: int
    number: int
    heard: tuple[int, ...]
    sent: dict[int, int]
    levels: tuple[tuple[int, Place], ...]
    ranges: dict[int, Moment]
    own: dict[int, tuple[tuple[int, Moment], ...]]
    failing: tuple[Moment, Moment]
    reports: dict[int, Moment]
    said: dict[int, Said]
    entries: int


class Bound(NamedTuple):
    """The entries of frames bound for the barriers of one worker, below the minimal time of 'anywhere'.

    They are those that the acker had when it had ``heard`` so many acks of that worker. ``entries`` is
    None where there are too many to send.
    """

    heard: int
    entries: tuple[tuple[Moment, int], ...] | None


class Progress(NamedTuple):
    """The minimal times: of all that may still go anywhere, and of what is bound for each worker.

    ``kept`` is how far back versions have to be kept for reads (`queries.coordinator`); None for no
    further than the minimal time itself. ``bound`` is for workers, which may know more than the acker
    (`receipts`). ``within`` is the least turn of the minimal time, where that is known. ``frontiers``
    are the least turns of what may still arrive at each stage; none where no node holds anything, because
    then the minimal time says enough (`speculation.patience`).

    ``wanted`` is the greatest time that a front has promised the present for. Other fronts that are idle
    may hold back what is below it, so they promise that as well, and not only when their turn comes.

    ``arrangements`` are those of the regions that have ever been gathered, by rank.

    ``own`` are, by worker, the least moments of what concerns its keys alone: the frontiers by stage if some
    of that is held, and always the least of all as the last one. It is empty as long as there has been
    nothing of the kind. ``failing`` are the least moments of failures that end the run: of those on their way,
    and of those that are held.

    ``sent`` is there in place of ``bound`` where each worker has an account of what it has sent: by receiver and
    by sender, how many frames for barriers (`receipts`). It lacks what would be too large to send.
    """

    anywhere: Moment
    ranges: tuple[Moment, ...]
    kept: Moment | None = None
    bound: tuple[Bound, ...] = ()
    within: Place = ()
    frontiers: tuple[Place, ...] = ()
    wanted: int = TIME_MIN
    arrangements: tuple[tuple[int, Arrangement], ...] = ()
    own: tuple[tuple[Moment, ...], ...] = ()
    failing: tuple[Moment, Moment] = (AFTER_ALL, AFTER_ALL)
    sent: dict[int, dict[int, int]] = {}  # noqa: RUF012 - nobody writes to the default

    @property
    def turn(self) -> Place:
        """Nothing with a turn before this is under way that may go anywhere."""
        return self.within or self.anywhere

    def turn_of(self, stage: int) -> Place:
        """Nothing with a turn before this can arrive at a stage any more."""
        frontiers = self.frontiers
        if not frontiers:
            return self.turn
        return frontiers[stage] if stage < len(frontiers) else frontiers[-1]

    def own_turn_of(self, worker: int, stage: int) -> Moment:
        """Nothing before this that concerns the keys of a worker alone can arrive at a stage any more."""
        if not self.own:
            return AFTER_ALL
        frontiers = self.own[worker]
        return frontiers[stage] if stage < len(frontiers) else frontiers[-1]

    def ahead_of_barriers(self) -> Moment:
        """Nothing below this is under way that is not bound for a barrier and does not concern the keys of one
        worker alone."""
        return min(self.anywhere, *self.failing)

    def of_range(self, worker: int, reaching: Iterable[int] = ()) -> Moment:
        """Nothing below this can reach those barriers of a worker that the keys of these workers can reach."""
        owned = [self.own[each][-1] for each in reaching] if self.own else []
        return min([self.ahead_of_barriers(), self.ranges[worker], *owned])

    def of_all(self) -> Moment:
        """Nothing below this is under way at all."""
        return min([self.ahead_of_barriers(), *self.ranges, *[own[-1] for own in self.own]])


class Bundle(NamedTuple):
    """What a barrier gives its sink at once: items in order, and their last global time."""

    sink: str
    partition: int
    last: GlobalTime
    items: list[FlatItem]


class Effects(NamedTuple):
    """What the runner has to do after an event: send frames and an ack, store bundles, or end."""

    frames: list[tuple[int, Frame]]
    ack: Ack
    bundles: list[Bundle]
    failure: Exception | None


class Keys(NamedTuple):
    """A read of some keys of a state."""

    state: str
    keys: tuple[Any, ...]


class Scan(NamedTuple):
    """A read of all keys of a state from ``low`` on and below ``high`` that satisfy a predicate.

    The predicate gets key and value. None stands for no bound, and for no predicate.
    """

    state: str
    low: Any = None
    high: Any = None
    predicate: Callable[[Any, Any], object] | None = None


#: What a read selects of a state.
Selection: TypeAlias = Keys | Scan


class WorkerRead(NamedTuple):
    """To a worker: read these parts of the state as of a moment. Parts are numbered in the question."""

    number: int
    moment: Moment
    parts: Any  # tuple[tuple[int, Selection], ...]; on the wire, the bytes of it


class FrontsRequest(NamedTuple):
    """To a worker: say how far your fronts have come."""

    number: int


class NextPage(NamedTuple):
    """To a worker: make the next page of a scan."""

    number: int


class CancelRead(NamedTuple):
    """To a worker: drop the rest of a scan."""

    number: int


class ReadPage(NamedTuple):
    """From a worker: rows ``(part, key, value)``, whether there are more, or why there are none."""

    worker: int
    number: int
    rows: Any  # list[tuple[int, Any, Any]]; on the wire, the bytes of it
    more: bool
    problem: str | None = None


class FrontsReply(NamedTuple):
    """From a worker: all elements that its fronts have let in are below this moment."""

    worker: int
    number: int
    moment: Moment


class ReadBegan(NamedTuple):
    """To the caller: so many workers read, as of this moment."""

    number: int
    moment: Moment
    workers: int


class ReadRefused(NamedTuple):
    """To the caller: it cannot be answered. ``kept`` is the range of moments that can be read."""

    number: int
    problem: str
    kept: tuple[Moment, Moment]
