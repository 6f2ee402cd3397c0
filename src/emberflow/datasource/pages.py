"""The protocol between the reader of a state and the source of its rows.

`stored` implements it for the cuts of a checkpoint, `live` for a running query. Another source of
states implements these two classes; types, columns, filters and Spark need no change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from emberflow.checkpoint.cuts.scan import ColumnPage
from emberflow.datasource.filters import KeyFilters


class Piece(Protocol):
    """A part of a state as of one time, for one task. It is pickled, so it holds no open files."""

    def pages(self, filters: KeyFilters, *, child_ids: bool) -> Iterator[ColumnPage]:
        """The rows whose keys pass the filters; ``child_ids`` asks for their child ids too."""


class StateView(Protocol):
    """One state as of one time: every answer is as of that time."""

    @property
    def name(self) -> str:
        """The name that the user knows."""

    def sample(self) -> ColumnPage:
        """Some rows, to infer types from; empty only if the state has none."""

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        """All rows that may pass the filters, in ``count`` pieces, or in as many as suit the source."""
