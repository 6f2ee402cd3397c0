"""Elements that a user passes to an in-memory runner: checked, and given their global times.

They come as a list or an iterator, or as a front that ends (`fronts.Iterable`, or one with
``until_end=True``). A list has no late elements: it is sorted. A front is read to its end, partition by
partition, and its rule of event time finds what is late, exactly as in a live query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from emberflow.engine.messages import Moment
from emberflow.engine.progress.event_time import Attached, LateBy, Stamper, parts_of, problem_of
from emberflow.errors import EmberflowError, FunctionError, InputError, Late, shortened
from emberflow.fronts.protocol import (
    FrontContract,
    Malformed,
    front_contract,
    is_front,
    only_elements,
)
from emberflow.graph.nodes import Front, Graph, with_late_sink, with_unit
from emberflow.values.event_time import EventTime, promised_time
from emberflow.values.functions import UserFunction, blamed
from emberflow.values.item import TIE, TIME_MIN, At, GlobalTime, front_index, is_time
from emberflow.values.times import DEFAULT_UNIT, TimeError, counted_time

#: An element with its global time and its front. It may be one of the classes below instead.
Entry: TypeAlias = tuple[GlobalTime, Front, Any]


class LateElement(NamedTuple):
    """Among elements: one that is late, on its way to the late sink."""

    record: Late


class MalformedElement(NamedTuple):
    """Among elements: a record that is none. It has its place ahead of the element of its global time."""

    problem: str
    payload: Any
    number: int


def with_checked_watermark(
    rule: EventTime, failed: Callable[[Any, Exception], Exception]
) -> EventTime:
    """The rule, with a watermark that is asked about elements alone: malformed records promise nothing.

    ``failed`` gives the error to raise where the user's function raises one for a payload, or returns
    what is no time.
    """
    watermark = rule.watermark
    if watermark is None:
        return rule

    def promised_by(payload: Any) -> int | None:
        if payload.__class__ is Malformed:
            return None
        try:
            told = watermark(payload)
            return None if told is None else promised_time(told, payload, rule.unit)
        except Exception as error:
            raise failed(payload, error) from error

    return rule._replace(watermark=promised_by)


def watermark_failed(
    front: Front, rule: EventTime, at: Moment, payload: Any, error: Exception
) -> EmberflowError:
    """The error of a watermark function that raised one, or returned what is no time."""
    if isinstance(error, InputError):
        return InputError(f"front {front.name!r}: {error}")
    assert rule.watermark is not None
    return FunctionError(
        f"the watermark function of front {front.name!r} raised {type(error).__qualname__}: {error}",
        step=str(front),
        function=blamed(error, (UserFunction("watermark", rule.watermark),)),
        global_time=at,
        payload=payload,
    )


def no_time(front: str, position: Any, at: Any) -> str:
    """The problem of an element whose time is none."""
    return (
        f"front {front!r} gave an element of time {at!r} at position {position!r}. A time is an int of "
        f"64 bits or a datetime."
    )


def graph_for(graph: Graph, elements: Mapping[str, Any]) -> Graph:
    """The graph, with a sink for late elements if one of the fronts diverts them, and with a unit."""
    contracts = [front_contract(given) for given in elements.values() if is_front(given)]
    graph = with_unit(graph, (contract.own_unit for contract in contracts))
    diverts = any(contract.event_time.on_late == "divert" for contract in contracts)
    return with_late_sink(graph) if diverts else graph


def timed_elements(graph: Graph, elements: Mapping[str, Iterable[Any]]) -> Iterator[Entry]:
    """All elements of all fronts in the order of their global times.

    A list is sorted by time, so its elements may be given in any order; elements of equal times stay in
    the order of the list. An iterator is read lazily, one element at a time, so it has to be in order
    itself.
    """
    check_names(graph, elements)
    return merge(
        *(
            timed
            for name, front in graph.fronts.items()
            for timed in (
                timed_partitions(front, elements[name], len(graph.fronts))
                if is_front(elements[name])
                else [_timed(front, elements[name])]
            )
        ),
        key=itemgetter(0),
    )


def _timed(front: Front, elements: object) -> Iterator[Entry]:
    if not isinstance(elements, Iterable):
        raise InputError(
            f"front {front.name!r} takes an iterable of elements, got {shortened(elements)}."
        )
    numbered: Iterator[tuple[int, int, Any]] = (
        _with_time(front, *entry) for entry in enumerate(elements)
    )
    if isinstance(elements, Sequence):
        numbered = iter(sorted(numbered, key=itemgetter(0)))
    return _in_order(front, numbered)


def timed_partitions(front: Front, given: Any, fronts: int) -> list[Iterator[Entry]]:
    """The elements of each partition of a front, to its end; ``fronts`` is how many the flow has."""
    contract = front_contract(given, f"front {front.name!r}")
    ending = front_contract(contract.ending(), f"front {front.name!r}").counted(front.unit)
    return [
        _stamped(front, ending, partition, front_index(front.index, fronts, partition))
        for partition in range(given.partitions)
    ]


def _stamped(front: Front, contract: FrontContract, partition: int, index: int) -> Iterator[Entry]:
    """The elements of a partition, by its rule of event time."""
    if contract.arrival is True:
        raise InputError(
            f"front {front.name!r} gives its elements the times of their arrival, which only a live query "
            f"has. Say which field of the payload is its time, or which function of it, with time=; or "
            f"pass a list: element i of a list has time i."
        )
    records = ((*element, None) for element in only_elements(contract.read(partition, None)))
    return stamped_records(front, contract.event_time, partition, index, records)


def stamped_records(
    front: Front,
    rule: EventTime,
    partition: int,
    index: int,
    records: Iterable[tuple[Any, Any, Any, int | None]],
) -> Iterator[Entry]:
    """The records of a partition as elements, by a rule of event time.

    A record is its position, payload and time, and the promise that was in force when it was read, if a
    query chose one.
    """

    def failed(payload: Any, error: Exception) -> Exception:
        return watermark_failed(front, rule, (stamper.promised, index), payload, error)

    stamper = Stamper(index, with_checked_watermark(rule, failed))
    held: list[Any] = []
    #: The time of the last record that has left. What is malformed behind it comes after it.
    last = TIME_MIN - 2

    def put_aside(at: GlobalTime, things: Sequence[Any]) -> Iterator[Entry]:
        for number, thing in enumerate(things, -len(things)):
            problem, shown = problem_of(thing, front.name, partition, rule.ahead)
            yield at, front, MalformedElement(problem, shown, number)

    def leaves(moment: Sequence[int], given: Any) -> Iterator[Entry]:
        nonlocal last
        last, at = moment[0], GlobalTime(*moment)
        things, late, payload = parts_of(given)
        yield from put_aside(at, things)
        if payload.__class__ is Malformed:
            yield at, front, MalformedElement(payload.problem, payload.raw, 0)
        elif late is None or rule.on_late == "admit":
            yield at, front, payload
        elif rule.on_late == "fail":
            raise InputError(f"front {front.name!r}: {late.told(partition, rule.disorder)}")
        elif rule.on_late == "divert":
            yield at, front, LateElement(late.record(front.name, partition))

    def all_that_leave() -> Iterator[Entry]:
        while (stamped := stamper.take()) is not None:
            for moment, _, payload in stamped.items(index):
                yield from leaves(moment, payload)

    for position, payload, at, promised in records:
        if promised is not None:
            stamper.raise_to(promised)
        malformed: tuple[str, Any] | None = None
        if isinstance(payload, Malformed):
            if payload.before_next or not is_time(at):
                malformed = (payload.problem, payload.raw)
        elif not is_time(at):
            malformed = (no_time(front.name, position, at), payload)
        if malformed is not None and rule.waits:
            stamper.attach(malformed)
        elif malformed is not None:
            held.append(malformed)
        elif rule.waits:
            stamper.add(position, payload, at)
            yield from all_that_leave()
        else:
            moment, is_late = stamper.stamp(at)
            entry = LateBy(at, moment[0], position, payload) if is_late else payload
            if held:
                entry, held = Attached(tuple(held), entry), []
            yield from leaves(moment, entry)
    held += stamper.end()
    yield from all_that_leave()
    end = max(last + 1, stamper.promised)
    yield from put_aside(GlobalTime(end if end >= TIME_MIN else 0, index), held)


def _with_time(front: Front, number: int, element: Any) -> tuple[int, int, Any]:
    if not isinstance(element, At):
        return number, number, element
    try:
        return counted_time(element.time, front.unit or DEFAULT_UNIT), number, element.payload
    except TimeError as error:
        raise InputError(
            f"front {front.name!r}: element {number}, {shortened(element)}, has the time "
            f"{element.time!r}. {error}"
        ) from None


def _in_order(front: Front, numbered: Iterator[tuple[int, int, Any]]) -> Iterator[Entry]:
    last, last_number, place = TIME_MIN - 1, 0, front.index
    for time, number, payload in numbered:
        if time < last:
            raise InputError(
                f"front {front.name!r}: element {number}, {shortened(payload)}, has the time "
                f"{time} and comes after element {last_number} of time {last}. An iterator gives its "
                f"elements in the order of their times (an element without At has its number for a "
                f"time). Give a list, which is sorted, or a front: fronts.Iterable(..., disorder=...)."
            )
        place = place + TIE if time == last else front.index
        last, last_number = time, number
        yield GlobalTime(time, place), front, payload


def check_names(graph: Graph, elements: Mapping[str, Any]) -> None:
    """Check that every front has elements, and that every name is the name of a front."""
    fronts = ", ".join(map(repr, graph.fronts))
    for name in elements:
        if name not in graph.fronts:
            raise InputError(f"flow {graph.flow!r} has no front {name!r}; its fronts are {fronts}.")
    for name in graph.fronts:
        if name not in elements:
            raise InputError(
                f"flow {graph.flow!r}: no elements for front {name!r}. "
                f"Pass {name}=[...], an empty list for none; the fronts are {fronts}."
            )
