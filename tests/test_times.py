"""A time or a duration gives the same output to the byte, in whatever way it is said."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow import fronts
from emberflow.commands.adapters import given_fronts
from emberflow.engine.messages import AFTER_ALL
from emberflow.fronts.protocol import Batch, Element, Idle, front_contract
from emberflow.runners.live.builder import LiveBuilder
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning
from emberflow.runners.questions import moment_after
from emberflow.values.event_time import EventTime
from emberflow.values.times import MICROSECONDS, TimeError, Unit, counted_duration, counted_time
from tests.effort import SECONDS, examples

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
UNITS: list[Unit] = ["s", "ms", "us"]
MINUTE_MICROSECONDS = 60_000_000


# --- One instant, one number ----------------------------------------------------------------------


def datetimes_of(microseconds: int, zone: timezone) -> list[Any]:
    """An instant in all the ways in which a program may have it."""
    aware = EPOCH + timedelta(microseconds=microseconds)
    naive = aware.replace(tzinfo=None)
    return [
        aware,
        aware.astimezone(zone),
        naive,
        pd.Timestamp(aware),
        pd.Timestamp(aware).tz_convert(zone),
        pd.Timestamp(naive),
        pd.Timestamp(naive) + pd.Timedelta(999, "ns"),
        np.datetime64(naive),
        np.datetime64(naive, "ns") + np.timedelta64(999, "ns"),
    ]


zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
#: Within the years that a `pandas.Timestamp` of nanoseconds has.
instants = st.integers(-(2**62) // 1_000, 2**62 // 1_000)


@given(instants, zones, st.sampled_from(UNITS))
def test_an_instant_is_one_number_and_finer_digits_are_cut_off(
    microseconds: int, zone: timezone, unit: Unit
) -> None:
    for time in datetimes_of(microseconds, zone):
        assert counted_time(time, unit) == microseconds // MICROSECONDS[unit], repr(time)


def test_a_datetime_without_a_zone_does_not_ask_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert counted_time(datetime.datetime(1970, 1, 1, 0, 0, 5), "ms") == 5_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("time", [datetime.datetime.min, datetime.datetime.max])
def test_every_datetime_is_a_time_in_every_unit(time: datetime.datetime) -> None:
    for unit in UNITS:
        expected = (time.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=MICROSECONDS[unit])
        assert counted_time(time, unit) == expected


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (datetime.date(2026, 5, 1), "Say which time of the day"),
        ("2026-05-01", "datetime.fromisoformat"),
        (1.5, "Round it"),
        (True, "an int of 64 bits or a datetime, got True"),
        (None, "got None"),
        (2**63 - 1, "an int of 64 bits"),
        (pd.NaT, "got NaT"),
        (np.datetime64("NaT"), "got np.datetime64('NaT'"),
        (np.datetime64("300000-01-01"), "got np.datetime64('300000-01-01')"),
        (timedelta(seconds=5), "an int of 64 bits or a datetime"),
    ],
)
def test_what_is_no_time_is_told(time: Any, message: str) -> None:
    with pytest.raises(TimeError) as caught:
        counted_time(time, "ms")
    assert message in str(caught.value)


# --- Durations ------------------------------------------------------------------------------------

WORDS = {
    1: ["microsecond", "microseconds", "us", "µs", "μs"],
    1_000: ["millisecond", "milliseconds", "ms"],
    1_000_000: ["second", "seconds", "sec", "s"],
    60_000_000: ["minute", "minutes", "min", "m"],
    3_600_000_000: ["hour", "hours", "h"],
    86_400_000_000: ["day", "days", "d"],
    604_800_000_000: ["week", "weeks", "w"],
}
parts = st.tuples(
    st.integers(-999, 999),
    st.sampled_from([(size, word) for size, words in WORDS.items() for word in words]),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from([str.lower, str.upper, str.title]),
)


@given(st.lists(parts, min_size=1, max_size=4), st.sampled_from(["", "interval ", " INTERVAL  "]))
def test_a_text_is_the_sum_of_its_parts(said: list[Any], begin: str) -> None:
    text = begin + " ".join(f"{n}{gap}{case(word)}" for n, (_, word), gap, case in said)
    total = timedelta(microseconds=sum(n * size for n, (size, _), _, _ in said))
    assert counted_duration(text, "us") == counted_duration(total, "us"), text
    assert counted_duration(pd.Timedelta(total), "us") == counted_duration(total, "us")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("5 seconds", 5_000), ("1.5 s", 1_500), ("1 hour 30 minutes", 5_400_000), ("-500ms", -500)],
)
def test_texts_as_users_write_them(text: str, milliseconds: int) -> None:
    assert counted_duration(text, "ms") == milliseconds


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("5", "a text such as '5 seconds'"),
        ("", "a text such as '5 seconds'"),
        ("interval", "a text such as '5 seconds'"),
        ("five seconds", "a text such as '5 seconds'"),
        ("5 seconds ago", "a text such as '5 seconds'"),
        ("2 months", "months and years differ in length"),
        ("5 parsecs", "no unit 'parsecs'"),
        ("1500 us", "not a whole number of ms"),
        (timedelta(microseconds=1), "Round it, or count in a finer unit"),
        ("1.0000001 seconds", "no parts of a microsecond"),
        (pd.Timedelta(1, "ns"), "no parts of a microsecond"),
        ("99999999999 days", "longer than a duration can be"),
        (1.5, "A duration is an int, a timedelta or a text"),
        (True, "got True"),
        (None, "got None"),
        (2**64, "A duration is an int"),
        (pd.NaT, "got NaT"),
    ],
)
def test_what_is_no_duration_is_told(duration: Any, message: str) -> None:
    with pytest.raises(TimeError) as caught:
        counted_duration(duration, "ms")
    assert message in str(caught.value)


# --- The same output ------------------------------------------------------------------------------

Said = Callable[[int], Any]


def flow(time: Said, span: Said, unit: Unit | None) -> ef.Flow:
    """All that takes a time or a duration: windows, a join, and a map that schedules."""
    flow = ef.Flow("said", unit=unit)
    left, right = flow.front("left").broadcast(2)
    by_user = left.key_by(lambda row: row[0])
    other = right.key_by(lambda row: row[0])
    windows = {
        "tumbling": ef.Tumbling(span(4), offset=span(1)),
        "sliding": ef.Sliding(span(6), slide=span(2)),
        "session": ef.Session(gap=span(3)),
    }
    for name, spec in windows.items():
        by_user.window(spec, emit="close").count().sink(name)
    joined = by_user.join(other, within=(span(-1), span(2)))
    joined.sink("pairs")
    later = flow.front("right").map(lambda row: ef.At(time(row[1] + 5), row))
    later.with_time().sink("later")
    return flow


users = st.sampled_from("ab")
minutes = st.lists(st.tuples(users, st.integers(-3, 30)), max_size=12)


@st.composite
def ways(draw: st.DrawFn) -> tuple[Unit, Said, Said, Said]:
    """A unit; how a program says minutes as a time and as a duration; and the same in numbers."""
    unit: Unit = draw(st.sampled_from(UNITS))
    count = MINUTE_MICROSECONDS // MICROSECONDS[unit]
    zone = draw(zones)
    which = draw(st.integers(0, 8))
    mixed = draw(st.booleans())

    def number(minute: int) -> int:
        return minute * count

    def time(minute: int) -> Any:
        said = datetimes_of(minute * MINUTE_MICROSECONDS, zone)
        return number(minute) if mixed and minute % 2 else said[which]

    def span(minute: int) -> Any:
        texts = [timedelta(minutes=minute), pd.Timedelta(minutes=minute), f"{minute} minutes"]
        return [*texts, f"interval {minute * 60_000} ms", number(minute)][which % 5]

    return unit, time, span, number


def bytes_of(outputs: dict[str, list[Any]]) -> dict[str, list[bytes]]:
    return {name: [pickle.dumps(one) for one in found] for name, found in outputs.items()}


@settings(deadline=None, max_examples=examples(20))
@given(ways(), minutes, minutes, st.integers(0, 100))
def test_every_way_to_say_it_gives_the_bytes_of_the_numbers(
    said: tuple[Unit, Said, Said, Said],
    left: list[tuple[str, int]],
    right: list[tuple[str, int]],
    seed: int,
) -> None:
    unit, time, span, number = said

    def elements(of: Said) -> dict[str, list[Any]]:
        return {
            name: [ef.At(of(row[1]), row) for row in rows]
            for name, rows in (("left", left), ("right", right))
        }

    in_numbers = flow(number, number, unit)
    wanted = bytes_of(ef.run(in_numbers, **elements(number)))
    flow_said = flow(time, span, unit)
    assert flow_said.graph().fingerprint == in_numbers.graph().fingerprint
    assert bytes_of(ef.run(flow_said, **elements(time))) == wanted
    simulated = ef.simulate(flow_said, **elements(time), workers=2, seed=seed)
    assert bytes_of(simulated.outputs) == wanted
    read = {name: fronts.Iterable(rows, unit=unit) for name, rows in elements(time).items()}
    assert bytes_of({**ef.run(flow_said, **read), "late": []}) == {**wanted, "late": []}


class Own:
    """A front of one's own, that gives what it is told to."""

    partitions = 1
    promises = True

    def __init__(self, given: list[Any], rule: EventTime) -> None:
        self.given = given
        self.event_time = rule

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for one in self.given:
            if isinstance(one, Element):
                yield one

    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        yield from self.given


