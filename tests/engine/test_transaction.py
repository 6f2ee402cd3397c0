"""The machines of transactions by themselves: after every batch they have sent what is there."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.cuts.cut import Row
from emberflow.engine.layout import Layout, Machines
from emberflow.engine.machines.closer import CloserMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.errors import NondeterminismError
from emberflow.graph.transactions import ABORT, ABORTED, Close
from emberflow.values.hashing import key_hash
from emberflow.values.item import FlatItem, Place
from tests.effort import few
from tests.engine.helpers import Sent

KEYS = "ab"


def even(value: int) -> bool:
    return value % 2 == 0


def flow() -> ef.Flow:
    """Three accesses of one state in a transaction, and one that is decided alone."""
    made = ef.Flow("machines")
    state = made.state("values", default=0)
    with made.front("in").transaction() as tx:
        tx.key_by(lambda n: "a").update(state, lambda v, n: v + n, check=even)
        seen = tx.output(tx.key_by(lambda n: "b").read(state))
        tx.key_by(lambda n: "b").update(state, lambda v, n: v * 2 + n)
    ef.merge(tx.committed, tx.rejected, seen).sink("together")
    with made.front("alone").transaction() as alone:
        alone.key_by(lambda n: "a").update(state, lambda v, n: v + n, check=even)
    ef.merge(alone.committed, alone.rejected).sink("alone")
    return made


def machines() -> tuple[AccessMachine, CloserMachine]:
    found = Machines(Layout(flow().graph())).stateful.values()
    (versions,) = (machine for machine in found if isinstance(machine, AccessMachine))
    (closing,) = (machine for machine in found if isinstance(machine, CloserMachine))
    return versions, closing


def access(random: Random) -> FlatItem:
    time, number = random.randint(1, 5), random.randint(0, 3)
    place: Place = (time, 0) if number == 3 else (time, 0, number)
    payload: Any = random.randint(0, 3)
    if number == 3:  # decided alone
        payload = (payload, payload)
    return place, 2 * random.randint(0, 1), (random.choice(KEYS), number, 2, payload)


def abort(item: FlatItem) -> FlatItem:
    place, mark, (key, _, _, _) = item
    return (*place, ABORTED), mark, (key, ABORT, 0, None)


def taken_back(item: FlatItem) -> FlatItem:
    return item[0], item[1] | 1, item[2]


def identity(item: FlatItem) -> tuple[Any, ...]:
    return item[0], item[1]


class Ports:
    """What a machine has sent and not taken back, by port."""

    def __init__(self, machine: AccessMachine | CloserMachine) -> None:
        self.machine = machine
        self.ports = [Sent() for _ in range(machine.node.ports)]

    def take(self, items: list[FlatItem]) -> None:
        failed: list[FlatItem] = []
        for sent, output in zip(self.ports, self.machine.process(items, failed), strict=True):
            sent.take(output)
        assert not failed

    def live(self) -> list[dict[tuple[Place, int], Any]]:
        return [sent.live for sent in self.ports]


@pytest.mark.parametrize("seed", range(few(60)))
def test_a_state_has_sent_what_is_there_whatever_came_before(seed: int) -> None:
    random = Random(seed)
    ports = Ports(machines()[0])
    there: dict[tuple[Any, ...], FlatItem] = {}
    for _ in range(12):
        batch: list[FlatItem] = []
        for _ in range(random.randint(1, 6)):
            item = access(random)
            if random.random() < 0.4:
                item = abort(item)
            found = there.pop(identity(item), None)
            if found is None:
                there[identity(item)] = item
                batch.append(item)
            else:
                batch.append(taken_back(found))
        ports.take(batch)
        fresh = Ports(machines()[0])
        fresh.take(sorted(there.values(), key=identity))
        assert ports.live() == fresh.live()
        settled = {row.key: row.payload for row in ports.machine.committed(AFTER_ALL)}  # type: ignore[union-attr]
        again = {row.key: row.payload for row in fresh.machine.committed(AFTER_ALL)}  # type: ignore[union-attr]
        assert settled == again
    ports.machine.trim(AFTER_ALL)
    after = {row.key: row.payload for row in ports.machine.committed(AFTER_ALL)}  # type: ignore[union-attr]
    assert after == settled
    assert max(ports.machine.sizes(), default=0) <= 1
    assert not ports.machine.touched


@pytest.mark.parametrize("seed", range(few(60)))
def test_a_closer_has_sent_what_is_there_whatever_came_before(seed: int) -> None:
    random = Random(seed)
    ports = Ports(machines()[1])
    there: dict[tuple[Any, ...], FlatItem] = {}
    for _ in range(12):
        batch: list[FlatItem] = []
        for _ in range(random.randint(1, 6)):
            time, kind = random.randint(1, 3), random.randint(0, 3)
            opened = (time, 0)
            number = random.randint(0, 1)
            item: FlatItem
            if kind == 0:
                item = ((time, 0, 3), 0, (opened, -1, f"element {time}"))
            elif kind == 1:
                item = ((time, 0, 1, 0), 0, (opened, -2, random.randint(0, 9)))
            else:
                why = "even" if random.random() < 0.4 else None
                vote = (opened, number, random.choice(KEYS), why, 7 if why else None)
                item = ((time, 0, 2 * number), 0, vote)
            found = there.pop(identity(item), None)
            if found is None:
                there[identity(item)] = item
                batch.append(item)
            else:
                batch.append(taken_back(found))
        ports.take(batch)
        fresh = Ports(machines()[1])
        fresh.take(sorted(there.values(), key=identity))
        assert ports.live() == fresh.live()
    ports.machine.trim(AFTER_ALL)
    assert not ports.machine.buckets


def test_an_abort_takes_a_version_out_of_sight_and_its_reverse_brings_it_back() -> None:
    versions, _ = machines()
    ports = Ports(versions)
    first: FlatItem = ((1, 0, 0), 0, ("a", 0, 2, 4))
    second: FlatItem = ((2, 0, 0), 0, ("a", 0, 2, 2))
    ports.take([first, second])

    def value() -> dict[Any, Any]:
        return {row.key: row.payload for row in versions.committed(AFTER_ALL)}

    assert value() == {"a": 6}
    ports.take([abort(first)])
    assert value() == {"a": 2}
    ports.take([taken_back(abort(first))])
    assert value() == {"a": 6}
    ports.take([abort(second)])
    assert value() == {"a": 4}
    assert list(versions.committed((2, 0))) == [Row("values", key_hash("a"), "a", (1, 0), 4)]


def test_an_abort_may_come_before_its_version() -> None:
    """Or after it was taken back: it is kept by place, and counts when the version comes again."""
    versions, _ = machines()
    ports = Ports(versions)
    late: FlatItem = ((1, 0, 0), 0, ("a", 0, 2, 4))
    ports.take([abort(late)])
    ports.take([late])
    assert list(versions.committed(AFTER_ALL)) == []
    ports.take([taken_back(late)])
    ports.take([taken_back(abort(late))])
    assert versions.buckets == {}


def test_what_is_kept_is_not_trimmed() -> None:
    versions, _ = machines()
    ports = Ports(versions)
    ports.take([((time, 0, 0), 0, ("a", 0, 2, 2)) for time in range(1, 6)])
    versions.trim((3, 0))
    assert [row.payload for row in versions.committed((3, 0))] == [4]
    assert [row.payload for row in versions.committed((5, 0))] == [8]
    versions.trim((9, 0))
    assert versions.sizes() == [1]


def test_a_cut_holds_what_came_to_a_key_of_which_the_cut_before_found_only_an_abort() -> None:
    """A trim takes the key off the list of those that hold more than they must."""
    versions, _ = machines()
    access: FlatItem = ((3, 0, 0), 0, ("a", 0, 2, 4))

    def cut(moment: Moment, since: Moment) -> list[Any]:
        rows = [row.payload for row in versions.capture(moment, since) if row is not None]
        versions.cut_committed(moment)
        return rows

    assert cut((1, 0), BEFORE_ALL) == []
    versions.process([abort(access)], [])
    assert cut((2, 0), (1, 0)) == []
    versions.process([access], [])
    versions.process([taken_back(abort(access))], [])
    versions.trim((4, 0))
    assert cut((4, 0), (2, 0)) == [4]


def test_a_state_goes_on_from_what_a_cut_saved() -> None:
    before, _ = machines()
    Ports(before).take([((1, 0, 0), 0, ("a", 0, 2, 4)), ((1, 0, 2), 0, ("b", 2, 2, 5))])
    rows = list(before.committed((2, 0)))
    after, _ = machines()
    after.restore((0, 0), rows)
    assert list(after.committed(AFTER_ALL)) == rows
    Ports(after).take([((2, 0, 0), 0, ("a", 0, 2, 2))])
    assert {row.key: row.payload for row in after.committed(AFTER_ALL)} == {"a": 6, "b": 5}


@pytest.mark.parametrize("number", [0, 1])
def test_a_tombstone_that_finds_nothing_is_told(number: int) -> None:
    machine = machines()[number]
    items: list[FlatItem] = [
        ((1, 0, 0), 1, ("a", 0, 2, 4)),
        ((1, 0, 0), 1, ((1, 0), 0, "a", None, None)),
    ]
    with pytest.raises(NondeterminismError, match="found no item to take back"):
        machine.process([items[number]], [])


def test_an_access_that_follows_from_the_element_votes_only_to_say_no() -> None:
    versions, _ = machines()
    ports = Ports(versions)
    ports.take([((1, 0, 0), 0, ("a", 0, 2, 4))])
    assert not any(ports.live())
    ports.take([((2, 0, 0), 0, ("a", 0, 2, 1))])
    (vote,) = [sent for live in ports.live() for sent in live.values()]
    assert vote == ((2, 0), 0, "a", "even", 5)


def test_a_closer_tells_by_the_element_whom_to_abort() -> None:
    _, closing = machines()
    ports = Ports(closing)

    def sent() -> list[Any]:
        return [payload for live in ports.live() for payload in live.values()]

    element: FlatItem = ((1, 0, 3), 0, ((1, 0), -1, 7))
    no: FlatItem = ((1, 0, 0), 0, ((1, 0), 0, "a", "even", 7))
    ports.take([element])
    assert sent() == [7]
    ports.take([no])
    rejected, aborted = sent()
    assert (rejected.element, rejected.check) == (7, "even")
    assert aborted == ("b", ABORT, 2, None)  # the update of "b"; "a" knows, and a read has nothing
    ports.take([taken_back(no)])
    assert sent() == [7]
    ports.take([taken_back(element)])
    assert sent() == []
    assert not closing.buckets


def test_something_unusual_at_a_key_leaves_the_others_in_order() -> None:
    """An abort, amid a batch, for one of two keys: nothing is computed again for the other one."""
    versions, _ = machines()
    ports = Ports(versions)
    ports.take([((1, 0, 0), 0, ("a", 0, 2, 2)), ((2, 0, 0), 0, ("a", 0, 2, 2))])
    first: FlatItem = ((1, 0, 0), 0, ("a", 0, 2, 2))
    many = [((time, 0, 2), 0, ("b", 2, 2, 1)) for time in range(3, 40)]
    calls: list[str] = []
    change = versions._change

    def counted(item: FlatItem, changed: Any) -> None:
        calls.append(item[2][0])
        change(item, changed)

    versions._change = counted  # type: ignore[method-assign]
    ports.take([abort(first), *many])
    assert calls == ["a"]
    assert {row.key for row in versions.committed(AFTER_ALL)} == {"a", "b"}
    assert len(versions.buckets["b"].entries) == len(many)


@pytest.mark.parametrize("hears_votes", [False, True])
def test_a_closer_that_hears_nothing_but_elements_is_where_they_come_in(hears_votes: bool) -> None:
    """Else each would be sent to another worker, only to be sent on from there."""
    made = ef.Flow("where closers are")
    state = made.state("values", default=0)
    with made.front("in").transaction() as tx:
        for shift in (0, 1):
            tx.key_by(lambda n, shift=shift: n + shift).update(
                state, lambda v, n: v + n, check=even
            )
        if hears_votes:
            tx.require(lambda values: True)
    ef.merge(tx.committed, tx.rejected).sink("together")
    (close,) = (node.name for node in made.graph().nodes if isinstance(node, Close))

    result = ef.simulate(made, **{"in": list(range(60))}, workers=3, seed=1)

    at = [worker.items_of[close] for worker in result.statistics]
    assert all(at) if hears_votes else at[0] >= 60 and not any(at[1:])
