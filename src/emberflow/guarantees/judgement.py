"""`judge`: compare with the reference, search for an explanation, word the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from emberflow.dsl.flow import Flow
from emberflow.errors import LATE_SINK, InputError, shortened
from emberflow.graph.nodes import Front, Graph, with_late_sink
from emberflow.guarantees.inputs import Inputs, entering
from emberflow.guarantees.outputs import Channel, Forms, Observed, Outputs, alike
from emberflow.guarantees.search import Exhausted, Losses, Repetitions
from emberflow.guarantees.trial import NotRewindable, Recorded, Trial
from emberflow.guarantees.verdict import (
    NOTHING,
    Entered,
    Giveaway,
    Guarantee,
    Verdict,
    counted,
    listed,
)
from emberflow.runners.reference import NestedPlace
from emberflow.runners.verify.functions.comparison import NotComparableError, fingerprint
from emberflow.values.item import GlobalTime
from emberflow.work import watched

#: The number of elements that each search may enter: some seconds for an ordinary flow.
EFFORT = 200_000

#: The number of failures, or the time of each: elements of that time or later entered after it.
Failures: TypeAlias = int | Sequence[int | GlobalTime]

_Recorded: TypeAlias = list[list[tuple[Any, NestedPlace]]]


def judge(
    flow: Flow,
    inputs: Inputs,
    outputs: Outputs,
    failures: Failures | None = None,
    *,
    finished: bool = True,
    forms: Forms | None = None,
    effort: int = EFFORT,
) -> Verdict:
    """Which guarantee a run kept, from its inputs and outputs.

    ``inputs`` are elements by front, as `emberflow.run` takes them, or (global time, front, payload)
    each. ``outputs`` has the payloads of each sink to be judged, in order, or a dict from its
    partitions to their payloads; ``late`` among them are the late elements. ``failures`` is the number of failures, or a list of their times, or
    None if unknown. With ``finished=False`` more output may still come. ``forms`` converts payloads
    to the form in which a sink stores them.

    >>> import emberflow as ef
    >>> flow = ef.Flow("concatenation")
    >>> letters = flow.front("letters").key_by(lambda letter: None)
    >>> letters.reduce(first=str, combine=str.__add__).sink("texts")
    >>> inputs = {"letters": ["a", "b", "c"]}
    >>> print(judge(flow, inputs, {"texts": ["a", "ab", "abc"]}))
    exactly-once: all 3 outputs are those of the reference on 3 elements.
    >>> judge(flow, inputs, {"texts": ["a", "ab", "abb", "abbc"]}).repeated
    (Entered(global_time=GlobalTime(time=1, front=0), front='letters', payload='b'),)
    >>> judge(flow, inputs, {"texts": ["a", "ac"]}).lost
    (Entered(global_time=GlobalTime(time=1, front=0), front='letters', payload='b'),)
    >>> judge(flow, inputs, {"texts": ["a", "ab", "bac"]}).guarantee
    <Guarantee.INCONSISTENT: 'inconsistent'>
    """
    graph = flow.graph()
    if LATE_SINK in outputs and LATE_SINK not in graph.sinks:
        graph = with_late_sink(graph)
    _check(failures, effort)
    elements = entering(graph, inputs)
    case = _Case(graph, elements, Observed(graph, outputs, forms or {}), finished)
    recorded = case.recorded()
    first = case.first_difference(recorded)
    if first is None:
        return case.exactly_once(recorded)
    case = case._replace(first=first, delivery=case.delivered(recorded))
    copies_max = None if failures is None else _count(failures)
    if copies_max == 0:
        return case.without_failures()
    try:
        repeating = case.answer(Repetitions, copies_max, effort)
        losing = case.answer(Losses, None, effort)
    except NotRewindable as step:
        return case.not_rewindable(str(step))
    return case.explained(repeating, losing, failures, effort)


def _check(failures: object, effort: int) -> None:
    is_count = isinstance(failures, int) and not isinstance(failures, bool) and failures >= 0
    is_list = isinstance(failures, Sequence) and not isinstance(failures, str | bytes)
    if failures is not None and not is_count and not is_list:
        raise InputError(
            f"judge(failures=) takes the number of failures, a list of their times, or None if "
            f"unknown; got {failures!r}."
        )
    if effort < 1:
        raise InputError(f"judge(effort=) takes a number of elements, got {effort!r}.")


def _count(failures: Failures) -> int:
    return failures if isinstance(failures, int) else len(failures)


class _Answer(NamedTuple):
    """The result of a search: a walk, if there is one. ``holds`` is None if it was given up."""

    walk: list[int] | None
    holds: bool | None
    matched: tuple[int, int, int]


class _Case(NamedTuple):
    graph: Graph
    elements: list[tuple[GlobalTime, Front, Any]]
    observed: Observed
    finished: bool
    first: Giveaway | None = None
    delivery: Literal["complete", "repeated", "missing", "other"] = "complete"

    # --- The reference ----------------------------------------------------------------------------

    def recorded(self) -> _Recorded:
        reference = Recorded(self.graph, self.observed)
        for element in watched("elements", self.elements, len(self.elements)):
            reference.enter(*element)
        reference.finish()
        return reference.recorded

    def first_difference(self, recorded: _Recorded) -> Giveaway | None:
        """The first difference, over all channels, in the order of the reference."""
        found: list[tuple[bool, NestedPlace, int, int]] = []
        for number, expected in enumerate(recorded):
            position = self._differing(expected, self.observed.channels[number].held)
            if position is not None:
                is_more = position == len(expected)
                place: NestedPlace = (GlobalTime(0, 0), ()) if is_more else expected[position][1]
                found.append((is_more, place, number, position))
        if not found:
            return None
        _, _, number, position = min(found)
        return self._giveaway(number, position, recorded[number])

    def _differing(
        self, expected: list[tuple[Any, NestedPlace]], held: Sequence[Any]
    ) -> int | None:
        for position, ((payload, _), found) in enumerate(zip(expected, held, strict=False)):
            if not alike(payload, found):
                return position
        is_over = len(held) == len(expected) if self.finished else len(held) <= len(expected)
        return None if is_over else min(len(held), len(expected))

    def _giveaway(
        self, number: int, position: int, expected: list[tuple[Any, NestedPlace]] | None
    ) -> Giveaway:
        channel = self.observed.channels[number]
        held = channel.held[position] if position < len(channel.held) else NOTHING
        payload, cause = NOTHING, None
        if expected is not None and position < len(expected):
            payload, place = expected[position]
            cause = self._cause(place)
        return Giveaway(channel.sink, channel.partition, position, payload, held, cause)

    def _cause(self, place: NestedPlace) -> Entered | None:
        """The element that caused an output. A scheduled item has its time in the child ids."""
        (time, front), child_ids = place
        origin = (time, front) if front >= 0 else tuple(child_ids[:2])
        for element in self.elements:
            if element[0] == origin:
                return _entered(element)
        return None

    def delivered(self, recorded: _Recorded) -> Literal["complete", "repeated", "missing", "other"]:
        kinds = {
            _delivery([payload for payload, _ in expected], channel, self.finished)
            for expected, channel in zip(recorded, self.observed.channels, strict=True)
        }
        kinds.discard("complete")
        return kinds.pop() if len(kinds) == 1 else "other"

    # --- The search -------------------------------------------------------------------------------

    def answer(self, kind: type[Losses | Repetitions], copies: int | None, effort: int) -> _Answer:
        trial = Trial(self.graph, self.observed, finished=self.finished)
        search = kind(
            trial, self.elements, finished=self.finished, effort=effort, copies_max=copies
        )
        try:
            walk = search.explanation()
        except Exhausted:
            return _Answer(None, None, trial.matched)
        return _Answer(walk, walk is not None, trial.matched)

    # --- The verdicts -----------------------------------------------------------------------------

    def exactly_once(self, recorded: _Recorded) -> Verdict:
        held = sum(len(channel.held) for channel in self.observed.channels)
        expected = sum(map(len, recorded))
        so_far = f"the first {held} of {expected}" if held < expected else f"all {held}"
        return Verdict(
            Guarantee.EXACTLY_ONCE,
            f"{so_far} outputs are those of the reference on "
            f"{counted(len(self.elements), 'element')}.",
        )

    def without_failures(self) -> Verdict:
        return self._verdict(
            Guarantee.INCONSISTENT,
            f"{self.first}. No failure happened, so that nothing can have been lost or repeated. "
            "Is a function of the flow not pure (emberflow verify tells), or are these other inputs?",
            unexplained=self.first,
            at_least_once=False,
            at_most_once=False,
        )

    def not_rewindable(self, step: str) -> Verdict:
        return self._verdict(
            Guarantee.UNDECIDED,
            f"{self.first}. It is not exactly-once; what else it may be is not searched for in a "
            f"flow with {step}.",
            at_least_once=None,
            at_most_once=None,
        )

    def explained(
        self, repeating: _Answer, losing: _Answer, failures: Failures | None, effort: int
    ) -> Verdict:
        flags = {"at_least_once": repeating.holds, "at_most_once": losing.holds}
        when = self._failures_before(failures)
        if repeating.walk is not None:
            repeated = self._repeated(repeating.walk)
            return self._verdict(
                Guarantee.AT_LEAST_ONCE,
                f"the output is that of the reference if {counted(len(repeated), 'element')} "
                f"entered again: {listed(repeated)}. First seen in {self.first}.{when}",
                repeated=repeated,
                **flags,
            )
        if losing.walk is not None:
            lost = self._lost(losing.walk)
            return self._verdict(
                Guarantee.AT_MOST_ONCE,
                f"the output is that of the reference without {counted(len(lost), 'element')}: "
                f"{listed(lost)}. First seen in {self.first}.{when}",
                lost=lost,
                **flags,
            )
        if None in flags.values():
            return self._verdict(
                Guarantee.UNDECIDED,
                f"{self.first}. It is not exactly-once. Whether lost or repeated elements explain it "
                f"is open: the search was given up after {effort} elements (effort=).{when}",
                **flags,
            )
        _, number, position = max(repeating.matched, losing.matched)
        unexplained = self._giveaway(number, position, None)
        if self.first is not None and self.first.at == unexplained.at:
            unexplained = self.first
        at = (
            ""
            if unexplained == self.first
            else f" Unexplained is {unexplained.where}: {shortened(unexplained.held)}."
        )
        return self._verdict(
            Guarantee.INCONSISTENT,
            f"{self.first}. No loss of elements explains it, and no repetition.{at}"
            f"{_in_deliveries(self.delivery)}{when}",
            unexplained=unexplained,
            **flags,
        )

    def _verdict(self, guarantee: Guarantee, why: str, **fields: Any) -> Verdict:
        return Verdict(guarantee, why, first=self.first, delivery=self.delivery, **fields)

    def _repeated(self, walk: list[int]) -> tuple[Entered, ...]:
        first = 0
        repeated = []
        for number in walk:
            if number < first:
                repeated.append(_entered(self.elements[number]))
            first = max(first, number + 1)
        return tuple(repeated)

    def _lost(self, walk: list[int]) -> tuple[Entered, ...]:
        """The elements that the walk left out. An unfinished run lost none behind the walk's end."""
        end = len(self.elements) if self.finished else max(walk, default=-1) + 1
        entered = set(walk)
        return tuple(_entered(self.elements[n]) for n in range(end) if n not in entered)

    def _failures_before(self, failures: Failures | None) -> str:
        if failures is None or isinstance(failures, int) or not failures:
            return ""
        if self.first is None or self.first.cause is None:
            return ""
        time = self.first.cause.global_time
        times = sorted(_failure_time(each) for each in failures)
        before = [each for each in times if each <= time]
        if before:
            return f" The last failure before it was at time {before[-1][0]}."
        return (
            f" The first failure was later, at time {times[0][0]}: either the element was still in "
            "flight then, or the recovery is not to blame."
        )


