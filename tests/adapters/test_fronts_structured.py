"""`fronts.Structured` and its inbox: acknowledged is durable, repeated is dropped, half is nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from emberflow import fronts
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts import Batch, Element, Malformed
from emberflow.fronts import inbox as inbox_module
from emberflow.fronts.structured import InboxService
from emberflow.values.times import Unit, counted_duration
from tests.adapters.structured import SCHEMA, Sender, placed_front

ROWS = [[(3, "ash"), (1, "ember"), (4, "coal")], [], [(1, "soot"), (5, "smoke")]]
WORDS = ["ash", "ember", "coal", "soot", "smoke"]


@dataclass(frozen=True)
class Word:
    word: str


class Died(BaseException):
    """In place of a kill: nothing of the program may catch it and go on."""


def read(front: fronts.Structured, position: Any = None) -> list[Element]:
    """All that is there now."""
    found = []
    for element in front.read(0, position):
        if element is None:
            return found
        found.append(element)
    raise AssertionError("a stream does not end")


def words(front: fronts.Structured) -> list[str]:
    return [element.payload for element in read(front)]


@pytest.fixture
def front(tmp_path: Path) -> fronts.Structured:
    return placed_front(tmp_path, "word")


@pytest.fixture
def service(front: fronts.Structured) -> Iterator[InboxService]:
    service = front.service()
    yield service
    service.close()


def test_rows_come_by_batch_then_task_then_row(
    front: fronts.Structured, service: InboxService
) -> None:
    sender = Sender()
    assert sender.send(service, 0, *ROWS)
    assert sender.send(service, 1, [(9, "tinder")])
    assert words(front) == [*WORDS, "tinder"]
    assert all(element.time is None for element in read(front))


def test_goes_on_behind_any_position(front: fronts.Structured, service: InboxService) -> None:
    for batch in range(3):
        Sender().send(service, batch, *ROWS)
    everything = read(front)
    assert [element.position for element in everything] == sorted(
        {element.position for element in everything}
    )
    for number, element in enumerate(everything):
        assert read(front, element.position) == everything[number + 1 :]


def test_it_travels_to_a_worker(front: fronts.Structured, service: InboxService) -> None:
    Sender().send(service, 0, *ROWS)
    assert words(cloudpickle.loads(cloudpickle.dumps(front))) == WORDS


def test_payloads_are_as_in_batch(tmp_path: Path) -> None:
    for payload, expected in [
        (Word, Word("ash")),
        ("word", "ash"),
        (lambda row: row.word.upper(), "ASH"),
        (None, (3, "ash")),
    ]:
        front = placed_front(tmp_path / str(expected), payload)
        service = front.service()
        Sender().send(service, 0, *ROWS)
        assert read(front)[0].payload == expected
        service.close()


def test_a_repeated_batch_is_dropped(front: fronts.Structured, service: InboxService) -> None:
    sender = Sender()
    assert sender.send(service, 0, *ROWS)
    assert not sender.send(service, 0, *ROWS)
    assert service.serve("begin", {"stream": sender.stream, "batch": 0}) == "here"
    assert service.serve("begin", {"stream": sender.stream, "batch": 1}) == "go"
    assert words(front) == WORDS
    assert sender.send(service, 1, *ROWS)
    assert not sender.send(service, 0, *ROWS)
    assert words(front) == 2 * WORDS


def test_streams_have_numbers_of_their_own(front: fronts.Structured, service: InboxService) -> None:
    assert Sender("one").send(service, 0, [(0, "one")])
    assert Sender("two").send(service, 7, [(0, "two")])  # it wrote elsewhere before
    assert Sender("one").send(service, 1, [(0, "one again")])
    assert not Sender("two").send(service, 7, [(0, "two")])
    assert words(front) == ["one", "two", "one again"]


def test_a_gap_is_an_error(front: fronts.Structured, service: InboxService) -> None:
    Sender().send(service, 3, *ROWS)
    with pytest.raises(InputError, match="batch 5 of streaming query stream-1 comes after batch 3"):
        Sender().send(service, 5, *ROWS)
    assert words(front) == WORDS


def test_empty_batches_count_and_leave_no_files(front: fronts.Structured, tmp_path: Path) -> None:
    service = front.service()
    Sender().send(service, 0, *ROWS)
    for batch in range(1, 50):
        assert Sender().send(service, batch, [], [])
    service.close()
    again = front.service()
    assert not Sender().send(again, 49, [], [])
    assert Sender().send(again, 50, *ROWS)
    again.close()
    folder = tmp_path / "structured" / "fronts-docs"
    assert len([name for name in os.listdir(folder) if name.startswith("batch")]) == 2
    assert words(front) == 2 * WORDS


def test_the_driver_dies_at_every_step(tmp_path: Path) -> None:
    """Whatever was done by then: a repeat from the start, or just going on, gives each row once."""
    steps = len(Sender().steps(1, ROWS))
    for done in range(steps + 1):
        for goes_on in (False, True):
            front = placed_front(tmp_path / f"{done} {goes_on}", "word")
            service = front.service()
            Sender().send(service, 0, [(0, "first")])
            attempt = Sender().steps(1, ROWS)
            for step in attempt[:done]:
                step(service)
            service.close()
            assert words(front) == (["first"] if done < steps else ["first", *WORDS])
            service = front.service()
            for step in attempt[done:] if goes_on else Sender().steps(1, ROWS):
                step(service)
            attempt[-1](service)  # the answer was lost, and it is asked again
            assert Sender().send(service, 2, [(0, "last")])
            assert words(front) == ["first", *WORDS, "last"]
            assert not os.listdir(tmp_path / f"{done} {goes_on}/structured/fronts-docs/staged")
            service.close()


def test_the_driver_dies_at_every_call_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ["fsync", "rename", "close", "unlink"]
    died = 0
    for name in calls:
        for number in range(12):
            front = placed_front(tmp_path / f"{name} {number}", "word")
            service = front.service()
            with monkeypatch.context() as patched:
                patched.setattr(inbox_module.os, name, dying(getattr(os, name), number))
                try:
                    for batch in range(3):
                        Sender().send(service, batch, *ROWS if batch != 1 else [])
                except Died:
                    died += 1
            again = front.service()
            for batch in range(3):
                Sender().send(again, batch, *ROWS if batch != 1 else [])
            assert words(front) == 2 * WORDS, (name, number)
            again.close()
            service.close()
    assert died > len(calls)


def dying(call: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The call, that many times; then the process dies, every other time just after it."""
    left = number // 2

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1 and number % 2:
            call(*arguments, **options)
        if left < 0:
            raise Died
        return call(*arguments, **options)

    return counted


