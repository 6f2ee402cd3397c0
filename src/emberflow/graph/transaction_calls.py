"""Call the functions of transactions, and report their errors.

The part of `graph.calls` for transactions: every runner takes its closures from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.errors import OutputError, shortened
from emberflow.graph.calls import function_error
from emberflow.graph.transactions import Access, Close, Values
from emberflow.values.item import At

#: ``(value before, payload, global time) -> (value after, the failed check's name or None)``
Outcome: TypeAlias = Callable[[Any, Any, tuple[int, int]], tuple[Any, str | None]]

#: ``(values, element, global time) -> the name of the first constraint that does not hold``
Verdict: TypeAlias = Callable[[Values, Any, tuple[int, int]], str | None]


def outcome_of(access: Access) -> Outcome:
    """The function of an access: from the value before to the value after, and the failed check."""
    function, check = access.function, access.check
    sees_payload = check is not None and check.sees_payload

    def outcome(before: Any, payload: Any, global_time: tuple[int, int]) -> tuple[Any, str | None]:
        try:
            value = before if function is None else function(before, payload)
            if value.__class__ is At:
                raise _scheduled(access, value, payload, global_time)
            if check is None:
                return value, None
            holds = check.function(value, payload) if sees_payload else check.function(value)
            return value, None if holds else check.name
        except OutputError:
            raise
        except Exception as error:
            held = f" (where state {access.state!r} held {shortened(before)})"
            raise function_error(access, error, payload, global_time, where=held) from error

    return outcome


def verdict_of(close: Close) -> Verdict:
    """The function of a closer: from all values to the first constraint that fails."""
    requires = close.requires

    def verdict(values: Values, element: Any, global_time: tuple[int, int]) -> str | None:
        for require in requires:
            try:
                holds = require.function(Values(values))
            except Exception as error:
                held = f" (where the values were {shortened(dict(values))})"
                raise function_error(close, error, element, global_time, where=held) from error
            if not holds:
                return require.name
        return None

    return verdict


def _scheduled(
    access: Access, value: Any, payload: Any, global_time: tuple[int, int]
) -> OutputError:
    return OutputError(
        f"{shortened(value)} cannot be the value of a state: only map and flat_map schedule, "
        f"outside of transactions. Return the plain value.",
        step=str(access),
        function=", ".join(map(str, access.given)),
        global_time=global_time,
        payload=payload,
    )
