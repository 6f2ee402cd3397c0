"""The kinds of windows: which windows a payload of a time belongs to.

`Tumbling`, `Sliding`, `Cumulate` and windows of a user's own (`Windows`) say it by a function of the time,
``containing``. The end of a `Session` depends on the payloads that follow, and a `CountWindow` counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from emberflow.errors import FlowError, shortened
from emberflow.values.functions import caller
from emberflow.values.item import is_time
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

S = TypeVar("S", bound="Tumbling | Sliding | Cumulate | Session")


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
class Cumulate:
    """Windows that grow by ``step`` up to ``size``, and then begin anew: ``[0, step)``, ``[0, 2 * step)`` ...
    ``[0, size)``, ``[size, size + step)`` ... A payload is in all that contain its time.

    >>> Cumulate(step=5, size=15).containing(7)
    (Window(start=0, end=10), Window(start=0, end=15))
    """

    step: Duration
    size: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        _set_span(self, "step")
        _set_span(self, "size")
        _set_offset(self)
        step: Any = self.step
        size: Any = self.size
        # A number and a duration are compared when the flow says what it counts in.
        if type(step) is type(size) and size % step:
            raise FlowError(
                f"Cumulate(step=, size=) takes a size that is a whole number of steps, got {step!r} and "
                f"{size!r}, {caller()}."
            )

    def containing(self, time: Time) -> tuple[Window, ...]:
        size: Any = self.size
        step: Any = self.step
        try:
            start = time - (time - self.offset) % size  # type: ignore[operator]
            first = time - (time - start) % step + step
            return tuple(Window(start, end) for end in range(first, start + size + 1, step))
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


@runtime_checkable
class Windows(Protocol):
    """Windows of your own: anything that tells which windows contain a time.

    ``containing`` is a pure function. It returns pairs ``(start, end)`` with ``start <= time < end``, in the
    unit that the flow counts in. Two times in one window must both be told of it.

    >>> import emberflow as ef
    >>> class Shifts:
    ...     def containing(self, time):  # a day of 24 hours has a long shift and a short one
    ...         day = time - time % 24
    ...         return [(day, day + 16)] if time < day + 16 else [(day + 16, day + 24)]
    >>> flow = ef.Flow("shifts")
    >>> parts = flow.front("parts").key_by(lambda part: None)
    >>> parts.window(Shifts(), emit="close").count().map(lambda r: (*r.window, r.value)).sink("out")
    >>> ef.run(flow, parts=[ef.At(hour, "part") for hour in (1, 15, 17, 30)])
    {'out': [(0, 16, 2), (16, 24, 1), (24, 40, 1)]}
    """

    def containing(self, time: int, /) -> Iterable[tuple[int, int]]: ...


class OwnWindows:
    """Windows of a user's own, as windows: what they tell is checked, and sorted by its ends."""

    __slots__ = ("name", "told")

    def __init__(self, windows: Windows) -> None:
        #: The name of the user's class, which tells windows apart between versions of a flow.
        self.name = type(windows).__qualname__
        # One object: `verify` watches it.
        self.told = windows.containing

    def __repr__(self) -> str:
        return self.name

    def containing(self, time: int) -> tuple[Window, ...]:
        found = set()
        for each in self.told(time):
            if not isinstance(each, tuple) or len(each) != 2 or not all(map(is_time, each)):
                raise TypeError(
                    f"containing({time}) gave {shortened(each)}: a window is a pair of ints, its start "
                    f"and its end"
                )
            window = Window(*each)
            if not window.start <= time < window.end:
                raise ValueError(f"containing({time}) gave {window}, which does not contain it")
            found.add(window)
        return tuple(sorted(found, key=lambda window: (window.end, window.start)))


TimeWindows: TypeAlias = Tumbling | Sliding | Cumulate | Session
WindowSpec: TypeAlias = TimeWindows | CountWindow | Windows
Emit: TypeAlias = Literal["update", "close"]


def checked_windows(stream: KeyedStream[Any, Any], windows: Any, emit: str) -> WindowSpec:
    """Check the arguments that all windows have, and count durations in the unit of the flow."""
    if isinstance(windows, type) or not isinstance(windows, WindowSpec):
        called = f" Call it: {windows.__qualname__}(...)." if isinstance(windows, type) else ""
        raise FlowError(
            f"window() takes Tumbling, Sliding, Cumulate, Session, CountWindow or windows of your own "
            f"(ef.Windows), got {windows!r} at {caller()}.{called}"
        )
    if emit not in ("update", "close"):
        raise FlowError(f"window(emit=) takes 'update' or 'close', got {emit!r} at {caller()}.")
    if isinstance(windows, TimeWindows) and timedelta in map(type, vars(windows).values()):
        windows = _numbers(windows, stream.flow._counted_in())
    if not isinstance(windows, TimeWindows | CountWindow):
        windows = OwnWindows(windows)
    checked: WindowSpec = windows
    return checked


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


def _set_offset(spec: Tumbling | Sliding | Cumulate) -> None:
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


def described_windows(windows: object) -> str:
    """Checked windows with their sizes; those of a user's own class by its name.

    >>> described_windows(Tumbling(10))
    'Tumbling(size=10, offset=0)'
    """
    return repr(windows)
