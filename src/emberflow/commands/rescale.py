"""``emberflow rescale`` and ``emberflow rebalance``: a query that runs goes on with other owners of its keys."""

from __future__ import annotations

from typing import Any

from emberflow.errors import InputError
from emberflow.extras import need

#: The driver answers later than it gives up.
_MARGIN_SECONDS = 10.0


def rescale(name: str, workers: int, *, seconds: float = 120.0) -> None:
    """Let the query of a name go on with so many workers."""
    what = f"query.rescale({workers})"
    _asked(name, "rescale", what, seconds, workers=workers)


def rebalance(name: str, *, seconds: float = 120.0) -> int:
    """Let slices of the query of a name move, if it pays. Returns how many have."""
    return int(_asked(name, "rebalance", "query.rebalance()", seconds))


def _asked(name: str, method: str, what: str, seconds: float, **arguments: Any) -> Any:
    """The answer of the query of a name. ``what`` its own program would call."""
    need("zmq", extra="spark", what=f"emberflow {method}")
    from emberflow.runners.live.serving.addresses import address_of
    from emberflow.runners.live.serving.bridge import BridgeClient

    with BridgeClient(address_of(name), seconds=seconds + _MARGIN_SECONDS) as client:
        try:
            return client.ask("versions", method, seconds=seconds, **arguments)
        except InputError as error:
            if "offers no versions" not in str(error):
                raise
            raise InputError(
                f"the query {name!r} takes no orders from other processes. Start it with "
                f"'emberflow run', or with .option('upgrades', True); or call {what}."
            ) from error
