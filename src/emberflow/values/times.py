"""Times and durations as users say them, and the numbers that the engine counts in.

Guarantees:

1. *A number keeps its meaning.* An int is a count of whatever unit the flow counts in, and stays as it is.
2. *One instant, one number.* A datetime is counted from 1970-01-01 UTC, and what is finer than the unit is
   cut off towards the past. So the number does not depend on the zone that a datetime is told in.
3. *The same on every machine.* A datetime without a zone is in UTC, never in the zone of the process.
4. *Nothing is rounded silently.* A duration that is not a whole number of units is an error: a window of
   one and a half units would be another window.

Both conversions look at an int first. A flow that has only numbers pays one comparison for them.

pandas and numpy are not imported. A `pandas.Timestamp` is a `datetime`, and a `pandas.Timedelta` is a
`timedelta`. ``numpy.datetime64`` is known by its name.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any, Literal, TypeAlias, TypeGuard, get_args

from emberflow.errors import InputError, shortened
from emberflow.values.item import TIME_MAX, TIME_MIN, is_time

Unit: TypeAlias = Literal["s", "ms", "us"]
#: A number, or an instant.
Time: TypeAlias = int | datetime
#: A number, or a span of time: a `timedelta`, or a text such as ``"5 seconds"``.
Duration: TypeAlias = int | timedelta | str

#: What a flow counts in that says nothing: the unit of times of arrival and of Kafka's timestamps.
DEFAULT_UNIT: Unit = "ms"
#: The microseconds of each unit.
MICROSECONDS: dict[Unit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
#: How many of a unit are a millisecond, of the units that have so many.
PER_MILLISECOND: dict[Unit, int] = {"ms": 1, "us": 1_000}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeError(ValueError):
    """A value that is no time or no duration. The text says what is expected, and what to do."""


def is_unit(unit: object) -> TypeGuard[Unit]:
    return unit in get_args(Unit)


def counted_time(time: object, unit: Unit) -> int:
    """A time as a number. Raises `TimeError`.

    >>> counted_time(5, "ms"), counted_time(datetime(1970, 1, 1, 0, 0, 5), "ms")
    (5, 5000)
    >>> counted_time("1970-01-01", "ms")
    Traceback (most recent call last):
    emberflow.values.times.TimeError: A time is an int of 64 bits or a datetime, got '1970-01-01'. \
Read the text with datetime.fromisoformat.
    """
    if (time.__class__ is int and TIME_MIN <= time <= TIME_MAX) or is_time(time):
        return time  # type: ignore[return-value]
    given = time
    if type(time).__name__ == "datetime64":
        time = _of_numpy(time)
    if isinstance(time, datetime) and time == time:  # pandas.NaT is a datetime and equals nothing
        if time.utcoffset() is None:
            time = time.replace(tzinfo=UTC)
        since = time - _EPOCH
        # Not total_seconds(), which is a float. A pandas.Timedelta has its nanoseconds besides.
        seconds = since.days * 86_400 + since.seconds
        return (seconds * 1_000_000 + since.microseconds) // MICROSECONDS[unit]
    raise TimeError(
        f"A time is an int of 64 bits or a datetime, got {shortened(given)}.{_advice(given)}"
    )


def number_of(time: Any, unit: Unit) -> Any:
    """A datetime as a number; all else as it is, for a later check to find.

    >>> number_of(datetime(1970, 1, 1, 0, 0, 5), "s"), number_of("noon", "s")
    (5, 'noon')
    """
    try:
        return counted_time(time, unit)
    except TimeError:
        return time


def checked_duration(duration: object) -> int | timedelta:
    """A duration: a number, or a `timedelta` for all that has a unit of its own. Raises `TimeError`.

    >>> checked_duration(5), checked_duration("1 hour 30 minutes"), checked_duration("500ms")
    (5, datetime.timedelta(seconds=5400), datetime.timedelta(microseconds=500000))
    """
    if is_time(duration):
        return duration  # type: ignore[return-value]
    if isinstance(duration, timedelta):
        if getattr(duration, "nanoseconds", 0):  # of pandas
            raise TimeError(f"A duration has no parts of a microsecond, got {duration!r}.")
        return timedelta(duration.days, duration.seconds, duration.microseconds)
    if isinstance(duration, str):
        return _parsed(duration)
    raise TimeError(f"{_EXPECTED}, got {shortened(duration)}.")


def counted_duration(duration: object, unit: Unit) -> int:
    """A duration as a number. Raises `TimeError`.

    >>> counted_duration(5, "ms"), counted_duration("5 seconds", "ms"), counted_duration("-1 day", "s")
    (5, 5000, -86400)
    >>> counted_duration("1500 us", "ms")
    Traceback (most recent call last):
    emberflow.values.times.TimeError: '1500 us' is not a whole number of ms, which times are counted in. \
