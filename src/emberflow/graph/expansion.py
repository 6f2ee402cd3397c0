"""How drafts of transactions become nodes: which accesses vote, who closes, what decides alone.

What is guaranteed: **a transaction has the nodes that it needs and no others.** A graph knows which
transactions can fail, whose outcome is read, and whose accesses follow from their element; so this is
decided once, and not by the machines (`graph.transactions` describes the nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from emberflow.errors import FlowError
from emberflow.graph.nodes import Input, Key, Map, Merge, Node
from emberflow.graph.transactions import (
    ELEMENT,
    OUR_KEYS,
    Access,
    Close,
    ClosePort,
    Open,
    Report,
    State,
    closer_key,
    state_key,
)
from emberflow.values.functions import UserFunction
from emberflow.values.item import At

_STATE_KEY = Key(state_key, UserFunction(OUR_KEYS[0], state_key), shown=itemgetter(3))
_CLOSER_KEY = Key(closer_key, UserFunction(OUR_KEYS[1], closer_key), shown=itemgetter(2))


class Carrying:
    """A one-to-one map of a transaction that decides alone: it carries the element along."""

    __slots__ = ("begins", "function")

    def __init__(self, function: Callable[[Any], Any], begins: bool) -> None:
        self.function = function
        self.begins = begins

    def __call__(self, payload: Any) -> Any:
        element, own = (payload, payload) if self.begins else payload
        return _beside(element, self.function(own))


class CarryingTimed(Carrying):
    """The same for a function that takes the time too."""

    __slots__ = ()

    def __call__(self, time: int, payload: Any) -> Any:  # type: ignore[override]
        element, own = (payload, payload) if self.begins else payload
        function: Callable[..., Any] = self.function
        return _beside(element, function(time, own))


def _beside(element: Any, image: Any) -> Any:
    # An `At` inside of a pair would pass for a payload. Returned bare, it is refused as it should be.
    return image if image.__class__ is At else (element, image)


@dataclass(slots=True)
class _Drafted:
    """The drafts of one transaction."""

    open: Open
    close: Close
    accesses: list[Access] = field(default_factory=list)
    outputs: list[Report] = field(default_factory=list)


def with_transactions(
    flow: str, drafts: Sequence[Node], *, diverts: bool = False
) -> tuple[list[Node], dict[int, int]]:
    """The nodes of all drafts, with the inputs of states and closers connected.

    If the run ``diverts`` errors, every transaction can be undone. The second result is the new id of each draft that is still there.
    """
    if not any(isinstance(draft, Open | State) for draft in drafts):
        return list(drafts), {draft.id: draft.id for draft in drafts}
    return _Expansion(flow, drafts, diverts).nodes()


class _Expansion:
    def __init__(self, flow: str, drafts: Sequence[Node], diverts: bool) -> None:
        self.flow = flow
        self.diverts = diverts
        self.made: dict[int, Node] = {draft.id: draft for draft in drafts}
        self.read = {(source.node, source.port) for node in drafts for source in node.inputs}
        #: The outputs that replace outputs of drafts.
        self.moved: dict[tuple[int, int], Input] = {}
        #: Nodes whose inputs this expansion connected.
        self.joined: set[int] = set()
        self.next = len(drafts)
        self.states = {draft.name: draft for draft in drafts if isinstance(draft, State)}
        self.into: dict[str, list[Input]] = {name: [] for name in self.states}
        self.accesses: dict[str, list[int]] = {name: [] for name in self.states}
        self.outputs: dict[str, list[tuple[int, str]]] = {name: [] for name in self.states}

    def nodes(self) -> tuple[list[Node], dict[int, int]]:
        for drafted in self._transactions():
            for access in drafted.accesses:
                self.accesses[access.state].append(access.id)
                self.into[access.state].append(Input(access.id))
            if self._decides_alone(drafted):
                self._alone(drafted)
            else:
                self._together(drafted)
        for name, state in self.states.items():
            if not self.into[name]:
                raise FlowError(
                    f"flow {self.flow!r}: {state} is used in no transaction. Update or read it in "
                    f"one (with stream.transaction() as tx: ...), or remove it."
                )
            self.joined.add(state.id)
            self.made[state.id] = replace(
                state,
                inputs=(self._merged(self.into[name], f"{name}/accesses", state, _STATE_KEY),),
                accesses=tuple(self.accesses[name]),
                outputs=tuple(self.outputs[name]),
            )
        return self._renumbered()

    def _transactions(self) -> Iterable[_Drafted]:
        nodes = self.made.values()
        closes = {node.transaction: node for node in nodes if isinstance(node, Close)}
        found = {
            node.transaction: _Drafted(node, closes[node.transaction])
            for node in nodes
            if isinstance(node, Open)
        }
        for node in nodes:
            if isinstance(node, Access):
                found[node.transaction].accesses.append(node)
            elif isinstance(node, Report):
                found[node.transaction].outputs.append(node)
        return found.values()

    def _add(self, kind: type[Node], **rest: Any) -> Input:
        node = kind(id=self.next, **rest)
        self.next += 1
        self.made[node.id] = node
        self.joined.add(node.id)
        return Input(node.id)

    def _merged(self, inputs: list[Input], name: str, of: Node, key: Key) -> Input:
        if len(inputs) == 1:
            return replace(inputs[0], key=key)
        merge = self._add(Merge, name=name, inputs=tuple(inputs), where=of.where)
        return replace(merge, key=key)

    # One participant.

    def _decides_alone(self, drafted: _Drafted) -> bool:
        if len(drafted.accesses) != 1 or drafted.close.requires or len(drafted.outputs) > 1:
            return False
        (access,) = drafted.accesses
        if self._ones_before(access) is None:
            return False
        if self.diverts:  # a function behind the access would raise when all is decided
            return all(output.inputs[0].node == access.id for output in drafted.outputs)
        return all(self._passes(output, access) for output in drafted.outputs)

    def _ones_before(self, access: Access) -> list[Map] | None:
        """The maps from the opening to the access; None if something else is between."""
        found: list[Map] = []
        node: Node = access
        while not isinstance(node := self.made[node.inputs[0].node], Open):
            if not isinstance(node, Map) or node.mode != "one":
                return None
            found.append(node)
        # Another reader of the element, or of a map's image, would get pairs, or need a closer.
        return found[::-1] if all(map(self._is_read_once, [node, *found])) else None

    def _is_read_once(self, node: Node) -> bool:
        inputs = (source for reader in self.made.values() for source in reader.inputs)
        return sum(source.node == node.id for source in inputs) == 1

    def _passes(self, output: Report, access: Access) -> bool:
        """Whether an output descends from the result of the access."""
        node: Node = output
        while not isinstance(node, Open | Access):
            node = self.made[node.inputs[0].node]
        return node is access

    def _alone(self, drafted: _Drafted) -> None:
        (access,), close = drafted.accesses, drafted.close
        maps = self._ones_before(access) or []
        for number, node in enumerate(maps):
            shown, begins = node.shown, number == 0
            kind = CarryingTimed if node.timed else Carrying
            self.made[node.id] = replace(
                node,
                function=kind(node.function, begins),
                shown=shown if begins else _second,
            )
        self.made[access.id] = replace(access, alone=True, carried=bool(maps))
        number = len(self.accesses[access.state]) - 1
        for port, what in enumerate(("committed", "rejected")):
            if (close.id, port) in self.read:
                self._put_out(access.state, number, what, (close.id, port))
        if (access.id, 0) in self.read:
            self._put_out(access.state, number, "output", (access.id, 0))
        for output in drafted.outputs:
            self._check_read(drafted, output)
            source = output.inputs[0]
            source = self.moved.get((source.node, source.port), source)
            self.moved[close.id, 2 + output.number] = source
            del self.made[output.id]
        del self.made[close.id]

    def _put_out(self, state: str, number: int, what: str, old: tuple[int, int]) -> None:
        self.moved[old] = Input(self.states[state].id, len(self.outputs[state]))
        self.outputs[state].append((number, what))

    def _check_read(self, drafted: _Drafted, output: Report) -> None:
        if (drafted.close.id, 2 + output.number) not in self.read:
            raise FlowError(
                f"flow {self.flow!r}: {output} goes nowhere: no step reads what tx.output() gave. "
                f"End it with .sink(name), or remove it."
            )

    # Several participants.

    def _together(self, drafted: _Drafted) -> None:
        close = drafted.close
        can_fail = (
            self.diverts or bool(close.requires) or any(access.check for access in drafted.accesses)
        )
        updated = {access.state: None for access in drafted.accesses if access.function}
        # If a transaction only reads, and no step reads its outcome, there is nothing to decide.
        votes = self.diverts or (
            can_fail
            and bool(updated or drafted.outputs or {(close.id, 0), (close.id, 1)} & self.read)
        )
        into: list[Input] = []
        voters: list[int] = []
        for access in drafted.accesses:
            number = self.accesses[access.state].index(access.id)
            if (access.id, 0) in self.read:
                self._put_out(access.state, number, "result", (access.id, 0))
            # A read that cannot fail, and whose value no constraint needs, does not vote. Where errors
            # are diverted, every way through the transaction ends at the closer, so the last read does.
            is_last = self.diverts and (access.id, 0) not in self.read
            if votes and (access.function or access.check or close.requires or is_last):
                into.append(Input(self.states[access.state].id, len(self.outputs[access.state])))
                self.outputs[access.state].append((number, "vote"))
                voters.append(access.id)
        ports: list[ClosePort] = []

        def port(what: ClosePort, old: int) -> None:
            self.moved[close.id, old] = Input(close.id, len(ports))
            ports.append(what)

        if (close.id, 0) in self.read:
            port(("committed", 0), 0)
        if (close.id, 1) in self.read:
            port(("rejected", 0), 1)
        for output in drafted.outputs:
            self._check_read(drafted, output)
            port(("output", output.number), 2 + output.number)
            into.append(Input(output.id))
        if can_fail:
            for state in updated:
                self.into[state].append(Input(close.id, len(ports)))
                ports.append(("abort", state))
        if not ports and not self.diverts:
            del self.made[close.id]
            return
        element = self._add(
            Report,
            name=f"{close.transaction}/element",
            inputs=(Input(drafted.open.id),),
            where=drafted.open.where,
            transaction=close.transaction,
            number=ELEMENT,
        )
        into.append(element)
        self.joined.add(close.id)
        self.made[close.id] = replace(
            close,
            inputs=(self._merged(into, f"{close.transaction}/votes", close, _CLOSER_KEY),),
            voters=tuple(voters),
            outputs=tuple(ports),
        )

    def _renumbered(self) -> tuple[list[Node], dict[int, int]]:
        number = {old: new for new, old in enumerate(self.made)}

        def source(old: Input, of: Node) -> Input:
            # Inputs that this expansion connected are right; those of drafts may have moved.
            ours = of.id in self.joined
            found = old if ours else self.moved.get((old.node, old.port), old)
            return replace(old, node=number[found.node], port=found.port)

        nodes = [
            self._with_numbers(
                replace(
                    node,
                    id=number[node.id],
                    inputs=tuple(source(old, node) for old in node.inputs),
                ),
                number,
            )
            for node in self.made.values()
        ]
        return nodes, number

    def _with_numbers(self, node: Node, number: dict[int, int]) -> Node:
        if isinstance(node, State):
            return replace(node, accesses=tuple(number[access] for access in node.accesses))
        if isinstance(node, Close):
            return replace(node, voters=tuple(number[access] for access in node.voters))
        return node


def _second(pair: tuple[Any, Any]) -> Any:
    return pair[1]
