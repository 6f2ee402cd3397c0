"""`Changes` and `GroupedChanges`: the methods of streams of changes.

As in `dsl.streams`, nothing runs here: a method adds steps to the flow. All of them are composed of map,
merge and grouping, so every runner has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from emberflow.dsl.operators.changes import aggregates, groups, tables, values
from emberflow.dsl.operators.changes.aggregates import Aggregate
from emberflow.dsl.operators.changes.change import Change, derived, key_of
from emberflow.dsl.operators.changes.tables import OfGroups, OfKeys
from emberflow.dsl.operators.changes.upserts import changes_from as changes_from_payloads
from emberflow.dsl.operators.joins.kinds import checked_kind
from emberflow.dsl.operators.joins.sides import two_sided
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller

if TYPE_CHECKING:
    from emberflow.dsl.flow import Flow
    from emberflow.dsl.streams import Stream

K = TypeVar("K")
L = TypeVar("L")
V = TypeVar("V")
U = TypeVar("U")
W = TypeVar("W")
G = TypeVar("G")
A = TypeVar("A")


class Changes(Generic[K, V]):
    """A table that changes: at most one value for each key, as the stream of its changes.

    It comes of `KeyedStream.changes`, of `emberflow.changes_from`, and of the methods here. A change that
    leaves a value equal to what it was is none. None is no value: a function that returns None for a value
    takes it out of the table.
    """

    def __init__(self, stream: Stream[Change[K, V]]) -> None:
        self._stream = stream

    def __repr__(self) -> str:
        return f"Changes of {self._stream!r}"

    @property
    def flow(self) -> Flow:
        return self._stream.flow

    def as_stream(self) -> Stream[Change[K, V]]:
        """Each change as a payload, a `Change` of key, before and after.

        >>> import emberflow as ef
        >>> flow = ef.Flow("log")
        >>> prices = flow.front("prices").key_by(lambda p: p["item"]).changes()
        >>> prices.map(lambda p: p["price"]).as_stream().sink("log")
        >>> ef.run(flow, prices=[{"item": "tea", "price": 3}, {"item": "tea", "price": 4}])["log"]
        [Change(key='tea', before=None, after=3), Change(key='tea', before=3, after=4)]
        """
        return self._stream

    def latest(self, *, name: str | None = None) -> Stream[tuple[K, V | None]]:
        """``(key, value now)`` for each change, with None for a key that has none any more: upserts.

        `emberflow.changes_from` makes the same changes of them.

        >>> import emberflow as ef
        >>> flow = ef.Flow("latest")
        >>> stock = flow.front("stock").key_by(lambda s: s[0]).changes(deletes=lambda s: s[1] == 0)
        >>> stock.map(lambda s: s[1]).latest().sink("now")
        >>> ef.run(flow, stock=[("tea", 2), ("jam", 5), ("tea", 2), ("tea", 0)])
        {'now': [('tea', 2), ('jam', 5), ('tea', None)]}
        """
        return self._stream._map(values.latest, "one", name=name, label="latest", schedules=False)

    def map(self, function: Callable[[V], U | None], *, name: str | None = None) -> Changes[K, U]:
        """The table of ``function(value)`` for each value.

        >>> import emberflow as ef
        >>> flow = ef.Flow("rounded")
        >>> prices = flow.front("prices").key_by(lambda p: p[0]).changes()
        >>> prices.map(lambda p: round(p[1])).latest().sink("out")
        >>> ef.run(flow, prices=[("tea", 2.9), ("tea", 3.1), ("tea", 4.2)])
        {'out': [('tea', 3), ('tea', 4)]}
        """
        _check_callable(function, "map")
        return self._derived("map", name, function, UserFunction("", function))

    def filter(self, predicate: Callable[[V], object], *, name: str | None = None) -> Changes[K, V]:
        """The table of those values for which the predicate holds.

        A value that does so no more is deleted, and one that does so from now on is inserted.

        >>> import emberflow as ef
        >>> flow = ef.Flow("dear")
        >>> prices = flow.front("prices").key_by(lambda p: p[0]).changes().map(lambda p: p[1])
        >>> prices.filter(lambda price: price > 3).latest().sink("out")
        >>> ef.run(flow, prices=[("tea", 2), ("tea", 4), ("tea", 5), ("tea", 1)])
        {'out': [('tea', 4), ('tea', 5), ('tea', None)]}
        """
        _check_callable(predicate, "filter")
        return self._derived("filter", name, values.Kept(predicate), UserFunction("", predicate))

    def with_key(self, *, name: str | None = None) -> Changes[K, tuple[K, V]]:
        """The table of ``(key, value)``, for functions that need both.

        >>> import emberflow as ef
        >>> flow = ef.Flow("per user")
        >>> visits = flow.front("visits").key_by(lambda v: v).changes()
        >>> by_page = visits.group_by(lambda v: v).count().with_key()
        >>> by_page.group_by(lambda row: row[0][0]).count().latest().sink("pages")
        >>> ef.run(flow, visits=[("ada", "a"), ("ada", "b"), ("bob", "a")])
        {'pages': [('ada', 1), ('ada', 2), ('bob', 1)]}
        """
        return Changes(
            self._stream._map(values.with_key, "one", name=name, label="with_key", schedules=False)
        )

    def group_by(self, function: Callable[[V], G]) -> GroupedChanges[G, K, V]:
        """The values in groups: then `sum`, `count`, `join` ...

        A value that moves to another group is taken out of the one and put into the other.

        >>> import emberflow as ef
        >>> flow = ef.Flow("by kind")
        >>> items = flow.front("items").key_by(lambda i: i["id"]).changes()
        >>> items.group_by(lambda i: i["kind"]).sum(lambda i: i["price"]).latest().sink("sums")
        >>> ef.run(
        ...     flow,
        ...     items=[
        ...         {"id": 1, "kind": "tea", "price": 3},
        ...         {"id": 2, "kind": "tea", "price": 4},
        ...         {"id": 1, "kind": "tea", "price": 5},
        ...         {"id": 2, "kind": "jam", "price": 4},
        ...     ],
        ... )
        {'sums': [('tea', 3), ('tea', 7), ('tea', 9), ('tea', 5), ('jam', 4)]}
        """
        _check_callable(function, "group_by")
        return GroupedChanges(self._stream, function)

    @overload
    def join(
        self, other: Changes[K, U], *, how: Literal["inner"] = "inner", name: str | None = None
    ) -> Changes[K, tuple[V, U]]: ...
    @overload
    def join(
        self, other: Changes[K, U], *, how: Literal["left"], name: str | None = None
    ) -> Changes[K, tuple[V, U | None]]: ...
    @overload
    def join(
        self, other: Changes[K, U], *, how: Literal["right"], name: str | None = None
    ) -> Changes[K, tuple[V | None, U]]: ...
    @overload
    def join(
        self, other: Changes[K, U], *, how: Literal["outer"], name: str | None = None
    ) -> Changes[K, tuple[V | None, U | None]]: ...
    @overload
    def join(
        self, other: Changes[K, Any], *, how: Literal["semi", "anti"], name: str | None = None
    ) -> Changes[K, V]: ...
    @overload
    def join(
        self,
        other: Changes[K, U],
        combine: Callable[[V, U], W],
        *,
        how: Literal["inner"] = "inner",
        name: str | None = None,
    ) -> Changes[K, W]: ...
    @overload
    def join(
        self,
        other: Changes[K, U],
        combine: Callable[[V, U | None], W],
        *,
        how: Literal["left"],
        name: str | None = None,
    ) -> Changes[K, W]: ...
    @overload
    def join(
        self,
        other: Changes[K, U],
        combine: Callable[[V | None, U], W],
        *,
        how: Literal["right"],
        name: str | None = None,
    ) -> Changes[K, W]: ...
    @overload
    def join(
        self,
        other: Changes[K, U],
        combine: Callable[[V | None, U | None], W],
        *,
        how: Literal["outer"],
        name: str | None = None,
    ) -> Changes[K, W]: ...
    def join(
        self,
        other: Changes[K, Any],
        combine: Callable[[Any, Any], Any] | None = None,
        *,
        how: str = "inner",
        name: str | None = None,
    ) -> Changes[K, Any]:
        """The joined table: for each key ``combine(value, value of other)``, by default a tuple.

        ``how="left"`` also has the values without one in the other table, as ``combine(value, None)``,
        until there is one; ``"right"`` and ``"outer"`` likewise. ``"semi"`` has the values whose key is in
        the other table, and ``"anti"`` those whose key is not. The values of both tables are kept. To join
        by something else than the key, group both by it: `GroupedChanges.join`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("tables")
        >>> prices = flow.front("prices").key_by(lambda p: p[0]).changes().map(lambda p: p[1])
        >>> stock = flow.front("stock").key_by(lambda s: s[0]).changes().map(lambda s: s[1])
        >>> prices.join(stock, how="left").latest().sink("out")
        >>> ef.run(flow, prices=[("tea", 3)], stock=[ef.At(1, ("tea", 9)), ef.At(2, ("jam", 1))])
        {'out': [('tea', (3, None)), ('tea', (3, 9))]}
        """
        _check_same_flow(self.flow, other, Changes, "join")
        kind = checked_kind(how, combine)
        with self.flow._scope("join", name, operator=f"{how} join of tables"):
            left, right = self._stream.key_by(key_of), other._stream.key_by(key_of)
            return Changes(tables.combined(two_sided(left, right, OfKeys(kind)), combine))

    def sink(self, name: str, *, partitions: int = 1) -> None:
        """Where the changes leave the flow, each as a `Change`; spread over partitions by key.

        `sinks.Postgres(upsert=...)` and `sinks.Kafka(upsert=True)` apply them. Other sinks store them as
        they are, with the fields key, before and after.
        """
        stream = self._stream if partitions == 1 else self._stream.key_by(key_of)
        stream.sink(name, partitions=partitions)

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            # A teaching error: a table has values that change, and no payloads that come one by one.
            if not attribute.startswith("_"):
                if hasattr(GroupedChanges, attribute):
                    raise AttributeError(
                        f"{attribute}() of a table is that of each group: call .group_by(function) before it, "
                        f"at {caller()}. For one group of all rows: .group_by(lambda value: None)."
                    )
                raise AttributeError(
                    f"a table has no {attribute}(), at {caller()}. Its changes as a stream are "
                    f".as_stream(), and (key, value now) for each of them is .latest()."
                )
            raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")

    def _derived(
        self, label: str, name: str | None, function: Callable[[Any], Any], given: UserFunction
    ) -> Changes[K, Any]:
        with self.flow._scope(label, name):
            return Changes(derived(self._stream, function, values.changed_value, given))


class GroupedChanges(Generic[G, K, V]):
    """A table in groups. Its aggregates are tables with a value for each group that has any.

    ``of`` selects what is aggregated. A value for which it gives None takes no part.
    """

    def __init__(self, stream: Stream[Change[K, V]], group: Callable[[V], G]) -> None:
        self._stream = stream
        self._group = group

    def __repr__(self) -> str:
        return f"GroupedChanges of {self._stream!r}"

    @property
    def flow(self) -> Flow:
        return self._stream.flow

    def count(self, *, name: str | None = None) -> Changes[G, int]:
        """How many values a group has."""
        return self._aggregate("count", aggregates.count(), None, name)

    def sum(
        self, of: Callable[[V], Any] | None = None, *, name: str | None = None
    ) -> Changes[G, Any]:
        """The sum of the values, or of ``of(value)``. Exact: what is taken out leaves no trace.

        >>> import emberflow as ef
        >>> flow = ef.Flow("exact")
        >>> values = flow.front("values").key_by(lambda v: v[0]).changes()
        >>> values.group_by(lambda v: None).sum(lambda v: v[1]).latest().sink("sums")
        >>> ef.run(flow, values=[("a", 0.1), ("b", 1e20), ("b", 0.2)])
        {'sums': [(None, 0.1), (None, 1e+20), (None, 0.30000000000000004)]}
        """
        return self._aggregate("sum", aggregates.total(), of, name)

    def mean(
        self, of: Callable[[V], Any] | None = None, *, name: str | None = None
    ) -> Changes[G, Any]:
        """The arithmetic mean; exact before it is rounded."""
        return self._aggregate("mean", aggregates.mean(), of, name)

    def min(
        self, of: Callable[[V], A | None] | None = None, *, name: str | None = None
    ) -> Changes[G, A]:
        """The least."""
        return self._aggregate("min", aggregates.least(), of, name)

    def max(
        self, of: Callable[[V], A | None] | None = None, *, name: str | None = None
    ) -> Changes[G, A]:
        """The greatest.

        >>> import emberflow as ef
        >>> flow = ef.Flow("highest bids")
        >>> bids = flow.front("bids").key_by(lambda b: b[0]).changes(deletes=lambda b: b[1] == 0)
        >>> bids.group_by(lambda b: None).max(lambda b: b[1]).latest().sink("highest")
        >>> ef.run(flow, bids=[("ada", 5), ("bob", 8), ("bob", 0)])
        {'highest': [(None, 5), (None, 8), (None, 5)]}
        """
        return self._aggregate("max", aggregates.greatest(), of, name)

    def count_distinct(
        self, of: Callable[[V], Any] | None = None, *, name: str | None = None
    ) -> Changes[G, int]:
        """How many different values a group has. They are anything that can be a key."""
        return self._aggregate("count_distinct", aggregates.count_distinct(), of, name)

    def collect(
        self, of: Callable[[V], A | None] | None = None, *, name: str | None = None
    ) -> Changes[G, tuple[A, ...]]:
        """All values of a group, in the order in which their keys came into it.

        A value that replaces another one in the group takes its place. Each change gives all values.

        >>> import emberflow as ef
        >>> flow = ef.Flow("teams")
        >>> people = flow.front("people").key_by(lambda p: p[0]).changes()
        >>> people.group_by(lambda p: p[1]).collect(lambda p: p[0]).latest().sink("teams")
        >>> ef.run(flow, people=[("ada", "red"), ("bob", "red"), ("ada", "blue")])["teams"]
        [('red', ('ada',)), ('red', ('ada', 'bob')), ('red', ('bob',)), ('blue', ('ada',))]
        """
        return self._aggregate("collect", aggregates.collect(), of, name)

    def fold(
        self,
        *,
        initial: A,
        combine: Callable[[A, V], A],
        inverse: Callable[[A, V], A] | None = None,
        name: str | None = None,
    ) -> Changes[G, A]:
        """An aggregate of your own, ``combine(accumulator, value)`` for each value of a group.

        ``inverse(accumulator, value)`` takes a value out again; it must undo ``combine`` in any order of
        values, and neither may raise. Without it all values are kept, and combined again with each
        change, in the order of `collect`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("products")
        >>> factors = flow.front("factors").key_by(lambda f: f[0]).changes().map(lambda f: f[1])
        >>> product = factors.group_by(lambda f: None).fold(initial=1, combine=lambda a, f: a * f)
        >>> product.latest().sink("products")
        >>> ef.run(flow, factors=[("x", 3), ("y", 5), ("x", 2)])
        {'products': [(None, 3), (None, 15), (None, 10)]}
        """
        _check_callable(combine, "fold")
        if inverse is not None:
            _check_callable(inverse, "fold")
        return self._aggregate("fold", aggregates.folded(initial, combine, inverse), None, name)

    @overload
    def join(
        self,
        other: GroupedChanges[G, L, U],
        *,
        how: Literal["inner"] = "inner",
        name: str | None = None,
    ) -> Changes[tuple[K, L], tuple[V, U]]: ...
    @overload
    def join(
        self, other: GroupedChanges[G, L, U], *, how: Literal["left"], name: str | None = None
    ) -> Changes[tuple[K, L | None], tuple[V, U | None]]: ...
    @overload
    def join(
        self, other: GroupedChanges[G, L, U], *, how: Literal["right"], name: str | None = None
    ) -> Changes[tuple[K | None, L], tuple[V | None, U]]: ...
    @overload
    def join(
        self, other: GroupedChanges[G, L, U], *, how: Literal["outer"], name: str | None = None
    ) -> Changes[tuple[K | None, L | None], tuple[V | None, U | None]]: ...
    @overload
    def join(
        self,
        other: GroupedChanges[G, Any, Any],
        *,
        how: Literal["semi", "anti"],
        name: str | None = None,
    ) -> Changes[K, V]: ...
    @overload
    def join(
        self,
        other: GroupedChanges[G, L, U],
        combine: Callable[[V, U], W],
        *,
        how: Literal["inner"] = "inner",
        name: str | None = None,
    ) -> Changes[tuple[K, L], W]: ...
    @overload
    def join(
        self,
        other: GroupedChanges[G, L, U],
        combine: Callable[[V, U | None], W],
        *,
        how: Literal["left"],
        name: str | None = None,
    ) -> Changes[tuple[K, L | None], W]: ...
    @overload
    def join(
        self,
        other: GroupedChanges[G, L, U],
        combine: Callable[[V | None, U], W],
        *,
        how: Literal["right"],
        name: str | None = None,
    ) -> Changes[tuple[K | None, L], W]: ...
    @overload
    def join(
        self,
        other: GroupedChanges[G, L, U],
        combine: Callable[[V | None, U | None], W],
        *,
        how: Literal["outer"],
        name: str | None = None,
    ) -> Changes[tuple[K | None, L | None], W]: ...
    def join(
        self,
        other: GroupedChanges[G, Any, Any],
        combine: Callable[[Any, Any], Any] | None = None,
        *,
        how: str = "inner",
        name: str | None = None,
    ) -> Changes[Any, Any]:
        """Each value of a group with each of the same group of the other table.

        The key of a joined value has the keys of both, ``(left key, right key)``, with None for the side
        that an outer join lacks; in a semi or anti join it is the left key. The values of both tables
        are kept.

        >>> import emberflow as ef
        >>> flow = ef.Flow("orders of people")
        >>> orders = flow.front("orders").key_by(lambda o: o["id"]).changes()
        >>> people = flow.front("people").key_by(lambda p: p["name"]).changes()
        >>> joined = orders.group_by(lambda o: o["by"]).join(
        ...     people.group_by(lambda p: p["name"]), lambda o, p: (o["what"], p["city"])
        ... )
        >>> joined.latest().sink("out")
        >>> ef.run(
        ...     flow,
        ...     orders=[
        ...         {"id": 1, "by": "ada", "what": "tea"},
        ...         {"id": 2, "by": "ada", "what": "jam"},
        ...     ],
        ...     people=[ef.At(7, {"name": "ada", "city": "Rome"})],
        ... )
        {'out': [((1, 'ada'), ('tea', 'Rome')), ((2, 'ada'), ('jam', 'Rome'))]}
        """
        _check_same_flow(self.flow, other, GroupedChanges, "join")
        kind = checked_kind(how, combine)
        with self.flow._scope("join", name, operator=f"{how} join of groups"):
            with self.flow._scope("groups", "left-groups"):
                left = groups.pieces(self._stream, self._group)
            with self.flow._scope("groups", "right-groups"):
                right = groups.pieces(other._stream, other._group)
            pairs = two_sided(left.key_by(key_of), right.key_by(key_of), OfGroups(kind))
            return Changes(tables.combined(pairs, combine))

    def _aggregate(
        self,
        label: str,
        aggregate: Aggregate,
        of: Callable[[Any], Any] | None,
        name: str | None,
    ) -> Changes[G, Any]:
        if of is not None:
            _check_callable(of, label)
        operator = f"{label} of changes{aggregate.form}"
        with self.flow._scope(label, name, operator=operator):
            return Changes(groups.aggregated(self._stream, self._group, of, aggregate))


@overload
def changes_from(
    stream: Stream[tuple[K, V | None]],
    *,
    format: Literal["upserts"] = "upserts",
    name: str | None = None,
) -> Changes[K, V]: ...
@overload
def changes_from(
    stream: Stream[Any],
    *,
    format: Literal["debezium"],
    key: str | Sequence[str] | Callable[[dict[str, Any]], Any],
    name: str | None = None,
) -> Changes[Any, dict[str, Any]]: ...
def changes_from(
    stream: Stream[Any],
    *,
    format: str = "upserts",
    key: str | Sequence[str] | Callable[[dict[str, Any]], Any] | None = None,
    name: str | None = None,
) -> Changes[Any, Any]:
    """The changes of a table, of a stream that tells them: upserts, or the envelopes of Debezium.

    An upsert is a pair ``(key, value)``, and ``(key, None)`` deletes. The records that
    `fronts.Kafka(key=...)` gives are such pairs, so this reads a compacted topic.

    >>> import emberflow as ef
    >>> flow = ef.Flow("upserts")
    >>> ef.changes_from(flow.front("upserts")).as_stream().map(tuple).sink("changes")
    >>> ef.run(flow, upserts=[("a", 1), ("a", 2), ("b", None), ("a", None)])
    {'changes': [('a', None, 1), ('a', 1, 2), ('a', 2, None)]}

    ``format="debezium"``: payloads are envelopes (``op``, ``before``, ``after``). ``key`` is the column
    of the primary key, or several, or a function of the row. Tombstones are skipped. An envelope that
    cannot be understood is an error, and with ``onError="divert"`` a record of the errors sink.

    >>> flow = ef.Flow("debezium")
    >>> rows = ef.changes_from(flow.front("envelopes"), format="debezium", key="id")
    >>> rows.map(lambda row: row["name"]).latest().sink("names")
    >>> ef.run(
    ...     flow,
    ...     envelopes=[
    ...         {"op": "c", "before": None, "after": {"id": 1, "name": "ada"}},
    ...         {"op": "u", "before": {"id": 1, "name": "ada"}, "after": {"id": 1, "name": "eve"}},
    ...         {"op": "d", "before": {"id": 1, "name": "eve"}, "after": None},
    ...     ],
    ... )
    {'names': [(1, 'ada'), (1, 'eve'), (1, None)]}
    """
    if not hasattr(stream, "_input"):
        raise FlowError(f"changes_from() takes a stream, got {stream!r} at {caller()}.")
    return Changes(changes_from_payloads(stream, format, key, name))


def _check_callable(function: object, step: str) -> None:
    if not callable(function):
        raise FlowError(f"{step}() of changes takes a function, got {function!r} at {caller()}.")


def _check_same_flow(flow: Flow, other: object, kind: type, step: str) -> None:
    if not isinstance(other, kind):
        raise FlowError(
            f"{step}() of {kind.__name__} takes {kind.__name__}, got {other!r} at {caller()}."
        )
    if other.flow is not flow:  # type: ignore[attr-defined]
        raise FlowError(
            f"{step}() at {caller()} mixes streams of two flows, {flow.name!r} and "
            f"{other.flow.name!r}. Build one flow, or connect them by a sink and a front."  # type: ignore[attr-defined]
        )
