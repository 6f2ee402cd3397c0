"""Guests: rows that the host of a gathered region computes for the workers that own them.

What is guaranteed: **the owner of a row has every committed version of it below the minimal time of all.**
So cuts, reads, moves and restarts need not know that a region is gathered: they find all rows where they
have always been.

- The first access of a row waits until the owner has sent it (*ask* and *row*). The host asks as soon as it
  knows of the access, and begins nothing behind it until then (`regions`). Nothing below the moment
  of the arrangement is in flight by then, and all that the host has sent for this row is ahead of the
  question on the same link. So what the owner has is what the access has to see. What waits (`waiting`)
  is in flight: one frame that the host sends to itself stands for all of it.
- When nothing below a frontier can arrive at the region any more, the versions below it are final. The
  host sends those that count to the owners (*version*), each once and in order, and keeps the last one of
  each row. Until then it holds a frame at the least of them, which keeps the minimal time below. That
  frame has the level of what a node of the region holds back, so the region's own frontier is not held up.

Messages between host and owners are items for a node that no graph has, one for each state
(`layout.Gatherable`): its stage is behind all others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from emberflow.engine.loops.accesses import AccessEntry, StateBucket
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Frame, Moment
from emberflow.engine.worker.gathering.waiting import Waiting, identity_of
from emberflow.engine.worker.outbox import Outbox
from emberflow.values.item import FlatItem, Place

#: What the payload of a message begins with. An ask goes on with key and worker, a row with key and place
#: and value of the last version or None, a version with key and value.
ASK, ROW, VERSION = range(3)


class Guests:
    """The rows of one state, on the host. They are in a machine of their own."""

    def __init__(
        self,
        node: int,
        rows_node: int,
        machine: AccessMachine,
        own: AccessMachine,
        outbox: Outbox,
        owner_of: Callable[[Any], int],
    ) -> None:
        """``own`` is the machine of the rows that this worker owns."""
        self.node = node
        self.machine = machine
        self._rows_node = rows_node
        self._own = own
        self._outbox = outbox
        self._owner_of = owner_of
        #: By key of a row that is here: the place of the last version that its owner has.
        self._known: dict[Any, Place] = {}
        #: By key of a row that has been asked for: the least transaction that is known to wait for it.
        self._asked: dict[Any, Place] = {}
        #: The least global time of these; None as long as nobody has looked since they changed.
        self._awaited_from: Moment | None = AFTER_ALL
        self._waiting = Waiting()
        #: What stands for all that waits at the acker, and the least transaction of it.
        self._frame: Frame | None = None
        self._least_waiting: Place | None = None
        #: Whether the next items to be processed are some that have waited: they go ahead of what still does.
        self._are_admitted = False
        #: The rows that have accesses or aborts which are not final.
        self._dirty: dict[Any, None] = {}
        #: Nothing in them that is not final is below this; None if there is nothing.
        self.least: Moment | None = None
        #: The number of items that came, and of rows that were fetched, since the last call of `settle`.
        self.items = self.fetched = 0

    @property
    def rows(self) -> int:
        return len(self._known)

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        """As the machine of the state does; what has to wait for its row comes again later."""
        known, dirty = self._known, self._dirty
        if self._are_admitted:
            self._are_admitted = False
        elif self._waiting or not known.keys() >= {item[2][0] for item in items}:
            items = self._admitted(items)
        self.items += len(items)
        if items:
            for item in items:
                dirty[item[2][0]] = None
            place = min([item[0] for item in items])
            if self.least is None or place < self.least:
                self.least = place[0], place[1]
        return self.machine.process(items, failed)

    def _admitted(self, items: list[FlatItem]) -> list[FlatItem]:
        """The items whose rows are here. The others wait, and their rows are asked for."""
        self.expect(items)
        admitted = self._waiting.admit(items, self._known)
        self._hold()
        return admitted

    def expect(self, items: list[FlatItem]) -> None:
        """These items are here or will come: ask for the rows that they need."""
        known, asked = self._known, self._asked
        if known.keys() >= {item[2][0] for item in items}:
            return
        self._awaited_from = None
        missing: dict[Any, Place] = {}
        for item in items:
            key = item[2][0]
            if key not in known:
                least = identity_of(item)
                found = asked if key in asked else missing
                found[key] = min(found.get(key, least), least)
        for key, least in missing.items():
            owner = self._owner_of(key)
            if owner == self._outbox.index:
                self._begin(key, row_of(self._own, key))
                continue
            asked[key] = least
            self.fetched += 1
            ask = (least, 0, (ASK, key, self._outbox.index))
            self._outbox.post(owner, self._rows_node, [ask])

    @property
    def awaited_from(self) -> Moment:
        """The least global time of what waits for a row that is not here yet."""
        if self._awaited_from is None:
            least = min(self._asked.values(), default=AFTER_ALL)
            self._awaited_from = least[0], least[1]
        return self._awaited_from

    def _hold(self) -> None:
        """One frame stands for all that waits. It counts under the least turn of it, or the least time."""
        item = self._waiting.least()
        least = None if item is None else identity_of(item)
        if least == self._least_waiting:
            return
        if self._frame is not None:
            self._outbox.finish([self._frame])
        self._least_waiting, self._frame = least, None
        if item is not None:
            self._frame = self._outbox.frame([(self.node, [item])])
            self._outbox.hold(self._frame)

    def arrive(self, key: Any, row: tuple[Place, Any] | None) -> list[FlatItem]:
        """A row has come: what has waited for it, to be processed now."""
        del self._asked[key]
        self._awaited_from = None
        self._begin(key, row)
        admitted = self._waiting.arrive(key, self._known)
        self._hold()
        self._are_admitted = bool(admitted)
        return admitted

    def _begin(self, key: Any, row: tuple[Place, Any] | None) -> None:
        self._known[key] = BEFORE_ALL if row is None else row[0]
        if row is not None:
            self.machine.begin_with(key, *row)

    def settle(self, frontier: Moment, most: int) -> None:
        """Nothing below the frontier can come any more: send what is final, and keep the last of it.

        Forget the rows on which nothing is under way, if there are more than ``most``.
        """
        if self.least is not None and self.least < frontier:
            by_owner: dict[int, list[FlatItem]] = {}
            left: dict[Any, None] = {}
            for key in self._dirty:
                bucket = self.machine.buckets.get(key)
                if bucket is None:
                    continue
                versions = self._final(bucket, frontier)
                if versions:
                    self._known[key] = versions[-1][0]
                    by_owner.setdefault(self._owner_of(key), []).extend(versions)
                self.machine.trim_one(bucket, frontier)
                if bucket.aborts or (bucket.entries and bucket.entries[-1][0] >= frontier):
                    left[key] = None
            self.machine.touched.clear()
            self._dirty = left
            self.least = max(self.least, frontier) if left else None
            for owner, items in by_owner.items():
                if owner == self._outbox.index:
                    take_versions(self._own, items)
                else:
                    self._outbox.post(owner, self._rows_node, items)
        if len(self._known) > most:
            self._forget()

    def _final(self, bucket: StateBucket, frontier: Moment) -> list[FlatItem]:
        """The versions below the frontier that count, and that the owner does not have."""
        entries, aborts = bucket.entries, bucket.aborts
        known, key = self._known[bucket.key], bucket.key
        found: list[FlatItem] = []
        for group in _groups(entries[: bisect_left(entries, (frontier,))]):
            if group[-1][0] <= known or any(
                entry[7] is not None or entry[0] in aborts for entry in group
            ):
                continue
            for place, _, access, _, _, _, value, _ in reversed(group):
                if self.machine.writes(access):
                    found.append((place, 0, (VERSION, key, value)))
                    break
        return found

    def _forget(self) -> None:
        used = {item[2][0] for item in self._waiting} | self._dirty.keys()
        for key in [key for key in self._known if key not in used]:
            del self._known[key]
            self.machine.buckets.pop(key, None)

    def held(self) -> list[Frame]:
        """What waits for a row, as a frame."""
        frame = self._frame
        return [] if frame is None else [frame._replace(parts=((self.node, list(self._waiting)),))]


def _groups(entries: list[AccessEntry]) -> Iterator[list[AccessEntry]]:
    """The entries of each transaction."""
    group: list[AccessEntry] = []
    identity: Place = ()
    for entry in entries:
        own = entry[0][: entry[3]]
        if own != identity:
            if group:
                yield group
            group, identity = [], own
        group.append(entry)
    if group:
        yield group


def row_of(machine: AccessMachine, key: Any) -> tuple[Place, Any] | None:
    """The owner's side: place and value of the last version of a row; None if there is none."""
    if machine.cold_keys:
        machine.fetch([(BEFORE_ALL, 0, (key,))])
    return machine.last_version(key)


def take_versions(machine: AccessMachine, items: list[FlatItem]) -> None:
    """The owner's side: take over versions that are final."""
    if machine.cold_keys:
        machine.fetch([(place, mark, (payload[1],)) for place, mark, payload in items])
    machine.items_since += len(items)
    for place, _, (_, key, value) in items:
        machine.take_version(key, place, value)
