"""Windows that tell more than one result: early ones while they are open, corrections after they closed.

A stream of `WindowUpdate` describes a table: one row for each key and window. A consumer that puts the
value of an ``early``, ``final`` or ``late`` update under ``(key, window)``, and removes what is ``gone``,
has in each moment

- the value of every window that has ended, with all payloads that have entered so far;
- of a window that is open, its value at the last early time, or no row;
- no row of a session that has become part of another one.

**Two times.** The *item's time* says what has ended: it never goes back. The *own time* of a payload says
which window it is in. They are the same unless ``time=`` is given. A late row that a front admits has the
time of the front's promise, and its own time in the payload. So a payload may come for a window that has
ended, and also for one that has not begun.

**What is held.** Windows are known by their ends, in a persistent map: a payload makes a version of it in
logarithmic time, however many windows are known. No two windows of a key end together, and the order of
their ends is that of their starts. So those that end now, those that a payload is in, and those that are
forgotten are each next to each other. ``keep`` after its end a window is forgotten; without ``late`` that
is at its end. Each item of the key drops the windows that are forgotten by its time.

**Ticks.** As in `plain`, scheduled items bring time into the bucket: one for the end of a window, and
one for the next early time of a window that has changed. A tick carries the end that its window had when
the tick was scheduled. Sessions only grow, so the first session that ends there or later is the one meant.
A tick that finds nothing to do belongs to a session that has grown or merged since. A payload may have
been scheduled for the time of a tick, and come before it. Then it does first what the tick would have done,
so the names of operations, which decide who comes first, do not matter.

**Sessions that merge.** A payload joins all known sessions that it is less than a gap away from. There is
no function that merges two accumulators, so sessions hold their payloads, numbered by their entry. A merged
session goes on from the accumulator of the part whose payloads all entered first. If they entered by turns,
it is computed again from the first payload on. In both cases it combines payloads in the order of entry, as
all windows do.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import chain, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.reduce import Ticks
from emberflow.dsl.operators.windows import plain
from emberflow.dsl.operators.windows.specs import (
    Emit,
    Session,
    TimeWindows,
    Window,
    WindowSpec,
    checked_windows,
    described_windows,
)
from emberflow.dsl.operators.windows.windowed import Parts, Windowed
from emberflow.errors import FlowError, shortened
from emberflow.values.functions import UserFunction, caller
from emberflow.values.item import TIME_MIN, At, is_time
from emberflow.values.persistent import PersistentList
from emberflow.values.persistent_map import PersistentMap
from emberflow.values.times import (
    DEFAULT_UNIT,
    Duration,
    Time,
    TimeError,
    Unit,
    counted_time,
)

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream

K = TypeVar("K")
T = TypeVar("T")

Kind: TypeAlias = Literal["early", "final", "late", "gone", "missed"]


class WindowUpdate(NamedTuple):
    """What has become known of a window of a key. ``kind`` is

    - ``"early"``: its value so far, while it is open;
    - ``"final"``: its value at its end;
    - ``"late"``: its value with a payload that came after its end;
    - ``"gone"``: there is no such window any more: a session has grown. The value is None;
    - ``"missed"``: the value is a payload that came when the window was forgotten.
    """

    key: Any
    window: Window
    value: Any
    kind: Kind


class UpdatedWindows(Windowed[K, T, WindowUpdate]):
    """Windows over a keyed stream whose results are updates."""

    def __init__(
        self,
        stream: KeyedStream[K, T],
        windows: TimeWindows,
        emit: Emit,
        early: int | None,
        time: str | Callable[[T], Time] | None,
        keep: int | None,
    ) -> None:
        super().__init__(stream)
        self._windows = windows
        self._emit: Emit = emit
        self._early = early
        self._time = time
        self._keep = keep

    @property
    def _operator(self) -> str:
        return f"window of {described_windows(self._windows)} with updates"

    def _parts(self, aggregation: Aggregate[T]) -> Parts:
        kind = _SessionStep if isinstance(self._windows, Session) else _TimeStep
        closing, key, own = self._emit == "close", self._stream._key.function, self._time
        step = kind(
            self._windows,
            aggregation,
            closing=closing,
            early=self._early,
            keep=self._keep,
            merges=own is not None,
        )
        unit = self._stream.flow.unit
        # Other names than those of plain windows: a cut of one does not fit the other.
        timed: Callable[[int, Any], Any] = _Timed(key)
        name, given = "time", tuple[UserFunction, ...]()
        if isinstance(own, str):
            timed, name = _OwnTimed(key, _FieldOf(own), unit), "own time"
        elif own is not None:
            timed, name, given = _OwnTimed(key, own, unit), "own time", (UserFunction("time", own),)
        ticks = _ticks if closing else None
        return Parts(timed, step, _Updates(aggregation), ticks, name, "updates", given)


def window_updates(
    stream: KeyedStream[Any, Any],
    windows: WindowSpec,
    *,
    emit: str,
    early: Duration | None,
    time: str | Callable[[Any], Time] | None,
    late: str | None,
    keep: Duration | None,
) -> UpdatedWindows[Any, Any]:
    """See `KeyedStream.window`."""
    given, windows = windows, checked_windows(stream, windows, emit)
    if not isinstance(windows, TimeWindows):
        raise FlowError(
            f"window(early=, time=, late=, keep=) are for Tumbling, Sliding, Cumulate and Session, got "
            f"{given!r} at {caller()}."
        )
    every = _counted(stream, "early", early, least=1)
    if every is not None and emit != "close":
        raise FlowError(
            f"window(early=) is for emit='close' at {caller()}: emit='update' gives a value after "
            f"each payload anyway."
        )
    if late not in (None, "update"):
        raise FlowError(f"window(late=) takes 'update' or None, got {late!r} at {caller()}.")
    if late is not None and time is None:
        raise FlowError(
            f"window(late='update') at {caller()} needs time=, the field of the payload that is its own "
            f"time, or a function of it. A late row that on_late='admit' lets in has the time of the "
            f"front's promise, so the window it belongs to can only be told by the payload."
        )
    if time is not None and late is None:
        raise FlowError(
            f"window(time=) at {caller()} needs late='update': a payload whose own time is not that of "
            f"its item may belong to a window that has ended."
        )
    if time is not None and not isinstance(time, str) and not callable(time):
        raise FlowError(
            f"window(time=) takes a field of the payload or a function of it, got {time!r} at "
            f"{caller()}."
        )
    if keep is not None and late is None:
        raise FlowError(
            f"window(keep=) is for late='update' at {caller()}: other windows are forgotten when they "
            f"end."
        )
    # A window that takes no late payloads is forgotten when it ends.
    known_for = _counted(stream, "keep", keep, least=0) if late is not None else 0
    return UpdatedWindows(stream, windows, emit, every, time, known_for)  # type: ignore[arg-type]


def _counted(
    stream: KeyedStream[Any, Any], name: str, duration: Duration | None, *, least: int
) -> int | None:
    if duration is None:
        return None
    try:
        counted = stream.flow._counted(duration)
    except TimeError as error:
        raise FlowError(f"window({name}=): {error} ({caller()})") from None
    if counted < least:
        raise FlowError(
            f"window({name}=) takes a duration of at least {least}, got {duration!r} at {caller()}."
        )
    return counted


# The mapped value is (item's time, is_tick, payload, own time); that of a tick has the end of its window
# in place of the payload. The accumulator is (state, updates, ticks).

_Mapped: TypeAlias = tuple[int, bool, Any, int]
_Told: TypeAlias = tuple[Window, Kind, Any]
#: When a tick comes, and the end of its window.
_Tick: TypeAlias = tuple[int, int]


class Known(NamedTuple):
    """A window, in the map of those that are known by their ends."""

    start: int
    held: Any
    #: When the tick for its next early result comes; None if it has not changed since the last one.
    early_at: int | None = None
    #: Whether its last value was told under its present start and end.
    is_told: bool = False
    #: Of a session: when the tick for its end comes. If it has grown, that is before its end.
    tick_at: int = TIME_MIN
    #: Of a session that may merge: its payloads, with the numbers of their entry.
    members: PersistentList[tuple[int, Any]] | None = None


class State(NamedTuple):
    """What is held for a key."""

    #: The time of the last item: windows up to here have ended.
    last: int
    known: PersistentMap[int, Known]
    #: How many payloads have entered, of sessions.
    entered: int
    #: The end of the last window that was forgotten.
    forgotten: int


_Accumulator: TypeAlias = tuple[State, tuple[_Told, ...], tuple[_Tick, ...]]

_NOTHING: _Accumulator = (State(TIME_MIN - 1, PersistentMap(), 0, TIME_MIN - 1), (), ())


class _Timed:
    """Payload to mapped item, for payloads whose own time is that of their item."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, _Mapped]:
        return self.key(payload), False, (time, False, payload, time)


