"""Drifting state: `reduce` as a grouping of window 2, a combine map and a cycle.

The state of a key is an item like any other, which goes round a cycle:

::

    mapped ──> merge ──> group(window=2, by key) ──> combine ──> broadcast ──> value ──> out
                 ^                                                   │
                 └────────────────────── accumulator ────────────────┘

An accumulator's child ids extend those of the mapped item it was made from, so in its bucket it
follows that item and precedes the next one. The grouping therefore sees ``m1 a1 m2 a2 m3 ...`` and
sends the tuples

- ``(m1)``: `Combined` starts an accumulator, by ``first``;
- ``(m1, a1)``: the two are combined already, so `Combined` yields nothing;
- ``(a1, m2)``: `Combined` makes the next accumulator, by ``combine``; and so on.

Items within are triples ``(key, is_accumulator, value)``: the key-value structure of the papers with
a flag that tells the two kinds apart.

**Diverted elements.** If ``first`` or ``combine`` raises and errors are diverted, the element is
skipped: it has no output, and the next element of its key needs the accumulator that this one met.
In the bucket that accumulator is two items back, outside of the window. So it goes round once more,
with the place that the new one would have had (`kept`), and it only goes round: port 1 never emits
it. After a ``first`` that raised there is no accumulator; then `NoneYet` goes round instead. The
bucket then holds ``m1 a1 m2 a1 m3 ...`` or ``m1 none m2 a2 ...``, and the rules above hold.

**Expiry.** A grouping may forget: an item that comes ``expires`` or more after the item before it begins
its bucket anew (`graph.nodes.Group`). An accumulator has the time of its mapped item, so the tuple of a
mapped item that comes so late is ``(m2)``, and `Combined` starts an accumulator by ``first``. That is the
whole meaning of ``expire_after=``. A diverted element lets the accumulator go round again at its own time,
so it keeps its key alive like any other element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from emberflow.errors import FlowError
from emberflow.graph.nodes import Broadcast, Group, Input, Key, Merge, Reduction
from emberflow.values.functions import UserFunction, caller, itself
from emberflow.values.hashing import key_hash
from emberflow.values.item import At
from emberflow.values.proofs.functions import declare
from emberflow.values.proofs.shapes import UNKNOWN, Known, Parts, Shape, part_of
from emberflow.values.times import Duration, TimeError

if TYPE_CHECKING:
    from emberflow.dsl.flow import Flow
    from emberflow.dsl.streams import KeyedStream, Loop, Stream

_key_of = itemgetter(0)
_value_of = itemgetter(2)


def _key_and_value_of(accumulator: tuple[Any, bool, Any]) -> Any:
    key, _, value = accumulator
    # An `At` cannot be an accumulator. Inside of a pair it would pass for one; returned bare, it is
    # refused.
    return value if value.__class__ is At else (key, value)


def _shape_of_pair(triple: Shape) -> Shape:
    return Parts((part_of(triple, Known("constant", 0)), UNKNOWN))


declare(_key_and_value_of, _shape_of_pair)


def _shown_of(shown: Callable[[Any], Any]) -> Callable[[tuple[Any, bool, Any]], Any]:
    """From one of our triples to the user's payload or accumulator in it."""

    def of_triple(triple: tuple[Any, bool, Any]) -> Any:
        _, is_accumulator, value = triple
        return value if is_accumulator else shown(value)

    return of_triple


class Paired:
    """Payload to mapped item: ``(key, False, payload)``."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    def __call__(self, payload: Any) -> tuple[Any, bool, Any]:
        return self.key(payload), False, payload


class PairedWith:
    """Payload to mapped item: ``(key, False, what is needed of the payload)``."""

    __slots__ = ("key", "project")

    def __init__(self, key: Callable[[Any], Any], project: Callable[[Any], Any]) -> None:
        self.key = key
        self.project = project

    def __call__(self, payload: Any) -> tuple[Any, bool, Any]:
        key = self.key(payload)
        if key.__class__ in STABLE or is_stable(key):  # the first saves a call
            payload = self.project(payload)
        return key, False, payload


#: Types whose values have a stable hash, all of them.
STABLE = frozenset({str, int, bytes, bool, type(None)})


def is_stable(key: Any) -> bool:
    """Whether a key has a stable hash. Of one that has not, nothing is projected: it is refused behind, with
    an error that shows the payload."""
    kind = key.__class__
    if kind in STABLE:
        return True
    if kind is tuple:
        for part in key:
            if part.__class__ not in STABLE:
                break
        else:
            return True
    try:
        key_hash(key)
    except Exception:
        return False
    return True


class NoneYet:
    """Stands for an accumulator as long as all elements of a key were diverted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "no accumulator yet"


