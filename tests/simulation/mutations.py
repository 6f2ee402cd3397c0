"""Ways to break the engine, each of which the simulation has to notice.

A mutation is put over the real machines from outside: their source stays as it is. Each says where
the mistake would be, on which cases it is tried, and by whom it is expected to be caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop
from itertools import chain, count
from operator import itemgetter
from typing import Any, TypeAlias

import pytest

import emberflow as ef
from emberflow.engine import layout as program_module
from emberflow.engine.layout import Layout
from emberflow.engine.loops import runs as runs_module
from emberflow.engine.loops.runs import PlainRuns
from emberflow.engine.machines import group as grouping_module
from emberflow.engine.machines import map as mapping_module
from emberflow.engine.machines import reduce as reduction_module
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import (
    AFTER_ALL,
    Ack,
    Effects,
    Frame,
    Moment,
    Progress,
    Xors,
)
from emberflow.engine.progress import receipts as receipts_module
from emberflow.engine.progress.acker import Acker
from emberflow.engine.progress.gate import Gate
from emberflow.engine.progress.minimal_time import LeastTimes
from emberflow.engine.progress.receipts import Receipts
from emberflow.engine.speculation import budget as budget_module
from emberflow.engine.speculation import hold as hold_module
from emberflow.engine.speculation.patience import Patience, Stop
from emberflow.engine.worker import dataflow as dataflow_module
from emberflow.engine.worker import routing as routing_module
from emberflow.engine.worker.dataflow import Dataflow, Send
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.engine.worker.outbox import FrameLedger, Outbox, Part
from emberflow.engine.worker.routing import Routes
from emberflow.engine.worker.worker import Worker
from emberflow.errors import Diverted
from emberflow.graph.nodes import Broadcast, Graph, Map
from emberflow.runners import reference as reference_module
from emberflow.runners.simulation import Options, Simulation
from emberflow.runners.simulation.network import Network
from emberflow.values.item import FlatItem, Place
from tests.simulation.cases import Case, disordered
from tests.simulation.failing import diverting

#: Machines for `Case.run`: ``worker=``, ``acker=``, ``kind=``.
Machines: TypeAlias = dict[str, Any]

place_of = itemgetter(0)

# --- Who catches -----------------------------------------------------------------------------------

OUTPUT = r"the reference has"
MINIMAL_TIME = r"the minimal time is"
RELEASE = r"released .* after|in two bundles"
DRAINED = r"the acker still has|are left at the barrier|still holds items|are enough|never entered"
WENT_BACK = r"InternalError: (the minimal time went back|front . promised)"
LOST = r"found no item to take back"
REPLAYED = r"waited for its frontier and still replayed"

#: Whatever is wrong with the items themselves shows in one of these, by chance.
CONTENT = rf"{OUTPUT}|{RELEASE}|{LOST}"
#: The checker that knows all, or the acker by itself when the late ack comes.
PROGRESS = rf"{MINIMAL_TIME}|{WENT_BACK}"


@dataclass(frozen=True)
class Mutation:
    """A mistake: ``make`` puts it in and returns the machines to run."""

    make: Callable[[pytest.MonkeyPatch], Machines]
    caught_by: str
    cases: Callable[[], Iterable[Case]]
    cases_most: int = 150

    @property
    def name(self) -> str:
        return self.make.__name__.replace("_", " ")


MUTATIONS: list[Mutation] = []


def seeds() -> Iterable[Case]:
    return map(Case.of, count())


def mutation(
    caught_by: str, *, cases: Callable[[], Iterable[Case]] = seeds, most: int = 150
) -> Callable[[Callable[[pytest.MonkeyPatch], Machines]], Any]:
    def noted(make: Callable[[pytest.MonkeyPatch], Machines]) -> Any:
        MUTATIONS.append(Mutation(make, caught_by, cases, most))
        return make

    return noted


# --- Cases of their own ----------------------------------------------------------------------------


def all_out_of_order() -> Iterable[Case]:
    for seed in count():
        yield disordered(Case.of(seed), seed, share=1)


def unfused() -> Iterable[Case]:
    """All state in groupings, and trimmed at every progress."""
    for case in seeds():
        yield replace(case, graph=replace(case.graph, reductions=()), trims_always=True)


def own_case(flow: ef.Flow, seed: int, workers: int, **elements: Any) -> Case:
    return Case(
        name=flow.name,
        graph=flow.graph(),
        elements=elements,
        options=Options.drawn(seed, workers=workers),
        again=f"case {seed} of its flow",
    )


def there_and_back() -> Iterable[Case]:
    """A loop that goes to two workers, in an order that depends on what came before.

    A tuple that changes turns 'A then B' into 'B then A', both histories of one item.
    """
    flow = ef.Flow("there and back")
    merged = ef.merge(*(flow.front(f"front-{number}") for number in range(3)))
    again = flow.loop()
    sums = merged.key_by(lambda n: 0).group(window=3).map(lambda ns: (2, sum(ns) % 2, sum(ns)))
    hops = ef.merge(sums, again).key_by(lambda hop: (hop[0] + hop[1]) % 2).group(window=1)
    more, done = hops.map(lambda group: (group[0][0] - 1, *group[0][1:])).broadcast(2)
    again.close(more.filter(lambda hop: hop[0] > 0))
    done.filter(lambda hop: hop[0] == 0).map(lambda hop: hop[2]).sink("out")
    elements = {
        f"front-{number}": [
            ef.At(3 * time + number, (time * 7 + number) % 10) for time in range(12)
        ]
        for number in range(3)
    }
    for seed in count():
        yield own_case(flow, seed, 2 + seed % 3, **elements)


def scheduled_twice() -> Iterable[Case]:
    """A tuple that grows makes its item come sooner; in the end all come at one time."""
    flow = ef.Flow("scheduled twice")
    direct, grouped = ef.merge(flow.front("one"), flow.front("two")).broadcast(2)
    tuples = grouped.key_by(lambda _: 0).group(window=3).with_time()
    sooner = tuples.map(lambda timed: ef.At(timed.time + 5 - len(timed.payload), timed.payload))
    both = ef.merge(direct.map(lambda name: (name,)), sooner)
    both.map(lambda names: ef.At(100, names)).sink("out")
    elements = {"one": [*"abcdef"], "two": [*"uvwxyz"]}
    for seed in count():
        yield own_case(flow, seed, 1 + seed % 2, **elements)


def only_in_order() -> Iterable[Case]:
    """A combine that raises where an element is missing."""
    flow = ef.Flow("only in order")
    merged = ef.merge(*(flow.front(f"front-{number}") for number in range(3)))

    def next_one(before: int, number: int) -> int:
        if number != before + 3:
            raise ValueError(f"{before} and then {number}")
        return number

    merged.key_by(lambda n: n % 3).reduce(first=lambda n: n, combine=next_one).sink("out")
    elements = {
        f"front-{number}": [ef.At(time, time) for time in range(30) if time * 5 % 7 % 3 == number]
        for number in range(3)
    }
    for seed in count():
        yield own_case(flow, seed, 2 + seed % 3, **elements)


def diverted() -> Iterable[Case]:
    """Functions that fail for some payloads, and what fails goes aside."""
    return map(diverting, count())


def diverted_unfused() -> Iterable[Case]:
    """The same without a machine that knows what a reduction is."""
    for case in diverted():
        yield replace(case, graph=replace(case.graph, reductions=()))


# --- What stateful machines send -------------------------------------------------------------------


def with_output(change: Callable[[list[FlatItem], list[FlatItem]], list[FlatItem]]) -> Machines:
    """Stateful machines whose output is changed, given the batch that it came from."""

    class Mutant(Worker):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            for node in self.machines.stateful:
                self.machines.process[node] = self._changed(self.machines.process[node])

        def _changed(self, process: Any) -> Any:
            def changed(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
                (output,) = process(items, failed)
                return [change(items, output)]

            return changed

    return {"worker": Mutant}


@mutation(CONTENT)
def skip_a_tombstone(_: pytest.MonkeyPatch) -> Machines:
    def change(items: list[FlatItem], output: list[FlatItem]) -> list[FlatItem]:
        skipped = next((item for item in output if item[1] & 1), None)
        return [item for item in output if item is not skipped]

    return with_output(change)


@mutation(CONTENT)
def forget_a_replay(_: pytest.MonkeyPatch) -> Machines:
    """What was inserted is sent; the tuples that lack it stay as they are."""

    def change(items: list[FlatItem], output: list[FlatItem]) -> list[FlatItem]:
        places = {place for place, _, _ in items}
        return [
            item
            for item in output
            if any(item[0][:length] in places for length in range(2, len(item[0]) + 1))
        ]

    return with_output(change)


@mutation(CONTENT)
def stop_a_replay_too_soon(_: pytest.MonkeyPatch) -> Machines:
    """The last of the tuples that have to be corrected is not."""

    def change(items: list[FlatItem], output: list[FlatItem]) -> list[FlatItem]:
        last = max((place for place, mark, _ in output if mark & 1), default=None)
        return [item for item in output if item[0] != last]

    return with_output(change)


@mutation(CONTENT)
def send_tombstones_last(_: pytest.MonkeyPatch) -> Machines:
    return with_output(lambda items, output: sorted(output, key=lambda item: item[1] & 1))


@mutation(CONTENT)
def sort_unstably(patch: pytest.MonkeyPatch) -> Machines:
    """What came by several ways is in order, but an item may come behind its tombstone."""
    take = Mailboxes.take

    def unstable(self: Mailboxes, node: int) -> list[FlatItem]:
        taken = take(self, node)
        taken.reverse()
        return sorted(taken, key=place_of)

    patch.setattr(Mailboxes, "take", unstable)
    return {}


@mutation(CONTENT, cases=unfused)
def trim_too_much(_: pytest.MonkeyPatch) -> Machines:
    """All but the last ``window - 2``."""

    class Mutant(Worker):
        def trim(self, most: int | None = None) -> None:
            machines = self.machines.stateful.values()
            kept = [machine.kept for machine in machines]
            for machine in machines:
                machine.kept = max(0, machine.kept - 1)
            super().trim(most)
            for machine, number in zip(machines, kept, strict=True):
                machine.kept = number

    return {"worker": Mutant}


@mutation(DRAINED)
def never_trim(_: pytest.MonkeyPatch) -> Machines:
    class Mutant(Worker):
        def trim(self, most: int | None = None) -> None:
            pass

    return {"worker": Mutant}


@mutation(CONTENT)
def send_the_last_first(_: pytest.MonkeyPatch) -> Machines:
    """Within a frame, what was sent last comes first."""

    class Mutant(Worker):
        def deliver(self, frames: Sequence[Frame]) -> Effects:
            for frame in frames:
                for _, items in frame.parts:
                    items.reverse()
            return super().deliver(frames)

    return {"worker": Mutant}


# --- Barriers --------------------------------------------------------------------------------------


@mutation(CONTENT)
def release_one_too_early(patch: pytest.MonkeyPatch) -> Machines:
    """At the minimal time, and not only below it."""
    release = Barrier.release
    patch.setattr(Barrier, "release", lambda self, m: release(self, (m[0], m[1] + 1)))
    return {}


@mutation(CONTENT)
def release_what_was_taken_back(patch: pytest.MonkeyPatch) -> Machines:
    arrive = Barrier.arrive
    patch.setattr(
        Barrier, "arrive", lambda self, items: arrive(self, [i for i in items if not i[1] & 1])
    )
    return {}


@mutation(RELEASE)
def release_backwards(patch: pytest.MonkeyPatch) -> Machines:
    release = Barrier.release
    patch.setattr(Barrier, "release", lambda self, minimal: release(self, minimal)[::-1])
    return {}


@mutation(f"{RELEASE}|{DRAINED}")
def split_a_global_time(patch: pytest.MonkeyPatch) -> Machines:
    """The last item of a bundle waits for the next one."""
    release = Barrier.release

    def split(self: Barrier, minimal: Moment) -> list[FlatItem]:
        released = release(self, minimal)
        if len(released) > 1:
            self.arrive([released.pop()])
        return released

    patch.setattr(Barrier, "release", split)
    return {}


@mutation(MINIMAL_TIME)
def release_without_looking_at_the_own_range(patch: pytest.MonkeyPatch) -> Machines:
    def ignored(self: Receipts, progress: Progress) -> None:
        self.least = AFTER_ALL

    patch.setattr(Receipts, "progress", ignored)
    return {}


@mutation(MINIMAL_TIME)
def take_a_frame_off_that_is_of_the_same_time(patch: pytest.MonkeyPatch) -> Machines:
    """Of several frames of one time, the first that has come stands for all."""

    def take_off(table: Xors, xors: Xors) -> None:
        for moment in xors:
            table.pop(moment, None)

    patch.setattr(receipts_module, "_take_off", take_off)
    return {}


@mutation("FunctionError", cases=only_in_order)
def never_take_back_a_failure(patch: pytest.MonkeyPatch) -> Machines:
    run = Dataflow.run

    def stubborn(
        self: Dataflow, node: int, items: list[FlatItem], send: Send | None = None
    ) -> None:
        if node == self.layout.failures:
            items = [item for item in items if not item[1] & 1]
        run(self, node, items, send)

    patch.setattr(Dataflow, "run", stubborn)
    return {}


@mutation(CONTENT, cases=diverted)
def never_take_back_what_was_diverted(patch: pytest.MonkeyPatch) -> Machines:
    return never_take_back_a_failure(patch)


@mutation(OUTPUT, cases=diverted)
def lose_the_accumulator_of_what_was_diverted(patch: pytest.MonkeyPatch) -> Machines:
    """As if the key began anew."""

    class Mutant(reduction_module.Absent):
        def __init__(self, error: Any, kept: Any = None) -> None:
            super().__init__(error)

    # Told by its class: what stands for 'not yet' has to be of the new one too.
    patch.setattr(reduction_module, "Absent", Mutant)
    for name in ("_NOT_YET", "_NOTHING"):
        patch.setattr(reduction_module, name, Mutant(None))
    return {}


@mutation(OUTPUT, cases=diverted)
def yield_nothing_behind_what_was_diverted(patch: pytest.MonkeyPatch) -> Machines:
    """As where a failure ends the run."""
    accumulate = reduction_module.ReduceMachine._accumulate

    def never(self: Any, before: Any, version: Any, position: int) -> Any:
        self._diverts = False
        return accumulate(self, before, version, position)

    patch.setattr(reduction_module.ReduceMachine, "_accumulate", never)
    return {}


@mutation(OUTPUT, cases=diverted_unfused)
def bring_no_accumulator_back(patch: pytest.MonkeyPatch) -> Machines:
    one_by_one = mapping_module._one_by_one

    def forgetful(node: Map, pending: Any, kept: Any = None) -> Any:
        return one_by_one(node, pending, None if kept is None else lambda window: ())

    patch.setattr(mapping_module, "_one_by_one", forgetful)
    return {}


@mutation(OUTPUT, cases=diverted_unfused)
def let_the_accumulator_out_that_was_kept(patch: pytest.MonkeyPatch) -> Machines:
    """Out of both ports of the broadcast, and not only back."""

    def both(node: Broadcast) -> Any:
        def broadcast(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            plain = [(*item[:2], getattr(item[2], "payload", item[2])) for item in items]
            return mapping_module.broadcast_process(node)(plain, failed)

        return broadcast

    patch.setattr(program_module, "keeping_broadcast_process", both)
    return {}


@mutation(CONTENT, cases=diverted_unfused, most=600)
def let_the_accumulator_that_was_kept_overtake(patch: pytest.MonkeyPatch) -> Machines:
    """Its way back is shorter than that of the tombstone it has to follow (case 319 once)."""
    readers_of, map_process = Layout._readers_of, mapping_module.map_process

    def shorter(self: Layout, node: int) -> tuple[int, ...]:
        found = self.graph.nodes[node]
        back = isinstance(found, Map) and found.kept is not None
        return (*readers_of(self, node), *([self.graph.kept_reader(found)] if back else []))

    def with_a_short_cut(node: Map, pending: Any, *, diverts: bool) -> Any:
        process = map_process(node, pending, diverts=diverts)

        def processed(items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
            (output,) = process(items, failed)
            kept = [item for item in output if isinstance(item[2], mapping_module._Kept)]
            back = [((*place, 0), mark, payload.payload) for place, mark, payload in kept]
            return [[item for item in output if item not in kept], back]

        return process if node.kept is None else processed

    patch.setattr(Layout, "_readers_of", shorter)
    patch.setattr(program_module, "map_process", with_a_short_cut)
    return {}


@mutation(CONTENT, cases=diverted)
def divert_an_item_and_send_its_first_images(patch: pytest.MonkeyPatch) -> Machines:
    """A function that gives several things and then fails has given nothing."""
    images_of = mapping_module.images_of

    def half_done(node: Map) -> Any:
        images = images_of(node)

        def called(payload: Any, moment: Moment) -> Any:
            try:
                return images(payload, moment)
            except ef.StepError:
                return [payload] if node.mode == "keep" else []

        return called

    patch.setattr(mapping_module, "images_of", half_done)
    return {}


@mutation(OUTPUT, cases=diverted)
def tell_of_another_element(patch: pytest.MonkeyPatch) -> Machines:
    """The record has the time of its place, not that of the error."""
    patch.setattr(
        dataflow_module,
        "Diverted",
        type("Mutant", (), {"of": lambda error: Diverted.of(error)._replace(time=0)}),
    )
    return {}


# --- Acks, reports and the minimal time ------------------------------------------------------------


class TwoAcks(Simulation):
    """Sends what a worker acks in two messages: first ``worker.first``, then the rest."""

    def __init__(self, graph: Graph, options: Options, **others: Any) -> None:
        super().__init__(graph, replace(options, accounts=False), **others)

    def effects(self, index: int, effects: Effects) -> None:
        first: Ack | None = self.workers[index].worker.__dict__.pop("first", None)
        if first is not None:
            self.send_ack(index, first)
            effects = effects._replace(ack=rest(effects.ack, first))
        super().effects(index, effects)


def rest(ack: Ack, first: Ack) -> Ack:
    """What has to follow the first ack for both to come to the same."""
    return ack._replace(
        anywhere=xored(ack.anywhere, first.anywhere),
        ranges={
            worker: xored(ack.ranges.get(worker, {}), first.ranges.get(worker, {}))
            for worker in {**ack.ranges, **first.ranges}
        },
        reports={front: report for front, report in ack.reports.items() if not first.reports},
    )


def xored(one: Xors, other: Xors) -> Xors:
    return {moment: one.get(moment, 0) ^ other.get(moment, 0) for moment in {**one, **other}}


def ack_of(frames: Sequence[Frame], worker: Worker) -> Ack:
    """The ack of having dealt with these frames, and of nothing else."""
    ack = Ack(worker.index, {}, {}, {})
    for frame in frames:
        for is_bound in (False, True):
            moments = {
                item[0][:2]
                for node, items in frame.parts
                if (node in worker.barriers) == is_bound
                for item in items
            }
            table = ack.ranges.setdefault(worker.index, {}) if is_bound else ack.anywhere
            for moment in moments:
                table[moment] = table.get(moment, 0) ^ frame.id
    return ack


@mutation(PROGRESS)
def ack_before_sending(_: pytest.MonkeyPatch) -> Machines:
    """The frames that came are acked in one message, those that they caused in the next one."""

    class Mutant(Worker):
        def deliver(self, frames: Sequence[Frame]) -> Effects:
            effects = super().deliver(frames)
            self.first = ack_of(frames, self)
            return effects

    return {"worker": Mutant, "kind": TwoAcks}


@mutation(PROGRESS)
def report_before_sending(_: pytest.MonkeyPatch) -> Machines:
    """The promise of a front goes ahead of the ack of what its elements caused."""

    class Mutant(Worker):
        def enter(
            self, node: int, elements: Sequence[tuple[Moment, Any]], reports: dict[int, Moment]
        ) -> Effects:
            effects = super().enter(node, elements, reports)
            self.first = Ack(self.index, {}, {}, reports)
            return effects

    return {"worker": Mutant, "kind": TwoAcks}


@mutation(PROGRESS)
def promise_too_much(_: pytest.MonkeyPatch) -> Machines:
    """Not the next time, but the one after it."""

    class Mutant(Worker):
        def enter(
            self, node: int, elements: Sequence[tuple[Moment, Any]], reports: dict[int, Moment]
        ) -> Effects:
            more = {
                front: promise if promise == AFTER_ALL else (promise[0] + 1, promise[1])
                for front, promise in reports.items()
            }
            return super().enter(node, elements, more)

    return {"worker": Mutant}


@mutation(PROGRESS, cases=all_out_of_order)
def promise_the_next_time(_: pytest.MonkeyPatch) -> Machines:
    """Although elements of equal times may follow."""

    class Mutant(Worker):
        def enter(
            self, node: int, elements: Any, reports: dict[int, Moment], *malformed: Any
        ) -> Effects:
            more = {
                front: promise if promise == AFTER_ALL else (promise[0] + 1, front)
                for front, promise in reports.items()
            }
            return super().enter(node, elements, more, *malformed)

    return {"worker": Mutant}


@mutation(PROGRESS)
def wait_for_the_fastest_front(_: pytest.MonkeyPatch) -> Machines:
    class Mutant(Acker):
        def receive(self, ack: Ack) -> Progress:
            if ack.reports:
                most = max([*ack.reports.values(), *self.reports.values()])
                ack = ack._replace(reports=dict.fromkeys(self.reports, most))
            return super().receive(ack)

    return {"acker": Mutant}


@mutation(PROGRESS)
def ack_a_frame_under_its_greatest_time(patch: pytest.MonkeyPatch) -> Machines:
    numbered = FrameLedger.numbered

    def under_the_greatest(
        self: FrameLedger,
        parts: Sequence[Part],
        least: Place | None,
        bound: Moment | None,
        level: int = 0,
        own: Moment | None = None,
        level_own: int = 0,
    ) -> Frame:
        place = max((item[0] for _, items in parts for item in items), default=None)
        most = None if place is None else (place[0], place[1])
        moments = [known and (most or known) for known in (least, bound, own)]
        return numbered(self, parts, moments[0], moments[1], level, moments[2], level_own)

    patch.setattr(FrameLedger, "numbered", under_the_greatest)
    return {}


# The ack that is forgotten may be the only word of an item that was scheduled for a later time.
@mutation(f"{DRAINED}|{MINIMAL_TIME}")
def forget_an_ack(_: pytest.MonkeyPatch) -> Machines:
    class Mutant(Acker):
        def receive(self, ack: Ack) -> Progress:
            if self.acks % 5 == 4:
                ack = ack._replace(anywhere={}, ranges={})
            return super().receive(ack)

    return {"acker": Mutant}


@mutation(DRAINED)
def keep_all_credits(patch: pytest.MonkeyPatch) -> Machines:
    patch.setattr(Gate, "minimal_time", lambda self, moment: None)
    return {}


def hold_silently(patch: pytest.MonkeyPatch) -> None:
    """Hold items of a cycle back, and ack neither that nor that they went on."""
    finish = Outbox.finish

    def finish_others(self: Outbox, frames: Iterable[Frame]) -> None:
        finish(self, [frame for frame in frames if frame.sender != self.index])

    patch.setattr(Outbox, "hold", lambda self, frame: None)
    patch.setattr(Outbox, "finish", finish_others)
    patch.setattr(budget_module, "_REPLAYS_MAX", 3)


@mutation(PROGRESS)
def hold_back_without_acking(patch: pytest.MonkeyPatch) -> Machines:
    hold_silently(patch)
    return {}


@mutation(rf"{CONTENT}|{PROGRESS}|{DRAINED}")
def hold_back_without_telling_anyone(patch: pytest.MonkeyPatch) -> Machines:
    """As before, with a checker that does not see it either."""

    class Mutant(Worker):
        def held(self) -> list[Frame]:
            return []

    hold_silently(patch)
    return {"worker": Mutant}


# --- Frames that leave ahead -----------------------------------------------------------------------


def ahead() -> Iterable[Case]:
    """All that may leave before its event is over does."""
    for case in seeds():
        yield replace(case, options=replace(case.options, sends_ahead=True))


@mutation(rf"{CONTENT}|{PROGRESS}|{DRAINED}", cases=ahead)
def do_not_ack_what_left_ahead(patch: pytest.MonkeyPatch) -> Machines:
    patch.setattr(Outbox, "ahead", lambda self: self._framed())
    return {}


@mutation(rf"{CONTENT}|{PROGRESS}|{DRAINED}", cases=ahead)
def send_again_what_left_ahead(patch: pytest.MonkeyPatch) -> Machines:
    def ahead_and_again(self: Outbox) -> list[tuple[int, Frame]]:
        posted = {where: list(items) for where, items in self._outgoing.items()}
        frames = leave(self)
        self._outgoing = posted
        return frames

    leave = Outbox.ahead
    patch.setattr(Outbox, "ahead", ahead_and_again)
    return {}


# --- Patience --------------------------------------------------------------------------------------


def patient() -> Iterable[Case]:
    """Every stateful node waits for its frontier."""
    for case in seeds():
        yield replace(case, options=replace(case.options, patience="always"))


def changeable() -> Iterable[Case]:
    """Nodes change their minds while they hold items."""
    for case in seeds():
        yield replace(case, options=replace(case.options, patience="fickle"))


@mutation(REPLAYED, cases=patient)
def release_before_the_frontier(patch: pytest.MonkeyPatch) -> Machines:
    patch.setattr(Patience, "frontier", lambda self, stage: AFTER_ALL)
    return {}


@mutation(REPLAYED, cases=patient)
def take_the_frontier_of_the_stage_before(patch: pytest.MonkeyPatch) -> Machines:
    frontier = Patience.frontier
    patch.setattr(Patience, "frontier", lambda self, stage: frontier(self, max(0, stage - 1)))
    return {}


@mutation(REPLAYED, cases=patient)
def count_no_frames_that_a_stage_is_sent(_: pytest.MonkeyPatch) -> Machines:
    """A frontier of what is promised and what lower stages hold."""

    class Mutant(Acker):
        def _least_times(self) -> LeastTimes:
            least = super()._least_times()
            promised = min(self.reports.values())
            *by_stage, of_all = least.frontiers
            return least._replace(frontiers=(*([promised] * len(by_stage)), of_all))

    return {"acker": Mutant}


@mutation(DRAINED, cases=patient)
def let_a_stage_wait_for_what_it_holds_itself(patch: pytest.MonkeyPatch) -> Machines:
    hold_frame = Outbox.hold_frame
    patch.setattr(
        Outbox,
        "hold_frame",
        lambda self, level, least, node=None: hold_frame(self, level & ~1, least, node),
    )
    return {}


@mutation(rf"{CONTENT}|{PROGRESS}|{DRAINED}", cases=changeable)
def do_not_ack_what_waits(patch: pytest.MonkeyPatch) -> Machines:
    patch.setattr(Patience, "settle", lambda self, hold: None)
    return {}


# Two ticks of one place, the earlier of which was never taken back, cannot be compared.
@mutation(rf"{CONTENT}|{DRAINED}|not supported between instances", cases=changeable)
def let_tombstones_overtake_in_a_hold(patch: pytest.MonkeyPatch) -> Machines:
    """Runs do not tell which of two items of one place came first."""
    for module in (hold_module, runs_module):
        patch.setattr(module, "is_tombstone", lambda item: False)
    patch.setattr(hold_module, "empty_runs", PlainRuns)
    return {}


@mutation(rf"{WENT_BACK}|{MINIMAL_TIME}|{PROGRESS}", cases=changeable)
def take_back_what_may_be_final(patch: pytest.MonkeyPatch) -> Machines:
    """The acker may have passed what is above the frontier that a worker has heard last."""

    def judge(self: Patience, stop: Stop, items: list[FlatItem], replays: int) -> None:
        stop.judge.computed(len(items), replays)
        early = stop.machine.computed_from(self.frontier(stop.stage))
        if stop.judge.patient and early:
            self._take_back(stop, early)

    patch.setattr(Patience, "_judge", judge)
    return {}


# --- Order and identity ----------------------------------------------------------------------------


@mutation(CONTENT, cases=there_and_back)
def trace_by_plain_xor(patch: pytest.MonkeyPatch) -> Machines:
    """A then B is B then A."""
    patch.setattr(routing_module, "hopped", lambda mark, hop: mark ^ (hop << 1))
    return {}


@mutation(CONTENT)
def leave_no_trace(patch: pytest.MonkeyPatch) -> Machines:
    patch.setattr(routing_module, "hopped", lambda mark, hop: mark)
    return {}


@mutation(CONTENT)
def take_what_comes_to_be_of_one_partition(patch: pytest.MonkeyPatch) -> Machines:
    """A worker that holds several partitions of a sink takes all that comes to be of the first."""

    by_partition = Routes.by_partition

    def broken(
        self: Routes, node: int, items: list[FlatItem], failed: list[FlatItem]
    ) -> dict[int, list[FlatItem]]:
        dealt = by_partition(self, node, items, failed)
        return {min(dealt): list(chain(*dealt.values()))} if dealt else dealt

    patch.setattr(Routes, "by_partition", broken)
    return {}


@mutation(CONTENT, cases=scheduled_twice)
def forget_when_it_was_scheduled(patch: pytest.MonkeyPatch) -> Machines:
    """What was scheduled schedules the same place, whenever that was (seed 973 once)."""

    def child_ids(moment: Moment, ids: tuple[int, ...], child: int) -> tuple[int, ...]:
        return (*ids, child) if moment[1] < 0 else (*moment, *ids, child)

    for module in (mapping_module, reference_module):
        patch.setattr(module, "scheduled_child_ids", child_ids)
    return {}


@mutation(rf"{CONTENT}|{PROGRESS}")
def overtake_on_a_link(patch: pytest.MonkeyPatch) -> Machines:
    """The network's mistake: the engine says what it needs of links, and it does need it."""
    patch.setattr(
        Network,
        "send",
        lambda self, source, target, action: self.later(
            self.ticks(self.options.delay_ticks_max), action
        ),
    )
    return {}


