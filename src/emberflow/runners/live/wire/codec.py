"""How frames and bundles are encoded: by column, if the compiled loops are there (`engine.loops`).

A worker without the compiled loops sends plain lists. Readers can tell the two apart, so workers with
and without the compiled loops understand each other.
"""

from __future__ import annotations

from typing import Any

from emberflow.engine.loops import columns
from emberflow.engine.messages import Frame
from emberflow.sinks.protocol import StoredBundle


def packed(body: Frame | StoredBundle) -> tuple[Any, ...]:
    """The encoded form of a frame or a bundle.

    >>> from emberflow.values.item import GlobalTime
    >>> frame = Frame(0, 99, ((4, [((7, 0), 0, "a"), ((8, 0), 0, "b")]),), (7, 0), None)
    >>> unpacked_frame(packed(frame)) == frame
    True
    >>> bundle = StoredBundle("counts", 0, GlobalTime(8, 0), [("a", 1), "b"], [(7, 0), (8, 0)])
    >>> unpacked_bundle(packed(bundle)) == bundle
    True
    """
    if isinstance(body, Frame):
        parts = tuple((node, columns.pack(items) or items) for node, items in body.parts)
        return (body.sender, body.id, parts, *body[3:])
    payloads = columns.pack_column(body.payloads)
    places = None if body.places is None else columns.pack_column(body.places)
    return (body.sink, body.partition, body.last, len(body.payloads), payloads, places)


def unpacked_frame(encoded: tuple[Any, ...]) -> Frame:
    sender, number, parts, *rest = encoded
    plain = tuple(
        (node, columns.unpack(*items) if isinstance(items, tuple) else items)
        for node, items in parts
    )
    return Frame(sender, number, plain, *rest)


def unpacked_bundle(encoded: tuple[Any, ...]) -> StoredBundle:
    sink, partition, last, count, payloads, places = encoded
    return StoredBundle(
        sink,
        partition,
        last,
        columns.unpack_column(payloads, count),
        None if places is None else columns.unpack_column(places, count),
    )
