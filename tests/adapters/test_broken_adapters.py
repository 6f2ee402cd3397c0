"""Adapters that break the contract on purpose: each is caught, by the name of the rule."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from emberflow import GlobalTime, InputError, testing
from emberflow.fronts import Batch, Element, Idle, Malformed
from emberflow.sinks import PayloadError, SinkMovedError, StoredBundle
from emberflow.testing import FRONT_RULES, SINK_RULES, ContractError, SimulatedCrash

WORDS = ["ash", "ember", "flint", "spark", "tinder"]


class Right:
    """A front that keeps every rule."""

    partitions = 1
    arrival = False

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for number in range(0 if position is None else position + 1, len(WORDS)):
            yield Element(number, WORDS[number], number)

    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        begin = 0 if position is None else position + 1
        if begin < len(WORDS):
            numbers = range(begin, len(WORDS))
            yield Batch(numbers, WORDS[begin:], numbers)


class Plain(Right):
    """The same, without batches."""

    read_batches = None  # type: ignore[assignment]


class ManyPartitions(Plain):
    partitions = "several"  # type: ignore[assignment]


class OutOfReach(Plain):
    def check(self) -> None:
        raise InputError("no route to the source")


class Tuples(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield 0, "ash", 0


class Ragged(Right):
    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        yield Batch(range(5), WORDS[:4], range(5))


class Raising(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from super().read(partition, position)
        raise OSError("the end of the file is torn")


class Promising(Right):
    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        yield from super().read_batches(partition, position)
        yield Idle(100)


class Blocking(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from super().read(partition, position)
        time.sleep(60)


class Forgetful(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from itertools.islice(super().read(partition, position), 4)


class Shuffled(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(payload=WORDS[-1 - element.position])


class Fractions(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(time=element.time / 2)


class TimedArrival(Plain):
    arrival = True


class Untimed(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(time=None)


class OnePosition(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(position="here")


class LockedPositions(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(position=threading.Lock())


class NoPositions(Plain):
    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for element in super().read(partition, position):
            yield element._replace(position=None)


class Consuming(Plain):
    """What was read once is gone."""

    def __init__(self) -> None:
        self._left = list(WORDS)

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        while self._left:
            number = len(WORDS) - len(self._left)
            yield Element(number, self._left.pop(0), number)


class Including(Plain):
    """Begins at a position, not behind it."""

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from super().read(partition, None if not position else position - 1)


class Ignoring(Plain):
    """Begins at the beginning, whatever the position."""

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from super().read(partition, None)


class OtherBatches(Right):
    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        begin = 0 if position is None else position + 1
        numbers = range(begin, len(WORDS))
        yield Batch(numbers, [word.upper() for word in WORDS[begin:]], numbers)


class Locked(Plain):
    def __init__(self) -> None:
        self._lock = threading.Lock()


class LosingItsWay(Plain):
    """Has nothing to read where it was sent."""

    def __init__(self) -> None:
        self._words = list(WORDS)

    def __getstate__(self) -> dict[str, Any]:
        return {"_words": []}

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        yield from itertools.islice(super().read(partition, position), len(self._words))


BROKEN_FRONTS: list[tuple[str, type[Any], str]] = [
    ("members", ManyPartitions, "ManyPartitions.partitions is an int of at least 1, got 'several'"),
    ("check", OutOfReach, r"check\(\) raised InputError: no route to the source"),
    ("elements", Tuples, r"read\(0, None\) gave \(0, 'ash', 0\)"),
    ("elements", Ragged, "a Batch of 5 positions, 4 payloads and 5 times"),
    ("elements", Raising, "raised OSError: the end of the file is torn"),
    ("promises", Promising, r"gave Idle\(until=100, ahead=1000\), and the front has no promises"),
    ("waiting", Blocking, r"read\(0, None\) gave nothing for 0.5 s"),
    ("payloads", Forgetful, "gave 4 elements, expected 5. The first that is missing: 'tinder'"),
    ("payloads", Shuffled, "element 0 of partition 0 has the payload 'tinder', expected 'ash'"),
    ("times", Fractions, r"position 0 has the time 0.0. A time is an int"),
    ("times", TimedArrival, "has the time 0, and the front has arrival = True"),
    ("times", Untimed, "has the time None, and the front has arrival = False"),
    ("positions", OnePosition, "two elements of partition 0 have the position 'here'"),
    ("positions", LockedPositions, "pickling the position .* raised TypeError"),
    ("positions", NoPositions, "the element 'ash' has the position None"),
    ("replay", Consuming, "read again, there are 0 elements, expected 5"),
    ("resume", Including, r"read from the position \d, "),
    ("resume", Ignoring, "read from the position 0, element 0 is .*'ash'"),
    ("batches", OtherBatches, "read by read_batches, element 0 is .*'ASH'"),
    ("travel", Locked, r"Locked cannot be pickled \(TypeError"),
    ("travel", LosingItsWay, "read at a worker, there are 0 elements, expected 5"),
]


@pytest.mark.parametrize(
    ("rule", "front", "problem"),
    [pytest.param(*case, id=f"{case[0]}, {case[1].__name__}") for case in BROKEN_FRONTS],
)
def test_a_broken_front_is_caught(rule: str, front: type[Any], problem: str) -> None:
    seconds = 0.5 if front is Blocking else 30.0
    with pytest.raises(ContractError, match=problem) as raised:
        testing.check_front(front, payloads=WORDS, seconds=seconds, rules=[rule])
    assert raised.value.rule == rule
    assert f"the rule {rule!r} is broken: " in str(raised.value)
    # It is caught as well when nobody knows which rule to look at. Reading may find it earlier.
    with pytest.raises(ContractError):
        testing.check_front(front, payloads=WORDS, seconds=seconds)


def test_a_front_that_keeps_all_rules_passes() -> None:
    assert testing.check_front(Right, payloads=WORDS, times=range(5)) == list(FRONT_RULES)
    assert {rule for rule, _, _ in BROKEN_FRONTS} == set(FRONT_RULES)


def test_rules_that_do_not_apply_are_left_out() -> None:
    class Stream(Plain):
        replayable = False

    left_out = set(FRONT_RULES) - set(testing.check_front(Stream))
    assert left_out == {"payloads", "replay", "resume", "batches"}


def test_malformed_elements_have_no_time_of_their_own() -> None:
    class Damaged(Plain):
        def read(self, partition: int, position: Any) -> Iterator[Any]:
            if position is None:
                yield Element(-1, Malformed("{oops", "not JSON", before_next=True))
            yield from super().read(partition, None if position == -1 else position)

    testing.check_front(Damaged)


class Shelf:
    """A sink that keeps every rule: its partitions are in a store that outlives its writers."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        _stores[self.number] = {}

    def open(self, partition: int) -> Any:
        return ShelfWriter(self, partition)


