"""The functions of several aggregates at once, written for just these aggregates.

What is guaranteed: they do what the aggregates would do one by one, in the order of their fields. Functions
are pure, so a function that several have in common is called once for a payload, and only if one of the
aggregates would have called it: a condition first, then what is selected for those whose condition holds.

A loop over the aggregates would spend most of its time on looking up what to do next. So the functions are
written as text and compiled, as `collections.namedtuple` does. The text holds names that are made here, and
nothing of the user's. Of a count of all payloads, one of the high ones and the sum of the prices it is::

    def combine(held, payload):
        (
            a0,
            a1,
            a2,
        ) = held
        h0 = holds0(payload)
        v0 = select0_0(payload)
        a0 = a0 + 1
        if h0:
            a1 = begin1(payload) if a1 is EMPTY else a1 + 1
        a2 = a2 + v0
        return (
            a0,
            a1,
            a2,
        )
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from emberflow.dsl.operators.aggregates.aggregate import EMPTY, Aggregate, Parts, Projected
from emberflow.values.functions import itself


class _Unknown(Enum):
    """In place of a value that no aggregate has needed yet. An enum stays itself in a pickle."""

    UNKNOWN = "unknown"


class _Numbered:
    """Functions, or several in a row, that are the same have the same number.

    By identity: two functions that are written alike are not known to be the same.
    """

    def __init__(self) -> None:
        self.functions: list[tuple[Callable[[Any], Any], ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, *functions: Callable[[Any], Any]) -> int:
        found = self._numbers.setdefault(tuple(map(id, functions)), len(self.functions))
        if found == len(self.functions):
            self.functions.append(functions)
        return found


def combining(aggregates: Sequence[Aggregate[Any]]) -> Callable[[Any, Any], Any]:
    """What makes the next tuple of accumulators, of the last one and a payload."""
    known: dict[str, Any] = {"EMPTY": EMPTY, "UNKNOWN": _Unknown.UNKNOWN}
    conditions, selections = _Numbered(), _Numbered()
    #: Selections that some aggregate may have needed, and those that one surely has.
    maybe: set[int] = set()
    surely: set[int] = set()
    steps: list[str] = []
    for number, aggregate in enumerate(aggregates):
        own = aggregate.parts
        lines, value = [], "payload"
        select = tuple(function for function in own.select if function is not itself)
        if select:
            selection = selections.number(*select)
            value = f"v{selection}"
            if selection not in surely:
                is_new = own.holds is None and selection not in maybe
                unless_known = "" if is_new else f"if {value} is UNKNOWN: "
                lines.append(f"{unless_known}{value} = {_selected(selection, len(select))}")
                (maybe if own.holds else surely).add(selection)
        lines.append(f"a{number} = {_next(number, own, value, known)}")
        if own.holds is None:
            steps += lines
        else:
            steps.append(f"if h{conditions.number(own.holds)}:")
            steps += [f"    {line}" for line in lines]
    for number, (condition,) in enumerate(conditions.functions):
        known[f"holds{number}"] = condition
    for number, functions in enumerate(selections.functions):
        known |= {f"select{number}_{place}": one for place, one in enumerate(functions)}
    held = _accumulators(len(aggregates))
    return _compiled(
        "combine(held, payload)",
        [
            f"{held} = held",
            *(f"h{number} = holds{number}(payload)" for number in range(len(conditions.functions))),
            *(f"v{selection} = UNKNOWN" for selection in sorted(maybe)),
            *steps,
            f"return ({held})",
        ],
        known,
    )


def projecting(aggregates: Sequence[Aggregate[Any]]) -> Projected | None:
    """The same in two stages. None where a step may raise: its error shows the payload, which has not
    travelled.

    Of a count of the high bids and how many bidders there are::

        def project(payload):                       def combine(held, needed):
            h0 = True if holds0(payload) else False     (h0, v0,) = needed
            v0 = select0_1(select0_0(payload))          ...
            return (h0, v0,)
    """
    if not all(aggregate.parts.never_fails for aggregate in aggregates):
        return None
    known: dict[str, Any] = {"EMPTY": EMPTY}
    conditions, selections = _Numbered(), _Numbered()
    #: By selection, the conditions under which it is needed; None among them if always.
    needed_if: dict[int, dict[int | None, None]] = {}
    begins, steps = [], []
    for number, aggregate in enumerate(aggregates):
        own = aggregate.parts
        holds = None if own.holds is None else conditions.number(own.holds)
        value = "None"
        if own.looks:
            selection = selections.number(*own.select)
            needed_if.setdefault(selection, {})[holds] = None
            value = f"v{selection}"
        known[f"begin{number}"] = own.begin
        begin = f"begin{number}({value})"
        begins.append(begin if holds is None else f"{begin} if h{holds} else EMPTY")
        step = f"a{number} = {_next(number, own, value, known)}"
        steps.append(step if holds is None else f"if h{holds}: {step}")
    lines = []
    for number, (condition,) in enumerate(conditions.functions):
        known[f"holds{number}"] = condition
        lines.append(f"h{number} = True if holds{number}(payload) else False")
    for number, functions in enumerate(selections.functions):
        known |= {f"select{number}_{place}": one for place, one in enumerate(functions)}
        line = f"v{number} = {_selected(number, len(functions))}"
        if None not in needed_if[number]:
            line += f" if {' or '.join(f'h{holds}' for holds in needed_if[number])} else None"
        lines.append(line)
    needed = " ".join(
        [f"h{number}," for number in range(len(conditions.functions))]
        + [f"v{number}," for number in range(len(selections.functions))]
    )
    taken = [f"({needed}) = needed"] if needed else []
    held = _accumulators(len(aggregates))
    return Projected(
        _compiled("project(payload)", [*lines, f"return ({needed})"], known),
        _compiled(
            "first(needed)", [*taken, f"return ({' '.join(f'{b},' for b in begins)})"], known
        ),
        _compiled(
            "combine(held, needed)",
            [f"{held} = held", *taken, *steps, f"return ({held})"],
            known,
        ),
    )


def projecting_one(aggregate: Aggregate[Any]) -> Projected | None:
    """The same for an aggregate that may be alone, as those of windows are."""
    own = aggregate.parts
    if aggregate.projected is not None or own.holds is not None or not own.never_fails:
        return aggregate.projected
    known: dict[str, Any] = {f"select0_{place}": one for place, one in enumerate(own.select)}
    needed = _selected(0, len(own.select)) if own.looks else "None"
    return Projected(
        _compiled("project(payload)", [f"return {needed}"], known), own.begin, own.step
    )


def finishing(
    aggregates: Sequence[Aggregate[Any]], make: Callable[..., Any], *, is_record: bool
) -> Callable[[Any], Any]:
    """What makes the value of a tuple of accumulators. ``make`` gets what each of them gives; a record is
    made as the tuple that it is."""
    known: dict[str, Any] = {"EMPTY": EMPTY, "make": make, "new": tuple.__new__}
    values = []
    for number, aggregate in enumerate(aggregates):
        own = aggregate.parts
        result = aggregate.result if own.holds is None else own.result
        value = f"a{number}"
        if result is not None:
            known[f"result{number}"] = result
            value = f"result{number}({value})"
        if own.holds is not None:
            known[f"otherwise{number}"] = own.otherwise
            value = f"otherwise{number} if a{number} is EMPTY else {value}"
        values.append(f"{value},")
    given = " ".join(values)
    return _compiled(
        "finish(held)",
        [
            f"{_accumulators(len(aggregates))} = held",
            f"return new(make, ({given}))" if is_record else f"return make({given})",
        ],
        known,
    )


def _accumulators(count: int) -> str:
    return " ".join(f"a{number}," for number in range(count))


def _selected(selection: int, count: int) -> str:
    """Calls of several functions, one after the other."""
    text = "payload"
    for place in range(count):
        text = f"select{selection}_{place}({text})"
    return text


def _next(number: int, own: Parts, value: str, known: dict[str, Any]) -> str:
    """The next accumulator of an aggregate."""
    if own.written is None:
        known[f"step{number}"] = own.step
        step = f"step{number}(a{number}, {value})"
    else:
        step = own.written.format(held=f"a{number}", value=value)
    if own.holds is None:
        return step
    known[f"begin{number}"] = own.begin
    return f"begin{number}({value}) if a{number} is EMPTY else {step}"


def _compiled(signature: str, lines: Sequence[str], known: dict[str, Any]) -> Callable[..., Any]:
    text = f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)
    # The name of the module, which has no such function: so the function is pickled by value.
    names = {**known, "__name__": __name__}
    # A file of this folder, which is not there: an error is told at the user's function, not here.
    exec(compile(text, str(Path(__file__).with_name(f"<{signature}>")), "exec"), names)
    made: Callable[..., Any] = names[signature.partition("(")[0]]
    return made
