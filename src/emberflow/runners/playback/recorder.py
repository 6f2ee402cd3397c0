"""The recorder: everything that the workers of a simulated run compute, take back and release.

What is guaranteed: of each sink, **what was released is what arrived less what was taken back**, and
it is the run's output. A recorder changes nothing: the run has the same trace with and without one.

How: a recorder wraps the machines of a worker (`Worker.machines`) and its barriers (`Worker.barriers`)
before the run begins. A run without a recorder has the plain ones, and pays nothing.

A reader wants the steps as the user wrote them, so a composed operator is one step: of a node within
it only that is recorded which leaves it. Merges and broadcasts pass on what they get, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from emberflow.engine.layout import Layout
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.messages import Frame, Moment, Progress
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK
from emberflow.graph.nodes import Broadcast, Front, Group, Merge, Sink
from emberflow.graph.transactions import Close, State
from emberflow.values.item import FlatItem, Place

#: An item was computed (or, at a sink, arrived), was taken back, or left a barrier for good.
Kind: TypeAlias = Literal["computed", "taken back", "released"]
Role: TypeAlias = Literal["front", "step", "state", "sink"]


class Step(NamedTuple):
    """A step as the user wrote it: a column of the page."""

    name: str
    role: Role


class Event(NamedTuple):
    """Something that happened to an item. ``item`` tells the items of a recording apart."""

    tick: int
    kind: Kind
    worker: int
    step: int
    item: int
    place: Place
    payload: Any


class Hop(NamedTuple):
    """Items on their way from one worker to another."""

    sent: int
    received: int
    source: int
    destination: int
    #: The steps that they come from and are for.
    origin: int
    step: int
    items: int
    tombstones: int


@dataclass(slots=True)
class Recording:
    """What happened in a run, in the order in which it happened."""

    flow: str
    workers: int
    steps: list[Step] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    #: When the minimal time became known to the acker, and what it was.
    minimal_times: list[tuple[int, Moment]] = field(default_factory=list)

    def of(self, sink: str, kind: Kind) -> list[Event]:
        """The events of one kind at a sink."""
        step = self.steps.index(Step(sink, "sink"))
        return [event for event in self.events if event.step == step and event.kind == kind]


class Recorder:
    """Listens to the workers of one run. ``clock`` gives the simulated time."""

    def __init__(self, layout: Layout, workers: int, clock: Callable[[], int]) -> None:
        self.recording = Recording(layout.graph.flow, workers)
        self._layout = layout
        self._clock = clock
        self._scopes = {node: _scope_of(layout, node) for node in layout.nodes}
        #: By node: the number of its step; none for merges and broadcasts.
        self._steps: dict[int, int] = {}
        #: The items that stand, by worker, step, place and trace.
        self._standing: dict[tuple[int, int, Place, int], list[int]] = {}
        self._items = 0
        self._find_steps()
        #: By step: those that it reads from.
        self._sources: dict[int, set[int]] = {}
        for node, step in self._steps.items():
            for reader in layout.readers.get(node, ()):
                behind = self._step_behind(reader)
                if behind is not None and behind != step:
                    self._sources.setdefault(behind, set()).add(step)

    def _find_steps(self) -> None:
        layout, steps = self._layout, self.recording.steps
        numbers: dict[str, int] = {}
        # Fronts on the left and sinks on the right, everything else as it was written.
        for node in sorted(layout.nodes, key=lambda node: (_column(layout, node), node)):
            role = self._role(node)
            scope = self._scopes[node]
            if role is None or not (role == "sink" or self._leaves(node)):
                continue
            identity = f"{role == 'sink'} {scope}"
            if identity not in numbers:
                numbers[identity] = len(steps)
                steps.append(Step(scope, role))
            elif role == "state":
                steps[numbers[identity]] = Step(scope, role)
            self._steps[node] = numbers[identity]
        if layout.diverts:
            self._steps[layout.failures] = len(steps)
            steps.append(Step(ERRORS_SINK, "sink"))

    def _role(self, node: int) -> Role | None:
        one = self._layout.graph.nodes[node]
        if isinstance(one, Front):
            return "front"
        if isinstance(one, Sink):
            return "sink"
        if node in self._layout.fused or isinstance(one, Group | State | Close):
            return "state"
        if isinstance(one, Merge | Broadcast) and "/" not in one.name:
            return None
        return "step"

    def _leaves(self, node: int) -> bool:
        """Whether something goes from a node to another step."""
        scope = self._scopes[node]
        return any(self._scopes[reader] != scope for reader in self._layout.readers[node])

    def attach(self, worker: Worker) -> None:
        """Listen to a worker, before the run begins."""
        process = worker.machines.process
        for node in self._layout.nodes:
            if node in process and node in self._steps:
                process[node] = partial(self._processed, worker.index, node, process[node])
        for node, step in self._steps.items():
            held = worker.barriers.get(node, {})
            for partition in held:
                held[partition] = _RecordedBarrier(partial(self._note, worker.index, step))

    def _processed(
        self,
        worker: int,
        node: int,
        process: Callable[[list[FlatItem], list[FlatItem]], list[list[FlatItem]]],
        items: list[FlatItem],
        failed: list[FlatItem],
    ) -> list[list[FlatItem]]:
        outputs = process(items, failed)
        scope, scopes = self._scopes[node], self._scopes
        for reader, output in zip(self._layout.readers[node], outputs, strict=True):
            if scopes[reader] != scope:
                for item in output:
                    kind: Kind = "taken back" if item[1] & 1 else "computed"
                    self._note(worker, self._steps[node], kind, item)
        return outputs

    def _note(self, worker: int, step: int, kind: Kind, item: FlatItem) -> None:
        place, mark, payload = item
        standing = self._standing.setdefault((worker, step, place, mark >> 1), [])
        if kind == "computed":
            standing.append(self._items)
            self._items += 1
        number = standing[-1] if kind == "computed" else standing.pop()
        event = Event(self._clock(), kind, worker, step, number, place, payload)
        self.recording.events.append(event)

    # Called by the simulation.

    def hop(self, destination: int, frame: Frame, sent: int) -> None:
        """A frame that was sent at a tick has arrived."""
        for node, items in frame.parts:
            step = self._step_behind(node)
            if step is not None:
                tombstones = sum(mark & 1 for _, mark, _ in items)
                hop = Hop(
                    sent,
                    self._clock(),
                    frame.sender,
                    destination,
                    self._origin(frame.sender, step, sent),
                    step,
                    len(items),
                    tombstones,
                )
                self.recording.hops.append(hop)

    def _origin(self, worker: int, step: int, sent: int) -> int:
        """Of the steps that one reads from, that which a worker ran last when it sent something."""
        sources = self._sources.get(step, set())
        before: list[int] = [
            event.step
            for event in self.recording.events
            if event.tick <= sent and event.worker == worker and event.step in sources
        ]
        return before[-1] if before else min(sources, default=step)

    def _step_behind(self, node: int) -> int | None:
        """The step that a node belongs to, or the first one that it leads to."""
        seen: set[int] = set()
        while node not in self._steps and node in self._layout.readers and node not in seen:
            seen.add(node)
            readers = self._layout.readers[node]
            if not readers:
                break
            node = readers[0]
        return self._steps.get(node)

    def progress(self, progress: Progress) -> None:
        minimal: Moment = progress.of_all()
        times = self.recording.minimal_times
        if not times or times[-1][1] != minimal:
            times.append((self._clock(), minimal))


class _RecordedBarrier(Barrier):
    """A barrier that tells what arrives and what leaves."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[Kind, FlatItem], None]) -> None:
        super().__init__()
        self._note = note

    def arrive(self, items: list[FlatItem]) -> None:
        for item in items:
            self._note("taken back" if item[1] & 1 else "computed", item)
        super().arrive(items)

    def release(self, minimal: Moment) -> list[FlatItem]:
        released = super().release(minimal)
        for item in released:
            self._note("released", item)
        return released


def _scope_of(layout: Layout, node: int) -> str:
    """The step that the user wrote: the outermost scope of a node, or the node itself."""
    one = layout.graph.nodes[node]
    return one.name.partition("/")[0] if one.__class__ not in (Front, Sink) else one.name


def _column(layout: Layout, node: int) -> int:
    one = layout.graph.nodes[node]
    return 0 if isinstance(one, Front) else 2 if isinstance(one, Sink) else 1
