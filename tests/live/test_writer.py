"""Bundles are stored one after another, each once, whatever a sink does in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from emberflow import GlobalTime
from emberflow.sinks import PayloadError, SinkMovedError, StoredBundle
from emberflow.sinks.writer import UNDER_WAY_MAX, SinkFailedError, WriterThread, kept_of


class Shelf:
    """A sink that fails at random: before it stores, or after it stored and before it answers."""

    retry_seconds = 30.0

    def __init__(self, faults: Iterator[str]) -> None:
        self.faults = faults
        self.held: list[StoredBundle] = []
        self.opened = 0

    def open(self, partition: int) -> Shelf:
        self.opened += 1
        if next(self.faults) == "cannot open":
            raise OSError("no route to the shelf")
        return self

    def last(self) -> GlobalTime | None:
        return self.held[-1].last if self.held else None

    def store(self, bundle: StoredBundle) -> None:
        fault = next(self.faults)
        if fault == "before":
            raise OSError("the shelf is gone")
        self.held.append(bundle)
        if fault == "after":
            raise OSError("the shelf has gone quiet")

    def close(self) -> None:
        pass


def bundle(number: int) -> StoredBundle:
    return StoredBundle("out", 0, GlobalTime(number, 0), [number])


def store(writer: WriterThread, stored: StoredBundle) -> None:
    writer.store(stored)
    deadline = time.monotonic() + 60
    while not writer.stored():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_whatever_fails_each_bundle_is_stored_once_and_in_order() -> None:
    dice = Random(3)
    faults = ["", ""]  # the first open and bundle succeed, so that there is something to lose
    shelf = Shelf(
        fault
        for fault in iter(
            lambda: (
                faults.pop()
                if faults
                else dice.choices(["", "before", "after", "cannot open"], [6, 1, 1, 1])[0]
            ),
            None,
        )
    )
    writer = WriterThread(shelf, "out", 0)
    for number in range(40):
        store(writer, bundle(number))
    writer.close(5)
    assert [stored.payloads for stored in shelf.held] == [[number] for number in range(40)]
    assert shelf.opened > 5


def test_what_waits_while_a_sink_is_busy_is_stored_as_one() -> None:
    class Slow(Shelf):
        def store(self, bundle: StoredBundle) -> None:
            free.wait(60)
            super().store(bundle)

    free = threading.Event()
    shelf = Slow(never())
    writer = WriterThread(shelf, "out", 0)
    for number in range(UNDER_WAY_MAX):
        writer.store(bundle(number)._replace(places=[(number, 0)]))
    free.set()
    stored = 0
    while stored < UNDER_WAY_MAX:
        stored += writer.stored(60).total()
    writer.close(5)
    assert len(shelf.held) <= 2, (
        "the first one, if it was taken before the others came, and the rest"
    )
    assert shelf.held[-1].last == GlobalTime(UNDER_WAY_MAX - 1, 0)
    numbers = range(UNDER_WAY_MAX)
    assert [payload for held in shelf.held for payload in held.payloads] == list(numbers)
    places = [place for held in shelf.held for place in held.places or ()]
    assert places == [(number, 0) for number in numbers]


def test_nothing_is_stored_behind_a_bundle_that_could_not_be() -> None:
    class Refusing(Shelf):
        def store(self, bundle: StoredBundle) -> None:
            if not tried:
                tried.append(bundle)
                come.wait(60)  # until the next bundle waits
                raise PayloadError("a set has no JSON")
            super().store(bundle)

    tried: list[StoredBundle] = []
    come = threading.Event()
    shelf = Refusing(never())
    writer = WriterThread(shelf, "out", 0)
    for number in range(3):
        writer.store(bundle(number))
    come.set()
    with pytest.raises(SinkFailedError, match="no JSON"):
        writer.stored(60)
    writer.close(5)
    assert shelf.held == []


def never() -> Iterator[str]:
    while True:
        yield ""


def test_a_sink_that_goes_on_failing_ends_the_query_with_its_error() -> None:
    shelf = Shelf(iter(["", *["before"] * 100]))
    shelf.retry_seconds = 0.2
    writer = WriterThread(shelf, "out", 0)
    with pytest.raises(SinkFailedError, match=r"sink 'out' partition 0"):
        store(writer, bundle(0))
    writer.close(5)


@pytest.mark.parametrize("error", [PayloadError("a set has no JSON"), SinkMovedError("taken over")])
def test_what_would_come_again_is_not_tried_again(error: Exception) -> None:
    class Refusing(Shelf):
        def store(self, bundle: StoredBundle) -> Any:
            raise error

    shelf = Refusing(never())
    writer = WriterThread(shelf, "out", 0)
    with pytest.raises((SinkFailedError, SinkMovedError), match=str(error)):
        store(writer, bundle(0))
    writer.close(5)
    assert shelf.opened == 1


def test_a_sink_that_another_writer_has_stored_in_is_left_to_it() -> None:
    shelf = Shelf(iter(["", "", "before", *[""] * 9]))
    writer = WriterThread(shelf, "out", 0)
    store(writer, bundle(0))
    shelf.held.append(bundle(2))
    with pytest.raises(SinkMovedError, match="work of another writer"):
        store(writer, bundle(3))
    writer.close(5)


def test_a_writer_of_several_partitions_goes_on_only_if_all_of_them_stay() -> None:
    """Another worker that opens one of them shuts the writer out."""
    alone, together = (WriterThread(Shelf(iter([""])), name, 0) for name in ("alone", "together"))
    left = {("alone", 0): alone, ("together", 0): together, ("together", 2): together}
    stays = {("alone", 0), ("together", 0), ("new", 1)}
    assert kept_of(left, stays) == {("alone", 0): alone}
    assert kept_of(left, {*stays, ("together", 2)}) == left
    for writer in (alone, together):
        writer.close(5)
