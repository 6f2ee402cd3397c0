"""What travels between workers though pickle does not take it as it is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from emberflow.engine.messages import Frame
from emberflow.errors import EmberflowError, FunctionError
from emberflow.runners.live.worker.diverted import fit_to_travel


def frame(payload: Any) -> Frame:
    return Frame(0, 1, ((5, [((3, 0, 1), 2, payload)]),), (3, 0), None)


def travelled(failure: FunctionError, is_vote: bool) -> FunctionError:
    """The error as it arrives: on its own, or in the vote of a step of a transaction."""
    sent = frame(((3, 0), 2**32, None, failure, None) if is_vote else failure)
    ((node, [(place, mark, arrived)]),) = pickle.loads(pickle.dumps(fit_to_travel(sent))).parts
    assert (node, place, mark) == (5, (3, 0, 1), 2)
    if is_vote:
        *rest, arrived, value = arrived
        assert (*rest, value) == ((3, 0), 2**32, None, None)
    assert (arrived.problem, arrived.global_time) == ("raised", (3, 0))
    return arrived


def error(payload: Any) -> FunctionError:
    return FunctionError("raised", step="map", function="f", global_time=(3, 0), payload=payload)


@pytest.mark.parametrize("is_vote", [False, True])
def test_an_error_shows_a_payload_that_cannot_travel(is_vote: bool) -> None:
    arrived = travelled(error(n for n in range(3)), is_vote)
    assert arrived.payload.startswith("<generator object")


@pytest.mark.parametrize("is_vote", [False, True])
def test_an_error_keeps_a_payload_however_deep_it_is(is_vote: bool) -> None:
    payload: list[Any] = []
    for _ in range(5_000):
        payload = [payload]
    arrived = travelled(error(payload), is_vote).payload
    levels = 0
    while arrived:
        (arrived,) = arrived
        levels += 1
    assert levels == 5_000


def test_a_payload_that_cannot_travel_ends_the_query() -> None:
    with pytest.raises(EmberflowError, match=r"time=3 front=0 cannot travel .*<generator"):
        fit_to_travel(frame((1, (n for n in range(3)))))
