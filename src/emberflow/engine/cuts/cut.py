"""Cuts: all state as of a global time, taken while everything goes on.

A cut at T holds, and nothing else:

- of every bucket of a grouping, its last ``window - 1`` items below T;
- of every reduction, the last version of each key below T;
- every scheduled item whose origin is below T and whose own time is not.

**Why that is enough.** T is at most the minimal time of all. So nothing below T is in flight, and
nothing below T will ever enter: what a bucket holds below T is what the reference runner would hold
there. An item at or above T has one of two causes: an element at or above T, which the fronts replay; or
an item that was scheduled from below T, which is in the cut. What it meets in its bucket from below T is
in the cut too. So a run that is restored at T gives from T on what a run gives that was never
interrupted. All that workers have speculated, all that is on links and all that goes round a cycle is at
or above T. So no channel is blocked, and nothing in flight is logged.

**Marks are not saved.** A mark tells apart the histories of an item until one of them is final. Below T
all are final: of each place one item is left, and no tombstone will ever come for it. A restored item
has mark 0. A restored run sends nothing with that mark: a tuple has the mark of its last item, and an
accumulator that of its mapped item, and both are at or above T. The exception is scheduled items. Their
origin is final, so no tombstone can come for them either; they begin a new history at mark 0, and all
that they cause extends it.

**An accumulator is enough.** A version below T is never computed again: a replay begins behind it.
So its mapped item is not saved.

**Increments.** What is below T stays as it is. So a cut need hold only what is not in the cut before it,
at ``since``: all rows of a bucket whose last item below T is not below ``since``, which replace the older
rows of that bucket; and the scheduled items whose origin is not below ``since``. `combined` puts a chain
of cuts together: of each bucket the newest rows, and all scheduled items whose time is not below the
newest T. What is final stays, so a key leaves a cut only where keys expire: then no cut from the end of the
key on holds it. A chain has it still, from older cuts. Its place tells that it has ended, and whoever
restores or reads a chain passes it over (`values.times.has_expired`).

**Without a pause.** The worker calls `Capture.next` between events, with a limit to the buckets that it
looks at. Meanwhile it goes on to insert items at or above T, and to trim: before a trim drops anything
that the cut needs, it takes it for the cut (see `trimming`). Payloads are immutable, so a row holds
references and no copies. Which buckets have changed since ``since`` is known without a look at every key
(see `changes`).

**The protocol**, which the runner has to keep:

1. T is the minimal time of all (`Progress.of_all`). A worker begins to capture when it has received
   progress T and none after it, because later progress trims further. So the coordinator sends the
   progress to T and then 'cut T' on one link, which is FIFO.
2. A cut is *usable* only once every sink has stored all it has below T: what a barrier has released and
   its sink has not stored is in no cut, and would be lost. So a worker reports its part as stored only
   when all bundles that it released at T are stored. A failure below T ends the run; the worker that
   holds the failures reports them before it reports its part as stored.
3. A cut is *committed* by a manifest, which is written last and atomically. It names the parts of all
   workers, T, the cut that this one adds to, and for each front the position of its first element at or
   above T. Then every worker is told `cut_committed`. A cut that is never committed changes nothing: the
   next one holds all that changed since the last one that was.
4. To restore, each worker is given the rows of its own range of hashes (`owned`). There may be more or
   fewer workers than before. The barriers ask their sinks for their last global times. Restored scheduled
   items are in flight at once: before any front may report, the acker must have the ack that `restore`
   returns from *every* worker.
5. A worker that was replaced may still be running. Every message names its incarnation, and a message of
   another incarnation is dropped. A log takes entries only from the worker that opened it last. A sink
   stores a bundle only behind the one that its writer believes to be the last. A worker whose bundle is
   refused asks the sink again: all at or below the answer is stored, by whichever worker, and is dropped,
   *also from all that is released later*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from emberflow.engine.messages import Moment
from emberflow.errors import InternalError
from emberflow.values.hashing import key_hash
from emberflow.values.item import Place
from emberflow.values.owners import Owners


class Row(NamedTuple):
    """An item of a bucket. ``operation`` is the name of its grouping. In a reduction it is the name of
    the group node in its cycle, and the payload is the accumulator.

    This is the one definition of the layout of a row. Files store these fields (`checkpoint.cuts`), and
    the compiled loops refuse to run if they are others."""

    operation: str
    key_hash: int
    key: Any
    place: Place
    payload: Any


class Scheduled(NamedTuple):
    """An item that was scheduled from below the cut, laid out as a `Row` with its origin for a key.
    ``operation`` is the name of the map that scheduled it, ``origin`` the global time of the item that it
    came from. The hash is that of its place: it decides which worker emits the item again, and nothing
    else."""

    operation: str
    key_hash: int
    origin: Moment
    place: Place
    payload: Any


class KeptRows(Protocol):
    """Rows of one step as of one moment, which are out of memory (`machines.cold`) or packed (`cuts.packed`):
    whatever happens to them later, these stay. So whoever writes a cut may read them in a thread of its own.
    """

    #: How many buckets a capture has looked at to get them; 0 if they are out of memory.
    looks: int = 0

    def __iter__(self) -> Iterator[Row]: ...

    def as_written(self) -> Iterable[Any]:
        """The same, as they are on disk: what the writer of a file takes, without encoding them again."""


class KeptTicks:
    """Scheduled items that are at rest (`cuts.resting`): whatever happens to them later, these stay."""

    looks = 0

    def __init__(self, ticks: Callable[[], Iterator[Scheduled]]) -> None:
        self._ticks = ticks

    def __iter__(self) -> Iterator[Scheduled]:
        return self._ticks()


#: What a cut holds.
Content: TypeAlias = Row | Scheduled | KeptRows | KeptTicks

Saved = TypeVar("Saved", Row, Scheduled)


def rows_in(content: Iterable[Row | KeptRows | None]) -> Iterator[Row]:
    """The rows of a capture, also those that are out of memory or packed, one by one."""
    for each in content:
        if isinstance(each, Row):
            yield each
        elif each is not None:
            yield from each


def scheduled_row(operation: str, origin: Moment, place: Place, payload: Any) -> Scheduled:
    return Scheduled(operation, key_hash(place), origin, place, payload)


class Capture:
    """A cut under way on one worker. Call ``next`` until it gives None."""

    def __init__(
        self,
        moment: Moment,
        rows: Iterator[Content | None],
    ) -> None:
        self.moment = moment
        #: Whether all buckets have been looked at.
        self.done = False
        self._rows: Iterator[Content | None] | None = rows

    def next(self, limit: int) -> list[Content] | None:
        """The rows of the next buckets and scheduled items, of ``limit`` buckets at most, or a few hundred more;
        None when there are no more. All rows that a machine has out of memory are one object, and so are rows that
        are packed.

        The list may be empty, and a bucket may give several rows.
        """
        if self._rows is None:
            raise InternalError(
                f"the cut at {self.moment} was given up: another one has begun on this worker"
            )
        if self.done:
            return None
        found: list[Content] = []
        for row in self._rows:
            if row is None or isinstance(row, tuple):
                limit -= 1
            else:
                limit -= row.looks
            if row is not None:
                found.append(row)
            if limit <= 0:
                return found
        self.done = True
        return found or None

    def give_up(self) -> None:
        self.done = True
        self._rows = None


def combined(
    cuts: Iterable[Iterable[Row | Scheduled]], moment: Moment
) -> tuple[list[Row], list[Scheduled]]:
    """A chain of cuts, the oldest first, as one: the state at the moment of the last one.

    >>> old = [Row("g", 1, "a", (1, 0), "x"), Row("g", 1, "b", (2, 0), "y")]
    >>> new = [Row("g", 1, "a", (7, 0), "z")]
    >>> rows, _ = combined([old, new], (9, 0))
    >>> [(row.key, row.payload) for row in rows]
    [('a', 'z'), ('b', 'y')]
    """
    buckets: dict[tuple[str, Any], list[Row]] = {}
    scheduled: list[Scheduled] = []
    for cut in cuts:
        newer: dict[tuple[str, Any], list[Row]] = {}
        for row in cut:
            if isinstance(row, Row):
                newer.setdefault((row.operation, row.key), []).append(row)
            elif row.place >= moment:
                scheduled.append(row)
        buckets.update(newer)
    return [row for rows in buckets.values() for row in rows], scheduled


def owned(rows: Iterable[Saved], index: int, owners: Owners) -> list[Saved]:
    """The rows that one of the workers restores."""
    return [row for row in rows if owners.owner(row.key_hash) == index]
