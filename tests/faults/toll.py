"""The toll: how many processes the fault tests of a run have killed, and how many connections they cut.

The run prints it at its end. With several processes of pytest, nobody adds up their tolls: `make soak`
counts its rounds of faults, which have one.
"""

from __future__ import annotations

from collections import Counter

_toll: Counter[str] = Counter()


def toll(victim: str) -> None:
    """A worker, driver, executor, broker, database or object store was killed, or a connection was cut."""
    _toll[victim] += 1


def toll_of_the_run() -> str:
    """A line for the end of a run; empty if nobody was hit."""
    if not _toll:
        return ""
    kinds = ", ".join(f"{victim} {count}" for victim, count in sorted(_toll.items()))
    return f"killed or cut: {_toll.total()} ({kinds})"
