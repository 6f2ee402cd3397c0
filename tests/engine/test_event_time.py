"""Event time in one partition: a function of what it holds, in order, and the same from any cut on."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emberflow.engine.progress.event_time import (
    Attached,
    LateBy,
    Leap,
    Stamper,
)
from emberflow.engine.progress.gate import Gate
from emberflow.engine.progress.waiting import Resume
from emberflow.values.event_time import EventTime
from emberflow.values.item import TIE

INDEX = 3

times = st.lists(st.integers(0, 30), max_size=40)
disorders = st.integers(0, 12)
steps = st.lists(st.integers(1, 7), min_size=1, max_size=40)


def expected(records: list[int], disorder: int) -> list[tuple[tuple[int, int], int, bool]]:
    """The rule, word for word: global time, number of the record, and whether it is late; in order."""
    found, promised, ties = [], None, dict[int, int]()
    for number, own in enumerate(records):
        late = promised is not None and own < promised
        time = promised if promised is not None and late else own
        tie = ties[time] = ties.get(time, -1) + 1
        found.append(((time, INDEX + tie * TIE), number, late))
        promised = own - disorder if promised is None else max(promised, own - disorder)
    return sorted(found)


def number_of(payload: Any) -> int:
    return int(payload.payload if isinstance(payload, LateBy) else payload)


def given_by(
    records: list[int], disorder: int, sizes: list[int], resume: Resume | None = None
) -> tuple[list[tuple[tuple[int, int], int, bool]], Gate]:
    """What a stamper gives of the records behind a resume, taken a few at a time, and their gate."""
    stamper = Stamper(INDEX, EventTime(disorder), resume)
    gate = Gate(front=INDEX, credit=1_000)
    found: list[tuple[tuple[int, int], int, bool]] = []
    begin = 0 if resume is None or resume.position is None else resume.position + 1

    def take(most: int) -> None:
        while (stamped := stamper.take(most)) is not None:
            gate.emitted_all(stamped.times, stamped.resumes, 0, stamped.fronts)
            for place, _, payload in stamped.items(INDEX):
                assert len(found) == 0 or found[-1][0] < place
                found.append((place, number_of(payload), isinstance(payload, LateBy)))
        if stamper.waiting:
            assert not found or found[-1][0] < stamper.promise

    for turn in range(len(records)):
        size = sizes[turn % len(sizes)]
        numbers = range(begin, min(begin + size, len(records)))
        before = stamper.promise
        if size % 2:
            stamper.add_all(numbers, numbers, [records[number] for number in numbers])
        else:
            for number in numbers:
                stamper.add(number, number, records[number])
        known = len(found)
        take(size)
        assert all(place >= before for place, _, _ in found[known:])
        begin += size
    stamper.end()
    take(1)
    return found, gate


@given(times, disorders.filter(bool), steps)
def test_elements_leave_in_order_with_their_own_times_or_late(
    records: list[int], disorder: int, sizes: list[int]
) -> None:
    found, _ = given_by(records, disorder, sizes)
    assert found == expected(records, disorder)


@given(times, disorders.filter(bool), steps, steps, st.data())
def test_any_cut_can_be_gone_on_from(
    records: list[int], disorder: int, sizes: list[int], later: list[int], data: st.DataObject
) -> None:
    found, gate = given_by(records, disorder, sizes)
    if not found:
        return
    time, front = data.draw(st.sampled_from([place for place, _, _ in found]))
    cut = data.draw(st.sampled_from([(time, front), (time, front + 1), (time, INDEX - 1)]))
    gate.minimal_time(cut)
    again, _ = given_by(records, disorder, later, gate.position)
    assert [one for one in again if one[0] >= cut] == [one for one in found if one[0] >= cut]


@given(times, st.integers(0, 40))
def test_in_order_every_record_leaves_at_once(records: list[int], begin: int) -> None:
    stamper, found, resume = Stamper(INDEX), [], Resume(None)
    for number, own in enumerate(records):
        if number == begin:
            stamper = Stamper(INDEX, EventTime(), resume)  # as another life would
        before = stamper.promise
        moment, late = stamper.stamp(own)
        assert before <= moment < stamper.promise
        found.append((moment, number, late))
        resume = Resume(number, moment[0], (moment[1] - INDEX) // TIE)
    assert found == expected(records, 0)


@given(times, steps)
def test_in_order_batches_are_their_records(records: list[int], sizes: list[int]) -> None:
    stamper, found = Stamper(INDEX), list[tuple[int, int]]()
    records, begin = sorted(records), 0
    for size in sizes:
        batch = records[begin : begin + size]
        if batch:
            fronts = stamper.stamp_all(batch, len(set(batch)) == len(batch))
            found += zip(batch, fronts or [INDEX] * len(batch), strict=True)
        begin += size
    assert found == [moment for moment, _, _ in expected(records, 0)][: len(found)]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=30), st.integers(0, 5), st.data())
def test_a_leap_that_the_next_record_does_not_follow_is_malformed(
    records: list[int], disorder: int, data: st.DataObject
) -> None:
    """Whatever is left behind is what would have been given without the leap."""
    place = data.draw(st.integers(0, len(records) - 1))
    rule = EventTime(disorder, ahead=30)
    leaping, plain = Stamper(INDEX, rule), Stamper(INDEX, rule)
    for number, own in enumerate(records):
        if number == place:
            leaping.add(-1, -1, 1_000_000)
        leaping.add(number, number, own)
        plain.add(number, number, own)
    leaping.end()
    plain.end()
    one, other = leaping.take(), plain.take()
    assert one is not None
    assert other is not None
    (attached,) = [payload for payload in one.payloads if isinstance(payload, Attached)]
    assert [leap.time for leap in attached.things] == [1_000_000]
    assert number_of(attached.payload) == place
    bare = [
        payload.payload if isinstance(payload, Attached) else payload for payload in one.payloads
    ]
    assert one._replace(payloads=bare).items(INDEX) == other.items(INDEX)


def test_a_leap_that_the_next_record_follows_is_a_gap() -> None:
    stamper = Stamper(INDEX, EventTime(0, ahead=30))
    for number, own in enumerate([5, 6, 1_000, 1_001, 1_002]):
        stamper.add(number, number, own)
    stamper.end()
    stamped = stamper.take()
    assert stamped is not None
    assert list(stamped.times) == [5, 6, 1_000, 1_001, 1_002]
    assert list(stamped.payloads) == [0, 1, 2, 3, 4]


def test_what_has_no_time_keeps_its_place_among_leaps() -> None:
    stamper = Stamper(INDEX, EventTime(0, ahead=30))
    for thing in ("a", 5, "b", 1_000, "c", 6, 7_000, "d", 7_001, "e"):
        if isinstance(thing, int):
            stamper.add(thing, thing, thing)
        else:
            stamper.attach(thing)
    assert stamper.end() == ["e"]
    stamped = stamper.take()
    assert stamped is not None
    assert list(stamped.payloads) == [
        Attached(("a",), 5),
        Attached(("b", Leap(1_000, 5, 1_000, 1_000), "c"), 6),
        7_000,
        Attached(("d",), 7_001),
    ]


def test_a_watermark_takes_the_place_of_the_disorder() -> None:
    def watermark(payload: int) -> int | None:
        return payload or None

    stamper = Stamper(INDEX, EventTime(watermark=watermark))
    for number, (payload, own) in enumerate([(0, 7), (0, 3), (5, 9), (0, 4), (0, 5)]):
        stamper.add(number, payload, own)
    stamped = stamper.take()
    assert stamped is not None
    assert list(stamped.times) == [3]
    assert stamper.promise == (5, INDEX)
    stamper.end()
    stamped = stamper.take()
    assert stamped is not None
    assert [
        (time, isinstance(p, LateBy))
        for time, p in zip(stamped.times, stamped.payloads, strict=True)
    ] == [
        (5, True),
        (5, False),
        (7, False),
        (9, False),
    ]
