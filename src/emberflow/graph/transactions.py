"""The nodes of transactions, and how drafts become those nodes.

A transaction is everything that one item, the *opening item*, causes between its `Open` and its
`Close`. Its identity is the opening item's place. (A global time would not do: an element may open
several transactions, behind a `flat_map` or one after another, and only their places tell them apart
and order them.) Within a transaction every operation adds child ids, so the identity is a prefix of
the place of everything in it. The graph determines the length of that prefix (`depth_of`), because
between opening and closing there is neither a merge nor a loop nor a scheduled item.

::

    stream ──> open ──> maps ──> access ──┐                     ┌──> maps ──> access ... (later keys)
                 │                        v                     │
                 │        ┌─────────> state (by key) ── result ─┘
                 │        │               │
                 │        │ aborts        │ votes
                 │        │               v
                 └─ element ─────────> close (by identity) ──> committed, rejected, outputs

- `Access` is one ``update`` or ``read`` of the flow: it adds the key and the length of the identity
  to the payload. `State` is one node for all accesses of a state, from all transactions.
- `Report` sends the element, and the items of ``tx.output``, to the closer.
- `Close` decides by the votes, and emits ``committed`` or ``rejected``, and the outputs.

The output of a transaction has the place ``identity + (CLOSED + port, ...)``. All child ids within a
transaction are less than `CLOSED`, so its output sorts after everything within. A transaction that is
opened by the output of another one sorts after that one, also at the states they share. So *the order
of accesses at a state is the order of transactions* in every flow.

**Alone.** A transaction of exactly one access, reached by one-to-one maps only, with no constraint
over several values, has exactly one participant, whose own check is the whole decision. It needs no
votes and no closer: the state emits what the closer would. The opening element travels beside the
payload (`Carrying`) so that the state can emit it as ``committed``.

A transaction that has no check and no constraint cannot fail, so its accesses do not vote.

**Known from the element.** The key of an access mostly follows from the element by maps alone, not
from values that the transaction read. Then the closer, which has the element, can compute the keys
itself when it needs them, which is only when the transaction fails. So such an access votes only to
say no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from emberflow.errors import FlowError
from emberflow.graph.nodes import Broadcast, Graph, Input, Key, Map, Merge, Node
from emberflow.values.functions import UserFunction
from emberflow.values.item import At

T = TypeVar("T")

#: The first child id of a transaction's output: greater than every port and every index of an image.
CLOSED = 2**32
#: The ports of a closer, as child ids: committed, rejected, then the outputs.
COMMITTED, REJECTED, OUTPUT = CLOSED, CLOSED + 1, CLOSED + 2


class Values(dict[tuple[str, Any], Any]):
    """The values that a transaction accessed: ``(state, key)`` to the value after, in access order.

    >>> values = Values({("accounts", "ada"): 5, ("accounts", "bob"): 7, ("limits", "ada"): 9})
    >>> values["accounts", "ada"], values.of("accounts")
    (5, {'ada': 5, 'bob': 7})
    """

    __slots__ = ()

    def of(self, state: object) -> dict[Any, Any]:
        """The values of one state, by key. ``state`` is its name or the state itself."""
        name = getattr(state, "name", state)
        return {key: value for (own, key), value in self.items() if own == name}


class Rejected(NamedTuple, Generic[T]):
    """A transaction that was not applied: its element, the failed check, the values it checked."""

    element: T
    check: str
    values: Values


@dataclass(frozen=True, slots=True)
class Check:
    """A constraint, and the name that `Rejected.check` reports.

    A check of an access gets the new value, and if it ``sees_payload`` the payload too.
    """

    name: str
    function: Callable[..., object]
    sees_payload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Node):
    """Where transactions begin: each item that passes opens one."""

    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(Node):
    """One ``update`` of a state, or ``read`` if it has no function."""

    transaction: str
    state: str
    by: Key
    function: Callable[[Any, Any], Any] | None
    check: Check | None
    given: tuple[UserFunction, ...]
    #: Whether it decides alone; then its payloads are ``(element, payload)``.
    alone: bool = False
    #: Whether the maps before it make these pairs. Otherwise it makes them itself.
    carried: bool = False

    @property
    def kind(self) -> str:
        return "read" if self.function is None else "update"

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        check = self.check.name if self.check else ""
        roles = (function.role for function in self.given)
        return (self.transaction, self.state, check, int(self.alone), *roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Node):
    """Sends an item of a transaction to its closer: the element, or one of its outputs."""

    transaction: str
    #: Which output; -1 is the element.
    number: int

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        return (self.transaction, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Node):
    """Values by key, and every access to them.

    ``outputs`` are its ports: the number of the access, and the kind of item: ``vote``, ``result``,
    or ``committed``, ``rejected`` and ``output`` of an access that decides alone.
    """

    orders: ClassVar[bool] = True
    lets_end: ClassVar[bool] = True  # within a transaction its cycles have no rounds
    ends: ClassVar[bool] = True

    default: Any
    accesses: tuple[int, ...] = ()
    outputs: tuple[tuple[int, str], ...] = ()

    @property
    def ports(self) -> int:
        return len(self.outputs)

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        return (*self.accesses, *(part for output in self.outputs for part in output))


#: A port of a closer: ``committed``, ``rejected``, ``output`` with its number, ``abort`` with a state.
ClosePort: TypeAlias = tuple[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Node):
    """Where a transaction is decided.

    In a draft, streams read port 0 (committed), port 1 (rejected) and the outputs behind these.
    """

    orders: ClassVar[bool] = True

    transaction: str
    requires: tuple[Check, ...] = ()
    given: tuple[UserFunction, ...] = ()
    #: The accesses that vote. A vote carries the index of its access in this tuple.
    voters: tuple[int, ...] = ()
    outputs: tuple[ClosePort, ...] = ()

    @property
    def ports(self) -> int:
        return len(self.outputs)

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        requires = (check.name for check in self.requires)
        return (
            self.transaction,
            *self.voters,
            *requires,
            *(part for output in self.outputs for part in output),
        )


# The payloads that travel between these nodes.
#
#   to a state    (key, access, length, payload)      access: its number at the state, or ABORT
#   to a closer   (identity, number, ...)             number: of the vote; ELEMENT; or OUTPUTS - port
#       a vote    (identity, number, key, failed, value)   failed: a check's name, or None
#
# A result has the place of its version and child id RESULT, an abort child id ABORTED.
#
ABORT = -1
RESULT, ABORTED = 0, 1
ELEMENT = -1
OUTPUTS = -2

state_key = itemgetter(0)
identity_of = itemgetter(0)


def closer_key(report: tuple[Any, ...]) -> int:
    """The key that picks the closer's worker: few values, well spread, from time and front alone.

    Identities never repeat, so keying by the identity would only fill the caches of known keys.
    """
    time, front = report[0][:2]
    return int((time * 0x9E3779B97F4A7C15 >> 48) + front) & 0xFFF


def front_of(report: tuple[Any, ...]) -> int:
    """The front that the transaction's element came from."""
    front: int = report[0][1]
    return front


