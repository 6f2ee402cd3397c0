"""Versions of a flow: which one serves which interval of time.

An interval of global time that one version serves is what the papers call a tick. Elements below a
version's time go through the versions before it, elements from its time on go through it. Between two
versions state is carried over: `graph.versions` says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from emberflow.checkpoint.cuts.backfills import planned
from emberflow.dsl.flow import Flow
from emberflow.errors import FlowError
from emberflow.graph.description import steps_of
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry, CarryPlan
from emberflow.values.item import FRONT_MIN, TIME_MIN, GlobalTime, is_time
from emberflow.values.times import DEFAULT_UNIT, Time, TimeError, Unit, counted_time

#: When a version begins: a time, or a moment.
When: TypeAlias = Time | tuple[int, int]


class Version(NamedTuple):
    """A version of a flow, and the moment from which on it serves."""

    at: GlobalTime
    flow: Flow
    #: What it takes over from the version before; empty for the first one.
    plan: CarryPlan

    @property
    def graph(self) -> Graph:
        return self.flow.graph()


class Versions:
    """A flow, and the versions that take over from it: ``Versions(v1, (time, v2), ...)``.

    The state of a step is carried to the step of the same name. So the second version of this flow goes
    on with the counts of the first one:

    >>> import emberflow as ef
    >>> before, after = ef.Flow("words"), ef.Flow("words")
    >>> before.front("words").key_by(str).count(name="counts").sink("out")
    >>> after.front("words").key_by(str.lower).count(name="counts").sink("out")
    >>> ef.run(ef.Versions(before, (2, after)), words=["a", "A", "A", "b"])
    {'out': [('a', 1), ('A', 1), ('a', 2), ('b', 1)]}

    What else should happen to state is said by ``(time, flow, carry)``: a step of another name
    (``{"new": "old"}``), values of another shape (`Migrate`), a step that begins with its state in a
    backfill (`Backfilled`), state that is given up (`Drop`). State that would be lost without a word is an
    error.

    >>> after = ef.Flow("words")
    >>> words = after.front("words").key_by(str)
    >>> words.fold(initial=(), combine=lambda seen, w: (*seen, w), name="seen").sink("out")
    >>> versions = ef.Versions(
    ...     before, (2, after, {"seen": ef.Migrate("counts", lambda w, n: (w,) * n)})
    ... )
    >>> ef.run(versions, words=["a", "b", "a"])
    {'out': [('a', 1), ('b', 1), ('a', 'a')]}

    A time is that of the first elements of a version, and of what is scheduled for it. A moment ``(time,
    front)`` may be between elements of one time: a live query that chooses when another version takes
    over notes a moment.
    """

    def __init__(
        self, first: Flow, /, *later: tuple[When, Flow] | tuple[When, Flow, Carry | None]
    ) -> None:
        if not isinstance(first, Flow):
            raise FlowError(f"Versions() takes a flow first, got {first!r}.")
        nothing = CarryPlan({}, {}, frozenset(), ())
        self._versions = [Version(GlobalTime(TIME_MIN, FRONT_MIN), first, nothing)]
        for given in later:
            self._add(given)

    def _add(self, given: Any) -> None:
        if (
            not isinstance(given, tuple)
            or len(given) not in (2, 3)
            or not isinstance(given[1], Flow)
        ):
            raise FlowError(
                f"Versions() takes (time, flow) or (time, flow, carry) for each version behind the "
                f"first, got {given!r}."
            )
        time, flow, carry = (*given, None)[:3]
        last = self._versions[-1]
        if flow.graph().unit != last.graph.unit:
            raise FlowError(
                f"versions of a flow count times in one unit: {last.flow!r} counts in "
                f"{last.graph.unit!r} and {flow!r} in {flow.graph().unit!r}."
            )
        at = moment_of(time, flow.graph().unit)
        if at <= last.at:
            raise FlowError(
                f"versions begin one after another: the version of time {told(at)} follows the one of "
                f"time {told(last.at)}."
            )
        plan = planned(steps_of(last.graph), flow.graph(), carry, at)
        self._versions.append(Version(at, flow, plan))

    def __iter__(self) -> Iterator[Version]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, number: int) -> Version:
        return self._versions[number]

    def __repr__(self) -> str:
        later = "".join(
            f", ({told(version.at)}, {version.flow!r})" for version in self._versions[1:]
        )
        return f"Versions({self._versions[0].flow!r}{later})"


def moment_of(when: Any, unit: Unit | None) -> GlobalTime:
    """The moment at which a version begins that is said to begin then."""
    if isinstance(when, tuple):
        if len(when) == 2 and is_time(when[0]) and isinstance(when[1], int):
            return GlobalTime(*when)
        raise FlowError(f"a version begins at a time or at a moment (time, front), got {when!r}.")
    try:
        return GlobalTime(counted_time(when, unit or DEFAULT_UNIT), FRONT_MIN)
    except TimeError as error:
        raise FlowError(f"a version begins at a time, got {when!r}. {error}") from None


def told(at: GlobalTime) -> str:
    """The time of a version that begins with it; otherwise the moment."""
    return str(at.time if at.front == FRONT_MIN else tuple(at))
