"""The statistics of a run match what happened."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, ClassVar

import emberflow as ef
from emberflow.engine.messages import Effects
from emberflow.engine.worker.loads import SliceLoad
from emberflow.engine.worker.worker import Worker
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import Options, Simulation, SimulationResult
from tests.effort import few
from tests.simulation.cases import Case

WORDS = [*"the quick brown fox jumps over the lazy dog and the dog barks"]


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


def simulated(flow: ef.Flow, options: Options, **elements: Any) -> SimulationResult:
    return Simulation(flow.graph(), options).run(timed_elements(flow.graph(), elements))


def test_in_order_on_one_worker_there_is_no_overhead() -> None:
    result = simulated(word_count(), Options.drawn(1, workers=1), words=WORDS)
    (worker,) = result.statistics
    assert result.overhead == 1.0
    assert worker.replays == worker.tombstones == worker.frames_sent == worker.items_sent == 0
    assert worker.elements == worker.arrived == worker.released == len(WORDS)
    assert worker.buckets == worker.bucket_items == len(set(WORDS))
    assert worker.items == sum(worker.items_of.values())
    assert worker.items_of["words"] == worker.items_of["counts"] == len(WORDS)


def test_over_random_flows_they_add_up() -> None:
    replays = 0
    for seed in range(few(60)):
        case = Case.of(200_000 + seed)
        result = case.run()
        workers = result.statistics
        outputs = sum(map(len, result.outputs.values()))
        assert len(workers) == case.options.workers
        assert sum(worker.elements for worker in workers) == sum(map(len, case.elements.values()))
        assert sum(worker.released for worker in workers) == outputs
        # An item at a barrier is released, or taken back by a tombstone, which is counted as well.
        assert sum(worker.arrived - 2 * worker.tombstones for worker in workers) == outputs
        assert result.overhead >= 1.0
        assert outputs == 0 or result.overhead == sum(w.arrived for w in workers) / outputs
        for worker in workers:
            assert worker.items == sum(worker.items_of.values())
            assert worker.buckets <= worker.bucket_items or worker.buckets == 0
        if case.options.workers == 1:
            assert sum(worker.items_sent for worker in workers) == 0
        replays += sum(worker.replays for worker in workers)
    assert replays > 0


def test_disorder_costs_replays_and_overhead() -> None:
    flow = ef.Flow("disorder")
    merged = ef.merge(flow.front("one"), flow.front("two"))
    merged.key_by(lambda _: 0).reduce(first=lambda n: n, combine=lambda a, n: 3 * a + n).sink("out")
    elements = {
        "one": [ef.At(time, time) for time in range(0, 60, 2)],
        "two": [ef.At(time, time) for time in range(1, 60, 2)],
    }
    skewed = replace(
        Options.drawn(0, workers=2), credit=1000, skew=100, pause_ticks_max=40, burst_max=3
    )
    results = [simulated(flow, replace(skewed, seed=seed), **elements) for seed in range(5)]
    assert max(result.overhead for result in results) > 1.5
    worst = max(results, key=lambda result: result.overhead)
    assert sum(worker.replays for worker in worst.statistics) > 0
    assert sum(worker.tombstones for worker in worst.statistics) > 0
    assert all(result.outputs == results[0].outputs for result in results)


def test_load_is_told_by_worker() -> None:
    """Every element crosses the network at most once, to the owner of its key."""
    result = simulated(word_count(), Options.drawn(3, workers=4), words=WORDS)
    entry, *_ = (name for name in result.statistics[0].items_of if name.endswith("pair"))
    load = [worker.items_of[entry] for worker in result.statistics]
    assert sum(load) == len(WORDS)
    assert max(load) < len(WORDS)
    assert sum(worker.items_sent for worker in result.statistics) <= 2 * len(WORDS)
    assert [worker.elements for worker in result.statistics] == [len(WORDS), 0, 0, 0]


class Weighed(Worker):
    """Samples the load of its slices, with a clock that goes on by one at each look."""

    made: ClassVar[list[Weighed]] = []

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.loads = self.weigh(partial(next, count()))
        self.reported: list[SliceLoad] = []
        Weighed.made.append(self)

    def progress(self, *given: Any) -> Effects:
        self.reported += self.loads.report().values()
        return super().progress(*given)


def test_samples_add_up_to_what_ran_and_change_nothing() -> None:
    sampled = 0
    for seed in range(few(30)):
        case = Case.out_of_order(300_000 + seed)
        plain = case.run()
        Weighed.made = []
        weighed = case.run(worker=Weighed)
        assert (weighed.trace, weighed.outputs) == (plain.trace, plain.outputs)
        for worker, statistics in zip(Weighed.made, weighed.statistics, strict=True):
            loads = worker.loads
            worker.reported += loads.report().values()
            keyed = {case.graph.nodes[node].name for node in loads.nodes}
            ran = sum(n for name, n in statistics.items_of.items() if name in keyed)
            items = sum(load.items for load in worker.reported)
            assert ran - loads.unsampled == items
            assert sum(load.replays for load in worker.reported) <= statistics.replays + 1e-6
            assert sum(load.seconds for load in worker.reported) <= items + 1e-6
            sampled += len(worker.reported)
    assert sampled > 300
