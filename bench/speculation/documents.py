"""Documents with word positions, the flow that indexes them, and the three ways to keep the order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import batch

import emberflow as ef
from emberflow.runners.simulation.judges import judges

#: Words with their positions.
Document: TypeAlias = list[tuple[str, tuple[int, ...]]]

#: What decides in each way, by its name in the simulation.
WAYS = {
    "optimistic": judges("never", ""),
    "conservative": judges("always", ""),
    "adaptive": judges("adaptive", ""),
}
PERCENTS = (50, 99)


def given(count: int) -> tuple[str, list[Document]]:
    """So many documents, and what they are."""
    articles = Path(os.environ.get("EMBERFLOW_DATA", str(batch.DEFAULT_DATA))) / "articles.jsonl.gz"
    if articles.exists():
        rows, kind = batch.corpus(articles, count), "Wikipedia articles"
    else:
        rows, kind = batch.made_up(count), "generated documents"
    return kind, [_positions(text) for _, _, _, text in islice(rows, count)]


def _positions(text: str) -> Document:
    found: dict[str, list[int]] = {}
    for position, word in enumerate(re.findall("[a-z0-9]+", text)):
        found.setdefault(word, []).append(position)
    return [(word, tuple(positions)) for word, positions in found.items()]


def index_flow(partitions: int) -> ef.Flow:
    """From ``(number, at, document)`` to a change record for each of its words: ``(number, at, word,
    positions, length of its list)``. The accumulator of a word is its list of postings."""

    def postings(taken_in: tuple[int, float, Document]) -> Iterator[tuple[Any, ...]]:
        number, at, document = taken_in
        return ((word, positions, number, at) for word, positions in document)

    flow = ef.Flow("index")
    words = flow.front("documents").flat_map(postings).key_by(lambda posting: posting[0])
    lists = words.fold(
        initial=(ef.PersistentList(), None),
        combine=lambda held, posting: (held[0].append((posting[2], posting[1])), posting),
    )
    changes = lists.map(lambda held: _change(*held[1], len(held[0])))
    changes.key_by(lambda change: change[2]).sink("changes", partitions=partitions)
    return flow


def _change(
    word: str, positions: tuple[int, ...], number: int, at: float, length: int
) -> tuple[Any, ...]:
    return number, at, word, positions, length


def percentiles(latencies: list[float]) -> list[float]:
    ordered = sorted(latencies)
    return [ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in PERCENTS]
