"""The verdict, in fields for programs and in words for people."""

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
    """There is no output here; ``None`` is one."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


class Entered(NamedTuple):
    """An element."""

    global_time: GlobalTime
    front: str
    payload: Any

    def __str__(self) -> str:
        payload = shortened(self.payload, _PAYLOAD_CHARACTERS)
        return f"{payload} (time {self.global_time.time} of front {self.front!r})"


@dataclass(frozen=True)
class Giveaway:
    """The first output element that is not what it would be in a system without failures.

    ``position`` counts from 0 within the sink, or within the partition where there is one.
    ``expected`` and ``held`` are `NOTHING` where there is no more. ``cause`` is the element that the
    expected output is made of.
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
    """What `judge` found.

    ``first`` is where the output leaves the reference's; where no guarantee is kept, ``unexplained``
    is the first output element that no loss and no repetition of elements explains. ``lost`` and
    ``repeated`` are an explanation of the guarantee that is kept, not the only possible one.

    ``at_least_once`` and ``at_most_once`` are None where the search was given up. Exactly-once is
    both, and an output that is not can still be both.

    ``delivery`` is about the deliveries alone, whatever happened to the state: ``"repeated"`` if each
    output of the reference was delivered, for the first time in order, and some again; ``"missing"``
    if some were not delivered and the others in order.
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
    """The first of them."""
    shown = ", ".join(map(str, elements[:_SHOWN_MAX]))
    more = len(elements) - _SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