Round it, or count in a finer unit with unit=.
    """
    known = checked_duration(duration)
    if isinstance(known, int):
        return known
    count, rest = divmod(known, timedelta(microseconds=MICROSECONDS[unit]))
    if rest:
        raise TimeError(
            f"{shortened(duration)} is not a whole number of {unit}, which times are counted in. "
            f"Round it, or count in a finer unit with unit=."
        )
    return count


def has_expired(touched: int, expires: int | None, now: int) -> bool:
    """Whether what was touched at a time, and lives so long after, is gone at another time.

    >>> [has_expired(5, 10, now) for now in (14, 15)], has_expired(5, None, 15)
    ([False, True], False)
    """
    return expires is not None and touched + expires <= now


def milliseconds(duration: float | Duration, where: str) -> float:
    """A duration by the clock, in milliseconds; a number stays as it is. Raises `InputError`.

    >>> milliseconds(20, "poll_ms="), milliseconds(0.5, "poll_ms="), milliseconds("2 s", "poll_ms=")
    (20, 0.5, 2000.0)
    """
    if isinstance(duration, int | float):
        return duration
    try:
        known = checked_duration(duration)
    except TimeError as error:
        raise InputError(f"{where} takes milliseconds. {error}") from None
    return known if isinstance(known, int) else known / timedelta(milliseconds=1)


def seconds(duration: float | Duration, where: str) -> float:
    """A duration by the clock, in seconds; a number stays as it is. Raises `InputError`.

    >>> seconds(20, "commit_every="), seconds("1 minute", "commit_every=")
    (20, 60.0)
    """
    try:
        known = duration if isinstance(duration, float) else checked_duration(duration)
    except TimeError as error:
        raise InputError(f"{where} takes seconds. {error}") from None
    found = known / timedelta(seconds=1) if isinstance(known, timedelta) else known
    if not found >= 0:
        raise InputError(f"{where} takes seconds, 0 or more, got {duration!r}.")
    return found


_EXPECTED = "A duration is an int, a timedelta or a text such as '5 seconds'"
_WORDS: dict[str, int] = {
    word: microseconds
    for microseconds, words in {
        1: "microseconds microsecond us µs",
        1_000: "milliseconds millisecond ms",
        1_000_000: "seconds second secs sec s",
        60_000_000: "minutes minute mins min m",
        3_600_000_000: "hours hour h",
        86_400_000_000: "days day d",
        604_800_000_000: "weeks week w",
    }.items()
    for word in words.split()
}
_PART = re.compile(r"([+-]?)\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def _parsed(text: str) -> timedelta:
    # The micro sign has two code points, of which one is for Greek.
    rest = re.sub(r"^interval\b", "", text.strip().lower().replace("μ", "µ")).strip()
    total = Fraction(0)
    begin = 0
    while begin < len(rest) or not begin:
        part = _PART.match(rest, begin)
        if part is None:
            raise TimeError(f"{_EXPECTED} or '1 hour 30 minutes', got {shortened(text)}.")
        sign, number, word = part.groups()
        if word not in _WORDS:
            raise TimeError(
                f"A duration has no unit {word!r}, got {shortened(text)}. There are microseconds (us), "
                f"milliseconds (ms), seconds (s), minutes (min), hours (h), days (d) and weeks (w): "
                f"months and years differ in length."
            )
        total += Fraction(sign + number) * _WORDS[word]
        begin = part.end()
    if total.denominator != 1:
        raise TimeError(f"A duration has no parts of a microsecond, got {shortened(text)}.")
    try:
        return timedelta(microseconds=total.numerator)
    except OverflowError:
        raise TimeError(f"{shortened(text)} is longer than a duration can be.") from None


def _of_numpy(time: Any) -> Any:
    """A ``numpy.datetime64`` as a datetime; itself if no datetime has its year, or if it is NaT."""
    year = int(time.astype("datetime64[Y]").astype("int64")) + 1970
    return time.astype("datetime64[us]").item() if 1 <= year <= 9999 else time


def _advice(time: object) -> str:
    if isinstance(time, str):
        return " Read the text with datetime.fromisoformat."
    if isinstance(time, date) and not isinstance(time, datetime):
        return " Say which time of the day: datetime(year, month, day)."
    if isinstance(time, float):
        return " Round it to an int."
    return ""
