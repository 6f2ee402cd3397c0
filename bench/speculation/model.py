"""The engine's workers and its acker over a model of a cluster: a clock, processors and links.

What runs is the engine itself, with real documents. What is a model is how long things take:

- a worker does one thing at a time: `EVENT_US` for each event and `ITEM_US` for each item that an
  operation of it gets. It takes all that waits for it at once, and sends when it is done;
- a message takes `LINK_US` and a random time on top, exponential with the mean `JITTER_US`; messages
  of a link stay in order. The acker takes no time, and sends progress every `PROGRESS_US` at most;
- documents arrive at random, at a rate, and are dealt out to the workers, each of which has a front.
  The time of a document is that of its arrival. An idle front promises the present every `IDLE_US`.

Everything random is drawn from a seed, so a run gives the same figures everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Ack, Effects, Frame, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.speculation.patience import Judges
from emberflow.engine.worker.routing import front_host
from emberflow.engine.worker.worker import Worker
from emberflow.values.item import front_index
from speculation import HEADS, Figures, documents, plots

EVENT_US = 100
ITEM_US = 10
LINK_US = 200
JITTER_US = 300
PROGRESS_US = 1_000
IDLE_US = 2_000

WORKERS = (1, 2, 5, 10, 20, 50)
RATES = (50, 100, 200, 400)
#: A run lasts so long at least, and has so many documents at least.
SECONDS = 0.75
DOCUMENTS_MIN = 60
MODEL = (
    f"model: {ITEM_US} µs an item, {EVENT_US} µs an event; links {LINK_US / 1_000:g} ms "
    f"+ exponential {JITTER_US / 1_000:g} ms; progress every {PROGRESS_US / 1_000:g} ms"
)


class Cluster:
    """One run."""

    def __init__(self, flow: ef.Flow, workers: int, judges: Judges, seed: int) -> None:
        graph = flow.graph()
        layout = Layout(graph)
        (self._front,) = graph.fronts.values()
        self._random = Random(f"emberflow model {seed}")
        self._now = 0.0
        self._number = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._arrival_last: dict[tuple[str, str], float] = {}
        self._hosts = [
            _Host(self, Worker(layout, index, workers, judges=judges)) for index in range(workers)
        ]
        self._indexes = [front_index(self._front.index, 1, number) for number in range(workers)]
        self._acker = Acker(workers=workers, fronts=self._indexes)
        self._progress_sent = self._acker.progress
        self._progress_due = False
        #: By global time: when a document came, and how many of its change records are missing.
        self._missing: dict[tuple[int, int], list[float]] = {}
        self.latencies: list[float] = []

    def run(self, given: Sequence[documents.Document], rate: float) -> Figures:
        at = 0.0
        for number, document in enumerate(given):
            at += self._random.expovariate(rate / 1e6)
            self._later(at, functools.partial(self._arrive, number, document))
        for index in self._indexes:
            self._later(0.0, functools.partial(self._idle, index, at))
        while self._agenda:
            self._now, _, action = heappop(self._agenda)
            action()
        assert len(self.latencies) == len(given)
        statistics = [host.worker.statistics(sizes_too=False) for host in self._hosts]
        released = sum(worker.released for worker in statistics)
        return Figures(
            sum(worker.arrived for worker in statistics) / released,
            *documents.percentiles(self.latencies[len(given) // 10 :]),
            sum(worker.buffered for worker in statistics) / released / 1_000,
            sum(worker.waited for worker in statistics) / released / 1_000,
        )

    @property
    def now(self) -> float:
        return self._now

    def _later(self, at: float, action: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._agenda, (at, self._number, action))

    def at(self, at: float, action: Callable[[], None]) -> None:
        self._later(at, action)

    def _host_of(self, index: int) -> _Host:
        return self._hosts[front_host(index, len(self._hosts))]

    def _arrive(self, number: int, document: documents.Document) -> None:
        index = self._indexes[number % len(self._indexes)]
        moment = (int(self._now), index)
        self._missing[moment] = [self._now, len(document)]
        self._host_of(index).enter(self._front.id, moment, (number, self._now, document))

    def _idle(self, index: int, until: float) -> None:
        """A front promises the present; when all documents have come, that there will be no more."""
        over = self._now > until
        promise = AFTER_ALL if over else (int(self._now), index)
        self._host_of(index).promise(index, promise)
        if not over:
            self._later(self._now + IDLE_US, functools.partial(self._idle, index, until))

    def send(self, source: str, target: str, action: Callable[[], None]) -> None:
        delay = LINK_US + self._random.expovariate(1 / JITTER_US)
        at = max(self._now + delay, self._arrival_last.get((source, target), 0.0))
        self._arrival_last[source, target] = at
        self._later(at, action)

    def effects(self, index: int, effects: Effects) -> None:
        name = f"worker {index}"
        for destination, frame in effects.frames:
            host = self._hosts[destination]
            self.send(name, f"worker {destination}", functools.partial(host.receive, frame))
        if effects.ack:
            self.send(name, "acker", functools.partial(self._acked, effects.ack))
        for bundle in effects.bundles:
            for place, _, _ in bundle.items:
                missing = self._missing[place[0], place[1]]
                missing[1] -= 1
                if not missing[1]:
                    self.latencies.append((self._now - missing[0]) / 1_000)
        if effects.failure is not None:
            raise effects.failure

    def _acked(self, ack: Ack) -> None:
        self._acker.receive(ack)
        if not self._progress_due and self._acker.progress is not self._progress_sent:
            self._progress_due = True
            self._later(self._now + PROGRESS_US, self._tell)

    def _tell(self) -> None:
        self._progress_due = False
        self._progress_sent = progress = self._acker.progress
        for host in self._hosts:
            self.send("acker", f"worker {host.index}", functools.partial(host.hear, progress))


class _Host:
    """The processor of a worker, and what waits for it."""

    def __init__(self, cluster: Cluster, worker: Worker) -> None:
        self.worker = worker
        self.index = worker.index
        self._cluster = cluster
        self._busy = False
        self._passed_until = 0.0
        self._items = 0
        self._frames: list[Frame] = []
        self._elements: list[tuple[int, Any, Any]] = []
        self._reports: dict[int, Any] = {}
        self._progress: Progress | None = None

    def receive(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._begin()

    def enter(self, node: int, moment: tuple[int, int], payload: Any) -> None:
        self._elements.append((node, moment, payload))
        self._reports[moment[1]] = (moment[0] + 1, moment[1])
        self._begin()

    def promise(self, index: int, promise: Any) -> None:
        self._reports[index] = max(promise, self._reports.get(index, promise))
        self._begin()

    def hear(self, progress: Progress) -> None:
        self._progress = progress
        self._begin()

    def _begin(self) -> None:
        """Do all that waits, unless the processor is busy; what comes of it is sent in the end."""
        if self._busy or not (self._frames or self._reports or self._progress):
            return
        self._busy = True
        now, worker = self._cluster.now, self.worker
        worker.pass_time(now - self._passed_until)
        self._passed_until = now
        done: list[Effects] = []
        if self._frames:
            frames, self._frames = self._frames, []
            done.append(worker.deliver(frames))
        if self._progress is not None:
            progress, self._progress = self._progress, None
            done.append(worker.progress(progress))
        if self._reports:
            reports, self._reports = self._reports, {}
            elements, self._elements = self._elements, []
            node = elements[0][0] if elements else 0
            given = [(moment, payload) for _, moment, payload in elements]
            done.append(worker.enter(node, given, reports))
        worker.tidy()
        before, self._items = self._items, worker.statistics(sizes_too=False).items
        took = EVENT_US * len(done) + ITEM_US * (self._items - before)
        self._cluster.at(now + took, functools.partial(self._finish, done))

    def _finish(self, done: list[Effects]) -> None:
        self._busy = False
        for effects in done:
            self._cluster.effects(self.index, effects)
        self._begin()


def measured(given: Sequence[documents.Document], workers: int, rate: float, way: str) -> Figures:
    flow = documents.index_flow(workers)
    return Cluster(flow, workers, documents.WAYS[way], seed=workers).run(given, rate)


def main(*, quick: bool) -> None:
    kind, given = documents.given(10 if quick else int(SECONDS * max(RATES)))
    workers = (1, 3) if quick else WORKERS
    found: plots.Found = {}
    print(f"{MODEL}; {kind}")
    print(f"{'workers, documents a second, way':40}{HEADS}")
    for count in workers:
        for rate in RATES:
            own = given[: max(DOCUMENTS_MIN, int(SECONDS * rate))]
            for way in documents.WAYS:
                figures = found[count, rate, way] = measured(own, count, rate, way)
                print(f"  {f'{count}, {rate}, {way}':38}{figures.cells}", flush=True)
    if not quick:
        plots.drawn_all("model", found, f"{kind}; {MODEL}", latency_workers=(2, 5, 10))
