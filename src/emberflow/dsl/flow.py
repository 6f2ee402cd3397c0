"""The builder: a flow collects drafts of nodes, in the order in which the user writes them.

A `Stream` (`dsl.streams`) is one output of a draft, and its methods add drafts. Nothing runs here.
`Flow.graph` turns the drafts into a validated, frozen `graph.nodes.Graph` (by `graph.assembly`).

Names: the user names an operation (``name=``), or its name is its kind and a number, counted in the
order of writing: ``map``, ``map-2``. A composed operator is a scope, and its steps are called
``reduce/group``. Names identify state across versions of a flow, so name the steps that have state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from emberflow.dsl.operators.reduce import lifetime
from emberflow.dsl.operators.transactions import State, Transaction
from emberflow.dsl.streams import Loop, Stream
from emberflow.errors import FlowError, OnError
from emberflow.graph.assembly import LoopDraft, assembled
from emberflow.graph.drawing import text
from emberflow.graph.nodes import Front, Graph, Input, Key, Node, Reduction, Sink, two_of_one_name
from emberflow.graph.picture import picture
from emberflow.values.functions import Where, caller
from emberflow.values.times import DEFAULT_UNIT, Duration, Unit, counted_duration, is_unit

V = TypeVar("V")


class _Scope(NamedTuple):
    prefix: str
    where: Where
    #: What the user wrote: ``count``, ``join`` ... Empty for a transaction.
    operator: str = ""


class Flow:
    """A dataflow of pure functions.

    >>> import emberflow as ef
    >>> flow = ef.Flow("shout")
    >>> flow.front("words").map(str.upper).sink("loud")
    >>> ef.run(flow, words=["a", "b"])
    {'loud': ['A', 'B']}

    Times are ints. Datetimes and durations are counted in ``unit``: ``"s"``, ``"ms"`` (the default) or
    ``"us"``. Fronts count in the same unit.

    >>> from datetime import datetime
    >>> flow = ef.Flow("per minute")
    >>> clicks = flow.front("clicks").key_by(lambda user: user)
    >>> clicks.window(ef.Tumbling("1 minute"), emit="close").count().sink("counts")
    >>> noon, later = datetime(2026, 5, 1, 12, 0, 0), datetime(2026, 5, 1, 12, 0, 59)
    >>> ef.run(flow, clicks=[ef.At(noon, "ada"), ef.At(later, "ada")])["counts"]
    [WindowResult(key='ada', window=Window(start=1777636800000, end=1777636860000), value=2)]
    """

    def __init__(self, name: str, *, unit: Unit | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise FlowError(f"a flow's name is a non-empty string, got {name!r} at {caller()}.")
        if unit is not None and not is_unit(unit):
            raise FlowError(f"Flow(unit=) takes 's', 'ms' or 'us', got {unit!r} at {caller()}.")
        self.name = name
        #: What datetimes and durations are counted in; None until one of the steps needs a unit.
        self.unit = unit
        self._drafts: list[Node] = []
        self._feedback: dict[int, Input] = {}
        self._reductions: list[Reduction] = []
        self._transactions: list[Transaction[Any]] = []
        self._scopes: list[_Scope] = []
        self._counts: dict[str, int] = {}
        self._names: dict[tuple[str, str], Node] = {}
        self._graph: Graph | None = None

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self._drafts)} steps)"

    def _repr_svg_(self) -> str | None:
        """What a notebook shows; None, for ``repr``, while the flow is not complete."""
        try:
            return picture(self.graph())
        except FlowError:
            return None

    def front(self, name: str) -> Stream[Any]:
        """A stream of the elements that enter here. The user passes them to a runner by this name.

        >>> import emberflow as ef
        >>> flow = ef.Flow("two fronts")
        >>> ef.merge(flow.front("a"), flow.front("b")).sink("both")
        >>> ef.run(flow, a=[1, 3], b=[2, 4])
        {'both': [1, 2, 3, 4]}
        """
        index = sum(isinstance(draft, Front) for draft in self._drafts)
        return self._add(Front, name, index=index)

    def loop(self, *, name: str | None = None) -> Loop[Any]:
        """A stream whose source you give later, with `Loop.close`: a cycle.

        The first reader of a stream comes first in the order, as everywhere. So if a sink on the
        cycle is to see a round before the next one begins, write it before the step that continues
        the cycle.

        The sum of the digits, again and again until one is left (the grouping gives the cycle its
        order; a window of 1 passes every item on):

        >>> import emberflow as ef
        >>> flow = ef.Flow("digit sums")
        >>> again = flow.loop()
        >>> numbers = ef.merge(flow.front("numbers"), again).key_by(lambda n: n).group(window=1)
        >>> sums = numbers.map(lambda window: sum(map(int, str(window[0]))))
        >>> again.close(sums.filter(lambda n: n > 9))
        >>> sums.filter(lambda n: n <= 9).sink("digits")
        >>> ef.run(flow, numbers=[5, 99, 123456789])
        {'digits': [5, 9, 9]}
        """
        node = self._draft(LoopDraft, name, label="loop")
        return Loop(self, node.id)

    def state(self, name: str, *, default: V, expire_after: Duration | None = None) -> State[V]:
        """Values by key that transactions read and update; ``default`` for keys never updated.

        >>> import emberflow as ef
        >>> flow = ef.Flow("purses")
        >>> purses = flow.state("purses", default=0)
        >>> with flow.front("changes").transaction() as tx:
        ...     change = tx.key_by(lambda c: c[0])
        ...     added = change.update(purses, lambda n, c: n + c[1], check=lambda n: n >= 0)
        >>> tx.committed.sink("done")
        >>> tx.rejected.map(lambda r: (r.element, r.values["purses", r.element[0]])).sink("refused")
        >>> ef.run(flow, changes=[("ada", 5), ("bob", -1), ("ada", -3), ("ada", -3)])
        {'done': [('ada', 5), ('ada', -3)], 'refused': [(('bob', -1), -1), (('ada', -3), -1)]}

        A value is kept for ever, unless ``expire_after=d`` gives it a time to live: a transaction that
        comes ``d`` or more after the last one that updated the key, and was applied, finds the default.
        A read does not prolong it, nor does a transaction that is rejected. See docs/state.md.

        >>> flow = ef.Flow("limits")
        >>> spent = flow.state("spent", default=0, expire_after=10)
        >>> with flow.front("payments").transaction() as tx:
        ...     paid = tx.key_by(lambda p: p[0]).update(
        ...         spent, lambda total, p: total + p[1], check=lambda total: total <= 100
        ...     )
        >>> tx.rejected.map(lambda rejected: rejected.element).sink("refused")
        >>> payments = [ef.At(1, ("ada", 70)), ef.At(10, ("ada", 40)), ef.At(11, ("ada", 50))]
        >>> ef.run(flow, payments=payments)
        {'refused': [('ada', 40)]}
        """
        expires = lifetime(self, expire_after, "state")
        return State(self, name, default, expires)

    def graph(self, *, on_error: OnError = "fail") -> Graph:
        """The validated graph of this flow. Raises `FlowError` if the flow cannot run.

        Where errors are diverted, transactions have other nodes: each can be undone as a whole.
        """
        if self._graph is None:
            for transaction in self._transactions:
                transaction._check_closed()
            self._graph = assembled(
                self.name, self._drafts, self._feedback, self._reductions, self.unit
            )
        if on_error == "divert" and self._transactions:
            return assembled(
                self.name,
                self._drafts,
                self._feedback,
                self._reductions,
                self.unit,
                ends_on_error=self._graph,
            )
        return self._graph

    def explain(self) -> str:
        """The flow as text: each step with its functions, and under it the steps it reads.

        ``by`` is the key of an input, ``<~`` an input that closes a cycle. The steps of an operator
        are listed under its name.

        >>> import emberflow as ef
        >>> flow = ef.Flow("shout")
        >>> flow.front("words").map(str.upper).key_by(len).group(window=2, name="pairs").sink(
        ...     "loud"
        ... )
        >>> print(flow.explain())
        flow shout
          front words
          map: str.upper
            <- words
          group pairs: window 2
            <- map by len
          sink loud
            <- pairs

        A sink with partitions by the key of the steps ahead of it says so, where that is certain: then a slow
        key does not hold back the output of others (docs/operators.md).
        """
        from emberflow.engine.worker.ranges import sinks_by_range

        graph = self.graph()
        return text(graph, sinks_by_range(graph))

    # The interface for operators.

    def _counted_in(self) -> Unit:
        """The unit that a duration of a step is counted in. From now on the flow has one."""
        if self.unit is None:
            self.unit = DEFAULT_UNIT
        return self.unit

    def _counted(self, duration: object) -> int:
        """A duration of a step as a number. One that is a number leaves the unit open."""
        unit = DEFAULT_UNIT if isinstance(duration, int) else self._counted_in()
        return counted_duration(duration, unit)

    def _stream(self, node: int, port: int = 0, key: Key | None = None) -> Stream[Any]:
        return Stream(self, node, port, key)

    def _add(self, kind: type[Node], name: str | None, **rest: Any) -> Stream[Any]:
        """Add a step with one output."""
        return self._stream(self._draft(kind, name, **rest).id)

    def _draft(
        self,
        kind: type[Node],
        name: str | None,
        *,
        label: str = "",
        inputs: tuple[Input, ...] = (),
        **rest: Any,
    ) -> Node:
        """Add a node. ``label`` begins the generated name if there is no ``name``."""
        where = self._scopes[-1].where if self._scopes else caller()
        label = label or kind.__name__.lower().strip("_")
        at_the_edge = kind in (Front, Sink)
        full = _checked_name(name, label, where) if at_the_edge else self._qualified(label, name)
        node = kind(id=len(self._drafts), name=full, where=where, inputs=inputs, **rest)
        category = label if at_the_edge else "operation"
        other = self._names.setdefault((category, full), node)
        if other is not node:
            raise FlowError(two_of_one_name(self.name, f"{category}s", other, node))
        self._drafts.append(node)
        self._graph = None
        return node

    def _qualified(self, kind: str, name: str | None) -> str:
        prefix = self._scopes[-1].prefix if self._scopes else ""
        if name is not None:
            return prefix + _checked_name(name, kind, caller())
        while True:
            number = self._counts[prefix + kind] = self._counts.get(prefix + kind, 0) + 1
            full = prefix + (kind if number == 1 else f"{kind}-{number}")
            if ("operation", full) not in self._names:
                return full

    @contextmanager
    def _scope(self, kind: str, name: str | None, *, operator: str = "") -> Iterator[str]:
        """Steps added within belong to a composed operator: its name is their prefix.

        ``operator`` says more than ``kind`` where one kind has accumulators of several shapes.
        """
        full = self._scope_name(kind, name)
        with self._within(full, self._names["operation", full].where, operator or kind):
            yield full

    @property
    def _operator(self) -> str:
        """The operator whose steps are being added, and those that it is composed of."""
        return "/".join(scope.operator for scope in self._scopes if scope.operator)

    def _scope_name(self, kind: str, name: str | None) -> str:
        """Reserve a name for a scope: no step and no other scope can have it."""
        where = self._scopes[-1].where if self._scopes else caller()
        full = self._qualified(kind, name)
        taken = self._names.get(("operation", full))
        if taken is not None:
            raise FlowError(
                f"flow {self.name!r}: two operations have the name {full!r}: {taken} and {kind} "
                f"({where}). Give one of them another name."
            )
        self._names["operation", full] = Node(id=-1, name=full, inputs=(), where=where)
        return full

    @contextmanager
    def _within(self, full: str, where: Where, operator: str = "") -> Iterator[None]:
        """Steps added within have this prefix and this line."""
        self._scopes.append(_Scope(f"{full}/", where, operator))
        try:
            yield
        finally:
            self._scopes.pop()


def _checked_name(name: object, kind: str, where: Where) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise FlowError(
            f"the name of a {kind} is a non-empty string without '/', got {name!r} at {where}."
        )
    return name
