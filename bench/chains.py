"""How a restart depends on the length of its chain of cuts, where keys are left in the files of the cut.

    python bench/chains.py [--keys 1000000] [--changed 5000] [--links 1 17 65]

One process, no network. The first cut of a chain has all keys, each other one those that changed, which are drawn
uniformly. A restart checks the files and opens them. A worker then takes 2,000 keys at a time, drawn uniformly, as it
does before a thread has merged the files; the first call also reads them. Milliseconds of processor time of the thread
that calls, the median of five calls; then that of the merge; and of a cut that holds everything, which copies the rows
that are on disk.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from random import Random

from state import running_count

from emberflow.checkpoint import Manifest, PartInfo
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.cuts.cut import Row
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.values.hashing import hash_ranges, key_hash

KEYS, CHANGED, LINKS = 1_000_000, 5_000, (1, 17, 65)
TAKEN, CALLS = 2_000, 5
ROWS_AT_ONCE = 2_000
STEP = "count"


def name(number: int) -> str:
    return f"key-{number:013d}"


def rows(cut: int, numbers: Sequence[int]) -> Iterator[list[Row]]:
    for begin in range(0, len(numbers), ROWS_AT_ONCE):
        names = map(name, numbers[begin : begin + ROWS_AT_ONCE])
        yield [Row(STEP, key_hash(key), key, (cut, 0), cut) for key in names]


def made(location: str, keys: int, changed: int, links: int, random: Random) -> None:
    store, graph = CheckpointStore(location), running_count().graph()
    incarnation = store.begin().incarnation
    cut: Manifest | None = None
    for number in range(1, links + 1):
        numbers = range(keys) if cut is None else random.sample(range(keys), changed)
        base = None if cut is None else cut.number
        part = store.write_part(
            number, 0, rows(number, numbers), incarnation=incarnation, base=base
        )
        assert isinstance(part, PartInfo)
        cut = Manifest.of(
            graph,
            number=number,
            incarnation=incarnation,
            time=(number + 1, 0),
            parts=[part],
            base=cut,
        )
    assert cut is not None
    store.commit(cut)


def measure(keys: int, changed: int, links: int) -> None:
    random, folder = Random(links), tempfile.mkdtemp()
    try:
        made(folder, keys, changed, links, random)
        begin = time.thread_time()
        store = CheckpointStore(folder)
        cut = store.latest()
        assert cut is not None
        cold = SortedRuns(folder)
        cold.begin_with(STEP, store.columns(cut, hash_ranges(1), [STEP])[STEP])
        opened = time.thread_time() - begin
        calls = []
        for _ in range(1 + CALLS):
            wanted = [name(number) for number in random.sample(range(keys), TAKEN)]
            begin = time.thread_time()
            cold.take(wanted)
            calls.append(time.thread_time() - begin)
        others = time.thread_time() - time.process_time()
        cold.settle(600)
        merged = others + time.process_time() - time.thread_time()
        begin = time.process_time()
        kept = cold.kept(STEP, BEFORE_ALL, AFTER_ALL)
        store.write_part(links + 1, 0, kept.as_written(), incarnation=cut.incarnation)
        copied = time.process_time() - begin
        cold.close()
    finally:
        shutil.rmtree(folder)
    times = (opened, calls[0], statistics.median(calls[1:]), merged, copied)
    print(f"{links:>8}" + "".join(f"{1e3 * each:>12,.0f}" for each in times), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--changed", type=int, default=CHANGED)
    parser.add_argument("--links", type=int, nargs="+", default=LINKS)
    given = parser.parse_args()
    print(f"{'links':>8}{'open':>12}{'first take':>12}{'take':>12}{'merge':>12}{'copy':>12}")
    for links in given.links:
        measure(given.keys, given.changed, links)


if __name__ == "__main__":
    main()
