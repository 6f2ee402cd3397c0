"""Transactions in a batch: outputs and states equal those of one transaction at a time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL
from emberflow.graph import expansion as expansion_module
from emberflow.graph.nodes import Graph
from emberflow.graph.transactions import State
from emberflow.rows.paths import decoded_path
from emberflow.runners.batch.passes import lanes
from emberflow.runners.batch.passes.machines import Ended, Kept
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.values.item import Place
from emberflow.values.times import has_expired
from tests.batch.local import batch
from tests.effort import blocks, few, shortened
from tests.simulation.cases import WrongError
from tests.simulation.transactional import TransactionCase, random_transactions
from tests.strategies import lifetime, random_flow

Elements = dict[str, list[Any]]
#: By state and key: the place and value of the last committed version.
Versioned = dict[tuple[str, Any], tuple[Place, Any]]


def random_case(seed: int) -> tuple[ef.Flow, Elements]:
    """Drawn as in the simulation; every third case has one key per transaction."""
    if seed % 3:
        return random_transactions(Random(f"transactions {seed}"))
    return one_key(Random(seed))


def one_key(random: Random) -> tuple[ef.Flow, Elements]:
    """Transactions over several states, each with one key for all its accesses."""
    flow = ef.Flow("one key")
    states = [
        flow.state(f"s{n}", default=random.randint(0, 9), expire_after=lifetime(random))
        for n in range(random.choice((2, 3)))
    ]
    keys = random.choice((2, 5, 20))
    fronts = [f"front-{n}" for n in range(random.choice((1, 2)))]
    streams: list[ef.Stream[int]] = [flow.front(front) for front in fronts]
    for number in range(random.choice((1, 2, 3))):
        source = random.choice(streams)
        if random.random() < 0.2:
            source = source.flat_map(several(random.randint(2, 3)))
        with source.transaction(name=f"t{number}") as tx:
            inner: Any = tx.map(plus(random.randint(1, 9))) if random.random() < 0.5 else tx
            keyed = inner.key_by(modulo(keys))
            touched = states if number == 0 else random.choices(states, k=random.randint(1, 3))
            for state in touched:
                check = random.choice((None, at_least(-5), at_least(0), at_least_its_own()))
                if random.random() < 0.2:
                    done = keyed.read(state, check=check)
                else:
                    done = keyed.update(state, changed(random.randint(2, 9)), check=check)
            if random.random() < 0.4:
                tx.require(lambda values: sum(values.values()) % 3 != 0, name="sum")
            last = tx.output(done.map(lambda pair: pair[1]))
        last.sink(f"last {number}")
        tx.committed.sink(f"committed {number}")
        tx.rejected.sink(f"rejected {number}")
    for number, stream in enumerate(streams):  # some of them open nothing
        stream.sink(f"as it is {number}")
    times = [random.sample(range(60), random.randint(5, 40)) for _ in fronts]
    return flow, {
        front: [ef.At(time, random.randint(0, 99)) for time in given]
        for front, given in zip(fronts, times, strict=True)
    }


def several(count: int) -> Callable[[int], list[int]]:
    return lambda n: [n * 7 + part for part in range(count)]


def plus(a: int) -> Callable[[int], int]:
    return lambda n: n + a


def modulo(keys: int) -> Callable[[int], int]:
    return lambda n: n % keys


def at_least(least: int) -> Callable[[int], bool]:
    return lambda value: value >= least


def at_least_its_own() -> Callable[[int, int], bool]:
    return lambda value, n: value >= n % 5 - 5


def changed(a: int) -> Callable[[int, int], int]:
    return lambda value, n: value + n % a - a // 2


def versions_after(
    flow: ef.Flow, elements: Elements, seed: int
) -> tuple[dict[str, Any], Versioned]:
    """The outputs of a batch, and the last versions that it reports: the same for all plans."""
    graph = flow.graph()
    told: Versioned = {}

    def ended(node: int) -> Ended:
        state = graph.nodes[node].name

        def note(key: Any, kept: list[Kept]) -> None:
            if graph.nodes[node].kind == "state":
                ((time, path, value, _),) = kept
                version = (time, *decoded_path(path)), value
                assert told.setdefault((state, key), version) == version

        return note

    partitions = (1, 3, 8)[seed // 3 % 3]
    return batch(flow, elements, partitions=partitions, seed=seed, ended=ended), told


def reference_of(graph: Graph, elements: Elements) -> Reference:
    reference = Reference(graph)
    for global_time, front, payload in timed_elements(graph, elements):
        reference.enter(global_time, front, payload)
    reference.finish()
    return reference


def judged(flow: ef.Flow, elements: Elements, seed: int) -> None:
    """Raise `WrongError` unless outputs, and the states that they need, are the reference's."""
    graph = flow.graph()
    reference = reference_of(graph, elements)
    found, told = versions_after(flow, elements, seed)
    if repr(found) != repr(reference.outputs):
        raise WrongError(f"seed {seed} gives {found}, the reference {reference.outputs}")
    units = Units(graph)
    reached = frozenset().union(
        *(units.leading_to(frozenset({sink.id})) for sink in graph.sinks.values())
    )
    now = max(place[0] for place, _ in told.values()) if told else 0
    nodes = {node.name: node for node in graph.nodes if isinstance(node, State)}
    for state, values in reference.states_at(now).items():
        if nodes[state].id in reached:
            mine = {
                key: value
                for (of, key), (place, value) in told.items()
                if of == state and not has_expired(place[0], nodes[state].expires, now)
            }
            if mine != values:
                raise WrongError(f"seed {seed} leaves {mine} in {state}, the reference {values}")


