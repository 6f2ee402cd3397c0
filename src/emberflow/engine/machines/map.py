"""Map and broadcast, a batch at a time.

Both are stateless: what they make of an item depends on the item alone, and a tombstone is an item.
A map that gets a tombstone computes the images of its payload again and sends them on as tombstones.
Functions are pure, so these are the very items that it sent before.

A batch goes through a user's function in one loop (`loops.items`). If something is unusual (the function
raised, an image is scheduled), the map processes the batch again, item by item, by the closure of `calls`
that every runner uses. To call a pure function twice does no harm.

**Failures are items.** A speculative engine calls functions with inputs that never are: an accumulator
that lacks an element which is still on its way. A function may well raise on such an input, and that must
not end the run. So an exception becomes an item too, at the place of the input, bound for the barrier of
failures. If the input is taken back, so is the failure. An error that passes that barrier is one that the
reference runner would have met as well. The first of them ends the run; or, where errors are diverted,
each of them is an output like any other.

**What a reduction keeps.** Suppose that errors are diverted, and a combine map raises that is not part of
a fused reduction. Then the accumulator that was there goes round the cycle once more, and not downstream
(see `dsl.operators.reduce`). It takes the way of the new one, through the broadcast, so it stays behind
the tombstone of an accumulator that it replaces. The broadcast knows it by its wrapping, and sends it only
to the port that leads back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.engine.cuts.pending import Pending
from emberflow.engine.loops.items import extended, flat_mapped, kept, mapped, mapped_with_time
from emberflow.errors import StepError
from emberflow.graph.calls import images_of, scheduled_time
from emberflow.graph.nodes import Broadcast, Map
from emberflow.values.item import At, FlatItem, scheduled_child_ids

#: From a batch to the outputs of each port. What failed is appended to the second argument.
Process: TypeAlias = Callable[[list[FlatItem], list[FlatItem]], list[list[FlatItem]]]

#: Tuples of one, made once: then the commonest child ids cost no allocation.
_CHILDREN = tuple((child,) for child in range(256))
_FIRST = _CHILDREN[0]


class _Kept:
    """Wraps what a combine map keeps, on the way to the broadcast behind it."""

    __slots__ = ("payload",)

    def __init__(self, payload: Any) -> None:
        self.payload = payload


def map_process(node: Map, pending: Pending | None = None, *, diverts: bool = False) -> Process:
    """The machine of a map. Items that it schedules are noted as pending."""
    if pending is None:
        pending = Pending(node.name)
    if diverts and node.kept is not None:
        return _one_by_one(node, pending, node.kept)
    function = node.function
    one_by_one = _one_by_one(node, pending)

    if node.timed:

        def timed(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            output = mapped_with_time(items, function, _FIRST, At)
            return one_by_one(items, failed) if output is None else [output]

        return timed if node.mode == "one" else one_by_one

    if node.mode == "one":

        def one(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            output = mapped(items, function, _FIRST, At)
            return one_by_one(items, failed) if output is None else [output]

        return one

    if node.mode == "keep":

        def keep(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            output = kept(items, function, _FIRST)
            return one_by_one(items, failed) if output is None else [output]

        return keep

    def many(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output = flat_mapped(items, function, _CHILDREN, At)
        return one_by_one(items, failed) if output is None else [output]

    return many


def _one_by_one(
    node: Map, pending: Pending, kept: Callable[[Any], tuple[Any, ...]] | None = None
) -> Process:
    images_of_payload = images_of(node)
    scheduling_front = node.scheduling_front

    def process(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        for place, mark, payload in items:
            moment = (place[0], place[1])
            # All or nothing: if an item fails half way, its failure is its only image.
            made: list[FlatItem] = []
            scheduled: list[FlatItem] = []
            try:
                for child, image in enumerate(images_of_payload(payload, moment)):
                    if isinstance(image, At):
                        time = scheduled_time(node, image, moment)
                        ids = scheduled_child_ids(moment, place[2:], child)
                        made.append(((time, scheduling_front, *ids), mark, image.payload))
                        scheduled.append(made[-1])
                    else:
                        made.append(((*place, child), mark, image))
            except StepError as error:
                failed.append((place, mark, error))
                if kept is not None:
                    output += [(place + _FIRST, mark, _Kept(stays)) for stays in kept(payload)]
            else:
                output += made
                for later, _, scheduled_payload in scheduled:
                    pending.schedule(later, mark, moment, scheduled_payload)
        return [output]

    return process


def broadcast_process(node: Broadcast) -> Process:
    """The machine of a broadcast."""
    ports = [(port,) for port in range(node.copies)]

    def broadcast(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        return [extended(items, port) for port in ports]

    return broadcast


def keeping_broadcast_process(node: Broadcast) -> Process:
    """The machine of the broadcast of a reduction, where errors are diverted."""
    back, *others = ((port,) for port in range(node.copies))

    def broadcast(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        round_again = [
            (place + back, mark, payload.payload if payload.__class__ is _Kept else payload)
            for place, mark, payload in items
        ]
        on = [item for item in items if item[2].__class__ is not _Kept]
        return [
            round_again,
            *(extended(on, port) for port in others),
        ]

    return broadcast


def merge_process(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
    """The machine of a merge: the worker has put the inputs together already."""
    return [items]
