"""The query that is measured: the running count of Zipf words, from workers to workers.

The front has `PARTITIONS` partitions and so has the sink, whatever the number of workers: so it is the same
query over the same input, and each worker reads and stores its share. Elements have times of arrival. The
sink is on the workers and only counts, so that no payload goes through the driver. A window of some
seconds is looked at, in the middle of a run. *Processor time* is that of all threads of a process, by the
kernel's count (/proc), which counts in steps of 10 ms.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import engine
from live.waiting import until
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from scaling import tap

PARTITIONS = 8
#: The words of a partition, which it repeats.
CYCLE = 100_000
#: Elements that are given at once by a front that never waits.
BATCH = 1_000
WARM_SECONDS, SECONDS = 3.0, 6.0
#: A front gives what is due so often.
_STEP_SECONDS = 0.004
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class Words:
    """Words at a rate over all partitions, or as fast as they are taken, for some seconds."""

    arrival = True
    partitions = PARTITIONS

    def __init__(self, rate: float | None, seconds: float) -> None:
        self._rate, self._seconds = rate, seconds

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        raise NotImplementedError  # batches are read

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        words = cycle(engine.zipf_words(CYCLE, seed=partition))
        begin = time.monotonic()
        given = 0
        while (passed := time.monotonic() - begin) < self._seconds:
            if self._rate is None:
                due = given + BATCH
            else:
                due = int(passed * self._rate / self.partitions)
            if due > given:
                yield fronts.Batch(range(given, due), list(islice(words, due - given)))
                given = due
            if self._rate is not None:
                time.sleep(_STEP_SECONDS)


class Counting:
    """A sink on the workers that counts. Its first writer makes its process count what it sends."""

    def __init__(self, folder: Path, begun: Callable[[], None] | None = None) -> None:
        self._folder, self._begun = folder, begun

    def open(self, partition: int) -> _Count:
        return _Count(self.open_group([partition]))

    def open_group(self, partitions: Sequence[int]) -> _Counts:
        if self._begun is not None:
            self._begun()
        return _Counts(partitions, tap.tapped(self._folder))


class _Counts:
    def __init__(self, partitions: Sequence[int], own: tap.Tap) -> None:
        self._partitions, self._tap = partitions, own

    def lasts(self) -> dict[int, Any]:
        return dict.fromkeys(self._partitions)

    def store(self, bundles: Sequence[sinks.StoredBundle]) -> None:
        self._tap.note_stored(sum(len(bundle.payloads) for bundle in bundles))

    def close(self) -> None: ...


class _Count:
    """One partition."""

    def __init__(self, group: _Counts) -> None:
        self._group = group

    def last(self) -> None: ...

    def store(self, bundle: sinks.StoredBundle) -> None:
        self._group.store([bundle])

    def close(self) -> None: ...


class Used(NamedTuple):
    """Seconds of processor time."""

    driver: float
    jvm: float
    workers: float

    @property
    def whole(self) -> float:
        return sum(self)


class Window(NamedTuple):
    """What was seen in a window of a run."""

    seconds: float
    elements: int
    used: Used
    sent: list[tap.Sent]
    replay_ratio: float
    #: Of the whole run, by percentile.
    latency_ms: dict[str, float]

    @property
    def rate(self) -> float:
        return self.elements / self.seconds

    @property
    def us(self) -> Used:
        """Microseconds an element."""
        return Used(*(1e6 * used / self.elements for used in self.used))

    @property
    def messages(self) -> float:
        """Messages an element, of all processes."""
        return sum(sum(sent.messages.values()) for sent in self.sent) / self.elements

    @property
    def bytes(self) -> float:
        return sum(sum(sent.bytes.values()) for sent in self.sent) / self.elements


def count_flow() -> ef.Flow:
    """Partitions of the sink are chosen by the word, as the counts are."""
    flow = ef.Flow("running count")
    counts = flow.front("words").key_by(lambda word: word).count()
    counts.key_by(lambda counted: counted[0]).sink("counts", partitions=PARTITIONS)
    return flow


def used() -> Used:
    """The processor time of this process, the JVM below it, and all Python processes below that, so far."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, tuple[str, int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        ticks[int(entry.name)] = name, int(fields[11]) + int(fields[12])
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    sums = {"driver": 0, "jvm": 0, "workers": 0}
    todo = [os.getpid()]
    while todo:
        process = todo.pop()
        todo += children.get(process, [])
        name, own = ticks.get(process, ("", 0))
        kind = "jvm" if name == "java" else "workers"
        sums["driver" if process == os.getpid() else kind] += own
    return Used(**{kind: own / _TICKS for kind, own in sums.items()})


def measured(
    spark: SparkSession,
    workers: int,
    rate: float | None,
    *,
    seconds: float = SECONDS,
    begun: Callable[[], None] | None = None,
) -> Window:
    """Look at a window of a run. ``begun`` is called in each worker before it begins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = (
            count_flow()
            .live(spark)
            .read(words=Words(rate, WARM_SECONDS + seconds + 1))
            .write(counts=Counting(folder, begun))
            .option("workers", workers)
            .start()
        )
        tap.tapped_driver(folder)
        try:
            until(lambda: tap.counted(folder)[0], query, nap=0.05)
            time.sleep(WARM_SECONDS)
            first = time.monotonic(), used(), *tap.counted(folder)
            time.sleep(seconds)
            last = time.monotonic(), used(), *tap.counted(folder)
            assert query.awaitTermination(120), query.status
        finally:
            query.stop()
        progress = query.lastProgress
        assert progress is not None
        return Window(
            last[0] - first[0],
            last[2] - first[2],
            Used(*(after - before for after, before in zip(last[1], first[1], strict=True))),
            [_less(after, before) for after, before in zip(last[3], first[3], strict=True)],
            progress["replayRatio"],
            progress["latencyMs"],
        )


def _less(after: tap.Sent, before: tap.Sent) -> tap.Sent:
    return tap.Sent(
        after.envelopes - before.envelopes,
        {kind: count - before.messages.get(kind, 0) for kind, count in after.messages.items()},
        {kind: count - before.bytes.get(kind, 0) for kind, count in after.bytes.items()},
    )
