"""Transactions for the reference runner: one at a time, in order. This defines what is right.

The reference follows everything that an item causes before it looks at the next one, and items
within a transaction have smaller places than its outputs. An `Open` pushes a closing item on the
stack below the opening item. So the closing item is reached once everything in the transaction is
done, and before anything of another transaction. In between, updates go to a scratch copy, which
later accesses of the same transaction see. No other transaction runs meanwhile. The closer then
looks at the results of the checks, in the order of accesses, then at the constraints over all
values, and applies all updates or none.

A transaction that touched nothing has nothing to constrain: it commits. A transaction that cannot
fail, and whose outcome nobody reads, has no closer in the graph: its updates are applied
immediately.

A failed access does not stop the transaction: all other accesses still run. Only the steps behind
the failed access itself do not, so a step can rely on the check before it.

**Diverted errors.** Where errors are diverted, a function that raises within a transaction undoes all of
it, whatever the checks say: nothing is applied, and nothing leaves by ``committed``, ``rejected`` or an
output. All other steps still run, and may raise too. The closer raises the first error, so there is one
record for each transaction, at the place where its outcome would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from emberflow.errors import InternalError, StepError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Graph, Node
from emberflow.graph.transaction_calls import outcome_of, verdict_of
from emberflow.graph.transactions import (
    CLOSED,
    COMMITTED,
    OUTPUT,
    REJECTED,
    RESULT,
    Access,
    Close,
    Open,
    Rejected,
    Report,
    State,
    Values,
    closers_of,
    depth_of,
)
from emberflow.values.item import ChildIds, GlobalTime
from emberflow.values.times import has_expired

NestedPlace: TypeAlias = tuple[GlobalTime, ChildIds]
Waiting: TypeAlias = tuple[NestedPlace, int, Any]
Processor: TypeAlias = Callable[[NestedPlace, Any], Iterator[Waiting]]


@dataclass(slots=True)
class _Running:
    """The transaction that is running."""

    element: Any
    values: Values = field(default_factory=Values)
    written: dict[tuple[str, Any], None] = field(default_factory=dict)
    failed: tuple[str, Values] | None = None
    error: StepError | None = None
    outputs: dict[int, list[tuple[ChildIds, Any]]] = field(default_factory=dict)


class Sequential:
    """The states of a run, and the processors of all nodes that belong to transactions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        #: The committed value of each key, by state.
        self.states: dict[str, dict[Any, Any]] = {
            node.name: {} for node in graph.nodes if isinstance(node, State)
        }
        #: When it was written.
        self.written: dict[str, dict[Any, int]] = {name: {} for name in self.states}
        self._running: dict[str, _Running] = {}
        self._closes = {node.transaction: node for node in graph.nodes if isinstance(node, Close)}
        self._closers = closers_of(graph)

    def processor(self, node: Node) -> Processor | None:
        if isinstance(node, Open):
            return self._open(node)
        if isinstance(node, Access):
            return self._access(node)
        if isinstance(node, Report):
            return self._report(node)
        if isinstance(node, State):
            return self._state(node)
        if isinstance(node, Close):
            return self._close(node)
        return None

    def undo(self, node: Node, payload: Any, error: StepError) -> bool:
        """Undo the running transaction because a step of it raised. Its closer raises the first error.

        False if the step is in no transaction, or in one that has no closer and nothing to undo.
        """
        if isinstance(node, State):
            node = self.graph.nodes[payload[1]]  # its access
        close = self._closers.get(node.id)
        if close is None:
            return False
        running = self._running[close.transaction]
        running.error = running.error or error
        return True

    def _open(self, node: Open) -> Processor:
        reader, _ = self.graph.readers[node.id][0]
        close = self._closes.get(node.transaction)

        def open_(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            global_time, child_ids = place
            self._running[node.transaction] = _Running(payload)
            yield place, reader, payload
            if close is not None:
                yield (global_time, (*child_ids, CLOSED)), close.id, None

        return open_

    def _access(self, node: Access) -> Processor:
        reader, _ = self.graph.readers[node.id][0]
        balance = balance_of(node, node.by)

        def access(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            own = payload[1] if node.carried else payload
            key, _ = balance(own, place[0])
            yield place, reader, (key, node.id, payload[0] if node.carried else payload, own)

        return access

    def _report(self, node: Report) -> Processor:
        depth = depth_of(self.graph, node)

        def report(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            if node.number >= 0:
                suffix = place[1][len(place[1]) - depth :]
                outputs = self._running[node.transaction].outputs
                outputs.setdefault(node.number, []).append((suffix, payload))
            return iter(())

        return report

    def _state(self, node: State) -> Processor:
        accesses: dict[int, Access] = {}
        for number in node.accesses:
            access = self.graph.nodes[number]
            assert isinstance(access, Access)
            accesses[number] = access
        outcomes = {number: outcome_of(access) for number, access in accesses.items()}
        depths = {number: depth_of(self.graph, access) for number, access in accesses.items()}
        committed, written = self.states[node.name], self.written[node.name]
        readers = self._readers_of(node)

        def held(key: Any, time: int) -> Any:
            """The committed value of a key as an access at this time finds it."""
            if key not in committed or has_expired(written[key], node.expires, time):
                return node.default
            return committed[key]

        def alone(
            access: Access, place: NestedPlace, key: Any, element: Any, payload: Any
        ) -> Iterator[Waiting]:
            global_time, child_ids = place
            identity = child_ids[: len(child_ids) - depths[access.id]]
            before = held(key, global_time[0])
            value, failed = outcomes[access.id](before, payload, global_time)
            found = readers[access.id]
            sent: list[tuple[int, str, Any]]
            if failed is not None:
                values = Values({(node.name, key): value})
                sent = [(REJECTED, "rejected", Rejected(element, failed, values))]
            else:
                if access.function is not None:
                    committed[key], written[key] = value, global_time[0]
                sent = [(COMMITTED, "committed", element), (OUTPUT, "output", (payload, value))]
            for child, what, result in sent:
                if what in found:
                    yield (global_time, (*identity, child)), found[what], result

        def together(
            access: Access, place: NestedPlace, key: Any, payload: Any
        ) -> Iterator[Waiting]:
            running = self._running[access.transaction]
            touched = (node.name, key)
            before = (
                running.values[touched] if touched in running.values else held(key, place[0][0])
            )
            value, failed = outcomes[access.id](before, payload, place[0])
            running.values[touched] = value
            if access.function is not None:
                running.written[touched] = None
                if access.transaction not in self._closes:
                    committed[key], written[key] = value, place[0][0]
            if failed is not None:
                if running.failed is None:
                    running.failed = failed, Values({touched: value})
            elif "result" in readers[access.id]:
                inner = (place[0], (*place[1], RESULT))
                yield inner, readers[access.id]["result"], (payload, value)

        def state(place: NestedPlace, item: tuple[Any, int, Any, Any]) -> Iterator[Waiting]:
            key, number, element, payload = item
            access = accesses[number]
            if access.alone:
                return alone(access, place, key, element, payload)
            return together(access, place, key, payload)

        return state

    def _readers_of(self, node: State) -> dict[int, dict[str, int]]:
        """By access: the reader of each of its outputs."""
        found: dict[int, dict[str, int]] = {access: {} for access in node.accesses}
        for (number, what), (reader, _) in zip(
            node.outputs, self.graph.readers[node.id], strict=True
        ):
            found[node.accesses[number]][what] = reader
        return found

    def _close(self, node: Close) -> Processor:
        verdict = verdict_of(node)
        readers = [reader for reader, _ in self.graph.readers[node.id]]

        def close(place: NestedPlace, _: Any) -> Iterator[Waiting]:
            global_time, child_ids = place
            if child_ids[-1] != CLOSED:
                raise InternalError(f"{node} got an item of its transaction at {place}")
            running = self._running[node.transaction]
            if running.error is not None:
                raise running.error
            failed = running.failed
            if failed is None and running.values:
                name = verdict(running.values, running.element, global_time)
                failed = None if name is None else (name, running.values)
            if failed is None:
                for state, key in running.written:
                    self.states[state][key] = running.values[state, key]
                    self.written[state][key] = global_time[0]
            for (what, number), reader in zip(node.outputs, readers, strict=True):
                identity = child_ids[:-1]
                if what == "committed" and failed is None:
                    yield (global_time, (*identity, COMMITTED)), reader, running.element
                elif what == "rejected" and failed is not None:
                    rejected = Rejected(running.element, *failed)
                    yield (global_time, (*identity, REJECTED)), reader, rejected
                elif what == "output" and failed is None:
                    assert isinstance(number, int)
                    for suffix, payload in running.outputs.get(number, ()):
                        ids = (*identity, OUTPUT + number, *suffix)
                        yield (global_time, ids), reader, payload

        return close
