"""`check_front`: the rules of the contract of fronts, each checked on a front of a user's own.

Guarantee: a front that passes gives a live query what it relies on, as far as a source that does not
change can show. That a source keeps its elements until they are part of a cut is for the user to see
to.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from emberflow.errors import InputError, shortened
from emberflow.fronts.protocol import Element, Front, FrontContract, Malformed, front_contract
from emberflow.testing.reading import Reading, Taken
from emberflow.testing.rules import ContractError, chosen_rules, kept, travelled
from emberflow.values.item import TIME_MAX, TIME_MIN
from emberflow.values.times import DEFAULT_UNIT, Time, number_of

#: By name, what a front has to keep. They are checked in this order.
FRONT_RULES: Mapping[str, str] = {
    "members": "partitions, read and each optional member are what the contract says",
    "check": "check() returns where the source can be reached",
    "elements": "readers give Element, Batch, Idle or None, and do not raise",
    "promises": "only a front with promises = True gives an Idle",
    "waiting": "a reader yields None at least once a second while it waits, and can be closed",
    "payloads": "all elements of the source come, once and in its order",
    "times": "times are ints of 64 bits or datetimes; with arrival = True there are none",
    "positions": "positions can be pickled, and no two in a partition are equal",
    "replay": "reading again gives the same elements again, unless replayable = False",
    "resume": "reading from a position gives exactly the elements behind it; with promises = True, their times may differ",
    "batches": "read_batches gives the same elements as read",
    "travel": "a front can be pickled, and gives the same elements at a worker",
}

#: How many positions of a partition reading is resumed from.
_POSITIONS_MAX = 20


def check_front(
    make_front: Callable[[], Front],
    *,
    payloads: Sequence[Any] | Mapping[int, Sequence[Any]] | None = None,
    times: Sequence[Time | None] | Mapping[int, Sequence[Time | None]] | None = None,
    rules: Collection[str] | None = None,
    seconds: float = 5.0,
) -> list[str]:
    """Hold a front to its contract; raise `ContractError` if it breaks a rule of `FRONT_RULES`.

    ``make_front`` makes the front anew for each rule, over a source that stays as it is: with several
    elements, or there is little to check. ``payloads`` is what the source has, by partition if there
    are several; ``times`` are the times of its elements. Give ``payloads`` for a front that waits for
    more: the check then knows when it has read all, and otherwise waits for ``seconds`` each time.
    ``seconds`` is also how long a reader may block. ``rules`` names the rules to check, by default all.

    Returns the names of the rules that were checked. Those that do not apply are left out: ``replay``
    and ``resume`` where ``replayable = False``, ``batches`` without ``read_batches``, ``payloads``
    where none are given.

    >>> from emberflow import fronts
    >>> "resume" in check_front(lambda: fronts.Iterable(["a", "b"]), payloads=["a", "b"])
    True
    >>> check_front(lambda: fronts.Iterable(["a", "b"]), payloads=["b", "a"])
    Traceback (most recent call last):
    emberflow.testing.rules.ContractError: the rule 'payloads' is broken: element 0 of partition 0 has
    the payload 'a', expected 'b'.
    """
    chosen = chosen_rules(FRONT_RULES, rules)
    checks = _Checks(
        make_front, _by_partition(payloads, "payloads"), _by_partition(times, "times"), seconds
    )
    return [
        name
        for name in FRONT_RULES
        if name in chosen and getattr(checks, f"check_{name}")() is not False
    ]


def _by_partition(given: Any, argument: str) -> dict[int, list[Any]] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {partition: list(own) for partition, own in given.items()}
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(
            f"check_front({argument}=) takes a list, or a dict of lists by partition, got {given!r}."
        )
    return {0: list(given)}


class _Checks:
    """A check for each rule. One that does not apply returns False."""

    def __init__(
        self,
        make_front: Callable[[], Front],
        payloads: dict[int, list[Any]] | None,
        times: dict[int, list[Any]] | None,
        seconds: float,
    ) -> None:
        self._make_front = make_front
        self._payloads = payloads
        self._times = times
        self._seconds = seconds
        self._everything_is_read = False

    def check_members(self) -> None:
        front = kept("members", "making the front", self._make_front)
        contract = kept("members", "the contract", lambda: front_contract(front).counted(None))
        kept("members", "partitions", contract.check_partitions)
        for argument, given in (("payloads", self._payloads), ("times", self._times)):
            if given is not None and sorted(given) != list(range(front.partitions)):
                raise ContractError(
                    "members",
                    f"the front has {front.partitions} partitions, and {argument}= is for the "
                    f"partitions {sorted(given)}.",
                )

    def check_check(self) -> None:
        kept("check", "check()", self._contract().check)

    def check_elements(self) -> None:
        self._read_everything()

    def check_promises(self) -> None:
        self._read_everything()

    def _read_everything(self) -> None:
        """Read all once, both ways: reading itself finds what must not be given."""
        if not self._everything_is_read:
            contract = self._contract()
            for partition in self._partitions(contract):
                self._read(contract, partition)
                self._read(contract, partition, batches=True)
            self._everything_is_read = True

    def check_waiting(self) -> None:
        contract = self._contract()
        for partition in self._partitions(contract):
            for batches in (False, True):
                with self._reading(contract, partition, None, batches) as reading:
                    if not reading.all(contract, self._count(partition)).ended:
                        reading.naps()
                with self._reading(contract, partition, None, batches) as reading:
                    reading.next()  # and then it is closed

    def check_payloads(self) -> bool:
        if self._payloads is None:
            return False
        contract = self._contract()
        for partition, expected in self._payloads.items():
            found = self._read(contract, partition).elements
            for number, (element, payload) in enumerate(zip(found, expected, strict=False)):
                if element.payload != payload:
                    raise ContractError(
                        "payloads",
                        f"element {number} of partition {partition} has the payload "
                        f"{shortened(element.payload)}, expected {shortened(payload)}.",
                    )
            if len(found) != len(expected):
                raise ContractError(
                    "payloads",
                    f"partition {partition} gave {len(found)} elements, expected {len(expected)}. "
                    f"The {_first_of_rest(found, expected)}",
                )
        return True

    def check_times(self) -> None:
        contract = self._contract()
        for partition in self._partitions(contract):
            elements = self._read(contract, partition).elements
            for element in elements:
                self._check_time(contract, element)
            expected = None if self._times is None else self._times[partition]
            if expected is not None:
                expected = [number_of(at, contract.unit or DEFAULT_UNIT) for at in expected]
            found = [element.time for element in elements]
            if expected is not None and found != expected:
                raise ContractError(
                    "times",
                    f"the times of partition {partition} are {shortened(found)}, expected "
                    f"{shortened(expected)}.",
                )

    def _check_time(self, contract: FrontContract, element: Element) -> None:
        at = element.time
        here = f"the element at position {element.position!r} has the time {at!r}"
        if at is None:
            if contract.arrival is False and not _is_before_next(element):
                raise ContractError("times", f"{here}, and the front has arrival = False.")
            return
        if contract.arrival:
            raise ContractError(
                "times", f"{here}, and the front has arrival = True: leave the time out."
            )
        if at.__class__ is not int or not TIME_MIN <= at <= TIME_MAX:
            raise ContractError("times", f"{here}. A time is an int of 64 bits or a datetime.")

    def check_positions(self) -> None:
        contract = self._contract()
        for partition in self._partitions(contract):
            seen: list[Any] = []
            for element in self._read(contract, partition).elements:
                position = element.position
                if position is None:
                    raise ContractError(
                        "positions",
                        f"the element {shortened(element.payload)} has the position None, which "
                        f"means the beginning of the partition.",
                    )
                again = kept(
                    "positions",
                    f"pickling the position {position!r}",
                    lambda position=position: pickle.loads(pickle.dumps(position)),  # type: ignore[misc]
                )
                if again != position:
                    raise ContractError(
                        "positions",
                        f"the position {position!r} is {again!r} when it was pickled and read again.",
                    )
                if position in seen:
                    raise ContractError(
                        "positions",
                        f"two elements of partition {partition} have the position {position!r}.",
                    )
                seen.append(position)

    def check_replay(self) -> bool:
        contract = self._contract()
        if not contract.replayable:
            return False
        for partition in self._partitions(contract):
            first = self._read(contract, partition).elements
            self._compare("replay", "read again", self._read(contract, partition).elements, first)
            other = self._read(self._contract(), partition).elements
            self._compare("replay", "read by another front of the same source", other, first)
        return True

    def check_resume(self) -> bool:
        contract = self._contract()
        if not contract.replayable:
            return False
        for partition in self._partitions(contract):
            everything = self._read(contract, partition).elements
            step = max(1, -(-len(everything) // _POSITIONS_MAX))
            for number in {*range(0, len(everything), step), len(everything) - 1} - {-1}:
                position = pickle.loads(pickle.dumps(everything[number].position))
                rest = everything[number + 1 :]
                found = self._read(contract, partition, position, len(rest)).elements
                how = f"read from the position {position!r}"
                self._compare("resume", how, *self._comparable(contract, found, rest))
        return True

    def check_batches(self) -> bool:
        contract = self._contract()
        if contract.read_batches is None:
            return False
        for partition in self._partitions(contract):
            elements = self._read(self._contract(), partition).elements
            batches = self._read(self._contract(), partition, batches=True).elements
            self._compare("batches", "read by read_batches", batches, elements)
            if contract.replayable and len(elements) > 1:
                middle = len(elements) // 2
                position, rest = elements[middle].position, elements[middle + 1 :]
                found = self._read(contract, partition, position, len(rest), batches=True).elements
                how = f"read by read_batches from the position {position!r}"
                self._compare("batches", how, *self._comparable(contract, found, rest))
        return True

    def check_travel(self) -> None:
        here = self._contract()
        here.check()  # as the driver does before it sends the front
        there = front_contract(travelled("travel", here.front)).counted(None)
        if there.front.partitions != here.front.partitions:
            raise ContractError(
                "travel",
                f"the front has {here.front.partitions} partitions, and {there.front.partitions} at "
                f"a worker.",
            )
        for partition in self._partitions(here):
            expected = self._read(self._contract(), partition).elements
            self._compare(
                "travel", "read at a worker", self._read(there, partition).elements, expected
            )

    # Reading.

    def _contract(self) -> FrontContract:
        return front_contract(self._make_front()).counted(None)

    def _partitions(self, contract: FrontContract) -> range:
        return range(contract.front.partitions)

    def _count(self, partition: int) -> int | None:
        return None if self._payloads is None else len(self._payloads.get(partition, ()))

    def _read(
        self,
        contract: FrontContract,
        partition: int,
        position: Any = None,
        expected: int | None = None,
        *,
        batches: bool = False,
    ) -> Taken:
        count = self._count(partition) if position is None else expected
        with self._reading(contract, partition, position, batches) as reading:
            return reading.all(contract, count)

    def _reading(
        self, contract: FrontContract, partition: int, position: Any, batches: bool
    ) -> Reading:
        read = contract.reading if batches else contract.read
        where = f"{read.__name__}({partition}, {position!r})"
        return Reading(lambda: read(partition, position), where, self._seconds)

    def _comparable(
        self, contract: FrontContract, *given: list[Element]
    ) -> Iterator[list[Element]]:
        """Elements read from a position, without times where the query has those in its log."""
        for elements in given:
            yield (
                [element._replace(time=None) for element in elements]
                if contract.promises
                else elements
            )

    def _compare(self, rule: str, how: str, found: list[Element], expected: list[Element]) -> None:
        for number, (one, other) in enumerate(zip(found, expected, strict=False)):
            if one != other:
                raise ContractError(
                    rule,
                    f"{how}, element {number} is {shortened(one)}, expected {shortened(other)}.",
                )
        if len(found) != len(expected):
            raise ContractError(
                rule,
                f"{how}, there are {len(found)} elements, expected {len(expected)}. The "
                f"{_first_of_rest(found, expected)}",
            )


def _first_of_rest(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """The first that only one of two lists has, in words."""
    common = min(len(found), len(expected))
    if len(found) > common:
        return f"first too many: {shortened(found[common])}."
    return f"first that is missing: {shortened(expected[common])}."


def _is_before_next(element: Element) -> bool:
    """Whether an element is malformed, and takes its place from the next element."""
    return isinstance(element.payload, Malformed) and element.payload.before_next
