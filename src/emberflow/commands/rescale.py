"""``emberflow rescale``: a query that runs goes on with another number of workers."""

from __future__ import annotations

from emberflow.errors import InputError
from emberflow.extras import need

#: The driver answers later than it gives up.
_MARGIN_SECONDS = 10.0


def rescale(name: str, workers: int, *, seconds: float = 120.0) -> None:
    """Let the query of a name go on with so many workers."""
    need("zmq", extra="spark", what="emberflow rescale")
    from emberflow.runners.live.serving.addresses import address_of
    from emberflow.runners.live.serving.bridge import BridgeClient

    with BridgeClient(address_of(name), seconds=seconds + _MARGIN_SECONDS) as client:
        try:
            client.ask("versions", "rescale", workers=workers, seconds=seconds)
        except InputError as error:
            if "offers no versions" not in str(error):
                raise
            raise InputError(
                f"the query {name!r} takes no orders from other processes. Start it with "
                f"'emberflow run', or with .option('upgrades', True); or call query.rescale({workers})."
            ) from error
