"""Cuts that nobody feels: how long a cut of many changed keys takes, and what elements wait for meanwhile.

    python bench/cuts.py [--keys 1000000] [--pairs 12]

*Many keys*: a running count on two workers, at half of the rate that it sustains in the same run. All keys come
in turns, and between two cuts each comes at least once, so every cut holds all keys. Asked: 2 seconds at most,
from the order to the committed manifest. Beside them is the latency of what was due while a cut was under way,
and of what was due at other times.

*Documents*: the inverted index, 50 documents of 250 words a second, with cuts at several intervals and without, in
turns within one query; see `turns`. Asked: the 99th percentile at each interval is less than 10 ms above that without
cuts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import turns
from live.session import spark_session
from pyspark.sql import SparkSession
from upgrade import BURST, Case, Outputs, Paced, count_case, counted, ended, sustained

from emberflow import sinks

KEYS = 1_000_000
#: Cuts that count: the first one, behind the keys that came at once, does not.
CUTS = 3
RATE_MAX = 60_000
_WAIT_SECONDS = 300.0


def many_keys(spark: SparkSession, keys: int) -> None:
    rate = min(RATE_MAX, sustained(spark, keys, keys + min(BURST, keys)) / 2)
    print(f"a running count, {keys:,} keys, {rate:,.0f} elements a second", flush=True)
    case = count_case(keys, rate)
    outputs = Outputs()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = (
            counted(0)
            .live(spark)
            .read(events=Paced(case, folder))
            .write(out=sinks.Callback(outputs.store))
            .option("workers", 2)
            .option("checkpointLocation", f"{name}/checkpoint")
            .option("checkpointInterval", round(1_100 * keys / rate))
            .start()
        )
        try:
            cuts = whole_cuts(query, case)
            elements = ended(case, folder, time.monotonic() + 1.0)
            assert query.awaitTermination(_WAIT_SECONDS)
        finally:
            query.stop()
    assert outputs.count == keys + elements
    of_monotonic = time.time() - time.monotonic()
    spans = [(cut.at_ms / 1_000 - of_monotonic - cut.ms / 1_000, cut.ms / 1_000) for cut in cuts]
    for cut, (begin, seconds) in zip(cuts, spans, strict=True):
        told = f"{cut.rows:>12,} rows{cut.bytes >> 20:>6} MB{seconds:>8.2f} s"
        print(f"  a cut{told}, due meanwhile:{shown(outputs, [(begin, begin + seconds)])}")
    ends = [begin + seconds for begin, seconds in spans]
    others = [(end + 1.0, begin) for end, (begin, _) in zip(ends, spans[1:], strict=False)]
    print(f"{'due between two cuts:':>58}{shown(outputs, others)}", flush=True)


def whole_cuts(query: Any, case: Case) -> list[Any]:
    """The cuts that hold all keys, behind the first one."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        assert query.isActive, query.exception()
        cuts = [
            cut for cut in list(query._coordinator.committer.recent) if cut.rows >= 0.99 * case.keys
        ]
        if len(cuts) > CUTS:
            return cuts[1:]
        time.sleep(0.1)
    raise TimeoutError(f"{CUTS} cuts of {case.keys:,} keys")


def shown(outputs: Outputs, spans: Iterable[tuple[float, float]]) -> str:
    late = array("d")
    for begin, end in spans:
        late.extend(
            1_000 * (at - due)
            for at, due in zip(outputs.at, outputs.due, strict=True)
            if begin <= due < end
        )
    if not late:
        return " nothing"
    ordered = sorted(late)
    half, most = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f" p50{half:>8.1f} ms, p99{most:>8.1f} ms, at most{ordered[-1]:>8.1f} ms"


def main(
    keys: int = KEYS,
    pairs: int = turns.PAIRS,
    intervals_ms: tuple[int, ...] = turns.INTERVALS_MS,
    parts: tuple[str, ...] = (),
) -> None:
    with spark_session() as spark:
        if "keys" in parts or not parts:
            many_keys(spark, keys)
        if "documents" in parts or not parts:
            turns.main(spark, intervals_ms, pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--pairs", type=int, default=turns.PAIRS)
    parser.add_argument("--interval", type=int, action="append", default=[])
    parser.add_argument("--only", choices=("keys", "documents"), action="append", default=[])
    given = parser.parse_args()
    intervals = tuple(given.interval) or turns.INTERVALS_MS
    main(given.keys, given.pairs, intervals, tuple(given.only))
