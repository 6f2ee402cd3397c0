"""Whether a history of transactions is serializable, decided from what the transactions saw alone.

After Adya, Liskov and O'Neil, "Generalized isolation level definitions". Nothing here knows how
transactions are executed; the module imports nothing of the package but an algorithm on graphs.

**Histories.** Values are lists. Transactions only `Append` values, each of them to a key at most
once, and `Read` whole lists. So a list that a transaction read identifies its version and the order
of all versions before: the *version order* is derived, not given. (The trick is that of Elle, by
Kingsbury and Alvaro.) A list that ends with the reader's own appends is a version as well.

**Unknown outcomes.** A transaction may have been committed or not (``committed=None``): its client was
not told. If a committed transaction read one of its values, or the final lists have one, it was
committed, with everything that it did. If not, the history is judged without it: whatever explains the
history with it also explains the history without it.

**The graph.** Its nodes are the committed transactions; an edge says that one has to be before
another in every serial order that explains the reads:

====  =========================================================================================
ww    the one appended a value, the other the next value of that key
wr    the other read a list that ends with what the one appended
rw    the one read a list, and the other appended the value that comes next (an anti-dependency)
====  =========================================================================================

Committed values that no transaction read come after all that were read, in an unknown order.

==============  ===============================================================================
kind            what was found
==============  ===============================================================================
G0              a cycle of ww: writes of two transactions are interleaved
G1a             a committed transaction read a value that a rejected one appended
G1b             ... or an intermediate value: its writer appended another behind it
G1c             a cycle of ww and wr: information flows in a circle
lost update     two transactions read one version of a key, and both appended to it
G-single        a cycle with exactly one rw, but for lost updates
G2              a cycle with several rw, as write skew is, where no cycle with one rw is
internal        a transaction does not see its own appends, or reads two different lists
duplicate       a list has a value twice, or a transaction was recorded twice
unknown value   a list has a value that no transaction appended
version order   neither of two lists of a key is a prefix of the other, or the values of one
                transaction are in another order than it appended them
lost append     a committed value is not in the final list
==============  ===============================================================================

A strong component of the graph may have many cycles. The judge reports one for each of ww, ww with wr,
and rw: of the last, one with a single rw if there is any.

If there is none of these, any topological order of the nodes is a serial order that explains all
reads of committed transactions, and the final lists. If there is one, no order does. (For small
histories the tests compare both with an exhaustive search over all orders.)

**A given order.** Serializable means that some order explains the history. `find_disorder` demands
the order of ``Observed.at``: it executes one transaction after another in that order. The reads of
rejected transactions must match too, though their appends do not last.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from emberflow.guarantees.cycles import closing, shortest_path, strong_components

Key: TypeAlias = Hashable
Value: TypeAlias = Hashable

#: The number of edges on a cycle that the search for a short one tries.
_TRIED_MAX = 50


class Append(NamedTuple):
    """The transaction appended a value to a key's list."""

    key: Key
    value: Value


class Read(NamedTuple):
    """The transaction saw the whole list of a key."""

    key: Key
    seen: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Observed:
    """The operations of a transaction, in its order."""

    name: Hashable
    operations: Sequence[Append | Read]
    #: None if the outcome is unknown. Leave out its reads whose results are unknown, too.
    committed: bool | None = True
    #: Its position in the claimed order, if there is one.
    at: Any = None

    def appended(self, key: Key) -> list[Value]:
        return [one.value for one in self.operations if isinstance(one, Append) and one.key == key]


class Anomaly(NamedTuple):
    """An observation that no serial execution can produce."""

    kind: str
    evidence: str
    transactions: tuple[Hashable, ...]
    keys: tuple[Key, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.evidence}"


def find_anomalies(
    history: Iterable[Observed], *, final: Mapping[Any, Sequence[Value]] | None = None
) -> list[Anomaly]:
    """The anomalies of a history; none if it is serializable.

    ``final`` has the lists of all keys at the end, if known.

    >>> history = [
    ...     Observed("ada", [Read("x", ()), Append("y", 1)]),
    ...     Observed("bob", [Read("y", ()), Append("x", 2)]),
    ... ]
    >>> (skew,) = find_anomalies(history)
    >>> print(skew)
    G2: 'ada' -> 'bob': 'ada' read no value in 'x', and 'bob' appended 2 to it;
        'bob' -> 'ada': 'bob' read no value in 'y', and 'ada' appended 1 to it
    """
    return _Judgement(history, final).anomalies


