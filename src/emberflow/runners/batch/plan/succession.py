"""Which plans lead from one version of a flow to the next.

Versions serve one interval of time after another. The rows of a sink in an interval depend on the elements
of the interval, and on what the versions before have left: the state of steps, and scheduled items. So
there is a chain of plans, of one version each. The last one makes rows of the sink; those before it make
*ends* (`passes.ends`), and only those that the next plan needs. A chain begins with the first version that
leaves anything that matters. What a version begins with from backfills is read where it is needed, and
needs no plan of a version before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberflow.graph.versions import CarryPlan
from emberflow.runners.batch.plan.stages import Taken, Units


@dataclass(frozen=True, slots=True)
class Link:
    """A plan of a chain."""

    #: The number of the version.
    version: int
    #: The nodes that the plan leads to.
    goals: frozenset[int]
    #: What it takes over from the plan before it, or from backfills; None if it is nothing.
    taken: Taken | None


def chain_to(
    versions: Sequence[Units], carries: Sequence[CarryPlan], version: int, goals: frozenset[int]
) -> list[Link]:
    """The plans that lead to some nodes of a version. ``carries[n]`` is what version n takes over."""
    links: list[Link] = []
    while True:
        if version == 0:
            links.append(Link(version, goals, None))
            break
        old, new = versions[version - 1], versions[version]
        taken, before = _taken(old, new, goals, carries[version])
        links.append(Link(version, goals, taken if before or taken.backfills else None))
        if not before:
            break
        version, goals = version - 1, before
    return links[::-1]


def _taken(
    old: Units, new: Units, goals: frozenset[int], carry: CarryPlan
) -> tuple[Taken, frozenset[int]]:
    """What a version takes over, and the nodes of the old version that have it."""
    needed = new.leading_to(goals)
    before: set[int] = set()
    keepers: set[int] = set()
    for name, carried in carry.carried.items():
        node = new.keepers[carried.new]
        if node in needed:
            keepers.add(node)
            before.add(old.keepers[name])
    maps: set[int] = set()
    for name, timer in carry.timers.items():
        scheduling, emitting = old.maps[name].id, new.maps[timer].id
        # Items may be scheduled for times that a version after this one serves.
        is_needed = emitting in goals or new.reader_of_scheduled(emitting) in needed
        if is_needed and old.may_schedule(scheduling):
            maps.add(emitting)
            before.add(scheduling)
    backfills: list[int] = []
    for number, backfill in enumerate(carry.backfills):
        begun = {new.keepers[carried.new] for carried in backfill.carried.values()} & needed
        due = {
            new.maps[timer].id
            for timer in backfill.timers.values()
            if new.may_schedule(new.maps[timer].id)
            and (
                new.maps[timer].id in goals or new.reader_of_scheduled(new.maps[timer].id) in needed
            )
        }
        keepers |= begun
        maps |= due
        if begun or due:
            backfills.append(number)
    return Taken(frozenset(keepers), frozenset(maps), tuple(backfills)), frozenset(before)
