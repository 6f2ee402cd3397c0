"""The rule of event time of a front: how far records may be out of order, and what is late.

`engine.progress.event_time` explains the rule and applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from emberflow.errors import InputError, shortened
from emberflow.values.item import is_time

OnLate: TypeAlias = Literal["divert", "admit", "fail", "drop"]


class EventTime(NamedTuple):
    """The rule of a front: how far its records may be out of order, and what happens to the others."""

    #: How far below the greatest time so far a record may be.
    disorder: int = 0
    #: How far above it a record may be, if the next one does not follow it; None: as far as it likes.
    ahead: int | None = None
    #: What a payload promises; None for one that promises nothing. It takes the place of ``disorder``.
    watermark: Callable[[Any], int | None] | None = None
    #: What happens to a late record. ``"admit"``: it has the time of the promise, and is an element
    #: like all others.
    on_late: OnLate = "divert"

    @property
    def waits(self) -> bool:
        """Whether records wait for others, or leave as they come."""
        return self.disorder > 0 or self.watermark is not None or self.ahead is not None


#: The rule of a front that says nothing.
IN_ORDER = EventTime()


def event_time(
    where: str,
    *,
    disorder: int = 0,
    ahead: int | None = None,
    watermark: Callable[[Any], int | None] | None = None,
    on_late: OnLate = "divert",
) -> EventTime:
    """The rule of these parameters. Raises `InputError` that begins with ``where``.

    >>> event_time("fronts.Files", disorder=5).disorder
    5
    """
    if not is_time(disorder) or disorder < 0:
        raise InputError(
            f"{where}(disorder=) takes how far times may go back, in their unit, got "
            f"{shortened(disorder)}."
        )
    if ahead is not None and (not is_time(ahead) or ahead < 0):
        raise InputError(
            f"{where}(ahead=) takes how far times may leap, in their unit, or None, got "
            f"{shortened(ahead)}."
        )
    if watermark is not None and not callable(watermark):
        raise InputError(
            f"{where}(watermark=) takes a function of the payload, got {shortened(watermark)}."
        )
    if watermark is not None and disorder:
        raise InputError(f"{where} takes disorder= or watermark=, not both.")
    if on_late not in get_args(OnLate):
        modes = ", ".join(map(repr, get_args(OnLate)))
        raise InputError(f"{where}(on_late=) takes one of {modes}, got {shortened(on_late)}.")
    return EventTime(disorder, ahead, watermark, on_late)
