"""The items that a map has scheduled and whose time has not come: the only state of a map, kept for cuts.

A map needs no memory of what it scheduled. A cut does: an item that was scheduled from below the cut, for
a time that is not below it, comes from an element that is not replayed. So the cut has to hold it
(`cut`).

- **open**: scheduled items by place and mark, each with its origin, the global time of the item that it
  came from. (The child ids tell an origin too, but of an item scheduled by a scheduled one only the
  first.) A tombstone takes its item out again.
- **final**: scheduled items whose origin was below a cut that has begun. No tombstone comes for them any
  more, and once that cut is committed they need not be saved again.

An item is dropped once the minimal time has passed it. All items are looked at when there are twice as
many as were left the last time, so the cost of an item is constant.

**Ticks** (`machines.ticking`) belong to a key, and wait at its worker. So what is pending of them does, too
(`PendingTicks`), and goes where the slice of the key goes. In a cut such an item has the hash of its key:
that tells it from one that had to be sent to the worker of its key, and that is pending at the worker
that has sent it (`is_with_its_key`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from emberflow.engine.cuts.cut import KeptTicks, Scheduled, scheduled_row
from emberflow.engine.cuts.resting import RestingTicks
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.values.hashing import key_hash
from emberflow.values.item import Place

#: With fewer items than this, a look is not worth it.
_ITEMS_MIN = 512


class Pending:
    """The scheduled items of one map.

    >>> pending = Pending("remind")
    >>> pending.schedule((9, -5, 1, 0, 0), 0, (1, 0), "later")
    >>> [row.payload for row in pending.capture((4, 0), (0, 0)) if row is not None]
    ['later']
    """

    __slots__ = (
        "_ahead",
        "_begun",
        "_committed",
        "_due",
        "_final",
        "_open",
        "_since",
        "operation",
    )

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._open: dict[tuple[Place, int], tuple[Moment, Any]] = {}
        self._final: list[tuple[Moment, Place, Any]] = []
        #: The number of final ones that are in committed cuts: all those with an origin below ``_since``.
        self._committed = 0
        self._since = BEFORE_ALL
        #: What was open when the capture under way began, and what it has still to look at.
        self._ahead: list[dict[tuple[Place, int], tuple[Moment, Any]]] = []
        self._begun: Moment | None = None
        self._due = _ITEMS_MIN

    def __len__(self) -> int:
        return len(self._open) + sum(map(len, self._ahead)) + len(self._final)

    def schedule(self, place: Place, mark: int, origin: Moment, payload: Any) -> None:
        """The map has sent an item for a later time, or the tombstone of one."""
        if not mark & 1:
            self._open[place, mark] = origin, payload
            return
        identity = (place, mark ^ 1)
        for known in (self._open, *self._ahead):
            if known.pop(identity, None) is not None:
                return

    def trim_if_due(self, minimal: Moment) -> None:
        if len(self._open) + len(self._final) >= self._due:
            self.trim(minimal)

    def trim(self, minimal: Moment) -> None:
        """Drop what is below the minimal time. Must not be called while a capture goes through the final
        ones."""
        if not self._open and not self._final:
            return
        self._open = {
            identity: known for identity, known in self._open.items() if identity[0] >= minimal
        }
        committed = [known for known in self._final[: self._committed] if known[1] >= minimal]
        others = [known for known in self._final[self._committed :] if known[1] >= minimal]
        self._final, self._committed = committed + others, len(committed)
        self._due = max(_ITEMS_MIN, 2 * (len(self._open) + len(self._final)))

    def capture(self, moment: Moment, since: Moment) -> Iterator[Scheduled | KeptTicks | None]:
        """The rows of a cut at this moment, one by one; None for an item that it does not need."""
        self._begun = moment
        self._ahead.append(self._open)
        self._open = {}
        return self._captured(moment, since)

    def _captured(self, moment: Moment, since: Moment) -> Iterator[Scheduled | None]:
        final = self._final
        for number in range(self._committed if since >= self._since else 0, len(final)):
            origin, place, payload = final[number]
            needed = since <= origin and moment <= place
            yield self._row(origin, place, payload) if needed else None
        while self._ahead:
            ahead = self._ahead[-1]
            while ahead:
                identity, known = ahead.popitem()
                origin, payload = known
                if origin >= moment:
                    self._open[identity] = known
                    yield None
                    continue
                place = identity[0]
                final.append((origin, place, payload))
                needed = since <= origin and moment <= place
                yield self._row(origin, place, payload) if needed else None
            self._ahead.pop()

    def _row(self, origin: Moment, place: Place, payload: Any) -> Scheduled:
        return scheduled_row(self.operation, origin, place, payload)

    def waiting_at(self, moment: Moment) -> Iterator[Scheduled]:
        """What a cut at this moment would hold. Nothing changes by it."""
        known = [(origin, place, payload) for origin, place, payload in self._final]
        for items in (self._open, *self._ahead):
            known += [(origin, place, payload) for (place, _), (origin, payload) in items.items()]
        for origin, place, payload in known:
            if origin < moment <= place:
                yield self._row(origin, place, payload)

    def cut_committed(self, moment: Moment) -> None:
        if moment == self._begun and not self._ahead:
            self._committed = len(self._final)
            self._since = moment

    def restore(self, moment: Moment, rows: Iterable[Scheduled]) -> None:
        """Take over what a cut at this moment holds. All of it is in a committed cut."""
        self._final += [(row.origin, row.place, row.payload) for row in rows]
        self._committed = len(self._final)
        self._since = moment


#: Whether a key is one of this worker's.
IsOwn = Callable[[Any], bool]


def is_with_its_key(item: Scheduled) -> bool:
    """Whether a scheduled item that is a tick waits at the worker of its key, and is pending there."""
    return item.key_hash == key_hash(item.payload[0])


def divided(
    items: Iterable[Scheduled], is_chosen: Callable[[Scheduled], bool]
) -> tuple[list[Scheduled], list[Scheduled]]:
    """Those that are chosen, and the others."""
    chosen: list[Scheduled] = []
    others: list[Scheduled] = []
    for item in items:
        (chosen if is_chosen(item) else others).append(item)
    return chosen, others


class PendingTicks(Pending):
    """The ticks of a worker's own keys.

    When slices leave, what is pending of their keys stays for a while, and is in no cut. It is dropped between
    other work (`sift`). Those at rest (`resting`) are pending, too.
    """

    __slots__ = ("_is_own", "_kept", "_mixed", "resting")

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        #: What was here when slices left, and perhaps left with them; and what came with others, or stayed. All
        #: of it is in committed cuts.
        self._mixed: list[tuple[Moment, Place, Any]] = []
        self._kept: list[tuple[Moment, Place, Any]] = []
        self._is_own: IsOwn = _always
        self.resting: RestingTicks | None = None

    def woken(self, ticks: Iterable[Scheduled]) -> None:
        """These are not at rest any more. All of them are in committed cuts."""
        self._kept += [(tick.origin, tick.place, tick.payload) for tick in ticks]

    def __len__(self) -> int:
        return super().__len__() + len(self._mixed) + len(self._kept)

    @property
    def is_mixed(self) -> bool:
        return bool(self._mixed)

    def sift(self, most: int | None = None) -> None:
        """Drop what has left: look at so many, or at all."""
        mixed, is_own = self._mixed, self._is_own
        if mixed:
            looked_at = mixed[-(len(mixed) if most is None else most) :]
            del mixed[-len(looked_at) :]
            self._kept += [known for known in looked_at if is_own(known[2][0])]

    def leave(self, is_own: IsOwn) -> None:
        """From now on only what is of own keys is here, right before another one inherits it."""
        self.sift()
        self._is_own = is_own

    def inherit(self, other: PendingTicks, moment: Moment) -> None:
        """Take over what another one has that was scheduled below a moment, of which a cut has all."""
        kept = [*other._kept, *other._final]
        for items in (other._open, *other._ahead):
            kept += [
                (origin, place, payload)
                for (place, _), (origin, payload) in items.items()
                if origin < moment
            ]
        self._mixed, self._is_own, self._since = kept, other._is_own, moment
        self.resting = other.resting
        self._due = max(_ITEMS_MIN, 2 * len(self))

    def take_in(self, other: PendingTicks) -> None:
        """Take what another one has restored, of the same cut, which is of other keys."""
        self._kept += other._final
        self._due = max(_ITEMS_MIN, 2 * len(self))

    def trim_if_due(self, minimal: Moment) -> None:
        if len(self) >= self._due:
            self.trim(minimal)

    def trim(self, minimal: Moment) -> None:
        super().trim(minimal)
        self._mixed = [known for known in self._mixed if known[1] >= minimal]
        self._kept = [known for known in self._kept if known[1] >= minimal]
        self._due = max(_ITEMS_MIN, 2 * len(self))

    def capture(self, moment: Moment, since: Moment) -> Iterator[Scheduled | KeptTicks | None]:
        if since >= self._since:
            return super().capture(moment, since)
        self.sift()
        self._final[:0] = self._kept
        self._committed += len(self._kept)
        self._kept = []
        kept = [] if self.resting is None else [self.resting.kept(moment)]
        return chain(kept, super().capture(moment, since))

    def waiting_at(self, moment: Moment) -> Iterator[Scheduled]:
        self.sift()
        for origin, place, payload in self._kept:
            if moment <= place:
                yield self._row(origin, place, payload)
        if self.resting is not None:
            yield from self.resting.kept(moment)
        yield from super().waiting_at(moment)

    def _row(self, origin: Moment, place: Place, payload: Any) -> Scheduled:
        return Scheduled(self.operation, key_hash(payload[0]), origin, place, payload)


def _always(key: Any) -> bool:
    return True
