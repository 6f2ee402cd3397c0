"""Transactions as users write them: states, and the accesses between opening and closing.

A `Transaction` collects drafts like a stream does; `graph.transactions` turns them into nodes. The
streams within are not `Stream`s: they lack the steps that would take an item out of the transaction,
or another item in (a sink, a merge, a grouping). The error says where these belong instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from emberflow.errors import FlowError
from emberflow.graph.nodes import Input, Key
from emberflow.graph.transactions import Access, Check, Close, Open, Rejected, Report, Values
from emberflow.graph.transactions import State as StateNode
from emberflow.values.functions import UserFunction, caller, described, field_advice, name_of
from emberflow.values.item import Timed

if TYPE_CHECKING:
    from types import TracebackType

    from emberflow.dsl.flow import Flow
    from emberflow.dsl.streams import Stream

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
K = TypeVar("K")

#: Methods of streams outside of transactions, which people may look for inside.
_OUTSIDE = ("sink", "merge", "broadcast", "group", "reduce", "fold", "count", "sum", "join")


class State(Generic[V]):
    """Values by key, changed by transactions only. A key that was never updated has the default."""

    def __init__(self, flow: Flow, name: str, default: V, expires: int | None = None) -> None:
        node = flow._draft(StateNode, name, label="state", default=default, expires=expires)
        self.flow = flow
        self.name = node.name
        self.default = default

    def __repr__(self) -> str:
        return f"State({self.name!r}, default={self.default!r})"


class Transaction(Generic[T]):
    """The accesses of an element to states, all applied or none. See `Stream.transaction`."""

    def __init__(self, stream: Stream[T], name: str | None) -> None:
        if stream._input.key is not None:
            raise FlowError(
                f"flow {stream.flow.name!r}: transaction() at {caller()} takes a stream without a "
                f"key: one transaction may touch many. Call tx.key_by(function) inside it."
            )
        self.flow: Flow = stream.flow
        self._where = caller()
        self.name = self.flow._scope_name("transaction", name)
        self._phase: Literal["made", "open", "closed", "broken"] = "made"
        with self._scope():
            opened = self.flow._draft(Open, "open", inputs=(stream._input,), transaction=self.name)
            self._close = self.flow._draft(Close, "close", transaction=self.name).id
        self._element: TransactionStream[T] = TransactionStream(self, Input(opened.id))
        self._accesses = 0
        self._outputs = 0
        self.flow._transactions.append(self)

    def _scope(self) -> Any:
        return self.flow._within(self.name, caller())

    def __repr__(self) -> str:
        return f"Transaction({self.name!r}, {self._accesses} accesses)"

    def __enter__(self) -> Transaction[T]:
        if self._phase != "made":
            raise FlowError(f"{self._named()} is opened again at {caller()}. Make another one.")
        self._phase = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._phase = "broken" if kind is not None else "closed"
        if kind is None and not self._accesses:
            self._phase = "broken"
            raise FlowError(
                f"{self._named()} touches no state. Call tx.key_by(function).update(state, ...) or "
                f".read(state) inside it, or leave it out."
            )

    def _named(self) -> str:
        return f"flow {self.flow.name!r}: transaction {self.name!r} ({self._where})"

    def _check_open(self, step: str) -> None:
        if self._phase == "made":
            raise FlowError(
                f"{self._named()} is not open at {caller()}, where {step} is called. "
                f"Write: with stream.transaction() as tx: ..."
            )
        if self._phase != "open":
            raise FlowError(
                f"{self._named()} is closed, and {step} is called on it at {caller()}. "
                f"Its steps belong inside the with block; behind it are tx.committed, tx.rejected "
                f"and what tx.output() gave."
            )

    def _check_closed(self) -> None:
        """`Flow.graph` calls this."""
        if self._phase in ("made", "open"):
            raise FlowError(
                f"{self._named()} is never closed. Write: with stream.transaction() as tx: ..."
            )
        if self._phase == "broken":
            raise FlowError(
                f"{self._named()} was left by an exception, so it is not known what belongs to it. "
                f"Build the flow anew."
            )

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            if attribute == "transaction":
                raise AttributeError(
                    f"transactions do not nest, at {caller()}. Open the second one on what the "
                    f"first lets out: tx.committed.transaction()."
                )
            raise _no_attribute(self, attribute, "tx")

    # Steps of the element.

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> TransactionStream[U]:
        """One payload to one payload."""
        return self._element.map(function, name=name)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, name: str | None = None
    ) -> TransactionStream[U]:
        """One payload to any number of payloads: their accesses are one transaction."""
        return self._element.flat_map(function, name=name)

    def filter(
        self, predicate: Callable[[T], object], *, name: str | None = None
    ) -> TransactionStream[T]:
        """Only the payloads for which the predicate holds."""
        return self._element.filter(predicate, name=name)

    def with_time(self, *, name: str | None = None) -> TransactionStream[Timed[T]]:
        """Each payload with the time of its item."""
        return self._element.with_time(name=name)

    def key_by(self, function: Callable[[T], K]) -> KeyedTransactionStream[K, T]:
        """The key for the next access."""
        return self._element.key_by(function)

    # Constraints and outputs.

    def require(self, function: Callable[[Values], object], *, name: str | None = None) -> None:
        """A constraint over all values that the transaction accessed, in all states.

        ``function`` gets `Values`, a mapping from ``(state name, key)`` to the value after the
        transaction. If it returns something false, no update is applied.
        """
        self._check_open("require()")
        if not callable(function):
            raise FlowError(f"require() takes a function, got {function!r} at {caller()}.")
        close = self.flow._drafts[self._close]
        assert isinstance(close, Close)
        given = UserFunction("require", function)
        label = name or _check_name(function, f"{self.name}/require")
        self.flow._drafts[self._close] = replace(
            close, requires=(*close.requires, Check(label, function)), given=(*close.given, given)
        )
        self.flow._graph = None

    def output(self, stream: TransactionStream[U], *, name: str | None = None) -> Stream[U]:
        """The payloads of a stream of this transaction if it commits. Call it any number of times."""
        self._check_open("output()")
        if not isinstance(stream, TransactionStream) or stream._transaction is not self:
            raise FlowError(
                f"{self._named()}: output() takes a stream of this transaction, got {stream!r} at "
                f"{caller()}."
            )
        if isinstance(stream, KeyedTransactionStream):
            raise FlowError(
                f"{self._named()}: output() at {caller()} takes a stream without a key. "
                f"Call .key_by(function) behind it."
            )
        with self._scope():
            self.flow._draft(
                Report,
                name,
                label="output",
                inputs=(stream._input,),
                transaction=self.name,
                number=self._outputs,
            )
        self._outputs += 1
        return self.flow._stream(self._close, 1 + self._outputs)

    @property
    def committed(self) -> Stream[T]:
        """The elements of the transactions that were applied."""
        return self.flow._stream(self._close, 0)

    @property
    def rejected(self) -> Stream[Rejected[T]]:
        """`Rejected(element, check, values)` for each transaction that was not applied."""
        return self.flow._stream(self._close, 1)


class TransactionStream(Generic[T]):
    """Payloads within a transaction."""

    def __init__(self, transaction: Transaction[Any], source: Input) -> None:
        self._transaction = transaction
        self._input = source

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._transaction!r}"

    def _step(self, method: str, *arguments: Any, **named: Any) -> TransactionStream[Any]:
        transaction = self._transaction
        transaction._check_open(f"{method}()")
        with transaction._scope():
            plain = transaction.flow._stream(self._input.node, self._input.port)
            made = getattr(plain, method)(*arguments, **named)
        # A scheduled item would leave the transaction behind.
        drafts, node = transaction.flow._drafts, made._input.node
        drafts[node] = replace(drafts[node], schedules=False)
        return TransactionStream(transaction, made._input)

    def map(self, function: Callable[[T], U], *, name: str | None = None) -> TransactionStream[U]:
        """One payload to one payload."""
        return self._step("map", function, name=name)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, name: str | None = None
    ) -> TransactionStream[U]:
        """One payload to any number of payloads."""
        return self._step("flat_map", function, name=name)

    def filter(
        self, predicate: Callable[[T], object], *, name: str | None = None
    ) -> TransactionStream[T]:
        """Only the payloads for which the predicate holds."""
        return self._step("filter", predicate, name=name)

    def with_time(self, *, name: str | None = None) -> TransactionStream[Timed[T]]:
        """Each payload as `Timed(time, payload)`."""
        return self._step("with_time", name=name)

    def key_by(self, function: Callable[[T], K]) -> KeyedTransactionStream[K, T]:
        """The key for the next access. It may depend on values that were read before."""
        self._transaction._check_open("key_by()")
        if not callable(function):
            raise FlowError(
                f"key_by() takes a function, got {function!r} at {caller()}.{field_advice(function)}"
            )
        return KeyedTransactionStream(self._transaction, self._input, function)

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            raise _no_attribute(self, attribute, "")


class KeyedTransactionStream(TransactionStream[T], Generic[K, T]):
    """Payloads within a transaction, with a key for the next access."""

    def __init__(self, transaction: Transaction[Any], source: Input, key: Callable[[T], K]) -> None:
        super().__init__(transaction, source)
        self._key = key

    @overload
    def update(
        self,
        state: State[V],
        function: Callable[[V, T], V],
        *,
        check: Callable[[V], object] | None = None,
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]: ...
    @overload
    def update(
        self,
        state: State[V],
        function: Callable[[V, T], V],
        *,
        check: Callable[[V, T], object],
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]: ...
    def update(
        self,
        state: State[V],
        function: Callable[[V, T], V],
        *,
        check: Callable[..., object] | None = None,
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]:
        """Set the key's value to ``function(value, payload)``.

        If ``check(new value)`` is false, the transaction is not applied, and the next step gets
        nothing. Otherwise it gets ``(payload, new value)``. A check of two arguments gets the payload too:

        >>> import emberflow as ef
        >>> flow = ef.Flow("reserves")
        >>> accounts = flow.state("accounts", default=10)
        >>> with flow.front("orders").transaction() as tx:
        ...     taken = tx.key_by(lambda order: order["of"]).update(
        ...         accounts,
        ...         lambda balance, order: balance - order["take"],
        ...         check=lambda balance, order: balance >= order["leave"],
        ...     )
        >>> tx.committed.map(lambda order: order["take"]).sink("taken")
        >>> orders = [{"of": "ada", "take": 4, "leave": leave} for leave in (7, 6, 2, 0)]
        >>> ef.run(flow, orders=orders)
        {'taken': [4, 4]}
        """
        if not callable(function):
            raise FlowError(f"update() takes a function, got {function!r} at {caller()}.")
        return self._access("update", state, function, check, name)

    @overload
    def read(
        self,
        state: State[V],
        *,
        check: Callable[[V], object] | None = None,
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]: ...
    @overload
    def read(
        self,
        state: State[V],
        *,
        check: Callable[[V, T], object],
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]: ...
    def read(
        self,
        state: State[V],
        *,
        check: Callable[..., object] | None = None,
        name: str | None = None,
    ) -> TransactionStream[tuple[T, V]]:
        """``(payload, the key's value)`` for the next step. Later keys may depend on it."""
        return self._access("read", state, None, check, name)

    def _access(
        self,
        label: str,
        state: State[V],
        function: Callable[[V, T], V] | None,
        check: Callable[..., object] | None,
        name: str | None,
    ) -> TransactionStream[tuple[T, V]]:
        transaction = self._transaction
        transaction._check_open(f"{label}()")
        flow = transaction.flow
        if not isinstance(state, State):
            raise FlowError(
                f"{label}() takes a state, got {state!r} at {caller()}. "
                f"Make one with flow.state(name, default=...)."
            )
        if state.flow is not flow:
            raise FlowError(
                f"{label}() at {caller()} takes the state {state.name!r} of flow "
                f"{state.flow.name!r} into flow {flow.name!r}. A state belongs to one flow: make "
                f"another one with flow.state(name, default=...)."
            )
        sees_payload = check is not None and _sees_payload(check, label)
        given = [UserFunction(label, function)] if function else []
        given += [UserFunction("check", check)] if check else []
        with transaction._scope():
            node = flow._draft(
                Access,
                name,
                label=label,
                inputs=(self._input,),
                transaction=transaction.name,
                state=state.name,
                by=Key(self._key, UserFunction("key", self._key)),
                function=function,
                check=None,
                given=tuple(given),
            )
        if check is not None:
            named = Check(_check_name(check, node.name), check, sees_payload)
            flow._drafts[node.id] = replace(node, check=named)  # type: ignore[call-arg]
        transaction._accesses += 1
        return TransactionStream(transaction, Input(node.id))


def _no_attribute(of: object, attribute: str, written: str) -> AttributeError:
    """The error for a method that is not here; it says where the method is."""
    if attribute in ("update", "read"):
        return AttributeError(
            f"{attribute}() works on a keyed stream: call {written}.key_by(function) before it, "
            f"at {caller()}."
        )
    if attribute in _OUTSIDE:
        return AttributeError(
            f"{attribute}() is not for streams within a transaction, at {caller()}. "
            f"tx.output(stream) gives a stream outside of it, of what was committed."
        )
    return AttributeError(f"{type(of).__name__} has no attribute {attribute!r}")


def _sees_payload(check: object, label: str) -> bool:
    """Whether a check takes the payload behind the new value. One that could do without does."""
    taken = "a function of the new value, or of the new value and the payload"
    if not callable(check):
        raise FlowError(f"{label}() takes check= as {taken}, got {check!r} at {caller()}.")
    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some builtins do not tell
        return False
    for given in (1, 2):
        try:
            signature.bind(*range(given))
        except TypeError:
            continue
        return given == 2
    raise FlowError(
        f"{label}() takes check= as {taken}, got {described(check)}, which takes {signature}, at "
        f"{caller()}."
    )


def _check_name(function: Callable[..., Any], otherwise: str) -> str:
    """The name of a check in rejections: the function's, or that of its step for a lambda."""
    name = name_of(function)
    return otherwise if "lambda" in name else name
