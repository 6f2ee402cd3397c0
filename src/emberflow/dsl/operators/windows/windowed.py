"""What all windows can do: aggregate the payloads of each window of a key."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from emberflow.dsl.operators.aggregates import catalogue
from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.aggregates.several import several
from emberflow.dsl.operators.reduce import keyed_map, ticking_drift
from emberflow.values.functions import UserFunction, caller

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream

K = TypeVar("K")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class Parts(NamedTuple):
    """The functions that windows are made of, see the drawing above."""

    timed: Callable[[int, Any], Any]
    step: Any
    results: Callable[[Any], Any]
    #: None where no window has to be told of its end.
    ticks: Callable[[Any], Any] | None
    time_name: str = "time"
    results_name: str = "results"
    #: Functions of the user that ``timed`` calls, besides the key.
    given: tuple[UserFunction, ...] = ()
    #: Functions of the user that ``step`` calls, besides those of the aggregate.
    in_step: tuple[UserFunction, ...] = ()


class Windowed(Generic[K, T, R]):
    """What all windows over a keyed stream can do: aggregate the payloads of each window."""

    _label = "window"

    def __init__(self, stream: KeyedStream[K, T]) -> None:
        self._stream = stream

    def reduce(
        self,
        *,
        first: Callable[[T], A],
        combine: Callable[[A, T], A],
        name: str | None = None,
    ) -> Stream[R]:
        """The accumulator of each window.

        >>> import emberflow as ef
        >>> flow = ef.Flow("sessions")
        >>> clicks = flow.front("clicks").key_by(lambda click: click[0])
        >>> sessions = clicks.window(ef.Session(gap=30), emit="close")
        >>> paths = sessions.reduce(first=lambda c: c[1], combine=lambda path, c: path + c[1])
        >>> paths.map(lambda r: (r.key, *r.window, r.value)).sink("paths")
        >>> ef.run(flow, clicks=[ef.At(0, "ux"), ef.At(20, "uy"), ef.At(50, "uz"), ef.At(79, "ux")])
        {'paths': [('u', 0, 50, 'xy'), ('u', 50, 109, 'zx')]}
        """
        return self._aggregate(Aggregate(first=first, combine=combine), name)

    def fold(
        self, *, initial: A, combine: Callable[[A, T], A], name: str | None = None
    ) -> Stream[R]:
        """Like `reduce`, with the same initial accumulator for each window."""
        folded: Aggregate[T] = Aggregate(
            first=lambda payload: combine(initial, payload),
            combine=combine,
            given=(UserFunction("combine", combine),),
        )
        return self._aggregate(folded, name)

    def count(self, *, name: str | None = None) -> Stream[R]:
        """How many payloads are in the window."""
        return self._aggregate(catalogue.count(), name)

    def sum(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The sum of the payloads, or of ``of(payload)``."""
        return self._aggregate(catalogue.sum(of), name)

    def min(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The least."""
        return self._aggregate(catalogue.min(of), name)

    def max(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The greatest."""
        return self._aggregate(catalogue.max(of), name)

    def mean(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The arithmetic mean."""
        return self._aggregate(catalogue.mean(of), name)

    def collect(self, *, name: str | None = None) -> Stream[R]:
        """All payloads of the window, as a tuple.

        With ``emit="update"`` each payload emits all of them so far, so the output of a window grows
        with the square of its length; with ``emit="close"`` it does not.

        >>> import emberflow as ef
        >>> flow = ef.Flow("pairs")
        >>> pairs = (
        ...     flow.front("letters").key_by(lambda l: None).window(ef.CountWindow(2), emit="close")
        ... )
        >>> pairs.collect().map(lambda result: result.value).sink("pairs")
        >>> ef.run(flow, letters="abcde")
        {'pairs': [('a', 'b'), ('c', 'd')]}
        """
        return self._aggregate(catalogue.collect(), name)

    def first(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The first payload of the window, or ``of`` it."""
        return self._aggregate(catalogue.first(of), name)

    def last(self, of: Callable[[T], Any] | None = None, *, name: str | None = None) -> Stream[R]:
        """The last payload of the window, or ``of`` it."""
        return self._aggregate(catalogue.last(of), name)

    def top(
        self, n: int, *, by: Callable[[T], Any] | None = None, name: str | None = None
    ) -> Stream[R]:
        """The ``n`` greatest payloads of the window, as a tuple, the greatest first.

        >>> import emberflow as ef
        >>> flow = ef.Flow("best of three")
        >>> scores = flow.front("scores").key_by(lambda score: None)
        >>> scores.window(ef.CountWindow(3), emit="close").top(2).map(lambda r: r.value).sink(
        ...     "best"
        ... )
        >>> ef.run(flow, scores=[4, 9, 7, 1, 2, 3])
        {'best': [(9, 7), (3, 2)]}
        """
        return self._aggregate(catalogue.top(n, by=by), name)

    def distinct(
        self, of: Callable[[T], Any] | None = None, *, name: str | None = None
    ) -> Stream[R]:
        """The different payloads of the window, as a tuple, in the order of their first ones."""
        return self._aggregate(catalogue.distinct(of), name)

    def aggregate(
        self, into: type | None = None, /, *, name: str | None = None, **aggregates: Aggregate[T]
    ) -> Stream[R]:
        """Several aggregates of each window at once, as a named tuple: see `KeyedStream.aggregate`.

        >>> import emberflow as ef
        >>> flow = ef.Flow("bids per ten")
        >>> bids = flow.front("bids").key_by(lambda bid: None).window(ef.Tumbling(10), emit="close")
        >>> bids.aggregate(number=ef.count(), high=ef.max()).map(lambda r: r.value).sink("bids")
        >>> ef.run(flow, bids=[ef.At(1, 5), ef.At(3, 9), ef.At(12, 4)])
        {'bids': [Aggregates(number=2, high=9), Aggregates(number=1, high=4)]}
        """
        return self._aggregate(several(into, aggregates, name), name)

    def _aggregate(self, aggregation: Aggregate[T], name: str | None) -> Stream[R]:
        stream, flow = self._stream, self._stream.flow
        parts = self._parts(aggregation)
        key = stream._key
        with flow._scope(self._label, name, operator=self._operator):
            mapped = keyed_map(stream, parts.timed, *parts.given, timed=True, name=parts.time_name)
            return ticking_drift(
                [mapped],
                "payloads",
                parts.step.first,
                parts.step,
                results=lambda accumulators: accumulators._map(
                    parts.results, "many", *aggregation.given, name=parts.results_name
                ),
                ticks=parts.ticks,
                key=key.given,
                given=(*aggregation.given, *parts.in_step),
                shown=itemgetter(2),
            )

    @property
    def _operator(self) -> str:
        """What the windows are, to tell whether state that one version kept fits another."""
        return self._label

    def _parts(self, aggregation: Aggregate[T]) -> Parts:
        raise AssertionError("all windows define _parts")

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            # A teaching error: windows are no stream yet.
            if not attribute.startswith("_") and hasattr(type(self._stream), attribute):
                raise AttributeError(
                    f"{attribute}() works on the results of windows: say first what becomes of their "
                    f"payloads, with .count(), .sum(of), .collect(), .aggregate(...) and so on, at "
                    f"{caller()}."
                )
            raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")
