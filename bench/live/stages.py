"""Where the time goes: the running count through the parts of two workers, each part timed.

The same machines and messages as in a live query, in one process and one thread, connected by bytes
only: the processor time of each part per element. A live query also encrypts and moves bytes, runs
its loop, and waits.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections import defaultdict
from typing import Any

import engine
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts
from emberflow.engine.layout import Layout
from emberflow.engine.messages import Effects, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.runners.live.wire.codec import packed, unpacked_bundle, unpacked_frame
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning
from emberflow.runners.live.worker.store import Store

ELEMENTS = 300_000
WORKERS = 2
BATCH = 1_000


class Stages:
    """Two workers, an acker and a sink, and how long each was busy with what."""

    def __init__(self, flow: ef.Flow, elements: list[Any]) -> None:
        graph = flow.graph()
        layout = Layout(graph)
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.workers = [Worker(layout, index, WORKERS) for index in range(WORKERS)]
        self.acker = Acker(workers=WORKERS, fronts=[0])
        self.stores = [{sink: Store(sink, 0) for sink in graph.sinks} for _ in range(WORKERS)]
        self.inboxes: list[list[bytes]] = [[] for _ in range(WORKERS)]
        self.stored = 0
        self.messages = 0
        self.bytes_sent = 0
        ((name, front),) = graph.fronts.items()
        self.feed = Feed(name, front.id, fronts.Iterable(elements), 0, 0, credit=20_000)

    def run(self) -> None:
        told: Progress | None = None
        self.feed.start(Beginning())
        while True:
            self._enter()
            for index in range(WORKERS):
                self._deliver(index)
            if self.acker.progress != told:
                told = self.acker.progress
                self.feed.minimal_time(told.of_all())
                for index in range(WORKERS):
                    self._progress(index, told)
            elif self.feed.over and not any(self.inboxes):
                return

    def _enter(self) -> None:
        begin = time.thread_time()
        items = self.feed.take(BATCH)
        report = self.feed.report()
        took = time.thread_time()
        self.seconds["worker 0", "taking elements in"] += took - begin
        if items or report:
            effects = self.workers[0].enter_items(self.feed.node, items, report)
            self._engine(0, took)
            self._do(0, effects)

    def _deliver(self, index: int) -> None:
        messages, self.inboxes[index] = self.inboxes[index], []
        if messages:
            begin = time.thread_time()
            frames = [unpacked_frame(pickle.loads(message)) for message in messages]
            decoded = time.thread_time()
            self.seconds[f"worker {index}", "serialization"] += decoded - begin
            effects = self.workers[index].deliver(frames)
            self._engine(index, decoded)
            self._do(index, effects)

    def _progress(self, index: int, progress: Progress) -> None:
        begin = time.thread_time()
        effects = self.workers[index].progress(progress)
        self.workers[index].tidy()
        self.seconds[f"worker {index}", "barrier and trimming"] += time.thread_time() - begin
        self._do(index, effects)

    def _engine(self, index: int, begin: float) -> None:
        self.seconds[f"worker {index}", "engine and user functions"] += time.thread_time() - begin

    def _do(self, index: int, effects: Effects) -> None:
        name = f"worker {index}"
        begin = time.thread_time()
        for destination, frame in effects.frames:
            message = pickle.dumps(packed(frame), 5)
            self.messages += 1
            self.bytes_sent += len(message)
            self.inboxes[destination].append(message)
        ack = pickle.dumps(effects.ack, 5) if effects.ack else None
        for bundle in effects.bundles:
            self.stores[index][bundle.sink].add(bundle)
        waiting = [bundle for store in self.stores[index].values() if (bundle := store.next())]
        stored = [pickle.dumps(packed(bundle), 5) for bundle in waiting]
        sent = time.thread_time()
        self.seconds[name, "serialization"] += sent - begin
        if ack is not None:
            self.acker.receive(pickle.loads(ack))
        acked = time.thread_time()
        self.seconds["driver", "acks"] += acked - sent
        for message in stored:
            bundle = unpacked_bundle(pickle.loads(message))
            self.stored += len(bundle.payloads)
            self.stores[index][bundle.sink].stored()
        if stored:
            self.seconds["driver", "taking bundles"] += time.thread_time() - acked


def user_functions(words: list[str]) -> float:
    """The cost of the key function and of combining counts alone."""
    reduction = engine.count_flow().graph().reductions[0]
    key, combine = reduction.key, reduction.combine_function
    assert key is not None
    begin = time.thread_time()
    for word in words:
        key(word)
        combine(1, word)
    return time.thread_time() - begin


def measured(flow: ef.Flow, elements: list[Any], *, outputs: int = 1) -> Stages:
    """Run a flow with one front over these elements, each of which gives this many outputs."""
    stages = Stages(flow, pickle.loads(pickle.dumps(elements)))
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)  # as workers do
    try:
        stages.run()
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    due = outputs * len(elements)
    assert stages.stored == due, f"{stages.stored} of {due} are stored"
    return stages


def tell(stages: Stages, count: int) -> None:
    total: dict[str, float] = defaultdict(float)
    for (where, what), seconds in sorted(stages.seconds.items()):
        total[where] += seconds
        print(f"{f'  {where}: {what}':44}{seconds / count * 1e6:>16.2f}")
    for where, seconds in total.items():
        print(f"{f'  {where} in all':44}{seconds / count * 1e6:>16.2f}")


def main(spark: SparkSession | None = None) -> None:
    words = engine.zipf_words(ELEMENTS)
    stages = measured(engine.count_flow(), words)
    print(f"{f'where the time goes, {ELEMENTS:,} words':44}{'µs an element':>16}")
    own = user_functions(words) / ELEMENTS * 1e6
    print(f"{'  user functions, called twice, are of it':44}{own:>16.2f}")
    tell(stages, ELEMENTS)


if __name__ == "__main__":
    main()
