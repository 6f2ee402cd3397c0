"""The graph of a flow: inert nodes, joined by their inputs, and the rules that make it runnable.

A graph is plain frozen data. Every runner executes it, drawings show it, and a restored state is
checked against its fingerprint. There are four operations (map, broadcast, merge, grouping) between
fronts and sinks, and those of transactions (`graph.transactions`); the DSL composes everything else
of them.

Rules, checked by `Graph.__post_init__` (the DSL checks what it can earlier, at the user's line):

- every input names an output that exists, and exactly one input reads each output: `graph.assembly`
  puts a broadcast behind a stream that is read several times;
- every node can be reached from a front and leads to a sink or a state;
- every cycle has a grouping, which gives it an order, and a map, the only operation that can end a
  cycle: grouping and merge make one item of one, broadcast makes more;
- the names of operations are unique, and so are those of fronts and those of sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from emberflow.errors import LATE_SINK, FlowError, InputError
from emberflow.values.functions import UserFunction, Where, itself
from emberflow.values.hashing import stable_id
from emberflow.values.item import scheduling_front
from emberflow.values.times import Unit

#: What a map's function returns: one payload, any number of payloads, or whether to keep its
#: argument.
MapMode: TypeAlias = Literal["one", "many", "keep"]


@dataclass(frozen=True, slots=True)
class Key:
    """A balancing function: the payload's key decides the worker, and the bucket of a grouping.

    ``given`` is the user's function. ``shown`` extracts the user's payload from one of ours, for
    error messages. A key that ``only_checks`` is no part of the flow: a runner gives it to a sink
    without a key, to call its function for each payload (`runners.diversion`).
    """

    function: Callable[[Any], Any]
    given: UserFunction
    shown: Callable[[Any], Any] = itself
    only_checks: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """The output that a node reads: node and port, and the key that distributes its items."""

    node: int
    port: int = 0
    key: Key | None = None

    @property
    def own_key(self) -> Key | None:
        """The key that the flow gives it; not one that only checks."""
        return None if self.key is None or self.key.only_checks else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The common part of all nodes: an id (the index in the graph), a name, inputs and the user's
    line that made it."""

    #: Whether it orders the items of a cycle, can end a cycle, and is an end of the flow.
    orders: ClassVar[bool] = False
    lets_end: ClassVar[bool] = False
    ends: ClassVar[bool] = False

    id: int
    name: str
    inputs: tuple[Input, ...]
    where: Where
    #: What the flow counts datetimes and durations in; None if it does not say, and needs none so far.
    unit: Unit | None = None

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        """Whatever else the fingerprint covers."""
        return ()

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    @property
    def ports(self) -> int:
        return 1

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} ({self.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Front(Node):
    """Where elements enter. ``index`` is the second part of their global times."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateElements(Front):
    """Where late elements of all fronts enter, on their way to the late sink (`with_late_sink`)."""

    index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """One payload to any number of payloads, by a pure function of the payload.

    ``timed`` functions get the time of the item before the payload. A map with ``schedules=False``
    may not return `At`. ``given`` are the user's functions. ``shown`` extracts the user's payload
    from one of ours, for error messages.

    Only the combine map of a reduction has ``kept``. When its function raises and the element is
    diverted, ``kept`` computes what goes round the cycle in place of the next accumulator: see
    `dsl.operators.reduce`.
    """

    lets_end: ClassVar[bool] = True

    function: Callable[..., Any]
    given: tuple[UserFunction, ...]
    mode: MapMode
    timed: bool = False
    schedules: bool = True
    shown: Callable[[Any], Any] = itself
    kept: Callable[[Any], tuple[Any, ...]] | None = None

    @property
    def scheduling_front(self) -> int:
        return scheduling_front(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Node):
    """A copy of each item for each of its ports."""

    copies: int

    @property
    def ports(self) -> int:
        return self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """All items of all its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Node):
    """The last ``window`` items of a key, in order, for each item that arrives.

    With ``expires``, an item that is so much later than the one before it begins its key anew: no tuple
    holds both.
    """

    orders: ClassVar[bool] = True

    window: int
    expires: int | None = None

    @property
    def key(self) -> Key:
        key = self.inputs[0].key
        assert key is not None, "checked by Graph"
        return key

    @property
    def distinguishing(self) -> tuple[str | int, ...]:
        return () if self.expires is None else ("expires", self.expires)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Where items leave, in order within each of its partitions."""

    ends: ClassVar[bool] = True

    partitions: int = 1

    @property
    def ports(self) -> int:
        return 0

    @property
    def key(self) -> Key | None:
        return self.inputs[0].key


@dataclass(frozen=True, slots=True)
class Reduction:
    """A cycle of drifting state that an engine may run in one step: merge, group, combine, broadcast.

    Payloads within are triples ``(key, is_accumulator, value)``. Items enter by input 0 of
    ``merge`` and leave by port 1 of ``broadcast``; port 0 brings the accumulator back. The step may
    include the map before, if it only makes triples of payloads (``pair``), and the map behind, if
    it only makes payloads of triples (``value``).
    """

    merge: int
    group: int
    combine: int
    broadcast: int
    first: Callable[[Any], Any]
    combine_function: Callable[[Any, Any], Any]
    pair: int | None = None
    value: int | None = None
    #: Extracts the user's payload from a mapped value, for error messages.
    shown: Callable[[Any], Any] = itself
    #: The user's key function, and whether the output is ``(key, accumulator)`` or the accumulator.
    key: Callable[[Any], Any] | None = None
    with_key: bool = False
    #: The map that schedules items, *ticks*, of accumulators, if a loop brings them back to their key.
    ticks: int | None = None
    #: What the user wrote: ``count``, ``fold``, ``window`` ... Accumulators of two operators differ.
    operator: str = ""

    def renumbered(self, number: Mapping[int, int]) -> Reduction:
        return replace(
            self,
            merge=number[self.merge],
            group=number[self.group],
            combine=number[self.combine],
            broadcast=number[self.broadcast],
            pair=None if self.pair is None else number[self.pair],
            value=None if self.value is None else number[self.value],
            ticks=None if self.ticks is None else number[self.ticks],
        )


@dataclass(frozen=True)
class Graph:
    """A flow that can run: ``nodes[i].id == i``."""

    flow: str
    nodes: tuple[Node, ...]
    reductions: tuple[Reduction, ...] = field(default=())
    #: The graph of the same flow for runs that an error ends, if this one is for runs that divert errors
    #: and has transactions (`graph.transactions`).
    ends_on_error: Graph | None = None

    def __post_init__(self) -> None:
        _check_names(self)
        _check_inputs(self)
        _check_connected(self)
        _check_cycles(self)

    @cached_property
    def readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """``readers[node][port]`` is the ``(node, input)`` that reads this output."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for node in self.nodes:
            for number, source in enumerate(node.inputs):
                found[source.node, source.port] = (node.id, number)
        return tuple(
            tuple(found[node.id, port] for port in range(node.ports)) for node in self.nodes
        )

    @cached_property
    def fronts(self) -> dict[str, Front]:
        return {
            node.name: node
            for node in self.nodes
            if isinstance(node, Front) and not isinstance(node, LateElements)
        }

    @cached_property
    def unit(self) -> Unit | None:
        """What the flow counts datetimes and durations in; None if it does not say."""
        return next((front.unit for front in self.fronts.values()), None)

    @cached_property
    def late_node(self) -> int | None:
        """The node where late elements enter, if they have a sink."""
        return next((node.id for node in self.nodes if isinstance(node, LateElements)), None)

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        return {node.name: node for node in self.nodes if isinstance(node, Sink)}

    @cached_property
    def back_edges(self) -> frozenset[tuple[int, int]]:
        """The inputs ``(node, input)`` that close a cycle, by a depth-first search from the fronts."""
        back: set[tuple[int, int]] = set()
        state: dict[int, Literal["open", "done"]] = {}
        for root in (node.id for node in self.nodes if isinstance(node, Front)):
            if root in state:
                continue
            state[root] = "open"
            stack = [(root, iter(self.readers[root]))]
            while stack:
                node, ahead = stack[-1]
                for reader in ahead:
                    known = state.get(reader[0])
                    if known == "open":
                        back.add(reader)
                    elif known is None:
                        state[reader[0]] = "open"
                        stack.append((reader[0], iter(self.readers[reader[0]])))
                        break
                else:
                    state[node] = "done"
                    stack.pop()
        return frozenset(back)

    @cached_property
    def loop_entries(self) -> frozenset[int]:
        """The merges where the user's loops come in: an item that goes round forever passes one.

        A cycle is entered where two streams meet, so a back edge leads to a merge. The merge of a
        reduction does not count: its accumulator goes round once. Nor does that of a state: the
        decisions that come back to it end there.
        """
        sources = {
            (node, number): self.nodes[self.nodes[node].inputs[number].node]
            for node, number in self.back_edges
        }
        return frozenset(
            node
            for (node, _), source in sources.items()
            if not self.is_of_accumulators(source) and source.kind != "close"
        )

    def is_of_accumulators(self, node: Node) -> bool:
        """Whether this is the broadcast of a reduction: port 0 brings the accumulator back."""
        if not isinstance(node, Broadcast):
            return False
        maker = self.nodes[node.inputs[0].node]
        return isinstance(maker, Map) and maker.kept is not None

    def kept_reader(self, node: Map) -> int:
        """The node that gets the payloads of ``kept``: the one that gets the accumulator back."""
        ((broadcast, _),) = self.readers[node.id]
        return self.readers[broadcast][0][0]

    @property
    def plain(self) -> Graph:
        """What cuts and people know this graph by: it does not depend on what happens to errors."""
        return self if self.ends_on_error is None else self.ends_on_error

    @cached_property
    def operators(self) -> dict[int, str]:
        """By the group of a reduction: the operator that the user wrote."""
        return {reduction.group: reduction.operator for reduction in self.reductions}

    @cached_property
    def fingerprint(self) -> int:
        """A 64-bit digest of all that must agree between workers, and between a cut and its flow.

        It covers steps, and neither the names of their functions nor their code: a user can rename a
        function, move it or fix it, and keep the state (`graph.description` tells what was changed).
        Nor does it cover what happens to errors: a cut fits a run that diverts them and one that does not.
        """
        if self.ends_on_error is not None:
            return self.ends_on_error.fingerprint
        parts: list[str | int] = [self.flow]
        for node in self.nodes[: self.late_node]:  # late elements have no state
            parts += [node.id, node.kind, node.name]
            for source in node.inputs:
                parts += [source.node, source.port, int(source.own_key is not None)]
            if isinstance(node, Map):
                parts += [node.mode, int(node.timed), *(f.role for f in node.given)]
            elif isinstance(node, Group):
                parts += [node.window, self.operators.get(node.id, "")]
            elif isinstance(node, Sink):
                parts.append(node.partitions)
            parts += node.distinguishing
        return stable_id(*parts)


def with_late_sink(graph: Graph) -> Graph:
    """The same graph with a sink for late elements. A cut of one fits the other.

    >>> import emberflow as ef
    >>> flow = ef.Flow("words")
    >>> flow.front("words").sink("out")
    >>> graph = with_late_sink(flow.graph())
    >>> list(graph.sinks), graph.fingerprint == flow.graph().fingerprint
    (['out', 'late'], True)
    """
    if graph.late_node is not None:
        return graph
    if LATE_SINK in graph.sinks:
        raise InputError(
            f"flow {graph.flow!r} has a sink {LATE_SINK!r}, and that is the name of the sink for late "
            f"elements. Give {graph.sinks[LATE_SINK]} another name, or say on_late='admit', 'fail' or "
            f"'drop'."
        )
    entry = len(graph.nodes)
    where = graph.nodes[0].where
    late = LateElements(id=entry, name="late elements", inputs=(), where=where)
    sink = Sink(id=entry + 1, name=LATE_SINK, inputs=(Input(entry, 0),), where=where)
    return replace(graph, nodes=(*graph.nodes, late, sink))


def with_unit(graph: Graph, units: Iterable[Unit | None]) -> Graph:
    """The same graph. If it says no unit and all fronts that say one say the same, it counts in that."""
    said = set(units) - {None}
    if graph.unit is not None or len(said) != 1:
        return graph
    (unit,) = said
    return replace(graph, nodes=tuple(replace(node, unit=unit) for node in graph.nodes))


def _check_names(graph: Graph) -> None:
    kinds: tuple[tuple[str, Callable[[Node], bool]], ...] = (
        ("fronts", lambda node: isinstance(node, Front)),
        ("sinks", lambda node: isinstance(node, Sink)),
        ("operations", lambda node: not isinstance(node, Front | Sink)),
    )
    for kind, belongs in kinds:
        known: dict[str, Node] = {}
        for node in filter(belongs, graph.nodes):
            if node.name in known:
                raise FlowError(two_of_one_name(graph.flow, kind, known[node.name], node))
            known[node.name] = node
    taken: dict[int, Map] = {}
    for node in graph.nodes:
        if isinstance(node, Map):
            other = taken.setdefault(node.scheduling_front, node)
            if other is not node:
                raise FlowError(
                    f"flow {graph.flow!r}: {other} and {node} have names that lead to the same "
                    f"scheduling front by chance. Rename one of them."
                )


def two_of_one_name(flow: str, kind: str, first: Node, second: Node) -> str:
    return (
        f"flow {flow!r}: two {kind} have the name {first.name!r}: {first} and {second}. "
        f"Give one of them another name."
    )


def _check_inputs(graph: Graph) -> None:
    read: dict[tuple[int, int], Node] = {}
    for number, node in enumerate(graph.nodes):
        if node.id != number:
            raise FlowError(f"flow {graph.flow!r}: {node} has id {node.id} at index {number}.")
        _check_inputs_of(graph, node)
        for source in node.inputs:
            origin = graph.nodes[source.node]
            other = read.get((source.node, source.port))
            read[source.node, source.port] = node
            if other is not None:
                raise FlowError(
                    f"flow {graph.flow!r}: both {other} and {node} read output {source.port} of "
                    f"{origin}. Put a broadcast between."
                )
    for node in graph.nodes:
        for port in range(node.ports):
            if (node.id, port) not in read:
                output = f"output {port} of {node}" if node.ports > 1 else str(node)
                raise FlowError(
                    f"flow {graph.flow!r}: {output} goes nowhere: no step reads it. "
                    f"End it with .sink(name), or remove the step."
                )


def _check_inputs_of(graph: Graph, node: Node) -> None:
    if isinstance(node, Front):
        expected = len(node.inputs) == 0
    elif isinstance(node, Merge):
        expected = len(node.inputs) >= 2
    else:
        expected = len(node.inputs) == 1
    if not expected:
        raise FlowError(f"flow {graph.flow!r}: {node} has {len(node.inputs)} inputs.")
    for source in node.inputs:
        if not (0 <= source.node < len(graph.nodes)) or not (
            0 <= source.port < graph.nodes[source.node].ports
        ):
            raise FlowError(
                f"flow {graph.flow!r}: {node} reads output {source.port} of node {source.node}, "
                f"which does not exist."
            )
    if isinstance(node, Group):
        if node.window < 1:
            raise FlowError(
                f"flow {graph.flow!r}: {node} has window {node.window}. "
                f"A window holds at least 1 item."
            )
        if node.inputs[0].key is None:
            raise FlowError(
                f"flow {graph.flow!r}: {node} has no key. Call .key_by(function) before .group()."
            )
    if isinstance(node, Sink):
        if node.partitions < 1:
            raise FlowError(f"flow {graph.flow!r}: {node} has {node.partitions} partitions.")
        if node.partitions > 1 and node.key is None:
            raise FlowError(
                f"flow {graph.flow!r}: {node} has {node.partitions} partitions but no key to "
                f"spread them by. Call .key_by(function) before .sink()."
            )


def _check_connected(graph: Graph) -> None:
    if not graph.fronts:
        raise FlowError(f"flow {graph.flow!r} has no front. Begin it with flow.front(name).")
    if not graph.sinks:
        raise FlowError(f"flow {graph.flow!r} has no sink. End a stream with .sink(name).")
    ahead = [{reader for reader, _ in graph.readers[node.id]} for node in graph.nodes]
    behind = [{source.node for source in node.inputs} for node in graph.nodes]
    reached = _reachable((node.id for node in graph.nodes if isinstance(node, Front)), ahead)
    leading = _reachable((node.id for node in graph.nodes if node.ends), behind)
    for node in graph.nodes:
        if node.id not in reached:
            raise FlowError(
                f"flow {graph.flow!r}: nothing ever reaches {node}: it is fed by a loop that no "
                f"front leads into. Merge the loop with a stream that comes from a front."
            )
        if node.id not in leading:
            raise FlowError(
                f"flow {graph.flow!r}: {node} goes nowhere: what it makes only goes round a loop "
                f"and never to a sink. Give the loop a way out that ends with .sink(name)."
            )


def _reachable(roots: Iterable[int], ahead: list[set[int]]) -> set[int]:
    found: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(ahead[node])
    return found


def _check_cycles(graph: Graph) -> None:
    cycle = _cycle_without(graph, lambda node: node.orders)
    if cycle:
        raise FlowError(
            f"flow {graph.flow!r}: a cycle has no grouping: {_drawn(cycle)}. "
            f"A cycle needs one, because grouping is what puts its items in order."
        )
    cycle = _cycle_without(graph, lambda node: node.lets_end)
    if cycle:
        raise FlowError(
            f"flow {graph.flow!r}: a cycle has no map: {_drawn(cycle)}. Items could never leave "
            f"it: put a flat_map or a filter in it that ends the round."
        )


def _drawn(cycle: list[Node]) -> str:
    return " -> ".join(str(node) for node in [*cycle, cycle[0]])


def _cycle_without(graph: Graph, belongs: Callable[[Node], bool]) -> list[Node]:
    """A cycle that passes no node of this kind, or an empty list."""
    done: set[int] = set()
    for root in graph.nodes:
        if root.id in done or belongs(root):
            continue
        path: list[int] = [root.id]
        open_nodes = {root.id}
        ahead: list[Iterator[tuple[int, int]]] = [iter(graph.readers[root.id])]
        while path:
            for reader, _ in ahead[-1]:
                if reader in open_nodes:
                    return [graph.nodes[node] for node in path[path.index(reader) :]]
                if reader not in done and not belongs(graph.nodes[reader]):
                    path.append(reader)
                    open_nodes.add(reader)
                    ahead.append(iter(graph.readers[reader]))
                    break
            else:
                ahead.pop()
                last = path.pop()
                open_nodes.remove(last)
                done.add(last)
    return []