def entered(front: Any, unit: Unit | None) -> list[Any]:
    """What a feed lets into a live query."""
    feed = Feed("rows", 0, front, 0, 3, 1_000, late_node=9, unit=unit)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    found: list[Any] = []
    promise = feed.gate.promise
    while promise != AFTER_ALL:
        found += [*feed.take(1_000), *feed.take_late()]
        promise = feed.report().get(3, promise)
        feed.minimal_time(promise)
    return found


@settings(deadline=None, max_examples=examples(20))
@given(ways(), st.lists(st.integers(-3, 30), max_size=12), st.booleans())
def test_what_a_front_of_one_s_own_says_enters_as_numbers(
    said: tuple[Unit, Said, Said, Said], at: list[int], has_watermark: bool
) -> None:
    unit, time, span, number = said

    def front(time: Said, span: Said) -> Own:
        single = [Element(n, ("one", minute), time(minute)) for n, minute in enumerate(at)]
        batch = Batch(
            range(100, 100 + len(at)), [("many", m) for m in at], [time(m + 40) for m in at]
        )
        rule = EventTime(disorder=span(2))
        if has_watermark:
            rule = EventTime(watermark=lambda row: time(row[1] - 2) if row[1] % 3 else None)
        return Own([*single, Idle(time(35), span(1)), batch], rule)

    assert entered(front(time, span), unit) == entered(front(number, number), unit)