_NONE_YET = NoneYet()


def kept(window: tuple[tuple[Any, bool, Any], ...]) -> tuple[Any, ...]:
    """What goes round if the combine map raised on this tuple: the accumulator before the element."""
    key, is_accumulator, _ = window[-1]
    if is_accumulator:
        return ()
    if len(window) == 1:
        return ((key, True, _NONE_YET),)
    return (window[0],) if window[0][1] else ()


class Combined:
    """The combine map of the papers: from a tuple of the grouping to the next accumulator."""

    __slots__ = ("combine", "first")

    def __init__(self, first: Callable[[Any], Any], combine: Callable[[Any, Any], Any]) -> None:
        self.first = first
        self.combine = combine

    def __call__(self, window: tuple[tuple[Any, bool, Any], ...]) -> tuple[Any, ...]:
        key, is_accumulator, value = window[-1]
        if is_accumulator:
            return ()
        if len(window) == 1:
            return ((key, True, self.first(value)),)
        _, before_is_accumulator, before = window[0]
        if before.__class__ is NoneYet:
            return ((key, True, self.first(value)),)
        if before_is_accumulator:
            return ((key, True, self.combine(before, value)),)
        return ()  # two mapped items in a row: speculation that a replay will take back


def drift(
    mapped: Stream[Any],
    first: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    *,
    key: UserFunction,
    given: tuple[UserFunction, ...],
    shown: Callable[[Any], Any] = itself,
    expires: int | None = None,
) -> Stream[Any]:
    """The cycle: from mapped items ``(key, False, value)`` to accumulators ``(key, True, value)``.

    ``key`` and ``given`` are the user's functions, for errors and drawings; ``shown`` extracts the
    user's payload from a mapped value. An accumulator is forgotten when the next mapped item comes
    ``expires`` later or more.
    """
    flow = mapped.flow
    loop = flow.loop(name="accumulator")
    merged = flow._draft(Merge, "merge", inputs=(mapped._input, loop._input))
    keyed = Input(merged.id, key=Key(_key_of, key, shown=_shown_of(shown)))
    group = flow._draft(Group, "group", inputs=(keyed,), window=2, expires=expires)
    combined = flow._stream(group.id)._map(
        Combined(first, combine),
        "many",
        *given,
        name="combine",
        shown=lambda window: _shown_of(shown)(window[-1]),
        kept=kept,
    )
    broadcast = flow._draft(Broadcast, "broadcast", inputs=(combined._input,), copies=2)
    loop.close(flow._stream(broadcast.id, 0))
    flow._reductions.append(
        Reduction(
            merge=merged.id,
            group=group.id,
            combine=combined._input.node,
            broadcast=broadcast.id,
            first=first,
            combine_function=combine,
            shown=shown,
            operator=flow._operator,
        )
    )
    return flow._stream(broadcast.id, 1)


@dataclass(frozen=True, slots=True)
class Ticks:
    """The function of a map of ticks. ``follows`` gives the ticks of an accumulator in a list, or an empty tuple
    if it has results and no ticks, or None if nothing at all follows from it. An engine that runs the loop in
    one step need not send such an accumulator on."""

    follows: Callable[[Any], list[At[Any]] | tuple[()] | None]

    def __call__(self, accumulator: Any) -> list[At[Any]]:
        return self.follows(accumulator) or []


