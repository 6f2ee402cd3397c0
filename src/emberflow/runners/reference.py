"""The reference runner: sequential, in order, in one process. It defines what is right.

The runner takes elements in the order of their global times and follows each to its end before it
looks at the next. Within an element it processes the item with the least place first: it pushes an
operation's outputs on a stack in reverse, so the first output and everything it causes are done
before the second is touched. Child ids grow in the same direction, so *the order of processing is
the order of places*, at every grouping and at every sink. That is the whole argument for why
nothing here is ever taken back. `_in_order` checks it on every item.

Scheduled items wait in a heap, sorted by place. The runner processes them before the next element
whose place is greater.

The operations, as in the papers:

- map: each image in turn, with the next child id;
- broadcast: the item to each port, with the port's number as child id;
- merge: the item as it is;
- grouping: the item joins its bucket; the last ``window`` payloads of the bucket are emitted, at
  the place of the newest. A bucket that expires is empty when its next item comes so late;
- sink: the payload is appended to the output.

Transactions are in `sequential`: one at a time, all or nothing.

Without replay, global time and child ids identify an item, so there is no trace.

**Versions** of a flow follow one another at given times (`dsl.versions`). The runner processes all below
such a time with the old version, takes a cut, translates it, and goes on with the new version: that is
the whole definition of what an upgrade is.

**Diverted items.** With ``on_error="divert"``, a step that cannot process an item emits nothing for
it; the runner appends an `emberflow.Diverted` to the output ``"errors"`` instead of raising. A step
fails as a whole: if its function raises after it scheduled something, nothing is scheduled.
Everything else goes on, including other branches of the same element. A grouping keeps the items
that reached it; a reduction keeps its accumulator as it was (see `dsl.operators.reduce`). A user's
own loop has no such rule: an item that fails in it does not come back. Within a transaction the element
fails as a whole: see `sequential`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from emberflow.checkpoint.cuts.backfills import all_rows
from emberflow.dsl.flow import Flow
from emberflow.dsl.operators.reduce import NoneYet
from emberflow.dsl.versions import Versions
from emberflow.engine.cuts.cut import Row, Scheduled, scheduled_row
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.errors import (
    ERRORS_SINK,
    Diverted,
    EndlessLoopError,
    InputError,
    InternalError,
    OnError,
    StepError,
)
from emberflow.graph.calls import balance_of, images_of, scheduled_time
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Node, Sink
from emberflow.graph.transactions import State, check_diverting
from emberflow.runners.diversion import check_parameters, checked_on_error
from emberflow.runners.elements import (
    LateElement,
    MalformedElement,
    graph_for,
    timed_elements,
)
from emberflow.runners.notebook import Outputs
from emberflow.runners.sequential import Sequential
from emberflow.runners.served import Served, served
from emberflow.values.hashing import key_hash
from emberflow.values.item import (
    CHILD_IDS_MAX,
    At,
    ChildIds,
    GlobalTime,
    scheduled_child_ids,
)
from emberflow.values.times import has_expired

#: Where an item is in the order. Without replay nothing else of its meta matters.
NestedPlace: TypeAlias = tuple[GlobalTime, ChildIds]

#: An item about to be processed: its place, the id of the node that processes it, and the payload.
Waiting: TypeAlias = tuple[NestedPlace, int, Any]


def run(
    flow: Flow | Versions, /, *, on_error: OnError = "fail", **elements: Iterable[Any]
) -> dict[str, list[Any]]:
    """Run a flow on the elements of its fronts and return each sink's output, in order.

    Element ``i`` of a front has time ``i``; ``At(time, payload)`` gives another one. Elements of
    several fronts are taken in the order of ``(time, front)``; fronts are numbered in the order in
    which the flow declares them.

    >>> import emberflow as ef
    >>> flow = ef.Flow("word count")
    >>> flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    >>> ef.run(flow, lines=["the dog", "the cat"])
    {'counts': [('the', 1), ('dog', 1), ('the', 2), ('cat', 1)]}

    A function that raises ends the run with a `StepError`. With ``on_error="divert"``, the item
    that it could not process goes to an output ``"errors"``, as a `Diverted`, and the run goes on.
    Within a transaction, the whole transaction is undone.

    >>> flow = ef.Flow("totals")
    >>> amounts = flow.front("orders").map(float).key_by(lambda amount: None)
    >>> amounts.sum().map(lambda total: total[1]).sink("total")
    >>> outputs = ef.run(flow, on_error="divert", orders=["1.5", "a lot", "2"])
    >>> outputs["total"], [diverted.payload for diverted in outputs["errors"]]
    ([1.5, 3.5], ['a lot'])

    `Versions` of a flow serve an interval of time each; see `emberflow.Versions`. A notebook shows
    the outputs as tables.
    """
    if isinstance(flow, Versions):
        return Outputs(run_versions(flow, elements, on_error))
    graph = graph_for(flow.graph(on_error=on_error), elements)
    check_parameters(graph, "run", "on_error")
    reference = Reference(graph, on_error=checked_on_error(graph, on_error, "run(on_error=)"))
    for global_time, front, payload in timed_elements(graph, elements):
        reference.enter(global_time, front, payload)
    reference.finish()
    return Outputs(reference.outputs)


def run_versions(
    versions: Versions,
    elements: Mapping[str, Iterable[Any]],
    on_error: OnError = "fail",
    kind: type[Reference] | None = None,
) -> dict[str, list[Any]]:
    """The versions one after another, each on the elements of its interval of time."""
    return run_served(served(versions, elements, on_error), on_error, kind)


def run_served(
    parts: Iterable[Served], on_error: OnError = "fail", kind: type[Reference] | None = None
) -> dict[str, list[Any]]:
    """The same, for graphs with their elements."""
    kind = Reference if kind is None else kind
    outputs: dict[str, list[Any]] = {}
    reference: Reference | None = None
    for version, graph, entries in parts:
        check_parameters(graph, "run", "on_error")
        checked = checked_on_error(graph, on_error, "run(on_error=)")
        rows: list[Row | Scheduled] = []
        if reference is not None:
            reference.advance(version.at)
            begun, timers = all_rows(version.plan)
            rows = [
                *translated_rows(reference.cut(), version.plan, version.at),
                *begun,
                *translated_timers(reference.scheduled(), version.plan),
                *timers,
            ]
        reference = kind(graph, on_error=checked, outputs=outputs)
        reference.restore(rows)
        for global_time, front, payload in entries:
            reference.enter(global_time, front, payload)
    assert reference is not None, "there is at least one version"
    reference.finish()
    return outputs


class Reference:
    """One run. Call `enter` for each element in order, then `finish`.

    The outputs of one version may be given to the next one, which goes on with them.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        on_error: OnError = "fail",
        outputs: dict[str, list[Any]] | None = None,
    ) -> None:
        self.graph = graph
        self.outputs: dict[str, list[Any]] = {} if outputs is None else outputs
        for name in graph.sinks:
            self.outputs.setdefault(name, [])
        self._diverts = on_error == "divert"
        if self._diverts:
            check_diverting(graph)
            self.outputs.setdefault(ERRORS_SINK, [])
        #: The items of each bucket, by grouping and key.
        self._buckets: dict[str, dict[Any, deque[Any]]] = {
            node.name: {} for node in graph.nodes if isinstance(node, Group)
        }
        #: The times of their last items.
        self._touched: dict[str, dict[Any, int]] = {name: {} for name in self._buckets}
        #: Place, number, node that gets it, payload; the map that scheduled it, and from when.
        self._scheduled: list[tuple[NestedPlace, int, int, Any, str, GlobalTime]] = []
        self._number = 0  # keeps the heap from ever comparing payloads
        self._processed_last: dict[int, NestedPlace] = {}
        self._transactions = Sequential(graph)
        self._process = [self._processor(node) for node in graph.nodes]

    @property
    def states(self) -> dict[str, dict[Any, Any]]:
        """The current value of each key, by state, whether it has expired or not."""
        return self._transactions.states

    def states_at(self, time: int) -> dict[str, dict[Any, Any]]:
        """The same, without what has expired at a time."""
        nodes = {node.name: node for node in self.graph.nodes if isinstance(node, State)}
        written = self._transactions.written
        return {
            name: {
                key: value
                for key, value in held.items()
                if not has_expired(written[name][key], nodes[name].expires, time)
            }
            for name, held in self.states.items()
        }

    def enter(self, global_time: GlobalTime, front: Front, payload: Any) -> None:
        """Process an element, after everything scheduled for an earlier time."""
        place: NestedPlace = (global_time, ())
        self._follow_scheduled(place)
        node = front.id
        if payload.__class__ is MalformedElement:
            self._put_aside(global_time, front, payload)
            return
        if payload.__class__ is LateElement:
            if self.graph.late_node is None:
                raise InputError(
                    f"front {front.name!r}: {payload.record} is late, and there is no sink for it here. "
                    f"Say on_late='admit', 'fail' or 'drop'."
                )
            node, payload = self.graph.late_node, payload.record
        self._follow((place, node, payload))

    def _put_aside(self, at: GlobalTime, front: Front, malformed: MalformedElement) -> None:
        if not self._diverts:
            raise InputError(f"front {front.name!r}: {malformed.problem}")
        record = Diverted(at.time, at.front, str(front), "-", malformed.problem, malformed.payload)
        self.outputs[ERRORS_SINK].append(record)

    def advance(self, global_time: GlobalTime) -> None:
        """Process everything scheduled for global times below this one."""
        self._follow_scheduled((global_time, ()))

    def finish(self) -> None:
        """Process everything scheduled for times after the last element."""
        self._follow_scheduled(None)

    def _follow_scheduled(self, until: NestedPlace | None) -> None:
        ahead = self._scheduled
        while ahead and (until is None or ahead[0][0] < until):
            place, _, node, payload, _, _ = heapq.heappop(ahead)
            self._follow((place, node, payload))

    def _schedule(
        self, place: NestedPlace, node: int, payload: Any, operation: str, origin: GlobalTime
    ) -> None:
        self._number += 1
        heapq.heappush(self._scheduled, (place, self._number, node, payload, operation, origin))

    # Cuts: between two elements, with everything scheduled for earlier times done (`advance`).

    def cut(self) -> Iterator[Row]:
        """The state between two elements, as the rows of a cut."""
        for node in self.graph.nodes:
            if isinstance(node, Group):
                is_reduction = node.id in self.graph.operators
                touched = self._touched[node.name]
                for key, bucket in self._buckets[node.name].items():
                    kept = list(bucket)[-(node.window - 1) :] if node.window > 1 else []
                    for number, payload in enumerate(kept):
                        # Places only tell which items of a bucket came first, and when the last one came.
                        # They are ahead of all elements of that time: a cut may be at ``(time, 0)``, behind
                        # what was scheduled for it, and what a cut holds is below it.
                        place = (touched[key], number - len(kept))
                        if not is_reduction:
                            yield Row(node.name, key_hash(key), key, place, payload)
                        elif payload[2].__class__ is not NoneYet:
                            yield Row(node.name, key_hash(key), key, place, payload[2])
            elif isinstance(node, State):
                written = self._transactions.written[node.name]
                for key, value in self.states[node.name].items():
                    yield Row(node.name, key_hash(key), key, (written[key], -1), value)

    def scheduled(self) -> Iterator[Scheduled]:
        """What is scheduled for later times, as it is in a cut."""
        for (at, child_ids), _, _, payload, operation, origin in sorted(self._scheduled):
            yield scheduled_row(operation, origin, (*at, *child_ids), payload)

    def restore(self, rows: Iterable[Row | Scheduled]) -> None:
        """Go on from a cut. Call it before the first element."""
        nodes = {node.name: node for node in self.graph.nodes if not isinstance(node, Sink)}
        for row in rows:
            node = nodes[row.operation]
            if isinstance(row, Scheduled):
                reader, _ = self.graph.readers[node.id][0]
                place = (GlobalTime(*row.place[:2]), tuple(row.place[2:]))
                self._schedule(place, reader, row.payload, node.name, GlobalTime(*row.origin))
            elif isinstance(node, Group):
                is_reduction = node.id in self.graph.operators
                payload = (row.key, True, row.payload) if is_reduction else row.payload
                bucket = self._buckets[node.name].setdefault(row.key, deque(maxlen=node.window))
                bucket.append(payload)
                self._touched[node.name][row.key] = row.place[0]
            else:
                self.states[node.name][row.key] = row.payload
                self._transactions.written[node.name][row.key] = row.place[0]

    def _follow(self, item: Waiting) -> None:
        stack = [item]
        while stack:
            place, node, payload = stack.pop()
            self._in_order(place, node)
            try:
                if len(place[1]) > CHILD_IDS_MAX and node in self.graph.loop_entries:
                    raise EndlessLoopError.of(str(self.graph.nodes[node]), place[0], payload)
                outputs = list(self._process[node](place, payload))
            except StepError as error:
                if not self._diverts:
                    raise
                failing = self.graph.nodes[node]
                if not self._transactions.undo(failing, payload, error):
                    self.outputs[ERRORS_SINK].append(Diverted.of(error))
                outputs = list(self._kept(failing, place, payload))
            stack.extend(reversed(outputs))

    def _kept(self, node: Node, place: NestedPlace, payload: Any) -> Iterator[Waiting]:
        """What a reduction keeps when its combine map raises: the accumulator as it was."""
        if isinstance(node, Map) and node.kept is not None:
            global_time, child_ids = place
            for accumulator in node.kept(payload):
                # First image, port 0: the place that the new accumulator would have had.
                yield (global_time, (*child_ids, 0, 0)), self.graph.kept_reader(node), accumulator

    def _in_order(self, place: NestedPlace, node: int) -> None:
        before = self._processed_last.get(node)
        if before is not None and not before < place:
            raise InternalError(
                f"{self.graph.nodes[node]} got the item at {place} after the one at {before}"
            )
        self._processed_last[node] = place

    def _processor(self, node: Node) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        if isinstance(node, Front | Merge):
            return self._pass_on(node)
        if isinstance(node, Map):
            return self._map(node)
        if isinstance(node, Broadcast):
            return self._broadcast(node)
        if isinstance(node, Group):
            return self._group(node)
        if isinstance(node, Sink):
            return self._sink(node)
        transactional = self._transactions.processor(node)
        if transactional is not None:
            return transactional
        raise InternalError(f"the reference runner does not know {node}")

    def _pass_on(self, node: Node) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        reader, _ = self.graph.readers[node.id][0]

        def pass_on(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            yield place, reader, payload

        return pass_on

    def _placed(self, node: Node) -> Callable[[Any, GlobalTime], object]:
        """The node's balancing function, called only so that it raises wherever it does live."""
        key = node.inputs[0].key
        return (lambda payload, global_time: None) if key is None else balance_of(node, key)

    def _map(self, node: Map) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        reader, _ = self.graph.readers[node.id][0]
        images, placed = images_of(node), self._placed(node)

        def map_(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            global_time, child_ids = place
            placed(payload, global_time)
            now: list[Waiting] = []
            scheduled: list[Waiting] = []
            for child, image in enumerate(images(payload, global_time)):
                if isinstance(image, At):
                    later = GlobalTime(
                        scheduled_time(node, image, global_time), node.scheduling_front
                    )
                    ids = scheduled_child_ids(global_time, child_ids, child)
                    scheduled.append(((later, ids), reader, image.payload))
                else:
                    now.append(((global_time, (*child_ids, child)), reader, image))
            for item in scheduled:
                self._schedule(*item, node.name, global_time)
            return iter(now)

        return map_

    def _broadcast(self, node: Broadcast) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        readers = [reader for reader, _ in self.graph.readers[node.id]]
        placed = self._placed(node)

        def broadcast(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            global_time, child_ids = place
            placed(payload, global_time)
            for port, reader in enumerate(readers):
                yield (global_time, (*child_ids, port)), reader, payload

        return broadcast

    def _group(self, node: Group) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        reader, _ = self.graph.readers[node.id][0]
        balance = balance_of(node, node.key)
        buckets, touched = self._buckets[node.name], self._touched[node.name]

        def group(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            key, _ = balance(payload, place[0])
            bucket = buckets.setdefault(key, deque(maxlen=node.window))
            time = place[0][0]
            if bucket and has_expired(touched[key], node.expires, time):
                bucket.clear()
            touched[key] = time
            bucket.append(payload)
            yield place, reader, tuple(bucket)

        return group

    def _sink(self, node: Sink) -> Callable[[NestedPlace, Any], Iterator[Waiting]]:
        output, placed = self.outputs[node.name], self._placed(node)

        def sink(place: NestedPlace, payload: Any) -> Iterator[Waiting]:
            placed(payload, place[0])
            output.append(payload)
            return iter(())

        return sink
