"""Transactions without locks: the protocol, why it ends, and the machines that keep nothing.

The total order of places is the serial order, an abort is an item, and a tombstone takes it back. All
that follows is items and tombstones between nodes of the graph (`graph.transactions`), so links, acks,
barriers and bounded speculation treat it like everything else: the acker knows what is in flight, and a
decision is final once the minimal time has passed it.

- A **state** (`state`) holds the accesses of each key, sorted by place. An update computes its value
  from the version before it that counts: the last one of its own transaction, or else the last one of a
  transaction that is not known to have failed. It votes whether its check holds, and adds the value where
  a constraint needs it. A plain yes need not be sent where the closer can tell from the element that there
  is such an access (`known_from_element`).
- A **closer** (`closer`) holds a transaction's votes and presumes that it commits. While a vote or a
  constraint says no, there is an *abort* at every version that voted yes, aloud or silently: an item at
  the place of that version, bound for its key. If a vote changes, or comes later, the closer corrects what
  it has sent. It takes an abort back with a tombstone, like any item.
- Where errors are diverted, **a step that raises votes no**, with its error: an access does, and so does a
  map or a key function on the way to one. So it undoes the transaction like a check that does not hold.
- Whatever changes a version (a late access, one that is taken back, an abort that comes or goes) makes
  the state recompute the versions behind it and send the difference.

The invariants:

1. *A vote names its version*: it has the version's place, and an abort has the vote's place with one
   child id more. (The place of a silent vote is found by the very machines that made the access.) So an
   abort finds its version by place, among all versions that its key has, now or later: the state keeps
   aborts by place, whether or not there is a version, and looks there to decide whether a version counts.
2. *A version outlives its abort.* An aborted version stays in its list and goes on voting, so that the
   tombstone of the abort finds it. It only does not count for others.
3. *A transaction sees its own versions, aborted or not.* So a decision never depends on itself.
4. *What is sent is a function of what is there.* After each batch, what a machine has sent and not taken
   back follows from its present content alone, not from the way to it. So once nothing is in flight, all
   machines agree with each other.

**It ends, with the reference's result.** Order everything by place, a transaction's decision after all
its accesses. The value of an access depends on accesses at smaller places of its key, and on decisions of
transactions with smaller identities. Whether an item enters, and with which key and payload, depends on
results at smaller places. A decision depends on the votes of its own transaction. Nothing depends on what
comes after it, nor (3) on itself: each thing is a function of finitely many things before it. By
induction: suppose that all things before x have changed for the last time. Then x receives finitely many
more changes, one item or tombstone each, and sends at most as many itself. From then on it is what the
reference computes from the same inputs, by the same functions. Elements at or above the minimal time are
bounded (credits), so all things settle in finite time. How often a thing changes before that is another
matter: each correction may cause two. The worker's budget limits that, as for every cycle: when it is
spent, only what is at the minimal time goes on, whose inputs from below are final; and if that does not
settle either, one transaction of it at a time (`turns`).
"""

from __future__ import annotations

from typing import Any

from emberflow.engine.loops import items as loops
from emberflow.engine.machines.map import Process, broadcast_process, map_process, merge_process
from emberflow.errors import StepError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Broadcast, Graph, Map, Node
from emberflow.graph.transactions import (
    ELEMENT,
    OUTPUTS,
    Access,
    Close,
    Open,
    Report,
    State,
    depth_of,
)
from emberflow.values.item import FlatItem, Place

#: The number of keys to remember as having a stable hash. Beyond it all are forgotten.
_KEYS_MAX = 200_000


def access_process(graph: Graph, node: Access) -> Process:
    """The machine of an access: from a payload to ``(key, access, identity's length, payload)``."""
    depth = depth_of(graph, node)
    state = next(
        each for each in graph.nodes if isinstance(each, State) and node.id in each.accesses
    )
    number = state.accesses.index(node.id)
    key_of, balance = node.by.function, balance_of(node, node.by)
    alone, carried = node.alone, node.carried
    known: set[object] = set()

    def access(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        made = loops.accesses(items, key_of, number, depth, alone, carried)
        return one_by_one(items, failed) if made is None else [made]

    def one_by_one(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        for place, mark, payload in items:
            own = payload[1] if carried else payload
            try:
                key = key_of(own)
                is_known = key in known
            except Exception:
                is_known = False
            if not is_known:
                try:
                    key, _ = balance(own, (place[0], place[1]))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
                if len(known) >= _KEYS_MAX:
                    known.clear()
                known.add(key)
            if alone and not carried:
                payload = (payload, payload)
            output.append((place, mark, (key, number, len(place) - depth, payload)))
        return [output]

    return access


class Participants:
    """Which accesses follow from an element, by the machines that made them from it."""

    def __init__(self, graph: Graph, close: Close) -> None:
        open_ = next(
            each
            for each in graph.nodes
            if isinstance(each, Open) and each.transaction == close.transaction
        )
        self._graph = graph
        self._first = graph.readers[open_.id][0][0]
        self._voters = {voter: number for number, voter in enumerate(close.voters)}
        self._processes: dict[int, Process] = {}

    def __call__(self, identity: Place, element: Any) -> list[tuple[Place, int, Any]]:
        """Place, number of the vote, and key of each access that is known from the element.

        An item that fails on the way to its access is left out: its failure is sent elsewhere.
        """
        found: list[tuple[Place, int, Any]] = []
        waiting: list[tuple[int, list[FlatItem]]] = [(self._first, [(identity, 0, element)])]
        while waiting:
            number, items = waiting.pop()
            outputs = self._process(number)(items, [])
            voter = self._voters.get(number)
            if voter is not None:
                found += [(place, voter, access[0]) for place, _, access in outputs[0]]
            elif not isinstance(self._graph.nodes[number], Access | Report):
                readers = self._graph.readers[number]
                waiting += [
                    (reader, output)
                    for (reader, _), output in zip(readers, outputs, strict=True)
                    if output
                ]
        return found

    def _process(self, number: int) -> Process:
        process = self._processes.get(number)
        if process is None:
            process = self._processes[number] = self._made(self._graph.nodes[number])
        return process

    def _made(self, node: Node) -> Process:
        if isinstance(node, Map):
            return map_process(node)
        if isinstance(node, Broadcast):
            return broadcast_process(node)
        if isinstance(node, Access):
            return access_process(self._graph, node)
        return merge_process  # a report: that way leads to the closer itself


def report_process(graph: Graph, node: Report) -> Process:
    """The machine of a report: from a payload to ``(identity, number, payload)``."""
    depth = depth_of(graph, node)
    number = ELEMENT if node.number < 0 else OUTPUTS - node.number

    def report(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        return [loops.reports(items, depth, number)]

    return report
