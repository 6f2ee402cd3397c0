"""The same seed gives the same run: in this process, in another, and for every hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.effort import SECONDS, shortened, tried
from tests.simulation.cases import Case
from tests.simulation.soak import traces

ROOT = Path(__file__).parents[2]
SEEDS = range(tried("traces of a seed"))


def test_the_same_seed_gives_the_same_trace() -> None:
    assert traces(SEEDS) == traces(SEEDS)


def test_another_seed_gives_another_trace() -> None:
    """With the same flow and options: the digest is of the events, not of the arguments."""
    case = Case.of(3, workers=4)
    digests = {
        replace(case, options=replace(case.options, seed=seed)).run().trace for seed in range(10)
    }
    assert len(digests) == 10


def test_the_same_trace_in_every_process() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.simulation.soak",
        "--traces",
        "--seeds",
        str(len(SEEDS)),
    ]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in shortened(["1", "0"])  # that of this process is random
    ]
    outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    expected = "\n".join(traces(SEEDS)) + "\n"
    assert set(outputs) == {expected}
