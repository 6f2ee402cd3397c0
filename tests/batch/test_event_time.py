"""Rows with positions, without Spark: stamped as the reference stamps the records of a front."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import emberflow as ef
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.messages import AFTER_ALL
from emberflow.errors import FunctionError, InputError, Late
from emberflow.fronts import Element
from emberflow.fronts.protocol import Malformed
from emberflow.graph.nodes import Graph
from emberflow.rows.codec import encode
from emberflow.rows.inputs import Checked, Positioned, Stamps
from emberflow.rows.paths import front_of
from emberflow.rows.readers import Reader
from emberflow.runners.batch.passes.stamping import StampedRows
from emberflow.runners.elements import LateElement, MalformedElement, timed_elements
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.reader import Beginning
from emberflow.values.event_time import EventTime
from emberflow.values.item import TIE, TIME_MIN, GlobalTime, front_index
from tests.batch.local import cut
from tests.effort import SECONDS

#: Times of a partition in the order of its source.
Times = list[int]


class Parted:
    """A source of several partitions. A payload is its partition and position."""

    arrival = False
    promises = False

    def __init__(self, times: list[Times], rule: EventTime) -> None:
        self.times, self.event_time = times, rule
        self.partitions = len(times)

    def read(self, partition: int, position: Any) -> Any:
        for number in range(0 if position is None else position + 1, len(self.times[partition])):
            at = self.times[partition][number]
            yield Element(number, 1_000 * partition + number, at)


def graph() -> Graph:
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")
    return flow.graph()


def checked(rule: EventTime, *, is_logged: bool = False, drops: bool = False) -> Checked:
    front = graph().fronts["numbers"]
    kind, column = ("bytes", "_payload") if is_logged else ("bare", "value")
    reader = Reader(front, (column,), (None,), kind)  # type: ignore[arg-type]
    stamps = Stamps(rule, drops)
    return Checked(front, reader, "time", (), "ms", "part", 1, stamps, is_logged)


def disordered(random: Random) -> list[Times]:
    """Rows that rise, with ties, out of order, some late, and one of the far future."""
    partitions = []
    for _ in range(random.randint(1, 3)):
        at, times = random.randint(-50, 50), []
        for _ in range(random.randint(0, 60)):
            at += random.choice((0, 0, 1, 1, 3))
            times.append(at - random.choice((0, 0, 0, 1, 4, 20)))
        if times and random.random() < 0.5:
            times[random.randrange(len(times))] += 10**9
        partitions.append(times)
    return partitions


def random_rule(random: Random) -> EventTime:
    on_late: Any = random.choice(("divert", "divert", "drop", "admit"))
    kind = random.randrange(5)
    if kind == 0:
        return EventTime(watermark=lambda n: n // 2 if n % 3 else None, on_late=on_late)
    if kind == 1:  # the order of the log
        return EventTime(on_late="admit")
    return EventTime(random.choice((0, 0, 2, 5)), random.choice((None, 10**6)), None, on_late)


def stamped(
    front: Checked, rows: list[tuple[Any, ...]], random: Random, until: int | None = None
) -> tuple[list[Any], list[Any]]:
    """Elements and late ones with their global times, of rows sorted as Spark sorts them."""
    names = ("_time", "_tied", "value", "_partition", "_position", "_promised")
    found = StampedRows(front, until=None if until is None else (until, 0))
    results: tuple[list[Any], list[Any]] = ([], [])

    def note(columns: Any) -> None:
        for result, one in zip(results, columns, strict=True):
            result += zip(one.times, one.paths, one.payloads, strict=True)

    for batch in cut(rows, random, names[: len(rows[0])] if rows else names):
        note(found.add(batch))
    note(found.end())
    elements, late = (
        sorted((GlobalTime(time, front_of(path)), payload) for time, path, payload in one)
        for one in results
    )
    return elements, late


def input_rows(partitions: list[Times]) -> list[tuple[Any, ...]]:
    return [
        (at, False, 1_000 * partition + number, partition, number)
        for partition, times in enumerate(partitions)
        for number, at in enumerate(times)
    ]


def logged(records: list[tuple[int | None, Any, int]]) -> pa.RecordBatch:
    """Times, payloads and promises of a partition, as rows of a front's log."""
    times, payloads, promised = zip(*records, strict=True)
    numbers = range(len(records))
    columns = {
        "_time": pa.array(times, pa.int64()),
        "_tied": pa.array([False for _ in numbers]),
        "value": pa.array(
            [encode(Positioned(("f", n), payloads[n])) for n in numbers], pa.binary()
        ),
        "_partition": pa.array([0 for _ in numbers], pa.int64()),
        "_position": pa.array(numbers, pa.int64()),
        "_promised": pa.array(promised, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def reference(partitions: list[Times], rule: EventTime) -> tuple[list[Any], list[Any]]:
    given = timed_elements(graph(), {"numbers": Parted(partitions, rule)})
    entered = [each for each in given if not isinstance(each[2], MalformedElement)]
    late = [(at, one.record) for at, _, one in entered if isinstance(one, LateElement)]
    return [(at, one) for at, _, one in entered if not isinstance(one, LateElement)], late


@pytest.mark.parametrize("seed", range(60))
def test_rows_with_positions_are_stamped_as_the_reference_does(seed: int) -> None:
    random = Random(f"stamped {seed}")
    partitions, rule = disordered(random), random_rule(random)
    elements, late = reference(partitions, rule)
    assert stamped(checked(rule, drops=True), input_rows(partitions), random) == (elements, late)
    until = random.randint(-50, 100)
    below = [[pair for pair in pairs if pair[0][0] < until] for pairs in (elements, late)]
    assert stamped(checked(rule, drops=True), input_rows(partitions), random, until) == tuple(below)


def test_the_cases_have_ties_and_late_rows() -> None:
    found = [
        reference(disordered(random), random_rule(random)._replace(on_late="divert"))
        for random in (Random(f"stamped {seed}") for seed in range(60))
    ]
    assert sum(len(late) for _, late in found) > 100
    assert sum(at.front >= TIE for elements, _ in found for at, _ in elements) > 100


def test_a_time_that_is_not_believed_fails_or_is_left_out() -> None:
    rows = input_rows([[1, 2, 10**9, 3, 4]])
    rule = EventTime(ahead=100)
    with pytest.raises(InputError, match=r"front 'numbers' partition 0 has a record of time 10{9}"):
        stamped(checked(rule), rows, Random(0))
    elements, late = stamped(checked(rule, drops=True), rows, Random(0))
    assert ([at.time for at, _ in elements], late) == ([1, 2, 3, 4], [])
    believed, late = stamped(checked(EventTime()), rows, Random(0))
    assert ([at.time for at, _ in believed], len(late)) == ([1, 2, 10**9], 2)


def test_a_late_row_fails_if_the_rule_says_so() -> None:
    rows = input_rows([[5, 3]])
    with pytest.raises(InputError, match=r"front 'numbers': the element at position 1 is late"):
        stamped(checked(EventTime(on_late="fail")), rows, Random(0))
    elements, _ = stamped(checked(EventTime(on_late="fail")), rows, Random(0), until=5)
    assert elements == []


def test_an_error_of_a_watermark_names_the_function() -> None:
    def promised(number: int) -> int:
        return 1 // number

    with pytest.raises(FunctionError, match="watermark function of front 'numbers'") as raised:
        stamped(checked(EventTime(watermark=promised)), input_rows([[5, 6]]), Random(0))
    assert "promised" in raised.value.function


def test_malformed_records_are_not_asked_what_they_promise() -> None:
    """A record that has a time and no payload is malformed at that time, in every runner."""

    class Damaged(Parted):
        def read(self, partition: int, position: Any) -> Any:
            for element in super().read(partition, position):
                is_damaged = element.position % 3 == 1
                payload = Malformed("?", "damaged") if is_damaged else element.payload
                yield element._replace(payload=payload)

    rule = EventTime(watermark=lambda number: 2 * number)
    front = Damaged([[3, 9, 3, 5, 4, 6]], rule)
    given = list(timed_elements(graph(), {"numbers": front}))
    entered = [
        (at, one) for at, _, one in given if not isinstance(one, MalformedElement | LateElement)
    ]
    assert [(at.time, one) for at, one in entered] == [(3, 0), (3, 2), (5, 3), (6, 5)]
    assert [at.time for at, _, one in given if isinstance(one, MalformedElement)] == [6, 9]
    assert fed(front, 0, Beginning(None)) == (entered, [])
    batch = logged([(one.time, one.payload, TIME_MIN) for one in front.read(0, None)])
    rows = StampedRows(checked(rule, is_logged=True, drops=True))
    found = [*rows.add(batch), *rows.end()]
    assert [pair for one in found for pair in zip(one.times, one.payloads, strict=True)] == [
        (at.time, one) for at, one in entered
    ]


@pytest.mark.parametrize("positions", [(0, 0), (0, None)])
def test_positions_are_there_once(positions: tuple[Any, Any]) -> None:
    rows = [(number, False, number, 0, at) for number, at in enumerate(positions)]
    with pytest.raises(InputError, match=r"front 'numbers'.*position (0 in .* twice|None)"):
        stamped(checked(EventTime()), rows, Random(0))


def test_promises_that_a_query_chose_are_kept() -> None:
    """The rows of a log have them, and positions as the source has them."""
    records = [(5, "a", 5), (3, "b", 20), (25, "c", 20), (None, Malformed("?", "none", True), 25)]
    batch = logged(records)
    elements, late = StampedRows(checked(EventTime(), is_logged=True, drops=True)).add(batch)
    assert (elements.times, elements.payloads) == ([5, 25], ["a", "c"])
    assert late.payloads == [Late(3, "numbers", 0, ("f", 1), 17, "b")]


def test_partitions_share_a_task_and_nothing_else() -> None:
    partitions = [[9, 9, 3], [1, 1], [9]]
    elements, late = stamped(checked(EventTime()), input_rows(partitions), Random(1))
    index = [front_index(0, 1, partition) for partition in range(3)]
    assert [at for at, _ in elements] == [
        (1, index[1]),
        (1, index[1] + TIE),
        (9, index[0]),
        (9, index[2]),
        (9, index[0] + TIE),
    ]
    assert [record.partition for _, record in late] == [0]


def fed(
    front: Parted, partition: int, beginning: Beginning, journal: Journal | None = None
) -> tuple[list[Any], list[Any]]:
    """What a live feed gives of a partition from the cut of a backfill on."""
    front.promises = journal is not None
    index = front_index(0, 1, partition)
    feed = Feed(
        "numbers",
        0,
        front,
        partition,
        index,
        7,
        diverts=True,
        late_node=1,
        journal=journal,
    )
    feed.start(beginning)
    feed.reader.thread.join(SECONDS)
    elements, late = [], []
    minimal = beginning.moment
    feed.minimal_time(minimal)
    for _ in range(1_000):
        if minimal == AFTER_ALL:
            break
        elements += feed.take(1_000)
        late += feed.take_late()
        if feed.gate.promise > minimal:  # the coordinator tells of changes only
            minimal = feed.gate.promise
            feed.minimal_time(minimal)
    assert minimal == AFTER_ALL, "it is stuck"
    feed.join(SECONDS)
    return tuple(
        [(GlobalTime(*place), payload) for place, _, payload in one] for one in (elements, late)
    )


@pytest.mark.parametrize("promises", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_a_cut_of_a_backfill_and_live_from_there_are_one_run(
    seed: int, promises: bool, tmp_path: Path
) -> None:
    """Also where times are equal at the cut, and where rows below it come behind rows above it."""
    random = Random(f"handed over {seed}")
    partitions, rule = disordered(random), random_rule(random)
    expected = reference(partitions, rule)
    known = [at.time for at, _ in expected[0]] or [0]
    until = random.choice(known)
    found = stamped(checked(rule, drops=True), input_rows(partitions), random, until)
    for partition in range(len(partitions)):
        journal = None
        if promises:
            log = FrontLogWriter(tmp_path, "numbers", partition, 2)
            journal = Journal(log, "numbers", front_index(0, 1, partition))
        beginning = Beginning(None, (until, 0), passes_over=True)
        more = fed(Parted(partitions, rule), partition, beginning, journal)
        for one, rest in zip(found, more, strict=True):
            one += rest
    assert tuple(map(sorted, found)) == expected


@pytest.mark.parametrize("disorder", [0, 5])
def test_a_position_at_the_cut_is_the_last_before_what_is_not_below_it(disorder: int) -> None:
    times, until = [3, 9, 10, 8, 10, 2, 12, 11, 30], 10
    rule = EventTime(disorder)
    elements, late = reference([times], rule)
    promised = (TIME_MIN, -1) if disorder else None
    found = stamped(checked(rule), input_rows([times]), Random(0), until)
    more = fed(Parted([times], rule), 0, Beginning(1, (until, 0), promised=promised))
    assert (found[0] + more[0], found[1] + more[1]) == (elements, late)
    assert len(late) == (1 if disorder else 3)
