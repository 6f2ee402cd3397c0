"""Reads of state, the worker's side: its part of an answer, as of a moment.

What is guaranteed: **an answer as of T holds of every key the value that the transactions below T
left, and nothing of any other one.** It rests on two conditions that the coordinator keeps
(`queries.coordinator`), and the worker waits for nothing:

1. *T is not above the minimal time of all.* So nothing below T is in flight, nothing below T will
   enter, and every decision on a transaction below T is final: the last version below T that counts
   is the one that the reference leaves. A bisection skips what this worker has speculated about at or
   above T. The worker need not have heard yet that the minimal time is T.
2. *What is below T is not trimmed.* Trimming keeps the last version below its own bound, so T must
   not be below that bound. A worker trims by the progress that it has received. The coordinator sends
   the progress first and the question behind it, on one link, and sends no progress beyond T before the
   question. The worker looks keys up when it receives the question, so no later progress can
   interfere. A scan takes many steps: the progress that is sent meanwhile says to keep what is from T
   on (`Progress.kept`).

All workers read as of one T: that is what makes it one cut through all states and workers. There is no
lock, no copy, and writers do nothing that they would not do without queries.

A **scan** visits the keys that exist when it begins. A key that comes later has nothing below T. The
scan visits a limited number of keys between two events, and makes a page of at most `ROWS_A_PAGE` rows;
it makes the next one when the caller asks for it. So there is never more than a page of a scan under
way from a worker, however many keys there are.

Every state can be read, and every ``reduce``, ``fold`` and aggregation by its name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from emberflow.engine.cuts.cut import Row
from emberflow.engine.layout import Layout, Machines
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import BEFORE_ALL, Keys, Moment, ReadPage, Scan, WorkerRead
from emberflow.errors import InternalError, shortened
from emberflow.graph.nodes import Map
from emberflow.graph.transactions import State
from emberflow.values.hashing import encode_key

ROWS_A_PAGE = 1_000

#: A machine whose buckets have a value as of a moment.
Readable: TypeAlias = AccessMachine | ReduceMachine

ReadRow: TypeAlias = tuple[int, Any, Any]


class StateInfo(NamedTuple):
    """A state that can be read by its name."""

    name: str
    kind: str  # "state", or "reduce"
    #: The node of its machine.
    node: int
    #: The value of a key that was never updated; a reduce has none.
    has_default: bool
    default: Any
    #: From key and accumulator to key and value, where these differ.
    shown: Callable[[Any], Any] | None = None


def readable_states(layout: Layout) -> dict[str, StateInfo]:
    """All states of a flow that can be read, by name."""
    graph = layout.graph
    found: dict[str, StateInfo] = {}
    for node in graph.nodes:
        if isinstance(node, State):
            found[node.name] = StateInfo(node.name, "state", node.id, True, node.default)
    results = {node.name: node for node in graph.nodes if isinstance(node, Map)}
    for entry, fused in layout.fused.items():
        full = graph.nodes[fused.reduction.group].name.removesuffix("/group")
        name = full.removesuffix("/reduce")
        if not fused.keyed or "/" in name or name in found:
            continue
        result = results.get(f"{name}/result") if name != full else None
        shown = None if result is None else result.function
        found[name] = StateInfo(name, "reduce", entry, False, None, shown)
    return found


class StateReader:
    """The reads of one worker."""

    def __init__(self, worker: int, layout: Layout, machines: Machines) -> None:
        self._worker = worker
        self._states: dict[str, tuple[Readable, StateInfo]] = {}
        for name, info in readable_states(layout).items():
            machine = machines.stateful[info.node]
            assert isinstance(machine, AccessMachine | ReduceMachine)
            self._states[name] = machine, info
        #: The nodes of those machines: retention keeps what reads may need.
        self.nodes = frozenset(info.node for _, info in self._states.values())
        #: Versions below this are trimmed: a question as of an earlier moment comes too late.
        self.trimmed_below: Moment = BEFORE_ALL
        self._cursors: dict[int, _Cursor] = {}
        #: Numbers of the scans that have to make a page.
        self._paging: deque[int] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether `go_on` has something to do."""
        return bool(self._paging)

    def ask(self, ask: WorkerRead) -> ReadPage | None:
        """Answer keys now, and scans step by step in `go_on`."""
        number, moment = ask.number, ask.moment
        rows: list[ReadRow] = []
        scans: list[tuple[int, Scan]] = []
        try:
            self._check_kept(moment)
            for part, what in ask.parts:
                if isinstance(what, Keys):
                    rows += self._looked_up(part, what, moment)
                else:
                    scans.append((part, what))
            if scans:
                self._cursors[number] = _Cursor(moment, rows, self._buckets_of(scans, moment))
                self._paging.append(number)
                return None
        except Exception as error:
            return self._problem(number, error)
        return ReadPage(self._worker, number, rows, False)

    def more(self, number: int) -> None:
        """Make the next page of a scan, unless it was closed meanwhile."""
        if number in self._cursors and number not in self._paging:
            self._paging.append(number)

    def close(self, number: int) -> None:
        self._cursors.pop(number, None)

    def go_on(self, limit: int) -> ReadPage | None:
        """Visit so many keys of one scan; return a page if it is full, or the last one."""
        while self._paging:
            number = self._paging.popleft()
            cursor = self._cursors.get(number)
            if cursor is None:
                continue
            try:
                self._check_kept(cursor.moment)
                is_over = cursor.step(limit)
            except Exception as error:
                self.close(number)
                return self._problem(number, error)
            if not is_over and len(cursor.rows) < ROWS_A_PAGE:
                self._paging.append(number)  # behind the other scans: round robin
                return None
            if is_over:
                self.close(number)
            return ReadPage(self._worker, number, cursor.taken(), not is_over)
        return None

    def _check_kept(self, moment: Moment) -> None:
        if moment < self.trimmed_below:
            raise InternalError(
                f"worker {self._worker} was asked as of {moment}, and has trimmed what is below "
                f"{self.trimmed_below}"
            )

    def _looked_up(self, part: int, what: Keys, moment: Moment) -> list[ReadRow]:
        machine, info = self._states[what.state]
        rows: list[ReadRow] = []
        cold = machine.rows_beside(what.keys, moment)
        for key in what.keys:
            bucket = machine.bucket_of(key)
            row: tuple[Any, Any] | None = None
            if bucket is not None:
                row = machine.row_at(bucket, moment)  # type: ignore[arg-type]
            elif key in cold:
                row = cold[key].key, cold[key].payload
            if row is not None:
                rows.append((part, key, (row if info.shown is None else info.shown(row))[1]))
        return rows

    def _buckets_of(self, scans: list[tuple[int, Scan]], moment: Moment) -> deque[_Scanned]:
        scanned: deque[_Scanned] = deque()
        for part, scan in scans:
            machine, info = self._states[scan.state]
            # A list of references: the only step of a scan that grows with the number of keys in memory.
            cold = machine.all_cold(moment)
            scanned.append(_Scanned(part, scan, machine, info.shown, machine.all_buckets(), cold))
        return scanned

    def _problem(self, number: int, error: Exception) -> ReadPage:
        problem = f"{type(error).__qualname__}: {error}"
        return ReadPage(self._worker, number, [], False, shortened_text(problem))


