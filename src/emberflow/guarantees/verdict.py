"""The verdict of `judge`: fields for programs, and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from emberflow.errors import shortened
from emberflow.values.item import GlobalTime

_SHOWN_MAX = 5
_PAYLOAD_CHARACTERS = 80


class Guarantee(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    INCONSISTENT = "inconsistent"
    UNDECIDED = "undecided"


class Nothing:
    """The absence of an output; ``None`` would be an output."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


class Entered(NamedTuple):
    """An element that entered."""

    global_time: GlobalTime
    front: str
    payload: Any

    def __str__(self) -> str:
        payload = shortened(self.payload, _PAYLOAD_CHARACTERS)
        return f"{payload} (time {self.global_time.time} of front {self.front!r})"


@dataclass(frozen=True)
class Giveaway:
    """The first output that differs from that of a system without failures.

    ``position`` counts from 0 within the sink, or within ``partition`` if it is not None.
    ``expected`` or ``held`` is `NOTHING` if there is no further output. ``cause`` is the element that
    causes the expected output.
    """

    sink: str
    partition: int | None
    position: int
    expected: Any
    held: Any
    cause: Entered | None = None

    @property
    def at(self) -> tuple[str, int | None, int]:
        return self.sink, self.partition, self.position

    @property
    def where(self) -> str:
        partition = "" if self.partition is None else f" partition {self.partition}"
        return f"sink {self.sink!r}{partition} output {self.position}"

    def __str__(self) -> str:
        made_of = f", made of {self.cause}" if self.cause is not None else ""
        return (
            f"{self.where}: expected {shortened(self.expected)}{made_of}; "
            f"holds {shortened(self.held)}"
        )


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`.

    ``first`` is the first difference from the reference. If the run kept no guarantee,
    ``unexplained`` is the first output that no loss and no repetition of elements explains. ``lost``
    and ``repeated`` are one explanation of the guarantee that it kept; there may be others.

    ``at_least_once`` and ``at_most_once`` are None if the search was given up. Exactly-once is both,
    and an output that is not exactly-once can still be both.

    ``delivery`` ignores the state: ``"repeated"`` if the run delivered each output of the reference,
    first deliveries in order, and some again; ``"missing"`` if it did not deliver some, and the
    others in order.
    """

    guarantee: Guarantee
    why: str
    first: Giveaway | None = None
    unexplained: Giveaway | None = None
    at_least_once: bool | None = True
    at_most_once: bool | None = True
    lost: tuple[Entered, ...] = ()
    repeated: tuple[Entered, ...] = ()
    delivery: Literal["complete", "repeated", "missing", "other"] = "complete"

    @property
    def exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.why}"


def listed(elements: tuple[Entered, ...]) -> str:
    """The first few elements, and the number of the others."""
    shown = ", ".join(map(str, elements[:_SHOWN_MAX]))
    more = len(elements) - _SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