def ticking_drift(
    mapped: Sequence[Stream[Any]],
    merge: str,
    first: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    *,
    results: Callable[[Stream[Any]], Stream[Any]],
    ticks: Callable[[Any], Any] | None,
    key: UserFunction,
    given: tuple[UserFunction, ...],
    shown: Callable[[Any], Any],
) -> Stream[Any]:
    """A cycle over several streams of mapped items that may send itself *ticks*: items that a map schedules of
    its accumulators, and that a loop brings back to their key.

    ::

        mapped ──> merge ──> [drift] ──> fan-out ──> results ──> out
                     ^                      │
                     └── At(time, tick) <── ticks

    ``merge`` names the merge, which is left out if it has one input; ``results`` adds the steps that make the
    output of accumulators, which come ahead of the map of ticks.
    """
    flow = mapped[0].flow
    loop: Loop[Any] | None = None if ticks is None else flow.loop(name="tick")
    merged = [*mapped, *([] if loop is None else [loop])]
    if len(merged) > 1:
        inputs = tuple(stream._input for stream in merged)
        merged = [flow._add(Merge, merge, inputs=inputs)]
    accumulators = drift(merged[0], first, combine, key=key, given=given, shown=shown)
    made = results(accumulators)
    if ticks is not None and loop is not None:
        scheduled = accumulators._map(ticks, "many", name="ticks")
        reductions = flow._reductions
        reductions[-1] = replace(reductions[-1], ticks=scheduled._input.node)
        loop.close(scheduled)
    return made


def reduce(
    stream: KeyedStream[Any, Any],
    first: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    *,
    with_key: bool,
    name: str | None,
    label: str = "reduce",
    given: tuple[UserFunction, ...] | None = None,
    project: Callable[[Any], Any] | None = None,
    expires: int | None = None,
) -> Stream[Any]:
    """See `KeyedStream.reduce`. ``project`` is what ``first`` and ``combine`` need of a payload, if less
    than the payload. It is computed where the payload is, before the shuffle."""
    if given is None:
        given = (UserFunction("first", first), UserFunction("combine", combine))
    key = stream._key
    flow = stream.flow
    with flow._scope(label, name):
        pair = Paired(key.function) if project is None else PairedWith(key.function, project)
        needed = () if project is None else given
        mapped = _unkeyed(stream)._map(pair, "one", key.given, *needed, name="pair")
        accumulators = drift(mapped, first, combine, key=key.given, given=given, expires=expires)
        value = _key_and_value_of if with_key else _value_of
        reduced = accumulators._map(value, "one", *given, name="value", schedules=False)
        # With a projection, the step takes triples: an engine that ran the pair as well would run it behind
        # the shuffle.
        if project is None:
            flow._reductions[-1] = replace(
                flow._reductions[-1],
                pair=mapped._input.node,
                value=reduced._input.node,
                key=key.function,
                with_key=with_key,
            )
        return reduced


def fold(
    stream: KeyedStream[Any, Any],
    initial: Any,
    combine: Callable[[Any, Any], Any],
    *,
    with_key: bool,
    name: str | None,
    expires: int | None = None,
) -> Stream[Any]:
    """See `KeyedStream.fold`: a reduce whose ``first`` combines the payload with ``initial``."""

    def first(payload: Any) -> Any:
        return combine(initial, payload)

    given = (UserFunction("combine", combine),)
    return reduce(
        stream,
        first,
        combine,
        with_key=with_key,
        name=name,
        label="fold",
        given=given,
        expires=expires,
    )


def lifetime(flow: Flow, expire_after: Duration | None, step: str) -> int | None:
    """How long a key lives, as a number; None for ever."""
    if expire_after is None:
        return None
    try:
        counted = flow._counted(expire_after)
    except TimeError as error:
        raise FlowError(f"{step}(expire_after=): {error} ({caller()})") from None
    if counted < 1:
        raise FlowError(
            f"{step}(expire_after=) takes a duration above 0, got {expire_after!r} at {caller()}. "
            f"Leave it out to keep keys for ever."
        )
    return counted


def keyed_map(
    stream: KeyedStream[Any, Any],
    function: Callable[..., Any],
    *given: UserFunction,
    name: str,
    timed: bool = False,
) -> Stream[Any]:
    """Add a map that calls the stream's key function itself, and so needs no shuffle before it."""
    return _unkeyed(stream)._map(function, "one", stream._key.given, *given, timed=timed, name=name)


def _unkeyed(stream: KeyedStream[Any, Any]) -> Stream[Any]:
    # Only the grouping needs the key; without one, the map before it runs where its input is.
    return stream.flow._stream(stream._input.node, stream._input.port)
