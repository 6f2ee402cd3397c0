"""The engine in one process: elements that come later than their times say, against the same in order."""

from __future__ import annotations

import statistics

import engine

ELEMENTS = 200_000
ROUNDS = 3
#: Which share is late, by up to how many places.
LATE = ((0.1, 2_000), (0.5, 2_000), (0.1, 20_000), (0.5, 20_000))
ASKED = 0.6


def main(*, quick: bool) -> None:
    count, rounds = (20_000, 1) if quick else (ELEMENTS, ROUNDS)
    words = engine.zipf_words(count)
    print(
        f"{f'engine, running count, {count:,} words':52}{'words/s':>12}{'of in order':>14}{'asked':>8}"
    )
    cases = {"in order": (0.0, 0)} | {
        f"{share:.0%} late by up to {most:,}": (share, most) for share, most in LATE
    }
    rates: dict[str, list[float]] = {label: [] for label in cases}
    expected = engine.plain_count(words)
    for _ in range(rounds):
        for label, (share, most) in cases.items():
            run = engine.Run(engine.count_flow())
            seconds = run.feed(engine.arrivals(words, share, most))
            assert run.output == expected
            rates[label].append(count / seconds)
    in_order = statistics.median(rates["in order"])
    for label, own in rates.items():
        rate = statistics.median(own)
        asked = "" if label == "in order" else f"{ASKED:.1f}"
        print(f"  {label:50}{rate:>12,.0f}{rate / in_order:>14.2f}{asked:>8}", flush=True)