def find_disorder(
    history: Iterable[Observed], *, final: Mapping[Any, Sequence[Value]] | None = None
) -> list[Anomaly]:
    """The differences from an execution of one transaction after another, in the order of ``at``.

    The reads of rejected transactions have to match, too.

    >>> late = [
    ...     Observed("ada", [Append("x", 1)], at=1),
    ...     Observed("bob", [Read("x", ())], at=2),
    ... ]
    >>> find_anomalies(late)  # bob may have been first
    []
    >>> print(find_disorder(late)[0])
    out of order: 'bob' read () in 'x', which was (1,) then
    """
    lists: dict[Key, list[Value]] = {}
    found: list[Anomaly] = []
    ahead: Observed | None = None
    # Here the reads of all transactions have to match, so that each of them is a proof.
    decided = _decided(list(history), final, are_proofs=lambda transaction: True)
    for transaction in sorted(decided, key=lambda one: one.at):
        if ahead is not None and ahead.at == transaction.at:
            evidence = f"{ahead.name!r} and {transaction.name!r} are both at {transaction.at!r}"
            found.append(_anomaly("out of order", evidence, transaction))
        ahead = transaction
        own: dict[Key, list[Value]] = {}
        for one in transaction.operations:
            there = own[one.key] if one.key in own else lists.get(one.key, [])
            if isinstance(one, Append):
                own[one.key] = [*there, one.value]
            elif list(one.seen) != there:
                evidence = f"read {_list(one.seen)} in {one.key!r}, which was {_list(there)} then"
                found.append(
                    _anomaly("out of order", f"{transaction.name!r} {evidence}", transaction)
                )
        if transaction.committed:
            lists.update(own)
    for key in [] if final is None else dict.fromkeys([*lists, *final]):
        should, holds = lists.get(key, []), list((final or {}).get(key, ()))
        if holds != should:
            evidence = f"{key!r} holds {_list(holds)} at the end, and should {_list(should)}"
            found.append(Anomaly("out of order", evidence, (), (key,)))
    return found


def _decided(
    history: Sequence[Observed],
    final: Mapping[Any, Sequence[Value]] | None,
    *,
    are_proofs: Callable[[Observed], bool],
) -> list[Observed]:
    """The history without unknown outcomes: what was seen of a transaction proves that it happened.

    ``are_proofs`` says of whom the reads are proofs. Those of a transaction that is proven are, too.
    """
    unknown = {
        (one.key, one.value): number
        for number, transaction in enumerate(history)
        if transaction.committed is None
        for one in transaction.operations
        if isinstance(one, Append)
    }
    shown = [(key, value) for key, values in (final or {}).items() for value in values]
    happened = {unknown[at] for at in shown if at in unknown}
    waiting = [number for number, one in enumerate(history) if are_proofs(one)]
    waiting += [number for number in happened if not are_proofs(history[number])]
    while waiting:
        reader = waiting.pop()
        for one in history[reader].operations:
            for value in one.seen if isinstance(one, Read) else ():
                writer = unknown.get((one.key, value))
                if writer is not None and writer != reader and writer not in happened:
                    happened.add(writer)
                    if not are_proofs(history[writer]):
                        waiting.append(writer)
    return [
        replace(one, committed=number in happened) if one.committed is None else one
        for number, one in enumerate(history)
    ]


class _Edge(NamedTuple):
    kind: str
    key: Key
    #: The value before ``next``, or the last value of the list that was read; None if it was empty.
    value: Value | None
    next: Value | None

    def described(self, one: str, other: str) -> str:
        key = repr(self.key)
        if self.kind == "wr":
            return f"{one} appended {self.value!r} to {key}, and {other} read that"
        if self.kind == "rw":
            read = "no value" if self.value is None else f"up to {self.value!r}"
            return f"{one} read {read} in {key}, and {other} appended {self.next!r} to it"
        return f"{one} appended {self.value!r} to {key}, and then {other} {self.next!r}"


class _SeenList(NamedTuple):
    """A list that a committed transaction read."""

    reader: int
    values: Sequence[Value]
    #: How many values at its end are the reader's own.
    own: int

    @property
    def others(self) -> Sequence[Value]:
        return self.values[: len(self.values) - self.own]


