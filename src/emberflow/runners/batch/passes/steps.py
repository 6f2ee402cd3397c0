"""Map and broadcast on batches of columns: what a pass does between two shuffles.

Items are three lists of equal length: times, paths and payloads. A step passes its output to the
next step, so a chain of maps is a chain of calls, one per batch. A batch run takes nothing back, so
there are no marks. The output of a pass is sorted again, so a step may emit in any order.

User functions are called in one comprehension. If anything unusual happens (a function raises, an
image is scheduled), the batch is processed again item by item with the closures of `graph.calls`
that all runners use, so that errors are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, TypeAlias

from emberflow.graph.calls import Balance, images_of, scheduled_time
from emberflow.graph.nodes import Map
from emberflow.rows.paths import (
    CHILDREN,
    child_codes,
    decoded_path,
    encoded_int,
    encoded_path,
    front_of,
)
from emberflow.values.item import At, scheduled_child_ids

#: Takes ``(times, paths, payloads)`` and passes its output to the next step.
Step: TypeAlias = Callable[[list[int], list[bytes], list[Any]], None]

#: Returns whether a scheduled item is later than the end of the batch. Arguments: the map, the
#: item's time and path, the global time of its origin, and the payload.
Ahead: TypeAlias = Callable[[Map, tuple[int, bytes], tuple[int, int], Any], bool]

_FIRST = CHILDREN[0]


def map_step(node: Map, send: Step, ahead: Ahead | None = None) -> Step:
    """The step of a map."""
    function, mode = node.function, node.mode
    one_by_one = _one_by_one(node, send, ahead)

    def one(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        try:
            images = (
                list(map(function, times, payloads))
                if node.timed
                else [function(payload) for payload in payloads]
            )
        except Exception:
            return one_by_one(times, paths, payloads)
        if At in set(map(type, images)):
            return one_by_one(times, paths, payloads)
        return send(times, [path + _FIRST for path in paths], images)

    def keep(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        try:
            kept = [bool(function(payload)) for payload in payloads]
        except Exception:
            return one_by_one(times, paths, payloads)
        return send(
            list(compress(times, kept)),
            [path + _FIRST for path in compress(paths, kept)],
            list(compress(payloads, kept)),
        )

    def many(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        times_out: list[int] = []
        paths_out: list[bytes] = []
        images_out: list[Any] = []
        parent, children = b"", list[bytes]()  # items that are elements all have the same path
        try:
            for time, path, payload in zip(times, paths, payloads, strict=True):
                images = function(payload)
                kind = images.__class__
                if kind is not list and kind is not tuple:
                    return one_by_one(times, paths, payloads)
                count = len(images)
                if count == 1:
                    times_out.append(time)
                    paths_out.append(path + _FIRST)
                elif count:
                    times_out += [time] * count
                    if path != parent or count > len(children):
                        parent, children = path, [path + child for child in child_codes(count)]
                    paths_out += children[:count]
                images_out += images
        except Exception:
            return one_by_one(times, paths, payloads)
        if At in set(map(type, images_out)):
            return one_by_one(times, paths, payloads)
        return send(times_out, paths_out, images_out)

    if mode == "one":
        return one
    if mode == "keep":
        return keep
    return one_by_one if node.timed else many


def _one_by_one(node: Map, send: Step, ahead: Ahead | None) -> Step:
    images = images_of(node)
    scheduling = Scheduling(node, ahead)

    def step(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        times_out: list[int] = []
        paths_out: list[bytes] = []
        images_out: list[Any] = []
        for time, path, payload in zip(times, paths, payloads, strict=True):
            for child, image in enumerate(images(payload, (time, front_of(path)))):
                if isinstance(image, At):
                    place = scheduling(image, time, path, child)
                    if place is not None:
                        times_out.append(place[0])
                        paths_out.append(place[1])
                        images_out.append(image.payload)
                else:
                    times_out.append(time)
                    paths_out.append(path + encoded_int(child))
                    images_out.append(image)
        send(times_out, paths_out, images_out)

    return step


class Scheduling:
    """The place of an item that a map schedules; None if ``ahead`` has taken the item."""

    def __init__(self, node: Map, ahead: Ahead | None = None) -> None:
        self._node = node
        self._ahead = ahead
        self._front = node.scheduling_front
        self._front_code = encoded_int(self._front)

    def __call__(self, at: At[Any], time: int, path: bytes, child: int) -> tuple[int, bytes] | None:
        place = self._place(at, time, path, child)
        ahead = self._ahead
        if ahead is not None and ahead(self._node, place, (time, front_of(path)), at.payload):
            return None
        return place

    def _place(self, at: At[Any], time: int, path: bytes, child: int) -> tuple[int, bytes]:
        front = front_of(path)
        later = scheduled_time(self._node, at, (time, front))
        if front >= 0:
            # (scheduling front, time, front, *child ids, child): the path is in the middle,
            # unchanged.
            return later, self._front_code + encoded_int(time) + path + encoded_int(child)
        ids = scheduled_child_ids((time, front), decoded_path(path)[1:], child)
        return later, encoded_path((self._front, *ids))


def broadcast_step(ports: list[tuple[int, Step]]) -> Step:
    """The step of a broadcast, to the ports that have a reader in this plan."""
    sending = [(encoded_int(port), send) for port, send in ports]

    def broadcast(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        for code, send in sending:
            send(times, [path + code for path in paths], payloads)

    return broadcast


def placed_step(balance: Balance, send: Step) -> Step:
    """Calls a key function whose result does not matter here, because it may raise."""

    def placed(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        for time, path, payload in zip(times, paths, payloads, strict=True):
            balance(payload, (time, front_of(path)))
        send(times, paths, payloads)

    return placed
