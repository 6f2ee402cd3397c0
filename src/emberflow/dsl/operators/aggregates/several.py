"""Several aggregates at once: one accumulator, a tuple of theirs, in one reduction.

Aggregates often have functions in common: the condition of one is that of another, and several count the
same values. Functions are pure, so each is called once for a payload, and only if one of the aggregates
would have called it.

The value is a named tuple of their values. Its class is one of the user's, which may also be a dataclass,
or one that is made here (`record`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from emberflow.dsl.operators.aggregates.aggregate import EMPTY, Aggregate
from emberflow.dsl.operators.aggregates.record import can_be_field, record_of
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller, itself, name_of


class _Unknown(Enum):
    """In place of a value that no aggregate has needed yet. An enum stays itself in a pickle."""

    UNKNOWN = "unknown"


_UNKNOWN: Any = _Unknown.UNKNOWN


class _Numbered:
    """Functions, or several in a row, that are the same have the same number."""

    def __init__(self) -> None:
        self.functions: list[tuple[Callable[[Any], Any], ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, *functions: Callable[[Any], Any]) -> int:
        found = self._numbers.setdefault(tuple(map(id, functions)), len(self.functions))
        if found == len(self.functions):
            self.functions.append(functions)
        return found


def several(into: object, aggregates: Mapping[str, Any], name: object = None) -> Aggregate[Any]:
    """One aggregate of several. ``into`` is the class of its values; None for one that is made here.

    ``name`` is that of the step.
    """
    kind = None if into is None else _checked_class(into)
    if isinstance(name, Aggregate):
        raise FlowError(
            f"aggregate(name=) at {caller()} is the name of the step. Give the field another name."
        )
    for field, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise FlowError(_no_aggregate(field, aggregate))
    if not aggregates:
        raise FlowError(
            f"aggregate() at {caller()} takes at least one aggregate: "
            f"aggregate(total=ef.sum(price), number=ef.count())."
        )
    if kind is None:
        for field in aggregates:
            if not can_be_field(field):
                raise FlowError(
                    f"aggregate({field}=) at {caller()}: {field!r} cannot be a field of a named tuple. "
                    f"Take a name that is no keyword and does not begin with an underscore."
                )
        fields = tuple(aggregates)
        return _fused(list(aggregates.values()), fields, record_of(fields))
    fields = _fields_of(kind)
    if set(fields) != set(aggregates):
        raise FlowError(
            f"aggregate({kind.__qualname__}, ...) at {caller()} takes an aggregate for each field of "
            f"the class: {', '.join(fields)}. Got {', '.join(aggregates)}."
        )
    make = kind if _is_named(kind) else _ByKeyword(kind, fields)
    return _fused([aggregates[field] for field in fields], fields, make)


def _fused(
    parts: list[Aggregate[Any]], fields: tuple[str, ...], make: Callable[..., Any]
) -> Aggregate[Any]:
    firsts = [part.first for part in parts]
    results = [part.result or itself for part in parts]
    merges = [part.merge for part in parts if part.merge is not None]
    given = tuple(
        UserFunction(f"{field}.{function.role}", function.given)
        for field, part in zip(fields, parts, strict=True)
        for function in part.given
    )

    # By identity: two functions that are written alike are not known to be the same.
    conditions = _Numbered()
    selections = _Numbered()
    steps = []
    for number, part in enumerate(parts):
        own = part.parts
        select = tuple(function for function in own.select if function is not itself)
        condition = -1 if own.holds is None else conditions.number(own.holds)
        selection = selections.number(*select) if select else -1
        steps.append((number, condition, selection, own.begin, own.step))
    holding = tuple(function for (function,) in conditions.functions)
    selecting = tuple(selections.functions)
    unknown = [_UNKNOWN] * len(selecting)

    def combine(held: tuple[Any, ...], payload: Any) -> tuple[Any, ...]:
        holds = [one(payload) for one in holding]
        values, found = unknown.copy(), list(held)
        for number, condition, selection, begin, step in steps:
            if condition >= 0 and not holds[condition]:
                continue
            value = payload
            if selection >= 0:
                value = values[selection]
                if value is _UNKNOWN:
                    value = payload
                    for select in selecting[selection]:
                        value = select(value)
                    values[selection] = value
            before = found[number]
            found[number] = begin(value) if before is EMPTY else step(before, value)
        return tuple(found)

    def merge(held: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([one(*both) for one, *both in zip(merges, held, later, strict=True)])

    return Aggregate(
        first=lambda payload: tuple([one(payload) for one in firsts]),
        combine=combine,
        result=lambda held: make(*[one(own) for one, own in zip(results, held, strict=True)]),
        merge=merge if len(merges) == len(parts) else None,
        given=given,
    )


def _checked_class(into: object) -> type:
    if isinstance(into, type) and (_is_named(into) or dataclasses.is_dataclass(into)):
        return into
    if isinstance(into, Aggregate):
        raise FlowError(
            f"aggregate() at {caller()} takes each aggregate by a name: aggregate(total=...)."
        )
    raise FlowError(
        f"aggregate() at {caller()} takes a class of named tuples or a dataclass for its values, got "
        f"{into!r}."
    )


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _fields_of(kind: Any) -> tuple[str, ...]:
    if _is_named(kind):
        return tuple(kind._fields)
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


class _ByKeyword:
    """Makes an instance of a class whose fields may be for keywords only."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type, fields: tuple[str, ...]) -> None:
        self.kind = kind
        self.fields = fields

    def __call__(self, *values: Any) -> Any:
        return self.kind(**dict(zip(self.fields, values, strict=True)))


def _no_aggregate(field: str, given: object) -> str:
    text = f"aggregate({field}=) takes an aggregate, got {given!r} at {caller()}."
    if getattr(given, "__module__", "").startswith("emberflow") and callable(given):
        return f"{text} Call it: {field}=ef.{name_of(given)}()."
    if callable(given):
        return f"{text} Say what to do with it: {field}=ef.sum({name_of(given)}), for example."
    return text