@pytest.mark.parametrize("disorder", [2_000, "2 seconds", timedelta(seconds=2)])
def test_lines_take_times_of_a_function(tmp_path: Path, disorder: Any) -> None:
    times = [0, 3_000, 1_500, 900, 6_000]
    rows = [{"at": (EPOCH + timedelta(milliseconds=at)).isoformat(), "n": at} for at in times]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    front = fronts.Files(
        tmp_path,
        time=lambda row: datetime.datetime.fromisoformat(row["at"]),
        disorder=disorder,
        until_end=True,
    )
    flow = ef.Flow("in order")
    flow.front("rows").map(lambda row: row["n"]).with_time().sink("out")
    outputs = ef.run(flow, rows=front)
    assert outputs["out"] == [(0, 0), (1_500, 1_500), (3_000, 3_000), (6_000, 6_000)]
    assert [(late.time, late.by) for late in outputs["late"]] == [(900, 100)]


def test_a_field_with_a_text_says_how_to_read_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"at": "2026-05-01"}\n')
    (element,) = fronts.Files(tmp_path, time="at", until_end=True).read(0, None)
    assert element is not None
    assert "datetime.fromisoformat" in element.payload.problem


def test_a_script_takes_datetimes() -> None:
    script = ef.testing.Script([ef.At(EPOCH + timedelta(seconds=1), "a"), "b"])
    assert [(one.payload, one.time) for one in script.read(0, None) if one] == [
        ("a", 1_000),
        ("b", 1_001),
    ]


