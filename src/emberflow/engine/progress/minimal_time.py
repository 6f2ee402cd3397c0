"""The minimal time and the frontiers, as they follow from the least times of all tables.

What is guaranteed: **a progress says nothing that an earlier one has taken for certain otherwise.** Neither the
minimal time nor that of the keys of one worker ever goes back; if it would, that is an error of ours.

There is a new progress only where a minimal time has moved, or a frontier, or an arrangement of a region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from emberflow.engine.messages import AFTER_ALL, Arrangement, Bound, Moment, Progress
from emberflow.errors import InternalError
from emberflow.values.item import Place


class LeastTimes(NamedTuple):
    """The least times of all tables.

    ``frontiers`` are the least turns of what may go anywhere and of all promises, as the last one, and ahead of it
    the frontiers by stage if something is held (`tables.frontiers`). The others are as in a progress.
    """

    frontiers: tuple[Place, ...]
    ranges: tuple[Moment, ...]
    own: tuple[tuple[Moment, ...], ...]
    failing: tuple[Moment, Moment]
    arrangements: tuple[tuple[int, Arrangement], ...]


class Told(NamedTuple):
    """What a progress says besides: one of the two, as `Progress` has it."""

    bound: tuple[Bound, ...]
    sent: dict[int, dict[int, int]]


def advanced(before: Progress, least: LeastTimes, told: Callable[[Moment], Told]) -> Progress:
    """The next progress, or the one before if nothing has moved. ``told`` gives what it says besides, for a
    minimal time of what may go anywhere."""
    all_frontiers, ranges, own, failing, arrangements = least
    turn, turn_before = all_frontiers[-1], before.within or before.anywhere
    frontiers = all_frontiers if len(all_frontiers) > 1 else ()
    # A node that holds something does so from a global time on, which is before all its turns.
    is_by_time = frontiers or before.frontiers
    if turn < (before.anywhere if is_by_time else turn_before):
        raise InternalError(f"the minimal time went back from {turn_before} to {turn}")
    if own:
        _check_own(before, turn, own)
    if (
        turn == turn_before
        and ranges == before.ranges
        and frontiers == before.frontiers
        and arrangements is before.arrangements
        and own == before.own
        and failing == before.failing
    ):
        return before
    anywhere = (turn[0], turn[1])
    bound, sent = told(anywhere)
    within = () if turn == anywhere else turn
    return Progress(
        anywhere,
        ranges,
        before.kept,
        bound,
        within,
        frontiers,
        before.wanted,
        arrangements,
        own,
        failing,
        sent,
    )


def _check_own(before: Progress, turn: Place, own: tuple[tuple[Moment, ...], ...]) -> None:
    """What concerns the keys of a worker alone comes of that, or of what may go anywhere."""
    for worker, frontiers in enumerate(own):
        earlier = before.own[worker][-1] if before.own else AFTER_ALL
        least, least_before = min(turn, frontiers[-1]), min(before.anywhere, earlier)
        if least < least_before:
            raise InternalError(
                f"the minimal time of the keys of worker {worker} went back from {least_before} to "
                f"{least}"
            )


def noted_promise(reports: dict[int, Moment], front: int, promise: Moment) -> None:
    """Note what a front promises. It never takes a promise back."""
    if promise < reports[front]:
        raise InternalError(f"front {front} promised {reports[front]} and now {promise}")
    reports[front] = promise


def least_promise(reports: dict[int, Moment]) -> Moment:
    """What all fronts promise; the end if there are none."""
    return min(reports.values(), default=AFTER_ALL)


def held_back_by(least: Place, reports: dict[int, Moment]) -> Place | None:
    """The least entry, if nothing but it holds the minimal time back."""
    return least if least < least_promise(reports) else None
