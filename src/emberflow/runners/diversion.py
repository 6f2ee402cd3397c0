"""Checks of ``on_error`` that all runners share: the mode, the names it reserves, what sinks refuse.

What is guaranteed: **an item that a sink refuses is diverted like one that a function refuses**, at its
place, in order, and once, whatever crashes. `refusing` makes that so by the graph alone. The check is a
pure function of the payload and is called where the key of a sink is, ahead of the barrier. So a refusal
is an ordinary failure of a step: it can be taken back, and it passes the barrier of failures. A check in
the sink itself would come too late: the other items of the bundle, and their times, would depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, cast, get_args

from emberflow.errors import ERRORS_SINK, InputError, OnError, PayloadError, shortened
from emberflow.graph.nodes import Graph, Key
from emberflow.values.functions import UserFunction

#: Says why a sink cannot store a payload; None if it can.
Refuses: TypeAlias = Callable[[Any], str | None]


def checked_on_error(graph: Graph, on_error: object, named: str) -> OnError:
    """The mode, if it is a valid one and the flow does not use the name of the errors sink.

    ``named`` is how the user spells it in this runner: a parameter or an option.
    """
    if on_error not in get_args(OnError):
        modes = " or ".join(map(repr, get_args(OnError)))
        raise InputError(f"{named} takes {modes}, got {shortened(on_error)}.")
    if on_error == "divert" and ERRORS_SINK in graph.sinks:
        raise InputError(
            f"flow {graph.flow!r} has a sink {ERRORS_SINK!r}, and that is the name of the sink for "
            f"what {named} diverts. Give {graph.sinks[ERRORS_SINK]} another name."
        )
    return cast("OnError", on_error)


def known_sinks(
    graph: Graph, on_error: OnError, given: Container[str], *, give: str, divert: str
) -> list[str]:
    """The sinks that a live query writes to: those of the flow, and the errors sink.

    ``give`` and ``divert`` are the code with which a user adds an errors sink, and asks for
    diversion.
    """
    if on_error == "divert" and ERRORS_SINK not in given:
        raise InputError(
            f"flow {graph.flow!r}: failed items are to be diverted, but there is no sink for them. "
            f"Add {give}."
        )
    if on_error == "fail" and ERRORS_SINK in given and ERRORS_SINK not in graph.sinks:
        raise InputError(
            f"flow {graph.flow!r} has no sink {ERRORS_SINK!r}, and nothing is diverted to one: an "
            f"error ends the query. Add {divert}, or leave out {give}."
        )
    return [*graph.sinks, *([ERRORS_SINK] if on_error == "divert" else [])]


def check_parameters(graph: Graph, method: str, *parameters: str) -> None:
    """Check that no front has the name of a parameter: its elements could not be passed."""
    for name in parameters:
        if name in graph.fronts:
            raise InputError(
                f"flow {graph.flow!r} has a front {name!r}, which is a parameter of {method}(). "
                f"Give the front another name."
            )


def sink_partitions(graph: Graph, on_error: OnError) -> list[tuple[str, int]]:
    """All partitions of all sinks, as (name of the sink, partition); with the errors sink."""
    own = [
        (sink.name, partition)
        for sink in graph.sinks.values()
        for partition in range(sink.partitions)
    ]
    return [*own, (ERRORS_SINK, 0)] if on_error == "divert" else own


def refusing(graph: Graph, refuses: Mapping[str, Refuses | None]) -> Graph:
    """The same graph, in which items that their sink refuses fail, by name of the sink.

    Its items have the same places, and its fingerprint is the same: a cut fits both.

    >>> import emberflow as ef
    >>> flow = ef.Flow("words")
    >>> flow.front("words").sink("out")
    >>> graph = refusing(
    ...     flow.graph(), {"out": lambda word: "it is long" if len(word) > 3 else None}
    ... )
    >>> graph.fingerprint == flow.graph().fingerprint
    True
    """
    nodes = list(graph.nodes)
    for name, refusal in refuses.items():
        if refusal is None or name not in graph.sinks:
            continue
        sink = graph.sinks[name]
        (source,) = sink.inputs
        if source.key is None:
            check = _Checked(refusal, None)
            key = Key(check, UserFunction("refuses", check), only_checks=True)
        else:
            key = replace(source.key, function=_Checked(refusal, source.key.function))
        nodes[sink.id] = replace(sink, inputs=(replace(source, key=key),))
    return replace(graph, nodes=tuple(nodes))


class _Checked:
    """The key function of a sink, which raises `PayloadError` for what the sink refuses."""

    def __init__(self, refuses: Refuses, function: Callable[[Any], Any] | None) -> None:
        self._refuses = refuses
        self._function = function

    def __call__(self, payload: Any) -> Any:
        try:
            problem = self._refuses(payload)
        except Exception as error:  # what cannot even be checked cannot be stored
            problem = f"{type(error).__qualname__}: {error}"
        if problem is not None:
            raise PayloadError(problem)
        return None if self._function is None else self._function(payload)
