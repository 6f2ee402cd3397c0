"""Checks of ``on_error`` that all runners share: the mode, and the names it reserves."""

from __future__ import annotations

from collections.abc import Container
from typing import cast, get_args

from emberflow.errors import ERRORS_SINK, InputError, OnError, shortened
from emberflow.graph.nodes import Graph


def checked_on_error(graph: Graph, on_error: object, named: str) -> OnError:
    """The mode, if it is a valid one and the flow does not use the name of the errors sink.

    ``named`` is how the user spells it in this runner: a parameter or an option.
    """
    if on_error not in get_args(OnError):
        modes = " or ".join(map(repr, get_args(OnError)))
        raise InputError(f"{named} takes {modes}, got {shortened(on_error)}.")
    if on_error == "divert" and any(node.kind == "state" for node in graph.nodes):
        raise InputError(
            f"flow {graph.flow!r} has transactions, whose errors cannot be diverted: leave out "
            f"{named}, or give updates a check that rejects what they would raise an error for."
        )
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