def judged_in_batch(seed: int) -> None:
    """For the soak: flows with transactions, and every third one without."""
    judged(*(random_flow(Random(seed)) if seed % 3 == 2 else random_case(seed)), seed)


@pytest.mark.parametrize("seeds", blocks("transactions in batch", 20), ids=str)
def test_random_transactions_equal_the_reference(seeds: range) -> None:
    for seed in seeds:
        judged(*random_case(seed), seed)


@pytest.mark.parametrize("first", shortened([0, 12]))
def test_the_versions_left_are_those_that_a_cut_has(first: int) -> None:
    """Also the global times when they were written, which a restored run needs; of those that live for ever,
    because others have expired when all is over."""
    for seed in range(first, first + few(12)):
        case = TransactionCase.of(seed, workers=1)
        flow, elements = random_transactions(Random(f"transactions {seed}"))
        _, told = versions_after(flow, elements, seed)
        simulation = case.simulation()
        simulation.run(timed_elements(case.graph, case.elements))
        (worker,) = [host.worker for host in simulation.workers]
        live = {
            (row.operation, row.key): (row.place, row.payload)
            for machine in worker.machines.stateful.values()
            if isinstance(machine, AccessMachine)
            for row in machine.committed(AFTER_ALL)
        }
        lives = {node.name: node.expires for node in case.graph.nodes if isinstance(node, State)}
        left = {
            where: (place[:2], value)
            for where, (place, value) in told.items()
            if lives[where[0]] is None
        }
        states = {state for state, _ in left}
        assert left == {where: row for where, row in live.items() if where[0] in states}, seed


def kinds(graph: Graph) -> list[str]:
    """How each transaction runs."""
    units = Units(graph)
    found = []
    for drawn in units.ordering.transactions:
        if drawn.open.id not in units.ordering.whole:
            found.append("apart")
            continue
        (unit,) = [unit for unit in units.units if drawn.open.id in unit.nodes]
        spread = units.ordering.spreading_key(unit, drawn.open.id)
        found.append("in order" if spread is None else "by key")
    return found


def test_the_cases_are_worth_it() -> None:
    counts = {"apart": 0, "by key": 0, "in order": 0}
    rejected = of = 0
    for seed in range(120):
        flow, elements = random_case(seed)
        for kind in kinds(flow.graph()):
            counts[kind] += 1
        outputs = ef.run(flow, **elements)
        rejected += sum(len(out) for name, out in outputs.items() if "rejected" in name)
        of += sum(map(len, outputs.values()))
    assert min(counts.values()) > 30, counts
    assert rejected > of / 20


def test_keys_of_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "key_hash", lambda key: 7)
    for seed in range(1_000, 1_000 + few(40)):
        flow, elements = random_case(seed)
        found = batch(flow, elements, partitions=3, seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), seed


