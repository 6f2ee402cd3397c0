"""Where the rows of a state come from: the protocol between the reader and who has the state.

`stored` has it over the cuts of a checkpoint, `live` over a query that runs. Whoever has states
otherwise implements these two, and everything else (types, columns, filters, Spark) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from emberflow.checkpoint.cuts.scan import ColumnPage
from emberflow.datasource.filters import KeyFilters


class Piece(Protocol):
    """A part of a state as of one moment, for one task. It is pickled, so it holds no open files."""

    def pages(self, filters: KeyFilters, *, child_ids: bool) -> Iterator[ColumnPage]:
        """Its rows whose keys pass the filters; with their child ids, if asked for."""


class StateView(Protocol):
    """One state as of one moment: everything that is asked of it is answered as of that."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    def sample(self) -> ColumnPage:
        """Some rows, to find types by; empty only if there are none."""

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        """All rows that may pass the filters, in so many pieces, or as many as it finds right."""