def test_half_a_part_is_not_committed(front: fronts.Structured, service: InboxService) -> None:
    *staged, commit = Sender().steps(0, ROWS, chunk=50)
    for step in staged[:-1]:
        step(service)
    with pytest.raises(InputError, match=r"a part of the batch is not here: \d+ of \d+ bytes"):
        commit(service)
    assert words(front) == []
    staged[-1](service)
    assert commit(service)
    assert words(front) == WORDS


def test_a_part_that_lost_its_beginning_or_its_bytes_is_not_committed(
    front: fronts.Structured, service: InboxService, tmp_path: Path
) -> None:
    *staged, commit = Sender().steps(0, ROWS, chunk=50)
    with pytest.raises(InputError, match="a part of the batch is not here: 0 of 50 bytes"):
        staged[1](service)
    for step in staged:
        step(service)
    (name, *_) = sorted(os.listdir(tmp_path / "structured/fronts-docs/staged"))
    path = tmp_path / "structured/fronts-docs/staged" / name
    path.write_bytes(bytes(path.stat().st_size))  # as a file system may leave it, without power
    with pytest.raises(InputError, match="a part of the batch is not here: other bytes"):
        commit(service)
    assert words(front) == []


def test_a_name_of_a_part_leads_nowhere_else(service: InboxService) -> None:
    with pytest.raises(InputError, match="not the name of a part"):
        service.serve("stage", {"part": "../../etc/passwd", "offset": 0, "data": b"x"})


def test_who_was_followed_takes_nothing_in(front: fronts.Structured) -> None:
    before = front.service()
    Sender().send(before, 0, *ROWS)
    after = front.service()
    with pytest.raises(EmberflowError, match="taken over by another driver"):
        Sender().send(before, 1, *ROWS)
    assert Sender().send(after, 1, *ROWS)
    assert words(front) == 2 * WORDS
    before.close()
    after.close()


