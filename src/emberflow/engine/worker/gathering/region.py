"""Gathering: one worker computes a whole region of transactions, for as long as they conflict.

Where transactions conflict, hops between the workers that own their rows cost more than all else: a
transaction waits for each row that it reads, and those behind it presume what is not true yet. So the
region is *gathered*: from a moment on (`progress.arrangements`) one worker, the *host*, computes all of
it, on rows that it fetches from their owners (`guests`). Nothing hops, and each transaction finds what
the one before it left. `speculation.gathering` decides when.

What is guaranteed: **no output depends on it.** An access meets the same versions in the same order,
whoever computes it: below the moment nothing is in flight any more when the first item at or above it
enters the region. Cuts, reads and moves find the rows at their owners.

- *Elements go to the host.* The others send on what comes to a node where transactions open. So the host
  has all of it and can let it in in order. Where elements come in disorder, it waits until nothing below
  them can come any more (`speculation.window`).
- *While the arrangement changes*, elements wait where transactions open (`Window.bound`).
- *A worker may hear of the change from another one first*: an item from the moment on arrives, bound for
  the region. Then all below it is done, so the worker goes by the new arrangement at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from emberflow.engine.layout import Gatherable
from emberflow.engine.machines.map import Process
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Arrangement,
    Frame,
    Moment,
    Phase,
    Said,
)
from emberflow.engine.speculation.gathering import GatheringJudge
from emberflow.engine.speculation.window import Window
from emberflow.engine.worker.dataflow import Dataflow
from emberflow.engine.worker.gathering.guests import ASK, ROW, Guests, row_of, take_versions
from emberflow.engine.worker.outbox import Outbox
from emberflow.engine.worker.regions import Cycle
from emberflow.engine.worker.routing import Routes
from emberflow.values.item import FlatItem

#: A host forgets rows on which nothing is under way when it has more than this.
_ROWS_KEPT = 16_384


class Gathering:
    """A region on one worker."""

    def __init__(
        self,
        region: Gatherable,
        windows: Sequence[Window],
        dataflow: Dataflow,
        cycle: Cycle,
        routes: Routes,
        outbox: Outbox,
        judge: GatheringJudge,
    ) -> None:
        layout = dataflow.layout
        self.region = region
        self.judge = judge
        self._index = outbox.index
        self._windows = windows
        self._dataflow = dataflow
        self._cycle = cycle
        self._routes = routes
        self._outbox = outbox
        self._nodes = frozenset(layout.units[region.rank].nodes)
        self._stage = layout.stage[next(iter(region.rows))]
        self._said = Said(0, Phase.DONE, BEFORE_ALL)
        #: The last arrangement that was heard of, and the host of the one that this worker goes by.
        self._next = Arrangement(0, None, Phase.DONE, BEFORE_ALL)
        self.host: int | None = None
        #: On the host: the rows, by state.
        self._guests: dict[int, Guests] = {}
        #: By state: how it runs where this worker is not the host.
        self._own_process: dict[int, Process] = {
            node: dataflow.process_by(node, partial(self._process, node)) for node in region.rows
        }
        #: What stands at the acker for versions that are not final.
        self._frame: Frame | None = None
        self._settled_below: Moment = BEFORE_ALL
        for window in windows:
            window.passed = self._passed

    # The arrangement.

    def hear(self, arrangement: Arrangement, minimal: Moment) -> None:
        """What the acker says of it, with the minimal time of all that may go anywhere."""
        said = self._said
        if arrangement.number == said.number and arrangement.phase < said.phase:
            return
        if arrangement.phase == Phase.CLOSE and arrangement.number > said.number:
            through = max(window.close() for window in self._windows)
            self._say(Said(arrangement.number, Phase.CLOSE, through))
        elif arrangement.phase == Phase.TELL and said.phase == Phase.CLOSE:
            for window in self._windows:
                window.bound = arrangement.since
            self._say(said._replace(phase=Phase.TELL))
        elif (
            arrangement.phase == Phase.OPEN
            and said.phase == Phase.TELL
            and minimal >= arrangement.since
        ):
            self._next = arrangement
            self._go_over()
        self._next = arrangement

    def look_at(self, node: int, items: list[FlatItem]) -> None:
        """Items of another worker have come for a node: they may tell that the moment has come."""
        if (
            self._said.phase == Phase.TELL
            and node in self._nodes
            and items[0][0] >= self._next.since
        ):
            self._go_over()

    def _go_over(self) -> None:
        """Go by the new arrangement."""
        host = self._next.host
        if self.host == self._index:
            self._disband()
        if host == self._index:
            self._gather()
        if host is None:
            self.judge.spread()
        self.host = host
        for window in self._windows:
            window.open(
                forwards_to=None if host == self._index else host, is_host=host == self._index
            )
        self._say(self._said._replace(phase=Phase.OPEN, wishes=False))

    def _say(self, said: Said) -> None:
        self._said = self._outbox.said[self.region.rank] = said

    def _wish(self, host: int | None) -> None:
        """Wish for another host."""
        said = self._said
        if said.phase >= Phase.OPEN and not (said.wishes and said.wish == host):
            self._say(said._replace(wishes=True, wish=host))

    def _passed(self, items: int, replays: int) -> None:
        """A window has seen elements pass."""
        if self.host is None and self.judge.passed(items, replays):
            self._wish(self._index)

    # The host.

    def _gather(self) -> None:
        graph, diverts = self._dataflow.layout.graph, self._dataflow.layout.diverts
        for node, rows_node in self.region.rows.items():
            own = self._dataflow.machines.stateful[node]
            assert isinstance(own, AccessMachine)
            machine = AccessMachine(graph, own.node, diverts=diverts)
            guests = Guests(
                node, rows_node, machine, own, self._outbox, self._routes.owner_of(node)
            )
            self._guests[node] = guests
            self._swap(node, machine)
        self._routes.keep(self._nodes, here=True)
        self._cycle.fetch_by(self)

    def _disband(self) -> None:
        """The owners have everything: nothing below the moment is in flight."""
        for node, guests in self._guests.items():
            own = self._dataflow.machines.stateful[node]
            own.replays += guests.machine.replays
            assert isinstance(own, AccessMachine)
            self._swap(node, own)
        self._guests = {}
        self._cycle.fetch_by(None)
        self._settled_below = BEFORE_ALL
        self._routes.keep(self._nodes, here=False)

    def _swap(self, node: int, machine: AccessMachine) -> None:
        self._dataflow.use(node, machine)
        self._cycle.use(node, machine)
        for window in self._windows:
            window.use(node, machine)

    def _process(
        self, node: int, items: list[FlatItem], failed: list[FlatItem]
    ) -> list[list[FlatItem]]:
        guests = self._guests.get(node)
        return (self._own_process[node] if guests is None else guests.process)(items, failed)

    def expect(self, node: int, items: list[FlatItem]) -> None:
        """Items will come to a node of the region: ask for the rows that they need."""
        guests = self._guests.get(node)
        if guests is not None:
            guests.expect(items)

    @property
    def awaited_from(self) -> Moment:
        """The least global time of what waits for a row that is not here yet, if the region waits with it."""
        if not self.judge.waits:
            return AFTER_ALL
        return min([guests.awaited_from for guests in self._guests.values()], default=AFTER_ALL)

    def receive(self, node: int, items: list[FlatItem]) -> None:
        """What has come for the rows of a state: from the host to an owner, or back."""
        own = self._dataflow.machines.stateful[node]
        assert isinstance(own, AccessMachine)
        rows_node = self.region.rows[node]
        versions: list[FlatItem] = []
        for item in items:
            place, _, (kind, key, content) = item
            if kind == ASK:
                take_versions(own, versions)
                versions = []
                row = (place, 0, (ROW, key, row_of(own, key)))
                self._outbox.post(content, rows_node, [row])
            elif kind == ROW:
                if taken := self._guests[node].arrive(key, content):
                    self._cycle.run_now(node, taken)
                self._cycle.wake()
            else:
                versions.append(item)
        take_versions(own, versions)

    def progress(self, frontier: Moment) -> None:
        """Nothing below the frontier can arrive at the region any more."""
        if not self._guests or frontier <= self._settled_below:
            return
        self._settled_below = frontier
        items = fetched = rows = 0
        for guests in self._guests.values():
            guests.settle(frontier, _ROWS_KEPT)
            items += guests.items
            fetched += guests.fetched
            rows += guests.rows
            guests.items = guests.fetched = 0
        if frontier < AFTER_ALL and not self.judge.hosted(items, fetched, rows):
            self._wish(None)

    def settle(self) -> None:
        """At the end of an event: a frame stands for the versions that are not final."""
        leasts = [guests.least for guests in self._guests.values() if guests.least is not None]
        least = min(leasts) if leasts else None
        frame = self._frame
        if frame is not None:
            if frame.least == least:
                return
            self._outbox.finish([frame])
            self._frame = None
        if least is not None:
            self._frame = self._outbox.hold_frame(2 * self._stage + 1, least)
            self._outbox.hold(self._frame)

    @property
    def stage(self) -> int:
        return self._stage

    def held(self) -> list[Frame]:
        return [frame for guests in self._guests.values() for frame in guests.held()]

    @property
    def replays(self) -> int:
        """What was computed again here for others."""
        return sum(guests.machine.replays for guests in self._guests.values())
