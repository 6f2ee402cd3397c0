"""The contract of fronts and sinks: what they may leave out, and what is refused, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import emberflow
from emberflow import InputError
from emberflow.fronts.protocol import Element, FrontContract, front_contract
from emberflow.sinks.protocol import SinkContract, sink_contract
from emberflow.values.members import declared

SOURCE = Path(emberflow.__file__).parent


class Numbers:
    """A front with nothing but what is required."""

    partitions = 1

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        yield Element(0, "a")


class Printed:
    """A sink with nothing but what is required."""

    def open(self, partition: int) -> Any:
        return self


def front_with(**members: Any) -> Any:
    return type("Numbers", (Numbers,), members)()


def sink_with(**members: Any) -> Any:
    return type("Printed", (Printed,), members)()


def test_a_front_needs_partitions_and_read_alone() -> None:
    contract = front_contract(Numbers())
    assert (contract.replayable, contract.arrival, contract.promises) == (True, None, False)
    assert contract.reading == contract.read
    contract.check()
    contract.look_again()
    assert contract.ending() is contract.front
    assert contract.chooses  # nobody knows yet whether its elements have times


def test_a_sink_needs_open_alone() -> None:
    contract = sink_contract(Printed())
    assert (contract.on_driver, contract.places, contract.retry_seconds) == (False, False, 30)
    contract.check()


def test_what_an_adapter_has_comes_before_the_default() -> None:
    def read_batches(self: Any, partition: int, position: Any) -> Iterator[Any]:
        yield from ()

    contract = front_contract(front_with(arrival=False, read_batches=read_batches, until_end=False))
    assert not contract.chooses
    assert contract.reading == contract.front.read_batches  # type: ignore[attr-defined]
    ending: Any = contract.ending()
    assert (ending.until_end, contract.until_end) == (True, False)
    assert sink_contract(sink_with(retry_seconds=0)).retry_seconds == 0


@pytest.mark.parametrize(
    ("front", "problem"),
    [
        ([1, 2], "[1, 2] has no partitions, read. See help(emberflow.fronts)."),
        (Numbers, "Numbers is a class. Make an object of it: Numbers(...)."),
        (front_with(partitions=0), "Numbers.partitions is an int of at least 1, got 0."),
        (front_with(partitions=True), "Numbers.partitions is an int of at least 1, got True."),
        (front_with(partitions=None), "Numbers.partitions is an int of at least 1, got None."),
        (front_with(read=None), "Numbers.read is a method that takes (partition, position), got"),
        (front_with(read=lambda self: []), "Numbers.read is a method that takes (partition, pos"),
        (front_with(replayable="no"), "Numbers.replayable is True or False, got 'no'."),
        (front_with(arrival=0), "Numbers.arrival is True or False, got 0."),
        (front_with(check="now"), "Numbers.check is a method that takes (), got 'now'."),
        (front_with(passed=lambda *_: None), "has only one of passed and trim"),
    ],
)
def test_a_front_that_breaks_it_is_named_with_what_is_expected(front: Any, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as raised:
        front_contract(front, "front 'docs'")
    assert str(raised.value).startswith("front 'docs': ")


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ("folder", "'folder' has no open. See help(emberflow.sinks)."),
        (sink_with(open=lambda self: None), "Printed.open is a method that takes (partition), got"),
        (sink_with(retry_seconds="5"), "retry_seconds is a number of seconds, 0 or more, got '5'."),
        (sink_with(retry_seconds=-1), "retry_seconds is a number of seconds, 0 or more, got -1."),
        (sink_with(retry_seconds=float("nan")), "seconds, 0 or more, got nan."),
        (sink_with(on_driver=1), "Printed.on_driver is True or False, got 1."),
        (sink_with(on_driver=True, places=True), "on_driver = True and places = True"),
    ],
)
def test_a_sink_that_breaks_it_is_named_with_what_is_expected(sink: Any, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as raised:
        sink_contract(sink, "sink 'words'")
    assert str(raised.value).startswith("sink 'words': ")


def test_the_number_of_partitions_is_asked_for_only_when_it_is_needed() -> None:
    """A property may have to ask a server, which is too early when a query is put together."""
    asked = []

    class Remote(Numbers):
        @property
        def partitions(self) -> int:  # type: ignore[override]
            asked.append(1)
            return 0

    contract = front_contract(Remote(), "front 'docs'")
    assert not asked
    with pytest.raises(
        InputError, match=r"front 'docs': Remote.partitions is an int of at least 1"
    ):
        contract.check_partitions()


def test_members_that_a_class_makes_up_are_members() -> None:
    class Wrapper:
        """Adds nothing to the front that it holds."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    assert not front_contract(Wrapper(front_with(replayable=False))).replayable


def test_nobody_asks_an_adapter_itself_what_it_has() -> None:
    members = {"partitions", "open", *declared(FrontContract), *declared(SinkContract)}
    asks = re.compile(r"\b(?:getattr|hasattr)\(\s*[\w.\[\]]+,\s*\"(\w+)\"")
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]}"
        for path in SOURCE.rglob("*.py")
        for match in asks.finditer(path.read_text(encoding="utf-8"))
        if match[1] in members
    ]
    assert found == []
