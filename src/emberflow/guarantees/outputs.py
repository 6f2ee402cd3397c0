"""The output of a run: one channel for each sequence of outputs whose order is known.

A sink of one partition is one channel; a sink of several is one for each partition, or a single one
if a runner in memory gave its output in total order. Before a payload of the reference is compared,
it is converted to the form in which the sink stores it (JSON has no tuples). Then it must be equal,
type by type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberflow.errors import InputError, shortened
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Graph, Sink
from emberflow.runners.verify.functions.comparison import NotComparableError, same
from emberflow.values.hashing import owner
from emberflow.values.item import GlobalTime

#: By sink, either all of its output in order, or the output of each partition.
Outputs: TypeAlias = Mapping[str, "Sequence[Any] | Mapping[int, Sequence[Any]]"]

#: By sink, the conversion of a payload to the form in which the sink stores it. Default: unchanged.
Forms: TypeAlias = Mapping[str, Callable[[Any], Any]]

#: ``(payload, global time) -> (number of the channel, the payload as the sink stores it)``
Channelled: TypeAlias = Callable[[Any, GlobalTime], tuple[int, Any]]


@dataclass(frozen=True)
class Channel:
    """Outputs whose order is known."""

    sink: str
    partition: int | None
    held: Sequence[Any]

    def __str__(self) -> str:
        if self.partition is None:
            return f"sink {self.sink!r}"
        return f"sink {self.sink!r}, partition {self.partition}"


class Observed:
    """All channels, and the channel of each output."""

    def __init__(self, graph: Graph, outputs: Outputs, forms: Forms) -> None:
        if not outputs:
            raise InputError(
                f"flow {graph.flow!r}: there are no outputs to judge. Give those of at least one "
                f"sink: {', '.join(map(repr, graph.sinks))}."
            )
        self.channels: list[Channel] = []
        self._numbers: dict[tuple[str, int | None], int] = {}
        self._forms = forms
        for name, held in outputs.items():
            if name not in graph.sinks:
                sinks = ", ".join(map(repr, graph.sinks))
                raise InputError(
                    f"flow {graph.flow!r} has no sink {name!r}; its sinks are {sinks}."
                )
            self._add(graph.sinks[name], held)

    def _add(self, sink: Sink, held: Sequence[Any] | Mapping[int, Sequence[Any]]) -> None:
        if not isinstance(held, Mapping):
            self._add_channel(sink, None, held)
            return
        strange = [key for key in held if key not in range(sink.partitions)]
        if strange:
            raise InputError(
                f"sink {sink.name!r} has the partitions 0 to {sink.partitions - 1}, and there are "
                f"outputs of partition {strange[0]!r}."
            )
        for partition in range(sink.partitions):
            self._add_channel(sink, partition, held.get(partition, ()))

    def _add_channel(self, sink: Sink, partition: int | None, held: Sequence[Any]) -> None:
        if not isinstance(held, Sequence) or isinstance(held, str | bytes):
            raise InputError(
                f"the outputs of sink {sink.name!r} are a list of payloads, or a dict from "
                f"partitions to lists; got {shortened(held)}."
            )
        self._numbers[sink.name, partition] = len(self.channels)
        self.channels.append(Channel(sink.name, partition, held))

    def channelled(self, sink: Sink) -> Channelled | None:
        """The function that finds the channel of an output; None for a sink that is not judged."""
        form = self._forms.get(sink.name, _as_it_is)
        whole = self._numbers.get((sink.name, None))
        if whole is not None:
            return lambda payload, global_time: (whole, form(payload))
        numbers = [self._numbers.get((sink.name, each)) for each in range(sink.partitions)]
        if None in numbers:
            return None
        first = self._numbers[sink.name, 0]
        key = sink.inputs[0].key
        if key is None:
            return lambda payload, global_time: (first, form(payload))
        balance, partitions = balance_of(sink, key), sink.partitions

        def channelled(payload: Any, global_time: GlobalTime) -> tuple[int, Any]:
            _, hashed = balance(payload, global_time)
            return first + owner(hashed, partitions), form(payload)

        return channelled


def alike(one: Any, other: Any) -> bool:
    """Whether two payloads are equal, type by type where they can be compared so."""
    try:
        return same(one, other)
    except NotComparableError:
        return bool(one == other)


def _as_it_is(payload: Any) -> Any:
    return payload
