"""Patience: a stateful node that computed too early lately waits until its input is complete.

Output of time t leaves when nothing below t can come any more, whether t was computed early or not. So
a node that waits until its own input is complete up to t delays nothing by more than a way to the acker
and back. A node that computes at once, *eagerly*, and is wrong recomputes everything behind the item
that came late, and everybody behind it does the same. Eager is right while items come in order. Where
they do not (a source with several partitions, rows out of order), patience is.

What is guaranteed: **no output depends on it.** Patience decides when a machine sees an item, and a
machine gives the same for every order of arrival. What a node holds is in flight: the worker acks it as
a frame that it sends to itself, so the minimal time does not pass it.

**Frontiers.** A node is at a *stage*: the number of stateful units that are ahead of it at the most
(`layout`). The frontier of a stage is the time below which nothing will arrive at its nodes any more
(`progress.acker`). What is held at a stage can only reach later stages, so it does not hold back the
frontier of its own. A node that is patient computes what is below the frontier: in order, once.

**Who decides.** The node itself, all the time, by what it sees: `Adaptive`. An eager node counts what
it computed and what it had to compute again. A patient one counts what would have come too late: items
below one that had come before them. A node that becomes patient takes back what it has computed too
early, once: otherwise it would compute that again with every batch that comes below. There is nothing
to configure. Tests and the simulation take other judges; the output must be the same. A machine with
ticks is always patient, and gets told the frontier: what it has scheduled waits for it as well
(`machines.ticking`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from emberflow.engine.layout import Layout, Stateful
from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.machines.ticking import TickingMachine
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Frame, Moment, Progress
from emberflow.engine.speculation.gathering import AdaptiveGathering, GatheringJudge
from emberflow.engine.speculation.hold import Hold
from emberflow.engine.speculation.judge import Adaptive, Judge, Stubborn
from emberflow.engine.speculation.window import AdaptiveWindow, Window, WindowJudge
from emberflow.graph.transactions import Open
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)


class Judges(NamedTuple):
    """What makes the judges of a worker: one for each stateful node, one for each window, and one for each
    region that may be gathered."""

    node: Callable[[], Judge] = Adaptive
    window: Callable[[], WindowJudge] = AdaptiveWindow
    gathering: Callable[[], GatheringJudge] = AdaptiveGathering


DEFAULT_JUDGES = Judges()


class Stop:
    """A stateful node on one worker: where items may wait."""

    __slots__ = ("frame", "hold", "judge", "latest", "machine", "node", "stage", "ticking")

    def __init__(self, node: int, stage: int, machine: Stateful, judge: Judge) -> None:
        self.node = node
        self.stage = stage
        self.machine = machine
        #: The machine, if it has ticks.
        self.ticking = machine if isinstance(machine, TickingMachine) else None
        self.judge = judge
        self.hold = Hold()
        #: The greatest place that has come while it was patient.
        self.latest: Place = ()
        #: What stands for the held items at the acker.
        self.frame: Frame | None = None

    @property
    def least(self) -> Moment | None:
        """The least global time that waits here."""
        held = self.hold.least
        tick = None if self.ticking is None else self.ticking.ticks.least
        if held is None or tick is None:
            return tick if held is None else held
        return min(held, tick)

    def items(self) -> list[FlatItem]:
        """All that waits here."""
        return self.hold.items() + ([] if self.ticking is None else self.ticking.ticks.all())


class Patience:
    """The stops of one worker.

    ``compute`` runs a node on items, ``forward`` sends items to a worker for a node. ``hold_frame`` makes a
    frame, without items, that stands at the acker for what a stage holds from a time on.
    """

    def __init__(
        self,
        layout: Layout,
        stateful: dict[int, Stateful],
        compute: Callable[[int, list[FlatItem]], None],
        forward: Callable[[int, int, list[FlatItem]], None],
        hold_frame: Callable[[int, Moment, int], Frame],
        finish: Callable[[list[Frame]], None],
        items_of: Mapping[int, int],
        judges: Judges,
        owned: Container[int] = (),
        worker: int = 0,
        *,
        is_alone: bool,
    ) -> None:
        """``owned`` are the nodes whose items concern the keys of one ``worker`` alone (`worker.ranges`).
        ``is_alone``: there is one worker, whose regions run in order by themselves (`regions`)."""
        self._owned = owned
        self._worker = worker
        self._compute = compute
        self._forward = forward
        self._hold_frame = hold_frame
        self._finish = finish
        #: In topological order: what one of them lets go may reach the next.
        self._stops = {
            node: Stop(
                node,
                layout.stage[node],
                stateful[node],
                Stubborn(patient=True)
                if isinstance(stateful[node], TickingMachine)
                else judges.node(),
            )
            for node in sorted(stateful, key=layout.rank.__getitem__)
            if not layout.units[layout.rank[node]].is_region
        }
        #: Where transactions open.
        self._windows = {
            node: Window(
                node,
                (layout.stage[node], layout.stage[region]),
                {own: stateful[own] for own in states},
                items_of,
                judges.window(),
                judges.node(),
            )
            for node, region, states in _openings(layout, stateful)
            if not is_alone
        }
        self._progress = Progress(BEFORE_ALL, ())
        #: The time that items were held, all together.
        self.buffered = 0.0

    def run(self, node: int, items: list[FlatItem]) -> None:
        """Run a node on items that came for it, now or later."""
        stop = self._stops.get(node)
        if stop is None:
            window = self._windows.get(node)
            if window is not None:
                stage, own = window.stage, window.own_stage
                items = window.add(items, self.frontier(stage), self.frontier(own))
                self._let_go(window, items)
            else:
                self._compute(node, items)
        elif stop.judge.patient or stop.hold.count:
            self._wait(stop, items)
        else:
            machine = stop.machine
            before = machine.replays
            self._compute(node, items)
            self._judge(stop, items, machine.replays - before)

    def _judge(self, stop: Stop, items: list[FlatItem], replays: int) -> None:
        """An eager node has computed these items, and so many others again."""
        stop.judge.computed(len(items), replays)
        if stop.judge.patient:
            early = stop.machine.computed_from(min(map(_place_of, items)))
            if early:
                self._take_back(stop, early)

    def _take_back(self, stop: Stop, early: list[FlatItem]) -> None:
        """Hold what a node has computed too early: all above an item that this event has brought.

        The event is not acked yet, so the acker has not passed that item, and nothing from there on
        is final.
        """
        self._compute(stop.node, [(place, mark | 1, payload) for place, mark, payload in early])
        stop.hold.add(early)
        stop.latest = max(stop.latest, early[-1][0])
        self._go_on(stop)

    def _wait(self, stop: Stop, items: list[FlatItem]) -> None:
        batch = list(items)
        sort_by_place(batch)
        late = bisect_left(batch, stop.latest, key=_place_of)
        stop.judge.arrived(len(batch), late)
        stop.latest = max(stop.latest, batch[-1][0])
        stop.hold.add(batch)
        self._go_on(stop)

    def _go_on(self, stop: Stop) -> None:
        """Compute what is complete; everything, if the node is eager again."""
        frontier = self._frontier_at(stop) if stop.judge.patient else AFTER_ALL
        due = stop.hold.take(frontier)
        if stop.ticking is not None:
            stop.ticking.frontier = frontier
        if due or _is_due(stop.ticking, frontier):
            self._compute(stop.node, due)

    def frontier(self, stage: int) -> Moment:
        """Nothing below this can arrive at a stage any more."""
        turn = self._progress.turn_of(stage)
        return turn[0], turn[1]

    def _frontier_at(self, stop: Stop) -> Moment:
        """Nothing below this can arrive at a node any more."""
        frontier = self.frontier(stop.stage)
        if stop.node in self._owned:
            return min(frontier, self._progress.own_turn_of(self._worker, stop.stage))
        return frontier

    def progress(self, progress: Progress) -> None:
        """Frontiers have moved: nodes go on with what is complete."""
        self._progress = progress
        for stop in self._stops.values():
            if stop.hold.count or stop.ticking is not None:
                self._go_on(stop)
        for window in self._windows.values():
            due = window.due(self.frontier(window.stage), self.frontier(window.own_stage))
            self._let_go(window, due)

    def _let_go(self, window: Window, items: list[FlatItem]) -> None:
        """Items leave a window: into the region, or to the worker that computes all of it."""
        if not items:
            return
        if window.forwards_to is None:
            self._compute(window.node, items)
        else:
            self._forward(window.forwards_to, window.node, items)

    def windows(self, nodes: Iterable[int]) -> list[Window]:
        """Those at these nodes."""
        return [self._windows[node] for node in nodes]

    def settle(self, hold: Callable[[Frame], None]) -> None:
        """At the end of an event: the frame of each stop stands for what it holds now."""
        for stop in self._stops.values():
            if stop.hold.count or stop.frame is not None or stop.ticking is not None:
                self._settle(stop, stop.least, 2 * stop.stage + 1, hold)
        for window in self._windows.values():
            window.note_event()
            if window.hold.count or window.frame is not None:
                self._settle(window, window.hold.least, window.level, hold)

    def _settle(
        self,
        stop: Stop | Window,
        least: Moment | None,
        level: int,
        hold: Callable[[Frame], None],
    ) -> None:
        frame = stop.frame
        if frame is not None:
            if frame.least == least and frame.level == level:
                return
            if frame.least_own is not None and frame.least_own == least:
                return  # a node with a range of its own keeps its level
            self._finish([frame])
            stop.frame = None
        if least is not None:
            stop.frame = self._hold_frame(level, least, stop.node)
            hold(stop.frame)

    def held(self) -> list[Frame]:
        """What is held, as frames with their items: for those who look at it."""
        waiting: list[tuple[Stop | Window, list[FlatItem]]] = [
            *((stop, stop.items()) for stop in self._stops.values()),
            *((window, window.hold.items()) for window in self._windows.values()),
        ]
        return [
            stop.frame._replace(parts=((stop.node, items),))
            for stop, items in waiting
            if stop.frame is not None
        ]

    def pass_time(self, elapsed: float) -> None:
        """Count the time that what is held has waited since the last call (Little's law)."""
        self.buffered += elapsed * self.held_items

    @property
    def held_items(self) -> int:
        return sum(stop.hold.count for stop in self._stops.values())

    def held_at(self) -> dict[int, int]:
        """By node: how many items wait there until its input is complete."""
        return {node: stop.hold.count for node, stop in self._stops.items()} | {
            node: window.hold.count for node, window in self._windows.items()
        }

    @property
    def patient_nodes(self) -> int:
        return sum(stop.judge.patient for stop in self._stops.values())


def _is_due(ticking: TickingMachine | None, frontier: Moment) -> bool:
    tick = None if ticking is None else ticking.ticks.least
    return tick is not None and tick < frontier


def _openings(
    layout: Layout, stateful: dict[int, Stateful]
) -> Iterator[tuple[int, int, list[int]]]:
    """The nodes where transactions open that end in a region: the node, a node of the region, and the
    stateful nodes of the region."""
    for node in layout.graph.nodes:
        if not isinstance(node, Open) or layout.units[layout.rank[node.id]].is_region:
            continue
        behind, seen = list(layout.readers[node.id]), set[int]()
        while behind:
            reader = behind.pop()
            if reader in seen or reader not in layout.rank:
                continue
            seen.add(reader)
            unit = layout.units[layout.rank[reader]]
            if unit.is_region:
                yield node.id, reader, [own for own in unit.nodes if own in stateful]
                break
            if reader not in stateful:
                behind += layout.readers[reader]