def test_windows_outside_of_a_flow_count_in_milliseconds() -> None:
    at = EPOCH + timedelta(seconds=7)
    for windows in (ef.Tumbling("5 s"), ef.Tumbling(5_000), ef.Tumbling(timedelta(seconds=5))):
        assert windows.containing(at) == windows.containing(7_000) == ((5_000, 10_000),)
    for sliding in (ef.Sliding("4 s", slide="2 s"), ef.Sliding(4_000, slide=2_000)):
        assert sliding.containing(at) == sliding.containing(7_000)
    assert ef.Tumbling("5 seconds") == ef.Tumbling(timedelta(seconds=5))


def test_reads_take_datetimes() -> None:
    assert moment_after(EPOCH + timedelta(seconds=2)) == moment_after(2_000)
    assert moment_after(EPOCH + timedelta(seconds=2), "us") == moment_after(2_000_000)


def test_options_take_durations() -> None:
    flow = ef.Flow("options", unit="us")
    flow.front("rows").sink("out")
    builder = LiveBuilder(flow, None)  # type: ignore[arg-type]
    for value in (2_000, "2000", "2 seconds", timedelta(seconds=2)):
        builder.option("checkpointInterval", value)
        assert builder._options["checkpointInterval"] == 2_000
    for value in (60_000_000, "1 minute", timedelta(minutes=1)):
        builder.option("historyKept", value)
        assert counted_duration(builder._options["historyKept"], "us") == 60_000_000
    with pytest.raises(ef.InputError, match="option 'checkpointInterval': '1 us' is not a whole"):
        builder.option("checkpointInterval", "1 us")


@pytest.mark.parametrize(
    ("place", "disorder"),
    [
        ("?time=at&disorder=5000", 5_000),
        ("?time=at&disorder=5 seconds", 5_000),
        ("?time=at&disorder=5+seconds&unit=us", 5_000_000),
        ("?time=at&disorder=5%20seconds&unit=s", 5),
    ],
)
def test_a_command_line_takes_durations(tmp_path: Path, place: str, disorder: int) -> None:
    flow = ef.Flow("line")
    flow.front("rows").sink("out")
    for kind in (f"files:{tmp_path}", "socket:localhost:9999"):
        front = given_fronts(flow.graph(), [f"rows={kind}{place}&format=jsonl"])["rows"]
        assert front.event_time.disorder == disorder


# --- What does not fit ----------------------------------------------------------------------------


def two_windows(unit: Unit | None = None) -> ef.Flow:
    flow = ef.Flow("windows", unit=unit)
    flow.front("rows").key_by(len).window(ef.Tumbling("5 seconds")).count().sink("out")
    return flow


