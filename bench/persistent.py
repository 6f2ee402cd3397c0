"""What a persistent list costs, compared with the list and the tuple that it replaces.

    python bench/persistent.py            the table
    python bench/persistent.py --chunks   the same for several chunk sizes, to choose one

Rounds of all cases alternate, because the speed of a shared machine varies: compare figures within
one run only. Each includes its share of the loop around it.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from emberflow.values import persistent
from emberflow.values.persistent import PersistentList

LENGTH = 1_000_000
APPENDS = 20_000
TUPLE_LENGTH = 1_000
BEHIND = 16
ROUNDS = 15

Case = Callable[[], tuple[float, int]]


def cases() -> dict[str, Case]:
    """By name, a function that returns its seconds and its number of steps."""
    grown = PersistentList(range(LENGTH))
    plain = list(range(LENGTH))

    def list_append() -> tuple[float, int]:
        numbers: list[int] = []
        begin = time.perf_counter()
        for number in range(APPENDS):
            numbers.append(number)  # noqa: PERF402 (it is what we measure)
        return time.perf_counter() - begin, APPENDS

    def tuple_concatenation() -> tuple[float, int]:
        numbers: tuple[int, ...] = ()
        begin = time.perf_counter()
        for number in range(TUPLE_LENGTH):
            numbers = (*numbers, number)
        return time.perf_counter() - begin, TUPLE_LENGTH

    def append_to_newest() -> tuple[float, int]:
        numbers = grown
        begin = time.perf_counter()
        for number in range(APPENDS):
            numbers = numbers.append(number)
        return time.perf_counter() - begin, APPENDS

    def append_alternating() -> tuple[float, int]:
        newest = grown
        versions = deque([grown], maxlen=BEHIND)
        begin = time.perf_counter()
        for number in range(APPENDS // 2):
            newest = newest.append(number)
            versions[0].append(-number)
            versions.append(newest)
        return time.perf_counter() - begin, APPENDS

    def replay() -> tuple[float, int]:
        numbers = grown
        begin = time.perf_counter()
        for number in range(APPENDS // BEHIND):
            older = numbers = numbers.append(number)
            for speculated in range(BEHIND):
                numbers = numbers.append(speculated)
            numbers = older
        return time.perf_counter() - begin, APPENDS // BEHIND * (BEHIND + 1)

    def list_iteration() -> tuple[float, int]:
        begin = time.perf_counter()
        for _ in plain:
            pass
        return time.perf_counter() - begin, LENGTH

    def iteration() -> tuple[float, int]:
        begin = time.perf_counter()
        for _ in grown:
            pass
        return time.perf_counter() - begin, LENGTH

    return {
        "list.append": list_append,
        f"tuple concatenation, up to {TUPLE_LENGTH:,}": tuple_concatenation,
        "append to the newest": append_to_newest,
        f"append by turns to the newest and {BEHIND} back": append_alternating,
        f"append {BEHIND + 1}, go {BEHIND} back, again": replay,
        "iterate a list": list_iteration,
        "iterate": iteration,
    }


def measure() -> dict[str, tuple[float, float]]:
    """By name, the least and the median of nanoseconds per step."""
    figures: dict[str, list[float]] = {}
    todo = cases()
    for _ in range(ROUNDS):
        for name, case in todo.items():
            seconds, steps = case()
            figures.setdefault(name, []).append(seconds / steps * 1e9)
    return {name: (min(found), statistics.median(found)) for name, found in figures.items()}


def main(arguments: Sequence[str] = ()) -> None:
    if "--chunks" in arguments:
        for persistent._CHUNK in (64, 128, 256, 512, 1024, 2048):
            print(f"\nchunks of {persistent._CHUNK}")
            table()
    else:
        table()
        sizes()


def table() -> None:
    print(f"{'on a list of ' + format(LENGTH, ','):<48}{'least':>9}{'median':>9}  ns a step")
    for name, (least, median) in measure().items():
        print(f"{name:<48}{least:>9.0f}{median:>9.0f}")


def sizes() -> None:
    numbers = PersistentList(range(LENGTH))
    whole, tail = len(pickle.dumps(numbers)), len(pickle.dumps(numbers.tail(LENGTH - 10)))
    print(f"pickled: the whole {whole:,} bytes, a tail of 10 elements {tail:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
