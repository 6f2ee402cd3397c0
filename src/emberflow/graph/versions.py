"""What a new version of a flow takes over from the one before it, decided before anything runs.

A *keeper* is a step with state: a grouping, a reduction (which an operator like ``count``, ``window`` or
``join`` is made of) or a state of transactions. In a cut, rows belong to keepers by name. So a version
takes over the state of another one by giving the rows to its own keepers:

- a keeper of the same name and the same operator takes the rows over as they are;
- ``carry={"new": "old"}`` gives it those of a keeper of another name;
- ``carry={"new": Migrate("old", function)}`` calls ``function(key, value)`` for each of them, so it may
  be another operator, with values of another shape;
- ``carry={"new": Backfilled(checkpoint)}`` gives it those that a step of the same name and operator has in
  the cut of a backfill, which is of the very moment at which the version takes over;
- ``carry={"old": Drop("old")}`` says that the state is given up;
- a keeper without any of these begins empty.

Names are those that the user wrote. They stand for all steps of an operator: ``"totals"`` for
``totals/group`` and ``totals/ticks``.

**No state is lost without a word.** `carry_plan` raises `CarryError`, which lists every keeper of the old
version that nobody takes over, and every pair whose operators differ. One thing shows only when the
versions change: a map whose scheduled items wait. If the new version has no map of its name, and items
are waiting then, the change is refused (`CarryPlan.timer`). The same holds for what a backfill knows and the
old version does not: it is taken, or given up by a word.

**Places stay unique.** Both the old version and a backfill have had the elements below T. So maps of one name
may have scheduled items at one place in both. If those of the old version go on under another name, that
shows when the versions change, and is refused (`CarryPlan.check_place`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from emberflow.errors import FlowError
from emberflow.graph.description import Step, changed_functions, steps_of
from emberflow.graph.nodes import Graph
from emberflow.values.item import FRONT_MIN, scheduling_front


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


class Backfilled(NamedTuple):
    """Begin a step with the state that it has in a backfill: ``{"by page": Backfilled("by-page")}``.

    ``checkpoint`` is where `Flow.backfill` has left it. The backfill ends at the very moment at which the
    version takes over. ``step`` is the name of the step there, if it is another one.
    """

    checkpoint: str | os.PathLike[str]
    step: str | None = None


#: Where a step has its state from.
Source: TypeAlias = str | Migrate | Drop | Backfilled
#: From the name of a step of the new version to where its state comes from.
Carry: TypeAlias = Mapping[str, Source]


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


class CutName(NamedTuple):
    """The cut of a backfill: what a plan keeps of it, to find it again and no other one."""

    checkpoint: str
    number: int
    incarnation: int
    fingerprint: int
    #: All below it has been processed there.
    moment: tuple[int, int]


class KnownCut(NamedTuple):
    """The cut of a backfill, and the steps that it has state of."""

    name: CutName
    steps: tuple[Step, ...]


#: Finds the cut of a checkpoint.
Look: TypeAlias = Callable[[str | os.PathLike[str]], KnownCut]


@dataclass(frozen=True)
class Backfill:
    """What a version takes of the cut of a backfill."""

    cut: CutName
    #: By name of an operation of the backfill.
    carried: Mapping[str, Carried]
    #: From a map of the backfill to the one that emits what it has scheduled.
    timers: Mapping[str, str]
    #: The maps whose scheduled items nobody misses: the old version has its own, or they are given up.
    ignored: frozenset[str]

    def timer(self, operation: str) -> str | None:
        """The map that emits what a map of the backfill has scheduled; None if nobody misses it."""
        if operation in self.ignored:
            return None
        if operation not in self.timers:
            raise CarryError(
                f"step {operation!r} has scheduled items in the backfill at {self.cut.checkpoint}, which "
                f"wait for their times and would be lost. Take them over as well, with carry="
                f"{{{written(operation)!r}: ef.Backfilled(...)}}, or give them up: carry="
                f"{{{written(operation)!r}: ef.Drop({written(operation)!r})}}."
            )
        return self.timers[operation]


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
    #: What it takes of backfills.
    backfills: tuple[Backfill, ...] = ()

    @property
    def moment(self) -> tuple[int, int] | None:
        """The only moment at which the version can take over; None if there is no backfill that says it."""
        return self.backfills[0].cut.moment if self.backfills else None

    @cached_property
    def _fronts(self) -> frozenset[int]:
        """The scheduling fronts of the maps that begin with scheduled items of a backfill."""
        return frozenset(
            scheduling_front(new) for each in self.backfills for new in each.timers.values()
        )

    @property
    def unchanged(self) -> dict[str, str]:
        """By name of an operation of the old version: the one of the new version that has its rows as they are."""
        return {
            old: carried.new
            for old, carried in self.carried.items()
            if carried.migrate is None and carried.kept is None and old not in self.dropped
        }

    def check_place(self, operation: str, place: Sequence[int]) -> None:
        """Raises `CarryError` if an item that goes on may have the place of one of a backfill."""
        if place[1] in self._fronts:
            raise CarryError(
                f"step {operation!r} has scheduled items that go on under another name, and a step that "
                f"begins from a backfill has the name that they were scheduled under: they could not be "
                f"told apart. Give the step that begins another name, and the backfill too."
            )

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
        for backfill in self.backfills:
            own = dict.fromkeys(
                written(name)
                for name in (
                    *(each.new for each in backfill.carried.values()),
                    *backfill.timers.values(),
                )
            )
            yield from (f"backfilled: {name}, from {backfill.cut.checkpoint}" for name in own)
        yield from (f"changed: {step}" for step in self.changed)

    #: The keepers of the old version.
    _keepers: frozenset[str] = frozenset()


class _Source(NamedTuple):
    old: str
    migrate: Callable[[Any, Any], Any] | None
    said: bool  # by the user
    #: Of the version before, if it is None.
    cut: CutName | None = None


def carry_plan(
    before: Sequence[Step],
    graph: Graph,
    carry: Carry | None = None,
    *,
    at: tuple[int, int] | None = None,
    look: Look | None = None,
) -> CarryPlan:
    """How a graph takes over the state of a version with these steps.

    ``at`` is when, if that is known. ``look`` finds the cuts of backfills (`checkpoint.cuts.backfills`).

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
    return _Planner(before, graph, checked_carry(carry), at, look).plan()


