"""The states of a live query, as they are now, or as of a time that it still retains.

A task reads the query through its bridge (`runners.live.serving.state_service`). By default a read is
one piece, as of the time when its task begins: if Spark runs the task again, it reads a consistent
state again, only a later one. Several pieces need a common time, which the user gives by ``asOf``.

The task sends the filters on the key along. The query looks up keys that are known; otherwise its
workers test the keys, so that only matching rows travel.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from emberflow.checkpoint.cuts.scan import ColumnPage, split
from emberflow.datasource.filters import KeyFilters
from emberflow.datasource.options import SourceOptions
from emberflow.datasource.pages import Piece
from emberflow.errors import InputError
from emberflow.values.hashing import HASH_MAX, HASH_MIN, key_hash

_SAMPLE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class LiveView:
    """One state of a live query."""

    name: str
    options: SourceOptions
    #: A time, or a time and a front; None for now.
    as_of: tuple[int, ...] | None

    def sample(self) -> ColumnPage:
        pages = LivePiece(self.options, self.as_of).pages(KeyFilters(), child_ids=False)
        return ColumnPage.of_first(pages, _SAMPLE_ROWS)

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        if count is None or count == 1:
            return [LivePiece(self.options, self.as_of)]
        if self.as_of is None:
            raise InputError(
                f"option partitions={count}: the tasks of a read of a live query begin at different "
                f"times. Give .option('asOf', t), so that they read one state; or leave out the option."
            )
        ranges = split(HASH_MIN, HASH_MAX, count)
        return [LivePiece(self.options, self.as_of, own) for own in ranges]


@dataclass(frozen=True, slots=True)
class LivePiece:
    """A state, or a range of hashes of it."""

    options: SourceOptions
    as_of: tuple[int, ...] | None
    hashes: tuple[int, int] | None = None

    def pages(self, filters: KeyFilters, *, child_ids: bool) -> Iterator[ColumnPage]:
        keys = filters.keys
        if keys is not None and self.hashes is not None:
            low, high = self.hashes
            keys = tuple(key for key in keys if low <= key_hash(key) <= high)
        where = None
        if filters.tests or self.hashes is not None:
            where = partial(passes, filters, self.hashes)
        service, options = self.options.service, self.options
        with options.client() as client:
            number, (time, front) = client.ask(
                service,
                "open",
                as_of=self.as_of[0] if self.as_of and len(self.as_of) == 1 else self.as_of,
                keys=None if keys is None else pickle.dumps(keys),
                where=None if where is None else pickle.dumps(where),
                seconds=options.seconds,
            )
            count_before = 0
            try:
                while (part := client.ask(service, "next", number=number)) is not None:
                    rows = pickle.loads(part)
                    if keys is not None and filters.tests:
                        rows = [row for row in rows if passes(filters, None, *row)]
                    yield _page(rows, (time, front) if child_ids else None, count_before)
                    count_before += len(rows)
            except GeneratorExit:
                client.ask(service, "close", number=number)
                raise


def passes(filters: KeyFilters, hashes: tuple[int, int] | None, key: Any, value: Any) -> bool:
    """Whether a row matches. The workers of the query call it."""
    if hashes is not None and not hashes[0] <= key_hash(key) <= hashes[1]:
        return False
    return all(test(key) for test in filters.tests)


def _page(
    rows: list[tuple[Any, Any]], as_of: tuple[int, int] | None, count_before: int
) -> ColumnPage:
    """A live query does not tell when a value was made. Raw rows get places in order of arrival."""
    count = len(rows)
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    if as_of is None:
        return ColumnPage(keys, [None] * count, [None] * count, [], values)  # type: ignore[list-item]
    numbers = [(number,) for number in range(count_before, count_before + count)]
    return ColumnPage(keys, [as_of[0]] * count, [as_of[1]] * count, list(numbers), values)