#: What is outside of all processes, by sink; and by sink and partition, who opened it last.
_stores: dict[int, dict[int, list[StoredBundle]]] = {}
_owners: dict[tuple[int, int], object] = {}
_numbers = itertools.count()


def held(shelf: Shelf, partition: int) -> list[Any]:
    return [
        payload
        for bundle in _stores[shelf.number].get(partition, ())
        for payload in bundle.payloads
    ]


class ShelfWriter:
    def __init__(self, shelf: Shelf, partition: int) -> None:
        self.key = (shelf.number, partition)
        self.bundles = _stores[shelf.number].setdefault(partition, [])
        _owners[self.key] = self

    def last(self) -> GlobalTime | None:
        return self.bundles[-1].last if self.bundles else None

    def store(self, bundle: StoredBundle) -> None:
        if _owners[self.key] is not self:
            raise SinkMovedError("another writer has opened the partition")
        if self.bundles and bundle.last <= self.bundles[-1].last:
            raise ValueError("it is here already")
        self.checked(bundle)
        self.stored(bundle)

    def checked(self, bundle: StoredBundle) -> None:
        for payload in bundle.payloads:
            if not isinstance(payload, dict):
                raise PayloadError(f"{payload!r} is no dict")

    def stored(self, bundle: StoredBundle) -> None:
        self.bundles.append(bundle)

    def close(self) -> None:
        pass


