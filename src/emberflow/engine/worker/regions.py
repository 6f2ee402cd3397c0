"""Regions: how a worker runs a cycle of the graph, in order or a slice of global times at once.

What is guaranteed: *FIFO.* An entry keeps the number that it got when it came; of one place, the
smaller number goes first. All that is held of one place is in one chunk, and what waits beside it is
newer.

Where a loop was not fused, or there are transactions (state and closer form a cycle, votes one way and
aborts the other), nodes have no order: they form a *region*. Item by item, the least place first, is
the order in which one worker never presumes anything wrong. Loops run in that order.

But most transactions commit, and then a whole batch at a time is many times cheaper. So a region with
transactions runs in *slices*: the items of the next so many global times, node by node, until nothing
is left of them; then the next slice. A slice in which more was replayed than came in makes the next
ones smaller, down to one global time; one without a replay makes them larger. Within one global time
the accesses of a transaction depend on each other, so there the region runs the least place first.

The worker's budget bounds speculation (`budget`). When it is spent, the region holds back what is above
the minimal time. Where the items of that time still do not agree, it holds back all but what has the
least turn of it (`turns`): that alone depends on nothing that is still under way, so N transactions
take N turns at most, each of which puts right no more than all of them. But a turn takes a round trip
to the acker, which is why a region does not begin with turns. What is held may be much (all that the
fronts' credits let in), and the minimal time moves often. So it is held in chunks, each a frame of its
own that the worker sends to itself, and a run takes up only the chunks that are due.

In a region of transactions only nodes that keep something have an order to keep. What a node sends passes
through all others at once, as far as the next that keeps something or is on another worker. All of it does,
always: what overtook an item that is held at a node between the two could be its tombstone. That a state is
accessed again with what was read from it makes no difference: nothing goes round. In a loop that a
flow closes itself nothing passes: with the budget spent, each of its nodes holds back what is not next, and
none of that gets to another worker.

Where nothing is held and all that waits is no more than a slice, the region runs it as one, as it came:
nothing older waits anywhere, so no entries are needed.

The host of a gathered region fetches rows (`gathering`). Before it runs anything it asks for all rows that
what waits will need, and it begins nothing of a global time at or above one that waits for a row: what came of
that would presume a row that is not here, and be computed again.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Protocol, TypeAlias

from emberflow.engine.layout import Stateful, Unit
from emberflow.engine.messages import AFTER_ALL, Frame, Moment
from emberflow.engine.paths import (
    has_rounds,
    has_transactions,
    nodes_ahead_of,
    order_of_nodes,
    passing_nodes,
)
from emberflow.engine.speculation.budget import Budget
from emberflow.engine.worker.dataflow import Dataflow, Send
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.engine.worker.outbox import Outbox
from emberflow.errors import EndlessLoopError
from emberflow.values.item import CHILD_IDS_MAX, FlatItem, GlobalTime, Place

#: Place, number, node, item.
QueuedItem: TypeAlias = tuple[Place, int, int, FlatItem]

#: Items in a slice, and in a chunk of what is held.
_SLICE_MAX = 8192
_SLICE_FIRST = 64
_CHUNK = 64


class Rows(Protocol):
    """The rows that the host of a gathered region fetches."""

    @property
    def awaited_from(self) -> Moment:
        """The least global time of what waits for a row that is not here yet."""

    def expect(self, node: int, items: list[FlatItem]) -> None:
        """These items are for a state, or will come to it as they are: ask for the rows that they need."""


class Cycle:
    """A region on one worker."""

    def __init__(
        self,
        unit: Unit,
        dataflow: Dataflow,
        mailboxes: Mailboxes,
        outbox: Outbox,
        budget: Budget,
    ) -> None:
        layout, stateful = dataflow.layout, dataflow.machines.stateful
        self._dataflow = dataflow
        self._mailboxes = mailboxes
        self._outbox = outbox
        self._budget = budget
        self._nodes = layout.graph.nodes
        self._unit = unit
        self._layout_rank = layout.rank[unit.nodes[0]]
        self._stateful = {node: stateful[node] for node in unit.nodes if node in stateful}
        #: By node that keeps something: where items are that come to it as they are.
        self._ahead_of = {node: nodes_ahead_of(layout, unit, node) for node in self._stateful}
        self._rank = {node: rank for rank, node in enumerate(order_of_nodes(layout, unit))}
        self._in_slices = has_transactions(layout, unit)
        self._loop_entries = layout.graph.loop_entries & set(unit.nodes)
        self._passing = (
            frozenset() if has_rounds(layout, unit) else passing_nodes(layout, unit, self._stateful)
        )
        self._numbers = itertools.count()
        self._size = _SLICE_FIRST
        self._held: list[_Chunk] = []
        #: On the host, if the region is gathered.
        self._rows: Rows | None = None

    def held(self) -> list[Frame]:
        return [chunk.frame for chunk in self._held]

    def use(self, node: int, machine: Stateful) -> None:
        """From now on this is the machine of a node."""
        self._stateful[node] = machine

    def fetch_by(self, rows: Rows | None) -> None:
        """From now on this worker fetches the rows of the region, or does not."""
        self._rows = rows

    def wake(self) -> None:
        """Run in the next round: what is held may go on."""
        if self._held:
            self._mailboxes.wake(self._layout_rank)

    def run_now(self, node: int, items: list[FlatItem]) -> None:
        """Run a node that keeps something on items that have been taken up already, and had to wait at it. What
        is held for the node came after them."""
        send = self._dataflow.sender(self._rank, self._passing, self._mailboxes.put)
        before = self._replays()
        self._dataflow.run(node, sorted(items, key=_place_of), send)
        self._budget.replays_left -= self._replays() - before

    def run(self) -> None:
        """Run what waits here: all of it, or what is next when the budget is spent."""
        if self._rows is not None:
            self._expect(self._rows)
        pending = self._run_slices() if self._in_slices else self._run_by_place()
        if self._budget.replays_left <= 0:
            self._run_next(pending)
        elif pending:  # it would presume rows that are not here
            self._hold(pending)

    def _expect(self, rows: Rows) -> None:
        for state, nodes in self._ahead_of.items():
            for node in nodes:
                for items in self._mailboxes.batches(node) or ():
                    rows.expect(state, items)

    def _bound(self) -> Moment:
        """Nothing from this global time on is begun now."""
        return AFTER_ALL if self._rows is None else self._rows.awaited_from

    def _run_by_place(self) -> list[QueuedItem]:
        """Run what waits, as long as there is budget; return what is left."""
        pending = self._arrived()
        if self._budget.replays_left > 0:
            if self._held:
                pending = self._with_chunks(self._held, pending)
            pending = self._run_in_order(pending, AFTER_ALL)
        return pending

    def _run_slices(self) -> list[QueuedItem]:
        """The same, a slice at a time."""
        budget = self._budget
        pending = self._run_at_once()
        if pending is None:
            pending = self._arrived()
        while budget.replays_left > 0:
            bound = self._bound()
            if bound < AFTER_ALL and not self._begins_below(bound, pending):
                break
            limit = self._limit(pending)
            # Chunks that begin within the slice belong to it, and make it longer or shorter.
            while self._held and (limit is None or self._held[0].first[:2] <= limit):
                pending = self._with_chunks(self._held[:1], pending)
                limit = self._limit(pending)
            if limit is None:
                break
            end = bisect_right(pending, limit, key=_moment_of)
            if limit >= bound:
                end = bisect_left(pending, bound, key=_moment_of)
                if not end:  # what was below it had been taken back
                    continue
                limit = _moment_of(pending[end - 1])
            entries, pending = pending[:end], pending[end:]
            if _moment_of(entries[0]) == _moment_of(entries[-1]):
                later = self._run_in_order(entries, limit)
            else:
                later = self._run_slice(entries, limit)
            if later:
                pending = sorted(pending + later, key=_order_of)
        return pending

    def _begins_below(self, bound: Moment, pending: list[QueuedItem]) -> bool:
        """Whether anything that waits or is held is below a global time."""
        return bool(pending and _moment_of(pending[0]) < bound) or bool(
            self._held and self._held[0].first[:2] < bound
        )

    def _run_next(self, pending: list[QueuedItem]) -> None:
        """Run what is next in the order, with all of that which it causes, and hold the rest."""
        budget, turns = self._budget, self._budget.turns
        later, heap = pending, list[QueuedItem]()

        def file(node: int, items: list[FlatItem]) -> None:
            turn_of = turns[node]
            for entry in self._numbered(node, items):
                if turn_of(entry[3]) <= last:
                    heappush(heap, entry)
                else:
                    later.append(entry)

        while True:
            last = min(budget.last_turn, _before(self._bound()))
            due = [chunk for chunk in self._held if chunk.least <= last]
            waiting = self._with_chunks(due, later)
            later, heap = [], []
            for entry in waiting:
                (heap if turns[entry[2]](entry[3]) <= last else later).append(entry)
            self._run_heap(heap, file, overdraft=budget.overdraft)
            if not heap or heap[0][0] >= self._bound():
                self._hold(sorted(later + heap, key=_order_of))
                return
            budget.go_by_turns(budget.minimal)
            later += heap

    def _with_chunks(self, due: list[_Chunk], pending: list[QueuedItem]) -> list[QueuedItem]:
        """Go on with these chunks: their items and those that wait, in order."""
        taken = set(due)
        self._held = [chunk for chunk in self._held if chunk not in taken]
        self._outbox.finish([chunk.frame for chunk in due])
        held = [entry for chunk in due for entry in chunk.entries]
        return _cancelled(sorted(held + pending, key=_order_of))

    def _run_at_once(self) -> list[QueuedItem] | None:
        """Run all that waits as one slice, and return what is left; None if it is no slice."""
        mailboxes = self._mailboxes
        waiting = {
            node: batches
            for node in self._unit.nodes
            if (batches := mailboxes.batches(node)) is not None
        }
        count = sum(len(items) for batches in waiting.values() for items in batches)
        if self._held or self._budget.replays_left <= 0 or count > self._size:
            return None
        if self._bound() < AFTER_ALL:
            return None
        active = {node: sorted(mailboxes.take(node), key=_place_of) for node in waiting}
        if _is_of_one_time(active.values()):
            for node, items in active.items():
                mailboxes.put_back(node, items)
            return None
        return sorted(self._run_active(active, AFTER_ALL, count), key=_order_of)

    def _limit(self, pending: list[QueuedItem]) -> Moment | None:
        """The last global time of the next slice; None if nothing waits."""
        if not pending:
            return None
        return _moment_of(pending[min(self._size, len(pending)) - 1])

    def _arrived(self) -> list[QueuedItem]:
        """What waits for the nodes of the region, in order."""
        found: list[QueuedItem] = []
        mailboxes, numbers = self._mailboxes, self._numbers
        for node in self._unit.nodes:
            if mailboxes.batches(node) is not None:
                found += [(item[0], next(numbers), node, item) for item in mailboxes.take(node)]
        found.sort(key=_order_of)
        return found

    def _run_slice(self, entries: list[QueuedItem], limit: Moment) -> list[QueuedItem]:
        """Run these items, and all they cause within the limit; return what is beyond it."""
        active: dict[int, list[FlatItem]] = {}
        for _, _, node, item in entries:
            active.setdefault(node, []).append(item)
        return self._run_active(active, limit, len(entries))

    def _run_active(
        self, active: dict[int, list[FlatItem]], limit: Moment, count: int
    ) -> list[QueuedItem]:
        budget, rank = self._budget, self._rank
        unsorted: set[int] = set()
        later: list[QueuedItem] = []

        def file(node: int, items: list[FlatItem]) -> None:
            if limit is not AFTER_ALL and max(map(_place_of, items)) >= _behind(limit):
                # A replay may reach beyond the slice. What waits there already goes first.
                items = self._within(node, items, limit, later)
                if not items:
                    return
            waiting = active.get(node)
            if waiting is None:
                active[node] = items
            else:
                active[node] = waiting + items
                unsorted.add(node)

        send = self._dataflow.sender(rank, self._passing, file)
        replays = begun = self._replays()
        while active:
            if budget.replays_left <= 0:
                for node, items in active.items():
                    later += self._numbered(node, items)
                break
            node = min(active, key=rank.__getitem__)
            items = active.pop(node)
            if node in unsorted:
                unsorted.remove(node)
                items.sort(key=_place_of)
            self._run_node(node, items, send)
            before, replays = replays, self._replays()
            budget.replays_left -= replays - before
            bound = self._bound()
            if bound < AFTER_ALL and bound <= limit:
                # The node asked for rows: what is behind waits for them.
                limit = (bound[0], bound[1] - 1)
                waiting, active = active, {}
                for node, items in waiting.items():
                    items = self._within(node, items, limit, later)
                    if items:
                        active[node] = items
        self._adapt(replays - begun, count)
        return later

    def _run_in_order(self, entries: list[QueuedItem], limit: Moment) -> list[QueuedItem]:
        """The same, the least place first, all of one place at once, as long as there is budget. Return
        what is beyond the limit, and what is left."""
        heap = list(entries)  # what is sorted is a heap
        later: list[QueuedItem] = []
        behind, numbers = _behind(limit), self._numbers

        def file(node: int, items: list[FlatItem]) -> None:
            for item in items:
                entry = (item[0], next(numbers), node, item)
                if item[0] < behind:
                    heappush(heap, entry)
                else:
                    later.append(entry)

        self._adapt(self._run_heap(heap, file, overdraft=0), len(entries))
        return later + heap

    def _run_heap(
        self,
        heap: list[QueuedItem],
        file: Send,
        *,
        overdraft: int | None,
    ) -> int:
        """Run these items and all that is filed there; return how much was replayed.

        It stops where something waits for a row, and when the worker has spent so much more than its
        budget, unless that is None.
        """
        budget, run, stateful = self._budget, self._dataflow.run, self._stateful
        rows = self._rows
        send = self._dataflow.sender(self._rank, self._passing, file)
        spent = 0
        self._fetch_ahead(heap)
        while heap and (overdraft is None or budget.replays_left > -overdraft):
            if rows is not None and heap[0][0] >= rows.awaited_from:
                break
            place, _, node, item = heappop(heap)
            batches = {node: [item]}
            while heap and heap[0][0] == place:
                _, _, node, item = heappop(heap)
                batches.setdefault(node, []).append(item)
            for node, items in batches.items():
                if len(place) - 2 > CHILD_IDS_MAX and node in self._loop_entries:
                    self._fail(node, items)
                    continue
                machine = stateful.get(node)
                if machine is None:
                    run(node, items, send)
                    continue
                before = machine.replays
                run(node, items, send)
                replays = machine.replays - before
                if replays:
                    budget.replays_left -= replays
                    spent += replays
        return spent

    def _fetch_ahead(self, heap: list[QueuedItem]) -> None:
        """Bring back what is out of memory, for all that waits, before it goes item by item."""
        for node, machine in self._stateful.items():
            if machine.cold_keys:
                waits_at = self._ahead_of[node]
                machine.fetch_ahead([entry[3] for entry in heap if entry[2] in waits_at])

    def _replays(self) -> int:
        """How much the machines of this region have ever replayed."""
        return sum([machine.replays for machine in self._stateful.values()])

    def _run_node(self, node: int, items: list[FlatItem], send: Send) -> None:
        if node in self._loop_entries and max(len(item[0]) for item in items) - 2 > CHILD_IDS_MAX:
            self._fail(node, [item for item in items if len(item[0]) - 2 > CHILD_IDS_MAX])
            items = [item for item in items if len(item[0]) - 2 <= CHILD_IDS_MAX]
        if items:
            self._dataflow.run(node, items, send)

    def _fail(self, node: int, endless: list[FlatItem]) -> None:
        step = str(self._nodes[node])
        self._dataflow.fail(
            node,
            [
                (place, mark, EndlessLoopError.of(step, GlobalTime(place[0], place[1]), payload))
                for place, mark, payload in endless
            ],
        )

    def _adapt(self, replays: int, entries: int) -> None:
        if not replays:
            self._size = min(2 * self._size, _SLICE_MAX)
        elif replays > entries:
            self._size = max(self._size // 2, 1)

    def _within(
        self, node: int, items: list[FlatItem], limit: Moment, later: list[QueuedItem]
    ) -> list[FlatItem]:
        """The items up to the limit; file the others for later."""
        behind = _behind(limit)
        later += self._numbered(node, [item for item in items if item[0] >= behind])
        return [item for item in items if item[0] < behind]

    def _numbered(self, node: int, items: list[FlatItem]) -> list[QueuedItem]:
        """Entries of items that have just come, in their order."""
        numbers = self._numbers
        return [(item[0], next(numbers), node, item) for item in items]

    def _hold(self, pending: list[QueuedItem]) -> None:
        """Hold items back, each in the chunk that its place belongs to."""
        chunks = self._held
        start = bisect_left(pending, (chunks[0].first,)) if chunks else len(pending)
        held = self._chunks(pending[:start])
        for number, chunk in enumerate(chunks, 1):
            last = number == len(chunks)
            end = len(pending) if last else bisect_left(pending, (chunks[number].first,), start)
            if end > start:
                self._outbox.finish([chunk.frame])
                held += self._chunks(sorted(chunk.entries + pending[start:end], key=_order_of))
            else:
                held.append(chunk)
            start = end
        self._held = held

    def _chunks(self, entries: list[QueuedItem]) -> list[_Chunk]:
        """Chunks of these entries, none of which ends amid a place."""
        found: list[_Chunk] = []
        entries = _cancelled(entries)
        start = 0
        while start < len(entries):
            end = min(start + _CHUNK, len(entries))
            while end < len(entries) and entries[end][0] == entries[end - 1][0]:
                end += 1
            chunk = _Chunk(self._outbox, entries[start:end])
            self._outbox.hold(chunk.frame)
            found.append(chunk)
            start = end
        return found


class _Chunk:
    """Items that are held back, in order, as a frame that the worker sends to itself."""

    __slots__ = ("entries", "first", "frame", "least")

    def __init__(self, outbox: Outbox, entries: list[QueuedItem]) -> None:
        self.entries = entries
        self.first = entries[0][0]
        by_node: dict[int, list[FlatItem]] = {}
        for _, _, node, item in entries:
            by_node.setdefault(node, []).append(item)
        self.frame = outbox.frame(list(by_node.items()))
        least = self.frame.least
        assert least is not None  # no node of a region is a sink
        #: Nothing in it has a turn before this.
        self.least = least


_place_of = itemgetter(0)


def _behind(moment: Moment) -> Place:
    """All places of this global time and before are below it."""
    return moment[0], moment[1] + 1


def _before(moment: Moment) -> tuple[float, ...]:
    """All turns of this global time and after are above it."""
    return moment[0], moment[1] - 1, inf


def _is_of_one_time(batches: Iterable[list[FlatItem]]) -> bool:
    """Whether all these items, each batch in order, have one global time."""
    firsts = {items[0][0][:2] for items in batches if items}
    lasts = {items[-1][0][:2] for items in batches if items}
    return len(firsts | lasts) <= 1


def _order_of(entry: QueuedItem) -> tuple[Place, int]:
    return entry[0], entry[1]


def _moment_of(entry: QueuedItem) -> Moment:
    return entry[0][0], entry[0][1]


def _cancelled(entries: list[QueuedItem]) -> list[QueuedItem]:
    """Drop items that are taken back before any node has seen them. The entries are in order.

    A state may correct what it sent many times while the region holds it back. So the region never
    holds more of it than one tombstone and one item of each.
    """
    kept: list[QueuedItem] = []
    for entry in entries:
        place, _, node, (_, mark, _) = entry
        if mark & 1:
            position = len(kept)
            while position and kept[position - 1][0] == place:
                position -= 1
                other = kept[position]
                if other[2] == node and other[3][1] == mark ^ 1:
                    del kept[position]
                    break
                if other[2] == node and other[3][1] == mark:
                    position = 0  # a tombstone like this one: a node has seen the item
            else:
                kept.append(entry)
            continue
        kept.append(entry)
    return kept
