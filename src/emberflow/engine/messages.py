"""What machines say to each other. Plain, immutable, and the same on every wire."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from emberflow.item import FlatItem, GlobalTime

#: ``(time, front)``, plain
Moment: TypeAlias = tuple[int, int]

#: Before and after every time that an element can have.
BEFORE_ALL: Moment = (-(2**63), 0)
AFTER_ALL: Moment = (2**63 - 1, 0)

#: Global time to the xor of the ids of the frames of which it is the least.
Xors: TypeAlias = dict[Moment, int]


class Frame(NamedTuple):
    """Items from one worker to another. ``parts`` are ``(node, items)`` in the order of sending.

    A frame is sent as a whole and dealt with as a whole, so the acker needs one entry for it: its
    id, under the least global time of its items. The minimal time comes out the same as with an
    entry for every item. ``least`` is that time among items that may go anywhere from here,
    ``least_bound`` among those bound for a barrier of the receiver; None where there are none.
    """

    sender: int
    id: int
    parts: tuple[tuple[int, list[FlatItem]], ...]
    least: Moment | None
    least_bound: Moment | None


class Ack(NamedTuple):
    """What a worker has finished with and what it has sent, in one message.

    One message, so that no received id ever disappears before the ids it caused appear. ``ranges``
    are acks of frames on their way to a barrier, by the worker that holds it; ``anywhere`` are all
    others. ``reports`` are promises of fronts: 'I shall not emit below this'.
    """

    worker: int
    anywhere: Xors
    ranges: dict[int, Xors]
    reports: dict[int, Moment]

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.ranges or self.reports)


class Progress(NamedTuple):
    """The minimal times: of all that may still go anywhere, and of what is bound for each worker."""

    anywhere: Moment
    ranges: tuple[Moment, ...]

    def of_range(self, worker: int) -> Moment:
        """Nothing below this can reach the barriers of a worker any more."""
        return min(self.anywhere, self.ranges[worker])

    def of_all(self) -> Moment:
        """Nothing below this is under way at all."""
        return min(self.anywhere, *self.ranges)


class Bundle(NamedTuple):
    """What a barrier hands its sink at once: payloads in order, and the last global time."""

    sink: str
    partition: int
    last: GlobalTime
    items: list[FlatItem]


class Effects(NamedTuple):
    """What a worker wants done after an event: frames sent, an ack, bundles stored, or the end."""

    frames: list[tuple[int, Frame]]
    ack: Ack
    bundles: list[Bundle]
    failure: Exception | None
