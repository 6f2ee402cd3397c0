"""All keys of a window: the results of one window meet, and leave together right behind its end.

What is guaranteed: of the results of windows that close, all that have the same window become one result, of
all keys, in the order of the payloads that opened the windows. It leaves one unit of time behind the end of
the window: the results come at the end itself, and at the next time no more of them can follow.

The results of a window meet in a bucket that a hash of the window picks, of so many that the work is spread.
A window that has closed leaves nothing behind there. With a bucket for each window the state would grow with
every window that there has ever been.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.windows.plain import Accumulator, Step, ticks
from emberflow.dsl.operators.windows.specs import Window, WindowResult
from emberflow.dsl.operators.windows.windowed import Parts, Windowed
from emberflow.errors import shortened
from emberflow.values.hashing import key_hash

if TYPE_CHECKING:
    from emberflow.dsl.streams import Stream

#: It is part of what a cut holds: never change it.
_BUCKETS = 1024

_window_of = itemgetter(0)


def _bucket(result: WindowResult) -> int:
    return _bucket_of(result.window)


@lru_cache(_BUCKETS, typed=True)
def _bucket_of(window: Window) -> int:
    return key_hash(window) % _BUCKETS


class GatheredWindows(Windowed[None, WindowResult, WindowResult]):
    """The results of each window, of all keys. See `Stream.per_window`."""

    _label = "per_window"

    def __init__(self, stream: Stream[WindowResult]) -> None:
        super().__init__(stream.key_by(_bucket))  # type: ignore[arg-type]

    def _parts(self, aggregation: Aggregate[WindowResult]) -> Parts:
        step = _GatheringStep(None, aggregation, closing=True)
        # The name is that of what is held: a cut that holds anything else does not fit it.
        return Parts(_timed, step, _OfAllKeys(aggregation), ticks, results_name="gathered")


def _timed(time: int, result: Any) -> tuple[int, bool, Any]:
    """Result to mapped item: ``(bucket, False, (time, is_tick, result))``."""
    if not isinstance(result, WindowResult):
        raise TypeError(
            f"per_window() takes the results of windows (ef.WindowResult), got {shortened(result)}"
        )
    if result.window[1] != time:
        raise ValueError(
            f"per_window() takes results of windows of time with emit='close', which come at the end of "
            f"their window. At time {time} came {shortened(result)}"
        )
    return _bucket(result), False, (time, False, result)


class _GatheringStep(Step):
    """The open windows of a bucket, in order. All of them end at the same time, and close at the next: a
    result comes at the end of its window. Mostly there is one."""

    def __call__(self, accumulator: Accumulator, mapped: tuple[int, bool, Any]) -> Accumulator:
        time, is_tick, result = mapped
        open_windows, ended = accumulator[0], ()
        if open_windows and open_windows[0][0][1] < time:
            open_windows, ended = (), open_windows
        if is_tick:
            return open_windows, ended, ()
        window = result.window
        if len(open_windows) == 1 and open_windows[0][0] == window:
            return ((window, self.combine(open_windows[0][1], result)),), ended, ()
        held = dict(open_windows)
        if window in held:
            held[window] = self.combine(held[window], result)
            return tuple(held.items()), ended, ()
        held[window] = self.begin(result)
        return tuple(sorted(held.items(), key=_window_of)), ended, (time + 1,)


class _OfAllKeys:
    """Accumulator to the results of the last payload or tick."""

    __slots__ = ("result",)

    def __init__(self, aggregation: Aggregate[Any]) -> None:
        self.result = aggregation.result

    def __call__(self, accumulator: tuple[Any, bool, Any]) -> list[WindowResult]:
        result = self.result
        return [
            WindowResult(None, window, held if result is None else result(held))
            for window, held in accumulator[2][1]
        ]
