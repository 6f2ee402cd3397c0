"""The budget of a cycle on one worker: how much it may speculate until the minimal time moves.

What is guaranteed: **a worker replays only so much in a cycle before it waits for the acker**, and
what is next in the order always goes on, so the minimal time always moves. Here and in `regions` the
minimal time is that of the cycle's stage: what waits behind it does not count (`patience`).

Why: in a cycle that goes through several workers, a correction can beget others that meet it again on
the next round, faster than the true items settle.

How: each replay in a cycle spends one unit. When nothing is left, cycles hold back what is above the
minimal time. Mostly the few items of one element soon agree. Where they do not, an overdraft is spent
on that element too; then the worker goes by turns (`turns`): it holds back all but what has the least
turn of the minimal time. A new global time brings a new budget. A new turn of the same global time
does not: presuming again would only repeat what came to nothing before.

**Loops are not patient**, and a loop that a flow closes itself is bounded by its budget alone. A node is
patient when it computes what is below the frontier of its stage (`patience`). All of a cycle is one stage:
what any of its nodes holds, or is sent, may come round to all others. So the only input of such a node
that is ever complete is that of the least global time in the cycle (and of that, in the order of turns).
A patient loop would compute one global time, in as many round trips as it has hops, and then ask the acker
for the next. That is what a cycle does whose budget is spent. So patience in a loop is a budget of
nothing, and the budget is how far from that it may go: what is computed in vain is bounded by it for each
move of the minimal time. Transactions are different, because their elements come in at a few nodes outside
of the cycle. There they can wait (`window`), and from there one worker can take all of them (`gathering`).
"""

from __future__ import annotations

from math import inf

from emberflow.engine.messages import BEFORE_ALL, Moment, Progress
from emberflow.engine.speculation.turns import TurnOf
from emberflow.values.item import Place

#: Replays in cycles until the minimal time moves.
_REPLAYS_MAX = 64
#: The overdraft: replays beyond the budget at one global time, before the worker goes by turns.
_REPLAYS_OF_ONE_TIME_MAX = 1_000


class Budget:
    """The budget of one cycle, which reads and spends ``replays_left`` itself."""

    __slots__ = ("_stage", "by_turns_at", "minimal", "replays_left", "turn", "turns")

    def __init__(self, turns: list[TurnOf], stage: int) -> None:
        self._stage = stage
        #: By node: from an item bound for it to the item's turn.
        self.turns = turns
        self.replays_left = _REPLAYS_MAX
        #: The minimal time of this stage that was heard last, and its least turn.
        self.minimal: Moment = BEFORE_ALL
        self.turn: Place = BEFORE_ALL
        #: Frames of this global time are acked under their least turn.
        self.by_turns_at: Moment = BEFORE_ALL

    def progress(self, progress: Progress) -> bool:
        """Renew the budget if the minimal time has moved; whether its turn has."""
        turn = progress.turn_of(self._stage)
        if turn <= self.turn:
            return False
        self.turn, self.minimal = turn, (turn[0], turn[1])
        self.replays_left = 0 if self.is_by_turns else _REPLAYS_MAX
        return True

    @property
    def is_by_turns(self) -> bool:
        """Whether the worker goes by turns at the minimal time."""
        return self.by_turns_at == self.minimal

    @property
    def last_turn(self) -> tuple[float, ...]:
        """With the budget spent, what has a later turn than this is held back."""
        return self.turn if self.is_by_turns else (*self.minimal, inf)

    @property
    def overdraft(self) -> int | None:
        """How much more may be spent on what is not held back; None for no limit."""
        return None if self.is_by_turns else _REPLAYS_OF_ONE_TIME_MAX

    def go_by_turns(self, moment: Moment) -> None:
        """From now on, ack what is sent of this global time under its turn."""
        self.by_turns_at = max(self.by_turns_at, moment)
