"""Questions about state: which moment they get, that it is kept, and what a worker answers."""

from __future__ import annotations

from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import (
    AFTER_ALL,
    CancelRead,
    FrontsReply,
    FrontsRequest,
    Keys,
    NextPage,
    Progress,
    ReadBegan,
    ReadPage,
    ReadRefused,
    Scan,
    WorkerRead,
)
from emberflow.engine.queries import coordinator as asking_module
from emberflow.engine.queries import worker as reading_module
from emberflow.engine.queries.coordinator import ReadCoordinator
from emberflow.engine.worker.worker import Worker

ASKS = {0: "what of 0", 1: "what of 1"}


def told(asking: ReadCoordinator, *moment: int) -> list[Any]:
    minimal = (moment[0], moment[1])
    return asking.told(minimal, asking.kept_at(minimal))


def pages(number: int, **rest: Any) -> list[ReadPage]:
    return [ReadPage(worker, number, [], False, **rest) for worker in ASKS]


def test_all_workers_are_asked_as_of_the_minimal_time_that_they_were_told() -> None:
    asking = ReadCoordinator(2)
    told(asking, 7, 1)
    assert asking.begin(1, ASKS) == [
        (None, ReadBegan(1, (7, 1), 2)),
        (0, WorkerRead(1, (7, 1), "what of 0")),
        (1, WorkerRead(1, (7, 1), "what of 1")),
    ]
    for page in pages(1):
        assert asking.page(page) == [(None, page)]
    assert asking.open == 0
    assert asking.page(pages(1)[0]) == [], "it is not known any more"


def test_keys_hold_nothing_and_a_scan_does_until_the_last_page() -> None:
    asking = ReadCoordinator(2)
    told(asking, 7, 0)
    asking.begin(1, ASKS)
    assert asking.kept_at((9, 0)) == (9, 0)
    asking.begin(2, ASKS, holds=True)
    assert asking.kept_at((9, 0)) == (7, 0)
    asking.page(ReadPage(0, 2, [], True))
    assert asking.more(2, 0) == [(0, NextPage(2))]
    asking.page(ReadPage(1, 2, [], False))
    told(asking, 9, 0)
    assert asking.range == ((7, 0), (9, 0))
    assert asking.kept_at((11, 0)) == (7, 0)
    asking.page(ReadPage(0, 2, [], False))
    assert asking.kept_at((11, 0)) == (11, 0)


def test_a_scan_that_is_closed_holds_nothing() -> None:
    asking = ReadCoordinator(2)
    told(asking, 7, 0)
    asking.begin(1, ASKS, holds=True)
    asking.page(ReadPage(0, 1, [], False))
    assert asking.close(1) == [(1, CancelRead(1))]
    assert asking.kept_at((9, 0)) == (9, 0)
    assert asking.close(1) == []


def test_history_is_counted_in_the_time_of_the_elements() -> None:
    asking = ReadCoordinator(1, history=5)
    told(asking, 3, 0)
    assert asking.range == ((-2, 0), (3, 0))
    told(asking, 20, 1)
    assert asking.range == ((15, 1), (20, 1))
    assert asking.begin(1, {0: "?"}, at=(15, 1))[0] == (None, ReadBegan(1, (15, 1), 1))
    (refused,) = asking.begin(2, {0: "?"}, at=(15, 0))
    assert isinstance(refused[1], ReadRefused)
    assert refused[1].kept == ((15, 1), (20, 1))
    # At the end of all fronts it stays what it was.
    asking.told(AFTER_ALL, asking.kept_at(AFTER_ALL))
    assert asking.range == ((15, 1), AFTER_ALL)


def test_what_is_kept_never_goes_back() -> None:
    """A life whose minimal time jumps, then is asked for something: what is gone is gone."""
    asking = ReadCoordinator(1)
    told(asking, 9, 0)
    assert asking.kept_at((9, 0)) == (9, 0)
    assert asking.begin(1, {0: "?"}, at=(8, 0))[0][1].kept == ((9, 0), (9, 0))


def test_a_wish_for_later_waits_and_is_kept_though_the_minimal_time_jumps_over_it() -> None:
    asking = ReadCoordinator(1)
    told(asking, 3, 0)
    assert asking.begin(1, {0: "?"}, at=(6, 0)) == []
    assert told(asking, 5, 0) == []
    assert asking.kept_at((9, 0)) == (6, 0)
    assert told(asking, 9, 0) == [(None, ReadBegan(1, (6, 0), 1)), (0, WorkerRead(1, (6, 0), "?"))]
    assert asking.kept_at((9, 0)) == (9, 0)


def test_an_ordered_question_is_behind_all_that_fronts_have_let_in() -> None:
    asking = ReadCoordinator(2)
    told(asking, 3, 0)
    assert asking.begin(1, ASKS, ordered=True) == [(0, FrontsRequest(1)), (1, FrontsRequest(1))]
    assert asking.marked(FrontsReply(0, 1, (5, 1))) == []
    assert told(asking, 20, 0) == [], "the other worker has not said yet"
    (began, *_) = asking.marked(FrontsReply(1, 1, (8, 2)))
    assert began == (None, ReadBegan(1, (8, 2), 2))