class _Scanned(NamedTuple):
    part: int
    scan: Scan
    machine: Readable
    shown: Callable[[Any], Any] | None
    #: Buckets still to be visited, the next one last; and then the rows of keys that are out of memory.
    buckets: list[Any]
    cold: Iterator[Row]


class _Cursor:
    """A scan under way."""

    __slots__ = ("_ahead", "moment", "rows")

    def __init__(self, moment: Moment, rows: list[ReadRow], ahead: deque[_Scanned]) -> None:
        self.moment = moment
        self.rows = rows
        self._ahead = ahead

    def step(self, limit: int) -> bool:
        """Visit so many keys, or until a page is full; return whether the scan is over."""
        rows = self.rows
        while self._ahead:
            part, scan, machine, shown, buckets, cold = self._ahead[0]
            moment, row_at = self.moment, machine.row_at
            while True:
                if not limit or len(rows) >= ROWS_A_PAGE:
                    return False
                limit -= 1
                if buckets:
                    row = row_at(buckets.pop(), moment)
                elif (saved := next(cold, None)) is not None:
                    row = saved.key, saved.payload
                else:
                    break
                if row is not None:
                    if shown is not None:
                        row = shown(row)
                    if is_within(scan, *row):
                        rows.append((part, *row))
            self._ahead.popleft()
        return True

    def taken(self) -> list[ReadRow]:
        rows, self.rows = self.rows, []
        return rows


def is_within(scan: Scan, key: Any, value: Any) -> bool:
    """Whether a scan includes a key. A key that cannot be compared with a bound is not within it.

    >>> scan = Scan("accounts", low="a", high="c")
    >>> [key for key in ("a", "b", "c", 7) if is_within(scan, key, 0)]
    ['a', 'b']
    """
    low, high, predicate = scan.low, scan.high, scan.predicate
    try:
        if (low is not None and key < low) or (high is not None and not key < high):
            return False
    except TypeError:
        return False
    return predicate is None or bool(predicate(key, value))


def in_key_order(rows: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Rows sorted by key. Keys that do not compare are sorted by type, then by their encoding.

    >>> in_key_order([("b", 1), ("a", 2)]), in_key_order([("b", 1), (7, 2), (None, 3)])
    ([('a', 2), ('b', 1)], [(None, 3), (7, 2), ('b', 1)])
    """
    listed = list(rows)
    try:
        return sorted(listed, key=lambda row: row[0])
    except TypeError:
        return sorted(listed, key=lambda row: (type(row[0]).__name__, encode_key(row[0])))


def shortened_text(text: str) -> str:
    return text if len(text) <= 2_000 else shortened(text, 2_000)
