"""Workers and an acker over links that move nothing by themselves: the test decides what arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Ack, Effects, Frame, Moment, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges
from emberflow.engine.worker.worker import Worker
from emberflow.graph.nodes import Graph


class FakeLink:
    """All links are FIFO. What is on them stays there until it is delivered by name."""

    def __init__(self, graph: Graph, workers: int, judges: Judges = DEFAULT_JUDGES) -> None:
        self.graph = graph
        layout = Layout(graph)
        self.workers = [Worker(layout, index, workers, judges=judges) for index in range(workers)]
        self.acker = Acker(workers=workers, fronts=[front.index for front in graph.fronts.values()])
        self.frames: dict[tuple[int, int], deque[Frame]] = {}
        self.acks: list[deque[Ack]] = [deque() for _ in range(workers)]
        self.progresses: list[deque[Progress]] = [deque() for _ in range(workers)]
        self.released: dict[tuple[str, int], list[Any]] = {}
        self.failure: Exception | None = None

    # Events.

    def enter(self, front: str, *elements: tuple[int, Any], promise: Moment | None = None) -> None:
        """Elements of a front, at the worker beside it, with the least promise that is true."""
        node = self.graph.fronts[front]
        moments = [((time, node.index), payload) for time, payload in elements]
        if promise is None:
            promise = (elements[-1][0] + 1, node.index)
        worker = node.index % len(self.workers)
        self._effects(worker, self.workers[worker].enter(node.id, moments, {node.index: promise}))

    def finish(self, front: str) -> None:
        self.enter(front, promise=AFTER_ALL)

    def deliver_frame(self, sender: int, receiver: int) -> None:
        frame = self.frames[sender, receiver].popleft()
        self._effects(receiver, self.workers[receiver].deliver([frame]))

    def deliver_ack(self, worker: int) -> None:
        before = self.acker.progress
        progress = self.acker.receive(self.acks[worker].popleft())
        if progress != before:
            for waiting in self.progresses:
                waiting.append(progress)

    def deliver_progress(self, worker: int) -> None:
        progress = self.progresses[worker].popleft()
        self._effects(worker, self.workers[worker].progress(progress))
        self.workers[worker].tidy()

    def drain(
        self, *, random: Random | None = None, stuck: frozenset[tuple[int, int]] = frozenset()
    ) -> None:
        """Deliver all that can be, in a random order or the first first. Some links may be stuck."""
        while choices := self._deliverable(stuck):
            (random.choice(choices) if random else choices[0])()

    def _deliverable(self, stuck: frozenset[tuple[int, int]]) -> list[Callable[[], None]]:
        choices: list[Callable[[], None]] = [
            lambda link=link: self.deliver_frame(*link)
            for link, frames in self.frames.items()
            if frames and link not in stuck
        ]
        for worker in range(len(self.workers)):
            if self.acks[worker]:
                choices.append(lambda worker=worker: self.deliver_ack(worker))
            if self.progresses[worker]:
                choices.append(lambda worker=worker: self.deliver_progress(worker))
        return choices

    def _effects(self, worker: int, effects: Effects) -> None:
        for receiver, frame in effects.frames:
            self.frames.setdefault((worker, receiver), deque()).append(frame)
        if effects.ack:
            self.acks[worker].append(effects.ack)
        for bundle in effects.bundles:
            self.released.setdefault((bundle.sink, bundle.partition), []).extend(
                item[-1] for item in bundle.items
            )
        self.failure = self.failure or effects.failure

    def released_to(self, sink: str) -> list[Any]:
        """What a sink of one partition has."""
        return self.released.get((sink, 0), [])


def on_fake_link(flow: ef.Flow, workers: int) -> FakeLink:
    return FakeLink(flow.graph(), workers)
