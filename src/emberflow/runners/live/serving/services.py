"""The services that a live query offers to other processes: its bridge, and the announced address."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from emberflow.engine.layout import Layout
from emberflow.engine.queries.worker import readable_states
from emberflow.errors import InputError
from emberflow.fronts.protocol import FrontContract, front_contract
from emberflow.runners.live.life import Settings
from emberflow.runners.live.serving.addresses import Announcement, check_free
from emberflow.runners.live.serving.bridge import Address, Bridge, Service
from emberflow.runners.live.serving.overview_service import OverviewService
from emberflow.runners.live.serving.reads import Reads
from emberflow.runners.live.serving.state_service import StateReads, StateService
from emberflow.runners.live.serving.tokens import new_token
from emberflow.runners.live.serving.version_service import (
    Rebalance,
    Rescale,
    Upgrade,
    VersionService,
)
from emberflow.sinks.protocol import SinkContract, sink_contract

_log = logging.getLogger("emberflow")


class OfferedServices:
    """The bridge of a query, if it has services. Closed when the query is over."""

    def __init__(
        self,
        bridge: Bridge | None = None,
        announcement: Announcement | None = None,
        states: StateReads | None = None,
        versions: VersionService | None = None,
        overview: OverviewService | None = None,
    ) -> None:
        self._bridge = bridge
        self._announcement = announcement
        self._states = states
        self._versions = versions
        self._overview = overview

    @classmethod
    def of(cls, settings: Settings, name: str | None, run: str) -> OfferedServices:
        """``name`` is the query's. If it has none, and fronts or sinks have services, the flow's name
        is announced.

        SQL can read the states of a query with a name. If the name is in use, a query without other
        services starts anyway, and does not offer its states.
        """
        contracts: dict[str, FrontContract | SinkContract] = {
            **{f"front {own}": front_contract(front) for own, front in settings.fronts.items()},
            **{f"sink {own}": sink_contract(sink) for own, sink in settings.sinks.items()},
        }
        offered = {own: one.service for own, one in contracts.items() if one.service is not None}
        names: list[str] = []
        succeeds = settings.follows is not None
        if name is not None and settings.ordering == "time":
            names = list(readable_states(Layout(settings.graph)))
        versions = VersionService(settings.checkpoint) if settings.takes_versions else None
        if not offered and versions is None:
            is_looked_at = name is not None and settings.is_observed
            if not (names or is_looked_at) or settings.bridge_place is None:
                return cls()
            assert name is not None
            try:
                check_free(name, checkpoint=settings.checkpoint, succeeds=succeeds)
            except InputError as error:
                _log.warning("the states of this query cannot be read by SQL: %s", error)
                return cls()
        name = name or settings.graph.flow
        assert settings.bridge_place is not None
        # Check before the services take over anything from another query of that name.
        check_free(name, checkpoint=settings.checkpoint, succeeds=succeeds)
        states = StateReads()
        services: dict[str, Service] = {
            f"state {state}": StateService(states, state) for state in names
        }
        bridge: Bridge | None = None
        if versions is not None:
            services["versions"] = versions
        services["overview"] = overview = OverviewService()
        try:
            for own, service_of in offered.items():
                services[own] = service_of()
            bridge = Bridge(
                services,
                query=name,
                place=settings.bridge_place,
                token=settings.bridge_token or new_token(),
            )
            announcement = Announcement(
                name, bridge.address, run, checkpoint=settings.checkpoint, succeeds=succeeds
            )
            return cls(bridge, announcement, states, versions, overview)
        except BaseException:
            if bridge is not None:
                bridge.close()
            else:
                for service in services.values():
                    service.close()
            raise

    def begun(
        self,
        reads: Reads,
        upgrade: Upgrade,
        rescale: Rescale,
        rebalance: Rebalance,
        look: Callable[[], dict[str, Any]],
    ) -> None:
        """From now on states can be read, and another version, or other owners of keys, can take over."""
        if self._overview is not None:
            self._overview.look = look
        if self._states is not None:
            self._states.reads = reads
        if self._versions is not None:
            self._versions.upgrade, self._versions.rescale = upgrade, rescale
            self._versions.rebalance = rebalance

    @property
    def address(self) -> Address | None:
        return None if self._bridge is None else self._bridge.address

    def close(self) -> None:
        """Remove the announced address, then stop answering."""
        if self._announcement is not None:
            self._announcement.close()
        if self._bridge is not None:
            self._bridge.close()
