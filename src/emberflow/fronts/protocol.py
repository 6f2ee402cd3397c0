"""What a front is: the protocol that a live query reads elements by, and its contract.

A front has two required members, `Front.partitions` and `Front.read`. Everything else is optional.
`FrontContract` lists the optional members, with their types, defaults and meanings, and
`front_contract` finds them on a front and checks them. The rest of the package asks a contract, never
the front itself, whether it has a member.

``docs/adapters.md`` shows how to write a front, and `emberflow.testing.check_front` tests one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any, NamedTuple, Protocol

from emberflow.errors import EmberflowError, InputError
from emberflow.values.event_time import IN_ORDER, EventTime
from emberflow.values.members import (
    COUNT,
    FLAG,
    Kind,
    check_member,
    has_member,
    members_of,
    method,
    nothing,
)
from emberflow.values.times import (
    DEFAULT_UNIT,
    Duration,
    Time,
    Unit,
    counted_duration,
    is_unit,
    number_of,
)

RULE = Kind("an EventTime", lambda given: isinstance(given, EventTime))
UNIT = Kind("'s', 'ms' or 'us'", is_unit)


class Element(NamedTuple):
    """A payload, the position it was read at, and its time, a number or a datetime.

    An element whose ``time`` is None gets the time of its arrival, in milliseconds.
    """

    position: Any
    payload: Any
    time: Time | None = None


class Batch(NamedTuple):
    """Elements as columns: a tenth of the cost of as many `Element`.

    ``times`` are numbers or datetimes, or None when all elements get the time of their arrival. The query
    reads and slices the columns and never changes them, so a `range` may be a column.

    >>> Batch(range(3), ["a", "b", "c"], range(3)).part(1, 3)
    Batch(positions=range(1, 3), payloads=['b', 'c'], times=range(1, 3))
    """

    positions: Sequence[Any]
    payloads: Sequence[Any]
    times: Sequence[Any] | None = None

    def part(self, begin: int, end: int) -> Batch:
        times = None if self.times is None else self.times[begin:end]
        return Batch(self.positions[begin:end], self.payloads[begin:end], times)


class Idle(NamedTuple):
    """A promise: the source has nothing now, and no later element gets a time below ``until``.

    Only a front with ``promises = True`` may give one. The source knows nothing of a promise, so the
    query writes the promise to the front's log before it relies on it. An element that comes later with
    a lower time is late.

    The query reserves ``ahead`` beyond a promise when it writes one to the log. Promises within the
    reservation, those of the next second or so, are not written again.
    """

    until: Time
    ahead: Duration = 1_000


def only_elements(reading: Iterator[Any]) -> Iterator[Element]:
    """What a front reads, without its pauses and promises.

    >>> list(only_elements(iter([None, Element(0, "a"), Idle(7)])))
    [Element(position=0, payload='a', time=None)]
    """
    return (given for given in reading if given.__class__ is not Idle and given is not None)


class FrontGrewError(EmberflowError):
    """A reader raises this when its source has more partitions than the query reads.

    The query then begins its next life, which reads all partitions.
    """


class Malformed(NamedTuple):
    """The payload of an element that could not be decoded: what was read, and what is wrong with it.

    The query decides what happens. By default it ends with ``problem``. With ``onError`` set to
    ``"divert"``, the errors sink gets ``raw`` and the query reads on.

    A malformed element of a front whose elements get the time of their arrival gets one as well.
    Where elements have times of their own, a malformed element has none that can be trusted. Then
    ``before_next = True`` says that it has the place just before the next element of the source.
    """

    raw: str
    problem: str
    before_next: bool = False


class Front(Protocol):
    """What every front has. `FrontContract` lists what a front may have besides."""

    @property
    def partitions(self) -> int:
        """How many partitions the source has, at least 1. A worker reads each by itself."""

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        """The elements of a partition behind a position; from the beginning if that is None.

        A thread of a worker runs the iterator. It yields ``None`` when there is nothing to read now,
        at least once a second, so that the thread can stop. It returns when the source has ended for
        good, and raises when reading cannot go on, which ends the query.

        A position can be pickled, and two elements of a partition never have equal ones. Times, where
        they are given, are ints of 64 bits or datetimes. They may be equal, and may go back by as much
        as `FrontContract.event_time` says.
        """


@dataclass(frozen=True, slots=True)
class FrontContract:
    """A front, and each optional member as it has it, or with its default."""

    front: Front
    #: Whose front it is, for messages: ``"front 'docs'"``.
    where: str

    read: Annotated[Callable[[int, Any], Iterator[Any]], method("partition", "position")]

    #: Whether reading again from a position gives the same elements again. If it does not, the query
    #: keeps the payloads in the front's log.
    replayable: Annotated[bool, FLAG] = True

    #: True: no element has a time of its own, so that an idle front can promise the present before
    #: its first element. False: every element has one. None: the first elements will tell.
    arrival: Annotated[bool | None, FLAG] = None

    #: Whether the front may give an `Idle`. Then the query notes the times of all its elements, and
    #: reading again from a position need not give the same times again.
    promises: Annotated[bool, FLAG] = False

    #: How far elements with times of their own may be out of order, and what happens to late ones.
    event_time: Annotated[EventTime, RULE] = IN_ORDER

    #: What a front counts in that makes numbers of all datetimes itself. It must be the flow's unit. None:
    #: the query makes numbers of the datetimes that the front gives, and looks at each element for it.
    unit: Annotated[Unit | None, UNIT] = None

    #: Whether times always increase within a partition. Then the front promises t + 1 after an element of
    #: time t, and a window that ends there closes at once. Otherwise another element of time t may come.
    increasing: Annotated[bool, FLAG] = False

    #: Whether reading ends where the source ends now, instead of waiting for more. `emberflow.front_log`
    #: sets it on a copy of a front that has it.
    until_end: Annotated[bool | None, FLAG] = None

    #: As `read`, and may also give a `Batch` or an `Idle`. The query prefers it to `read`: an object
    #: for each element is most of what reading costs.
    read_batches: Annotated[
        Callable[[int, Any], Iterator[Any]] | None, method("partition", "position")
    ] = None

    #: Raises `InputError` if the source cannot be reached. The driver calls it before a query starts.
    check: Annotated[Callable[[], None], method()] = nothing

    #: Asks the source again how many partitions it has. The driver calls it after `FrontGrewError`.
    look_again: Annotated[Callable[[], None], method()] = nothing

    #: Gives the front as one of a live query: of this node of the graph, with this
    #: ``checkpointLocation`` (None if there is none). For a front that keeps its elements itself.
    placed: Annotated[Callable[[Any, str | None], Any] | None, method("node", "checkpoint")] = None

    #: Hears up to which position the newest cut has the elements. A front with `passed` has `trim`.
    passed: Annotated[Callable[[int, Any], None] | None, method("partition", "position")] = None

    #: Hears up to which position no cut needs the elements any more.
    trim: Annotated[Callable[[int, Any], None] | None, method("partition", "position")] = None

    #: Gives the service that the query's bridge offers to other processes
    #: (`emberflow.runners.live.serving.bridge`).
    service: Annotated[Callable[[], Any] | None, method()] = None

    def counted(self, unit: Unit | None) -> FrontContract:
        """The contract within a flow of this unit: times that are read and the rule have only numbers.

        Raises `InputError` if the front counts in another unit. None is the unit of a flow that has none.
        """
        if unit is not None and self.own_unit not in (None, unit):
            if self.arrival is True:
                raise InputError(
                    f"{self.where}: its elements get the time of their arrival, in ms, and the flow counts "
                    f"in {unit}. Give the elements times of their own, or leave out unit= of the flow."
                )
            raise InputError(
                f"{self.where} counts in {self.unit}, and the flow in {unit}. Both have a parameter unit=: "
                f"say the same for both."
            )
        own = self.unit or unit or DEFAULT_UNIT
        counted = replace(self, event_time=self.event_time.counted(own, f"{self.where}: EventTime"))
        if self.unit is not None:
            return counted
        batches = self.read_batches
        return replace(
            counted,
            read=_counting(self.read, own),
            read_batches=None if batches is None else _counting(batches, own),
        )

    def check_partitions(self) -> None:
        """Raise `InputError` if the number of partitions is none. The front may ask its source."""
        count = self.front.partitions
        check_member(FrontContract, self.front, self.where, "partitions", COUNT, count)

    @property
    def reading(self) -> Callable[[int, Any], Iterator[Any]]:
        """`read_batches` where the front has it, else `read`."""
        return self.read if self.read_batches is None else self.read_batches

    @property
    def own_unit(self) -> Unit | None:
        """What its times are counted in, if that is known."""
        return DEFAULT_UNIT if self.arrival is True else self.unit

    @property
    def chooses(self) -> bool:
        """Whether the front may choose what its source does not know, so that it needs a journal."""
        return not self.replayable or self.arrival is not False or self.promises

    def ending(self) -> Front:
        """The front, or a copy of it that ends where its source ends now."""
        if self.until_end is None:
            return self.front
        front: Any = copy.copy(self.front)
        front.until_end = True
        return front  # type: ignore[no-any-return]


def is_front(given: object) -> bool:
    """Whether an object has what every front has, and so is no list or iterator of elements."""
    return has_member(given, "read") and has_member(given, "partitions")


def front_contract(front: Any, where: str = "a front") -> FrontContract:
    """The contract of a front. Raises `InputError` that begins with ``where`` if it has none.

    >>> class Numbers:
    ...     partitions = 1
    ...
    ...     def read(self, partition, position):
    ...         yield Element(0, "a")
    >>> front_contract(Numbers()).replayable
    True
    >>> Numbers.replayable = "no"
    >>> front_contract(Numbers(), "front 'numbers'")
    Traceback (most recent call last):
    emberflow.errors.InputError: front 'numbers': Numbers.replayable is True or False, got 'no'. See
    help(emberflow.fronts).
    """
    found = members_of(FrontContract, front, where, required=("partitions", "read"))
    contract = FrontContract(front, where, **found)
    if not hasattr(inspect.getattr_static(front, "partitions", property()), "__get__"):
        contract.check_partitions()  # a property is left alone: it may have to ask a server
    if (contract.passed is None) is not (contract.trim is None):
        raise InputError(
            f"{where}: {type(front).__qualname__} has only one of passed and trim. A front that keeps "
            f"its elements itself has both: without trim it would keep them for ever."
        )
    return contract


def _counting(
    read: Callable[[int, Any], Iterator[Any]], unit: Unit
) -> Callable[[int, Any], Iterator[Any]]:
    """The method of a front that reads, with numbers for datetimes.

    What is neither stays as it is: whoever reads tells of it, with its position.
    """

    @wraps(read)
    def counted(partition: int, position: Any) -> Iterator[Any]:
        for given in read(partition, position):
            kind = given.__class__
            if kind is Element and given.time.__class__ not in _PLAIN:
                yield given._replace(time=number_of(given.time, unit))
            elif kind is Batch and given.times is not None and set(map(type, given.times)) - _PLAIN:
                yield given._replace(times=[number_of(at, unit) for at in given.times])
            elif kind is Idle:
                yield Idle(number_of(given.until, unit), counted_duration(given.ahead, unit))
            else:
                yield given

    return counted


#: What needs no counting.
_PLAIN = {int, type(None)}
