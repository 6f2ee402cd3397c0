"""What a live query offers to processes beside it: a bridge with its services, and its address told."""

from __future__ import annotations

from emberflow.runners.live.addresses import Announcement, check_free
from emberflow.runners.live.bridge import Address, Bridge, Service, new_token
from emberflow.runners.live.supervision import Settings


class Offered:
    """The bridge of a query, if there is anything to offer. Closed when the query is over."""

    def __init__(self, bridge: Bridge | None, announcement: Announcement | None) -> None:
        self._bridge = bridge
        self._announcement = announcement

    @classmethod
    def of(cls, settings: Settings, name: str, run: str) -> Offered:
        adapters = {
            **{f"front {own}": front for own, front in settings.fronts.items()},
            **{f"sink {own}": sink for own, sink in settings.sinks.items()},
        }
        adapters = {own: one for own, one in adapters.items() if hasattr(one, "service")}
        if not adapters:
            return cls(None, None)
        assert settings.bridge_place is not None
        # Before its services take anything over from whoever has that name.
        check_free(name)
        services: dict[str, Service] = {}
        bridge: Bridge | None = None
        try:
            for own, adapter in adapters.items():
                services[own] = adapter.service()
            bridge = Bridge(
                services,
                query=name,
                place=settings.bridge_place,
                token=settings.bridge_token or new_token(),
            )
            return cls(bridge, Announcement(name, bridge.address, run))
        except BaseException:
            if bridge is not None:
                bridge.close()
            else:
                for service in services.values():
                    service.close()
            raise

    @property
    def address(self) -> Address | None:
        return None if self._bridge is None else self._bridge.address

    def close(self) -> None:
        """Nobody is told of it any more, then nobody is answered."""
        if self._announcement is not None:
            self._announcement.close()
        if self._bridge is not None:
            self._bridge.close()
