"""Streams: the methods of the fluent API.

Nothing runs here, and a stream holds no payloads: it is one output of a draft of its flow, and each
method adds drafts. Methods that take more than one operation are in `dsl.operators`, one idea a
file; this module has only their names, types and examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

from emberflow.dsl import operators
from emberflow.dsl.operators.aggregates import catalogue
from emberflow.dsl.operators.changes import Changes
from emberflow.dsl.operators.transactions import Transaction
from emberflow.errors import FlowError
from emberflow.graph.nodes import Broadcast, Group, Input, Key, Map, MapMode, Merge, Sink
from emberflow.values.functions import UserFunction, caller, field_advice, itself
from emberflow.values.item import At, Timed
from emberflow.values.times import Duration, Time

if TYPE_CHECKING:
    from emberflow.dsl.flow import Flow
    from emberflow.dsl.operators.aggregates import Aggregate
    from emberflow.dsl.operators.windows import (
        GatheredWindows,
        OverStream,
        TimeWindows,
        WindowedStream,
        WindowResult,
        WindowSpec,
    )
    from emberflow.dsl.operators.windows.updates import UpdatedWindows

T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D")
V = TypeVar("V")
K = TypeVar("K")
A = TypeVar("A")
R = TypeVar("R")

#: How far the times of a pair may be apart: ``d`` for ``(-d, d)``, or ``(low, high)``.
Within: TypeAlias = Duration | tuple[Duration, Duration]


class Stream(Generic[T]):
    """An ordered, unlimited sequence of payloads: the output of one step of a flow.

    Any number of steps may read a stream; every reader gets every payload.
    """

    def __init__(self, flow: Flow, node: int, port: int = 0, key: Key | None = None) -> None:
        self.flow = flow
        self._input = Input(node, port, key)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.flow._drafts[self._input.node]}"

    def _map(
        self,
        function: Callable[..., Any],
        mode: MapMode,
        *given: UserFunction,
        timed: bool = False,
        name: str | None = None,
        label: str = "map",
        **rest: Any,
    ) -> Stream[Any]:
        return self.flow._add(
            Map,
            name,
            label=label,
            inputs=(self._input,),
            function=function,
            given=given,
            mode=mode,
            timed=timed,
            **rest,
        )

    def flat_map(
        self, function: Callable[[T], Iterable[U | At[U]]], *, name: str | None = None
    ) -> Stream[U]:
        """One payload to any number of payloads, including none, in the order of the function.

        >>> import emberflow as ef
        >>> flow = ef.Flow("words")
        >>> flow.front("lines").flat_map(str.split).sink("words")
        >>> ef.run(flow, lines=["to be", "", "or not"])
        {'words': ['to', 'be', 'or', 'not']}

        A payload wrapped in `At` is scheduled: the next step gets it at that later time.

        >>> flow = ef.Flow("echo")
        >>> flow.front("calls").flat_map(lambda c: [c, ef.At(10, c + "!")]).sink("heard")
        >>> ef.run(flow, calls=[ef.At(1, "hey"), ef.At(8, "ho"), ef.At(12, "hi")][:2])
        {'heard': ['hey', 'ho', 'hey!', 'ho!']}
        """
        _check_callable(function, "flat_map")
        return self._map(function, "many", UserFunction("", function), name=name, label="flat_map")

    def map(self, function: Callable[[T], U | At[U]], *, name: str | None = None) -> Stream[U]:
        """One payload to one payload.

        >>> import emberflow as ef
        >>> flow = ef.Flow("squares")
        >>> flow.front("numbers").map(lambda n: n * n).sink("squares")
        >>> ef.run(flow, numbers=[1, 2, 3])
        {'squares': [1, 4, 9]}
        """
        _check_callable(function, "map")
        return self._map(function, "one", UserFunction("", function), name=name)

    def filter(self, predicate: Callable[[T], object], *, name: str | None = None) -> Stream[T]:
        """Only the payloads for which the predicate holds.

        >>> import emberflow as ef
        >>> flow = ef.Flow("even")
        >>> flow.front("numbers").filter(lambda n: n % 2 == 0).sink("even")
        >>> ef.run(flow, numbers=range(5))
        {'even': [0, 2, 4]}
        """
        _check_callable(predicate, "filter")
        return self._map(predicate, "keep", UserFunction("", predicate), name=name, label="filter")

    def with_time(self, *, name: str | None = None) -> Stream[Timed[T]]:
        """Each payload as `Timed(time, payload)`, with the time of its item.

        >>> import emberflow as ef
        >>> flow = ef.Flow("times")
        >>> flow.front("words").with_time().sink("timed")
        >>> ef.run(flow, words=[ef.At(7, "a")])
        {'timed': [Timed(time=7, payload='a')]}
        """
        return self._map(Timed, "one", timed=True, name=name, label="with_time")

    def broadcast(self, copies: int, *, name: str | None = None) -> tuple[Stream[T], ...]:
        """The stream ``copies`` times. Reading a stream more than once does the same.

        >>> import emberflow as ef
        >>> flow = ef.Flow("both ways")
        >>> up, down = flow.front("numbers").broadcast(2)
        >>> ef.merge(up.map(lambda n: n), down.map(lambda n: -n)).sink("numbers")
        >>> ef.run(flow, numbers=[1, 2])
        {'numbers': [1, -1, 2, -2]}
        """
        _check_count(copies, "broadcast", "copies", 1)
        node = self.flow._draft(Broadcast, name, inputs=(self._input,), copies=copies)
        return tuple(Stream(self.flow, node.id, port) for port in range(copies))

    def key_by(self, function: Callable[[T], K]) -> KeyedStream[K, T]:
        """The key for the next step: payloads of one key meet on one worker, in one bucket.

        A key is anything with one canonical form: strings, numbers, bytes, tuples, enums, frozen
        dataclasses, dates. The same key always goes to the same worker.
        """
        _check_callable(function, "key_by")
        key = Key(function, UserFunction("key", function))
        return KeyedStream(self.flow, self._input.node, self._input.port, key)

    def distinct(self, *, ttl: Duration | None = None, name: str | None = None) -> Stream[T]:
        """Only the first of equal payloads; with ``ttl``, only those with no equal one that passed less than
        ``ttl`` before.

        >>> import emberflow as ef
        >>> flow = ef.Flow("distinct")
        >>> flow.front("words").distinct().sink("new")
        >>> ef.run(flow, words=["a", "b", "a"])
        {'new': ['a', 'b']}
        """
        return operators.distinct(self.key_by(itself), ttl=ttl, name=name)

    def per_window(self: Stream[WindowResult]) -> GatheredWindows:
        """The results of all keys of each window together; then top, collect, aggregate ...

        The stream has the results of windows of time with ``emit="close"``, and its steps in between may
        filter them. What comes out is a `WindowResult` for each window, with the key None, one unit of time
        behind the end of the window.

        >>> import emberflow as ef
        >>> flow = ef.Flow("best sellers")
        >>> sold = flow.front("sold").key_by(lambda item: item)
        >>> counts = sold.window(ef.Tumbling(10), emit="close").count()
        >>> best = counts.per_window().top(1, by=lambda result: result.value)
        >>> best.map(lambda r: (r.window.start, [(b.key, b.value) for b in r.value])).sink("best")
        >>> ef.run(flow, sold=[ef.At(t, item) for t, item in enumerate("aabbbccccaaa")])
        {'best': [(0, [('c', 4)]), (10, [('a', 2)])]}
        """
        return operators.GatheredWindows(self)

    def transaction(self, *, name: str | None = None) -> Transaction[T]:
        """Open a transaction for each payload: ``with ... as tx:``.

        Its updates of states are applied all together or not at all. Transactions take effect one
        after another, in the order of their payloads. See docs/transactions.md.

        >>> import emberflow as ef
        >>> flow = ef.Flow("transfers")
        >>> accounts = flow.state("accounts", default=10)
        >>> with flow.front("transfers").transaction() as tx:
        ...     taken = tx.key_by(lambda t: t[0]).update(
        ...         accounts, lambda balance, t: balance - t[2], check=lambda balance: balance >= 0
        ...     )
        ...     given = tx.key_by(lambda t: t[1]).update(accounts, lambda b, t: b + t[2])
        >>> tx.committed.sink("done")
        >>> ef.run(flow, transfers=[("ada", "bob", 8), ("ada", "bob", 8), ("bob", "ada", 18)])
        {'done': [('ada', 'bob', 8), ('bob', 'ada', 18)]}
        """
        return Transaction(self, name)

    def sink(self, name: str, *, partitions: int = 1) -> None:
        """Where the stream leaves the flow, in order.

        Several partitions need a `key_by` before: each key has its partition, and the order holds
        within a partition. Their number belongs to the flow, never to the deployment.
        """
        _check_count(partitions, "sink", "partitions", 1)
        if partitions > 1 and self._input.key is None:
            raise FlowError(
                f"flow {self.flow.name!r}: sink {name!r} ({caller()}) has {partitions} partitions "
                f"but no key to spread them by. Call .key_by(function) before .sink()."
            )
        self.flow._draft(Sink, name, inputs=(self._input,), partitions=partitions)

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            if attribute in ("update", "read"):
                raise AttributeError(
                    f"{attribute}() works within a transaction, not at {caller()}. Write: "
                    f"with stream.transaction() as tx: tx.key_by(function).{attribute}(state, ...)"
                )
            # A teaching error: these are the methods people look for on a plain stream.
            if not attribute.startswith("_") and hasattr(KeyedStream, attribute):
                raise AttributeError(
                    f"{attribute}() works on a keyed stream: call .key_by(function) before it, "
                    f"at {caller()}."
                )
            raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")


class Loop(Stream[T]):
    """A stream whose source you give later, with `close`."""

    def close(self, feedback: Stream[T]) -> None:
        """Give the loop its source: the loop repeats every payload of ``feedback``."""
        loops = self.flow._feedback
        draft = self.flow._drafts[self._input.node]
        _check_same_flow(self.flow, feedback, f"{draft}")
        _check_unkeyed("close()", feedback)
        if self._input.node in loops:
            raise FlowError(f"flow {self.flow.name!r}: {draft} is closed twice, again {caller()}.")
        if feedback._input.node == self._input.node:
            raise FlowError(
                f"flow {self.flow.name!r}: {draft} is closed with itself at {caller()}. "
                f"Close it with a stream that comes from a step the loop leads into."
            )
        loops[self._input.node] = feedback._input
        self.flow._graph = None


class KeyedStream(Stream[T], Generic[K, T]):
    """A stream with a key for its next step. Every operator with state by key starts here."""

    @property
    def _key(self) -> Key:
        key = self._input.key
        assert key is not None, "a keyed stream is made with a key"
        return key

    def group(self, window: int, *, name: str | None = None) -> Stream[tuple[T, ...]]:
        """For each payload, the last ``window`` payloads of its key, in order, ending with it.

        >>> import emberflow as ef
        >>> flow = ef.Flow("parity")
        >>> flow.front("numbers").key_by(lambda n: n % 2).group(window=3).sink("tuples")
        >>> ef.run(flow, numbers=[1, 2, 3, 4, 5, 6, 7])["tuples"]
        [(1,), (2,), (1, 3), (2, 4), (1, 3, 5), (2, 4, 6), (3, 5, 7)]
        """
        _check_count(window, "group", "window", 1)
        return self.flow._add(Group, name, inputs=(self._input,), window=window)

    @overload
    def reduce(
        self,
        *,
        first: Callable[[T], A],
        combine: Callable[[A, T], A],
        with_key: Literal[False] = False,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[A]: ...
    @overload
    def reduce(
        self,
        *,
        first: Callable[[T], A],
        combine: Callable[[A, T], A],
        with_key: Literal[True],
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, A]]: ...
    def reduce(
        self,
        *,
        first: Callable[[T], A],
        combine: Callable[[A, T], A],
        with_key: bool = False,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Each key's accumulator after each payload; ``with_key`` gives ``(key, accumulator)``.

        Accumulators are values: ``combine`` returns a new one and leaves the old one as it was.

        >>> import emberflow as ef
        >>> flow = ef.Flow("longest")
        >>> words = flow.front("words").key_by(lambda word: word[0])
        >>> words.reduce(first=lambda w: w, combine=lambda a, w: max(a, w, key=len)).sink("longest")
        >>> ef.run(flow, words=["ash", "bee", "ant", "birch"])
        {'longest': ['ash', 'bee', 'ash', 'birch']}

        A key is kept for ever, unless ``expire_after=d`` gives it a time to live: a payload that comes
        ``d`` or more after the last one of its key finds the key new. All payloads of the key count, and
        their own times, so the output is the same whenever they arrive. Nobody sees a key whose time is
        over, and its memory is given back. Several operators have it: see docs/state.md.

        >>> flow = ef.Flow("visits")
        >>> clicks = flow.front("clicks").key_by(lambda user: user)
        >>> clicks.count(expire_after=10).sink("clicks")
        >>> ef.run(flow, clicks=[ef.At(1, "a"), ef.At(10, "a"), ef.At(20, "a")])
        {'clicks': [('a', 1), ('a', 2), ('a', 1)]}
        """
        _check_callable(first, "reduce")
        _check_callable(combine, "reduce")
        expires = operators.lifetime(self.flow, expire_after, "reduce")
        return operators.reduce(self, first, combine, with_key=with_key, name=name, expires=expires)

    @overload
    def fold(
        self,
        *,
        initial: A,
        combine: Callable[[A, T], A],
        with_key: Literal[False] = False,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[A]: ...
    @overload
    def fold(
        self,
        *,
        initial: A,
        combine: Callable[[A, T], A],
        with_key: Literal[True],
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, A]]: ...
    def fold(
        self,
        *,
        initial: A,
        combine: Callable[[A, T], A],
        with_key: bool = False,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Like `reduce`, with the same initial accumulator for each key.

        >>> import emberflow as ef
        >>> flow = ef.Flow("histories")
        >>> keyed = flow.front("moves").key_by(lambda move: move[0])
        >>> keyed.fold(initial=(), combine=lambda a, m: (*a, m[1]), with_key=True).sink("histories")
        >>> ef.run(flow, moves=[("x", 1), ("y", 5), ("x", 2)])
        {'histories': [('x', (1,)), ('y', (5,)), ('x', (1, 2))]}
        """
        _check_callable(combine, "fold")
        expires = operators.lifetime(self.flow, expire_after, "fold")
        return operators.fold(self, initial, combine, with_key=with_key, name=name, expires=expires)

    def _aggregate(
        self,
        aggregate: Aggregate[T],
        label: str,
        name: str | None,
        expire_after: Duration | None,
    ) -> Stream[tuple[K, Any]]:
        expires = operators.lifetime(self.flow, expire_after, label)
        return operators.aggregate(self, aggregate, label, name, expires)

    def count(
        self, *, expire_after: Duration | None = None, name: str | None = None
    ) -> Stream[tuple[K, int]]:
        """``(key, how many so far)`` for each payload. For ``expire_after`` see `reduce`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("counts")
        >>> flow.front("words").key_by(lambda word: word).count().sink("counts")
        >>> ef.run(flow, words=["a", "b", "a"])
        {'counts': [('a', 1), ('b', 1), ('a', 2)]}
        """
        return self._aggregate(catalogue.count(), "count", name, expire_after)

    def sum(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, the sum so far)``, of the payloads or of ``of(payload)``.

        >>> import emberflow as ef
        >>> flow = ef.Flow("sums")
        >>> flow.front("sales").key_by(lambda s: s[0]).sum(of=lambda s: s[1]).sink("sums")
        >>> ef.run(flow, sales=[("x", 2), ("y", 3), ("x", 5)])
        {'sums': [('x', 2), ('y', 3), ('x', 7)]}
        """
        return self._aggregate(catalogue.sum(of), "sum", name, expire_after)

    def min(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, the least so far)``.

        >>> import emberflow as ef
        >>> flow = ef.Flow("least")
        >>> flow.front("numbers").key_by(lambda n: n % 2).min().sink("least")
        >>> ef.run(flow, numbers=[4, 2, 8, 3])
        {'least': [(0, 4), (0, 2), (0, 2), (1, 3)]}
        """
        return self._aggregate(catalogue.min(of), "min", name, expire_after)

    def max(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, the greatest so far)``.

        >>> import emberflow as ef
        >>> flow = ef.Flow("greatest")
        >>> flow.front("numbers").key_by(lambda n: n % 2).max().sink("greatest")
        >>> ef.run(flow, numbers=[4, 2, 8, 3])
        {'greatest': [(0, 4), (0, 4), (0, 8), (1, 3)]}
        """
        return self._aggregate(catalogue.max(of), "max", name, expire_after)

    def mean(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, the arithmetic mean so far)``.

        >>> import emberflow as ef
        >>> flow = ef.Flow("means")
        >>> flow.front("numbers").key_by(lambda n: n % 2).mean().sink("means")
        >>> ef.run(flow, numbers=[4, 2, 3])
        {'means': [(0, 4.0), (0, 3.0), (1, 3.0)]}
        """
        return self._aggregate(catalogue.mean(of), "mean", name, expire_after)

    def top(
        self,
        n: int,
        *,
        by: Callable[[T], Any] | None = None,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, tuple[T, ...]]]:
        """``(key, its n greatest payloads so far, the greatest first)``; the earlier of equal ones.

        It ranks payloads and never removes one that was superseded: to rank the latest total of each
        product, for example, use `fold`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("top")
        >>> flow.front("numbers").key_by(lambda n: n % 2).top(2).sink("top")
        >>> ef.run(flow, numbers=[4, 8, 3, 6])
        {'top': [(0, (4,)), (0, (8, 4)), (1, (3,)), (0, (8, 6))]}
        """
        return self._aggregate(catalogue.top(n, by=by), "top", name, expire_after)

    def first(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, its first payload)``, or ``of`` that, for each payload."""
        return self._aggregate(catalogue.first(of), "first", name, expire_after)

    def last(
        self,
        of: Callable[[T], Any] | None = None,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream[tuple[K, Any]]:
        """``(key, its last payload so far)``, or ``of`` that: the payload itself."""
        return self._aggregate(catalogue.last(of), "last", name, expire_after)

    @overload
    def aggregate(
        self,
        into: type[R],
        /,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
        **aggregates: Aggregate[T],
    ) -> Stream[tuple[K, R]]: ...
    @overload
    def aggregate(
        self,
        into: None = None,
        /,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
        **aggregates: Aggregate[T],
    ) -> Stream[tuple[K, Any]]: ...
    def aggregate(
        self,
        into: type | None = None,
        /,
        *,
        expire_after: Duration | None = None,
        name: str | None = None,
        **aggregates: Aggregate[T],
    ) -> Stream[tuple[K, Any]]:
        """Several aggregates at once: ``(key, a named tuple of their values so far)`` for each payload.

        The aggregates are `ef.count`, `ef.sum`, `ef.min`, `ef.max`, `ef.mean`, `ef.first`, `ef.last`,
        `ef.top`, `ef.collect`, `ef.distinct`, `ef.count_distinct`, and those of your own, `ef.Aggregate`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("bids")
        >>> bids = flow.front("bids").key_by(lambda bid: bid["item"])
        >>> bids.aggregate(
        ...     total=ef.sum(lambda bid: bid["price"]),
        ...     bidders=ef.count_distinct(lambda bid: bid["by"]),
        ...     winner=ef.max(lambda bid: bid["by"], by=lambda bid: bid["price"]),
        ... ).sink("totals")
        >>> offers = [("ada", 5), ("bob", 7), ("ada", 6)]
        >>> bids = [{"item": "lamp", "by": by, "price": price} for by, price in offers]
        >>> ef.run(flow, bids=bids)["totals"][-1]
        ('lamp', Aggregates(total=18, bidders=2, winner='bob'))

        The values have a class of your own if you give one, a named tuple or a dataclass with these
        fields. Then type checkers know them.

        >>> from typing import NamedTuple
        >>> class Prices(NamedTuple):
        ...     low: int
        ...     high: int
        >>> flow = ef.Flow("prices")
        >>> prices = flow.front("prices").key_by(lambda price: "all")
        >>> prices.aggregate(Prices, low=ef.min(), high=ef.max()).sink("prices")
        >>> ef.run(flow, prices=[4, 2, 8])["prices"][-1]
        ('all', Prices(low=2, high=8))
        """
        fused = operators.several(into, aggregates, name)
        return self._aggregate(fused, "aggregate", name, expire_after)

    def rank(
        self, *, by: Callable[[T], Any] | None = None, name: str | None = None
    ) -> Stream[tuple[T, int]]:
        """``(payload, its position among the payloads of its key so far)``, from 1 on.

        Without ``by`` the first payload has position 1, the second 2: SQL's row number. With ``by`` the
        greatest has position 1, and equals share one: SQL's rank. Positions are those of the moment at which
        the payload comes; later ones do not change them. For ``by`` the ranks of all payloads are kept.

        >>> import emberflow as ef
        >>> flow = ef.Flow("race")
        >>> scores = flow.front("scores").key_by(lambda score: "all")
        >>> scores.rank(by=lambda score: score).sink("ranks")
        >>> ef.run(flow, scores=[50, 70, 60, 70])
        {'ranks': [(50, 1), (70, 1), (60, 2), (70, 1)]}
        """
        return operators.rank(self, by, name)

    def distinct(self, *, ttl: Duration | None = None, name: str | None = None) -> Stream[T]:
        """Only the first payload of each key.

        >>> import emberflow as ef
        >>> flow = ef.Flow("first of each length")
        >>> flow.front("words").key_by(len).distinct().sink("first")
        >>> ef.run(flow, words=["a", "bb", "c"])
        {'first': ['a', 'bb']}

        With ``ttl`` a key lives so long: a payload passes unless one of its key has passed less than ``ttl``
        before. Only the keys that are alive are kept.

        >>> flow = ef.Flow("once in ten")
        >>> flow.front("words").key_by(len).distinct(ttl=10).sink("first")
        >>> ef.run(flow, words=[ef.At(1, "a"), ef.At(8, "b"), ef.At(11, "c"), ef.At(12, "d")])
        {'first': ['a', 'c']}
        """
        return operators.distinct(self, ttl=ttl, name=name)

    def over(self, *, rows: int | None = None, last: Duration | None = None) -> OverStream[K, T]:
        """At each payload, the last ``rows`` payloads of its key, or those of the ``last`` so much time,
        ending with it; then count, sum, aggregate ... The output is ``(payload, value)``.

        ``last=d`` are those with ``time - d <= their time``, as in SQL's ``RANGE BETWEEN d PRECEDING AND
        CURRENT ROW``.

        >>> import emberflow as ef
        >>> flow = ef.Flow("moving")
        >>> prices = flow.front("prices").key_by(lambda price: "all")
        >>> prices.over(rows=3).mean().sink("means")
        >>> prices.over(last=10).max().sink("greatest")
        >>> outputs = ef.run(flow, prices=[ef.At(0, 9), ef.At(5, 3), ef.At(10, 6), ef.At(15, 3)])
        >>> outputs["means"]
        [(9, 9.0), (3, 6.0), (6, 6.0), (3, 4.0)]
        >>> outputs["greatest"]
        [(9, 9), (3, 9), (6, 9), (3, 6)]

        A payload takes the same time, amortised, however many are in the window, if all aggregates can
        merge accumulators: ``count``, ``sum``, ``min``, ``max``, ``mean``, ``first``, ``last``, ``top``, and
        yours with ``merge=``. Otherwise it takes as long as there are payloads in the window.
        """
        return operators.over(self, rows, last)

    @overload
    def window(
        self, windows: WindowSpec, *, emit: Literal["update", "close"] = "update"
    ) -> WindowedStream[K, T]: ...
    @overload
    def window(
        self, windows: TimeWindows, *, emit: Literal["close"], early: Duration
    ) -> UpdatedWindows[K, T]: ...
    @overload
    def window(
        self,
        windows: TimeWindows,
        *,
        emit: Literal["update", "close"] = "update",
        early: Duration | None = None,
        time: str | Callable[[T], Time],
        late: Literal["update"],
        keep: Duration | None = None,
    ) -> UpdatedWindows[K, T]: ...
    def window(
        self,
        windows: WindowSpec,
        *,
        emit: Literal["update", "close"] = "update",
        early: Duration | None = None,
        time: str | Callable[[T], Time] | None = None,
        late: Literal["update"] | None = None,
        keep: Duration | None = None,
    ) -> WindowedStream[K, T] | UpdatedWindows[K, T]:
        """Windows of time or of number over the payloads of each key; then count, sum, reduce ...

        ``emit="update"`` gives the window's value after each payload, ``emit="close"`` once, when
        the window ends. The time of a payload determines its window, however late it arrives.

        >>> import emberflow as ef
        >>> flow = ef.Flow("per ten")
        >>> clicks = flow.front("clicks").key_by(lambda user: user)
        >>> clicks.window(ef.Tumbling(10), emit="close").count().sink("counts")
        >>> for result in ef.run(flow, clicks=[ef.At(1, "a"), ef.At(12, "a"), ef.At(3, "a")])[
        ...     "counts"
        ... ]:
        ...     print(result)
        WindowResult(key='a', window=Window(start=0, end=10), value=2)
        WindowResult(key='a', window=Window(start=10, end=20), value=1)

        ``early=d``, with ``emit="close"``, also gives the value of an open window at each ``start + k * d``
        if it has changed. With ``late="update"`` a window stays known after its end: a payload that comes
        for it then gives its value anew. ``time``, a field of the payload or a function of it, is the time
        that determines its window, because the late rows that a front admits (``on_late="admit"``) have
        other times as items. ``keep`` is how long after its end a window is known; without it that is for
        ever. With ``early`` or ``late`` the results are `WindowUpdate`: see docs/event-time.md.

        >>> flow = ef.Flow("corrected")
        >>> clicks = flow.front("clicks").key_by(lambda click: click["user"])
        >>> windows = clicks.window(ef.Tumbling(10), emit="close", time="at", late="update")
        >>> windows.count().map(lambda u: (u.kind, u.window.start, u.value)).sink("counts")
        >>> rows = [ef.At(at, {"user": "a", "at": at}) for at in (1, 12, 3)]
        >>> ef.run(flow, clicks=ef.fronts.Iterable(rows, disorder=0, on_late="admit"))
        {'counts': [('final', 0, 1), ('late', 0, 2), ('final', 10, 1)]}
        """
        if early is None and time is None and late is None and keep is None:
            windowed: WindowedStream[K, T] = operators.window(self, windows, emit)
            return windowed
        return operators.window_updates(
            self, windows, emit=emit, early=early, time=time, late=late, keep=keep
        )

    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        *,
        how: Literal["inner"] = "inner",
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[tuple[T, U]]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        *,
        how: Literal["left"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[tuple[T, U | None]]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        *,
        how: Literal["right"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[tuple[T | None, U]]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        *,
        how: Literal["outer"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[tuple[T | None, U | None]]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, Any],
        *,
        how: Literal["semi", "anti"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[T]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        combine: Callable[[T, U], V],
        *,
        how: Literal["inner"] = "inner",
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[V]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        combine: Callable[[T, U | None], V],
        *,
        how: Literal["left"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[V]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        combine: Callable[[T | None, U], V],
        *,
        how: Literal["right"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[V]: ...
    @overload
    def join(
        self,
        other: KeyedStream[K, U],
        combine: Callable[[T | None, U | None], V],
        *,
        how: Literal["outer"],
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[V]: ...
    def join(
        self,
        other: KeyedStream[K, Any],
        combine: Callable[[Any, Any], Any] | None = None,
        *,
        how: Literal["inner", "left", "right", "outer", "semi", "anti"] = "inner",
        within: Within | None = None,
        window: WindowSpec | None = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Every pair of payloads with the same key, once, when the later of the two comes.

        A pair is ``combine(this, other)``, by default a tuple. All payloads are kept for ever: a later
        one may have the same key.

        >>> import emberflow as ef
        >>> flow = ef.Flow("join")
        >>> orders = flow.front("orders").key_by(lambda order: order[0])
        >>> people = flow.front("people").key_by(lambda person: person[0])
        >>> orders.join(people, lambda o, p: (p[1], o[1])).sink("out")
        >>> ef.run(
        ...     flow, orders=[("ada", "tea"), ("ada", "jam")], people=[ef.At(5, ("ada", "Ada L."))]
        ... )
        {'out': [('Ada L.', 'tea'), ('Ada L.', 'jam')]}

        ``within=(low, high)``: only pairs with ``low <= other.time - this.time <= high``; ``within=d`` is
        short for ``(-d, d)``. Ends are numbers or durations: ``("0 s", "5 minutes")``. A payload is kept
        until the key has a payload that it is too old to meet.

        >>> flow = ef.Flow("interval join")
        >>> shown = flow.front("shown").key_by(lambda ad: ad)
        >>> clicked = flow.front("clicked").key_by(lambda ad: ad)
        >>> shown.join(clicked, within=(0, 5)).sink("conversions")
        >>> ef.run(flow, shown=[ef.At(1, "x"), ef.At(4, "x")], clicked=[ef.At(8, "x")])
        {'conversions': [('x', 'x')]}

        ``window=``: only pairs in the same `Tumbling`, `Sliding` or `Session` window, and once for each
        window that has both. A session is made of the payloads of both sides.

        ``how="left"`` also gives ``combine(this, None)`` for a payload of this stream that has met none,
        when its interval or window has ended; ``"right"`` and ``"outer"`` likewise. ``"semi"`` gives each
        payload of this stream that meets one, once; ``"anti"`` each that meets none. All but ``"inner"``
        and ``"semi"`` need ``within`` or ``window``: without, a match may always come later. What changes
        its mind is a join of `changes`. See docs/operators.md.

        >>> flow = ef.Flow("not clicked")
        >>> shown = flow.front("shown").key_by(lambda ad: ad)
        >>> clicked = flow.front("clicked").key_by(lambda ad: ad)
        >>> shown.join(clicked, how="left", within=(0, 5)).sink("out")
        >>> ef.run(flow, shown=[ef.At(1, "x"), ef.At(2, "y")], clicked=[ef.At(3, "y")])
        {'out': [('y', 'y'), ('x', None)]}
        """
        _check_keyed(self.flow, other, "join")
        return operators.join(
            self, other, combine, how=how, within=within, window=window, name=name
        )

    @overload
    def join_latest(
        self, other: KeyedStream[K, U], *, name: str | None = None
    ) -> Stream[tuple[T, U]]: ...
    @overload
    def join_latest(
        self, other: KeyedStream[K, U], combine: Callable[[T, U], V], *, name: str | None = None
    ) -> Stream[V]: ...
    def join_latest(
        self,
        other: KeyedStream[K, Any],
        combine: Callable[[T, Any], Any] | None = None,
        *,
        name: str | None = None,
    ) -> Stream[Any]:
        """Each payload of either side with the latest one of the other, ``combine(this, other)``.

        Payloads that were not the latest when one of the other side came are in no pair: to pair all of
        them, use `join`. The last payload of each side is kept.

        >>> import emberflow as ef
        >>> flow = ef.Flow("join_latest")
        >>> prices = flow.front("prices").key_by(lambda p: p[0])
        >>> amounts = flow.front("amounts").key_by(lambda a: a[0])
        >>> prices.join_latest(amounts, lambda p, a: (p[0], p[1] * a[1])).sink("values")
        >>> ef.run(flow, prices=[("x", 2), ("x", 3)], amounts=[("x", 10), ("y", 1)])
        {'values': [('x', 20), ('x', 30)]}
        """
        _check_keyed(self.flow, other, "join_latest")
        combine = _pair if combine is None else combine
        _check_callable(combine, "join_latest")
        return operators.join_latest(self, other, combine, name=name)

    @overload
    def enrich(
        self,
        table: KeyedStream[K, U] | Changes[K, U],
        combine: Callable[[T, U | None], V],
        *,
        name: str | None = None,
    ) -> Stream[V]: ...
    @overload
    def enrich(
        self,
        table: KeyedStream[K, U] | Changes[K, U],
        combine: Callable[[T, U | D], V],
        *,
        default: D,
        name: str | None = None,
    ) -> Stream[V]: ...
    def enrich(
        self,
        table: KeyedStream[K, U] | Changes[K, U],
        combine: Callable[[T, Any], V],
        *,
        default: Any = None,
        name: str | None = None,
    ) -> Stream[V]:
        """``combine(payload, the latest payload of table with this key)``, or with the default.

        The table may also be `Changes`: then it is the value that the key has now. A change of the table
        gives no output of its own.

        >>> import emberflow as ef
        >>> flow = ef.Flow("enrich")
        >>> orders = flow.front("orders").key_by(lambda order: order)
        >>> cities = flow.front("cities").key_by(lambda row: row[0])
        >>> orders.enrich(cities, lambda o, c: (o, c[1]), default=("?", "?")).sink("out")
        >>> ef.run(flow, orders=["ada", "bob", "ada"], cities=[("ada", "Rome"), ("ada", "Oslo")])
        {'out': [('ada', '?'), ('bob', '?'), ('ada', 'Oslo')]}
        """
        of_changes = isinstance(table, Changes)
        rows = table.as_stream().key_by(operators.key_of) if isinstance(table, Changes) else table
        _check_keyed(self.flow, rows, "enrich")
        _check_callable(combine, "enrich")
        return operators.enrich(
            self, rows, combine, of_changes=of_changes, default=default, name=name
        )

    def changes(
        self, *, deletes: Callable[[T], object] | None = None, name: str | None = None
    ) -> Changes[K, T]:
        """A table: each payload replaces the one before of its key.

        A payload for which ``deletes`` holds, or that is None, deletes the value of its key. The last
        payload of each key is kept. `Changes.latest` is the way back.

        >>> import emberflow as ef
        >>> flow = ef.Flow("stock")
        >>> stock = flow.front("stock").key_by(lambda s: s[0]).changes(deletes=lambda s: s[1] == 0)
        >>> stock.as_stream().map(lambda change: change.kind).sink("kinds")
        >>> ef.run(flow, stock=[("tea", 2), ("tea", 1), ("jam", 0), ("tea", 0)])
        {'kinds': ['insert', 'update', 'delete']}
        """
        return Changes(operators.changes(self, deletes, name))


def merge(first: Stream[T], *others: Stream[T], name: str | None = None) -> Stream[T]:
    """All payloads of several streams, in order.

    >>> import emberflow as ef
    >>> flow = ef.Flow("merged")
    >>> ef.merge(flow.front("a"), flow.front("b")).sink("all")
    >>> ef.run(flow, a=["a0", "a1"], b=["b0"])
    {'all': ['a0', 'b0', 'a1']}
    """
    for stream in (first, *others):
        if not isinstance(stream, Stream):
            raise FlowError(f"merge() takes streams, got {stream!r} at {caller()}.")
    if not others:
        raise FlowError(
            f"flow {first.flow.name!r}: merge() takes two or more streams, got one at {caller()}."
        )
    for stream in others:
        _check_same_flow(first.flow, stream, "merge()")
    _check_unkeyed("merge()", first, *others)
    streams = (first, *others)
    return first.flow._add(Merge, name, inputs=tuple(stream._input for stream in streams))


def _pair(left: T, right: U) -> tuple[T, U]:
    return left, right


def _check_callable(function: object, step: str) -> None:
    if not callable(function):
        raise FlowError(
            f"{step}() takes a function, got {function!r} at {caller()}.{field_advice(function)}"
        )


def _check_count(value: object, step: str, what: str, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise FlowError(
            f"{step}() takes {what} as an int of at least {least}, got {value!r} at {caller()}."
        )


def _check_same_flow(flow: Flow, stream: object, step: str) -> None:
    if not isinstance(stream, Stream):
        raise FlowError(f"{step} takes a stream, got {stream!r} at {caller()}.")
    if stream.flow is not flow:
        raise FlowError(
            f"{step} at {caller()} mixes streams of two flows, {flow.name!r} and "
            f"{stream.flow.name!r}. Build one flow, or connect them by a sink and a front."
        )


def _check_unkeyed(step: str, *streams: Stream[Any]) -> None:
    if any(stream._input.key is not None for stream in streams):
        raise FlowError(
            f"{step} at {caller()} takes streams without a key, since what reads them may want "
            f"another. Call .key_by(function) behind it, on the merged stream."
        )


def _check_keyed(flow: Flow, stream: object, step: str) -> None:
    if isinstance(stream, Changes):
        raise FlowError(
            f"{step}() of a stream and changes at {caller()}: to look up the value of now for each "
            f"payload, use .enrich(changes, combine); to join two tables, .changes().join(changes)."
        )
    _check_same_flow(flow, stream, f"{step}()")
    if not isinstance(stream, KeyedStream):
        raise FlowError(
            f"{step}() takes two keyed streams: call .key_by(function) on the other one too, "
            f"at {caller()}."
        )
