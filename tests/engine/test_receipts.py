"""Who holds a barrier need not ask whether what has come to it has come."""

from __future__ import annotations

import pytest

import emberflow as ef
from emberflow.engine.progress import tables as tables_module
from tests.engine.fake_link import FakeLink, on_fake_link

NUMBERS = range(10)


def begun() -> FakeLink:
    """Worker 0 reads, and worker 1 holds the barrier. The acker has heard all that worker 0 did."""
    flow = ef.Flow("elsewhere")
    numbers = flow.front("in")
    numbers.sink("here")
    numbers.sink("there")
    link = on_fake_link(flow, 2)
    for number in NUMBERS:  # a frame each
        link.enter("in", (number, number))
    link.finish("in")
    while link.acks[0]:
        link.deliver_ack(0)
    return link


@pytest.fixture
def link() -> FakeLink:
    return begun()


def told(link: FakeLink) -> None:
    while link.progresses[1]:
        link.deliver_progress(1)


def received(link: FakeLink, frames: int) -> None:
    for _ in range(frames):
        link.deliver_frame(0, 1)


def sink_of(link: FakeLink) -> str:
    (sink,) = [name for name, node in link.graph.sinks.items() if node.id % 2 == 1]
    return sink


def test_what_comes_after_the_progress_is_let_out_when_it_comes(link: FakeLink) -> None:
    told(link)
    assert not link.released_to(sink_of(link))
    for number in NUMBERS:
        received(link, 1)
        assert link.released_to(sink_of(link)) == list(range(number + 1))
    assert link.acker.progress.of_range(1) == (0, 0), "it has heard nothing of it"


def test_what_came_before_the_progress_is_let_out_with_it(link: FakeLink) -> None:
    received(link, 4)
    assert not link.released_to(sink_of(link))
    told(link)
    assert link.released_to(sink_of(link)) == [0, 1, 2, 3]


def test_what_the_acker_has_heard_of_does_not_count_twice(link: FakeLink) -> None:
    received(link, 4)
    for _ in range(2):
        link.deliver_ack(1)
    told(link)
    assert link.released_to(sink_of(link)) == [0, 1, 2, 3]
    received(link, 6)
    link.drain()
    assert link.released_to(sink_of(link)) == list(NUMBERS)
    assert link.acker.entries == 0


def test_where_there_is_too_much_to_tell_the_acker_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables_module, "_ENTRIES_SENT_MAX", len(NUMBERS) - 1)
    link = begun()
    told(link)
    received(link, len(NUMBERS))
    assert not link.released_to(sink_of(link))
    link.drain()
    assert link.released_to(sink_of(link)) == list(NUMBERS)
    assert link.acker.entries == 0
