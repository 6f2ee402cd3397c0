"""Windows of time and of number, over the payloads of a key.

Time is the time of the item, and a reduce sees items in order: nothing earlier follows a payload. So
a window needs no watermark and no allowed lateness. The accumulator of a key holds its open windows;
a payload first drops those that ended at or before its time, then joins those that contain its time.
A payload that arrives late by the clock is sorted to its place, and so gets into its window like any
other.

Windows that emit when they close have a *tick*: when a window opens, a map behind the cycle
schedules an item for its end, which a loop brings back into the same bucket, where it closes the
window.

::

    timed payload ──> merge ──> [drift: open windows] ──> fan-out ──> results ──> out
                        ^                                    │
                        └────── At(end, tick) <── ticks ─────┘

At equal times, scheduled items come before elements: a window ``[start, end)`` closes before the
element of time ``end``.

A session has one tick in flight, however many payloads extend it: a tick that finds the session
still open schedules another for the session's new end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from emberflow.dsl.operators.aggregates import (
    Aggregation,
    averaging,
    counting,
    greatest,
    least,
    summing,
)
from emberflow.dsl.operators.reduce import drift, keyed_map
from emberflow.errors import FlowError
from emberflow.graph.nodes import Merge
from emberflow.values.functions import UserFunction, caller
from emberflow.values.item import At
from emberflow.values.persistent import PersistentList
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
    from emberflow.dsl.streams import KeyedStream, Stream

K = TypeVar("K")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
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


class Parts(NamedTuple):
    """The functions that windows are made of, see the drawing above."""

    timed: Callable[[int, Any], Any]
    step: Any
    results: Callable[[Any], Any]
    #: None where no window has to be told of its end.
    ticks: Callable[[Any], Any] | None
    time_name: str = "time"
    results_name: str = "results"
    #: Functions of the user that ``timed`` calls, besides the key.
    given: tuple[UserFunction, ...] = ()


class Windowed(Generic[K, T, R]):
    """What all windows over a keyed stream can do: aggregate the payloads of each window."""

    def __init__(self, stream: KeyedStream[K, T]) -> None:
        self._stream = stream

    def reduce(
        self,
        *,
        first: Callable[[T], A],
        combine: Callable[[A, T], A],
        name: str | None = None,
    ) -> Stream[R]:
        """The accumulator of each window.

        >>> import emberflow as ef
        >>> flow = ef.Flow("sessions")
        >>> clicks = flow.front("clicks").key_by(lambda click: click[0])
        >>> sessions = clicks.window(ef.Session(gap=30), emit="close")
        >>> paths = sessions.reduce(first=lambda c: c[1], combine=lambda path, c: path + c[1])
        >>> paths.map(lambda r: (r.key, *r.window, r.value)).sink("paths")
        >>> ef.run(flow, clicks=[ef.At(0, "ux"), ef.At(20, "uy"), ef.At(50, "uz"), ef.At(79, "ux")])
        {'paths': [('u', 0, 50, 'xy'), ('u', 50, 109, 'zx')]}
        """
        given = (UserFunction("first", first), UserFunction("combine", combine))
        return self._aggregate(Aggregation(first, combine, None, given), name)

    def fold(
        self, *, initial: A, combine: Callable[[A, T], A], name: str | None = None
    ) -> Stream[R]:
        """Like `reduce`, with the same initial accumulator for each window."""
        given = (UserFunction("combine", combine),)
        return self._aggregate(
            Aggregation(lambda payload: combine(initial, payload), combine, None, given), name
        )

    def count(self, *, name: str | None = None) -> Stream[R]:
        """How many payloads are in the window."""
        return self._aggregate(counting(), name)

    def sum(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The sum of the payloads, or of ``of(payload)``."""
        return self._aggregate(summing(of), name)

    def min(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The least."""
        return self._aggregate(least(of), name)

    def max(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The greatest."""
        return self._aggregate(greatest(of), name)

    def mean(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The arithmetic mean."""
        return self._aggregate(averaging(of), name)

    def collect(self, *, name: str | None = None) -> Stream[R]:
        """All payloads of the window, as a tuple.

        With ``emit="update"`` each payload emits all of them so far, so the output of a window grows
        with the square of its length; with ``emit="close"`` it does not.

        >>> import emberflow as ef
        >>> flow = ef.Flow("pairs")
        >>> pairs = (
        ...     flow.front("letters").key_by(lambda l: None).window(ef.CountWindow(2), emit="close")
        ... )
        >>> pairs.collect().map(lambda result: result.value).sink("pairs")
        >>> ef.run(flow, letters="abcde")
        {'pairs': [('a', 'b'), ('c', 'd')]}
        """
        # Each payload makes a version of the accumulator; a tuple would be copied for each.
        return self._aggregate(
            Aggregation(
                lambda payload: PersistentList((payload,)),
                lambda held, payload: held.append(payload),
                tuple,
            ),
            name,
        )

    def _aggregate(self, aggregation: Aggregation, name: str | None) -> Stream[R]:
        for given in aggregation.given:
            if not callable(given.given):
                raise FlowError(f"{given.role}= takes a function, got {given.given!r}, {caller()}.")
        stream, flow = self._stream, self._stream.flow
        parts = self._parts(aggregation)
        key = stream._key
        with flow._scope("window", name):
            mapped = keyed_map(stream, parts.timed, *parts.given, timed=True, name=parts.time_name)
            if parts.ticks is not None:
                ticks = flow.loop(name="tick")
                mapped = flow._add(Merge, "payloads", inputs=(mapped._input, ticks._input))
            accumulators = drift(
                mapped,
                parts.step.first,
                parts.step,
                key=key.given,
                given=aggregation.given,
                shown=itemgetter(2),
            )
            results = accumulators._map(
                parts.results, "many", *aggregation.given, name=parts.results_name
            )
            if parts.ticks is not None:
                made = accumulators._map(parts.ticks, "many", name="ticks")
                flow._reductions[-1] = replace(flow._reductions[-1], ticks=made._input.node)
                ticks.close(made)
            return results

    def _parts(self, aggregation: Aggregation) -> Parts:
        raise AssertionError("all windows define _parts")


class WindowedStream(Windowed[K, T, WindowResult]):
    """Windows over a keyed stream. Its methods aggregate the payloads of each window."""

    def __init__(self, stream: KeyedStream[K, T], windows: WindowSpec, emit: Emit) -> None:
        super().__init__(stream)
        self._windows = windows
        self._emit: Emit = emit

    def _parts(self, aggregation: Aggregation) -> Parts:
        closing = self._emit == "close"
        ticking = closing and not isinstance(self._windows, CountWindow)
        return Parts(
            _Timed(self._stream._key.function),
            _step(self._windows, aggregation, closing),
            _Results(aggregation),
            _ticks if ticking else None,
        )


def window(stream: KeyedStream[Any, Any], windows: WindowSpec, emit: str) -> Any:
    """See `KeyedStream.window`."""
    return WindowedStream(stream, checked_windows(stream, windows, emit), emit)  # type: ignore[arg-type]


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


# The mapped value is (time, is_tick, payload). The accumulator is (open, emitted, ends): open and
# emitted are tuples of (window, accumulator), ends are the times to schedule ticks at.

_Open: TypeAlias = tuple[tuple[Window, Any], ...]
_Accumulator: TypeAlias = tuple[Any, _Open, tuple[int, ...]]


class _Timed:
    """Payload to mapped item: ``(key, False, (time, is_tick, payload))``."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, Any]:
        return self.key(payload), False, (time, False, payload)


def _ticks(accumulator: tuple[Any, bool, _Accumulator]) -> list[At[Any]]:
    key, _, (_, _, ends) = accumulator
    if not ends:
        return []
    return [At(end, (key, False, (end, True, None))) for end in ends]


#: Maps that send items back into the bucket they come from: such a cycle stays within one key.
KEEPS_KEY = frozenset({_ticks})


class _Results:
    """Accumulator to the results of the last payload or tick."""

    __slots__ = ("result",)

    def __init__(self, aggregation: Aggregation) -> None:
        self.result = aggregation.result

    def __call__(self, accumulator: tuple[Any, bool, _Accumulator]) -> list[WindowResult]:
        key, _, (_, emitted, _) = accumulator
        if not emitted:
            return []
        result = self.result
        return [
            WindowResult(key, window, held if result is None else result(held))
            for window, held in emitted
        ]


def _step(windows: WindowSpec, aggregation: Aggregation, closing: bool) -> _Step:
    if isinstance(windows, Session):
        return _SessionStep(windows, aggregation, closing)
    if isinstance(windows, CountWindow):
        return _CountStep(windows, aggregation, closing)
    kind = _TumblingStep if isinstance(windows, Tumbling) else _TimeStep
    return kind(windows, aggregation, closing)


class _Step:
    """From an accumulator and a mapped value to the next accumulator."""

    nothing: Any = ()

    def __init__(self, windows: Any, aggregation: Aggregation, closing: bool) -> None:
        self.windows = windows
        self.begin = aggregation.first
        self.combine = aggregation.combine
        self.closing = closing

    def first(self, mapped: tuple[int, bool, Any]) -> _Accumulator:
        return self((self.nothing, (), ()), mapped)

    def __call__(self, accumulator: _Accumulator, mapped: tuple[int, bool, Any]) -> _Accumulator:
        raise AssertionError("every step defines __call__")


class _TimeStep(_Step):
    """Tumbling and sliding windows. The open ones are held in the order of their ends."""

    def __call__(self, accumulator: _Accumulator, mapped: tuple[int, bool, Any]) -> _Accumulator:
        time, is_tick, payload = mapped
        open_windows: _Open = accumulator[0]
        ended = tuple(entry for entry in open_windows if entry[0].end <= time)
        open_windows = open_windows[len(ended) :]
        if is_tick:
            return open_windows, ended, ()
        held = dict(open_windows)
        opened, touched = [], []
        for window in self.windows.containing(time):
            if window in held:
                held[window] = self.combine(held[window], payload)
            else:
                held[window] = self.begin(payload)
                opened.append(window.end)
            touched.append((window, held[window]))
        # Windows that this payload opens end after all that were open before: the order holds.
        open_windows = tuple(held.items())
        if self.closing:
            # A payload scheduled for the end of a window may come before the tick, and closes it too.
            return open_windows, ended, tuple(opened)
        return open_windows, tuple(touched), ()


class _TumblingStep(_TimeStep):
    """Windows of which one is open: most payloads are in the one that is."""

    def __call__(self, accumulator: _Accumulator, mapped: tuple[int, bool, Any]) -> _Accumulator:
        open_windows: _Open = accumulator[0]
        if open_windows and not mapped[1] and mapped[0] < open_windows[0][0][1]:
            window, held = open_windows[0]
            open_windows = ((window, self.combine(held, mapped[2])),)
            return open_windows, () if self.closing else open_windows, ()
        return super().__call__(accumulator, mapped)


class _SessionStep(_Step):
    """At most one session is open."""

    def __call__(self, accumulator: _Accumulator, mapped: tuple[int, bool, Any]) -> _Accumulator:
        time, is_tick, payload = mapped
        open_windows: _Open = accumulator[0]
        still_open = bool(open_windows) and time < open_windows[0][0].end
        if is_tick:
            if not still_open:
                return (), open_windows, ()
            window, _ = open_windows[0]
            # A session that began at this time has a tick of its own.
            return open_windows, (), (window.end,) if window.start < time else ()
        end = time + self.windows.gap
        if still_open:
            window, held = open_windows[0]
            session = (Window(window.start, end), self.combine(held, payload))
            ends: tuple[int, ...] = ()
        else:
            session = (Window(time, end), self.begin(payload))
            ends = (end,)
        if self.closing:
            return (session,), () if still_open else open_windows, ends
        return (session,), (session,), ()


class _CountStep(_Step):
    """Windows of number. The first part of the accumulator is ``(payloads so far, open)``."""

    nothing: Any = (0, ())

    def __call__(self, accumulator: Any, mapped: tuple[int, bool, Any]) -> Any:
        payload = mapped[2]
        number, open_windows = accumulator[0]
        size, slide = self.windows.size, self.windows.slide or self.windows.size
        touched = [(window, self.combine(held, payload)) for window, held in open_windows]
        if number % slide == 0:
            touched.append((Window(number, number + size), self.begin(payload)))
        number += 1
        full = tuple(entry for entry in touched if entry[0].end <= number)
        still_open = tuple(touched[len(full) :])
        return (number, still_open), full if self.closing else tuple(touched), ()


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
