"""`join`: SQL's joins of two keyed streams, without a bound, within an interval or in windows.

The cycle holds payloads and emits pairs of them; a map behind it calls the user's function for each
pair. So an error of that function concerns one pair, and what the join holds does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.joins.cell import Sessions, Unbounded, Windowed
from emberflow.dsl.operators.joins.interval import Interval
from emberflow.dsl.operators.joins.kinds import Kind, checked_kind
from emberflow.dsl.operators.joins.sides import Step, two_sided
from emberflow.dsl.operators.windows import CountWindow, Session, WindowSpec, checked_windows
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller
from emberflow.values.times import Duration, TimeError

if TYPE_CHECKING:
    from emberflow.dsl.flow import Flow
    from emberflow.dsl.streams import KeyedStream, Stream


def join(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    combine: Callable[[Any, Any], Any] | None,
    *,
    how: str,
    within: Duration | tuple[Duration, Duration] | None,
    window: WindowSpec | None,
    name: str | None,
) -> Stream[Any]:
    """See `KeyedStream.join`."""
    kind = checked_kind(how, combine)
    step = _step(left, how, kind, within, window)
    with left.flow._scope("join", name, operator=f"{how} join{step.form}"):
        joined = two_sided(left, right, step)
        return joined if combine is None else combined(joined, combine)


def combined(pairs: Stream[Any], combine: Callable[[Any, Any], Any]) -> Stream[Any]:
    """``combine(left, right)`` of each pair."""
    given = UserFunction("combine", combine)
    return pairs._map(Combining(combine), "one", given, name="combined", schedules=False)


class Combining:
    """Calls a function of two payloads with a pair of them."""

    __slots__ = ("combine",)

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.combine = combine

    def __call__(self, pair: tuple[Any, Any]) -> Any:
        return self.combine(*pair)


def _step(
    left: KeyedStream[Any, Any],
    how: str,
    kind: Kind,
    within: Duration | tuple[Duration, Duration] | None,
    window: WindowSpec | None,
) -> Step:
    if within is not None and window is not None:
        raise FlowError(
            f"join() takes within= or window=, got both at {caller()}: an interval lies around each "
            f"payload, a window is the same for all. Choose one."
        )
    if within is not None:
        return Interval(kind, *_interval(within, left.flow))
    if window is not None:
        windows = checked_windows(left, window, "close")
        if isinstance(windows, CountWindow):
            raise FlowError(
                f"join(window=) takes windows of time, got {windows!r} at {caller()}: a number of "
                f"payloads says nothing of which of the other side they belong to."
            )
        return (Sessions if isinstance(windows, Session) else Windowed)(kind, windows)
    if kind.waits:
        raise FlowError(
            f"join(how={how!r}) at {caller()} gives what has no match, and without a bound a match may "
            f"always come later. Say how long to wait, with within= or window=. Or join the state of "
            f"both sides, which may take back what it gave: this.changes().join(other.changes(), "
            f"how={how!r})."
        )
    return Unbounded(kind)


def _interval(within: Any, flow: Flow) -> tuple[int, int]:
    try:
        if isinstance(within, tuple) and len(within) == 2:
            low, high = (flow._counted(end) for end in within)
        else:
            high = flow._counted(within)
            low = -high
    except TimeError as error:
        raise FlowError(
            f"join(within=) takes a duration, or a pair (low, high) of them, got {within!r} at {caller()}. "
            f"{error}"
        ) from None
    if low <= high:
        return low, high
    raise FlowError(
        f"join(within=) takes a duration of at least 0 or a pair (low, high) with low <= high, "
        f"got {within!r} at {caller()}."
    )
