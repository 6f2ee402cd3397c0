"""What a new version of a flow takes over from the one before it, decided before anything runs.

A *keeper* is a step with state: a grouping, a reduction (which an operator like ``count``, ``window`` or
``join`` is made of) or a state of transactions. In a cut, rows belong to keepers by name. So a version
takes over the state of another one by giving the rows to its own keepers:

- a keeper of the same name and the same operator takes the rows over as they are;
- ``carry={"new": "old"}`` gives it those of a keeper of another name;
- ``carry={"new": Migrate("old", function)}`` calls ``function(key, value)`` for each of them, so it may
  be another operator, with values of another shape;
- ``carry={"old": Drop("old")}`` says that the state is given up;
- a keeper without any of these begins empty.

Names are those that the user wrote. They stand for all steps of an operator: ``"totals"`` for
``totals/group`` and ``totals/ticks``.

**No state is lost without a word.** `carry_plan` raises `CarryError`, which lists every keeper of the old
version that nobody takes over, and every pair whose operators differ. One thing shows only when the
versions change: a map whose scheduled items wait. If the new version has no map of its name, and items
are waiting then, the change is refused (`CarryPlan.timer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from emberflow.errors import FlowError
from emberflow.graph.description import Step, changed_functions, steps_of
from emberflow.graph.nodes import Graph


class Migrate(NamedTuple):
    """Take over the state of a step, each value through ``function(key, value)``.

    >>> Migrate("totals", lambda key, total: (total, 1)).step
    'totals'
    """

    step: str
    function: Callable[[Any, Any], Any]


class Drop(NamedTuple):
    """Give up the state of a step."""

    step: str


#: From the name of a step of the new version to where its state comes from.
Carry: TypeAlias = Mapping[str, str | Migrate | Drop]


class CarryError(FlowError):
    """State of the old version would be lost, or does not fit."""


class Carried(NamedTuple):
    """Where the rows of a keeper go."""

    new: str
    migrate: Callable[[Any, Any], Any] | None
    #: How many items of a key the new grouping keeps; None if there is one value for each key.
    kept: int | None
    #: How long a key of the old keeper lives. One that is over when the versions change is not carried.
    expires: int | None = None


@dataclass(frozen=True)
class CarryPlan:
    """By name of an operation of the old version: what becomes of its state."""

    carried: Mapping[str, Carried]
    #: From a map of the old version to the one that emits what it has scheduled.
    timers: Mapping[str, str]
    dropped: frozenset[str]
    #: The keepers of the new version that begin empty.
    begun: tuple[str, ...]
    #: Steps whose functions do something else now, for people.
    changed: tuple[str, ...] = ()

    def timer(self, operation: str) -> str | None:
        """The map of the new version that emits what a map has scheduled; None if it is given up."""
        if operation in self.dropped:
            return None
        if operation not in self.timers:
            raise CarryError(
                f"step {operation!r} has scheduled items that wait for their times, and the new version "
                f"has no step of this name that could emit them. Keep the step, or rename or give it up: "
                f"carry={{'new name': {operation!r}}} or "
                f"carry={{{operation!r}: ef.Drop({operation!r})}}."
            )
        return self.timers[operation]

    def for_timers(self) -> CarryPlan:
        """The same without what `timer` does not need, such as the functions of migrations."""
        return CarryPlan({}, self.timers, self.dropped, ())

    def lines(self) -> Iterator[str]:
        """What becomes of what, for people."""
        for old, carried in self.carried.items():
            one, other = written(old), written(carried.new)
            is_same = one == other
            how = "migrated" if carried.migrate else ("carried" if is_same else "renamed")
            yield f"{how}: {one}" if one == other else f"{how}: {one} -> {other}"
        for how, names in (
            ("dropped", sorted(self.dropped & self._keepers)),
            ("begun", self.begun),
        ):
            yield from (f"{how}: {name}" for name in dict.fromkeys(map(written, names)))
        yield from (f"changed: {step}" for step in self.changed)

    #: The keepers of the old version.
    _keepers: frozenset[str] = frozenset()


class _Source(NamedTuple):
    old: str
    migrate: Callable[[Any, Any], Any] | None
    said: bool  # by the user


def carry_plan(before: Sequence[Step], graph: Graph, carry: Carry | None = None) -> CarryPlan:
    """How a graph takes over the state of a version with these steps.

    >>> import emberflow as ef
    >>> old, new = ef.Flow("words"), ef.Flow("words")
    >>> old.front("words").key_by(len).count(name="lengths").sink("out")
    >>> new.front("words").key_by(len).count(name="by length").sink("out")
    >>> steps = steps_of(old.graph())
    >>> print(*carry_plan(steps, new.graph(), {"by length": "lengths"}).lines())
    renamed: lengths -> by length
    >>> carry_plan(steps, new.graph())
    Traceback (most recent call last):
    emberflow.graph.versions.CarryError: flow 'words': the new version cannot take over the state:
      - the state of 'lengths' (count) would be lost: no step of the new version has its name
    Name the step as before, say carry={'new name': 'old name'}, or give it up with ef.Drop('old name').
    """
    return _Planner(before, graph, checked_carry(carry)).plan()


def checked_carry(carry: object) -> dict[str, str | Migrate | Drop]:
    if carry is None:
        return {}
    if not isinstance(carry, Mapping) or not all(
        isinstance(name, str) and isinstance(source, str | Migrate | Drop)
        for name, source in carry.items()
    ):
        raise CarryError(
            f"carry= takes a dict from names of steps to names, ef.Migrate(name, function) or "
            f"ef.Drop(name), got {carry!r}."
        )
    for source in carry.values():
        if isinstance(source, Migrate) and not callable(source.function):
            raise CarryError(f"ef.Migrate takes a function of key and value, got {source!r}.")
    return dict(carry)


class _Planner:
    def __init__(
        self, before: Sequence[Step], graph: Graph, carry: dict[str, str | Migrate | Drop]
    ) -> None:
        self.before = before
        self.graph = graph
        self.carry = carry
        self.now = steps_of(graph)
        self.old = {step.name: step for step in before if _is_keeper(step)}
        self.new = {step.name: step for step in self.now if _is_keeper(step)}
        self.problems: list[str] = []
        self.dropped_names = [each.step for each in carry.values() if isinstance(each, Drop)]

    def plan(self) -> CarryPlan:
        self._check_names()
        carried: dict[str, Carried] = {}
        begun: list[str] = []
        given_to: dict[str, str] = {}
        # What the user says comes first: a step of the same name may have to begin empty.
        sources = {name: self._source(name) for name in self.new}
        said = {name for name, source in sources.items() if source is not None and source.said}
        for name in sorted(self.new, key=lambda name: name not in said):
            source = sources[name]
            if source is None or source.old not in self.old:
                begun.append(name)
            elif source.old in given_to:
                if source.said:
                    self.problems.append(
                        f"the state of {self._told(source.old)} goes to "
                        f"{written(given_to[source.old])!r} and to {written(name)!r}: only one step can "
                        f"take it over"
                    )
                begun.append(name)
            else:
                given_to[source.old] = name
                carried[source.old] = self._carried(name, source)
        dropped = {step.name for step in self.before if self._is_dropped(step.name)}
        lost = [old for old in self.old if old not in carried and old not in dropped]
        self.problems += [
            f"the state of {told} would be lost: no step of the new version has its name"
            for told in dict.fromkeys(self._told(name) for name in lost)
        ]
        if self.problems:
            raise CarryError(
                f"flow {self.graph.flow!r}: the new version cannot take over the state:\n"
                + "\n".join(f"  - {problem}" for problem in self.problems)
                + "\nName the step as before, say carry={'new name': 'old name'}, or give it up with "
                "ef.Drop('old name')."
            )
        order = list(self.old)
        return CarryPlan(
            carried=dict(sorted(carried.items(), key=lambda entry: order.index(entry[0]))),
            timers=self._timers(),
            dropped=frozenset(dropped),
            begun=tuple(name for name in self.new if name in begun),
            changed=tuple(changed_functions(self.before, self.graph)),
            _keepers=frozenset(self.old),
        )

    def _told(self, name: str) -> str:
        return f"{written(name)!r} ({_operator_of(self.old[name])})"

    def _check_names(self) -> None:
        """Every name that the user gives is the name of a step."""
        before, now = [step.name for step in self.before], [step.name for step in self.now]
        for name, source in self.carry.items():
            old = source if isinstance(source, str) else source.step
            if not any(_belongs(step, old) for step in before):
                self.problems.append(
                    f"carry= names {old!r}, and the old version has no such step; its steps with state "
                    f"are {_listed(self.old)}"
                )
            if not isinstance(source, Drop) and not any(_belongs(step, name) for step in now):
                self.problems.append(
                    f"carry= names {name!r}, and the new version has no such step; its steps with state "
                    f"are {_listed(self.new)}"
                )

    def _source(self, name: str) -> _Source | None:
        """Where the state of a step of the new version comes from; None if it begins empty."""
        said = [given for given in self.carry if _belongs(name, given)]
        if not said:
            taken = any(
                _belongs(name, source if isinstance(source, str) else source.step)
                for source in self.carry.values()
            )
            scope = name.partition("/")[0]
            return None if taken else _Source(self._keeper(name, scope, scope), None, False)
        given = max(said, key=len)
        source = self.carry[given]
        if isinstance(source, Drop):
            return None
        old = source if isinstance(source, str) else source.step
        migrate = None if isinstance(source, str) else source.function
        return _Source(self._keeper(name, given, old), migrate, True)

    def _keeper(self, name: str, given: str, old: str) -> str:
        """The keeper of the old step ``old`` that corresponds to a keeper of the new step ``given``.

        Operators are made of steps of other names. If both have one keeper, these correspond.
        """
        same = old + name[len(given) :]
        if same not in self.old:
            olds = [each for each in self.old if _belongs(each, old)]
            if len(olds) == 1 == sum(_belongs(each, given) for each in self.new):
                return olds[0]
        return same

    def _carried(self, name: str, source: _Source) -> Carried:
        old, new = self.old[source.old], self.new[name]
        one, other = _operator_of(old), _operator_of(new)
        are_groups = "group" in (one, other)
        if one != other and (source.migrate is None or are_groups):
            self.problems.append(
                f"step {written(name)!r} is a {other} now, and {written(source.old)!r} was a {one}: "
                + (
                    "a group keeps items and no values"
                    if are_groups
                    else "say how its values become others, with ef.Migrate(name, function)"
                )
            )
        kept = new.details["window"] - 1 if are_groups else None
        return Carried(name, source.migrate, kept, old.details.get("expires"))

    def _is_dropped(self, name: str) -> bool:
        return any(_belongs(name, dropped) for dropped in self.dropped_names)

    def _timers(self) -> dict[str, str]:
        maps = {step.name for step in self.now if step.kind == "map"}
        renamed = {
            (source if isinstance(source, str) else source.step): name
            for name, source in self.carry.items()
            if not isinstance(source, Drop)
        }
        found: dict[str, str] = {}
        for step in self.before:
            if step.kind != "map" or self._is_dropped(step.name):
                continue
            said = [old for old in renamed if _belongs(step.name, old)]
            name = step.name
            if said:
                old = max(said, key=len)
                name = renamed[old] + name[len(old) :]
            if name in maps:
                found[step.name] = name
        return found


def written(name: str) -> str:
    """The name that the user wrote, or that an operator got where the user wrote none.

    >>> written("totals/reduce/group")
    'totals'
    """
    return name.partition("/")[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, dict.fromkeys(map(written, names)))) or "none"


def _is_keeper(step: Step) -> bool:
    return step.kind == "state" or (step.kind == "group" and step.details["window"] > 1)


def _operator_of(step: Step) -> str:
    if step.kind == "state":
        return "state"
    # An operator that is made of others is called what the user wrote.
    return str(step.details.get("operator") or "group").partition("/")[0]


def _belongs(step: str, name: str) -> bool:
    """Whether a step is the one of this name, or one of those it is made of."""
    return step == name or step.startswith(f"{name}/")
