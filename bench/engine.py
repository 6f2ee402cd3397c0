"""The engine in one process: the cost of order, replay and finality, against a plain Python loop.

    python bench/engine.py [--elements 1000000]

One worker, one acker, batches of elements in, bundles of final output out; no network and no
serialization. The plain loop does the same work on a dict and keeps its output. It is timed in the
same run, before and after, because the machine's speed varies. 'late' elements arrive up to that
many positions too late; a batch has 1,000. 'replay ratio' is the number of items that arrived at
the barrier per item released.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker

VOCABULARY = 50_000
BATCH = 1_000
LATE_MAX = (100, 2_000)
#: Of a window that closes: about as many elements as it has.
WINDOW = 10_000


def zipf_words(count: int, seed: int = 1) -> list[str]:
    """Words by Zipf's law with exponent 1.1."""
    weights = list(accumulate(1 / rank**1.1 for rank in range(1, VOCABULARY + 1)))
    words = [f"word-{rank}" for rank in range(VOCABULARY)]
    return Random(seed).choices(words, cum_weights=weights, k=count)


def count_flow() -> ef.Flow:
    flow = ef.Flow("running count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


def postings_flow() -> ef.Flow:
    flow = ef.Flow("posting lists")
    flow.front("words").key_by(lambda word: word).fold(
        initial=ef.PersistentList(), combine=lambda postings, word: postings.append(word)
    ).map(len).sink("lengths")
    return flow


def group_flow() -> ef.Flow:
    flow = ef.Flow("window 3")
    numbered = flow.front("words").with_time()  # otherwise all payloads of a key would be equal
    numbered.key_by(lambda timed: timed.payload).group(window=3).sink("tuples")
    return flow


def windows_flow() -> ef.Flow:
    flow = ef.Flow("windows that close")
    words = flow.front("words").key_by(lambda word: word)
    words.window(ef.Tumbling(WINDOW), emit="close").count().sink("counts")
    return flow


def plain_count(words: list[str]) -> list[Any]:
    counts: dict[str, int] = {}
    output = []
    for word in words:
        counts[word] = count = counts.get(word, 0) + 1
        output.append((word, count))
    return output


def plain_postings(words: list[str]) -> list[Any]:
    postings: dict[str, list[str]] = {}
    output = []
    for word in words:
        held = postings.setdefault(word, [])
        held.append(word)
        output.append(len(held))
    return output


def plain_group(words: list[str]) -> list[Any]:
    buckets: dict[str, list[tuple[int, str]]] = {}
    output = []
    for number, word in enumerate(words):
        bucket = buckets.setdefault(word, [])
        bucket.append((number, word))
        del bucket[:-3]
        output.append(tuple(bucket))
    return output


def plain_windows(words: list[str]) -> list[Any]:
    output: list[Any] = []
    for start in range(0, len(words), WINDOW):
        window, counts = ef.Window(start, start + WINDOW), dict[str, int]()
        for word in words[start : start + WINDOW]:
            counts[word] = counts.get(word, 0) + 1
        output += [ef.WindowResult(word, window, count) for word, count in counts.items()]
    return output


def arrivals(
    words: list[str], late_share: float, late_max: int = 0, seed: int = 2
) -> list[tuple[Moment, str]]:
    """The elements in the order of arrival: some come later than their time says.

    They are made in that order too, as a source makes what it reads. If they lay in memory in the order of
    their times, reading late ones would be slower by a tenth of what the engine takes for them.
    """
    elements = [((time_, 0), word) for time_, word in enumerate(words)]
    if not late_share:
        return elements
    random = Random(seed)
    keys = [
        number + (random.uniform(1, late_max) if random.random() < late_share else 0)
        for number in range(len(elements))
    ]
    order = sorted(range(len(elements)), key=keys.__getitem__)
    return [((number + 0, 0), words[number]) for number in order]  # a sum is a new number


def batches(
    elements: list[tuple[Moment, str]],
) -> Iterator[tuple[list[tuple[Moment, str]], Moment]]:
    """Batches, each with the promise that holds after it."""
    least = AFTER_ALL
    promises = [AFTER_ALL] * (len(elements) + 1)
    for number in range(len(elements) - 1, -1, -1):
        least = promises[number] = min(least, elements[number][0])
    for start in range(0, len(elements), BATCH):
        end = min(start + BATCH, len(elements))
        yield elements[start:end], promises[end]


class Run:
    """A flow on one worker, fed batch by batch."""

    def __init__(self, flow: ef.Flow) -> None:
        graph = flow.graph()
        self.worker = Worker(Layout(graph), 0, 1)
        self.acker = Acker(workers=1, fronts=[0])
        self.front = next(iter(graph.fronts.values())).id
        self.output: list[Any] = []

    def feed(self, elements: list[tuple[Moment, str]], *, ends: bool = True) -> float:
        """Seconds for all of it, from the first element in to the last output out."""
        prepared = list(batches(elements))
        if not ends:  # more will follow, so the promise is not final
            prepared[-1] = (prepared[-1][0], (elements[-1][0][0] + 1, 0))
        worker, acker, output = self.worker, self.acker, self.output
        gc.collect()
        gc.freeze()  # as a worker process does: long-lived objects are not scanned again
        gc.set_threshold(100_000, 20, 100)
        begin = time.perf_counter()
        for batch, promise in prepared:
            effects = worker.enter(self.front, batch, {0: promise})
            while effects.ack:  # a node that was patient goes on, and acks that
                effects = worker.progress(acker.receive(effects.ack))
                for bundle in effects.bundles:
                    output.extend([payload for _, _, payload in bundle.items])
            worker.tidy()
        seconds = time.perf_counter() - begin
        gc.set_threshold(700, 10, 10)
        gc.unfreeze()
        return seconds


def timed(function: Callable[[list[str]], list[Any]], words: list[str]) -> float:
    gc.collect()
    begin = time.perf_counter()
    function(words)
    return time.perf_counter() - begin


def table(count: int) -> None:
    words = zipf_words(count)
    print(f"{'':28}{'elements/s':>12}{'of plain loop':>15}{'of in order':>13}{'replay ratio':>14}")
    for name, make, plain in (
        ("running count", count_flow, plain_count),
        ("growing posting list", postings_flow, plain_postings),
        ("grouping, window 3", group_flow, plain_group),
        ("tumbling window, on close", windows_flow, plain_windows),
    ):
        before = timed(plain, words)
        in_order = 0.0
        cases = [(0.0, 0), *((share, late) for late in LATE_MAX for share in (0.01, 0.1, 0.5))]
        for share, late_max in cases:
            run = Run(make())
            seconds = run.feed(arrivals(words, share, late_max))
            in_order = in_order or seconds
            assert run.output == plain(words), "the engine's output is the loop's"
            statistics = run.worker.statistics()
            label = name if not share else f"  {share:.0%} late by up to {late_max:,}"
            print(
                f"{label:28}{count / seconds:>12,.0f}{before / seconds:>15.2f}"
                f"{in_order / seconds:>13.2f}{statistics.arrived / statistics.released:>14.2f}"
            )
        after = timed(plain, words)
        print(f"{'  plain loop':28}{count / before:>12,.0f} and {count / after:,.0f}")


def growth(count: int) -> None:
    """The rate of each quarter, and how much memory grew, once all keys are known."""
    words = zipf_words(count)
    run = Run(count_flow())
    elements = arrivals(words, 0.0)
    print(
        f"\n{'running count, by quarters':28}{'elements/s':>12}{'bucket items':>15}{'peak MiB':>12}"
    )
    quarter = count // 4
    for number in range(4):
        part = elements[number * quarter : (number + 1) * quarter]
        seconds = run.feed(part, ends=number == 3)
        run.output.clear()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        items = run.worker.statistics().bucket_items
        print(f"  quarter {number + 1:<18}{quarter / seconds:>12,.0f}{items:>15,}{peak:>12,.0f}")


def main(count: int = 1_000_000) -> None:
    table(count)
    growth(count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    main(parser.parse_args().elements)
