"""One seed is one case with versions: a random flow, what random versions make of it, and when.

A version has random steps of every kind with state. The next one keeps some of them with other
functions, renames some, migrates some, drops some and adds others. Fronts come and go. Some steps begin
from a backfill: new ones, and ones that take the place of an old one of their name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.worker.worker import Worker
from emberflow.runners.reference import run_versions
from emberflow.runners.served import served
from emberflow.runners.simulation import CrashSimulation, Faults, Options, SimulationResult
from emberflow.runners.simulation.checkers import check_outputs
from emberflow.values.item import FRONT_MIN
from tests.backfilled import backfilled
from tests.simulation.cases import WrongError, always_trimming

KINDS = (
    *("count", "fold", "group", "close", "session", "updates", "later", "bank", "join", "loop"),
    *("reminded", "kept"),
)


@dataclass(frozen=True)
class Part:
    """A branch of a flow. ``generation`` counts how often its functions were changed."""

    name: str
    kind: str
    generation: int = 0

    @property
    def keepers(self) -> list[str]:
        """The names of its steps with state."""
        is_behind_timer = self.kind in ("reminded", "kept")
        return [self.name, f"state of {self.name}"] if is_behind_timer else [self.name]


def flow_of(parts: list[Part], has_second: bool) -> ef.Flow:
    flow = ef.Flow("versioned")
    first = flow.front("one")
    numbers = ef.merge(first, flow.front("two")) if has_second else first
    numbers.sink("all")
    for part in parts:
        add(flow, numbers, part)
    return flow


def add(flow: ef.Flow, numbers: ef.Stream[int], part: Part) -> None:
    name, more = part.name, part.generation
    # Some versions change it. It is drawn by the name, so that all other draws are as they were.
    life = (None, None, 2, 5, None, 9)[(len(name) * 3 + ord(name[-1]) + more) % 6]
    keyed = numbers.key_by(lambda n: n % 3)
    out: ef.Stream[Any]
    if part.kind == "count":
        out = numbers.key_by(lambda n: (n + more) % 3).count(name=name, expire_after=life)
    elif part.kind == "fold":
        out = keyed.fold(
            initial=0, combine=lambda a, n: (3 * a + n + more) % 1009, name=name, expire_after=life
        )
    elif part.kind == "group":
        out = keyed.group(window=2 + more % 3, name=name)
    elif part.kind == "close":
        closed = keyed.window(ef.Tumbling(7), emit="close")
        out = closed.fold(initial=more, combine=lambda a, n: a + n, name=name)
    elif part.kind == "session":
        out = keyed.window(ef.Session(4), emit="close").sum(of=lambda n: n + more, name=name)
    elif part.kind == "updates":
        out = keyed.window(ef.Sliding(9, slide=4)).max(of=lambda n: (n + more) % 7, name=name)
    elif part.kind in ("later", "reminded", "kept"):
        timed = numbers.with_time(name=f"time of {name}")
        out = timed.flat_map(
            lambda t: [ef.At(t.time + 1 + t.payload % 9, t.payload + more)], name=name
        )
        if part.kind == "reminded":
            out = out.key_by(lambda n: n % 3).count(name=f"state of {name}", expire_after=life)
        elif part.kind == "kept":
            out = out.key_by(lambda n: n % 3).group(window=3, name=f"state of {name}")
    elif part.kind == "join":
        odd, even = (numbers.filter(lambda n, r=rest: n % 2 == r) for rest in (1, 0))
        sides = [side.key_by(lambda n: n % 3) for side in (odd, even)]
        out = sides[0].join(sides[1], lambda one, two: (one, two, more), within=(-5, 5), name=name)
    elif part.kind == "loop":
        again = flow.loop(name=f"again {name}")
        rounds = ef.merge(numbers.map(lambda n: (n, 2)), again).key_by(lambda r: r[0] % 3)
        last = rounds.group(window=2, name=name)
        again.close(
            last.filter(lambda rs: rs[-1][1] > 0).map(
                lambda rs: (rs[-1][0] + rs[0][0], rs[-1][1] - 1)
            )
        )
        out = last.map(lambda rs: rs[-1][0] + more)
    else:
        purses = flow.state(name, default=20, expire_after=life)
        with numbers.transaction(name=f"change of {name}") as tx:
            moved = tx.flat_map(lambda n: [(n % 3, -n % 11 - more), ((n + 1) % 3, n % 7)])
            moved.key_by(lambda m: m[0]).update(
                purses, lambda value, m: value + m[1], check=lambda value: value >= 0
            )
        out = ef.merge(tx.committed, tx.rejected.map(lambda r: -r.element))
    out.sink(f"out of {name}")


@dataclass(frozen=True)
class VersionCase:
    """Versions, their elements, and what goes wrong meanwhile."""

    name: str
    versions: ef.Versions
    elements: dict[str, list[Any]]
    options: Options
    faults: Faults
    trims_always: bool
    again: str

    @classmethod
    def of(cls, seed: int) -> VersionCase:
        random = Random(f"versions {seed}")
        parts = [
            Part(f"{kind} {number}", kind)
            for number, kind in enumerate(random.choices(KINDS, k=random.randint(1, 3)))
        ]
        begins = sorted(random.sample(range(3, 60), k=random.choice((1, 1, 2, 3))))
        has_second = [random.random() < 0.7 for _ in (None, *begins)]
        first = flow_of(parts, has_second[0])
        told = [f"{[part.name for part in parts]}"]
        names = {part.name for part in parts}
        later: list[tuple[int, list[Part], bool, dict[str, Any]]] = []
        for at, second in zip(begins, has_second[1:], strict=True):
            parts, carry = changed(random, parts)
            told.append(f"{at}: {[part.name for part in parts]} {carry}")
            later.append((at, parts, second, carry))
        times = sorted(random.choices(range(60), k=random.randint(5, 40)))
        ends = [*begins, 60]
        elements = {"one": [ef.At(time, 7 * time % 23) for time in times]}
        if any(has_second):
            elements["two"] = [
                ef.At(time, 5 * time % 19)
                for time in sorted(random.choices(range(60), k=20))
                if has_second[sum(time >= at for at in ends[:-1])]
            ]
        begun = begun_from_backfills(Random(f"backfills {seed}"), names, later, elements)
        return cls(
            name=" -> ".join([*told, *(f"{at}: {carry}" for at, _, carry in begun)]),
            versions=ef.Versions(first, *begun),
            elements=elements,
            options=Options.drawn(seed),
            faults=Faults.drawn(seed, crashes=random.randint(0, 4)),
            trims_always=random.random() < 0.5,
            again=f"python -m tests.simulation.soak --versions --from {seed} --seeds 1",
        )

    def expected(self) -> dict[str, list[Any]]:
        return run_versions(self.versions, self.elements)

    def simulation(
        self, *, worker: type[Worker] = Worker, kind: type[CrashSimulation] = CrashSimulation
    ) -> CrashSimulation:
        parts = list(served(self.versions, self.elements))
        worker = always_trimming(worker) if self.trims_always else worker
        return kind(parts[0].graph, self.options, self.faults, worker=worker, served=parts)

    def with_faults(self, **changed: Any) -> VersionCase:
        return replace(self, faults=replace(self.faults, **changed))

    def __str__(self) -> str:
        return f"  {self.name}\n  {self.options}\n  {self.faults}\n  again: {self.again}"


def changed(random: Random, parts: list[Part]) -> tuple[list[Part], dict[str, Any]]:
    """The parts of the next version, and what it takes over."""
    carry: dict[str, Any] = {}
    found: list[Part] = []
    for part in parts:
        name = part.name
        newer = replace(part, generation=part.generation + random.randint(0, 2))
        what = random.choice(("keep", "keep", "rename", "drop", "restart", "migrate"))
        if what in ("drop", "restart"):
            carry.update({keeper: ef.Drop(keeper) for keeper in part.keepers})
            if what == "drop":
                continue
        elif what == "rename":
            newer = replace(newer, name=f"{name}'")
            carry.update(zip(newer.keepers, part.keepers, strict=True))
        elif what == "migrate" and part.kind == "count":
            newer = replace(newer, kind="fold")
            carry[name] = ef.Migrate(name, lambda key, count: 5 * count + key)
        elif what == "migrate" and part.kind in ("fold", "bank"):
            carry[name] = ef.Migrate(name, lambda key, value: value + key)
        found.append(newer)
    if random.random() < 0.5:
        kind = random.choice(KINDS)
        found.append(Part(f"{kind} {random.randint(100, 10**6)}", kind))
    random.shuffle(found)
    return found, carry


def begun_from_backfills(
    random: Random,
    before: set[str],
    later: list[tuple[int, list[Part], bool, dict[str, Any]]],
    elements: dict[str, list[Any]],
) -> list[tuple[Any, ef.Flow, dict[str, Any]]]:
    """The later versions, in which some steps begin from a backfill of their own or of the whole flow.

    ``before`` are the names that the first version has.
    """
    found: list[tuple[Any, ef.Flow, dict[str, Any]]] = []
    for at, parts, second, carry in later:
        flow = flow_of(parts, second)
        new = {part.name for part in parts if part.name not in before and part.name not in carry}
        before = {part.name for part in parts}
        begun = [part for part in parts if may_begin(random, part, carry, is_new=part.name in new)]
        if not begun:
            found.append((at, flow, carry))
            continue
        moment = at, random.choice((FRONT_MIN, FRONT_MIN, 0))
        filled = flow if random.random() < 0.5 else flow_of(begun, second)
        checkpoint = backfilled(filled, elements, moment)
        begins = {name: ef.Backfilled(checkpoint) for part in begun for name in part.keepers}
        if filled is flow:  # what it knows besides is new too, and begins empty
            rest = [part for part in parts if part.name in new and part not in begun]
            begins |= {name: ef.Drop(name) for part in rest for name in part.keepers}
        found.append((moment, flow, {**carry, **begins}))
    return found


def may_begin(random: Random, part: Part, carry: dict[str, Any], *, is_new: bool) -> bool:
    """Often a new step, and now and then one that the old version has, if nothing is said of it."""
    if is_new:
        return random.random() < 0.7
    said = {*carry, *(source for source in carry.values() if isinstance(source, str))}
    return not said.intersection(part.keepers) and random.random() < 0.15


def judged_with_versions(
    case: VersionCase, **machines: Any
) -> tuple[SimulationResult, CrashSimulation]:
    """Run a case; raise `WrongError` unless every sink holds exactly what the reference says."""
    simulation = case.simulation(**machines)
    try:
        result = simulation.run()
        expected = case.expected()
        check_outputs(result.outputs, expected)
        if repr(result.outputs) != repr(expected):
            raise AssertionError("equal outputs that do not look alike")
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n{case}") from error
    return result, simulation
