"""``emberflow upgrade``: a query that runs goes over to another version of its flow."""

from __future__ import annotations

from emberflow.checkpoint.cuts.backfills import absolute
from emberflow.dsl.loading import folder_of, load_flow
from emberflow.errors import InputError
from emberflow.extras import need
from emberflow.graph.versions import Backfilled, Carry, Drop

#: The driver answers later than it gives up.
_MARGIN_SECONDS = 10.0


def upgrade(
    name: str, target: str, *, at: int | None = None, carry: Carry, seconds: float = 120.0
) -> str:
    """Let the query of a name take over another version. Returns the name of the flow."""
    need("zmq", extra="spark", what="emberflow upgrade")
    from emberflow.runners.live.serving.addresses import address_of
    from emberflow.runners.live.serving.bridge import BridgeClient

    load_flow(target).graph()  # an error of the flow is told here, and not by the driver
    with BridgeClient(address_of(name), seconds=seconds + _MARGIN_SECONDS) as client:
        try:
            return str(
                client.ask(
                    "versions",
                    "upgrade",
                    target=target,
                    folder=str(folder_of(target)),
                    at=at,
                    carry={new: old for new, old in carry.items() if isinstance(old, str)},
                    drop=[given.step for given in carry.values() if isinstance(given, Drop)],
                    begin={
                        new: absolute(given.checkpoint)
                        for new, given in carry.items()
                        if isinstance(given, Backfilled)
                    },
                    seconds=seconds,
                )
            )
        except InputError as error:
            if "offers no versions" not in str(error):
                raise
            raise InputError(
                f"the query {name!r} takes no versions from other processes. Start it with "
                f"'emberflow run', or with .option('upgrades', True); or call query.upgrade(flow)."
            ) from error
