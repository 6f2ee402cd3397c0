"""A version that runs beside the one that works, on the same elements, and ends with its life."""

from __future__ import annotations

from typing import Any

import cloudpickle

from emberflow.checkpoint.cuts.backfills import planned
from emberflow.checkpoint.cuts.store import Life
from emberflow.engine.messages import Moment
from emberflow.errors import EmberflowError, InputError
from emberflow.graph.description import steps_of
from emberflow.graph.versions import has_backfills
from emberflow.runners.live.driver.coordinator import Coordinator, OtherVersion
from emberflow.runners.live.life import Settings, coordinator_of, have_same_fronts, plan_of
from emberflow.runners.live.lives.current import Current
from emberflow.runners.live.wire.sockets import WireKeys

#: The numbers of lives that run beside others.
_SHADOWS_FROM = 1 << 32
#: How long to wait for a coordinator that is to end.
_END_SECONDS = 3.0


class Shadows:
    """Runs one shadow at a time."""

    def __init__(self, current: Current, keys: WireKeys) -> None:
        self._current = current
        self._keys = keys
        self._shadow: Coordinator | None = None

    def begin(self, settings: Settings, compared: Any) -> Coordinator:
        """Run another version beside the one that works, and return its coordinator.

        ``compared`` hears what the version that works releases. When the life of its workers ends, this
        one ends with it, and its coordinator fails.
        """
        current = self._current
        before = current.settings
        if before.ordering != "time":
            raise InputError("versions run side by side by time: leave ordering at 'time'.")
        if not have_same_fronts(before, settings):
            raise InputError(
                "a shadow reads what the query reads: it has the same fronts, in order."
            )
        if has_backfills(settings.carry):
            raise InputError(
                "a shadow begins at a moment just ahead, and a step that begins from a backfill does at the "
                "moment at which that ends. Leave the step out of the shadow, or let it begin empty; or "
                "compare on history: ef.compare(old, ef.Versions(old, (moment, new, carry)), spark, ...)."
            )
        carried = planned(steps_of(before.graph), settings.graph, settings.carry)
        settings = settings._replace(owners=before.owners, workers=before.workers, checkpoint=None)
        with current.changing:
            if current.successor is not None or self._shadow is not None:
                raise EmberflowError("another version is taking over, or runs beside already.")
            life = Life(_SHADOWS_FROM + current.number, None)
            coordinator = coordinator_of(
                settings,
                life,
                None,  # nobody goes on from it
                self._keys,
                running=compared.running,
                released=compared.released,
                log=current.log,
            )
            plan = plan_of(settings, life, carried, self._keys, coordinator)
            self._shadow = coordinator
        current.note("shadow", f"{settings.graph.flow} runs beside")
        coordinator.start()
        try:
            shipped = cloudpickle.dumps(plan._replace(is_mirror=True))
        except Exception as error:
            coordinator.fail(error)
            raise
        current.coordinator.prepare(OtherVersion(shipped, coordinator.fail, compared.begun))
        return coordinator

    def end(self, reason: BaseException) -> None:
        with self._current.changing:
            shadow, self._shadow = self._shadow, None
        if shadow is not None:
            shadow.fail(reason)
            shadow.wait(_END_SECONDS)

    def wait_for_the_end(self) -> None:
        """The version that works has ended: wait for the one beside it as long as that goes on, because it has
        got all elements."""
        shadow = self._shadow
        before: Moment | None = None
        while (
            shadow is not None
            and not shadow.wait(_END_SECONDS)
            and shadow.progress.of_all() != before
        ):
            before = shadow.progress.of_all()