def _entered(element: tuple[GlobalTime, Front, Any]) -> Entered:
    global_time, front, payload = element
    return Entered(global_time, front.name, payload)


def _failure_time(failure: int | GlobalTime) -> tuple[float, ...]:
    return (failure, float("-inf")) if isinstance(failure, int) else tuple(failure)


def _in_deliveries(kind: str) -> str:
    if kind == "repeated":
        return (
            " The delivered output is the reference's with parts of it again: a recovery restored "
            "its state and did not ask the sink what it had."
        )
    if kind == "missing":
        return (
            " The delivered output is the reference's with parts missing, while later outputs show "
            "the effects of their elements."
        )
    return ""


def _delivery(
    expected: Sequence[Any], channel: Channel, finished: bool
) -> Literal["complete", "repeated", "missing", "other"]:
    """How a channel delivered the outputs of the reference."""
    try:
        wanted = [fingerprint(payload) for payload in expected]
        held = [fingerprint(payload) for payload in channel.held]
    except NotComparableError:
        return "other"
    if held == wanted or (not finished and held == wanted[: len(held)]):
        return "complete"
    at = 0
    seen: set[str] = set()
    for payload in held:
        if at < len(wanted) and wanted[at] == payload:
            seen.add(payload)
            at += 1
        elif payload not in seen:
            break
    else:
        if at == len(wanted) or not finished:
            return "repeated"
    rest = iter(wanted)
    return "missing" if all(payload in rest for payload in held) else "other"