def numbers_only(unit: Unit | None = None) -> ef.Flow:
    flow = ef.Flow("numbers", unit=unit)
    flow.front("rows").key_by(len).window(ef.Tumbling(5)).count().sink("out")
    return flow


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ef.Flow("x", unit="ns"), "Flow(unit=) takes 's', 'ms' or 'us', got 'ns'"),
        (lambda: ef.Tumbling("0 seconds"), "Tumbling(size=) takes a duration above 0"),
        (lambda: ef.Tumbling(0), "Tumbling(size=) takes a duration above 0, got 0"),
        (lambda: ef.Tumbling("5 parsecs"), "Tumbling(size=): A duration has no unit 'parsecs'"),
        (lambda: ef.Tumbling(5, offset="noon"), "Tumbling(offset=): A duration is an int"),
        (lambda: ef.Sliding("5 s", slide="-1 s"), "Sliding(slide=) takes a duration above 0"),
        (lambda: ef.Session(gap=1.5), "Session(gap=): A duration is an int"),
        (lambda: windowed(ef.Tumbling("1500 us")), "Tumbling: datetime.timedelta(micro"),
        (lambda: joined("-5 s"), "join(within=) takes a duration of at least 0"),
        (lambda: joined("5 parsecs"), "join(within=) takes a duration, or a pair"),
        (lambda: joined(("2 s", 1_000)), "a pair (low, high) with low <= high"),
        (lambda: fronts.Iterable([], disorder="-5 s"), "fronts.Iterable(disorder=) takes how far"),
        (lambda: fronts.Files(".", ahead="5"), "fronts.Files(ahead=) takes how far times may leap"),
        (lambda: fronts.Files(".", unit="ns"), "fronts.Files(unit=) takes 's', 'ms' or 'us'"),
        (lambda: fronts.Files(".", poll_ms="soon"), "fronts.Files(poll_ms=) takes milliseconds."),
        (lambda: ef.run(numbers_only(), rows=[ef.At("noon", "a")]), "element 0"),
        (
            lambda: ef.run(scheduling(datetime.date(2026, 5, 1)), rows=["a"]),
            "its time must be a datetime, or an int of at most",
        ),
        (
            lambda: ef.run(scheduling(datetime.datetime(1969, 5, 1)), rows=["a"]),
            "its time must be later than the item it comes from, which has time 0",
        ),
        (
            lambda: ef.run(
                numbers_only(), rows=fronts.Iterable(["a"], watermark=lambda row: "noon")
            ),
            "watermark= returned 'noon' for 'a'. It returns a time or None.",
        ),
        (
            lambda: ef.run(two_windows(), rows=fronts.Iterable(["a"], unit="us")),
            "front 'rows' counts in us, and the flow in ms",
        ),
        (
            lambda: ef.run(numbers_only("us"), rows=fronts.Iterable(["a"])),
            "front 'rows' counts in ms, and the flow in us",
        ),
        (
            lambda: LiveBuilder(numbers_only("us"), None).read(rows=fronts.Structured(time="at")),
            "front 'rows' counts in ms, and the flow in us",
        ),
        (
            lambda: LiveBuilder(numbers_only("s"), None).read(rows=fronts.Files(".")),
            "its elements get the time of their arrival, in ms, and the flow counts in s",
        ),
        (
            lambda: front_contract(Own([], EventTime(disorder="1500 us")), "front 'own'").counted(  # type: ignore[arg-type]
                "ms"
            ),
            "front 'own': EventTime(disorder=) takes how far times may go back. '1500 us' is not a",
        ),
    ],
)
def test_what_does_not_fit_is_told(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ef.EmberflowError) as caught:
        wrong()
    assert message in str(caught.value)


def windowed(windows: Any) -> None:
    ef.Flow("x").front("rows").key_by(len).window(windows)


def joined(within: Any) -> None:
    flow = ef.Flow("x")
    left, right = (flow.front(name).key_by(len) for name in ("left", "right"))
    left.join(right, within=within)


def scheduling(time: Any) -> ef.Flow:
    flow = ef.Flow("scheduling")
    flow.front("rows").map(lambda row: ef.At(time, row)).sink("out")
    return flow


@pytest.mark.parametrize("unit", [None, "ms", "us"])
def test_a_flow_of_numbers_takes_fronts_of_any_unit_unless_it_says_its_own(
    unit: Unit | None,
) -> None:
    front = fronts.Iterable(["a", "b"], unit=unit or "us")
    assert len(ef.run(numbers_only(unit), rows=front)["out"]) == 2


def test_a_flow_that_says_no_unit_counts_as_its_fronts_do() -> None:
    at = EPOCH + timedelta(seconds=3)
    flow = scheduling(at)
    flow.front("more").with_time().sink("times")
    outputs = ef.run(
        flow, rows=fronts.Iterable(["a"], unit="us"), more=[ef.At(at, "b"), ef.At(3_000_000, "c")]
    )
    assert [time for time, _ in outputs["times"]] == [3_000_000, 3_000_000]
