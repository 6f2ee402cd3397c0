"""Two versions of the project by turns: is the latency of elements in order what it was?

    git worktree add ../other COMMIT && (cd ../other && make setup)
    make bench-versions OTHER=../other [ROUNDS=9]

Each version runs in a process of its own, which keeps its Spark session. One *round* is the live run of `live.latency`
(the inverted index, 50 documents a second, two workers) in the one, and right behind it in the other; which of the two
comes first changes from round to round. So a machine that becomes slower or faster adds to neither. What a round is
worth is the ratio of its two percentiles, and the median of the ratios counts. The first run of each is warm-up.

The other version has to have `bench/live/latency.py`, and compiled loops of the same Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

OWN = Path(__file__).resolve().parents[1]
ROUNDS = 9
PERCENTS = (50, 95, 99)

#: What each process does: a run for each line that comes, and its percentiles as JSON.
_SERVES = """
import json, sys
from live import latency
from live.session import spark_session
import emberflow
assert emberflow.__file__.startswith(sys.argv[1]), emberflow.__file__
with spark_session() as spark:
    for _ in sys.stdin:
        found, _ = latency.live_latencies(spark)
        ordered = sorted(found)
        told = [ordered[len(ordered) * percent // 100] for percent in json.loads(sys.argv[2])]
        print("PERCENTILES", json.dumps(told), flush=True)
"""
_MARK = "PERCENTILES "


class Version(NamedTuple):
    """A process with one version."""

    name: str
    process: subprocess.Popen[str]

    @classmethod
    def of(cls, tree: Path) -> Version:
        path = os.pathsep.join([str(tree / "src"), str(tree / "bench")])
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVES, str(tree), json.dumps(PERCENTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        return cls(tree.name, process)

    def run(self) -> list[float]:
        given: IO[str] = self._pipe(self.process.stdin)
        given.write("run\n")
        given.flush()
        for line in self._pipe(self.process.stdout):
            if line.startswith(_MARK):
                told: list[float] = json.loads(line.removeprefix(_MARK))
                return told
        raise SystemExit(f"the process of {self.name} has ended; run its bench/live by itself")

    def end(self) -> None:
        self._pipe(self.process.stdin).close()
        self.process.wait(60)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def main(other: Path, rounds: int) -> None:
    heads = "".join(f"{f'p{percent} ms':>10}" for percent in PERCENTS)
    print(f"{'latency of elements in order':32}{heads}")
    versions = [Version.of(other), Version.of(OWN)]
    try:
        for version in versions:
            version.run()
        found: list[list[list[float]]] = [[], []]
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                found[which].append(versions[which].run())
                row(f"  {number + 1}: {versions[which].name}", found[which][-1])
    finally:
        for version in versions:
            version.end()
    for version, figures in zip(versions, found, strict=True):
        row(f"  {version.name}, median", medians(figures))
    ratios = [
        [new / old for old, new in zip(*both, strict=True)] for both in zip(*found, strict=True)
    ]
    row("  now / then, median of rounds", medians(ratios), ".2f")


def medians(rows: list[list[float]]) -> list[float]:
    return [statistics.median(figures) for figures in zip(*rows, strict=True)]


def row(label: str, figures: list[Any], form: str = ".1f") -> None:
    print(f"{label:32}" + "".join(f"{figure:>10{form}}" for figure in figures), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other version")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    main(asked.other.resolve(), asked.rounds)
