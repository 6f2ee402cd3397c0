"""The kinds of windows: which windows a payload of a time belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from emberflow.errors import FlowError
from emberflow.values.functions import caller
from emberflow.values.times import (
    DEFAULT_UNIT,
    Duration,
    Time,
    TimeError,
    Unit,
    checked_duration,
    counted_duration,
    counted_time,
)

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream

S = TypeVar("S", bound="Tumbling | Sliding | Session")


class Window(NamedTuple):
    """From ``start`` up to ``end``, which is not included: times, or counts for a `CountWindow`."""

    start: int
    end: int


class WindowResult(NamedTuple):
    """The value of a window of a key."""

    key: Any
    window: Window
    value: Any


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size, one after another: ``[0, size)``, ``[size, 2 * size)`` ...

    Here and in all windows of time, sizes are numbers or durations. A flow counts durations in its unit.
    Outside of a flow they are counted in milliseconds.

    >>> Tumbling("5 seconds").containing(7_000)
    (Window(start=5000, end=10000),)
    """

    size: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        _set_span(self, "size")
        _set_offset(self)

    def containing(self, time: Time) -> tuple[Window, ...]:
        size: Any = self.size
        try:
            start = time - (time - self.offset) % size  # type: ignore[operator]
            return (Window(start, start + size),)
        except TypeError:  # not only numbers
            return _numbers(self, DEFAULT_UNIT).containing(counted_time(time, DEFAULT_UNIT))


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, a new one each ``slide``; a payload is in all that contain its time.

    >>> Sliding(10, slide=5).containing(12)
    (Window(start=5, end=15), Window(start=10, end=20))
    """

    size: Duration
    slide: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        _set_span(self, "size")
        _set_span(self, "slide")
        _set_offset(self)

    def containing(self, time: Time) -> tuple[Window, ...]:
        size: Any = self.size
        slide: Any = self.slide
        try:
            last = time - (time - self.offset) % slide  # type: ignore[operator]
            starts = range(last, time - size, -slide)
            return tuple(Window(start, start + size) for start in reversed(starts))
        except TypeError:  # not only numbers
            return _numbers(self, DEFAULT_UNIT).containing(counted_time(time, DEFAULT_UNIT))


@dataclass(frozen=True)
class Session:
    """A window that continues while the next payload comes less than ``gap`` after the last.

    It ends ``gap`` after its last payload.
    """

    gap: Duration

    def __post_init__(self) -> None:
        _set_span(self, "gap")


@dataclass(frozen=True)
class CountWindow:
    """Windows of ``size`` payloads of a key, a new one each ``slide`` (by default each ``size``)."""

    size: int
    slide: int | None = None

    def __post_init__(self) -> None:
        _check_span("CountWindow", "size", self.size)
        if self.slide is not None:
            _check_span("CountWindow", "slide", self.slide)


WindowSpec: TypeAlias = Tumbling | Sliding | Session | CountWindow
Emit: TypeAlias = Literal["update", "close"]


def checked_windows(stream: KeyedStream[Any, Any], windows: WindowSpec, emit: str) -> WindowSpec:
    """Check the arguments that all windows have, and count durations in the unit of the flow."""
    if not isinstance(windows, WindowSpec):
        raise FlowError(
            f"window() takes Tumbling, Sliding, Session or CountWindow, got {windows!r} at "
            f"{caller()}."
        )
    if emit not in ("update", "close"):
        raise FlowError(f"window(emit=) takes 'update' or 'close', got {emit!r} at {caller()}.")
    if not isinstance(windows, CountWindow) and timedelta in map(type, vars(windows).values()):
        windows = _numbers(windows, stream.flow._counted_in())
    return windows


def _check_span(spec: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise FlowError(f"{spec}({name}=) takes an int of at least 1, got {value!r}, {caller()}.")


def _set_span(spec: WindowSpec, name: str) -> None:
    """Check a duration of at least 1. One with a unit of its own is kept as a `timedelta`."""
    duration = _duration(spec, name)
    if not duration > (timedelta() if isinstance(duration, timedelta) else 0):
        raise FlowError(
            f"{type(spec).__name__}({name}=) takes a duration above 0, got {duration!r}, {caller()}."
        )
    object.__setattr__(spec, name, duration)


def _set_offset(spec: Tumbling | Sliding) -> None:
    object.__setattr__(spec, "offset", _duration(spec, "offset"))


def _duration(spec: WindowSpec, name: str) -> Any:
    try:
        return checked_duration(getattr(spec, name))
    except TimeError as error:
        raise FlowError(f"{type(spec).__name__}({name}=): {error} ({caller()})") from None


def _numbers(spec: S, unit: Unit) -> S:
    """The same windows, with their durations as numbers."""
    try:
        numbers: Any = {name: counted_duration(own, unit) for name, own in vars(spec).items()}
        return replace(spec, **numbers)
    except TimeError as error:
        raise FlowError(f"{type(spec).__name__}: {error} ({caller()})") from None
