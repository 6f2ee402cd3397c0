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
still open schedules another for the session's new end. So have the windows of a `Cumulate` that begin
together: they share one accumulator, and a tick at the end of one schedules the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.aggregates.fused import projecting_one
from emberflow.dsl.operators.reduce import STABLE, Ticks, is_stable
from emberflow.dsl.operators.windows.specs import (
    CountWindow,
    Cumulate,
    Emit,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowResult,
    WindowSpec,
    checked_windows,
    described_windows,
)
from emberflow.dsl.operators.windows.windowed import Parts, Windowed
from emberflow.values.functions import UserFunction, itself
from emberflow.values.item import At
from emberflow.values.persistent_map import PersistentMap
from emberflow.values.proofs.functions import declare
from emberflow.values.proofs.shapes import UNKNOWN, Fields, Known, Several, Shape, part_of

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream

K = TypeVar("K")
T = TypeVar("T")


class WindowedStream(Windowed[K, T, WindowResult]):
    """Windows over a keyed stream. Its methods aggregate the payloads of each window."""

    def __init__(self, stream: KeyedStream[K, T], windows: WindowSpec, emit: Emit) -> None:
        super().__init__(stream)
        self._windows = windows
        self._emit: Emit = emit

    @property
    def _operator(self) -> str:
        return f"window of {described_windows(self._windows)}"

    def _parts(self, aggregation: Aggregate[T]) -> Parts:
        closing = self._emit == "close"
        ticking = closing and not isinstance(self._windows, CountWindow)
        step = _step(self._windows, aggregation, closing)
        # A window that a function of the user tells may fail, and then the payload is shown.
        projected = None if isinstance(step, _OwnStep) else projecting_one(aggregation)
        project: Callable[[Any], Any] = itself
        if projected is not None:
            project, step.begin, step.combine = projected
        parts = Parts(
            _Timed(self._stream._key.function, project),
            step,
            _Results(aggregation),
            ticks if ticking else None,
            given=() if projected is None else aggregation.given,
        )
        # Other names where other things are held: a cut of one does not fit the other.
        if isinstance(parts.step, _CumulateStep):
            return parts._replace(results_name="cumulated")
        if isinstance(parts.step, _OwnStep):
            containing = UserFunction("containing", parts.step.windows.told)
            return parts._replace(results_name="own results", in_step=(containing,))
        return parts


def window(stream: KeyedStream[Any, Any], windows: WindowSpec, emit: str) -> Any:
    """See `KeyedStream.window`."""
    return WindowedStream(stream, checked_windows(stream, windows, emit), emit)  # type: ignore[arg-type]


# The mapped value is (time, is_tick, payload). The accumulator is (open, emitted, ends): open and
# emitted are tuples of (window, accumulator), ends are the times to schedule ticks at.

_Open: TypeAlias = tuple[tuple[Window, Any], ...]
Accumulator: TypeAlias = tuple[Any, _Open, tuple[int, ...]]


class _Timed:
    """Payload to mapped item: ``(key, False, (time, is_tick, what is needed of the payload))``."""

    __slots__ = ("key", "project")

    def __init__(self, key: Callable[[Any], Any], project: Callable[[Any], Any]) -> None:
        self.key = key
        self.project = project

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, Any]:
        key = self.key(payload)
        if key.__class__ in STABLE or is_stable(key):  # the first saves a call
            payload = self.project(payload)
        return key, False, (time, False, payload)


def _follows(accumulator: tuple[Any, bool, Accumulator]) -> list[At[Any]] | tuple[()] | None:
    _, emitted, ends = accumulator[2]
    if not ends:
        return () if emitted else None
    key = accumulator[0]
    return [At(end, (key, False, (end, True, None))) for end in ends]


ticks = Ticks(_follows)

#: Maps that send items back into the bucket they come from: such a cycle stays within one key.
KEEPS_KEY = frozenset({ticks})


