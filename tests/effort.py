"""How much the tests try: a share of it on every run, and all of it in `make soak`.

A seed costs processor time, and the first ones of a test find what most of the others would. So
`make test` tries the first number of each pair below, and `make soak`, which runs the same tests with
EMBERFLOW_SOAK=1, the second. Both begin at the same seed: a soak has all that a test run has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

#: Rounds of a soak have random flows and moments of kills of their own; 0 is that of every test run.
CONTRACT_ROUND = int(os.environ.get("EMBERFLOW_CONTRACT_ROUND", "0"))
FAULTS_ROUND = int(os.environ.get("EMBERFLOW_FAULTS_ROUND", "0"))

#: How long a test waits for what takes moments on a quiet machine. Only what hangs takes longer.
SECONDS = 300

#: Whether this is a soak.
SOAK = bool(int(os.environ.get("EMBERFLOW_SOAK", "0")) or CONTRACT_ROUND or FAULTS_ROUND)


def shortened(all_: list[Any], every_run: int = 1) -> list[Any]:
    """Parameters of a test: all in a soak, the first ones on every run."""
    return all_ if SOAK else all_[:every_run]


def in_turn(number: int, among: int, turn: int) -> bool:
    """Whether this run tries case ``number`` in way ``turn`` of so many: in one way, a soak in all."""
    return SOAK or number % among == turn


def examples(soak: int) -> int:
    """How many examples hypothesis draws: all of them in a soak, a third of them on every run."""
    return soak if SOAK else max(5, soak // 3)


def few(soak: int) -> int:
    """How many seeds a smaller test tries: all of them in a soak, a third of them on every run."""
    return soak if SOAK else max(2, soak // 3)


class Effort(NamedTuple):
    """How many seeds a test tries."""

    every_run: int
    soak: int


EFFORTS = {
    "simulated flows": Effort(25, 1_000),
    "simulated flows with crashes": Effort(15, 600),
    "simulated paths that keep their key": Effort(20, 1_000),
    "paths that keep their key, over crashes": Effort(10, 600),
    "simulated flows with accounts": Effort(20, 1_000),
    "accounts over crashes": Effort(10, 600),
    "rare events of crashes": Effort(20, 200),
    "traces of a seed": Effort(8, 40),
    "traces of a seed with crashes": Effort(5, 30),
    "cold keys over crashes": Effort(12, 2_000),
    "arrival times over crashes": Effort(10, 60),
    "crashes without a cut": Effort(8, 40),
    "simulated flows with failing functions": Effort(20, 240),
    "simulated flows with diverted elements": Effort(20, 400),
    "diverted elements over crashes": Effort(10, 60),
    "simulated snapshots by markers": Effort(25, 600),
    "cases of mutations, unbroken": Effort(10, 30),
    "cases of mutations of recovery, unbroken": Effort(1, 10),
    "runs that go on from a cut": Effort(15, 150),
    "simulated queries of state": Effort(10, 200),
    "queries that are worth it": Effort(12, 40),
    "simulated queries of reductions": Effort(6, 30),
    "simulated queries of state with crashes": Effort(6, 100),
    "simulated transactions": Effort(12, 100),
    "simulated transactions with crashes": Effort(8, 25),
    "interpreted transactions": Effort(16, 1_000),
    "simulated transactions with diverted errors": Effort(8, 500),
    "transactions with diverted errors over crashes": Effort(4, 300),
    "transactions that are worth it": Effort(12, 30),
    "flows in batch": Effort(20, 400),
    "transactions in batch": Effort(12, 200),
    "flows handed over from batch": Effort(12, 100),
    "transactions handed over from batch": Effort(6, 60),
    "simulated drivers that stand by": Effort(12, 1_000),
    "simulated moves of slices": Effort(25, 2_000),
    "simulated moves of ticks": Effort(25, 1_000),
    "simulated versions": Effort(25, 2_000),
    "versions that change nothing": Effort(25, 1_000),
    "steps that begin from a backfill": Effort(20, 1_000),
    "versions in batch": Effort(15, 1_000),
    "unchanged versions in batch": Effort(8, 400),
    "unchanged transactions in batch": Effort(4, 200),
}

#: Seeds of random transactions that take longer than all others together: `make soak` has them.
COSTLY_TRANSACTIONS = {11}


def affordable(seeds: Iterable[int]) -> list[int]:
    """Seeds of random transactions; on every run without those that take too long."""
    return [seed for seed in seeds if SOAK or seed not in COSTLY_TRANSACTIONS]


def blocks(what: str, most: int) -> list[range]:
    """The seeds that this run tries of one of `EFFORTS`, in blocks of so many at most."""
    count = tried(what)
    return [range(first, min(first + most, count)) for first in range(0, count, most)]


def tried(what: str) -> int:
    """How many seeds this run tries of one of `EFFORTS`."""
    effort = EFFORTS[what]
    return effort.soak if SOAK else effort.every_run