# --- Expiry ----------------------------------------------------------------------------------------


def expiring() -> Iterable[Case]:
    """Random flows with keys that expire."""
    for case in map(Case.of, count()):
        if any(getattr(node, "expires", None) is not None for node in case.graph.nodes):
            yield case


@mutation(CONTENT, cases=expiring)
def live_until_after_the_end(patch: pytest.MonkeyPatch) -> Machines:
    """An element that comes exactly when the time of its key is over finds it alive."""
    for module in (reduction_module, grouping_module):
        patch.setattr(
            module,
            "has_expired",
            lambda touched, expires, now: expires is not None and touched + expires < now,
        )
    return {}


@mutation(CONTENT, cases=expiring)
def forget_keys_too_early(patch: pytest.MonkeyPatch) -> Machines:
    """A look finds a key that was touched since, and takes it for one that was not."""

    def end_some(self: Trimmed[Any], minimal: Moment, most: int | None = None) -> None:
        assert self.expires is not None
        while self._slots and self._slots[0] * self._slot_length <= minimal[0]:
            for bucket in self._ends.pop(heappop(self._slots)):
                if self.last_time(bucket) is not None:
                    self.forget(bucket)

    patch.setattr(Trimmed, "end_some", end_some)
    return {}


@mutation(CONTENT, cases=expiring)
def replay_without_gaps(patch: pytest.MonkeyPatch) -> Machines:
    """What was computed again is never new, however late it comes."""
    replay = reduction_module.ReduceMachine._replay

    def gapless(self: Any, *given: Any) -> None:
        expires, self.expires = self.expires, None
        replay(self, *given)
        self.expires = expires

    patch.setattr(reduction_module.ReduceMachine, "_replay", gapless)
    return {}