def test_after_a_crash_it_is_not_answered_from_before_what_was_seen_or_restored() -> None:
    asking = ReadCoordinator(1, since=(10, 0))
    assert asking.begin(1, {0: "?"})[0] == (None, ReadBegan(1, (10, 0), 1))
    assert asking.begin(2, {0: "?"}, floor=(12, 0)) == []
    assert told(asking, 11, 0) == []
    assert told(asking, 14, 0)[0] == (None, ReadBegan(2, (14, 0), 1))


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_module, "QUESTIONS_MAX", 3)
    monkeypatch.setattr(asking_module, "SCANS_MAX", 1)
    asking = ReadCoordinator(1)
    asking.begin(1, {0: "?"}, holds=True)
    assert isinstance(asking.begin(2, {0: "?"}, holds=True)[0][1], ReadRefused)
    asking.begin(3, {0: "?"})
    asking.begin(4, {0: "?"})
    assert isinstance(asking.begin(5, {0: "?"})[0][1], ReadRefused)


# --- A worker --------------------------------------------------------------------------------------


def worker() -> Worker:
    """One with ten purses: purse n has n at the times from 1 on, and one more at time 5."""
    flow = ef.Flow("purses")
    purses = flow.state("purses", default=0)
    with flow.front("changes").transaction() as tx:
        tx.key_by(lambda c: c[0]).update(purses, lambda n, c: n + c[1], check=lambda n: n < 100)
    tx.committed.sink("done")
    graph = flow.graph()
    made = Worker(Layout(graph), 0, 1)
    made.enter(
        graph.fronts["changes"].id,
        [
            *(((number, 0), (number, number)) for number in range(10)),
            *(((20 + number, 0), (number, 1)) for number in range(10)),
            ((40, 0), (0, 1_000)),  # refused
        ],
        {0: (50, 0)},
    )
    return made


def test_keys_are_answered_at_once_and_as_of_the_moment() -> None:
    reading = worker().reading

    def asked(moment: tuple[int, int]) -> list[Any]:
        page = reading.ask(WorkerRead(1, moment, ((0, Keys("purses", (0, 3, "x"))),)))
        assert page is not None
        assert (page.more, page.problem) == (False, None)
        return page.rows

    assert asked((0, 0)) == []
    assert asked((3, 0)) == [(0, 0, 0)]
    assert asked((23, 0)) == [(0, 0, 1), (0, 3, 3)]
    assert asked((50, 0)) == [(0, 0, 1), (0, 3, 4)], "what was refused is not seen"


def test_a_scan_comes_in_pages_and_looks_at_a_few_keys_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading_module, "ROWS_A_PAGE", 3)
    reading = worker().reading
    scan = Scan("purses", 2, 8, lambda key, value: key != 5)
    assert reading.ask(WorkerRead(7, (23, 0), ((0, scan),))) is None
    rows, steps, more = [], 0, True
    while more:
        steps += 1
        page = reading.go_on(2)
        if page is not None:
            assert len(page.rows) <= 3
            rows += page.rows
            more = page.more
            assert not reading.is_busy, "the next page is made when it is asked for"
            reading.more(7)
    assert sorted(rows) == [(0, 2, 3), (0, 3, 3), (0, 4, 4), (0, 6, 6), (0, 7, 7)]
    assert steps > 4
    assert reading.go_on(2) is None


def test_scans_take_turns_and_what_is_closed_is_forgotten() -> None:
    reading = worker().reading
    for number in (1, 2):
        reading.ask(WorkerRead(number, (50, 0), ((0, Scan("purses")),)))
    reading.close(1)
    pages = [page for _ in range(20) if (page := reading.go_on(1)) is not None]
    assert [(page.number, len(page.rows), page.more) for page in pages] == [(2, 10, False)]


def test_what_is_kept_is_not_trimmed_and_what_is_trimmed_is_not_answered() -> None:
    made = worker()
    minimal = (50, 0)
    made.progress(Progress(minimal, (minimal,), kept=(23, 0)))
    made.trim()
    keys = ((0, Keys("purses", (3,))),)
    page = made.reading.ask(WorkerRead(1, (23, 0), keys))
    assert page is not None
    assert page.rows == [(0, 3, 3)]
    late = made.reading.ask(WorkerRead(2, (22, 0), keys))
    assert late is not None
    assert "has trimmed what is below" in (late.problem or "")
    made.progress(Progress(minimal, (minimal,), kept=minimal))
    made.trim()
    assert [machine.sizes() for machine in made.machines.stateful.values()] == [[1] * 10]


@pytest.mark.parametrize("step", ["ask", "scan"])
def test_a_problem_is_an_answer(step: str) -> None:
    reading = worker().reading
    what: Any = Keys("purses", ([],)) if step == "ask" else Scan("purses", None, None, divide)
    page = reading.ask(WorkerRead(1, (50, 0), ((0, what),))) or reading.go_on(100)
    assert page is not None
    assert "Error" in (page.problem or "")
    assert not reading.is_busy


def divide(key: Any, value: Any) -> bool:
    return bool(1 // 0)