class _Results:
    """Accumulator to the results of the last payload or tick."""

    __slots__ = ("result",)

    def __init__(self, aggregation: Aggregate[Any]) -> None:
        self.result = aggregation.result

    def __call__(self, accumulator: tuple[Any, bool, Accumulator]) -> list[WindowResult]:
        emitted = accumulator[2][1]
        if not emitted:
            return []
        key, result = accumulator[0], self.result
        if len(emitted) == 1:  # mostly
            window, held = emitted[0]
            return [WindowResult(key, window, held if result is None else result(held))]
        return [
            WindowResult(key, window, held if result is None else result(held))
            for window, held in emitted
        ]


def _shape_of_results(triple: Shape) -> Shape:
    key = part_of(triple, Known("constant", 0))
    return Several(Fields(("key", "window", "value"), (key, UNKNOWN, UNKNOWN)))


declare(_Results, _shape_of_results)


def _step(windows: WindowSpec, aggregation: Aggregate[Any], closing: bool) -> Step:
    if isinstance(windows, Session):
        return _SessionStep(windows, aggregation, closing)
    if isinstance(windows, CountWindow):
        return _CountStep(windows, aggregation, closing)
    if isinstance(windows, Cumulate):
        return _CumulateStep(windows, aggregation, closing)
    if isinstance(windows, Tumbling):
        return _TumblingStep(windows, aggregation, closing)
    if isinstance(windows, Sliding):
        return _SlidingStep(windows, aggregation, closing)
    return _OwnStep(windows, aggregation, closing)


class Step:
    """From an accumulator and a mapped value to the next accumulator."""

    nothing: Any = ()

    def __init__(self, windows: Any, aggregation: Aggregate[Any], closing: bool) -> None:
        self.windows = windows
        self.begin = aggregation.first
        self.combine = aggregation.combine
        self.closing = closing

    def first(self, mapped: tuple[int, bool, Any]) -> Accumulator:
        return self((self.nothing, (), ()), mapped)

    def __call__(self, accumulator: Accumulator, mapped: tuple[int, bool, Any]) -> Accumulator:
        raise AssertionError("every step defines __call__")


class _SlidingStep(Step):
    """Sliding windows, the open ones in the order of their ends. All of them contain the next payload, unless they
    have ended; those that it opens begin behind them. A payload scheduled for the end of a window may come
    before the tick, and closes it too."""

    def __call__(self, accumulator: Accumulator, mapped: tuple[int, bool, Any]) -> Accumulator:
        time, is_tick, payload = mapped
        open_windows: _Open = accumulator[0]
        ended: _Open = ()
        if open_windows and open_windows[0][0][1] <= time:
            count, size = 1, len(open_windows)
            while count < size and open_windows[count][0][1] <= time:
                count += 1
            ended, open_windows = open_windows[:count], open_windows[count:]
        if is_tick:
            return open_windows, ended, ()
        combine, size, slide = self.combine, self.windows.size, self.windows.slide
        touched = [(window, combine(held, payload)) for window, held in open_windows]
        last = time - (time - self.windows.offset) % slide
        newest = touched[-1][0][0] if touched else time - size
        ends: tuple[int, ...] = ()
        if newest < last:
            starts = range(last, newest, -slide)[::-1]
            touched += [(Window(start, start + size), self.begin(payload)) for start in starts]
            ends = tuple([start + size for start in starts])
        open_windows = tuple(touched)
        if self.closing:
            return open_windows, ended, ends
        return open_windows, open_windows, ()


class _TumblingStep(Step):
    """Windows of which one is open: most payloads are in the one that is."""

    def __call__(self, accumulator: Accumulator, mapped: tuple[int, bool, Any]) -> Accumulator:
        time, is_tick, payload = mapped
        open_windows: _Open = accumulator[0]
        if open_windows:
            window, held = open_windows[0]
            if time < window[1]:
                if is_tick:
                    return open_windows, (), ()
                open_windows = ((window, self.combine(held, payload)),)
                return open_windows, () if self.closing else open_windows, ()
        # What is open has ended.
        if is_tick:
            return (), open_windows, ()
        size = self.windows.size
        start = time - (time - self.windows.offset) % size
        opened = ((Window(start, start + size), self.begin(payload)),)
        if self.closing:
            return opened, open_windows, (start + size,)
        return opened, opened, ()


