"""The protocol between the reader of a state and the source of its rows.

`stored` implements it for the cuts of a checkpoint, `live` for a running query. Another source of
states implements these two classes; filters and Spark need no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from emberflow.datasource.filters import KeyFilters
from emberflow.rows.state_columns import StateColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as sql


class Piece(Protocol):
    """A part of a state as of one time, for one task. It is pickled, so it holds no open files."""

    def batches(self, columns: StateColumns, filters: KeyFilters) -> Iterator[pa.RecordBatch]:
        """The rows whose keys pass the filters, with these columns."""


class StateView(Protocol):
    """One state as of one time: every answer is as of that time."""

    @property
    def name(self) -> str:
        """The name that the user knows."""

    def schema(self, *, raw: bool) -> sql.StructType:
        """The columns whose types fit the rows. Raises `InputError` if there are none."""

    def key_type(self) -> sql.DataType | None:
        """The type that the keys have by themselves; None if they have none in Spark."""

    def key_sample(self) -> Sequence[Any]:
        """Some keys, as objects of Python; empty if the source does not give these away."""

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        """All rows that may pass the filters, in ``count`` pieces, or in as many as suit the source."""
