"""Transactions in a batch: nothing is late, so nothing is ever taken back.

`ordering` decides which transactions run in which of two ways.

**Apart** (`StateMachine`). All transactions of the state take effect access by access, so it is a
keyed pass: items are sorted by (key hash, place), one value is held, and everything is dropped when
the hash changes. It costs what a reduction costs. Outputs have the places that the reference gives
them. A transaction that is decided by a single access emits what its closer would. If a
transaction cannot fail, the value goes to the next step, and `report_step` replaces its closer,
which has nothing to decide.

**As a whole** (`Serial`). The transactions of a region run one at a time, in the order of places.
Each is followed from opening to closing at once, the first image and everything it causes before
the second, so that accesses happen in the order of their places. Updates go to a scratch copy that
only the transaction sees; at the end all of it is applied or nothing. This is `runners.sequential`,
over paths instead of places.

If ``ended`` is given, it is called with the last committed version of each key once no access of it
follows: the place of the access that wrote it, and the value. That is what a cut has of a state
(`engine.machines.state`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import repeat
from typing import Any, TypeAlias

from emberflow.errors import InternalError
from emberflow.graph.calls import balance_of, images_of, scheduled_time
from emberflow.graph.nodes import Broadcast, Graph, Map, Merge
from emberflow.graph.transaction_calls import outcome_of, verdict_of
from emberflow.graph.transactions import (
    COMMITTED,
    OUTPUT,
    REJECTED,
    RESULT,
    Access,
    Close,
    Rejected,
    Report,
    State,
    Values,
    depth_of,
)
from emberflow.rows.paths import CHILDREN, encoded_int, front_of, split_path
from emberflow.runners.batch.passes.machines import Ended, Keyed, KeyState
from emberflow.runners.batch.passes.steps import Step
from emberflow.runners.batch.plan.ordering import TransactionNodes, results_of
from emberflow.values.item import At
from emberflow.values.times import has_expired

_COMMITTED, _REJECTED, _OUTPUT, _RESULT = map(encoded_int, (COMMITTED, REJECTED, OUTPUT, RESULT))

#: How many keys are remembered as having a stable hash. When full, the set is cleared.
_KEYS_MAX = 200_000


# --- Apart: a state is a keyed pass ---------------------------------------------------------------


class _Use:
    """An access, prepared for `StateMachine`."""

    def __init__(self, graph: Graph, state: State, number: int, sends: dict[str, Step]) -> None:
        access = graph.nodes[state.accesses[number]]
        assert isinstance(access, Access)
        self.access = access
        self.key_of, self.function = access.by.function, access.function
        self.check = None if access.check is None else access.check.function
        self.sees_payload = access.check is not None and access.check.sees_payload
        self.why = "" if access.check is None else access.check.name
        self.outcome = outcome_of(access)
        self.sends = sends
        # A transaction that is decided by a single access has only one-to-one maps, and the child
        # id of an only image is one byte.
        self.depth = depth_of(graph, access) if access.alone else 0


class StateMachine(Keyed):
    """Keeps the value of the key across accesses. ``sends`` has the output steps of each access."""

    def __init__(
        self,
        graph: Graph,
        state: State,
        sends: list[dict[str, Step]],
        ended: Ended | None = None,
    ) -> None:
        super().__init__(is_kept=ended is not None)
        self._state = state
        self._uses = [_Use(graph, state, *each) for each in enumerate(sends)]
        self._ended = ended
        self._key: Any = _NO_KEY
        self._value: Any = state.default
        #: Values of other keys with the same hash; and where each key was written last, if `ended`
        #: needs it, or values expire.
        self._held: dict[Any, Any] = {}
        self._written: dict[Any, tuple[int, bytes]] = {}

    def feed(
        self, lanes: list[int], times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> None:
        """Process sorted items: payloads, or ``(number, payload)`` if there are several accesses."""
        uses = self._uses
        if len(uses) == 1:
            (use,) = uses
            owns = [pair[1] for pair in payloads] if use.access.carried else payloads
            values, failed = self._run(lanes, repeat(0), times, paths, owns)
            self._send(use, times, paths, payloads, owns, values, failed)
            return
        numbers = [number for number, _ in payloads]
        payloads = [payload for _, payload in payloads]
        owns = [
            payload[1] if uses[number].access.carried else payload
            for number, payload in zip(numbers, payloads, strict=True)
        ]
        values, failed = self._run(lanes, numbers, times, paths, owns)
        for number, use in enumerate(uses):
            here = [index for index, own in enumerate(numbers) if own == number]
            self._send(
                use,
                [times[index] for index in here],
                [paths[index] for index in here],
                [payloads[index] for index in here],
                [owns[index] for index in here],
                [values[index] for index in here],
                {new: failed[index] for new, index in enumerate(here) if index in failed},
            )

    def _run(
        self,
        lanes: list[int],
        numbers: Iterable[int],
        times: list[int],
        paths: list[bytes],
        owns: list[Any],
    ) -> tuple[list[Any], dict[int, Any]]:
        """The value after each access; and the keys of accesses whose check failed, by index."""
        uses, written, expires = self._uses, self._written, self._state.expires
        noting, default = self._ended is not None or expires is not None, self._state.default
        lane_now, key_now, current = self._lane, self._key, self._value
        seen = current
        number_now = -1
        use: _Use | None = None
        key_of: Callable[[Any], Any] = len
        function: Callable[[Any, Any], Any] | None = None
        check: Callable[..., object] | None = None
        sees_payload = False
        values: list[Any] = []
        failed: dict[int, Any] = {}
        append = values.append
        try:
            for lane, number, own in zip(lanes, numbers, owns, strict=False):
                if number != number_now:
                    use = uses[number]
                    key_of, function, check = use.key_of, use.function, use.check
                    sees_payload = use.sees_payload
                    number_now = number
                key = key_of(own)
                if lane != lane_now or key != key_now:
                    self._key, self._value = key_now, current
                    current = self._turn_to(lane, key)
                    lane_now, key_now = lane, key
                seen = current
                if (
                    expires is not None
                    and key in written
                    and has_expired(written[key][0], expires, times[len(values)])
                ):
                    seen = default  # what is held stays: a refused access changes nothing
                value = seen if function is None else function(seen, own)
                if value.__class__ is At:
                    raise TypeError("a state cannot hold what is scheduled")
                if check is None or (check(value, own) if sees_payload else check(value)):
                    if function is not None:
                        current = value
                        if noting:
                            written[key] = (times[len(values)], paths[len(values)])
                else:
                    failed[len(values)] = key
                append(value)
        except Exception:
            at = len(values)
            if use is not None:  # raises the same error as in every runner
                use.outcome(seen, owns[at], (times[at], front_of(paths[at])))
            raise
        self._lane, self._key, self._value = lane_now, key_now, current
        return values, failed

    def _turn_to(self, lane: int, key: Any) -> Any:
        """Switch to another key and return its value. If the hash changes, drop all old keys."""
        if lane != self._lane:
            self._turn_to_lane(lane)
        else:
            self._held[self._key] = self._value
        return self._held.pop(key, self._state.default)

    def _restore(self, state: KeyState) -> None:
        _, key, ((time, path, value),) = state
        self._held[key] = value
        if self._ended is not None or self._state.expires is not None:
            self._written[key] = (time, path)

    def _send(
        self,
        use: _Use,
        times: list[int],
        paths: list[bytes],
        payloads: list[Any],
        owns: list[Any],
        values: list[Any],
        failed: dict[int, Any],
    ) -> None:
        sends, access = use.sends, use.access
        if use.depth:
            paths = [path[: -use.depth] for path in paths]
        if failed:
            if "rejected" in sends:
                self._reject(use, times, paths, payloads, values, failed)
            holds = [index for index in range(len(times)) if index not in failed]
            times = [times[index] for index in holds]
            paths = [paths[index] for index in holds]
            payloads = [payloads[index] for index in holds]
            owns = [owns[index] for index in holds]
            values = [values[index] for index in holds]
        if "committed" in sends:
            elements = [pair[0] for pair in payloads] if access.carried else payloads
            sends["committed"](times, [path + _COMMITTED for path in paths], elements)
        for what, code in (("output", _OUTPUT), ("result", _RESULT)):
            if what in sends:
                results = list(zip(owns, values, strict=True))
                sends[what](times, [path + code for path in paths], results)

    def _reject(
        self,
        use: _Use,
        times: list[int],
        paths: list[bytes],
        payloads: list[Any],
        values: list[Any],
        failed: dict[int, Any],
    ) -> None:
        name, carried = self._state.name, use.access.carried
        use.sends["rejected"](
            [times[index] for index in failed],
            [paths[index] + _REJECTED for index in failed],
            [
                Rejected(
                    payloads[index][0] if carried else payloads[index],
                    use.why,
                    Values({(name, key): values[index]}),
                )
                for index, key in failed.items()
            ],
        )

    def end(self) -> None:
        if self._ended is not None and self._written:
            self._held[self._key] = self._value
            for key, (time, path) in self._written.items():
                self._ended(key, [(time, path, self._held[key], None)])
        self._written.clear()
        self._key, self._value = _NO_KEY, self._state.default
        self._held.clear()

    finish = Keyed.end_slice


class _NoKey:
    """Equals no key."""


_NO_KEY: Any = _NoKey()


def report_step(graph: Graph, report: Report, close: Close, sends: dict[int, Step]) -> Step:
    """The step that replaces the closer of a transaction that cannot fail; ``sends`` by port."""
    depth = depth_of(graph, report)
    what = ("committed", 0) if report.number < 0 else ("output", report.number)
    send = sends.get(close.outputs.index(what)) if what in close.outputs else None
    code = _COMMITTED if report.number < 0 else encoded_int(OUTPUT + report.number)

    def step(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        if send is None:
            return
        parts = [split_path(path, depth) for path in paths]
        if report.number < 0:
            send(times, [identity + code for identity, _ in parts], payloads)
        else:
            send(times, [identity + code + suffix for identity, suffix in parts], payloads)

    return step


# --- As a whole: one at a time --------------------------------------------------------------------


class _Running:
    """The transaction that is running."""

    __slots__ = ("at", "element", "failed", "outputs", "path", "values", "written")

    def __init__(self, at: tuple[int, int], path: bytes, element: Any) -> None:
        self.at = at
        self.path = path
        self.element = element
        self.values = Values()
        #: The updated keys, with the path of the last update.
        self.written: dict[tuple[str, Any], bytes] = {}
        self.failed: tuple[str, Values] | None = None
        self.outputs: dict[int, list[tuple[bytes, Any]]] = {}


#: An output of a node: time, path, the node that reads it, payload. See `regions`.
_Made: TypeAlias = tuple[int, bytes, int, Any]
#: A step within a transaction: path, payload, the transaction.
_Within: TypeAlias = Callable[[bytes, Any, _Running], None]


class Serial:
    """The states of a region, and its transactions, one at a time."""

    def __init__(
        self,
        graph: Graph,
        whole: Iterable[TransactionNodes],
        ended: Callable[[int], Ended | None] | None = None,
    ) -> None:
        self._graph = graph
        #: By state; only those whose final values are wanted.
        self._ended: dict[str, Ended] = {}
        #: Committed values by state; and where each was written, if `ended` needs it, or values expire.
        self._held: dict[str, dict[Any, Any]] = {}
        self._written: dict[tuple[str, Any], tuple[int, bytes]] = {}
        self._states: dict[int, State] = {}
        self._stable: set[Any] = set()
        #: Runs a transaction, by the node that opens it.
        self.process: dict[int, Callable[[int, bytes, Any], list[_Made]]] = {}
        whole = list(whole)
        #: All nodes that this replaces.
        self.nodes = frozenset(_inside(graph, whole))
        for transaction in whole:
            for number in transaction.states:
                state = graph.nodes[number]
                assert isinstance(state, State)
                self._held.setdefault(state.name, {})
                wanted = None if ended is None else ended(state.id)
                if wanted is not None:
                    self._ended[state.name] = wanted
                self._states |= dict.fromkeys(state.accesses, state)
        self._notes = bool(self._ended) or any(
            state.expires is not None for state in self._states.values()
        )
        for transaction in whole:
            run = self._alone if transaction.accesses[0].alone else self._together
            self.process[transaction.open.id] = run(transaction)

    def end(self) -> None:
        """No transaction follows that could see the effects of these."""
        for (state, key), (time, path) in self._written.items():
            if state in self._ended:
                self._ended[state](key, [(time, path, self._held[state][key], None)])
        self._written.clear()
        for held in self._held.values():
            held.clear()

    @property
    def states(self) -> Collection[str]:
        """The names of the states."""
        return self._held.keys()

    def restore(self, state: KeyState) -> None:
        """Take over the value of a key."""
        name, key, ((time, path, value),) = state
        self._apply(name, key, value, time, path)

    def _apply(self, state: str, key: Any, value: Any, time: int, path: bytes) -> None:
        self._held[state][key] = value
        if self._notes:
            self._written[state, key] = (time, path)

    def _holds(self, state: State) -> Callable[[Any, int], Any]:
        """From a key and a time to the committed value that an access finds."""
        name, default, expires = state.name, state.default, state.expires
        held, written = self._held[name], self._written

        def value(key: Any, time: int) -> Any:
            if key not in held or has_expired(written[name, key][0], expires, time):
                return default
            return held[key]

        return (lambda key, time: held.get(key, default)) if expires is None else value

    # Decided by a single access.

    def _alone(self, transaction: TransactionNodes) -> Callable[[int, bytes, Any], list[_Made]]:
        (access,) = transaction.accesses
        state = self._states[access.id]
        held, readers = self._holds(state), self._ports(state, access)
        outcome, key_of = outcome_of(access), self._key_of(access)
        made: list[_Made] = []

        def decide(path: bytes, payload: Any, running: _Running) -> None:
            element, own = payload if access.carried else (payload, payload)
            key = key_of(own, running.at)
            value, failed = outcome(held(key, running.at[0]), own, running.at)
            time = running.at[0]
            if failed is not None:
                rejected = Rejected(element, failed, Values({(state.name, key): value}))
                if "rejected" in readers:
                    made.append((time, running.path + _REJECTED, readers["rejected"], rejected))
                return
            if access.function is not None:
                self._apply(state.name, key, value, time, path)
            if "committed" in readers:
                made.append((time, running.path + _COMMITTED, readers["committed"], element))
            if "output" in readers:
                made.append((time, running.path + _OUTPUT, readers["output"], (own, value)))

        begin = self._within(transaction, self._graph.readers[transaction.open.id][0][0], decide)

        def run(time: int, path: bytes, payload: Any) -> list[_Made]:
            nonlocal made
            begin(path, payload, _Running((time, front_of(path)), path, payload))
            done, made = made, []
            return done

        return run

    # Decided by a closer.

    def _together(self, transaction: TransactionNodes) -> Callable[[int, bytes, Any], list[_Made]]:
        begin = self._within(transaction, self._graph.readers[transaction.open.id][0][0], None)
        close = transaction.close
        requires = close is not None and bool(close.requires)
        verdict = verdict_of(close) if close is not None else None
        ports: list[tuple[str, int, bytes, int]] = []  # what, number, code, reader
        if close is not None:
            for (what, number), (reader, _) in zip(
                close.outputs, self._graph.readers[close.id], strict=True
            ):
                if what == "output":
                    assert isinstance(number, int)
                    ports.append((what, number, encoded_int(OUTPUT + number), reader))
                elif what != "abort":
                    ports.append(
                        (what, 0, _COMMITTED if what == "committed" else _REJECTED, reader)
                    )
        held, noting, noted = self._held, self._notes, self._written

        def run(time: int, path: bytes, payload: Any) -> list[_Made]:
            running = _Running((time, front_of(path)), path, payload)
            begin(path, payload, running)
            values, failed = running.values, running.failed
            if requires and failed is None and values:
                assert verdict is not None
                name = verdict(values, payload, running.at)
                failed = None if name is None else (name, values)
            if failed is None or close is None:
                for touched, at in running.written.items():
                    held[touched[0]][touched[1]] = values[touched]
                    if noting:
                        noted[touched] = (time, at)
            made: list[_Made] = []
            for what, number, code, reader in ports:
                if what == "rejected":
                    if failed is not None:
                        made.append((time, path + code, reader, Rejected(payload, *failed)))
                elif failed is None:
                    if what == "committed":
                        made.append((time, path + code, reader, payload))
                    else:
                        for suffix, output in running.outputs.get(number, ()):
                            made.append((time, path + code + suffix, reader, output))
            return made

        return run

    def _within(
        self, transaction: TransactionNodes, number: int, decide: _Within | None
    ) -> _Within:
        """The step of a node between opening and closing, with all steps after it."""
        node = self._graph.nodes[number]
        readers = [reader for reader, _ in self._graph.readers[number]]
        if isinstance(node, Map):
            return _map_within(node, self._within(transaction, readers[0], decide))
        if isinstance(node, Broadcast):
            return _broadcast_within(
                [self._within(transaction, reader, decide) for reader in readers]
            )
        if isinstance(node, Report):
            return _report_within(node)
        if isinstance(node, Access):
            if decide is not None:
                return decide
            results = results_of(self._graph, self._states[node.id], node)
            return self._access(node, [self._within(transaction, each, decide) for each in results])
        raise InternalError(f"{node} cannot be in a transaction")

    def _access(self, access: Access, results: list[_Within]) -> _Within:
        state = self._states[access.id]
        name, held = state.name, self._holds(state)
        checked_key, outcome = self._key_of(access), outcome_of(access)
        by, stable = access.by.function, self._stable
        update, send = access.function, results[0] if results else None
        check = None if access.check is None else access.check.function
        sees_payload = access.check is not None and access.check.sees_payload
        why = "" if access.check is None else access.check.name

        def access_(path: bytes, payload: Any, running: _Running) -> None:
            try:
                key = by(payload)
                is_known = key in stable
            except Exception:
                is_known = False
            if not is_known:
                key = checked_key(payload, running.at)
            touched = (name, key)
            values = running.values
            before = values[touched] if touched in values else held(key, running.at[0])
            failed: str | None
            try:
                value = before if update is None else update(before, payload)
                failed = None
                if check is not None and not (
                    check(value, payload) if sees_payload else check(value)
                ):
                    failed = why
                is_odd = value.__class__ is At
            except Exception:
                is_odd = True
            if is_odd:  # raises the same error as in every runner
                value, failed = outcome(before, payload, running.at)
            values[touched] = value
            if update is not None:
                running.written[touched] = path
            if failed is not None:
                if running.failed is None:
                    running.failed = failed, Values({touched: value})
            elif send is not None:
                send(path + _RESULT, (payload, value), running)

        return access_

    def _key_of(self, access: Access) -> Callable[[Any, tuple[int, int]], Any]:
        """The key of a payload. A key without a stable hash is refused, as everywhere."""
        balance, stable = balance_of(access, access.by), self._stable

        def key_of(payload: Any, at: tuple[int, int]) -> Any:
            key, _ = balance(payload, at)
            if len(stable) >= _KEYS_MAX:
                stable.clear()
            stable.add(key)
            return key

        return key_of

    def _ports(self, state: State, access: Access) -> dict[str, int]:
        """The readers of an access that decides its transaction, by output."""
        return {
            what: reader
            for (number, what), (reader, _) in zip(
                state.outputs, self._graph.readers[state.id], strict=True
            )
            if state.accesses[number] == access.id
        }


def _inside(graph: Graph, whole: list[TransactionNodes]) -> Iterator[int]:
    """The nodes of these transactions, their states, and the merges before states and closers."""
    for transaction in whole:
        yield from transaction.nodes
        ends = [graph.nodes[number] for number in transaction.states]
        for node in [*ends, transaction.close]:
            if node is not None:
                yield node.id
                source = graph.nodes[node.inputs[0].node]
                if isinstance(source, Merge):
                    yield source.id


def _map_within(node: Map, send: _Within) -> _Within:
    images = images_of(node)

    def map_(path: bytes, payload: Any, running: _Running) -> None:
        made = images(payload, running.at)
        for image in made:
            if isinstance(image, At):
                scheduled_time(node, image, running.at)
                raise InternalError(f"{node} scheduled an item within a transaction")
        for child, image in enumerate(made):
            code = CHILDREN[child] if child < len(CHILDREN) else encoded_int(child)
            send(path + code, image, running)

    return map_


def _broadcast_within(sends: list[_Within]) -> _Within:
    ports = [(encoded_int(port), send) for port, send in enumerate(sends)]

    def broadcast(path: bytes, payload: Any, running: _Running) -> None:
        for code, send in ports:
            send(path + code, payload, running)

    return broadcast


def _report_within(node: Report) -> _Within:
    number = node.number

    def report(path: bytes, payload: Any, running: _Running) -> None:
        if number >= 0:
            suffix = path[len(running.path) :]
            running.outputs.setdefault(number, []).append((suffix, payload))

    return report