class _CumulateStep(Step):
    """Windows that begin together are told the same accumulator, each at its end.

    The first part of the accumulator is ``(start, next end, accumulator)`` of the open ones, or empty.
    """

    def __call__(self, accumulator: Any, mapped: tuple[int, bool, Any]) -> Any:
        time, is_tick, payload = mapped
        step, size = self.windows.step, self.windows.size
        is_open, ended = bool(accumulator[0]), []
        if is_open:
            start, end, held = accumulator[0]
            while end <= time and end <= start + size:
                ended.append((Window(start, end), held))
                end += step
            is_open = end <= start + size
        if is_tick:
            # Windows that began at this time have a tick of their own.
            ends = (end,) if is_open and start < time else ()
            return (start, end, held) if is_open else (), tuple(ended), ends
        ends = ()
        if is_open:
            held = self.combine(held, payload)
        else:
            start, end = self.windows.containing(time)[0]
            held, ends = self.begin(payload), (end,)
        if self.closing:
            return (start, end, held), tuple(ended), ends
        touched = [(Window(start, each), held) for each in range(end, start + size + 1, step)]
        return (start, end, held), tuple(touched), ()


class OpenStep(Step):
    """Any windows. The first part of the accumulator is a map from ``(when it closes, window)`` to the
    window's accumulator, so that those that close next are the first."""

    nothing: Any = PersistentMap()

    def windows_of(self, time: int, payload: Any) -> Iterable[tuple[int, Window]]:
        """The windows that a payload is in, and when each closes."""
        raise AssertionError("every such step defines windows_of")

    def __call__(self, accumulator: Any, mapped: tuple[int, bool, Any]) -> Any:
        time, is_tick, payload = mapped
        open_windows: PersistentMap[tuple[int, Window], Any] = accumulator[0]
        ended = []
        for entry, held in open_windows.items():
            if entry[0] > time:
                break
            ended.append((entry, held))
        if ended:
            open_windows = open_windows.above(ended[-1][0])
        emitted = [(window, held) for (_, window), held in ended]
        if is_tick:
            return open_windows, tuple(emitted), ()
        opened, touched = [], []
        for entry in self.windows_of(time, payload):
            if entry in open_windows:
                held = self.combine(open_windows.get(entry), payload)
            else:
                held = self.begin(payload)
                opened.append(entry[0])
            open_windows = open_windows.set(entry, held)
            touched.append((entry[1], held))
        if self.closing:
            return open_windows, tuple(emitted), tuple(opened)
        return open_windows, tuple(touched), ()


class _OwnStep(OpenStep):
    """Windows that a function of the user tells."""

    def windows_of(self, time: int, payload: Any) -> Iterable[tuple[int, Window]]:
        return [(window.end, window) for window in self.windows.containing(time)]


class _SessionStep(Step):
    """At most one session is open."""

    def __call__(self, accumulator: Accumulator, mapped: tuple[int, bool, Any]) -> Accumulator:
        time, is_tick, payload = mapped
        open_windows: _Open = accumulator[0]
        if open_windows:
            (start, end), held = open_windows[0]
            if time < end:
                if is_tick:
                    # A session that began at this time has a tick of its own.
                    return open_windows, (), (end,) if start < time else ()
                window = Window(start, time + self.windows.gap)
                open_windows = ((window, self.combine(held, payload)),)
                return open_windows, () if self.closing else open_windows, ()
        # What is open has ended.
        if is_tick:
            return (), open_windows, ()
        end = time + self.windows.gap
        opened = ((Window(time, end), self.begin(payload)),)
        if self.closing:
            return opened, open_windows, (end,)
        return opened, opened, ()


class _CountStep(Step):
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
