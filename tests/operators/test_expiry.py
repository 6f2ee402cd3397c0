"""Keys that expire: what they are after each element, by a few lines of plain Python, and memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.cuts.cut import Row, combined
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Keys, Moment, Progress, WorkerRead
from emberflow.engine.worker.worker import Worker
from emberflow.errors import FlowError
from emberflow.graph.description import differences, steps_of
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import carry_plan
from tests.batch.local import batch
from tests.effort import few
from tests.engine.helpers import unpacked

LIVES = (1, 2, 5, 12)


def timed(elements: Iterable[tuple[int, Any]]) -> list[Any]:
    return [ef.At(time, payload) for time, payload in elements]


def agrees(flow: ef.Flow, elements: dict[str, list[Any]], *, seed: int) -> dict[str, list[Any]]:
    """The outputs of the reference, which workers that crash or not and batch give too."""
    expected = ef.run(flow, **elements)
    found = ef.simulate(flow, seed=seed, workers=3, crashes=seed % 3, **elements)
    assert found.outputs == expected
    assert repr(batch(flow, elements, partitions=3, seed=seed)) == repr(expected)
    return expected


# --- What it means ---------------------------------------------------------------------------------


def alive_by_hand(elements: list[tuple[int, int]], life: int) -> list[tuple[int, list[int]]]:
    """By element: the elements of its key that its accumulator is made of."""
    last: dict[int, tuple[int, list[int]]] = {}
    found = []
    for time, number in sorted(elements):
        at, seen = last.get(number % 3, (time - life, []))
        seen = [*seen, number] if time - at < life else [number]
        last[number % 3] = time, seen
        found.append((number % 3, seen))
    return found


def reducing(life: Any) -> ef.Flow:
    flow = ef.Flow("expiring")
    keyed = flow.front("in").key_by(lambda n: n % 3)
    keyed.reduce(
        first=lambda n: (n,), combine=lambda a, n: (*a, n), with_key=True, expire_after=life
    ).sink("reduced")
    keyed.fold(initial=100, combine=lambda a, n: a - n, expire_after=life).sink("folded")
    keyed.count(expire_after=life).sink("count")
    keyed.sum(expire_after=life).sink("sum")
    keyed.mean(expire_after=life).sink("mean")
    keyed.min(expire_after=life).sink("min")
    keyed.max(expire_after=life).sink("max")
    keyed.top(2, expire_after=life).sink("top")
    keyed.first(expire_after=life).sink("first")
    keyed.last(expire_after=life).sink("last")
    keyed.aggregate(
        number=ef.count(), odd=ef.sum(where=lambda n: n % 2 == 1), expire_after=life
    ).sink("several")
    return flow


@pytest.mark.parametrize("seed", range(few(12)))
def test_an_accumulator_is_made_of_what_came_without_a_gap(seed: int) -> None:
    random = Random(f"expiry {seed}")
    life = random.choice(LIVES)
    elements = [(time, random.randrange(20)) for time in sorted(random.sample(range(90), 40))]
    seen = alive_by_hand(elements, life)
    expected: dict[str, list[Any]] = {
        "reduced": [(key, tuple(own)) for key, own in seen],
        "folded": [100 - sum(own) for _, own in seen],
        "count": [(key, len(own)) for key, own in seen],
        "sum": [(key, sum(own)) for key, own in seen],
        "mean": [(key, sum(own) / len(own)) for key, own in seen],
        "min": [(key, min(own)) for key, own in seen],
        "max": [(key, max(own)) for key, own in seen],
        "top": [(key, tuple(sorted(own, reverse=True)[:2])) for key, own in seen],
        "first": [(key, own[0]) for key, own in seen],
        "last": [(key, own[-1]) for key, own in seen],
        "several": [(key, (len(own), sum(n for n in own if n % 2) or None)) for key, own in seen],
    }
    outputs = agrees(reducing(life), {"in": timed(elements)}, seed=seed)
    assert {name: outputs[name] for name in expected} == expected
    assert any(len(own) == 1 for _, own in seen[20:]), "nothing expired"


def spending(life: int | None) -> ef.Flow:
    """Payments up to a limit, and questions, which prolong nothing. Both are numbers, even ones of one
    person and odd ones of another."""
    flow = ef.Flow("spending")
    spent = flow.state("spent", default=0, expire_after=life)
    payments, questions = flow.front("payments"), flow.front("questions")
    with payments.transaction(name="pay") as tx:
        paid = tx.key_by(lambda n: n % 2).update(
            spent, lambda total, n: total + n // 2, check=lambda total: total <= 10
        )
        tx.output(paid.map(lambda pair: pair[1])).sink("totals")
    tx.rejected.map(lambda rejected: rejected.element).sink("refused")
    with questions.transaction(name="ask") as tx:
        tx.output(tx.key_by(lambda n: n % 2).read(spent)).sink("answers")
    return flow


@pytest.mark.parametrize("seed", range(few(12)))
def test_a_value_lives_from_the_last_update_that_was_applied(seed: int) -> None:
    random = Random(f"expiring states {seed}")
    life = random.choice(LIVES)
    times = random.sample(range(120), 70)
    payments = [(time, random.randint(2, 13)) for time in times[:40]]
    questions = [(time, random.randrange(2)) for time in times[40:]]
    held = dict.fromkeys(range(2), (-life, 0))
    totals, refused, answers = [], [], []
    for time, number, is_question in sorted(
        [(*payment, False) for payment in payments] + [(*each, True) for each in questions]
    ):
        at, total = held[number % 2]
        if time - at >= life:
            total = 0
        if is_question:
            answers.append((number, total))
        elif total + number // 2 > 10:
            refused.append(number)
        else:
            held[number % 2] = time, total + number // 2
            totals.append(total + number // 2)
    elements = {"payments": timed(payments), "questions": timed(questions)}
    outputs = agrees(spending(life), elements, seed=seed)
    assert outputs == {"totals": totals, "refused": refused, "answers": answers}
    unlike = ef.run(spending(None), **elements)
    assert life > 5 or unlike != outputs, "nothing expired"


def test_a_diverted_element_keeps_its_key_alive() -> None:
    """It is an element of its key like any other, and the accumulator goes round once more for it."""
    flow = ef.Flow("diverted")
    keyed = flow.front("in").key_by(lambda n: 0)
    keyed.fold(initial=0, combine=lambda a, n: a + 12 // n, expire_after=5).sink("out")
    elements = [ef.At(0, 12), ef.At(4, 0), ef.At(8, 6), ef.At(13, 4), ef.At(18, 0), ef.At(23, 3)]
    outputs = ef.run(flow, on_error="divert", **{"in": elements})
    assert outputs["out"] == [1, 3, 3, 4]
    for seed in range(20):
        simulated = ef.simulate(flow, on_error="divert", seed=seed, **{"in": elements})
        assert simulated.outputs["out"] == outputs["out"]


def test_times_to_live_are_durations() -> None:
    for life in ("2 seconds", timedelta(seconds=2), 2000):
        flow = ef.Flow("durations")
        flow.front("in").key_by(len).count(expire_after=life).sink("out")
        (group,) = (node for node in flow.graph().nodes if node.kind == "group")
        assert group.expires == 2000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("life", "problem"),
    [
        (0, "count(expire_after=) takes a duration above 0, got 0 at"),
        (-5, "count(expire_after=) takes a duration above 0, got -5 at"),
        ("soon", "count(expire_after=): A duration is an int, a timedelta or a text"),
        ("1500 us", "is not a whole number of ms, which times are counted in"),
    ],
)
def test_what_is_no_time_to_live_is_an_error(life: Any, problem: str) -> None:
    keyed = ef.Flow("wrong").front("in").key_by(len)
    with pytest.raises(FlowError) as error:
        keyed.count(expire_after=life)
    assert problem in str(error.value)
    with pytest.raises(FlowError, match=r"state\(expire_after=\)"):
        ef.Flow("wrong").state("s", default=0, expire_after=life)


# --- Versions --------------------------------------------------------------------------------------


def test_another_time_to_live_is_another_step() -> None:
    before, after = spending(5).graph(), spending(6).graph()
    assert before.fingerprint != after.fingerprint
    assert spending(5).graph().fingerprint == before.fingerprint
    told = "\n".join(differences("spending", steps_of(before), after))
    assert "expires was 5 and is 6" in told
    counting = [reducing(life).graph() for life in (None, 5)]
    told = "\n".join(differences("expiring", steps_of(counting[0]), counting[1]))
    assert "expires was None and is 5" in told
    assert "carried: spent" in list(carry_plan(steps_of(before), after).lines())


def test_a_version_takes_over_what_has_not_expired_when_it_begins() -> None:
    """And when its keys were touched, whether or not they expired in the version before."""
    elements = timed([(0, 3), (8, 4), (10, 3), (21, 4), (22, 3)])
    for lives, counts in {
        (None, 5): [1, 1, 1, 1, 1],
        (None, 11): [1, 1, 2, 1, 1],
        (None, 14): [1, 1, 2, 2, 3],
        (5, None): [1, 1, 1, 2, 2],  # at 9, 3 has expired, and 4 has not
        (5, 100): [1, 1, 1, 2, 2],
    }.items():
        flows = []
        for life in lives:
            flow = ef.Flow("lives")
            flow.front("in").key_by(lambda n: n).count(name="c", expire_after=life).map(
                lambda pair: pair[1]
            ).sink("out")
            flows.append(flow)
        versions = ef.Versions(flows[0], (9, flows[1]))
        assert ef.run(versions, **{"in": elements}) == {"out": counts}, lives
        for seed in range(10):
            simulated = ef.simulate(versions, seed=seed, workers=2, **{"in": elements})
            assert simulated.outputs == {"out": counts}, lives


# --- Memory, cuts and reads ------------------------------------------------------------------------

LIFE = 2_000
#: How many keys are alive at a time, where there is one new key each unit of time.
ALIVE = LIFE
#: Those, a sixteenth more, and what comes between two looks.
ALIVE_MOST = ALIVE + ALIVE // 16 + 1_500


def coming_and_going() -> Graph:
    flow = ef.Flow("coming and going")
    numbers = flow.front("in")
    numbers.key_by(lambda n: n).count(name="counts", expire_after=LIFE).sink("counts")
    spent = flow.state("spent", default=0, expire_after=LIFE)
    with numbers.transaction() as tx:
        tx.key_by(lambda n: n).update(spent, lambda total, n: total + 1)
    tx.committed.sink("done")
    return flow.graph()


class Lone:
    """One worker, alone: elements enter, and all before them is final."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.worker = Worker(Layout(graph), 0, 1)
        self.front = graph.fronts["in"].id

    def enter(self, start: int, count: int, key: Any = None) -> None:
        elements = [
            ((time, 0), time if key is None else key) for time in range(start, start + count)
        ]
        self.worker.enter(self.front, elements, {0: (start + count, 0)})
        self.pass_time(start + count)

    def pass_time(self, time: int) -> None:
        moment = (time, 0)
        self.worker.progress(Progress(moment, (moment,) * 4))
        self.worker.tidy()

    def sizes(self) -> list[int]:
        machines = self.worker.machines.stateful.values()
        return [len(machine.sizes()) for machine in machines if machine.kept]

    def cut(self, time: int, since: Moment = BEFORE_ALL) -> list[Row]:
        capture = self.worker.begin_cut((time, 0), since)
        rows: list[Any] = []
        while (more := capture.next(100)) is not None:
            rows += unpacked(more)
        self.worker.cut_committed((time, 0))
        return rows

    def read(self, state: str, key: int, moment: Moment) -> list[Any]:
        page = self.worker.reading.ask(WorkerRead(1, moment, [(0, Keys(state, (key,)))]))
        assert page is not None
        assert page.problem is None
        return [value for _, _, value in page.rows]


