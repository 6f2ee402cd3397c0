"""What a sink is: the protocol that a query stores its output by, and its contract.

A sink has one required member, `Sink.open`, which gives a `Writer`. Everything else is optional.
`SinkContract` lists the optional members, with their types, defaults and meanings, and
`sink_contract` finds them on a sink and checks them. The rest of the package asks a contract, never
the sink itself, whether it has a member.

``docs/adapters.md`` shows how to write a sink, and `emberflow.testing.check_sink` tests one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

from emberflow.errors import EmberflowError, InputError, PayloadError
from emberflow.values.item import GlobalTime
from emberflow.values.members import FLAG, SECONDS, members_of, method, nothing


class SinkMovedError(EmberflowError):
    """A writer raises this when a later writer has opened its partition, or stored in it."""


class StoredBundle(NamedTuple):
    """What a writer stores at once: payloads in order, and the global time of the last one.

    ``places`` has the place of each payload, its global time and child ids, if the sink asks for it
    (``places = True``).
    """

    sink: str
    partition: int
    last: GlobalTime
    payloads: list[Any]
    places: list[tuple[int, ...]] | None = None


class Writer(Protocol):
    """Stores the bundles of one partition. One thread uses it."""

    def last(self) -> GlobalTime | None:
        """The last global time that the partition has stored; None if it has nothing."""

    def store(self, bundle: StoredBundle) -> None:
        """Store the payloads and the last global time together, all or nothing.

        What is stored is safe when this returns. A writer that raises is closed; after a pause the
        query opens another one and asks for its `last`, because the bundle may be stored all the
        same. `PayloadError` and `SinkMovedError` are not tried again.
        """

    def close(self) -> None:
        """Release what the writer holds. The query calls it once, also after an error."""


class GroupWriter(Protocol):
    """Stores the bundles of several partitions. One thread uses it."""

    def lasts(self) -> dict[int, GlobalTime | None]:
        """The last global time that each of the partitions has stored; None if it has nothing."""

    def store(self, bundles: Sequence[StoredBundle]) -> None:
        """Store bundles, at most one of each partition, each of them all or nothing.

        As `Writer.store`. If it raises, some bundles may be stored and others not.
        """

    def close(self) -> None:
        """Release what the writer holds. The query calls it once, also after an error."""


class Sink(Protocol):
    """What every sink has. `SinkContract` lists what a sink may have besides."""

    def open(self, partition: int) -> Writer:
        """A writer for a partition. An older writer of the partition may store nothing any more."""


@dataclass(frozen=True, slots=True)
class SinkContract:
    """A sink, and each optional member as it has it, or with its default."""

    sink: Sink

    open: Annotated[Callable[[int], Writer], method("partition")]

    #: Whether writers are opened in the driver process. Then bundles travel to the driver, and the
    #: sink does not travel to the workers.
    on_driver: Annotated[bool, FLAG] = False

    #: Whether bundles have the place of each payload. Not for sinks on the driver.
    places: Annotated[bool, FLAG] = False

    #: How long the query tries again when a writer raises, before it ends with the error.
    retry_seconds: Annotated[float, SECONDS] = 30.0

    #: For how many seconds output may wait for more, to be stored with it as one bundle. It waits
    #: less where there is much of it, and when the query ends. Not for sinks on the driver.
    commit_every: Annotated[float, SECONDS] = 0.0

    #: Opens several partitions as one writer, which stores their bundles together: for a sink whose
    #: every store takes long, however little it is. An older writer of any of the partitions may store
    #: nothing in them any more, whichever others it has. A worker that holds several partitions of the
    #: sink opens them so, and others with ``open``. Not for sinks on the driver.
    open_group: Annotated[Callable[[Sequence[int]], GroupWriter] | None, method("partitions")] = (
        None
    )

    #: Raises `InputError` if the sink cannot be reached. The driver calls it before a query starts.
    check: Annotated[Callable[[], None], method()] = nothing

    #: Says why a payload cannot be stored; None if it can. With ``onError="divert"`` the query asks,
    #: ahead of the barrier, and diverts what is refused. The answer depends on the payload alone: not on
    #: other payloads, on what is stored, or on a connection. Not for sinks on the driver.
    refuses: Annotated[Callable[[Any], str | None] | None, method("payload")] = None

    #: Gives the sink as one of a live query: of this node of the graph (None for the errors sink),
    #: with this ``checkpointLocation`` (None if there is none). For a sink that keeps its output
    #: with the query's cuts.
    placed: Annotated[Callable[[Any, str | None], Any] | None, method("node", "checkpoint")] = None

    #: Gives the service that the query's bridge offers to other processes
    #: (`emberflow.runners.live.serving.bridge`).
    service: Annotated[Callable[[], Any] | None, method()] = None


def refusal(encode: Callable[[Any], object], payload: Any) -> str | None:
    """The `SinkContract.refuses` of a sink that encodes payloads one by one."""
    try:
        encode(payload)
    except PayloadError as error:
        return str(error)
    return None


def sink_contract(sink: Any, where: str = "a sink") -> SinkContract:
    """The contract of a sink. Raises `InputError` that begins with ``where`` if it has none.

    >>> class Printed:
    ...     retry_seconds = "soon"
    ...
    ...     def open(self, partition): ...
    >>> sink_contract(Printed(), "sink 'words'")
    Traceback (most recent call last):
    emberflow.errors.InputError: sink 'words': Printed.retry_seconds is a number of seconds, 0 or more,
    got 'soon'. See help(emberflow.sinks).
    """
    contract = SinkContract(sink, **members_of(SinkContract, sink, where, required=("open",)))
    if contract.on_driver and contract.places:
        raise InputError(
            f"{where}: {type(sink).__qualname__} has on_driver = True and places = True. Bundles that "
            f"travel to the driver have no places: leave one of the two out."
        )
    if contract.on_driver and contract.commit_every:
        raise InputError(
            f"{where}: {type(sink).__qualname__} has on_driver = True and commit_every. Workers hold the "
            f"output, and the sink stays in the driver: leave one of the two out."
        )
    if contract.on_driver and contract.open_group is not None:
        raise InputError(
            f"{where}: {type(sink).__qualname__} has on_driver = True and open_group. Workers open groups "
            f"of partitions, and the sink stays in the driver: leave one of the two out."
        )
    if contract.on_driver and contract.refuses is not None:
        raise InputError(
            f"{where}: {type(sink).__qualname__} has on_driver = True and refuses. Workers ask it, and "
            f"the sink stays in the driver: leave one of the two out."
        )
    return contract
