"""`rank`, and `distinct` with a time to live, against the payloads of each key so far."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from emberflow.dsl.operators.distinct import _Alive
from tests.operators.agreement import check_workers_and_batch
from tests.operators.inputs import Event, events, keyed_outputs_of, outputs_of, searching, value_of


@searching
@given(events(at_most=20), st.booleans())
def test_a_rank_is_one_more_than_how_many_are_above(events: list[Event], by_value: bool) -> None:
    expected = []
    for place, event in enumerate(events):
        before = [e for e in events[:place] if e.key == event.key]
        above = [e for e in before if e.value > event.value] if by_value else before
        expected.append((event, 1 + len(above)))
    by = value_of if by_value else None
    assert keyed_outputs_of(events, lambda stream: stream.rank(by=by)) == expected


def passing(events: list[Event], ttl: int) -> list[Event]:
    """Those with no other of their key that passed less than ``ttl`` before."""
    passed: list[Event] = []
    for event in events:
        if not any(e.key == event.key and event.time - e.time < ttl for e in passed):
            passed.append(event)
    return passed


@searching
@given(events(at_most=25), st.integers(1, 9))
def test_a_key_passes_again_when_its_time_is_over(events: list[Event], ttl: int) -> None:
    assert keyed_outputs_of(events, lambda stream: stream.distinct(ttl=ttl)) == passing(events, ttl)
    values = [event._replace(key=event.value) for event in events]
    found = outputs_of(
        events, lambda *fronts: ef.merge(*fronts).map(value_of).distinct(ttl=ttl).with_time()
    )
    assert found == [ef.Timed(event.time, event.value) for event in passing(values, ttl)]


def test_keys_that_are_over_are_forgotten() -> None:
    step = _Alive(ttl=10)
    accumulator = step.first((0, b"0", "payload"))
    for time in range(1, 1_000):
        accumulator = step(accumulator, (time, str(time).encode(), "payload"))
        alive, passed, begin, _ = accumulator
        assert len(alive) <= 10
        assert len(passed) - begin == len(alive)
        assert len(passed) <= 2 * 10 + 1


@pytest.mark.parametrize("seed", range(6))
def test_workers_and_batch_agree_with_the_reference(seed: int) -> None:
    random = Random(f"ranks {seed}")
    flow = ef.Flow("ranks")
    merged = ef.merge(flow.front("one"), flow.front("other"))
    merged.key_by(lambda n: n % 2).rank(by=lambda n: n % 5).sink("ranks")
    merged.key_by(lambda n: n % 2).rank().sink("numbers")
    merged.key_by(lambda n: n % 4).distinct(ttl=random.randint(1, 9)).sink("distinct")
    check_workers_and_batch(flow, random, seed)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda keyed: keyed.rank(by="price"), "rank(by=) takes a function of the payload"),
        (lambda keyed: keyed.distinct(ttl=0), "distinct(ttl=) takes a duration above 0, got 0"),
        (lambda keyed: keyed.distinct(ttl="soon"), "distinct(ttl=):"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_line_that_has_it(ask: Any, complaint: str) -> None:
    keyed: Any = ef.Flow("refused").front("numbers").key_by(lambda n: n)
    with pytest.raises(ef.FlowError) as raised:
        ask(keyed)
    assert complaint in str(raised.value)
    assert "test_ranks.py" in str(raised.value)