def test_to_decide_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same transactions in a keyed pass and in one region."""
    monkeypatch.setattr(expansion_module._Expansion, "_decides_alone", lambda self, drafted: False)
    for seed in range(2_000, 2_000 + few(30)):
        flow, elements = random_case(seed)
        found = batch(flow, elements, partitions=3, seed=seed)
        assert repr(found) == repr(ef.run(flow, **elements)), seed


def test_a_refused_update_of_an_expired_key_leaves_what_was_written() -> None:
    """It sees the default, but that is not what the key was given last."""
    flow = ef.Flow("expired")
    state = flow.state("s", default=0, expire_after=2)
    with flow.front("in").transaction() as tx:
        tx.key_by(lambda n: 0).update(state, lambda _, n: n, check=lambda value: value < 5)
    tx.committed.sink("out")
    _, told = versions_after(flow, {"in": [ef.At(1, 3), ef.At(9, 7)]}, 0)
    assert [(place[0], value) for place, value in told.values()] == [(1, 3)]


# --- What runs how --------------------------------------------------------------------------------


def test_updates_that_nothing_can_refuse_are_keyed_passes() -> None:
    """Also with several updates, a key that was read, outputs, and a reader of `committed`."""
    flow = ef.Flow("links")
    links, counts = flow.state("links", default=0), flow.state("counts", default=0)
    with flow.front("linked").transaction(name="link") as tx:
        tx.key_by(lambda n: n % 5).update(links, lambda _, n: n)
    with flow.front("visits").transaction(name="visit") as visit:
        at = visit.key_by(lambda n: n % 5).read(links)
        after = visit.output(at.key_by(lambda pair: pair[1]).update(counts, lambda c, _: c + 1))
        twice = visit.flat_map(lambda n: [n] * (n % 3)).key_by(lambda n: n % 2)
        twice.update(counts, lambda c, _: c + 10)
    after.map(lambda pair: (pair[0][1], pair[1])).sink("after")
    visit.committed.sink("visits")
    tx.committed.sink("links")
    assert kinds(flow.graph()) == ["apart", "apart"]
    assert not any(unit.is_region for unit in Units(flow.graph()).units)
    random = Random(1)
    elements = {
        "linked": [ef.At(time, random.randint(0, 9)) for time in range(0, 60, 3)],
        "visits": [ef.At(time, random.randint(0, 99)) for time in range(60)],
    }
    found = batch(flow, elements, partitions=3, seed=1)
    assert repr(found) == repr(ef.run(flow, **elements))


def test_a_deposit_waits_for_the_transfers_on_its_state() -> None:
    """Alone it would be a keyed pass; but it and the transfers see each other's effects."""
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=5)
    names = flow.state("names", default=0)
    with flow.front("transfers").transaction(name="transfer") as transfer:
        transfer.key_by(lambda n: n % 3).update(
            accounts, lambda a, n: a - n % 7, check=lambda a: a >= 0
        )
        transfer.key_by(lambda n: n % 4).update(accounts, lambda a, n: a + n % 7)
    with flow.front("deposits").transaction(name="deposit") as deposit:
        deposit.key_by(lambda n: n % 4).update(accounts, lambda a, n: a + n)
    with flow.front("named").transaction(name="name") as named:
        named.key_by(lambda n: n).update(names, lambda _, n: n)
    transfer.committed.sink("transferred")
    deposit.committed.sink("deposited")
    named.committed.sink("named")
    assert kinds(flow.graph()) == ["in order", "in order", "apart"]
    random = Random(2)
    elements = {
        name: [ef.At(time, random.randint(0, 99)) for time in random.sample(range(99), 30)]
        for name in ("transfers", "deposits", "named")
    }
    found = batch(flow, elements, partitions=3, seed=1)
    assert repr(found) == repr(ef.run(flow, **elements))


