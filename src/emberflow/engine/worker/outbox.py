"""The outbox: frames for other workers, and the one ack of an event.

What is guaranteed:

1. *One ack.* What an event finished and what it sent are acked in one message, after processing. What
   stays on this worker is neither sent nor acked. Where acks are split (`progress.accounts`), what it finished
   of others' frames is told to them, under the number of that ack.
2. *A frame's id counts once a table*, under the least global time that the frame carries for it, or
   the least turn of that. The sender finds it and writes it on the frame, so every id is xored exactly
   twice: when its sender acks that it was sent, and when its receiver acks that it was dealt with.

Frames may leave *ahead*, before their event is over: what others have to do need not wait for what this worker
does with its own part. The ack comes behind them, as always, and what they follow from is not acked before.

Items that a worker holds back are in flight. The worker makes a frame of them that it sends to itself:
acked once when it begins to hold them, and once when it goes on with them.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from operator import itemgetter

from emberflow.engine.messages import FAILING, Ack, Entries, Frame, Moment, Said
from emberflow.engine.progress.receipts import ReceivedFrames
from emberflow.engine.speculation.budget import Budget
from emberflow.engine.speculation.turns import TurnOf
from emberflow.values.hashing import stable_id
from emberflow.values.item import FlatItem, Place

#: What a frame carries: a number that says where to, and items.
Part = tuple[int, list[FlatItem]]

_place_of = itemgetter(0)

_BITS = (1 << 64) - 1


class FrameLedger:
    """The frames of one worker: it numbers those that it makes, and acks each of them once."""

    def __init__(self, index: int, incarnation: int, *, splits: bool = False) -> None:
        """``splits``: others are told what was finished of their frames, and the acker nothing (`accounts`)."""
        self.index = index
        self.splits = splits
        self.frames_made = 0
        self.items_sent = 0
        #: What fronts promise, by their number: part of the next ack.
        self.reports: dict[int, Moment] = {}
        #: What is new of the regions that may be gathered: part of the next ack, too.
        self.said: dict[int, Said] = {}
        self._first_id = stable_id("frame", incarnation, index)
        self._finished: list[Frame] = []
        self._newly_held: list[Frame] = []

    def finish(self, frames: Iterable[Frame]) -> None:
        """These frames are dealt with: ack them with what comes of them."""
        self._finished += frames

    def hold(self, frame: Frame) -> None:
        """The worker sends this frame to itself, until it finishes it."""
        self._newly_held.append(frame)

    def numbered(
        self,
        parts: Iterable[Part],
        least: Place | None,
        least_bound: Moment | None,
        level: int = 0,
        least_own: Moment | None = None,
        level_own: int = 0,
    ) -> Frame:
        self.frames_made += 1
        return Frame(
            self.index,
            _mixed(self._first_id + self.frames_made),
            tuple(parts),
            least,
            least_bound,
            level,
            least_own,
            level_own,
        )

    def entries(self, sent: list[tuple[int, Frame]]) -> tuple[Entries, dict[int, Entries]]:
        """What to ack: all that was finished and held since the last ack, and what is sent now.

        If the acks are split by who has sent a frame, what was finished of other workers' frames is apart, by worker.
        """
        own, others = Entries.none(), dict[int, Entries]()
        splits, index = self.splits, self.index
        for frame in self._finished:
            entries = own
            if splits and frame.sender != index:
                entries = others.setdefault(frame.sender, Entries.none())
            _xor(frame, index, entries)
        self._finished = []
        for destination, frame in sent:
            _xor(frame, destination, own)
        for frame in self._newly_held:
            _xor(frame, index, own)
        self._newly_held = []
        return own, others


class Outbox(FrameLedger):
    """The outbox of a worker that orders items by their global times.

    ``bound`` are the nodes that have barriers: what goes there goes no further. ``owned`` are those of which
    all that follows stays on the worker (`ranges`). ``stage`` is the stage of each other node. ``failures`` is
    the node of failures that end the run, if they do.
    """

    def __init__(
        self,
        index: int,
        incarnation: int,
        budgets: Collection[Budget],
        turns: list[TurnOf],
        receipts: ReceivedFrames,
        bound: Container[int],
        stage: Mapping[int, int],
        owned: Container[int] = (),
        failures: int | None = None,
        *,
        splits: bool = False,
    ) -> None:
        super().__init__(index, incarnation, splits=splits)
        self._stage = stage
        self._budgets = budgets
        self._turns = turns
        self._receipts = receipts
        self._bound = bound
        self._owned = owned
        self._failures = failures
        self._outgoing: dict[tuple[int, int], list[FlatItem]] = {}
        #: Global times of which frames came that counted under a turn, from the minimal time on.
        self._by_turns: set[Moment] = set()
        #: What has left ahead in the event that is under way.
        self._left_ahead: list[tuple[int, Frame]] = []
        #: By worker: how many frames for its barriers were sent.
        self._sent: dict[int, int] = {}

    def go_by_turns(self, moment: Moment) -> None:
        """A frame of this time counted under a turn. So must all that it begets, behind regions too:
        otherwise the minimum would go back (`turns`)."""
        self._by_turns.add(moment)

    def forget_below(self, minimal: Moment) -> None:
        """Nothing below this is under way any more."""
        if self._by_turns:
            self._by_turns = {moment for moment in self._by_turns if moment >= minimal}

    def post(self, destination: int, reader: int, items: list[FlatItem]) -> None:
        outgoing = self._outgoing.get((destination, reader))
        if outgoing is None:
            self._outgoing[destination, reader] = list(items)
        else:
            outgoing += items

    def frame(self, parts: list[Part]) -> Frame:
        bound, owned = self._bound, self._owned
        least: Place | None = None
        least_bound: Moment | None = None
        least_own: Moment | None = None
        stage: int | None = None
        stage_own = 0
        for node, items in parts:
            place = min(map(_place_of, items))
            moment = (place[0], place[1])
            if node in bound:
                least_bound = moment if least_bound is None else min(least_bound, moment)
            elif node in owned:
                own = self._stage[node]
                stage_own = own if least_own is None else min(stage_own, own)
                least_own = moment if least_own is None else min(least_own, moment)
            else:
                own = self._stage[node]
                stage = own if stage is None else min(stage, own)
                least = moment if least is None else min(least, moment)
        if least in self._by_turns or any(budget.by_turns_at == least for budget in self._budgets):
            turns = self._turns
            least = min(
                min(map(turns[node], items))
                for node, items in parts
                if node not in bound and node not in owned
            )
        level = 0 if stage is None else 2 * stage
        return self.numbered(parts, least, least_bound, level, least_own, 2 * stage_own)

    def _failing(self, parts: list[Part]) -> Frame:
        """A frame of failures that end the run."""
        place = min(item[0] for _, items in parts for item in items)
        return self.numbered(parts, (place[0], place[1]), None, FAILING)

    def hold_frame(self, level: int, least: Moment, node: int | None = None) -> Frame:
        """A frame of this level that stands for what a node holds from a time on."""
        if node in self._owned:
            return self.numbered((), None, None, 0, least, level)
        return self.numbered((), least, None, level)

    def ahead(self) -> list[tuple[int, Frame]]:
        """What was posted by now, in frames that leave before the event is over."""
        frames = self._framed() if self._outgoing else []
        self._left_ahead += frames
        return frames

    def emptied(self) -> tuple[list[tuple[int, Frame]], Ack]:
        """All that was posted, a frame for each worker; and the ack of the event, with what has left ahead."""
        frames = self._framed() if self._outgoing else []
        sent = frames
        if self._left_ahead:
            sent, self._left_ahead = self._left_ahead + frames, []
        (deeper, ranges, own), dealt = self.entries(sent)
        number = self._receipts.acked(ranges.get(self.index))
        reports, self.reports = self.reports, {}
        said, self.said = self.said, {}
        anywhere = deeper.pop(0, {})
        return frames, Ack(
            self.index,
            anywhere,
            ranges,
            reports,
            number,
            deeper,
            said,
            own,
            dealt,
            self._counted(sent) if self.splits else {},
        )

    def _counted(self, frames: list[tuple[int, Frame]]) -> dict[int, int]:
        """How many frames for its barriers each worker has been sent, with these."""
        bound = [destination for destination, frame in frames if frame.least_bound is not None]
        if bound:
            self._sent = dict(self._sent)  # acks have the one before
            for destination in bound:
                self._sent[destination] = self._sent.get(destination, 0) + 1
        return self._sent

    def _framed(self) -> list[tuple[int, Frame]]:
        by_destination: dict[int, list[Part]] = {}
        failing: list[tuple[int, Frame]] = []
        for (destination, reader), items in self._outgoing.items():
            self.items_sent += len(items)
            if reader == self._failures:
                failing.append((destination, self._failing([(reader, items)])))
            else:
                by_destination.setdefault(destination, []).append((reader, items))
        self._outgoing = {}
        frames = [(destination, self.frame(parts)) for destination, parts in by_destination.items()]
        return frames + failing if failing else frames


def _mixed(number: int) -> int:
    """An id of 64 bits, never 0, that looks random: the last step of splitmix64, which takes no two numbers to
    the same id. A stable id of each frame would cost five times as much."""
    number = number * 0x9E3779B97F4A7C15 & _BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _BITS
    return number ^ number >> 31 or 1


def _xor(frame: Frame, destination: int, entries: Entries) -> None:
    """Xor a frame's id into the entries of the least global times that it carries."""
    if frame.least is not None:
        by_turn = entries.levels.setdefault(frame.level, {})
        by_turn[frame.least] = by_turn.get(frame.least, 0) ^ frame.id
    if frame.least_bound is not None:
        table = entries.ranges.setdefault(destination, {})
        table[frame.least_bound] = table.get(frame.least_bound, 0) ^ frame.id
    if frame.least_own is not None:
        table = entries.own.setdefault(destination, {}).setdefault(frame.level_own, {})
        table[frame.least_own] = table.get(frame.least_own, 0) ^ frame.id
