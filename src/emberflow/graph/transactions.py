"""The nodes of transactions. `graph.expansion` makes them of drafts.

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
payload (`graph.expansion.Carrying`) so that the state can emit it as ``committed``.

A transaction that has no check and no constraint cannot fail, so its accesses do not vote.

**Known from the element.** The key of an access mostly follows from the element by maps alone, not
from values that the transaction read. Then the closer, which has the element, can compute the keys
itself when it needs them, which is only when the transaction fails. So such an access votes only to
say no.

**Diverted errors.** Where errors are diverted, a function that raises within a transaction undoes all of
it. So any transaction can fail, and has a closer, unless it decides alone with nothing behind its access.
A step that raises sends its error to the closer as a vote (`closers_of`). Otherwise the nodes are the
same, so a cut fits both graphs: only states have rows in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from emberflow.errors import FlowError, InternalError
from emberflow.graph.nodes import Broadcast, Graph, Key, Map, Node
from emberflow.values.functions import UserFunction

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

    With ``expires``, a value that was written so long before an access, or longer, is the default again.
    """

    orders: ClassVar[bool] = True
    lets_end: ClassVar[bool] = True  # within a transaction its cycles have no rounds
    ends: ClassVar[bool] = True

    default: Any
    accesses: tuple[int, ...] = ()
    outputs: tuple[tuple[int, str], ...] = ()
    expires: int | None = None

    @property
    def ports(self) -> int:
        return len(self.outputs)

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        expires = () if self.expires is None else ("expires", self.expires)
        return (*self.accesses, *(part for output in self.outputs for part in output), *expires)


#: A port of a closer: ``committed``, ``rejected``, ``output`` with its number, ``abort`` with a state.
ClosePort: TypeAlias = tuple[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Node):
    """Where a transaction is decided.

    In a draft, streams read port 0 (committed), port 1 (rejected) and the outputs behind these.
    """

    orders: ClassVar[bool] = True
    ends: ClassVar[bool] = True  # errors may be all that leaves it

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
#       a vote    (identity, number, key, failed, value)   failed: a check's name, an error, or None
#
# A result has the place of its version and child id RESULT, an abort child id ABORTED.
#
ABORT = -1
RESULT, ABORTED = 0, 1
ELEMENT = -1
OUTPUTS = -2
#: The number of the vote of a step that raised and is no access, and the last child id of its place.
RAISED = CLOSED

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


def closers_of(graph: Graph) -> dict[int, Close]:
    """By node within a transaction, but for states: the closer of the transaction, if it has one."""
    closers = {node.transaction: node for node in graph.nodes if isinstance(node, Close)}
    found: dict[int, Close] = {}
    for node in graph.nodes:
        if isinstance(node, Map | Broadcast | Access):
            _, origin = way_in(graph, node)
            if isinstance(origin, Open) and origin.transaction in closers:
                found[node.id] = closers[origin.transaction]
    return found


def check_diverting(graph: Graph) -> None:
    """Check that a graph can run where errors are diverted: transactions of others would be applied in
    part. Runners get the right one from ``flow.graph(on_error="divert")``."""
    if graph.ends_on_error is None and any(isinstance(node, State) for node in graph.nodes):
        raise InternalError(f"the graph of flow {graph.flow!r} is for runs that an error ends")


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
