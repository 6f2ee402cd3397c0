"""`check_sink`: the rules of the contract of sinks, each checked on a sink of a user's own.

Guarantee: a sink that passes gives a query what exactly-once output relies on. It stores bundles
whole, knows after any crash what it has stored, and refuses a writer that has a successor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from emberflow.errors import PayloadError, shortened
from emberflow.sinks.protocol import (
    GroupWriter,
    Sink,
    SinkContract,
    SinkMovedError,
    StoredBundle,
    Writer,
    sink_contract,
)
from emberflow.testing.rules import ContractError, chosen_rules, kept, travelled
from emberflow.values.item import TIE, GlobalTime
from emberflow.values.members import has_member

#: By name, what a sink has to keep. They are checked in this order.
SINK_RULES: Mapping[str, str] = {
    "members": "open and each optional member are what the contract says",
    "check": "check() returns where the sink can be reached",
    "writer": "open gives a writer with last, store and close; a new partition's last is None",
    "order": "what is stored is there when store returns, in order, and last tells its time",
    "resume": "a writer that is opened later tells the last time that was stored",
    "partitions": "the partitions of a sink are apart",
    "travel": "a sink can be pickled, and stores the same at a worker",
    "fence": "a writer that has a successor stores nothing more, and raises SinkMovedError",
    "repeat": "a bundle that is stored already is refused, and changes nothing",
    "payload": "a payload that cannot be stored raises PayloadError, and nothing of its bundle is stored",
    "crash": "a bundle is stored whole or not at all, whenever the writer dies",
    "group": "a writer of several partitions keeps the same for each, as do writers before and after it",
}

#: The last times of bundles: below and above 0, far away, with a front of scheduled items, and with that
#: of an element behind a thousand others of the same time.
_TIMES = (
    (-(2**40), 0),
    (-3, -(2**32)),
    (-3, 2),
    (0, 0),
    (9, 1),
    (9, 1 + 1_000 * TIE),
    (10, 0),
    (2**62, 0),
)

_NOTHING: Any = object()


class SimulatedCrash(BaseException):
    """For ``check_sink(crashes=...)``: raise it where a writer is to die. Nothing catches it."""


def check_sink(
    make_sink: Callable[[], Sink],
    *,
    payloads: Callable[[Any, int], list[Any]] | None = None,
    payload: Callable[[int], Any] = lambda number: {"key": number, "word": f"wörd {number}"},
    partitions: int = 2,
    unstorable: Any = _NOTHING,
    crashes: Mapping[str, Callable[[], AbstractContextManager[Any]]] | None = None,
    rules: Collection[str] | None = None,
) -> list[str]:
    """Hold a sink to its contract; raise `ContractError` if it breaks a rule of `SINK_RULES`.

    ``make_sink`` makes an empty sink anew for each rule. ``payloads(sink, partition)`` reads what a
    partition holds, as a list that is compared with what was stored; without it only the last times
    are compared. ``payload(number)`` makes the payloads to store. ``partitions`` is how many the sink
    can have; with 1 the rule ``partitions`` does not apply.

    ``unstorable`` is a payload that the sink must refuse. ``crashes`` has, by name, functions without
    arguments that each return a context manager under which `Writer.store` dies half way, by
    `SimulatedCrash` or another exception. ``rules`` names the rules to check, by default all.

    Returns the names of the rules that were checked. Those that do not apply are left out: ``travel``,
    ``fence`` and ``repeat`` for a sink on the driver, which has one writer at a time in one process;
    ``payload`` and ``crash`` where nothing is given to check them with; ``group`` for a sink without
    ``open_group``, or with one partition.

    >>> from emberflow import sinks
    >>> check_sink(sinks.Memory, payloads=lambda memory, partition: memory.payloads(partition))
    ['members', 'check', 'writer', 'order', 'resume', 'partitions']
    """
    chosen = chosen_rules(SINK_RULES, rules)
    checks = _Checks(make_sink, payloads, payload, partitions, unstorable, dict(crashes or {}))
    return [
        name
        for name in SINK_RULES
        if name in chosen and getattr(checks, f"check_{name}")() is not False
    ]


class _Checks:
    """A check for each rule. One that does not apply returns False."""

    def __init__(
        self,
        make_sink: Callable[[], Sink],
        payloads: Callable[[Any, int], list[Any]] | None,
        payload: Callable[[int], Any],
        partitions: int,
        unstorable: Any,
        crashes: dict[str, Callable[[], AbstractContextManager[Any]]],
    ) -> None:
        self._make_sink = make_sink
        self._payloads = payloads
        self._payload = payload
        self._partitions = partitions
        self._unstorable = unstorable
        self._crashes = crashes

    def check_members(self) -> None:
        sink = kept("members", "making the sink", self._make_sink)
        kept("members", "the contract", lambda: sink_contract(sink))

    def check_check(self) -> None:
        kept("check", "check()", self._contract().check)

    def check_writer(self) -> None:
        contract = self._contract()
        writer = self._opened("writer", contract)
        missing = [name for name in ("last", "store", "close") if not has_member(writer, name)]
        if missing:
            raise ContractError(
                "writer", f"open(0) gave {shortened(writer)}, which has no {', '.join(missing)}."
            )
        self._compare_last("writer", "a partition that has stored nothing", writer, None)
        kept("writer", "close()", writer.close)

    def check_order(self) -> None:
        contract = self._contract()
        writer = self._opened("order", contract)
        stored: list[StoredBundle] = []
        for bundle in self._bundles(contract):
            self._store("order", writer, bundle)
            stored.append(bundle)
            self._compare_last("order", "the writer that stored it", writer, bundle.last)
            self._compare("order", f"after {len(stored)} bundles", contract, stored)
        writer.close()

    def check_resume(self) -> None:
        contract = self._contract()
        stored: list[StoredBundle] = []
        for bundle in self._bundles(contract):
            writer = self._opened("resume", contract)
            self._store("resume", writer, bundle)
            writer.close()
            stored.append(bundle)
            later = self._opened("resume", contract)
            self._compare_last("resume", "a writer that was opened later", later, bundle.last)
            later.close()
        self._compare("resume", "after a writer for each bundle", contract, stored)

    def check_partitions(self) -> bool:
        if self._partitions < 2:
            return False
        contract = self._contract()
        first, second, *_ = self._bundles(contract)
        writers = [self._opened("partitions", contract, partition) for partition in (0, 1)]
        self._store("partitions", writers[1], first._replace(partition=1))
        self._compare_last("partitions", "partition 0, when only 1 stored,", writers[0], None)
        self._compare("partitions", "when only partition 1 stored,", contract, [])
        self._store("partitions", writers[0], second)
        for partition, bundle in enumerate((second, first)):
            self._compare_last(
                "partitions", f"partition {partition}", writers[partition], bundle.last
            )
            self._compare("partitions", "after one bundle", contract, [bundle], partition)
            writers[partition].close()
        return True

    def check_travel(self) -> bool:
        contract = self._contract()
        if contract.on_driver:
            return False
        contract.check()  # as the driver does before it sends the sink
        there = sink_contract(travelled("travel", contract.sink))
        bundle = self._bundles(contract)[0]
        writer = self._opened("travel", there)
        self._store("travel", writer, bundle)
        writer.close()
        self._compare("travel", "after a worker stored", contract, [bundle])
        return True

    def check_fence(self) -> bool:
        contract = self._contract()
        if contract.on_driver:
            return False
        first, second, third, _, later, *_ = self._bundles(contract)
        old = self._opened("fence", contract)
        self._store("fence", old, first)
        new = self._opened("fence", sink_contract(travelled("travel", contract.sink)))
        self._compare_last("fence", "the successor", new, first.last)
        self._store("fence", new, third)
        _refused("fence", "a writer", lambda: old.store(second._replace(last=later.last)))
        self._compare("fence", "after the refusal", contract, [first, third])
        for writer in (old, new):
            kept("fence", "close()", writer.close)
        return True

    def check_repeat(self) -> bool:
        contract = self._contract()
        if contract.on_driver:
            return False
        first, second, *_ = self._bundles(contract)
        writer = self._opened("repeat", contract)
        self._store("repeat", writer, second)
        for bundle in (second, first):
            try:
                writer.store(bundle)
            except Exception:
                continue
            raise ContractError(
                "repeat",
                f"a writer that has stored up to {second.last} stored a bundle that ends at "
                f"{bundle.last}. It has to refuse what it has.",
            )
        self._compare("repeat", "after the refusal", contract, [second])
        writer.close()
        return True

    def check_payload(self) -> bool:
        if self._unstorable is _NOTHING:
            return False
        contract = self._contract()
        first, second, *_ = self._bundles(contract)
        writer = self._opened("payload", contract)
        self._store("payload", writer, first)
        bad = [*second.payloads, self._unstorable, *second.payloads]
        places = None if second.places is None else [second.places[0]] * len(bad)
        try:
            writer.store(second._replace(payloads=bad, places=places))
        except PayloadError:
            pass
        except Exception as error:
            raise ContractError(
                "payload",
                f"{shortened(self._unstorable)} raised {type(error).__qualname__} ({error}), expected "
                f"sinks.PayloadError: anything else is tried again, and would fail again.",
            ) from error
        else:
            raise ContractError("payload", f"{shortened(self._unstorable)} was stored.")
        self._check_unchanged("payload", contract, writer, first, second)
        return True

    def check_crash(self) -> bool:
        for name, crash in self._crashes.items():
            contract = self._contract()
            first, second, third, *_ = self._bundles(contract)
            writer = self._opened("crash", contract)
            self._store("crash", writer, first)
            with crash():
                try:
                    writer.store(third)
                except (SimulatedCrash, Exception):
                    pass
                else:
                    _fail("crash", f"{name}: the writer was to die, and stored the bundle.")
            self._check_unchanged("crash", contract, writer, first, second, f"{name}: ")
        return bool(self._crashes)

    def check_group(self) -> bool:
        contract = self._contract()
        if contract.open_group is None or self._partitions < 2:
            return False
        here = sink_contract(travelled("travel", contract.sink))
        bundles = self._bundles(contract)
        held: dict[int, list[StoredBundle]] = {0: [], 1: []}

        def given(*partitions: int) -> list[StoredBundle]:
            """The next bundle, as one of each of these partitions."""
            bundle = bundles.pop(0)
            return [bundle._replace(partition=partition) for partition in partitions]

        def opened(whose: str, of: SinkContract) -> GroupWriter:
            assert of.open_group is not None
            open_group = of.open_group
            writer = kept("group", "open_group([0, 1])", lambda: open_group([0, 1]))
            self._compare_lasts(whose, writer, held)
            return writer

        def store(writer: GroupWriter, given: list[StoredBundle]) -> None:
            kept("group", f"storing {len(given)} bundles", lambda: writer.store(given))
            for bundle in given:
                held[bundle.partition].append(bundle)
            self._compare_lasts("the writer that stored it", writer, held)
            for partition, own in held.items():
                self._compare("group", f"after {len(given)} bundles", contract, own, partition)

        first = opened("a new group", contract)
        store(first, given(0, 1))
        store(first, given(1))
        alone = kept("group", "open(0)", lambda: here.open(0))
        self._compare_last("group", "a writer of partition 0", alone, held[0][-1].last)
        _refused("group", "a group", lambda: first.store(given(0)))
        self._store("group", alone, *(own := given(0)))
        held[0] += own
        later = opened("a group behind it", here)
        store(later, given(0, 1))
        _refused("group", "a writer of partition 0", lambda: alone.store(given(0)[0]))
        for partition, own in held.items():
            self._compare("group", "after the refusals", contract, own, partition)
        for writer in (first, alone, later):
            kept("group", "close()", writer.close)
        return True

    def _check_unchanged(
        self,
        rule: str,
        contract: SinkContract,
        writer: Writer,
        first: StoredBundle,
        second: StoredBundle,
        what: str = "",
    ) -> None:
        """A store has failed: nothing of it is there, and another writer goes on."""
        self._compare(rule, f"{what}after the failure", contract, [first])
        kept(rule, "close()", writer.close)
        later = self._opened(rule, contract)
        self._compare_last(rule, f"{what}a writer opened after the failure", later, first.last)
        self._store(rule, later, second)
        later.close()
        self._compare(rule, f"{what}after another writer went on", contract, [first, second])

    # Storing.

    def _contract(self) -> SinkContract:
        return sink_contract(self._make_sink())

    def _opened(self, rule: str, contract: SinkContract, partition: int = 0) -> Writer:
        return kept(rule, f"open({partition})", lambda: contract.open(partition))

    def _bundles(self, contract: SinkContract) -> list[StoredBundle]:
        """Bundles of 1 to 5 payloads."""
        made, number = [], 0
        for size, last in enumerate(_TIMES):
            count = size % 5 + 1
            payloads = [self._payload(number + more) for more in range(count)]
            places: list[tuple[int, ...]] = [(*last, child) for child in range(count)]
            made.append(
                StoredBundle(
                    "out", 0, GlobalTime(*last), payloads, places if contract.places else None
                )
            )
            number += count
        return made

    def _store(self, rule: str, writer: Writer, bundle: StoredBundle) -> None:
        kept(rule, f"storing a bundle that ends at {bundle.last}", lambda: writer.store(bundle))

    def _compare_last(
        self, rule: str, whose: str, writer: Writer, expected: GlobalTime | None
    ) -> None:
        found = kept(rule, "last()", writer.last)
        if found != expected:
            _fail(rule, f"the last time of {whose} is {found!r}, expected {expected!r}.")

    def _compare_lasts(
        self, whose: str, writer: GroupWriter, held: Mapping[int, list[StoredBundle]]
    ) -> None:
        found = kept("group", "lasts()", writer.lasts)
        expected = {partition: own[-1].last if own else None for partition, own in held.items()}
        if found != expected:
            _fail("group", f"the last times of {whose} are {found!r}, expected {expected!r}.")

    def _compare(
        self,
        rule: str,
        when: str,
        contract: SinkContract,
        stored: list[StoredBundle],
        partition: int = 0,
    ) -> None:
        if self._payloads is None:
            return
        found = self._payloads(contract.sink, partition)
        expected = [payload for bundle in stored for payload in bundle.payloads]
        if found != expected:
            _fail(
                rule,
                f"{when} partition {partition} holds {shortened(found)}, expected "
                f"{shortened(expected)}.",
            )


def _refused(rule: str, who: str, store: Callable[[], None]) -> None:
    """Check that a writer which has a successor stores nothing, and says so."""
    try:
        store()
    except SinkMovedError:
        return
    except Exception as error:
        raise ContractError(
            rule,
            f"{who} with a successor raised {type(error).__qualname__} ({error}), expected "
            f"SinkMovedError: the query ends a worker that has a successor by that.",
        ) from error
    raise ContractError(
        rule,
        f"{who} stored a bundle although another writer had opened its partition and stored. A worker "
        f"that was cut off may live on: its bundles would be there twice.",
    )


def _fail(rule: str, problem: str) -> NoReturn:
    raise ContractError(rule, problem)
