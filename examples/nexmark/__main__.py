"""Runs a query on some events and prints the last of its rows.

For example, which auctions are hot:

    $ python examples/nexmark q5 --rows 3
    q5 of 2,000 events: 14 rows
    (1100, 174)
    (1100, 171)
    (1100, 95)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# As a script, this module is run without its package.
sys.path.insert(0, str(Path(__file__).parents[1]))

import emberflow as ef
from nexmark.generator import front, generated
from nexmark.queries import QUERIES, flow_of


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a query of NEXMark.")
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=100, help="events a second of event time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disorder", type=int, default=0, help="out of order by up to so many ms")
    parser.add_argument("--rows", type=int, default=10, help="how many rows to print")
    given = parser.parse_args()
    events = generated(given.events, seed=given.seed, rate=given.rate, disorder=given.disorder)
    rows = ef.run(flow_of(given.query), events=front(events, disorder=given.disorder))[given.query]
    print(f"{given.query} of {given.events:,} events: {len(rows):,} rows")
    for row in rows[-given.rows :]:
        print(row)


if __name__ == "__main__":
    main()