def test_reads_that_can_be_refused_wait_for_the_updates() -> None:
    """A transaction that only reads has no abort edge, so no cycle in the graph joins its parts."""
    flow = ef.Flow("questions")
    one, other = flow.state("one", default=0), flow.state("other", default=0)
    numbers = flow.front("numbers")
    for state in (one, other):
        with numbers.transaction(name=f"add {state.name}") as add:
            add.key_by(lambda n: n % 3).update(state, lambda v, n: v + n)
        add.committed.sink(f"added {state.name}")
    with flow.front("questions").transaction(name="ask") as ask:
        ask.key_by(lambda n: n % 3).read(one, check=lambda v: v % 2 == 0)
        ask.key_by(lambda n: n % 2).read(other)
        ask.require(lambda values: sum(values.values()) % 3 != 0, name="sum")
    ask.committed.sink("yes")
    ask.rejected.sink("no")
    assert kinds(flow.graph()) == ["in order"] * 3
    elements = {
        name: [ef.At(n, n * 7 % 11) for n in range(50)] for name in ("numbers", "questions")
    }
    expected = ef.run(flow, **elements)
    assert {rejected.check for rejected in expected["no"]} == {"ask/read", "sum"}
    assert len(expected["yes"]) > 5
    assert repr(batch(flow, elements, partitions=3, seed=1)) == repr(expected)


def test_one_key_that_is_not_the_same_function_is_not_taken_for_one() -> None:
    flow = ef.Flow("two keys")
    one, other = flow.state("one", default=0), flow.state("other", default=0)
    with flow.front("numbers").transaction() as tx:
        tx.key_by(lambda n: n % 3).update(one, lambda v, n: v + 1, check=lambda v: v < 9)
        tx.key_by(lambda n: n % 2).update(other, lambda v, n: v + 1)
    tx.committed.sink("out")
    assert kinds(flow.graph()) == ["in order"]


# --- Errors ---------------------------------------------------------------------------------------


def at_13(n: int) -> int:
    return 0 // (n - 13)


#: What raises, or is refused, at 13: the map, the key, the update, the constraint.
FAILING: dict[str, tuple[Any, Any, Any, Any]] = {
    "map": (lambda n: n + at_13(n), None, None, None),
    "scheduled": (lambda n: ef.At(99, n) if n == 13 else n, None, None, None),
    "key": (None, lambda n: n % 3 + at_13(n), None, None),
    "unstable key": (None, lambda n: object() if n == 13 else n, None, None),
    "update": (None, None, lambda v, n: v + at_13(n), None),
    "scheduled value": (None, None, lambda v, n: ef.At(99, n) if n == 13 else v, None),
    "constraint": (None, None, None, lambda values: at_13(*values.of("state")) == 0),
}


def failing(what: str, whole: bool) -> ef.Flow:
    mapped, key, update, constraint = FAILING[what]
    flow = ef.Flow("failing")
    state, other = flow.state("state", default=0), flow.state("other", default=0)
    with flow.front("numbers").transaction(name="first") as tx:
        inner: Any = tx if mapped is None else tx.map(mapped, name="map")
        keyed = inner.key_by(key or (lambda n: n))
        keyed.update(state, update or (lambda v, n: v + n), check=lambda v: v >= 0)
        if whole:
            keyed.update(other, lambda v, n: v + 1)
        if constraint is not None:
            tx.require(constraint)
    with flow.front("others").transaction(name="second") as second:
        second.key_by(lambda n: n).read(other)
    second.committed.sink("others")
    tx.committed.sink("out")
    return flow


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("what", FAILING)
def test_an_error_is_that_of_the_reference(what: str, whole: bool) -> None:
    flow = failing(what, whole)
    elements = {"numbers": [1, 13, 2], "others": [1]}
    with pytest.raises(ef.StepError) as expected:
        ef.run(flow, **elements)
    assert expected.value.global_time == (1, 0)
    with pytest.raises(ef.StepError) as found:
        batch(flow, elements, partitions=2, seed=1)
    assert str(found.value) == str(expected.value)
    assert type(found.value) is type(expected.value)


def test_a_try_that_never_ends_is_told() -> None:
    flow = ef.Flow("endless")
    state = flow.state("state", default=0)
    again = flow.loop()
    with ef.merge(flow.front("numbers"), again).transaction() as tx:
        tx.key_by(lambda n: n).update(state, lambda v, n: v + 1, check=lambda v: False)
    again.close(tx.rejected.map(lambda rejected: rejected.element))
    tx.committed.sink("out")
    with pytest.raises(ef.EndlessLoopError) as expected:
        ef.run(flow, numbers=[1])
    with pytest.raises(ef.EndlessLoopError) as found:
        batch(flow, {"numbers": [1]}, partitions=1, seed=0)
    assert str(found.value) == str(expected.value)