class ShelfGroup:
    """Keeps every rule for several partitions."""

    def __init__(self, shelf: Shelf, partitions: Sequence[int]) -> None:
        self.writers = {partition: ShelfWriter(shelf, partition) for partition in partitions}

    def lasts(self) -> dict[int, GlobalTime | None]:
        return {partition: writer.last() for partition, writer in self.writers.items()}

    def store(self, bundles: Sequence[StoredBundle]) -> None:
        for bundle in bundles:
            self.writers[bundle.partition].store(bundle)

    def close(self) -> None:
        pass


class Together(Shelf):
    def open_group(self, partitions: Sequence[int]) -> Any:
        return ShelfGroup(self, partitions)


def together_with(**members: Any) -> type[Shelf]:
    """A shelf whose groups have other members."""
    group = type("BrokenGroup", (ShelfGroup,), members)
    return type(
        "BrokenShelf", (Shelf,), {"open_group": lambda self, partitions: group(self, partitions)}
    )


def store_the_first(group: Any, bundles: Sequence[StoredBundle]) -> None:
    ShelfGroup.store(group, bundles[:1])


def store_in_zero(group: Any, bundles: Sequence[StoredBundle]) -> None:
    for bundle in bundles:
        group.writers[0].store(bundle)


def store_unfenced_together(group: Any, bundles: Sequence[StoredBundle]) -> None:
    for bundle in bundles:
        group.writers[bundle.partition].stored(bundle)


def shelf_with(**members: Any) -> type[Shelf]:
    """A shelf whose writers have other members."""
    writer = type("BrokenWriter", (ShelfWriter,), members)
    return type("BrokenShelf", (Shelf,), {"open": lambda self, own: writer(self, own)})


class Impatient(Shelf):
    retry_seconds = "never"


class Closed(Shelf):
    def check(self) -> None:
        raise InputError("the shop is closed")


class WriterWithoutEnd(Shelf):
    def open(self, partition: int) -> Any:
        class Half:
            def last(self) -> None:
                return None

            def store(self, bundle: StoredBundle) -> None: ...

        return Half()


class OnePartition(Shelf):
    def open(self, partition: int) -> Any:
        return ShelfWriter(self, 0)


class Bolted(Shelf):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Moved(Shelf):
    """Stores somewhere else when it has travelled."""

    def __reduce__(self) -> Any:
        return Moved, ()


def store_backwards(writer: Any, bundle: StoredBundle) -> None:
    writer.bundles.append(bundle._replace(payloads=bundle.payloads[::-1]))


def store_one_by_one(writer: Any, bundle: StoredBundle) -> None:
    """Not all or nothing."""
    for number, payload in enumerate(bundle.payloads):
        if number == 2 and _is_crashing:
            raise SimulatedCrash
        if not isinstance(payload, dict):
            raise PayloadError(f"{payload!r} is no dict")
        writer.bundles.append(bundle._replace(payloads=[payload]))


def store_again(writer: Any, bundle: StoredBundle) -> None:
    if _owners[writer.key] is not writer:
        raise SinkMovedError("another writer has opened the partition")
    writer.stored(bundle)


def store_unfenced(writer: Any, bundle: StoredBundle) -> None:
    if writer.bundles and bundle.last <= writer.bundles[-1].last:
        raise ValueError("it is here already")
    writer.checked(bundle)
    writer.stored(bundle)


def store_fenced_by_another_error(writer: Any, bundle: StoredBundle) -> None:
    try:
        ShelfWriter.store(writer, bundle)
    except SinkMovedError as moved:
        raise OSError("not mine any more") from moved


def check_by_another_error(writer: Any, bundle: StoredBundle) -> None:
    pickle.dumps(bundle)


_is_crashing: list[bool] = []


@contextmanager
def crashing() -> Iterator[None]:
    _is_crashing.append(True)
    try:
        yield
    finally:
        _is_crashing.clear()


