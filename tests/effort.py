"""How much the tests try: a share of it on every run, and all of it in `make soak`.

A seed costs processor time, and the first ones of a test find what most of the others would. So
`make test` tries the first number of each pair below, and `make soak`, which runs the same tests with
EMBERFLOW_SOAK=1, the second. Both begin at the same seed: a soak has all that a test run has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

#: Rounds of a soak have random flows and moments of kills of their own; 0 is that of every test run.
CONTRACT_ROUND = int(os.environ.get("EMBERFLOW_CONTRACT_ROUND", "0"))
FAULTS_ROUND = int(os.environ.get("EMBERFLOW_FAULTS_ROUND", "0"))

#: How long a test waits for what takes moments on a quiet machine. Only what hangs takes longer.
SECONDS = 300

#: Whether this is a soak.
SOAK = bool(int(os.environ.get("EMBERFLOW_SOAK", "0")) or CONTRACT_ROUND or FAULTS_ROUND)


class Effort(NamedTuple):
    """How many seeds a test tries."""

    every_run: int
    soak: int


EFFORTS = {
    "simulated flows": Effort(50, 1_000),
    "simulated flows with crashes": Effort(25, 600),
    "rare events of crashes": Effort(30, 200),
    "traces of a seed": Effort(8, 40),
    "traces of a seed with crashes": Effort(5, 30),
    "arrival times over crashes": Effort(10, 60),
    "crashes without a cut": Effort(8, 40),
    "simulated flows with failing functions": Effort(40, 240),
    "simulated flows with diverted elements": Effort(40, 400),
    "diverted elements over crashes": Effort(10, 60),
    "simulated snapshots by markers": Effort(50, 600),
    "cases of mutations, unbroken": Effort(10, 30),
    "cases of mutations of recovery, unbroken": Effort(1, 10),
    "runs that go on from a cut": Effort(30, 150),
    "simulated queries of state": Effort(20, 200),
    "queries that are worth it": Effort(20, 40),
    "simulated queries of reductions": Effort(10, 30),
    "simulated queries of state with crashes": Effort(10, 100),
    "simulated transactions": Effort(20, 100),
    "simulated transactions with crashes": Effort(12, 25),
    "transactions that are worth it": Effort(15, 30),
    "flows in batch": Effort(40, 400),
    "transactions in batch": Effort(20, 200),
    "flows handed over from batch": Effort(20, 100),
    "transactions handed over from batch": Effort(10, 60),
    "simulated versions": Effort(50, 2_000),
    "versions that change nothing": Effort(50, 1_000),
}

#: Seeds of random transactions that take longer than all others together: `make soak` has them.
COSTLY_TRANSACTIONS = {11}


def affordable(seeds: Iterable[int]) -> list[int]:
    """Seeds of random transactions; on every run without those that take too long."""
    return [seed for seed in seeds if SOAK or seed not in COSTLY_TRANSACTIONS]


def tried(what: str) -> int:
    """How many seeds this run tries of one of `EFFORTS`."""
    effort = EFFORTS[what]
    return effort.soak if SOAK else effort.every_run