#: The names of our own keys in drawings.
OUR_KEYS = ("the key", "the transaction")
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


def known_from_element(graph: Graph, access: Access) -> bool:
    """Whether an access follows from the transaction's element alone, and from no value read."""
    node: Node = access
    while not isinstance(node := graph.nodes[node.inputs[0].node], Open):
        if isinstance(node, State):
            return False
    return True


def votes_aloud(graph: Graph, close: Close, access: Access) -> bool:
    """Whether an access also votes yes: because a constraint needs its value, or because the closer
    cannot compute its key."""
    return bool(close.requires) or not known_from_element(graph, access)


def hears_elements_alone(graph: Graph, close: Close) -> bool:
    """Whether a closer receives only the element of a transaction that commits."""
    voters = [graph.nodes[voter] for voter in close.voters]
    aloud = any(isinstance(each, Access) and votes_aloud(graph, close, each) for each in voters)
    return not aloud and all(what != "output" for what, _ in close.outputs)


def depth_of(graph: Graph, node: Node) -> int:
    """The number of child ids that a place has at this node beyond its transaction's identity."""
    depth, origin = way_in(graph, node)
    if not isinstance(origin, Open):
        raise FlowError(f"flow {graph.flow!r}: {node} is not in a transaction: {origin}.")
    return depth


def way_in(graph: Graph, node: Node) -> tuple[int, Node]:
    """The number of child ids that a place gets between the origin of a node's items and the node,
    and that origin: the `Open` of its transaction, or a node outside of any transaction."""
    depth, origin = 0, node
    while origin.inputs:
        source = origin.inputs[0]
        origin = graph.nodes[source.node]
        if isinstance(origin, State) and origin.outputs[source.port][1] == "result":
            origin = graph.nodes[origin.accesses[origin.outputs[source.port][0]]]
        elif not isinstance(origin, Map | Broadcast):
            break
        depth += 1
    return depth, origin


# From drafts to nodes.


@dataclass(slots=True)
class _Drafted:
    """The drafts of one transaction."""

    open: Open
    close: Close
    accesses: list[Access] = field(default_factory=list)
    outputs: list[Report] = field(default_factory=list)


def with_transactions(flow: str, drafts: Sequence[Node]) -> tuple[list[Node], dict[int, int]]:
    """The nodes of all drafts, with the inputs of states and closers connected.

    The second result is the new id of each draft that is still there.
    """
    if not any(isinstance(draft, Open | State) for draft in drafts):
        return list(drafts), {draft.id: draft.id for draft in drafts}
    return _Expansion(flow, drafts).nodes()


class _Expansion:
    def __init__(self, flow: str, drafts: Sequence[Node]) -> None:
        self.flow = flow
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
        can_fail = bool(close.requires) or any(access.check for access in drafted.accesses)
        updated = {access.state: None for access in drafted.accesses if access.function}
        # If a transaction only reads, and no step reads its outcome, there is nothing to decide.
        votes = can_fail and bool(
            updated or drafted.outputs or {(close.id, 0), (close.id, 1)} & self.read
        )
        into: list[Input] = []
        voters: list[int] = []
        for access in drafted.accesses:
            number = self.accesses[access.state].index(access.id)
            if (access.id, 0) in self.read:
                self._put_out(access.state, number, "result", (access.id, 0))
            # A read that cannot fail, and whose value no constraint needs, does not vote.
            if votes and (access.function or access.check or close.requires):
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
        if not ports:
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
