"""`distinct`: a grouping of window 2 tells whether a payload is the first of its key.

The first tuple of a bucket has one element, every other tuple has two. This needs no cycle, and the
bucket of a key keeps only its last item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream


def _if_first(window: tuple[Any, ...]) -> tuple[Any, ...]:
    return window if len(window) == 1 else ()


def distinct(stream: KeyedStream[Any, Any], *, name: str | None) -> Stream[Any]:
    """See `KeyedStream.distinct`."""
    with stream.flow._scope("distinct", name):
        return stream.group(window=2, name="group")._map(_if_first, "many", name="first")
