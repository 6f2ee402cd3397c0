"""What progress consists of: settled times, samples of latency, rates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from emberflow.engine.interface import Statistics
from emberflow.engine.messages import AFTER_ALL, Bundle, Progress
from emberflow.fronts import Iterable
from emberflow.runners.live.balance.ledger import Ledger
from emberflow.runners.live.driver.progress import Gauge, Latencies, LiveProgress
from emberflow.runners.live.wire.plan import WorkerNews
from emberflow.runners.live.worker import feed as feeding
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.store import Store
from emberflow.values.item import GlobalTime
from emberflow.values.owners import equal_owners


def bundle(*times: int) -> Bundle:
    return Bundle("out", 0, GlobalTime(times[-1], 0), [((time, 0), 0, "payload") for time in times])


def test_a_store_has_settled_up_to_the_first_item_that_is_not_stored() -> None:
    store = Store("out", 0)
    assert store.settled == AFTER_ALL
    store.add(bundle(3, 5))
    assert store.settled == (3, 0)
    assert store.next() is not None
    store.add(bundle(7))
    assert store.settled == (3, 0), "under way is not stored"
    store.stored()
    assert store.settled == (7, 0)
    assert store.next() is not None
    store.stored()
    assert store.settled == AFTER_ALL


def fed(times: list[int]) -> Feed:
    feed = Feed("numbers", 0, Iterable([]), 0, 0, 100)
    for time in times:
        feed._note_taken((time, 0), 10)
    return feed


def test_elements_are_final_below_the_minimal_time_and_settled_below_the_settled_one() -> None:
    feed = fed([1, 2, 3])
    noted: list[tuple[float, int]] = []
    feed.minimal_time((3, 0))
    assert feed.lag_ms > 0, "the element of time 3 is not final"
    feed.settled_below((2, 0), noted.append)
    assert ([count for _, count in noted], feed.settled) == ([10], 10)
    feed.minimal_time(AFTER_ALL)
    assert feed.lag_ms == 0
    feed.settled_below(AFTER_ALL, noted.append)
    assert ([count for _, count in noted], feed.settled) == ([10, 10, 10], 30)
    assert all(latency >= 0 for latency, _ in noted)


def test_samples_are_bounded_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "_SAMPLES_MAX", 3)
    feed = fed(list(range(10)))
    noted: list[tuple[float, int]] = []
    feed.settled_below((9, 0), noted.append)
    assert [count for _, count in noted] == [10, 10], "the last one stands for all that came after"
    feed.settled_below(AFTER_ALL, noted.append)
    assert feed.settled == 100


def test_percentiles_count_elements_and_not_samples() -> None:
    latencies = Latencies()
    latencies.note([(1.0, 1)] * 9 + [(100.0, 91)])
    assert latencies.percentiles() == {"p50": 100.0, "p75": 100.0, "p95": 100.0, "p99": 100.0}


def news(worker: int, **changed: Any) -> WorkerNews:
    plain = WorkerNews(
        worker=worker,
        statistics=Statistics(
            elements=10, released=20, arrived=30, items=40, buckets=2, waited=0.04, buffered=0.2
        ),
        waiting=1,
        unstored=2,
        halted=False,
        held=3,
        bucket_items=4,
        settled=5,
        latencies_ms=[],
        lag_ms=6.0 + worker,
        cpu_seconds=1.0,
        pid=1,
        chose=False,
    )
    return plain._replace(**changed)


def look(gauge: Gauge, *told: WorkerNews) -> LiveProgress:
    coordinator: Any = SimpleNamespace(
        news={one.worker: one for one in told},
        progress=Progress((9, 0), (AFTER_ALL,)),
        latencies=Latencies(),
        committer=None,
        ledger=Ledger(2),
        owners=equal_owners(2),
    )
    return gauge.look(coordinator)


def test_a_progress_sums_up_what_workers_told_and_counts_from_the_one_before() -> None:
    gauge = Gauge(id="query", runId="run", name=None)
    first = look(gauge, news(1), news(0))
    assert (first.elements, first.numInputRows, first.released) == (20, 20, 40)
    assert (first["keys"], first.bucketItems, first.heldAtBarriers) == (4, 8, 6)
    assert (first.waiting, first.unstored, first.minimalTimeLagMs) == (2, 4, 7.0)
    assert (first.minimalTime, first.replayRatio, first.loadPerWorker) == ((9, 0), 1.5, [40, 40])
    assert first.waitedMs == {"buffers": 10.0, "barriers": 2.0}
    assert first.cpuPerWorker == first.busyPerWorker == [0.0, 0.0]
    assert first.slicesPerWorker == [512, 512]
    assert first.hotKeys == []
    assert first.inputRowsPerSecond == 2 * first.processedRowsPerSecond > 0
    second = look(gauge, news(1, cpu_seconds=1.5, bucket_items=None), news(0))
    assert (second.elements, second.numInputRows, second.processedRowsPerSecond) == (20, 0, 0)
    assert second.bucketItems is None, "one of them has too many keys to look at"
    assert second.cpuPerWorker[1] > second.cpuPerWorker[0] == 0
    assert second["id"] == second.id == "query"
    with pytest.raises(AttributeError, match=r"has no 'batchId'; it has id, runId"):
        _ = second.batchId
