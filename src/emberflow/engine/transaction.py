"""Transactions without locks: the protocol, why it ends, and the machines that keep nothing.

The total order of places is the serial order, an abort is an item, and a tombstone takes it back.
Everything below is items and tombstones between nodes of the graph (`transactional`), so links, acks,
barriers and bounded speculation treat it like all else: what is in flight is known to the acker, and
a decision is final once the minimal time has passed it.

- A **state** (`versions`) holds, for each key, its accesses sorted by place. An update computes its
  value from the version before it that counts: the last one of its own transaction, or else the last
  one of a transaction that is not known to have failed. It votes: whether its check holds, and the
  value where somebody asks for it.
- A **closer** (`closing`) holds a transaction's votes and presumes that it commits. While a vote or
  a constraint says no, there is an *abort* at every version that voted yes: an item at the place of
  that version, bound for its key. A vote that changes, or comes later, makes the closer put right
  what it has sent; that an abort is taken back is a tombstone like every other.
- Whatever changes a version (a late access, one that is taken back, an abort that comes or goes)
  makes the state compute those behind it anew, and send the difference.

The invariants:

1. *A vote names its version*: it has the version's place and mark, and an abort has the vote's, with
   one child id more. So an abort finds its version by place, among all that its key has, now or
   later: aborts are kept by place, whether or not there is a version, and a version looks there when
   it is asked if it counts.
2. *A version outlives its abort.* What is aborted stays in its list and goes on voting, so that the
   reverse finds it; it only does not count for others.
3. *A transaction sees its own versions, aborted or not.* So a decision never depends on itself.
4. *What is sent is a function of what is there.* After each batch, what a machine has sent and not
   taken back is what its present content says, whatever the way it came to it. So once nothing is in
   flight, all machines agree with each other.

**It ends, with the reference's result.** Order everything by place, a transaction's decision after
all its accesses. The value of an access depends on accesses at smaller places of its key and on
decisions of transactions with smaller identities; whether an item enters, and with which key and
payload, on results at smaller places; a decision on the votes of its own transaction. Nothing
depends on what comes after it, nor (3) on itself: each thing is a function of finitely many things
before it. By induction: let all things before x have their last change behind them. Then x gets
finitely many more changes in, one item or tombstone each, makes at most as many itself, and from
then on is what the reference computes from the same inputs, by the same functions. Elements at or
above the minimal time are bounded (credits), so all settle in finite time. How often a thing changes
before that is another matter: in theory each correction begets two. There the worker's budget comes
in, as for every cycle: when it is spent only what is at the minimal time goes on, whose inputs from
below are final.
"""

from __future__ import annotations

from emberflow.calls import balance_of
from emberflow.engine.mapping import Process
from emberflow.errors import StepError
from emberflow.graph import Graph
from emberflow.hashing import key_hash
from emberflow.item import FlatItem
from emberflow.transactional import ELEMENT, OUTPUTS, Access, Report, State, depth_of

#: Keys known to have a stable hash. Past that they are forgotten and begun anew.
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
        output: list[FlatItem] = []
        append = output.append
        for place, mark, payload in items:
            own = payload[1] if carried else payload
            try:
                key = key_of(own)
                if key not in known:
                    if len(known) >= _KEYS_MAX:
                        known.clear()
                    key_hash(key)  # a key that has no stable hash is refused, below
                    known.add(key)
            except Exception:
                try:
                    key, _ = balance(own, (place[0], place[1]))
                except StepError as error:
                    failed.append((place, mark, error))
                    continue
            if alone and not carried:
                payload = (payload, payload)
            append((place, mark, (key, number, len(place) - depth, payload)))
        return [output]

    return access


def report_process(graph: Graph, node: Report) -> Process:
    """The machine of a report: from a payload to ``(identity, number, payload)``."""
    depth = depth_of(graph, node)
    number = ELEMENT if node.number < 0 else OUTPUTS - node.number

    def report(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        return [
            [
                (place, mark, (place[: len(place) - depth], number, payload))
                for place, mark, payload in items
            ]
        ]

    return report
