"""The roster and the members of a crew, over real sockets: who gets which plan, and who is lost."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.processes import roster
from emberflow.runners.live.processes.member import Crew, Member, Order, Seat, seats_of
from emberflow.runners.live.processes.roster import Roster
from emberflow.runners.live.wire.sockets import WireKeys
from emberflow.runners.live.worker.link import CoordinatorGoneError

SECONDS = 60.0
KEYS = WireKeys.made()
PLAN = b"a plan"
PLACE = CoordinatorAddress("127.0.0.1", 0, "127.0.0.1")


class Query:
    """A roster of two workers, and what it has said of losses."""

    def __init__(self) -> None:
        self.lost: queue.SimpleQueue[Seat] = queue.SimpleQueue()
        self.roster = Roster(KEYS, PLACE, 2, self.lost.put)
        self.members: list[Member] = []
        self.sockets: list[socket.socket] = []

    def begun(self) -> tuple[Crew, list[Member]]:
        """Both workers are in their first life."""
        crew = self.roster.begin(1, 2)
        return crew, [self.member(crew, place, life=1) for place in range(2)]

    def member(self, crew: Crew, place: int, generation: int = 0, life: int = 0) -> Member:
        ends = socket.socketpair()
        self.sockets += ends
        made = Member(crew, place, generation, ends[1], life=life, task=10 * crew.number + place)
        self.members.append(made)
        return made

    def goes_on(self, life: int, *members: Member) -> list[Order | None]:
        """What members get of the next life, when the one before it is over."""
        self.roster.pause(life - 1)
        plans = waiting(*members)
        assert self.roster.gathered(SECONDS, SECONDS, lambda: True)
        self.roster.go_on(life, PLAN)
        return [plan.get(timeout=SECONDS) for plan in plans]


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setattr(roster, "_LEFT_SECONDS", 0.0)
    query = Query()
    yield query
    for member in query.members:
        member.close()
    query.roster.close()
    for one in query.sockets:
        one.close()


def waiting(*members: Member) -> list[queue.SimpleQueue[Order | None]]:
    """What members get, each in a thread that waits for its next plan."""
    plans: list[queue.SimpleQueue[Order | None]] = []
    for member in members:
        got: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        plans.append(got)
        threading.Thread(target=get_plan, args=(member, got), daemon=True).start()
    return plans


def get_plan(member: Member, got: queue.SimpleQueue[Order | None]) -> None:
    with contextlib.suppress(CoordinatorGoneError):  # the test is over, and so is its roster
        got.put(member.next_plan())


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_was_forked_anew_shows_which_worker_is_lost(query: Query) -> None:
    crew, members = query.begun()
    other = query.member(crew, 1, generation=1)
    assert query.lost.get(timeout=SECONDS) == (crew.number, 1)
    assert query.goes_on(2, members[0], other) == [(PLAN, 0), (PLAN, 1)]


def test_a_worker_that_leaves_a_life_that_runs_is_lost(query: Query) -> None:
    crew, members = query.begun()
    assert query.goes_on(2, *members) == [(PLAN, 0), (PLAN, 1)]
    assert query.lost.empty()
    waiting(members[0])
    assert query.lost.get(timeout=SECONDS) == (crew.number, 0)


def test_a_process_hears_that_its_life_is_over(query: Query) -> None:
    """Its coordinator may have ended before the two had met."""
    crew = query.roster.begin(1, 2)
    member = query.member(crew, 0, life=1)
    query.roster.pause(1)
    wait_until(lambda: member.is_over(1))
    assert not member.is_over(2)


def test_a_crew_is_not_gathered_while_one_works(query: Query) -> None:
    crew = query.roster.begin(1, 2)
    query.member(crew, 0)
    query.member(crew, 1, life=1)
    query.roster.pause(1)
    assert not query.roster.gathered(0.2, SECONDS, lambda: True)
    assert not query.roster.gathered(SECONDS, SECONDS, lambda: False)  # its job has ended


def test_an_earlier_crew_is_told_that_it_is_over(query: Query) -> None:
    crew = query.roster.begin(1, 2)
    old = query.member(crew, 0, life=1)
    query.roster.begin(2, 2)
    (plan,) = waiting(old)
    assert plan.get(timeout=SECONDS) is None
    assert query.lost.empty()


def test_all_are_told_that_the_query_is_over(query: Query) -> None:
    crew, members = query.begun()
    plans = waiting(members[0])
    assert query.lost.get(timeout=SECONDS) == (crew.number, 0)
    query.roster.finish()
    plans += waiting(members[1])  # it is late
    assert [plan.get(timeout=SECONDS) for plan in plans] == [None, None]


def test_workers_are_added_and_work_on_with_the_others(query: Query) -> None:
    """In the life that takes over they came with its plan; the next one is sent to all."""
    crew, members = query.begun()
    added = query.roster.add(range(2, 4))
    members += [query.member(added, place, life=2) for place in range(2)]
    query.roster.rescale([*seats_of(crew, 2), *seats_of(added, 2)])
    assert query.goes_on(3, *members) == [(PLAN, worker) for worker in range(4)]
    assert query.lost.empty()


def test_a_process_takes_the_place_of_one_that_works(query: Query) -> None:
    """And one that stays gets another number."""
    crew, (first, second) = query.begun()
    added = query.roster.add([1])
    other = query.member(added, 0, life=2)
    query.roster.rescale([(crew.number, 1), (added.number, 0)])
    (plan,) = waiting(first)
    assert plan.get(timeout=SECONDS) is None
    assert query.goes_on(3, second, other) == [(PLAN, 0), (PLAN, 1)]
    tasks = {seat: here.task for seat, here in query.roster.working().items()}
    assert tasks == {(crew.number, 1): 11, (added.number, 0): 20}
    assert query.lost.empty()


def test_a_worker_that_is_added_and_dies_is_lost(query: Query) -> None:
    crew = query.roster.begin(1, 2)
    query.member(crew, 0, life=1)
    added = query.roster.add([2])
    query.member(added, 0, generation=1)
    assert query.lost.get(timeout=SECONDS) == (added.number, 0)


def test_workers_that_were_added_in_vain_are_told_to_end(query: Query) -> None:
    """Others may be added in their place."""
    query.roster.begin(1, 2)
    added = query.roster.add(range(2, 4))
    in_vain = [query.member(added, 0, life=2), query.member(added, 1)]
    query.roster.give_up(added)
    again = query.member(query.roster.add([2]), 0, life=2)
    plans = waiting(in_vain[1])
    wait_until(lambda: in_vain[0].is_over(2))
    plans += waiting(in_vain[0])
    assert [plan.get(timeout=SECONDS) for plan in plans] == [None, None]
    assert not again.is_over(2)
    assert query.lost.empty()


def test_a_worker_that_leaves_is_told_to_end_and_is_not_lost(query: Query) -> None:
    crew, members = query.begun()
    query.roster.rescale(seats_of(crew, 1))
    (plan,) = waiting(members[1])
    assert plan.get(timeout=SECONDS) is None
    assert query.goes_on(3, members[0]) == [(PLAN, 0)]
    assert query.lost.empty()
