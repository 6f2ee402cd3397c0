"""A row of a cut: an item that some key's state needs.

`engine.cuts.cut.Row` defines it, for the engine, for the files and for the compiled loops::

    (operation, key hash, key, place, payload)        place = (time, front, *child ids)

Rows that share operation and key are one *bucket*. A writer hands them over one behind the other, in
their order, and a reader gets them like that.

A part holds rows of one *kind*:

- ``bucket``: what groupings and reductions hold. In a chain of cuts the newest bucket of a key replaces
  the older ones, whole. A bucket that is no more is one row made by `removed`.
- ``scheduled``: items that a map has scheduled for a time which is not below the cut. Their key is the
  origin, whatever names it, and the hash says which worker emits the item again. They are never replaced:
  a reader gets those of all parts of a chain, each place once, but for those that the cut's time has
  passed. So a cut may write only those that are new, or all of them.
- ``state``, and any other name: as ``bucket``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.packed import PackedRows
from emberflow.values.item import Place

__all__ = [
    "BUCKET",
    "NOWHERE",
    "SCHEDULED",
    "STATE",
    "Chunk",
    "PackedRows",
    "Row",
    "RowColumns",
    "Writable",
    "removed",
]

#: What a part takes. A plain tuple that is laid out like them will do.
Writable: TypeAlias = Row | Scheduled


class RowColumns(NamedTuple):
    """Rows of one step, one of each key, whose keys and payloads are pickles already: the columns of a part
    (`cuts.tables`) without the child ids, of which such rows have none."""

    operation: str
    #: Arrays of numpy's.
    hashes: Any
    times: Any
    fronts: Any
    #: Binary arrays of Arrow's.
    keys: Any
    payloads: Any


#: What is written at once: some rows.
Chunk: TypeAlias = Sequence[Writable] | RowColumns | PackedRows

BUCKET = "bucket"
SCHEDULED = "scheduled"
STATE = "state"

#: The place of a row that only says that its bucket is no more.
NOWHERE: Place = ()


def removed(operation: str, key_hash: int, key: Any) -> Row:
    """The row that stands for a bucket which an earlier part has and which is no more.

    >>> removed("count", 7, "ada")
    Row(operation='count', key_hash=7, key='ada', place=(), payload=None)
    """
    return Row(operation, key_hash, key, NOWHERE, None)
