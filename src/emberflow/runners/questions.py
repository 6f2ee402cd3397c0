"""Reads of a flow's state, and their answers: the same for every runner.

A `Question` names states and, for each state, keys or a range of keys. Each key is sent to the
worker that owns it; a range is sent to all workers. The rows that come back are all as of one
moment and are assembled into one `Answer`.

**As of.** Users count inclusively: ``as_of=7`` means after all elements of time 7, ``as_of=(7, 0)``
after the element of time 7 of front 0. Machines count exclusively, 'below this moment'. Front
indexes are ints, so the exclusive bound is the inclusive one plus one: `moment_after` and
`last_before` convert between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Keys, Moment, Selection
from emberflow.engine.messages import Scan as ScanPart
from emberflow.engine.queries.worker import StateInfo, in_key_order
from emberflow.errors import InputError, shortened
from emberflow.values.hashing import UnstableKey, key_hash
from emberflow.values.item import GlobalTime
from emberflow.values.owners import Owners
from emberflow.values.times import DEFAULT_UNIT, TimeError, Unit, counted_time

#: Less than every front index, including those of scheduled items.
_FRONT_MIN = -(2**63)

#: What a read may ask of a state: keys, or a `Scan`.
Wanted: TypeAlias = "Iterable[Any] | Scan"

#: Keys in one question. A bigger message would delay the messages behind it.
KEYS_MAX = 100_000


class Scan(NamedTuple):
    """The keys of a state from ``low`` on and below ``high`` for which ``where(key, value)`` holds.

    An omitted bound is no limit.

    >>> Scan(low="a", high="c")
    Scan(low='a', high='c', where=None)
    """

    low: Any = None
    high: Any = None
    where: Callable[[Any, Any], object] | None = None


class Answer(dict[Any, Any]):
    """What a read returns: values by key (of several states: by state, then by key), and when.

    ``as_of`` is a global time: the answer reflects the elements up to and including it, and no
    others. Pass it as ``as_of=`` to read at the same moment again.

    >>> answer = Answer({"ada": 5}, as_of=GlobalTime(7, 0))
    >>> answer, answer["ada"], answer.as_of
    ({'ada': 5}, 5, GlobalTime(time=7, front=0))
    """

    __slots__ = ("as_of",)

    def __init__(self, rows: Any = (), *, as_of: GlobalTime) -> None:
        super().__init__(rows)
        self.as_of = as_of

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (dict(self), self.as_of)


def _rebuilt(rows: dict[Any, Any], as_of: GlobalTime) -> Answer:
    return Answer(rows, as_of=as_of)


class Question:
    """A read, checked against the states of the flow."""

    def __init__(
        self, flow: str, states: Mapping[str, StateInfo], wanted: Mapping[str, Wanted]
    ) -> None:
        if not isinstance(wanted, Mapping):
            raise InputError(
                f"a read takes a dict from the names of states to lists of keys, got "
                f"{shortened(wanted)}."
            )
        self.states = [checked_state(flow, states, name) for name in wanted]
        self.parts = [_part(name, what) for name, what in wanted.items()]
        #: For each part, the hashes of its keys.
        self._hashes = [_hashes_of(part) for part in self.parts]
        if sum(len(part.keys) for part in self.parts if isinstance(part, Keys)) > KEYS_MAX:
            raise InputError(
                f"a read takes at most {KEYS_MAX:,} keys. Ask for fewer, or scan a range of them."
            )

    @property
    def holds(self) -> bool:
        """Whether it is answered in pages, so that workers must keep its moment meanwhile."""
        return any(isinstance(part, ScanPart) for part in self.parts)

    def asks(self, owners: Owners) -> dict[int, tuple[tuple[int, Selection], ...]]:
        """The parts for each worker. Workers that own none of the keys are left out."""
        asks: dict[int, list[tuple[int, Selection]]] = {}
        for number, part in enumerate(self.parts):
            if isinstance(part, ScanPart):
                for worker in range(owners.workers):
                    asks.setdefault(worker, []).append((number, part))
                continue
            keys: dict[int, list[Any]] = {}
            for key, hashed in zip(part.keys, self._hashes[number], strict=True):
                keys.setdefault(owners.owner(hashed), []).append(key)
            for worker, own in keys.items():
                asks.setdefault(worker, []).append((number, Keys(part.state, tuple(own))))
        return {worker: tuple(parts) for worker, parts in asks.items()}

    def assembled(
        self, rows: Iterable[tuple[int, Any, Any]], moment: Moment, *, default: bool
    ) -> Answer:
        """The answer by state: keys in the order in which they were asked for; a scan in key order."""
        found: list[dict[Any, Any]] = [{} for _ in self.parts]
        for number, key, value in rows:
            found[number][key] = value
        answer = Answer(as_of=last_before(moment))
        for info, part, own in zip(self.states, self.parts, found, strict=True):
            if isinstance(part, ScanPart):
                answer[info.name] = dict(in_key_order(own.items()))
            elif default and info.has_default:
                answer[info.name] = {key: own.get(key, info.default) for key in part.keys}
            else:
                answer[info.name] = {key: own[key] for key in part.keys if key in own}
        return answer


def checked_state(flow: str, states: Mapping[str, StateInfo], name: object) -> StateInfo:
    """Look a state up by its name, or by the state object itself."""
    name = getattr(name, "name", name)
    if not isinstance(name, str) or name not in states:
        known = ", ".join(map(repr, states)) or "none"
        raise InputError(
            f"flow {flow!r} has no state {name!r}; there is {known}. What can be read are the "
            f"states of flow.state(...), and reduces, folds and aggregations by their name=."
        )
    return states[name]


def _part(name: Any, wanted: Wanted) -> Selection:
    name = getattr(name, "name", name)
    if isinstance(wanted, Scan):
        if wanted.where is not None and not callable(wanted.where):
            raise InputError(f"where= takes a function of key and value, got {wanted.where!r}.")
        return ScanPart(name, wanted.low, wanted.high, wanted.where)
    if isinstance(wanted, str | bytes) or not isinstance(wanted, Iterable):
        raise InputError(
            f"state {name!r} is asked for {shortened(wanted)}: give a list of keys, or a Scan."
        )
    return Keys(name, tuple(wanted))


def _hashes_of(part: Selection) -> list[int]:
    hashes: list[int] = []
    for key in part.keys if isinstance(part, Keys) else ():
        try:
            hashes.append(key_hash(key))
        except UnstableKey as error:
            raise InputError(
                f"state {part.state!r} is asked for the key {shortened(key)}, and no state has such "
                f"a key: {error}."
            ) from None
    return hashes


def moment_after(as_of: object, unit: Unit = DEFAULT_UNIT) -> Moment:
    """The least moment after a time, or after a global time. Datetimes are counted in ``unit``.

    >>> moment_after((7, 0)), last_before(moment_after((7, 0)))
    ((7, 1), GlobalTime(time=7, front=0))
    """
    try:
        return counted_time(as_of, unit) + 1, _FRONT_MIN
    except TimeError:
        pass
    if isinstance(as_of, Sequence) and len(as_of) == 2 and all(type(part) is int for part in as_of):
        time, front = as_of
        if BEFORE_ALL[0] <= time <= AFTER_ALL[0]:
            return min((time, front + 1), AFTER_ALL)
    raise InputError(
        f"as_of= takes a time, which is an int or a datetime, or a global time (time, front), as an "
        f"answer tells it; got {shortened(as_of)}."
    )


def last_before(moment: Moment) -> GlobalTime:
    """The greatest global time below a moment."""
    time, front = moment
    if front == _FRONT_MIN:
        return GlobalTime(time - 1, 2**63 - 1)
    return GlobalTime(time, front - 1)
