"""A row of a cut: an item that some key's state needs, as a plain tuple.

::

    (operation, key hash, key, place, payload)        place = (time, front, *child ids)

Rows that share operation and key are one *bucket*. Whoever writes them hands them over one behind
the other, in their order; whoever reads them gets them like that.

A part holds rows of one *kind*:

- ``bucket``: what groupings and reductions hold. In a chain of cuts the newest bucket of a key takes
  the place of the older ones, whole. A bucket that is no more is one row made by `removed`.
- ``scheduled``: items that a map has scheduled for a time which is not below the cut. Here the key
  is the origin, whatever names it, and the hash says which worker emits it again. They are never
  replaced: those of all parts of a chain count, each place once, and those that the cut's time has
  passed are left out. So a cut may write only those that are new, or all of them.
- ``state``, and any other name: as ``bucket``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from emberflow.values.item import Place

#: ``(operation, key hash, key, place, payload)``
Row: TypeAlias = tuple[str, int, Any, Place, Any]

BUCKET = "bucket"
SCHEDULED = "scheduled"
STATE = "state"

#: The place of a row that only says that its bucket is no more.
NOWHERE: Place = ()


def removed(operation: str, key_hash: int, key: Any) -> Row:
    """The row that stands for a bucket which an earlier part has and which is no more.

    >>> removed("count", 7, "ada")
    ('count', 7, 'ada', (), None)
    """
    return operation, key_hash, key, NOWHERE, None
