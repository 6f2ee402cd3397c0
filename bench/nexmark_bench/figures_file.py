"""What was measured of each query, in ``build/bench-nexmark/``: runs of some queries make one table together.
``throughput.md`` and ``latency.md`` are the tables as bench/README.md has them.

A row is written when it is measured. A run of all queries begins the file anew. The tables that are printed, and the plots, are of all that it holds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence

from live.session import BUILD
from nexmark.queries import QUERIES

Figures = dict[str, list[float]]

#: A query is compared with those of its kind.
KINDS = {
    "rows": ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"),
    "joins": ("q3", "q4", "q6", "q9", "q20"),
    "windows": ("q5", "q7", "q8", "q11", "q12"),
    "aggregates": ("q15", "q16", "q17", "q18", "q19"),
}
#: Less than this share of the median of its kind is a cliff.
CLIFF = 0.2


def merged(name: str, found: Mapping[str, Sequence[float]], *, anew: bool) -> Figures:
    """What is known now, in the order of the queries."""
    path = BUILD / "bench-nexmark" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known: Figures = {} if anew or not path.exists() else json.loads(path.read_text())
    known.update({query: list(figures) for query, figures in found.items()})
    known = {query: known[query] for query in QUERIES if query in known}
    path.write_text(json.dumps(known, indent=1))
    return known


def write_table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [heads, ["---"] * len(heads), *rows]
    path = BUILD / "bench-nexmark" / f"{name}.md"
    path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
    print(f"  table: {path}")


def told(figure: float, digits: int = 0) -> str:
    return f"{figure:,.{digits}f}" if figure else "none"


def ratio(one: float, other: float, digits: int = 2) -> str:
    return f"{one / other:,.{digits}f}" if one and other else ""


def asked(queries: Sequence[str], default: Sequence[str]) -> list[str]:
    unknown = sorted(set(queries) - set(QUERIES))
    if unknown:
        raise SystemExit(f"no query {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    return [query for query in default if not queries or query in queries]


def print_kinds(ours: Mapping[str, float]) -> None:
    """The median and the least of each kind of query."""
    for kind, queries in KINDS.items():
        rates = {query: ours[query] for query in queries if query in ours}
        if rates:
            median, least = statistics.median(rates.values()), min(rates, key=rates.__getitem__)
            share = rates[least] / median
            told = " (a cliff)" if share < CLIFF else ""
            print(
                f"  {kind}: median {median:,.0f}, least {rates[least]:,.0f} ({least}), {share:.2f} of it{told}"
            )


def print_ratios(ratios: Mapping[str, float], name: str) -> None:
    """How ours are to the other's, as a summary."""
    if ratios:
        least, most = (choose(ratios, key=ratios.__getitem__) for choose in (min, max))
        print(
            f"  {name}: median {statistics.median(ratios.values()):.2f}, "
            f"least {ratios[least]:.2f} ({least}), most {ratios[most]:.2f} ({most})"
        )
