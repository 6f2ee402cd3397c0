"""A changed key in a cut, by kind of key: microseconds of processor time in the loop, and in the thread that writes.

    python bench/rows.py [--keys 200000] [--rounds 4]

One worker in one process, no network: a running count whose keys all change between two cuts. In the *loop* the
worker finds which keys have changed and packs their rows, some at a time as it does live. In the *thread* the rows
are sorted and written. The median of the cuts behind the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable
from typing import Any

import engine

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.messages import BEFORE_ALL, Moment

KEYS, ROUNDS = 200_000, 4
BUCKETS_A_PIECE = 1_024

KINDS: dict[str, Callable[[int], Hashable]] = {
    "a text": lambda number: f"key-{number:013d}",
    "an int": lambda number: number,
    "(text, int)": lambda number: (f"user-{number}", number % 24),
    "(text, (int, None), float)": lambda number: (f"user-{number}", (number, None), 0.5),
}


def measured(key_of: Callable[[int], Hashable], keys: int, rounds: int) -> tuple[float, float]:
    """Microseconds a key in the loop, and in the thread."""
    run, lists = engine.Run(engine.count_flow()), SavedLists()
    at, since = 0, BEFORE_ALL
    in_loop, in_thread = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        store.begin()
        for number in range(1, rounds + 2):
            elements: list[tuple[Moment, Any]] = [
                ((at + each, 0), key_of(each)) for each in range(keys)
            ]
            at += keys
            run.feed(elements, ends=False)
            begin = time.thread_time()
            capture = run.worker.begin_cut((at, 0), since)
            chunks = []
            while (chunk := capture.next(BUCKETS_A_PIECE)) is not None:
                chunks.append(chunk)
            captured = time.thread_time()
            rows = (rows for chunk in chunks for rows in _as_written(chunk))
            base = number - 1 or None
            part = store.write_part(number, 0, rows, incarnation=1, base=base, lists=lists)
            written = time.thread_time()
            assert part is not None
            assert part.rows == keys
            run.worker.cut_committed((at, 0))
            since = (at, 0)
            in_loop.append((captured - begin) / keys * 1e6)
            in_thread.append((written - captured) / keys * 1e6)
    return statistics.median(in_loop[1:]), statistics.median(in_thread[1:])


def _as_written(chunk: list[Any]) -> list[Any]:
    """As `cut_writer` hands it over: rows that are not packed many at once."""
    plain = [each for each in chunk if isinstance(each, tuple)]
    packed = [each for each in chunk if not isinstance(each, tuple)]
    return [*packed, *([plain] if plain else [])]


def main(keys: int = KEYS, rounds: int = ROUNDS) -> None:
    print(f"{f'a changed key of {keys:,}, µs':>34}{'loop':>8}{'thread':>8}")
    for kind, key_of in KINDS.items():
        in_loop, in_thread = measured(key_of, keys, rounds)
        print(f"{kind:>34}{in_loop:>8.2f}{in_thread:>8.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    main(given.keys, given.rounds)
