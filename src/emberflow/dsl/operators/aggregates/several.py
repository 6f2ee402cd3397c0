"""Several aggregates at once: one accumulator, a tuple of theirs, in one reduction.

Aggregates often have functions in common: the condition of one is that of another, and several count the
same values. Each is called once for a payload (`fused`).

The value is a named tuple of their values. Its class is one of the user's, which may also be a dataclass,
or one that is made here (`record`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.aggregates.fused import combining, finishing, projecting
from emberflow.dsl.operators.aggregates.record import can_be_field, is_record, record_of
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller, name_of


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
    merges = [part.merge for part in parts if part.merge is not None]
    given = tuple(
        UserFunction(f"{field}.{function.role}", function.given)
        for field, part in zip(fields, parts, strict=True)
        for function in part.given
    )

    def merge(held: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([one(*both) for one, *both in zip(merges, held, later, strict=True)])

    return Aggregate(
        first=lambda payload: tuple([one(payload) for one in firsts]),
        combine=combining(parts),
        result=finishing(parts, make, is_record=is_record(make)),
        merge=merge if len(merges) == len(parts) else None,
        given=given,
        projected=projecting(parts),
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