#: From one node to others: the most severe edge between the two.
_Graph: TypeAlias = dict[int, dict[int, _Edge]]
_SEVERITY = {"ww": 0, "wr": 1, "rw": 2}


@dataclass(slots=True)
class _Judgement:
    history: Iterable[Observed]
    final: Mapping[Any, Sequence[Value]] | None
    anomalies: list[Anomaly] = field(default_factory=list)
    nodes: list[Observed] = field(default_factory=list)
    #: By key and value, the number of the transaction that appended it.
    appended: dict[Key, dict[Value, int]] = field(default_factory=dict)
    reads: dict[Key, list[_SeenList]] = field(default_factory=dict)
    graph: _Graph = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index()
        for number, transaction in enumerate(self.nodes):
            if transaction.committed:
                self._look_inside(number, transaction)
        for key in dict.fromkeys([*self.appended, *self.reads, *(self.final or ())]):
            self._connect(key)
        self._look_for_cycles()

    def _found(self, kind: str, evidence: str, *transactions: Observed, key: Key) -> None:
        names = tuple(transaction.name for transaction in transactions)
        self.anomalies.append(Anomaly(kind, evidence, names, (key,)))

    def _index(self) -> None:
        names: set[Hashable] = set()
        history = _decided(
            list(self.history), self.final, are_proofs=lambda one: one.committed is True
        )
        for transaction in history:
            if transaction.name in names:
                evidence = f"{transaction.name!r} was recorded more than once"
                self.anomalies.append(Anomaly("duplicate", evidence, (transaction.name,), ()))
                continue
            names.add(transaction.name)
            number = len(self.nodes)
            self.nodes.append(transaction)
            for one in transaction.operations:
                if not isinstance(one, Append):
                    continue
                writers = self.appended.setdefault(one.key, {})
                if one.value in writers:
                    other = self.nodes[writers[one.value]]
                    raise ValueError(
                        f"the value {one.value!r} is appended to {one.key!r} by {other.name!r} and "
                        f"by {transaction.name!r}. To tell versions apart, every value has to be "
                        f"appended to a key only once."
                    )
                writers[one.value] = number

    def _writer(self, key: Key, value: Value) -> Observed | None:
        number = self.appended.get(key, {}).get(value)
        return None if number is None else self.nodes[number]

    def _look_inside(self, number: int, transaction: Observed) -> None:
        """Find anomalies within one transaction, and record its reads of other transactions' values."""
        own: dict[Key, list[Value]] = {}
        known: dict[Key, list[Value]] = {}
        for one in transaction.operations:
            key = one.key
            if isinstance(one, Append):
                own.setdefault(key, []).append(one.value)
                continue
            mine, seen = own.get(key, []), list(one.seen)
            split = len(seen) - len(mine)
            others = seen[: max(split, 0)]
            if split < 0 or seen[split:] != mine or known.setdefault(key, others) != others:
                should = [*known[key], *mine] if key in known else mine
                evidence = (
                    f"{transaction.name!r} read {_list(seen)} in {key!r}, where by what it did "
                    f"before it should see {'' if key in known else '... '}{_list(should)}"
                )
                self._found("internal", evidence, transaction, key=key)
                continue
            if self._is_sound(transaction, key, seen, others):
                self.reads.setdefault(key, []).append(_SeenList(number, seen, len(mine)))

    def _is_sound(self, reader: Observed, key: Key, seen: list[Value], others: list[Value]) -> bool:
        """Whether each value of a read occurs once and is of a committed transaction."""
        name, shown = repr(reader.name), _list(seen)
        if len(set(seen)) < len(seen):
            twice = next(value for value in seen if seen.count(value) > 1)
            evidence = f"{name} read {shown} in {key!r}, with {twice!r} twice"
            self._found("duplicate", evidence, reader, key=key)
            return False
        for value in others:
            writer = self._writer(key, value)
            if writer is None:
                evidence = f"{name} read {shown} in {key!r}, and no transaction appended {value!r}"
                self._found("unknown value", evidence, reader, key=key)
            elif writer is reader:
                evidence = f"{name} read {shown} in {key!r} before it appended {value!r} itself"
                self._found("internal", evidence, reader, key=key)
            elif not writer.committed:
                evidence = (
                    f"{name} read {shown} in {key!r}; {value!r} is of {writer.name!r}: rejected"
                )
                self._found("G1a", evidence, reader, writer, key=key)
            else:
                continue
            return False
        if others:
            last = self.nodes[self.appended[key][others[-1]]]
            if last.appended(key)[-1] != others[-1]:
                evidence = (
                    f"{name} read {shown} in {key!r}; behind {others[-1]!r}, {last.name!r} appended "
                    f"{last.appended(key)[-1]!r} too"
                )
                self._found("G1b", evidence, reader, last, key=key)
        return True

    def _versions(self, key: Key) -> list[Value] | None:
        """The order of a key's values, as far as it was read; None if reads contradict it."""
        lists = dict.fromkeys(tuple(seen.values) for seen in self.reads.get(key, ()))
        if self.final is not None:
            lists[tuple(self._final(key))] = None
        ordered = sorted(lists, key=len)
        for one, other in pairwise(ordered):
            if other[: len(one)] != one:
                evidence = f"of {key!r} both {_list(one)} and {_list(other)} were seen"
                self.anomalies.append(Anomaly("version order", evidence, (), (key,)))
                return None
        return list(ordered[-1]) if ordered else []

    def _final(self, key: Key) -> list[Value]:
        """The final list of a key without values that should not be there."""
        assert self.final is not None
        there = list(self.final.get(key, ()))
        sound: dict[Value, None] = {}
        for value in there:
            writer = self._writer(key, value)
            evidence = f"at the end {key!r} holds {_list(there)}"
            if value in sound:
                self._found("duplicate", f"{evidence}, with {value!r} twice", key=key)
            elif writer is None:
                evidence = f"{evidence}, and no transaction appended {value!r}"
                self._found("unknown value", evidence, key=key)
            elif not writer.committed:
                evidence = f"{evidence}; {value!r} is of {writer.name!r}: rejected"
                self._found("G1a", evidence, writer, key=key)
            else:
                sound[value] = None
        for value, number in self.appended.get(key, {}).items():
            writer = self.nodes[number]
            if writer.committed and value not in sound:
                evidence = (
                    f"{writer.name!r} appended {value!r} to {key!r}, which is not there at the end"
                )
                self._found("lost append", evidence, writer, key=key)
        return list(sound)

    def _connect(self, key: Key) -> None:
        versions = self._versions(key)
        if versions is None:
            self._look_for_lost_updates(key)
            return
        appended = self.appended.get(key, {})
        seen = set(versions)
        writers = [appended[value] for value in versions]
        self._look_at_order(key, versions, writers)
        # The first unread value of each writer. Their order is unknown.
        unseen: dict[int, Value] = {}
        if self.final is None:
            for value, number in appended.items():
                if value not in seen and self.nodes[number].committed:
                    unseen.setdefault(number, value)
        last = len(versions) - 1
        for position, (value, writer) in enumerate(zip(versions, writers, strict=True)):
            if position < last:
                edge = _Edge("ww", key, value, versions[position + 1])
                self._edge(writer, writers[position + 1], edge)
            else:
                for other, next_ in unseen.items():
                    self._edge(writer, other, _Edge("ww", key, value, next_))
        for seen_list in self.reads.get(key, ()):
            reader, others = seen_list.reader, seen_list.others
            if others:
                self._edge(writers[len(others) - 1], reader, _Edge("wr", key, others[-1], None))
            end = len(seen_list.values)
            value = seen_list.values[-1] if end else None
            if end < len(versions):
                self._edge(reader, writers[end], _Edge("rw", key, value, versions[end]))
            else:
                for other, next_ in unseen.items():
                    self._edge(reader, other, _Edge("rw", key, value, next_))

    def _look_at_order(self, key: Key, versions: list[Value], writers: list[int]) -> None:
        """Check that each transaction's values are in the order in which it appended them."""
        by_writer: dict[int, list[Value]] = {}
        for value, writer in zip(versions, writers, strict=True):
            by_writer.setdefault(writer, []).append(value)
        for writer, values in by_writer.items():
            transaction = self.nodes[writer]
            did = transaction.appended(key)
            if did[: len(values)] != values:
                evidence = (
                    f"{transaction.name!r} appended {_list(did)} to {key!r}, and {_list(values)} "
                    f"was seen of that"
                )
                self._found("version order", evidence, transaction, key=key)

    def _edge(self, one: int, other: int, edge: _Edge) -> None:
        if one == other:
            return
        edges = self.graph.setdefault(one, {})
        there = edges.get(other)
        if there is None or _SEVERITY[edge.kind] < _SEVERITY[there.kind]:
            edges[other] = edge

    # Cycles. The graph keeps only the most severe edge between two nodes: a cycle through a less
    # severe one is also a cycle of the more severe kind.

    def _look_for_cycles(self) -> None:
        for kinds in ({"ww"}, {"ww", "wr"}, {"ww", "wr", "rw"}):
            graph = _only(self.graph, kinds)
            worst = max(kinds, key=lambda kind: _SEVERITY[kind])
            for component in strong_components(graph):
                cycle = self._shortest(graph, component, worst)
                if cycle:
                    self.anomalies.append(self._cycle_anomaly(cycle))

    def _shortest(self, graph: _Graph, component: list[int], kind: str) -> list[int]:
        """A short cycle of a component through an edge of a kind, with a single rw if there is one."""
        inside = set(component)
        edges = [
            (one, other)
            for one in component
            for other, edge in graph.get(one, {}).items()
            if edge.kind == kind and other in inside
        ]
        if not edges:
            return []
        among = graph
        if kind == "rw":
            plain = _only(graph, {"ww", "wr"})
            single = list(closing(_within(plain, inside), edges))
            if single:
                among, edges = plain, single
        # Every edge within a strong component is on a cycle.
        paths = [shortest_path(among, other, one, inside) for one, other in edges[:_TRIED_MAX]]
        return min(paths, key=len)

    def _cycle_anomaly(self, cycle: list[int]) -> Anomaly:
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        edges = [self.graph[one][other] for one, other in steps]
        kinds = [edge.kind for edge in edges]
        if self._is_lost_update(steps, edges):
            kind = "lost update"
        elif "rw" in kinds:
            kind = "G2" if kinds.count("rw") > 1 else "G-single"
        else:
            kind = "G1c" if "wr" in kinds else "G0"
        names = [repr(self.nodes[number].name) for number in cycle]
        evidence = ";\n    ".join(
            f"{one} -> {other}: {edge.described(one, other)}"
            for edge, one, other in zip(edges, names, [*names[1:], names[0]], strict=True)
        )
        return Anomaly(
            kind,
            evidence,
            tuple(self.nodes[number].name for number in cycle),
            tuple(dict.fromkeys(edge.key for edge in edges)),
        )

    def _is_lost_update(self, steps: list[tuple[int, int]], edges: list[_Edge]) -> bool:
        read = [edge for edge in edges if edge.kind == "rw"]
        if len(edges) != 2 or not read or any(edge.kind == "wr" for edge in edges):
            return False
        key = read[0].key
        lists = [
            {tuple(seen.others) for seen in self.reads.get(key, ()) if seen.reader == one}
            for one, _ in steps
        ]
        return bool(lists[0] & lists[1]) and all(self.nodes[one].appended(key) for one, _ in steps)

    def _look_for_lost_updates(self, key: Key) -> None:
        """Find lost updates of a key whose version order is unknown, so that no cycle shows them."""
        readers: dict[tuple[Value, ...], dict[int, None]] = {}
        for seen in self.reads.get(key, ()):
            if self.nodes[seen.reader].appended(key):
                readers.setdefault(tuple(seen.others), {})[seen.reader] = None
        for version, numbers in readers.items():
            if len(numbers) > 1:
                updaters = [self.nodes[number] for number in numbers]
                names = " and ".join(repr(updater.name) for updater in updaters)
                evidence = f"{names} read {_list(version)} in {key!r}, and appended to it"
                self._found("lost update", evidence, *updaters, key=key)


def _anomaly(kind: str, evidence: str, transaction: Observed) -> Anomaly:
    keys = tuple(dict.fromkeys(one.key for one in transaction.operations))
    return Anomaly(kind, evidence, (transaction.name,), keys)


def _list(values: Sequence[Value]) -> str:
    """The end of a list, short enough to be read."""
    shown = tuple(values[-6:])
    return repr(shown) if len(values) <= 6 else f"(... {repr(shown)[1:]}"


def _within(graph: _Graph, inside: set[int]) -> dict[int, list[int]]:
    return {one: [other for other in graph.get(one, ()) if other in inside] for one in inside}


def _only(graph: _Graph, kinds: set[str]) -> _Graph:
    return {
        one: {other: edge for other, edge in edges.items() if edge.kind in kinds}
        for one, edges in graph.items()
    }
