"""The rule of event time of a front: how far records may be out of order, and what is late.

`engine.progress.event_time` explains the rule and applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from emberflow.errors import InputError, shortened
from emberflow.values.times import (
    DEFAULT_UNIT,
    Duration,
    Time,
    TimeError,
    Unit,
    counted_duration,
    counted_time,
    is_unit,
)

OnLate: TypeAlias = Literal["divert", "admit", "fail", "drop"]


class EventTime(NamedTuple):
    """The rule of a front: how far its records may be out of order, and what happens to the others.

    The engine takes a rule of numbers. A front may have one of durations, which `counted` turns into them.
    """

    #: How far below the greatest time so far a record may be.
    disorder: int = 0
    #: How far above it a record may be, if the next one does not follow it; None: as far as it likes.
    ahead: int | None = None
    #: What a payload promises; None for one that promises nothing. It takes the place of ``disorder``.
    watermark: Callable[[Any], Time | None] | None = None
    #: What happens to a late record. ``"admit"``: it has the time of the promise, and is an element
    #: like all others.
    on_late: OnLate = "divert"
    #: What datetimes that ``watermark`` returns are counted in.
    unit: Unit = DEFAULT_UNIT

    def counted(self, unit: Unit, where: str) -> EventTime:
        """The rule with numbers for durations. Raises `InputError` that begins with ``where``.

        >>> EventTime(disorder="5 seconds").counted("ms", "front 'clicks'").disorder
        5000
        """
        if self.unit == unit and self.disorder.__class__ is int and self.ahead is None:
            return self
        rule = event_time(
            where, disorder=self.disorder, ahead=self.ahead, watermark=self.watermark, unit=unit
        )
        return rule._replace(on_late=self.on_late)

    @property
    def waits(self) -> bool:
        """Whether records wait for others, or leave as they come."""
        return self.disorder > 0 or self.watermark is not None or self.ahead is not None


#: The rule of a front that says nothing.
IN_ORDER = EventTime()


def event_time(
    where: str,
    *,
    disorder: Duration = 0,
    ahead: Duration | None = None,
    watermark: Callable[[Any], Time | None] | None = None,
    on_late: OnLate = "divert",
    unit: Unit = DEFAULT_UNIT,
) -> EventTime:
    """The rule of these parameters. Raises `InputError` that begins with ``where``.

    >>> event_time("fronts.Files", disorder=5).disorder
    5
    >>> event_time("fronts.Files", disorder="5 seconds").disorder
    5000
    """
    if not is_unit(unit):
        raise InputError(f"{where}(unit=) takes 's', 'ms' or 'us', got {shortened(unit)}.")
    behind = _counted(f"{where}(disorder=) takes how far times may go back", disorder, unit)
    leap = None
    if ahead is not None:
        leap = _counted(f"{where}(ahead=) takes how far times may leap, or None", ahead, unit)
    if watermark is not None and not callable(watermark):
        raise InputError(
            f"{where}(watermark=) takes a function of the payload, got {shortened(watermark)}."
        )
    if watermark is not None and behind:
        raise InputError(f"{where} takes disorder= or watermark=, not both.")
    if on_late not in get_args(OnLate):
        modes = ", ".join(map(repr, get_args(OnLate)))
        raise InputError(f"{where}(on_late=) takes one of {modes}, got {shortened(on_late)}.")
    return EventTime(behind, leap, watermark, on_late, unit)


def promised_time(told: object, payload: Any, unit: Unit) -> int:
    """What ``watermark=`` returned for a payload, as a number. Raises `InputError`.

    >>> promised_time("noon", "a payload", "ms")
    Traceback (most recent call last):
    emberflow.errors.InputError: watermark= returned 'noon' for 'a payload'. It returns a time or None. A \
time is an int of 64 bits or a datetime, got 'noon'. Read the text with datetime.fromisoformat.
    """
    try:
        return counted_time(told, unit)
    except TimeError as error:
        raise InputError(
            f"watermark= returned {shortened(told)} for {shortened(payload)}. It returns a time or "
            f"None. {error}"
        ) from None


def _counted(what: str, duration: object, unit: Unit) -> int:
    try:
        counted = counted_duration(duration, unit)
    except TimeError as error:
        raise InputError(f"{what}. {error}") from None
    if counted < 0:
        raise InputError(f"{what}, which is 0 or more, got {shortened(duration)}.")
    return counted