def checked_carry(carry: object) -> dict[str, Source]:
    if carry is None:
        return {}
    if not isinstance(carry, Mapping) or not all(
        isinstance(name, str) and isinstance(source, str | Migrate | Drop | Backfilled)
        for name, source in carry.items()
    ):
        raise CarryError(
            f"carry= takes a dict from names of steps to names, ef.Migrate(name, function), "
            f"ef.Backfilled(checkpoint) or ef.Drop(name), got {carry!r}."
        )
    for source in carry.values():
        if isinstance(source, Migrate) and not callable(source.function):
            raise CarryError(f"ef.Migrate takes a function of key and value, got {source!r}.")
        if isinstance(source, Backfilled) and not (
            isinstance(source.checkpoint, str | os.PathLike)
            and str(source.checkpoint)
            and (source.step is None or isinstance(source.step, str))
        ):
            raise CarryError(
                f"ef.Backfilled takes the location of a checkpoint, and perhaps the name of a step there, "
                f"got {source!r}."
            )
    return dict(carry)


def has_backfills(carry: Carry | None) -> bool:
    return any(isinstance(source, Backfilled) for source in (carry or {}).values())


class _Planner:
    def __init__(
        self,
        before: Sequence[Step],
        graph: Graph,
        carry: dict[str, Source],
        at: tuple[int, int] | None,
        look: Look | None,
    ) -> None:
        self.before = before
        self.graph = graph
        self.carry = carry
        self.at = at
        self.now = steps_of(graph)
        self.old = _keepers(before)
        self.new = _keepers(self.now)
        self.problems: list[str] = []
        self.dropped_names = [each.step for each in carry.values() if isinstance(each, Drop)]
        #: From the names of old steps to those of the steps that go on from them.
        self.renamed = {
            (source if isinstance(source, str) else source.step): name
            for name, source in carry.items()
            if isinstance(source, str | Migrate)
        }
        #: By name of a step that begins from a backfill: its cut.
        self.cuts: dict[str, CutName] = {}
        self.steps: dict[CutName, tuple[Step, ...]] = {}
        for name, source in carry.items():
            if isinstance(source, Backfilled):
                if look is None:
                    raise CarryError(
                        f"carry= begins {name!r} from a backfill, which is not known here."
                    )
                self.cuts[name], steps = look(source.checkpoint)
                self.steps[self.cuts[name]] = steps
        #: A step that begins from a backfill takes the place of an old one of its name.
        self.replaced = [name for name in self.cuts if name not in self.renamed]

    def plan(self) -> CarryPlan:
        self._check_names()
        self._check_moments()
        carried: dict[str, Carried] = {}
        begun: list[str] = []
        given_to: dict[tuple[CutName | None, str], str] = {}
        backfilled: dict[CutName, dict[str, Carried]] = {cut: {} for cut in self.steps}
        # What the user says comes first: a step of the same name may have to begin empty.
        sources = {name: self._source(name) for name in self.new}
        said = {name for name, source in sources.items() if source is not None and source.said}
        for name in sorted(self.new, key=lambda name: name not in said):
            source = sources[name]
            olds = self.old if source is None else self._olds(source.cut)
            if source is None or source.old not in olds:
                begun.append(name)
                if source is not None and source.cut is not None:
                    self.problems.append(
                        f"step {written(name)!r} has no state in the backfill at "
                        f"{source.cut.checkpoint}, whose steps with state are {_listed(olds)}"
                    )
            elif (source.cut, source.old) in given_to:
                if source.said:
                    other = given_to[source.cut, source.old]
                    self.problems.append(
                        f"the state of {_told(olds[source.old])} goes to {written(other)!r} and to "
                        f"{written(name)!r}: only one step can take it over"
                    )
                begun.append(name)
            else:
                given_to[source.cut, source.old] = name
                taken = carried if source.cut is None else backfilled[source.cut]
                taken[source.old] = self._carried(name, source)
        dropped = {step.name for step in self.before if self._is_dropped(step.name)}
        lost = [old for old in self.old if old not in carried and old not in dropped]
        self.problems += [
            f"the state of {told} would be lost: no step of the new version has its name"
            for told in dict.fromkeys(_told(self.old[name]) for name in lost)
        ]
        backfills = tuple(self._backfill(cut, taken) for cut, taken in backfilled.items())
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
            backfills=backfills,
            _keepers=frozenset(self.old),
        )

    def _olds(self, cut: CutName | None) -> dict[str, Step]:
        """The steps with state that a source may name."""
        return self.old if cut is None else _keepers(self.steps[cut])

    def _backfill(self, cut: CutName, carried: dict[str, Carried]) -> Backfill:
        """What is taken of a cut. All of it is, but for what the old version has of its own."""
        maps = {step.name for step in self.now if step.kind == "map"}
        lost = [
            step
            for name, step in _keepers(self.steps[cut]).items()
            if name not in carried and not self._is_missed_by_nobody(name)
        ]
        self.problems += [
            f"the state of {told} in the backfill at {cut.checkpoint} would be lost: let a step begin "
            f"with it, or give it up"
            for told in dict.fromkeys(map(_told, lost))
        ]
        timers: dict[str, str] = {}
        ignored: set[str] = set()
        begins = {
            source.step or name: name
            for name, source in self.carry.items()
            if isinstance(source, Backfilled) and self.cuts[name] == cut
        }
        for step in self.steps[cut]:
            if step.kind != "map":
                continue
            said = [old for old in begins if _belongs(step.name, old)]
            if said:
                old = max(said, key=len)
                name = begins[old] + step.name[len(old) :]
                if name in maps:
                    timers[step.name] = name
            elif self._is_missed_by_nobody(step.name):
                ignored.add(step.name)
        return Backfill(cut, carried, timers, frozenset(ignored))

    def _check_moments(self) -> None:
        """All backfills end when the version takes over, and mean the same by it."""
        cuts = list(self.steps)
        for cut, other in pairwise(cuts):
            if cut.moment != other.moment:
                self.problems.append(
                    f"the backfill at {cut.checkpoint} ends at {_shown(cut.moment)}, and the one at "
                    f"{other.checkpoint} at {_shown(other.moment)}: a version takes over at one moment"
                )
        fronts = {name: front.index for name, front in self.graph.fronts.items()}
        for cut in cuts:
            if self.at is not None and cut.moment != self.at:
                self.problems.append(
                    f"the backfill at {cut.checkpoint} ends at {_shown(cut.moment)}, and the new version "
                    f"takes over at {_shown(self.at)}: a step begins with its state at that very moment. "
                    f"Backfill again with until={until_of(self.at)}, to an empty location, or let the "
                    f"version take over at {tuple(cut.moment)}"
                )
            own = {
                step.name: step.details["index"] for step in self.steps[cut] if step.kind == "front"
            }
            if cut.moment[1] > 0 and own != fronts:
                self.problems.append(
                    f"the backfill at {cut.checkpoint} ends between elements of the time "
                    f"{cut.moment[0]}, which are in the order of their fronts, and it has the fronts "
                    f"{', '.join(own)} where the new version has {', '.join(fronts)}. Backfill a flow "
                    f"with the same fronts, in order"
                )

    def _check_names(self) -> None:
        """Every name that the user gives is the name of a step."""
        before, now = [step.name for step in self.before], [step.name for step in self.now]
        filled = [step.name for steps in self.steps.values() for step in steps]
        for name, source in self.carry.items():
            if isinstance(source, Backfilled):
                cut, old = self.cuts[name], source.step or name
                if not any(_belongs(step.name, old) for step in self.steps[cut]):
                    self.problems.append(
                        f"carry= names {old!r}, and the backfill at {cut.checkpoint} has no such step; "
                        f"its steps with state are {_listed(_keepers(self.steps[cut]))}"
                    )
            else:
                old = source if isinstance(source, str) else source.step
                among = [*before, *filled] if isinstance(source, Drop) else before
                if not any(_belongs(step, old) for step in among):
                    self.problems.append(
                        f"carry= names {old!r}, and the old version has no such step; its steps with "
                        f"state are {_listed(self.old)}"
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
            taken = any(_belongs(name, old) for old in (*self.renamed, *self.dropped_names))
            scope = name.partition("/")[0]
            return None if taken else _Source(self._keeper(name, scope, scope), None, False)
        given = max(said, key=len)
        source = self.carry[given]
        if isinstance(source, Drop):
            return None
        if isinstance(source, Backfilled):
            cut = self.cuts[given]
            return _Source(self._keeper(name, given, source.step or given, cut), None, True, cut)
        old = source if isinstance(source, str) else source.step
        migrate = None if isinstance(source, str) else source.function
        return _Source(self._keeper(name, given, old), migrate, True)

    def _keeper(self, name: str, given: str, old: str, cut: CutName | None = None) -> str:
        """The keeper of the old step ``old`` that corresponds to a keeper of the new step ``given``.

        Operators are made of steps of other names. If both have one keeper, these correspond.
        """
        same, known = old + name[len(given) :], self._olds(cut)
        if same not in known:
            olds = [each for each in known if _belongs(each, old)]
            if len(olds) == 1 == sum(_belongs(each, given) for each in self.new):
                return olds[0]
        return same

    def _carried(self, name: str, source: _Source) -> Carried:
        old, new = self._olds(source.cut)[source.old], self.new[name]
        one, other = _operator_of(old), _operator_of(new)
        are_groups = "group" in (one, other)
        if one != other and source.cut is not None:
            self.problems.append(
                f"step {written(name)!r} is a {other}, and {written(source.old)!r} in the backfill at "
                f"{source.cut.checkpoint} is a {one}: backfill the step as it is now"
            )
        elif one != other and (source.migrate is None or are_groups):
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
        """Whether a step of the old version is given up, or replaced by one of its name."""
        return any(_belongs(name, dropped) for dropped in (*self.dropped_names, *self.replaced))

    def _is_missed_by_nobody(self, name: str) -> bool:
        """Whether a step of a backfill is given up, or goes on from the old version."""
        goes_on = any(_belongs(name, new) for new in self.renamed.values())
        given_up = any(_belongs(name, dropped) for dropped in self.dropped_names)
        return goes_on or given_up or any(step.name == name for step in self.before)

    def _timers(self) -> dict[str, str]:
        maps = {step.name for step in self.now if step.kind == "map"}
        found: dict[str, str] = {}
        for step in self.before:
            if step.kind != "map" or self._is_dropped(step.name):
                continue
            said = [old for old in self.renamed if _belongs(step.name, old)]
            name = step.name
            if said:
                old = max(said, key=len)
                name = self.renamed[old] + name[len(old) :]
            if name in maps:
                found[step.name] = name
        return found


def until_of(moment: tuple[int, int]) -> str:
    """What ``backfill(until=)`` takes for a moment.

    >>> until_of((7, 0)), until_of((7, 2))
    ('7', '(7, 2)')
    """
    time, front = moment
    return str(time) if front == 0 else str((time, front))


def _shown(moment: tuple[int, int]) -> str:
    time, front = moment
    if front == FRONT_MIN:
        return f"{time}, before what is scheduled for it"
    return f"{time}, behind what is scheduled for it" if front == 0 else str((time, front))


def _told(step: Step) -> str:
    return f"{written(step.name)!r} ({_operator_of(step)})"


def _keepers(steps: Iterable[Step]) -> dict[str, Step]:
    return {step.name: step for step in steps if _is_keeper(step)}


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
