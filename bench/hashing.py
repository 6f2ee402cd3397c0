"""What hashing a key costs, compared with Python's own hash and with bare xxh32 of ready bytes.

    python bench/hashing.py

Rounds of all cases alternate, because the speed of a shared machine varies: compare figures within
one run only. Each figure is the least of its rounds and includes its share of the loop around it.
Python's hash is salted, so it could never place a key; and it caches the hash of a str.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh32_intdigest

from emberflow.values.hashing import encode_key, key_hash

KEYS = 1_000
ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Account:
    bank: str
    number: int


def kinds() -> dict[str, Sequence[Any]]:
    return {
        "str": [f"user-{i:06}" for i in range(KEYS)],
        "str, not ASCII": [f"usér-{i:06}" for i in range(KEYS)],
        "int": [i * 7919 for i in range(KEYS)],
        "bytes": [b"user-%06d" % i for i in range(KEYS)],
        "(str, int)": [(f"user-{i:06}", i) for i in range(KEYS)],
        "dataclass(str, int)": [Account(f"bank-{i % 7}", i) for i in range(KEYS)],
    }


def nanoseconds_a_key(function: Callable[[Any], Any], keys: Sequence[Any]) -> float:
    begin = time.perf_counter()
    for key in keys:
        function(key)
    return (time.perf_counter() - begin) / len(keys) * 1e9


def main() -> None:
    columns: dict[str, Callable[[Any], Any]] = {
        "key_hash": key_hash,
        "hash": hash,
        "xxh32": xxh32_intdigest,
        "encode_key": encode_key,
    }
    least: dict[tuple[str, str], float] = {}
    rows = kinds()
    ready = {kind: [encode_key(key) for key in keys] for kind, keys in rows.items()}
    for _ in range(ROUNDS):
        for kind, keys in rows.items():
            for column, function in columns.items():
                given = ready[kind] if column == "xxh32" else keys
                taken = nanoseconds_a_key(function, given)
                least[kind, column] = min(taken, least.get((kind, column), taken))

    print(f"{'ns a key':<22}" + "".join(f"{column:>12}" for column in columns) + f"{'keys/s':>14}")
    for kind in rows:
        figures = "".join(f"{least[kind, column]:>12.0f}" for column in columns)
        print(f"{kind:<22}{figures}{1e9 / least[kind, 'key_hash']:>14,.0f}")


if __name__ == "__main__":
    main()
