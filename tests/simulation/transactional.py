"""Random flows of transactions, drawn from a seed, and how they are judged.

Payloads are small ints, so that any step can follow any other. Few keys and tight checks cause
contention and violated constraints; keys that depend on values read cause accesses that move when
something before them changes. A flow has:

- one to three states with 2 to 20 keys; one of them may hold the last few payloads instead of a
  sum;
- one to four transactions: on a front, on all fronts merged, behind a `flat_map` (several per
  element), on what an earlier transaction committed, rejected or emitted, or beside it; some retry
  what was rejected;
- in each transaction one to four branches of updates and reads, some in series;
- checks, and constraints over all values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Self

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.errors import OnError
from emberflow.graph.transactions import State
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import Faults, Options, SimulationResult
from emberflow.values.times import has_expired
from tests.simulation.cases import Case, WrongError, disordered, judged
from tests.simulation.crash_cases import CrashCase, judged_with_crashes
from tests.simulation.failing import with_failing_transactions
from tests.strategies import lifetime


@dataclass(frozen=True)
class TransactionCase(Case):
    """A case whose states are compared with the reference too."""

    @classmethod
    def of(cls, seed: int, *, workers: int | None = None, on_error: OnError = "fail") -> Self:
        random = Random(f"transactions {seed}")
        flow, elements = random_transactions(random)
        return cls(
            name=flow.name,
            graph=flow.graph(on_error=on_error),
            elements=elements,
            options=Options.drawn(seed, workers=workers),
            trims_always=random.random() < 0.5,
            again=f"python -m tests.simulation.soak --transactions --from {seed} --seeds 1",
            on_error=on_error,
        )

    @cached_property
    def _reference(self) -> Reference:
        reference = Reference(self.graph, on_error=self.on_error)
        for global_time, front, payload in timed_elements(self.graph, self.elements):
            reference.enter(global_time, front, payload)
        reference.finish()
        return reference

    @cached_property
    def expected(self) -> dict[str, list[Any]]:
        return self._reference.outputs

    @property
    def expected_states(self) -> dict[str, dict[Any, Any]]:
        return self._reference.states_at(AFTER_ALL[0])


def judged_with_states(case: TransactionCase, **machines: Any) -> SimulationResult:
    """Run a case; raise `WrongError` unless outputs and states are those of the reference."""
    result = judged(case, **machines)
    if result.states != case.expected_states:
        raise WrongError(
            f"the states are {result.states}, the reference has {case.expected_states}\n{case}"
        )
    return result


def judged_with_crashes_and_cuts(case: CrashCase, **machines: Any) -> SimulationResult:
    """Run a case with crashes; raise `WrongError` unless outputs, states and all cuts are right.

    A cut at T must hold what the reference has after all elements below T and no others: so it
    contains no half of a transaction, and no rejected one.
    """
    result, simulation = judged_with_crashes(case, **machines)
    reference = Reference(case.graph, on_error=case.on_error)
    lives = {node.name: node.expires for node in case.graph.nodes if isinstance(node, State)}
    cuts = simulation.storage.cuts
    ahead = sorted(cuts.manifests, key=lambda manifest: manifest.moment, reverse=True)

    def check_cuts_up_to(moment: Moment) -> None:
        while ahead and ahead[-1].moment <= moment:
            restorable = cuts.restorable(ahead.pop())
            if restorable is None:
                continue
            now = restorable.manifest.moment[0]
            saved: dict[str, dict[Any, Any]] = {name: {} for name in reference.states}
            for row in restorable.rows:
                # A chain of cuts may still have what has expired, from its older ones.
                if row.operation in saved and not has_expired(
                    row.place[0], lives[row.operation], now
                ):
                    saved[row.operation][row.key] = row.payload
            expected = reference.states_at(now)
            if saved != expected:
                raise WrongError(
                    f"the cut {restorable.manifest} holds {saved}, the reference has "
                    f"{expected}\n{case}"
                )

    for moment, front, payload in case.given(simulation):
        check_cuts_up_to(moment)
        reference.enter(moment, front, payload)  # type: ignore[arg-type]
    reference.finish()
    check_cuts_up_to(AFTER_ALL)
    expected = reference.states_at(AFTER_ALL[0])
    if result.states != expected:
        raise WrongError(f"the states are {result.states}, the reference has {expected}\n{case}")
    return result


def undone(seed: int) -> TransactionCase:
    """The flow of a seed with functions that raise within transactions, and errors diverted."""
    case = TransactionCase.of(seed, on_error="divert")
    graph = with_failing_transactions(case.graph, Random(f"undone {seed}"))
    case = replace(case, graph=graph, again=f"undone({seed})")
    return disordered(case, seed)


def undone_with_crashes(seed: int) -> CrashCase:
    """The same, and its faults."""
    return replace(CrashCase.from_case(undone(seed), seed), again=f"undone_with_crashes({seed})")


def transactions_with_crashes(seed: int) -> CrashCase:
    """The flow of a seed, and its faults."""
    case = CrashCase.from_case(TransactionCase.out_of_order(seed), seed)
    again = f"python -m tests.simulation.soak --transactions --crashes --from {seed} --seeds 1"
    return replace(case, again=again)


def transactions_with_moves(seed: int) -> CrashCase:
    """The same, with slices that move between workers, some of which come or leave."""
    random = Random(f"moving transactions {seed}")
    faults = Faults.drawn(seed, crashes=random.choice((0, 1, 2)), moves=random.randint(1, 5))
    again = f"python -m tests.simulation.soak --moves --from {seed} --seeds 1"
    return replace(transactions_with_crashes(seed), faults=faults, again=again)


def random_transactions(random: Random) -> tuple[ef.Flow, dict[str, list[Any]]]:
    """A flow of transactions, and the elements of its fronts."""
    flow = ef.Flow("transactions")
    fronts = [f"front-{number}" for number in range(random.choice((1, 1, 2, 3)))]
    draft = _Draft(random, flow, [flow.front(front) for front in fronts])
    for number in range(random.choice((1, 1, 2, 2, 3, 4))):
        draft.transaction(f"t{number}")
    draft.end()
    times = random.choice((12, 20, 40))
    return flow, {
        front: [
            ef.At(time, random.randint(0, 99))
            for time in sorted(random.sample(range(times * 2), random.randint(1, times)))
        ]
        for front in fronts
    }


def plain(payload: Any) -> int:
    """An int from whatever a source emits."""
    if isinstance(payload, ef.Rejected):
        return payload.element + len(payload.check)
    if isinstance(payload, tuple):  # an access emits payload and value
        return plain(payload[0]) * 3 + payload[1]
    return payload


class _Draft:
    def __init__(self, random: Random, flow: ef.Flow, fronts: list[ef.Stream[int]]) -> None:
        self.random = random
        self.flow = flow
        self.sinks = 0
        self.outputs: list[ef.Stream[int]] = []
        self.keys = random.choice((2, 2, 3, 5, 20))
        self.sources: list[ef.Stream[Any]] = list(fronts)
        if len(fronts) == 1:
            self.sink(fronts[0])
        else:
            # Both: the front on its own, and merged with the others.
            merged = ef.merge(*(front.map(lambda n: n) for front in fronts))
            self.sources.append(merged)
            self.sink(merged)
        self.states = [
            flow.state(
                f"s{number}", default=random.choice((0, 5, 20)), expire_after=lifetime(random)
            )
            for number in range(random.choice((1, 1, 2, 3)))
        ]
        life = lifetime(random)
        self.last_few = (
            flow.state("last few", default=(), expire_after=life) if random.random() < 0.3 else None
        )
        self.touched: set[str] = set()

    def transaction(self, name: str) -> None:
        random = self.random
        source = random.choice(self.sources[-4:]).map(plain)
        if random.random() < 0.2:
            parts = random.randint(2, 3)
            source = source.flat_map(lambda n: [n * 7 + part for part in range(parts)])
        again = None
        if random.random() < 0.1:
            # Retry rejected transactions with less.
            again = self.flow.loop()
            source = ef.merge(source, again)
        single = random.random() < 0.25
        with source.transaction(name=name) as tx:
            for _ in range(1 if single else random.choice((1, 1, 2, 2, 3, 4))):
                self.branch(tx, single=single)
            if not single and random.random() < 0.3:
                tx.require(self.constraint())
            if self.last_few is not None and not single and random.random() < 0.5:
                self.touched.add("last few")
                by = tx.key_by(self.key())
                by.update(self.last_few, lambda few, n: (*few[-2:], n))
        if again is not None:
            less = tx.rejected.map(lambda rejected: rejected.element // 5)
            again.close(less.filter(lambda n: n > 3))
        outputs = self.outputs
        self.outputs = []
        if random.random() < 0.15:
            # Nobody reads the outcome; the updates still count.
            for output in outputs:
                self.sink(output)
            return
        self.sources.append(tx.committed)
        if random.random() < 0.8:
            self.sources.append(tx.rejected)
            tx.rejected.sink(f"{name} rejected")
        for output in outputs:
            self.sources.append(output)
            self.sink(output)
        self.sink(tx.committed)

    def branch(self, tx: ef.Transaction[int], *, single: bool) -> None:
        """Accesses in series; a single access may be decided alone."""
        random = self.random
        stream: Any = tx
        if random.random() < 0.5:
            stream = stream.map(lambda n: n + 1) if single else self.stateless(stream)
        done = self.access(stream)
        for _ in range(0 if single else random.choice((0, 0, 0, 1, 2))):
            done = self.access(self.mixed(done) if random.random() < 0.7 else done)
        if random.random() < 0.3:
            self.outputs.append(tx.output(self.mixed(done) if random.random() < 0.7 else done))

    def stateless(self, stream: Any) -> Any:
        random, a = self.random, self.random.randint(1, 9)
        kind = random.choice(("map", "map", "filter", "flat_map"))
        if kind == "map":
            return stream.map(lambda n: n + a)
        if kind == "filter":
            return stream.filter(lambda n: n % 3 != a % 3)
        return stream.flat_map(lambda n: [n + a * i for i in range(n % 4)])

    def access(self, stream: Any) -> Any:
        random = self.random
        state = random.choice(self.states)
        self.touched.add(state.name)
        by = stream.key_by(self.key())
        check = self.check() if random.random() < 0.6 else None
        if random.random() < 0.25:
            return by.read(state, check=check)
        return by.update(state, self.function(), check=check)

    def mixed(self, done: Any) -> Any:
        a = self.random.randint(1, 5)
        return done.map(lambda pair: (plain(pair[0]) * a + pair[1]) % 100)

    def key(self) -> Callable[[int], Any]:
        a, keys = self.random.randint(1, 9), self.keys
        if self.random.random() < 0.1:
            return lambda n: 0
        return lambda n: (plain(n) * a) % keys

    def function(self) -> Callable[[int, int], int]:
        kind, a = self.random.randint(0, 3), self.random.randint(2, 9)
        if kind == 0:
            return lambda value, n: value + plain(n) % a
        if kind == 1:
            return lambda value, n: value - plain(n) % a
        if kind == 2:
            return lambda value, n: plain(n) % a if plain(n) % 2 else value
        return lambda value, n: (value * 3 + plain(n)) % 50 - a

    def check(self) -> Callable[..., bool]:
        kind, a = self.random.randint(0, 2), self.random.randint(2, 5)
        if kind == 0:

            def not_negative(value: int) -> bool:
                return value >= 0

            return not_negative
        if kind == 1:
            return lambda value: value % a != 0
        if a == 3:
            return lambda value, n: value >= plain(n) % 5 - 5
        return lambda value: -30 < value < 30

    def constraint(self) -> Callable[[ef.Values], bool]:
        a = self.random.randint(2, 5)

        def adds_up(values: ef.Values) -> bool:
            numbers = [value for value in values.values() if isinstance(value, int)]
            return sum(numbers) % a != 0

        return adds_up

    def sink(self, stream: ef.Stream[Any]) -> None:
        self.sinks += 1
        stream.sink(f"sink-{self.sinks}")

    def end(self) -> None:
        """Use every state or stream that was not drawn once."""
        unused = [state for state in self.states if state.name not in self.touched]
        if self.last_few is not None and "last few" not in self.touched:
            unused.append(self.last_few)
        if unused:
            with self.sources[0].map(plain).transaction(name="rest") as tx:
                for state in unused:
                    tx.key_by(lambda n: n % 2).read(state)
            self.sink(tx.committed)