def die_before(writer: Any, bundle: StoredBundle) -> None:
    if _is_crashing:
        raise SimulatedCrash
    ShelfWriter.stored(writer, bundle)


class Careful(Together):
    """Dies as it should, and stores nothing of the bundle."""

    def open(self, partition: int) -> Any:
        return type("CarefulWriter", (ShelfWriter,), {"stored": die_before})(self, partition)


BROKEN_SINKS: list[tuple[str, type[Any], str]] = [
    (
        "members",
        Impatient,
        "Impatient.retry_seconds is a number of seconds, 0 or more, got 'never'",
    ),
    ("check", Closed, r"check\(\) raised InputError: the shop is closed"),
    ("writer", WriterWithoutEnd, "which has no close"),
    ("writer", shelf_with(last=lambda _: GlobalTime(0, 0)), "expected None"),
    ("order", shelf_with(stored=store_backwards), "after 2 bundles partition 0 holds"),
    (
        "order",
        shelf_with(last=lambda _: None),
        "the last time of the writer that stored it is None",
    ),
    ("order", shelf_with(stored=lambda *_: None), "is None, expected GlobalTime"),
    ("resume", shelf_with(close=lambda writer: writer.bundles.clear()), "opened later is None"),
    ("partitions", OnePartition, "the last time of partition 0, when only 1 stored, is GlobalTime"),
    ("travel", Bolted, r"Bolted cannot be pickled \(TypeError"),
    ("travel", Moved, r"after a worker stored partition 0 holds \[\]"),
    ("fence", shelf_with(store=store_unfenced), "although another writer had opened its partition"),
    ("fence", shelf_with(store=store_fenced_by_another_error), "raised OSError .* SinkMovedError"),
    ("repeat", shelf_with(store=store_again), "stored a bundle that ends at"),
    ("payload", shelf_with(checked=lambda *_: None), "was stored"),
    ("payload", shelf_with(checked=check_by_another_error), "expected sinks.PayloadError"),
    ("payload", shelf_with(store=store_one_by_one), "after the failure partition 0 holds"),
    ("crash", shelf_with(store=store_one_by_one), "half way: after the failure partition 0 holds"),
    ("crash", Shelf, "half way: the writer was to die, and stored the bundle"),
    ("group", together_with(store=store_the_first), "the last times of the writer that stored it"),
    ("group", together_with(store=store_in_zero), "storing 2 bundles raised ValueError"),
    ("group", together_with(lasts=lambda _: {0: None}), "the last times of a new group are"),
    (
        "group",
        together_with(store=store_unfenced_together),
        "a group stored a bundle although another writer had opened its partition",
    ),
]


def check(sink: type[Any], rules: list[str] | None) -> list[str]:
    crashes: dict[str, Any] = {"half way": crashing}
    return testing.check_sink(
        sink, payloads=held, unstorable=threading.Lock(), crashes=crashes, rules=rules
    )


@pytest.mark.parametrize(
    ("rule", "sink", "problem"),
    [pytest.param(*case, id=f"{case[0]}, {case[2]}") for case in BROKEN_SINKS],
)
def test_a_broken_sink_is_caught(rule: str, sink: type[Any], problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as raised:
        check(sink, [rule])
    assert raised.value.rule == rule
    with pytest.raises(ContractError):
        check(sink, None)


def test_a_sink_that_keeps_all_rules_passes() -> None:
    assert check(Careful, None) == list(SINK_RULES)
    assert {rule for rule, _, _ in BROKEN_SINKS} == set(SINK_RULES)


def test_a_broken_rule_is_an_assertion_that_travels() -> None:
    error = pickle.loads(pickle.dumps(ContractError("replay", "read again, there is less")))
    assert isinstance(error, AssertionError)
    assert (error.rule, str(error)) == (
        "replay",
        "the rule 'replay' is broken: read again, there is less",
    )


@pytest.mark.parametrize("rules", [["reply"], "replay"])
def test_rules_are_chosen_by_their_names(rules: Any) -> None:
    with pytest.raises(InputError, match="takes names out of members, check, "):
        testing.check_front(Right, rules=rules)