class _OwnTimed:
    """Payload to mapped item, for payloads with a time of their own."""

    __slots__ = ("key", "time", "unit")

    def __init__(
        self, key: Callable[[Any], Any], time: Callable[[Any], Any], unit: Unit | None
    ) -> None:
        self.key = key
        self.time = time
        self.unit = unit

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, _Mapped]:
        own = self.time(payload)
        if not is_time(own):
            own = self._counted(own)
        return self.key(payload), False, (time, False, payload, own)

    def _counted(self, own: Any) -> int:
        if isinstance(own, datetime) and self.unit is None:
            # The fronts may count in any unit, and the two must be the same.
            raise ValueError(
                f"time= gave {shortened(own)}, and the flow says no unit to count it in: "
                f"Flow(..., unit='ms')"
            )
        try:
            return counted_time(own, self.unit or DEFAULT_UNIT)
        except TimeError as error:
            raise ValueError(f"time= gave {shortened(own)}. {error}") from None


class _FieldOf:
    """A field of a payload: of a dict, or of an object."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, payload: Any) -> Any:
        try:
            return payload[self.name]
        except (KeyError, TypeError):
            if hasattr(payload, self.name):
                return getattr(payload, self.name)
        raise ValueError(f"the payload has no field {self.name!r}, which time= names")


def _follows(accumulator: tuple[Any, bool, _Accumulator]) -> list[At[Any]] | tuple[()] | None:
    key, _, (_, told, ticks) = accumulator
    if not ticks:
        return () if told else None
    return [At(at, (key, False, (at, True, end, at))) for at, end in ticks]


_ticks = Ticks(_follows)

#: Maps that send items back into the bucket they come from: such a cycle stays within one key.
KEEPS_KEY = plain.KEEPS_KEY | {_ticks}


class _Updates:
    """Accumulator to the updates of the last payload or tick."""

    __slots__ = ("result",)

    def __init__(self, aggregation: Aggregate[Any]) -> None:
        self.result = aggregation.result

    def __call__(self, accumulator: tuple[Any, bool, _Accumulator]) -> list[WindowUpdate]:
        key, _, (_, told, _) = accumulator
        result = self.result
        return [
            WindowUpdate(
                key,
                window,
                held if result is None or kind in ("gone", "missed") else result(held),
                kind,
            )
            for window, kind, held in told
        ]


class _Turn:
    """What one item does to the windows of its key."""

    __slots__ = ("entered", "forgotten", "known", "now", "ticks", "told")

    def __init__(self, state: State, now: int) -> None:
        self.now = now
        _, self.known, self.entered, self.forgotten = state
        self.told: list[_Told] = []
        self.ticks: list[_Tick] = []

    def tell(self, end: int, known: Known, kind: Kind) -> Known:
        """Tell the value of a window, which it keeps."""
        self.told.append((Window(known.start, end), kind, known.held))
        known = known._replace(early_at=None, is_told=True)
        self.known = self.known.set(end, known)
        return known

    def miss(self, window: Window, payload: Any) -> None:
        self.told.append((window, "missed", payload))

    def schedule(self, at: int, end: int) -> int:
        self.ticks.append((at, end))
        return at


class _Step:
    """From an accumulator and a mapped value to the next accumulator."""

    def __init__(
        self,
        windows: Any,
        aggregation: Aggregate[Any],
        *,
        closing: bool,
        early: int | None,
        keep: int | None,
        merges: bool,
    ) -> None:
        self.windows = windows
        self.begin = aggregation.first
        self.combine = aggregation.combine
        self.closing = closing
        self.early = early
        self.keep = keep
        self.merges = merges

    def first(self, mapped: _Mapped) -> _Accumulator:
        return self(_NOTHING, mapped)

    def __call__(self, accumulator: _Accumulator, mapped: _Mapped) -> _Accumulator:
        now, is_tick, given, own = mapped
        state = accumulator[0]
        turn = _Turn(state, now)
        if self.closing:
            self._end(turn, state.last)
        if self.keep is not None:
            self._forget(turn, now - self.keep)
        if is_tick:
            self._tick(turn, given)
        else:
            self._enter(turn, own, given)
        state = State(now, turn.known, turn.entered, turn.forgotten)
        return state, tuple(turn.told), tuple(turn.ticks)

    def _end(self, turn: _Turn, last: int) -> None:
        """Tell the windows that have ended since the last item."""
        for end, known in turn.known.items(above=last):
            if end > turn.now:
                break
            turn.tell(end, known, "final")

    def _forget(self, turn: _Turn, until: int) -> None:
        ended = list(takewhile(until.__ge__, turn.known))
        if ended:
            turn.forgotten = ended[-1]
            turn.known = turn.known.above(until)

    def _tick(self, turn: _Turn, end: int) -> None:
        # The window that ended there when the tick was scheduled; it may end later by now.
        for ends, known in turn.known.items(above=end - 1):
            if ends > turn.now and known.start < end:
                known = self._early_if_due(turn, ends, known)
                if known.tick_at == turn.now:
                    tick_at = turn.schedule(ends, ends)
                    turn.known = turn.known.set(ends, known._replace(tick_at=tick_at))
            break

    def _early_if_due(self, turn: _Turn, end: int, known: Known) -> Known:
        if known.early_at is None or known.early_at > turn.now:
            return known
        return turn.tell(end, known, "early")

    def _enter(self, turn: _Turn, own: int, payload: Any) -> None:
        raise AssertionError("every step defines _enter")

    def _put(self, turn: _Turn, end: int, known: Known) -> None:
        """A window that a payload has changed."""
        if end <= turn.now:
            turn.tell(end, known, "late")
            return
        if not self.closing:
            turn.tell(end, known, "early")
            return
        if self.early is not None and known.early_at is None:
            # The next early time behind this moment; the first is one span behind the start.
            spans = max((turn.now - known.start) // self.early, 0) + 1
            early_at = known.start + spans * self.early
            if early_at < end:
                known = known._replace(early_at=turn.schedule(early_at, end))
        turn.known = turn.known.set(end, known)


class _TimeStep(_Step):
    """Tumbling, sliding and cumulating windows."""

    def _enter(self, turn: _Turn, own: int, payload: Any) -> None:
        keep = self.keep
        for window in self.windows.containing(own):
            start, end = window
            if keep is not None and end + keep <= turn.now:
                turn.miss(window, payload)
                continue
            known = turn.known.get(end)
            if known is None:
                known = Known(start, self.begin(payload))
                if self.closing and end > turn.now:
                    turn.schedule(end, end)
            else:
                known = self._early_if_due(turn, end, known)
                known = known._replace(held=self.combine(known.held, payload))
            self._put(turn, end, known)


class _SessionStep(_Step):
    """Sessions. No two of a key overlap."""

    def _enter(self, turn: _Turn, own: int, payload: Any) -> None:
        number, turn.entered = turn.entered, turn.entered + 1
        alone = Window(own, own + self.windows.gap)
        near: list[tuple[int, Known]] = []
        for end, known in turn.known.items(above=own):
            if known.start >= alone.end:
                break
            near.append((end, known))
        is_over = not near and self.keep is not None and alone.end + self.keep <= turn.now
        if own < turn.forgotten or is_over:
            turn.miss(alone, payload)
            return
        near = [(end, self._early_if_due(turn, end, known)) for end, known in near]
        start, end = alone
        if near:
            start, end = min(start, near[0][1].start), max(end, near[-1][0])
        for ends, known in near:
            if (known.start, ends) != (start, end):
                if known.is_told:
                    turn.told.append((Window(known.start, ends), "gone", None))
                turn.known = turn.known.remove(ends)
        held, members = self._joined([known for _, known in near], number, payload)
        session = Known(start, held, members=members)
        if near and near[0][1].start == start:
            # Early times are counted from the start, so the tick in flight is the right one. If the start
            # moves, that tick finds nothing to do.
            known = near[0][1]
            session = session._replace(early_at=known.early_at)
            if near[0][0] == end:
                session = session._replace(is_told=known.is_told)
        if self.closing and end > turn.now:
            in_flight = [known.tick_at for ends, known in near if ends > turn.now]
            tick_at = max(in_flight) if in_flight else turn.schedule(end, end)
            session = session._replace(tick_at=tick_at)
        self._put(turn, end, session)

    def _joined(
        self, sessions: list[Known], number: int, payload: Any
    ) -> tuple[Any, PersistentList[tuple[int, Any]] | None]:
        """The accumulator and the payloads of these sessions and one payload more."""
        entry = (number, payload)
        if not sessions:
            return self.begin(payload), PersistentList([entry]) if self.merges else None
        if not self.merges:
            return self.combine(sessions[0].held, payload), None
        first, *others = sorted(sessions, key=_first_entry)
        held, members = first.held, first.members
        assert members is not None
        if others:
            later = sorted(chain.from_iterable(map(_members_of, others)), key=itemgetter(0))
            if members[-1][0] > later[0][0]:
                later = sorted(chain(members, later), key=itemgetter(0))
                held, members = self.begin(later[0][1]), PersistentList(later[:1])
                del later[0]
            for _, each in later:
                held = self.combine(held, each)
            members = members.extend(later)
        return self.combine(held, payload), members.append(entry)


def _members_of(session: Known) -> PersistentList[tuple[int, Any]]:
    assert session.members is not None
    return session.members


def _first_entry(session: Known) -> int:
    return _members_of(session)[0][0]
