"""A mirror: a second version of the flow, in the same process, gets the elements that the first one gets.

What is guaranteed: **from a moment T on, the second version gets the same elements with the same global
times, in the same order, and the same promises; and the first one never waits for it.** The loop of the
first version records what its feeds let in, before it is known what T is. T is above all that had entered
before. When T is known, the loop copies its state as of T, drops what it has recorded below T, and gives
the rest to the feeds of the second version (`MirrorFeed`), then all that follows.

The second version has a loop, sockets and a coordinator of its own, and runs in a thread of its own. What
it has not taken yet is bounded: if it falls too far behind, it is given up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Bundle, Moment
from emberflow.errors import EmberflowError
from emberflow.values.item import FlatItem, Place

#: Items that wait for the second version.
_WAITING_MAX = 500_000


class Entered(NamedTuple):
    """What a feed let in at once, and the promise that it reported then."""

    feed: tuple[str, int]
    items: list[FlatItem]
    late: list[FlatItem]
    malformed: Sequence[tuple[Place, Any]]
    promise: Moment | None

    def is_below(self, moment: Moment) -> bool:
        """Whether all of it has entered below a moment."""
        last = [entered[-1][0] for entered in (self.items, self.late, self.malformed) if entered]
        return all(place < moment for place in last)

    def not_below(self, moment: Moment) -> Entered:
        """The part that has not entered below a moment."""
        return self._replace(
            items=[item for item in self.items if item[0] >= moment],
            late=[item for item in self.late if item[0] >= moment],
            malformed=[record for record in self.malformed if record[0] >= moment],
        )


class Released(NamedTuple):
    """What a version has released for a sink: global times and payloads."""

    sink: str
    outputs: list[tuple[Moment, Any]]

    @classmethod
    def of(cls, bundle: Bundle) -> Released:
        return cls(
            bundle.sink, [((place[0], place[1]), payload) for place, _, payload in bundle.items]
        )

    def is_below(self, moment: Moment) -> bool:
        """Whether all of it is below a moment."""
        return all(at < moment for at, _ in self.outputs)

    def not_below(self, moment: Moment) -> Released:
        return self._replace(outputs=[output for output in self.outputs if output[0] >= moment])


class Copied(NamedTuple):
    """The state of a worker as of a moment, for the second version."""

    moment: Moment
    rows: list[Row]
    scheduled: list[Scheduled]


class TooSlowError(EmberflowError):
    """The second version takes less than the first one gets."""


class Mirror:
    """What the loop of the first version gives, and that of the second takes, in two threads."""

    def __init__(self, promised: Mapping[tuple[str, int], Moment]) -> None:
        """``promised`` is what the feeds have reported by now."""
        self._ring: Callable[[], None] = lambda: None
        #: Recorded until the second version begins.
        self._recorded: list[Entered] = []
        self._promised = dict(promised)
        self.entered: dict[tuple[str, int], deque[Entered]] = {feed: deque() for feed in promised}
        self.released: deque[Released] = deque()
        #: All that the first version released below this, here, has been given.
        self.released_below = BEFORE_ALL
        self.copied: Copied | None = None
        #: Counters have one writer each.
        self._given = 0
        self.taken = 0
        self.failure: EmberflowError | None = None
        self.is_over = threading.Event()

    # For the loop of the first version.

    def enter(self, entered: Entered) -> None:
        self._given += len(entered.items)
        if self.copied is None:
            self._recorded.append(entered)
        else:
            self._give(entered)
        if self._given - self.taken > _WAITING_MAX:
            self._fail(
                TooSlowError(
                    f"the new version does not keep up: {_WAITING_MAX:,} elements wait for it."
                )
            )

    def forget_below(self, moment: Moment) -> None:
        """Nothing below the minimal time is needed, whatever T will be."""
        recorded, gone = self._recorded, 0
        while gone < len(recorded) and recorded[gone].is_below(moment):
            entered = recorded[gone]
            if entered.promise is not None:
                self._promised[entered.feed] = entered.promise
            self._given -= len(entered.items)
            gone += 1
        del recorded[:gone]
        if self.copied is None:
            # A worker may release what is not below the minimal time of all, so this is recorded too.
            while self.released and self.released[0].is_below(moment):
                self.released.popleft()

    def begin(self, copied: Copied, ring: Callable[[], None]) -> None:
        """The second version begins with this state. ``ring`` wakes its loop."""
        self._ring = ring
        self.copied = copied
        recorded, self._recorded = self._recorded, []
        self.released = deque(one.not_below(copied.moment) for one in self.released)
        for feed, promise in self._promised.items():
            self._give(Entered(feed, [], [], (), max(promise, copied.moment)))
        for entered in recorded:
            self._give(entered.not_below(copied.moment))

    def _fail(self, failure: EmberflowError) -> None:
        """Give up the second version: the first one goes on."""
        self.failure = failure
        self.is_over.set()

    def _give(self, entered: Entered) -> None:
        self.entered[entered.feed].append(entered)
        self._ring()

    def release(self, bundles: Sequence[Bundle], below: Moment) -> None:
        """The first version has released these, and with them all below a moment."""
        since = BEFORE_ALL if self.copied is None else self.copied.moment
        released = [Released.of(bundle).not_below(since) for bundle in bundles]
        if any(at < self.released_below for one in released for at, _ in one.outputs):
            # The other thread may have told already that all of this was compared.
            self._fail(EmberflowError("output was released after all of its time had been."))
        self.released.extend(released)
        if below > self.released_below:
            self.released_below = below  # behind what was released
            self._ring()


class _Aside:
    """The malformed records of a mirrored feed."""

    def __init__(self) -> None:
        self.entered: list[tuple[Place, Any]] = []

    def take(self) -> list[tuple[Place, Any]]:
        entered, self.entered = self.entered, []
        return entered


class _Reached:
    """As much of a gate as the loop looks at."""

    reached: Moment = BEFORE_ALL


class MirrorFeed:
    """A partition of a front, for the second version: a `LoopFeed` without a source."""

    chose = False
    owes_report = False
    is_reported = True
    hurries = False
    lag_ms = 0.0
    late = 0

    def __init__(
        self,
        mirror: Mirror,
        name: str,
        partition: int,
        index: int,
        node: int,
        late_node: int | None,
    ) -> None:
        self.name = name
        self.partition = partition
        self.index = index
        self.node = node
        self.late_node = late_node
        self.aside = _Aside()
        self.gate = _Reached()
        self.settled = 0
        self._mirror = mirror
        self._waiting = mirror.entered[name, partition]
        self._late: list[FlatItem] = []
        self._promise: Moment | None = None
        self._reported = BEFORE_ALL
        self._halted = False

    @property
    def reported(self) -> Moment:
        return self._reported

    @property
    def over(self) -> bool:
        return self._halted or (self._reported == AFTER_ALL and not self._waiting)

    @property
    def waiting(self) -> int:
        return sum(len(entered.items) for entered in list(self._waiting))

    def take(self, most: int) -> list[FlatItem]:
        items: list[FlatItem] = []
        while self._waiting and len(items) < most and not self._halted:
            entered = self._waiting.popleft()
            items += entered.items
            if self.late_node is not None:
                self._late += entered.late
            self.aside.entered += entered.malformed
            if entered.promise is not None:
                self._promise = entered.promise
        self._mirror.taken += len(items)
        if items:
            place = items[-1][0]
            self.gate.reached = (place[0], place[1] + 1)
        return items

    def take_late(self) -> list[FlatItem]:
        late, self._late = self._late, []
        return late

    def report(self) -> dict[int, Moment]:
        promise, self._promise = self._promise, None
        if promise is None or promise <= self._reported:
            return {}
        self._reported = promise
        return {self.index: promise}

    def halt(self) -> None:
        self._halted = True

    def ask(self, time: int) -> None:
        """The feed beside it promises what others wait for."""

    def minimal_time(self, moment: Moment) -> None:
        """Credits are the matter of the first version."""