def test_the_memory_of_keys_that_expire_comes_back() -> None:
    lone = Lone(coming_and_going())
    most = 0
    for start in range(0, 60_000, 1_000):
        lone.enter(start, 1_000)
        most = max(most, *lone.sizes())
    assert ALIVE <= most <= ALIVE_MOST
    assert all(ALIVE <= size <= ALIVE_MOST for size in lone.sizes())
    # Nothing comes any more, and time goes on.
    for time in range(60_000, 70_000, 500):
        lone.pass_time(time)
    assert lone.sizes() == [0, 0]


def test_a_key_that_is_touched_in_time_stays() -> None:
    lone = Lone(coming_and_going())
    for start in range(0, 20_000, 500):
        lone.enter(start, 1, key=-1)
        lone.enter(start + 1, 499)
    assert lone.read("counts", -1, (20_000, 0)) == [40]
    assert lone.read("spent", -1, (20_000, 0)) == [40]


def test_it_comes_back_too_after_a_restore_from_cuts() -> None:
    """A chain of cuts still has the keys that were alive at one of them."""
    first = Lone(coming_and_going())
    chain: list[list[Row]] = []
    since: Moment = BEFORE_ALL
    for start in range(0, 12_000, 1_000):
        first.enter(start, 1_000)
        chain.append(first.cut(start + 1_000, since))
        since = (start + 1_000, 0)
    assert len(chain[-1]) == 2_000, "an increment has what changed since the cut before"
    assert len(first.cut(12_000)) == 2 * ALIVE - 2, "a full cut has what is alive"
    rows, _ = combined(chain, (12_000, 0))
    assert len(rows) == 2 * 12_000, "a chain has everything that ever was"
    second = Lone(coming_and_going())
    second.worker.restore((12_000, 0), rows, [])
    assert second.sizes() == [ALIVE - 1, ALIVE - 1]
    # The time of a restored key goes on where it was.
    assert second.read("counts", 10_500, (12_499, 0)) == [1]
    assert second.read("counts", 10_500, (12_500, 0)) == []
    for start in range(12_000, 30_000, 1_000):
        second.enter(start, 1_000)
    assert all(ALIVE <= size <= ALIVE_MOST for size in second.sizes())


def test_nobody_reads_a_key_whose_time_is_over() -> None:
    """Whether or not its memory has come back by then."""
    lone = Lone(coming_and_going())
    lone.enter(100, 1, key=7)
    for state in ("counts", "spent"):
        assert lone.read(state, 7, (101, 0)) == [1]
        assert lone.read(state, 7, (99 + LIFE, 5)) == [1]
        assert lone.read(state, 7, (100 + LIFE, -5)) == [], "it is over at the time, on any front"
    assert lone.sizes() == [1, 1], "it was in memory"
    assert lone.cut(101)
    assert lone.cut(101, (101, 0)) == []
    lone.pass_time(100 + LIFE)
    assert lone.cut(100 + LIFE) == []


def test_crashes_change_nothing() -> None:
    elements = timed([(time, time % 7) for time in range(0, 120, 3)])
    flow = reducing(9)
    expected = ef.run(flow, **{"in": elements})
    simulate = partial(ef.simulate, flow, workers=3, **{"in": elements})
    for seed in range(few(15)):
        assert simulate(seed=seed, crashes=3).outputs == expected