def test_batches_go_when_a_cut_has_them_and_writers_wait_before(tmp_path: Path) -> None:
    front = placed_front(tmp_path, "word", pending_mb=0.003)
    service = front.service()
    asked = {"stream": "stream-1", "batch": 100}
    batch = 0
    while service.serve("begin", asked) == "go":
        Sender().send(service, batch, *ROWS)
        batch += 1
    assert batch > 1
    assert service.serve("begin", asked) == "wait"
    everything = read(front)
    kept = everything[-2].position  # in the newest batch
    front.passed(0, kept)  # also if no file may go yet: an older cut may need it
    assert service.serve("begin", asked) == "go"
    front.trim(0, kept)
    assert read(front, kept) == everything[-1:]
    service.close()
    # The numbers of streams are there without the batches that brought them.
    again = front.service()
    assert not Sender().send(again, batch - 1, *ROWS)
    again.close()
    with pytest.raises(InputError, match=r"batch-0{15}1 was removed"):
        read(front)


def test_times_of_a_column_are_the_order(tmp_path: Path) -> None:
    front = placed_front(tmp_path, "word", time="at")
    service = front.service()
    Sender().send(service, 0, *ROWS)
    Sender().send(service, 1, [(2, "late"), (2, "as late")], [(90, "tinder")])
    everything = read(front)
    assert [(element.payload, element.time) for element in everything] == [
        ("ember", 1),
        ("soot", 1),
        ("ash", 3),
        ("coal", 4),
        ("smoke", 5),
        ("late", 2),
        ("as late", 2),
        ("tinder", 90),
    ]
    for number, element in enumerate(everything):
        assert read(front, element.position) == everything[number + 1 :]
    service.close()


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [(TimestampType(), pa.timestamp("us", "UTC")), (TimestampNTZType(), pa.timestamp("us"))],
)
@pytest.mark.parametrize(("unit", "expected"), [("s", -1), ("ms", -1), ("us", -1), ("us", -500)])
def test_timestamps_are_counted_in_the_unit(
    tmp_path: Path, kind: DataType, arrow: pa.DataType, unit: Unit, expected: int
) -> None:
    front = placed_front(tmp_path, "word", time="at", unit=unit, disorder="5 seconds")
    assert front.event_time.disorder == counted_duration("5 seconds", unit)
    service = front.service()
    schema = StructType([StructField("at", kind), StructField("word", StringType())])
    at = datetime(1970, 1, 1) + timedelta(microseconds=expected)
    Sender(schema=schema, time=arrow).send(
        service, 0, [(at, "before"), (datetime(1970, 1, 2), "after")]
    )
    day = counted_duration("1 day", unit)
    assert [(one.payload, one.time) for one in read(front)] == [
        ("before", expected),
        ("after", day),
    ]
    service.close()


def test_a_row_without_a_time_is_malformed(tmp_path: Path) -> None:
    front = placed_front(tmp_path, "word", time="at")
    service = front.service()
    Sender().send(service, 0, [(None, "lost"), (1, "ash")])
    batch = next(front.read_batches(0, None))
    assert isinstance(batch, Batch)
    assert batch.times == [1, None]
    malformed = batch.payloads[1]
    assert isinstance(malformed, Malformed)
    assert malformed.before_next
    assert "'at' has a row without a time" in malformed.problem
    service.close()


def test_a_row_that_the_function_refuses_is_malformed(tmp_path: Path) -> None:
    front = placed_front(tmp_path, lambda row: row.word[4])
    service = front.service()
    Sender().send(service, 0, *ROWS)
    found = [element.payload for element in read(front)]
    assert [payload for payload in found if not isinstance(payload, Malformed)] == ["r", "e"]
    assert "row 2: the payload function of front 'docs' raised IndexError" in found[2].problem
    service.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"payload": "text"}, "wants a column 'text', and the DataFrame has 'at', 'word'"),
        ({"time": "when"}, "its time is the column 'when', and the stream has 'at', 'word'"),
        ({"time": "word"}, "the time column 'word' is of type string"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    service = placed_front(tmp_path, **options).service()
    with pytest.raises(InputError, match=problem):
        service.serve("check", {"schema": SCHEMA.json()})
    with pytest.raises(InputError, match=problem):
        Sender().send(service, 0, *ROWS)
    service.close()


def test_two_columns_of_one_name_are_refused(service: InboxService) -> None:
    twice = StructType([*SCHEMA.fields, *SCHEMA.fields])
    with pytest.raises(InputError, match="two columns 'at'"):
        service.serve("check", {"schema": twice.json()})


@pytest.mark.parametrize("checkpoint", [None, "s3://bucket/place"])
def test_it_needs_a_folder_for_its_batches(checkpoint: str | None) -> None:
    from tests.adapters.structured import graph

    with pytest.raises(InputError, match=r"set .option\('checkpointLocation', ...\)"):
        fronts.Structured().placed(graph().fronts["docs"], checkpoint)
