"""The three ways over a model of a cluster (`speculation.modelled`), with 1 to 50 workers."""

from __future__ import annotations

from collections.abc import Sequence

from speculation import HEADS, Figures, documents, plots
from speculation.modelled import MODEL, Cluster

WORKERS = (1, 2, 5, 10, 20, 50)
RATES = (50, 100, 200, 400)
#: A run lasts so long at least, and has so many documents at least.
SECONDS = 0.75
DOCUMENTS_MIN = 60


def measured(given: Sequence[documents.Document], workers: int, rate: float, way: str) -> Figures:
    flow = documents.index_flow(workers)
    return Cluster(flow, workers, documents.WAYS[way], seed=workers).run(given, rate)


def main(*, quick: bool) -> None:
    kind, given = documents.given(10 if quick else int(SECONDS * max(RATES)))
    workers = (1, 3) if quick else WORKERS
    found: plots.Found = {}
    print(f"{MODEL}; {kind}")
    print(f"{'workers, documents a second, way':40}{HEADS}")
    for count in workers:
        for rate in RATES:
            own = given[: max(DOCUMENTS_MIN, int(SECONDS * rate))]
            for way in documents.WAYS:
                figures = found[count, rate, way] = measured(own, count, rate, way)
                print(f"  {f'{count}, {rate}, {way}':38}{figures.cells}", flush=True)
    if not quick:
        plots.drawn_all("model", found, f"{kind}; {MODEL}", latency_workers=(2, 5, 10))
