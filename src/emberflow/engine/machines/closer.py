"""The machine of a closer: the votes of each transaction, and what follows from them.

See `protocol` for the protocol. A closer keeps a *ballot* for each transaction: its element, the votes,
and what leaves by its outputs, each by place and mark, as received. What the closer should have sent is a
function of the ballot:

- If no vote says no and no constraint fails, as far as is known: the element to ``committed``, and what
  leaves to the outputs.
- Otherwise: a `Rejected` to ``rejected``, and an abort to every version that voted yes, aloud or silently.
  (The version that voted no knows.) The `Rejected` names the first check that failed, in the order of
  accesses. Only if none failed does the closer test the constraints, in the order in which they were
  written.

After each batch the closer compares the ballots that the batch changed with what it has sent for them,
and sends the difference, tombstones first. A constraint may raise because it was shown a part of the
values only. So its failure is an item too (see `map`), and while it raises, the transaction is neither
committed nor rejected.

Where errors are diverted, a failure of any step of the transaction is a vote. While there is one, the
transaction is undone as if it were rejected, but instead of a `Rejected` the closer sends the failure with
the least place, bound for the barrier of failures. So a transaction has one record in the errors sink, and
taking back the vote takes back the record.

**In order** nothing comes but the element. Then the item that brought it is the whole ballot, and the
element goes on to ``committed`` at once.

**Trimming.** Below the minimal time a ballot is decided and all that follows from it is sent. Transactions
come nearly in order, so ballots are dropped from the oldest on, up to the first that is still open.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow.engine.cuts.cut import Row
from emberflow.engine.machines.barrier import lost_tombstone
from emberflow.engine.machines.protocol import Participants
from emberflow.engine.machines.state import same_value
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import Moment
from emberflow.errors import StepError
from emberflow.graph.nodes import Graph
from emberflow.graph.transaction_calls import verdict_of
from emberflow.graph.transactions import (
    ABORT,
    ABORTED,
    COMMITTED,
    ELEMENT,
    OUTPUT,
    OUTPUTS,
    REJECTED,
    Access,
    Close,
    Rejected,
    Values,
)
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)
_COMMITTED = (COMMITTED,)

#: By port, place and mark.
Sent: TypeAlias = dict[tuple[int, Place, int], Any]

#: A port for failures, which no graph has.
_FAILURES = -1


class Ballot:
    """What a closer has of one transaction, by place and mark, and what it has sent for it."""

    __slots__ = ("elements", "identity", "outputs", "sent", "votes")

    def __init__(self, identity: Place) -> None:
        self.identity = identity
        self.elements: dict[tuple[Place, int], Any] = {}
        #: ``(number, key, failed, value)``
        self.votes: dict[tuple[Place, int], tuple[int, Any, str | StepError | None, Any]] = {}
        #: By the number of the output, too.
        self.outputs: dict[tuple[int, Place, int], Any] = {}
        self.sent: Sent = {}


class CloserMachine(Trimmed[Any]):
    """The machine of a closer."""

    def __init__(self, graph: Graph, node: Close, *, diverts: bool = False) -> None:
        super().__init__(node.name, kept=0)
        self._diverts = diverts
        self.node = node
        #: A ballot, or the item of an element as long as nothing else has come.
        self.buckets: dict[Place, Ballot | FlatItem] = {}
        self.replays = 0
        self._participants = None if node.requires else Participants(graph, node)
        self._verdict = verdict_of(node)
        self._requires = bool(node.requires)
        ports = {what: port for port, what in enumerate(node.outputs)}
        self._committed = ports.get(("committed", 0), -1)
        self._rejected = ports.get(("rejected", 0), -1)
        self._outputs = {number: port for (what, number), port in ports.items() if what == "output"}
        voters = [graph.nodes[voter] for voter in node.voters]
        accesses = [access for access in voters if isinstance(access, Access)]
        #: By vote: the state, and the port of its aborts, -1 for a read, which needs none.
        self._states = [access.state for access in accesses]
        self._aborts = [
            ports["abort", access.state] if access.function else -1 for access in accesses
        ]

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        buckets = self.buckets
        begun: dict[Place, FlatItem] = {}
        others: list[FlatItem] = []
        for item in items:
            identity, number = item[2][0], item[2][1]
            if number == ELEMENT and not item[1] & 1 and identity not in buckets:
                buckets[identity] = begun[identity] = item
            else:
                others.append(item)
        tombstones: list[list[FlatItem]] = [[] for _ in self.node.outputs]
        outputs: list[list[FlatItem]] = [[] for _ in self.node.outputs]
        if others:
            changed = self._changed(others, begun)
            tombstones.append([])  # the port of failures is the last
            outputs.append([])
            for ballot in changed.values():
                self._put_right(ballot, tombstones, outputs)
            failed += tombstones.pop()
            failed += outputs.pop()
        if self._committed >= 0:
            outputs[self._committed] += [
                (identity + _COMMITTED, mark, report[2])
                for identity, (_, mark, report) in begun.items()
            ]
        if others:
            for back, sent in zip(tombstones, outputs, strict=True):
                sent.sort(key=_place_of)
                sent[:0] = back
        return outputs

    def _changed(self, items: list[FlatItem], begun: dict[Place, FlatItem]) -> dict[Place, Ballot]:
        """The ballots that these items change. A ballot that begins with this batch, and is changed by
        it too, has sent nothing yet."""
        changed: dict[Place, Ballot] = {}
        for place, mark, report in items:
            identity, number = report[0], report[1]
            ballot = changed.get(identity)
            if ballot is None:
                ballot = changed[identity] = self._ballot(identity, begun)
            there: Any
            key: Any
            if number >= 0:
                there, key, payload = ballot.votes, (place, mark & ~1), report[1:]
            elif number == ELEMENT:
                there, key, payload = ballot.elements, (place, mark & ~1), report[2]
            else:
                there, payload = ballot.outputs, report[2]
                key = (OUTPUTS - number, place, mark & ~1)
            if not mark & 1:
                there[key] = payload
            elif there.pop(key, self) is self:
                raise lost_tombstone(place, str(self.node))
        return changed

    def _ballot(self, identity: Place, begun: dict[Place, FlatItem]) -> Ballot:
        """The ballot of a transaction, in full."""
        found = self.buckets.get(identity)
        if isinstance(found, Ballot):
            return found
        ballot = self.buckets[identity] = Ballot(identity)
        if found is not None:
            place, mark, report = found
            ballot.elements[place, mark] = report[2]
            if begun.pop(identity, None) is None and self._committed >= 0:
                ballot.sent[self._committed, identity + _COMMITTED, mark] = report[2]
        return ballot

    def _put_right(
        self, ballot: Ballot, tombstones: list[list[FlatItem]], outputs: list[list[FlatItem]]
    ) -> None:
        """Send the difference between what was sent and what should have been sent."""
        was, now = ballot.sent, self._due_now(ballot)
        for (port, place, mark), payload in was.items():
            where = (port, place, mark)
            if where in now and _same_sent(payload, now[where]):
                now[where] = payload  # a tombstone would carry the payload that was sent
            else:
                self.replays += 1
                tombstones[port].append((place, mark | 1, payload))
        for where, payload in now.items():
            if where not in was or was[where] is not payload:
                port, place, mark = where
                outputs[port].append((place, mark, payload))
        ballot.sent = now
        if not (ballot.elements or ballot.votes or ballot.outputs):
            self.buckets.pop(ballot.identity, None)

    def _due_now(self, ballot: Ballot) -> Sent:
        """What should have been sent, by what is there."""
        identity, length, sent = ballot.identity, len(ballot.identity), Sent()
        failed = self._failed(ballot)
        if failed is None:
            if self._committed >= 0:
                for (_, mark), element in ballot.elements.items():
                    sent[self._committed, (*identity, COMMITTED), mark] = element
            for (number, place, mark), payload in ballot.outputs.items():
                port = self._outputs[number]
                sent[port, (*identity, OUTPUT + number, *place[length:]), mark] = payload
            return sent
        if isinstance(failed, StepError):
            for _, mark in ballot.elements:
                sent[_FAILURES, (*identity, COMMITTED), mark] = failed
            if not self._diverts:  # the run ends with it, or it will be taken back
                return sent
        elif self._rejected >= 0:
            for (_, mark), element in ballot.elements.items():
                rejected = Rejected(element, *failed)
                sent[self._rejected, (*identity, REJECTED), mark] = rejected
        self._abort(ballot, sent)
        return sent

    def _abort(self, ballot: Ballot, sent: Sent) -> None:
        """Add an abort for every version that voted yes, aloud or silently."""
        identity, length = ballot.identity, len(ballot.identity)
        said: set[Place] = set()
        for (place, mark), (number, key, no, _) in ballot.votes.items():
            said.add(place)
            if no is None and self._aborts[number] >= 0:
                sent[self._aborts[number], (*place, ABORTED), mark] = (key, ABORT, length, None)
        if self._participants is not None:
            for (_, mark), element in ballot.elements.items():
                for place, number, key in self._participants(identity, element):
                    if place not in said and self._aborts[number] >= 0:
                        where = (self._aborts[number], (*place, ABORTED), mark)
                        sent[where] = (key, ABORT, length, None)

    def _failed(self, ballot: Ballot) -> tuple[str, Values] | StepError | None:
        """The first error; or the first check or constraint that does not hold, and what it saw."""
        votes = ballot.votes
        failed = [where for where, vote in votes.items() if vote[2] is not None]
        if failed:
            errors = [where for where in failed if isinstance(votes[where][2], StepError)]
            number, key, why, value = votes[min(errors or failed)]
            assert why is not None
            if isinstance(why, StepError):
                return why
            return why, Values({(self._states[number], key): value})
        if not self._requires or not votes:
            return None
        values = Values()
        for identity in sorted(votes):
            number, key, _, value = votes[identity]
            values[self._states[number], key] = value
        element = next(iter(ballot.elements.values()), None)
        try:
            name = self._verdict(values, element, (ballot.identity[0], ballot.identity[1]))
        except StepError as error:
            return error
        return None if name is None else (name, values)

    def trim(self, minimal: Moment, most: int | None = None) -> None:
        buckets = self.buckets
        dropped = list(islice(takewhile(minimal.__gt__, buckets), most))
        for identity in dropped:
            del buckets[identity]
        self.trimmed(minimal, len(dropped), most)

    def restore(self, moment: Moment, rows: Iterable[Row]) -> None:
        """Nothing to take over: below a cut all is decided."""

    def sizes(self) -> list[int]:
        return [
            len(ballot.elements) + len(ballot.votes) + len(ballot.outputs)
            if isinstance(ballot, Ballot)
            else 1
            for ballot in self.buckets.values()
        ]


def _same_sent(one: Any, other: Any) -> bool:
    """Whether what was sent is what should have been sent. In doubt it is not, and is sent again."""
    if one is other:
        return True
    if one.__class__ is Rejected and other.__class__ is Rejected:
        return (
            one.element is other.element
            and one.check == other.check
            and list(one.values) == list(other.values)
            and all(map(same_value, one.values.values(), other.values.values()))
        )
    # An abort. Equal keys are one key, at one worker.
    return (
        one.__class__ is tuple
        and other.__class__ is tuple
        and one[1:2] == (ABORT,) == other[1:2]
        and one[0] == other[0]
    )
