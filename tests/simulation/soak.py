"""As many seeds as wanted: ``python -m tests.simulation.soak --seeds 10000 [--from 0] [--jobs 2]``.

``--crashes`` adds crashes of all kinds. Flows are drawn from all operations; with
``--transactions`` from transactions, with ``--queries`` from transactions with reads of their
states, with ``--histories`` from list-append transactions whose isolation is judged, with
``--versions`` from versions that follow one another, always with crashes; with ``--moves`` slices
move between workers, mostly with crashes; with ``--keys`` paths may keep their key up to a sink, so that
ranges of keys do not wait for each other; with ``--standby`` other drivers take over from those that fail,
which may come back; with ``--cold`` flows have little else than keys that go out of memory and come back, in
windows, joins and lists too, always with crashes. ``--batch`` runs all kinds through the passes of a batch,
without Spark and without crashes. ``--traces`` prints the digest of each run instead, to be compared between
processes.

For every seed that fails it prints the options and the command that reproduces it; then the exit
code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from emberflow.runners.bars.terminal import bars
from emberflow.work import watched
from tests.batch.test_transactions import judged_in_batch
from tests.isolation.simulated import judge_histories
from tests.simulation.cases import Case, WrongError, judged
from tests.simulation.crash_cases import CrashCase, judged_with_crashes
from tests.simulation.keyed import keyed_case, keyed_crash_case
from tests.simulation.queried import judged_with_queries
from tests.simulation.test_cold import case_of as cold_case
from tests.simulation.transactional import (
    TransactionCase,
    judged_with_crashes_and_cuts,
    judged_with_states,
    transactions_with_crashes,
    transactions_with_moves,
)
from tests.simulation.versioned import VersionCase, judged_with_versions

CHUNK = 25


def traces(seeds: range) -> list[str]:
    return [f"{seed} {Case.out_of_order(seed).run().trace}" for seed in seeds]


def judge(seed: int, drawn: str, crashes: bool) -> None:
    """Raise WrongError if something is wrong with this seed."""
    if drawn == "batch":
        judged_in_batch(seed)
    elif drawn == "histories":
        judge_histories(seed, crashes=crashes)
    elif drawn == "moves" and seed % 4 == 0:
        judged_with_crashes_and_cuts(transactions_with_moves(seed))
    elif drawn == "moves" and seed % 4 == 1:
        judged_with_crashes(CrashCase.ticking(seed))
    elif drawn == "cold":
        judged_with_crashes(cold_case(seed))
    elif drawn == "standby":
        judged_with_crashes(CrashCase.standing_by(seed))
    elif drawn == "moves":
        judged_with_crashes(CrashCase.moving(seed))
    elif drawn == "versions":
        judged_with_versions(VersionCase.of(seed))
    elif drawn == "keys" and crashes:
        judged_with_crashes(keyed_crash_case(seed))
    elif drawn == "keys":
        judged(keyed_case(seed))
    elif drawn == "queries":
        judged_with_queries(seed, crashes=3 if crashes else 0)
    elif drawn == "transactions" and crashes:
        judged_with_crashes_and_cuts(transactions_with_crashes(seed))
    elif drawn == "transactions":
        judged_with_states(TransactionCase.out_of_order(seed))
    elif crashes:
        judged_with_crashes(CrashCase.out_of_order(seed))
    else:
        judged(Case.out_of_order(seed))


def problems(seeds: range, drawn: str, crashes: bool) -> tuple[list[str], tuple[float, int]]:
    """The problems of these seeds, and how long the slowest of them took."""
    found, slowest = [], (0.0, -1)
    for seed in seeds:
        begin = time.perf_counter()
        try:
            judge(seed, drawn, crashes)
        except WrongError as error:
            found.append(f"seed {seed}: {error}")
        slowest = max(slowest, (time.perf_counter() - begin, seed))
    return found, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--traces", action="store_true", help="print the digest of each run")
    parser.add_argument("--crashes", action="store_true", help="with crashes and recovery")
    drawn = parser.add_mutually_exclusive_group()
    for kind, what in (
        ("transactions", "flows of transactions"),
        ("queries", "the same, with reads of their states"),
        ("histories", "the isolation of transactions"),
        ("versions", "versions of a flow, one after another"),
        ("keys", "paths that keep their key, or lose it"),
        ("moves", "slices that move between workers, some of which come or leave"),
        ("standby", "the same, with drivers that stand by and others that come back"),
        ("cold", "keys that go out of memory and come back, with crashes"),
        ("batch", "in batch, with transactions and without"),
    ):
        drawn.add_argument(f"--{kind}", action="store_const", dest="drawn", const=kind, help=what)
    parser.set_defaults(drawn="flows")
    asked = parser.parse_args()
    end = asked.first + asked.seeds
    if asked.traces:
        say("\n".join(traces(range(asked.first, end))))
        return 0
    chunks = [range(first, min(first + CHUNK, end)) for first in range(asked.first, end, CHUNK)]
    failures, done, slowest, begin = 0, 0, (0.0, -1), time.perf_counter()
    with bars(), ProcessPoolExecutor(max_workers=max(1, min(asked.jobs, len(chunks)))) as pool:
        futures = {
            pool.submit(problems, chunk, asked.drawn, asked.crashes): chunk for chunk in chunks
        }
        for future in watched("chunks of seeds", as_completed(futures), len(futures)):
            found, slow = future.result()
            for problem in found:
                say(problem)
            failures += len(found)
            slowest = max(slowest, slow)
            done += len(futures[future])
    say(
        f"{done:,} seeds from {asked.first} in {time.perf_counter() - begin:.0f} s: {failures} "
        f"failed; the slowest, {slowest[1]}, took {slowest[0]:.1f} s"
    )
    return 1 if failures else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
