"""Call user functions, and report their errors.

Every runner reports the same mistake in the same words, with the step, the function, the element's
global time and the payload. So runners do not call a user's function themselves: once per node they
take a plain closure from here that calls it, returns a list of payloads in order and turns any
exception into such an error. The happy path costs one closure and one ``try``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

from emberflow.errors import (
    FunctionError,
    OutputError,
    PayloadError,
    RefusedError,
    UnstableKeyError,
    shortened,
)
from emberflow.graph.nodes import Group, Key, Map, Node
from emberflow.values.functions import UserFunction, blamed, itself
from emberflow.values.hashing import UnstableKey, key_hash
from emberflow.values.item import TIME_MAX, At
from emberflow.values.times import DEFAULT_UNIT, TimeError, counted_time

#: ``(payload, global time) -> payloads``, some of which may be `At`.
Images: TypeAlias = Callable[[Any, tuple[int, int]], "list[Any] | tuple[Any, ...]"]

#: ``(payload, global time) -> (key, its 32-bit hash)``
Balance: TypeAlias = Callable[[Any, tuple[int, int]], tuple[Any, int]]


class Calling(Protocol):
    """A node that calls functions of the user."""

    @property
    def name(self) -> str: ...
    @property
    def given(self) -> tuple[UserFunction, ...]: ...


_NOT_PAYLOADS = (str, bytes, bytearray, set, frozenset, dict)


def images_of(node: Map) -> Images:
    """The function of a map: from a payload to the list of its images."""
    function = node.function
    if node.timed:
        return _timed_images(node)

    def one(payload: Any, global_time: tuple[int, int]) -> tuple[Any, ...]:
        try:
            return (function(payload),)
        except Exception as error:
            raise function_error(node, error, node.shown(payload), global_time) from error

    def keep(payload: Any, global_time: tuple[int, int]) -> tuple[Any, ...]:
        try:
            return (payload,) if function(payload) else ()
        except Exception as error:
            raise function_error(node, error, node.shown(payload), global_time) from error

    def many(payload: Any, global_time: tuple[int, int]) -> list[Any] | tuple[Any, ...]:
        try:
            result = function(payload)
            if result.__class__ is list or result.__class__ is tuple:
                return result
            if not isinstance(result, Iterable) or isinstance(result, _NOT_PAYLOADS):
                raise _not_payloads(node, result, payload, global_time)
            return list(result)  # a generator runs, and may raise, here
        except OutputError:
            raise
        except Exception as error:
            raise function_error(node, error, node.shown(payload), global_time) from error

    return {"one": one, "keep": keep, "many": many}[node.mode]


def _timed_images(node: Map) -> Images:
    function = node.function

    def timed(payload: Any, global_time: tuple[int, int]) -> list[Any] | tuple[Any, ...]:
        try:
            result = function(global_time[0], payload)
            return (result,) if node.mode == "one" else list(result)
        except Exception as error:
            raise function_error(node, error, node.shown(payload), global_time) from error

    return timed


def scheduled_time(node: Map, at: At[Any], global_time: tuple[int, int]) -> int:
    """The time of a scheduled item. It must be later than that of the item it comes from."""
    if not node.schedules:
        raise OutputError(
            f"{shortened(at)} cannot be scheduled from here: only map and flat_map schedule, "
            f"and not within a transaction. "
            f"Return the plain value, and add .map(lambda value: At(time, value)) behind it.",
            step=str(node),
            function=_named(node.given),
            global_time=global_time,
            payload=at.payload,
        )
    try:
        time = counted_time(at.time, node.unit or DEFAULT_UNIT)
    except TimeError:
        expected = f"a datetime, or an int of at most {TIME_MAX}"
    else:
        if time > global_time[0]:
            return time
        expected = f"later than the item it comes from, which has time {global_time[0]}"
    raise OutputError(
        f"{shortened(at)} cannot be scheduled: its time must be {expected}. "
        f"Return the payload itself to send it on now.",
        step=str(node),
        function=_named(node.given),
        global_time=global_time,
        payload=at.payload,
    )


def balance_of(node: Node, key: Key) -> Balance:
    """The balancing function of an input of a node: from a payload to its key and the key's hash."""
    function = key.function

    def balance(payload: Any, global_time: tuple[int, int]) -> tuple[Any, int]:
        try:
            value = function(payload)
        except PayloadError as error:
            raise RefusedError(
                f"{node.kind} {node.name!r} cannot store a payload: {error}",
                step=str(node),
                function="-",
                global_time=global_time,
                payload=key.shown(payload),
            ) from error
        except Exception as error:
            raise FunctionError(
                f"the key function of {node.name!r} raised {type(error).__qualname__}: {error}",
                step=str(node),
                function=blamed(error, (key.given,)),
                global_time=global_time,
                payload=key.shown(payload),
            ) from error
        return value, _hash(node, key, value, key.shown, payload, global_time)

    return balance


def pair_balance_of(pair: Map, group: Group, key: Callable[[Any], Any]) -> Balance:
    """`balance_of` for a fused reduction: calls the key function in place of the pair map.

    Errors name the same steps as those of the reference runner, which does run the pair map.
    """

    def balance(payload: Any, global_time: tuple[int, int]) -> tuple[Any, int]:
        try:
            value = key(payload)
        except Exception as error:
            raise function_error(pair, error, payload, global_time) from error
        return value, _hash(group, group.key, value, itself, payload, global_time)

    return balance


def _hash(
    node: Node,
    key: Key,
    value: Any,
    shown: Callable[[Any], Any],
    payload: Any,
    global_time: tuple[int, int],
) -> int:
    try:
        return key_hash(value)
    except UnstableKey as error:
        raise UnstableKeyError(
            f"the key of {node.name!r} has no stable hash: {error}",
            step=str(node),
            function=str(key.given),
            global_time=global_time,
            payload=shown(payload),
        ) from error


def function_error(
    node: Calling, error: Exception, payload: Any, global_time: tuple[int, int], *, where: str = ""
) -> FunctionError:
    """The error that reports what a function of a step raised. ``payload`` is the user's own.

    ``where`` describes the function's other arguments.
    """
    return FunctionError(
        f"a function of {node.name!r} raised {type(error).__qualname__}: {error}{where}",
        step=str(node),
        function=blamed(error, node.given),
        global_time=global_time,
        payload=payload,
    )


def _not_payloads(
    node: Map, result: Any, payload: Any, global_time: tuple[int, int]
) -> OutputError:
    if isinstance(result, set | frozenset):
        advice = "A set has no order, and order is part of the output: return sorted(...)."
    elif isinstance(result, str | bytes | bytearray):
        advice = "Return [text] for one payload, or list(text) for one a character."
    elif isinstance(result, dict):
        advice = "Return [mapping] for one payload, or list(mapping.items())."
    elif result is None:
        advice = "Return an empty list for none; is there a return missing?"
    else:
        advice = "Return [value] for one payload, or use map()."
    return OutputError(
        f"flat_map {node.name!r} expects an iterable of payloads, got "
        f"{type(result).__qualname__}. {advice}",
        step=str(node),
        function=_named(node.given),
        global_time=global_time,
        payload=payload,
    )


def _named(functions: tuple[UserFunction, ...]) -> str:
    return ", ".join(str(function) for function in functions)
