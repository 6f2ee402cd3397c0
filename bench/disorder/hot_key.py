"""One hot key: windows and joins that hold thousands of payloads cost as much for each as for the first.

Plain Python does the same with a list. A payload costs the same, however many its key has: so twice as
many elements take twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import engine

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL

COUNTS = (20_000, 40_000)


def collecting(count: int) -> ef.Flow:
    flow = ef.Flow("collect")
    windows = flow.front("words").key_by(lambda word: 0).window(ef.Tumbling(count), emit="close")
    windows.collect().map(lambda result: len(result.value)).sink("lengths")
    return flow


def joining(count: int) -> ef.Flow:
    """Every hundredth payload pairs with the last ten of the others."""
    flow = ef.Flow("join")
    words = flow.front("words").with_time()
    rare = words.filter(lambda timed: timed.time % 100 == 0).key_by(lambda timed: 0)
    all_of_them = words.key_by(lambda timed: 0)
    pairs = rare.join(all_of_them, lambda one, other: one.time - other.time, within=(-10, 0))
    wide = rare.join(rare, lambda one, other: one.time - other.time, within=(-count, -count))
    ef.merge(pairs, wide).sink("pairs")
    return flow


def seconds(flow: Callable[[int], ef.Flow], count: int) -> float:
    words = engine.zipf_words(count)
    run = engine.Run(flow(count))
    begin = time.perf_counter()
    run.feed(engine.arrivals(words, 0.0), ends=True)
    assert run.acker.progress.of_all() == AFTER_ALL
    return time.perf_counter() - begin


def main(*, quick: bool) -> None:
    counts = (2_000, 4_000) if quick else COUNTS
    print(
        f"{'one hot key, seconds':40}{f'{counts[0]:,}':>12}{f'{counts[1]:,}':>12}{'times':>8}{'asked':>8}"
    )
    flows: dict[str, Callable[[int], Any]] = {
        'window(emit="close").collect()': collecting,
        "join(within=)": joining,
    }
    for label, flow in flows.items():
        few, many = (seconds(flow, count) for count in counts)
        print(f"  {label:38}{few:>12.2f}{many:>12.2f}{many / few:>8.1f}{'2':>8}", flush=True)
