"""The barriers of a worker: output waits there until it is final, and leaves in order.

What is guaranteed: **a bundle holds only items below the minimal time**, so no tombstone can come for
any of them, and bundles of a partition leave in the order of global times. A worker holds the barriers
of the partitions that `routing.barrier_host` gives it; worker 0 holds the barrier of failures too.

**No output passes a failure that ends the run.** After the end a user mends the function, and the run goes
on from a cut below the failure. Output at or above it would be in the sinks by then, and would stay there,
though it lacks what the failed element causes. So a failure that is not taken back is in flight: worker 0
acks it as a frame that it sends to itself, which holds back all output. The acker has tables of their own for
failures, so it can tell when nothing else is under way that can take it back (`progress.acker`).

**Ranges of keys** (`worker.ranges`): where keys have ranges of their own, a partition waits for those that
can reach it. Output of other ranges may have passed a failure before it was known; a mended function changes
nothing of that output. The errors sink, if errors are diverted, gets records from the keys of all workers, so
it waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from emberflow.engine.layout import Layout
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.messages import BEFORE_ALL, Bundle, Moment
from emberflow.engine.worker.routing import Routes, barrier_host
from emberflow.errors import ERRORS_SINK
from emberflow.values.item import FlatItem, GlobalTime


class Barriers:
    """The barriers of one worker. ``delivered`` is what each sink partition has from earlier."""

    def __init__(
        self, layout: Layout, routes: Routes, delivered: dict[tuple[str, int], Moment]
    ) -> None:
        self._layout = layout
        self._routes = routes
        #: By node of a sink, and by partition. A sink that has none here has an entry all the same.
        self.by_node: dict[int, dict[int, Barrier]] = {}
        for sink in layout.graph.sinks.values():
            self.by_node[sink.id] = {
                partition: Barrier(delivered.get((sink.name, partition), BEFORE_ALL))
                for partition in range(sink.partitions)
                if barrier_host(sink, partition, routes.workers) == routes.index
            }
        # A flow that diverts nothing may have a sink of that name itself.
        errors = delivered.get((ERRORS_SINK, 0), BEFORE_ALL) if layout.diverts else BEFORE_ALL
        self.by_node[layout.failures] = {0: Barrier(errors)} if routes.index == 0 else {}
        #: Where keys have ranges of their own, by node and partition: all below this is released.
        self.until: dict[tuple[int, int], Moment] = {
            (node, partition): BEFORE_ALL
            for node, barriers in self.by_node.items()
            for partition in barriers
        }

    def all(self) -> list[Barrier]:
        return [barrier for held in self.by_node.values() for barrier in held.values()]

    @property
    def held_items(self) -> int:
        return sum(barrier.held_items for barrier in self.all())

    def arrive(self, node: int, items: list[FlatItem], failed: list[FlatItem]) -> None:
        """Items that have come to a sink here; those whose partition cannot be told have failed."""
        barriers = self.by_node[node]
        for partition, own in self._routes.by_partition(node, items, failed).items():
            barriers[partition].arrive(own)

    @property
    def endings(self) -> Barrier | None:
        """The barrier of failures, if it is here and they end the run."""
        return None if self._layout.diverts else self.by_node[self._layout.failures].get(0)

    def release(self, minimal: Moment) -> list[Bundle]:
        """All that is below the minimal time."""
        bundles: list[Bundle] = []
        for node, barriers in self.by_node.items():
            if node != self._layout.failures or self._layout.diverts:
                for partition, barrier in barriers.items():
                    if barrier.held_items:
                        self._release(node, partition, barrier, minimal, bundles)
        return bundles

    def release_by_range(
        self,
        minimal: Moment,
        own: Sequence[Moment],
        reaching: Mapping[tuple[int, int], Iterable[int]],
        of_all: Moment,
    ) -> list[Bundle]:
        """All that is below the minimal time, and below those of the keys of each worker that can reach it.

        These are ``own``, by worker. The errors sink is reached by all keys, and waits for ``of_all``.
        """
        bundles: list[Bundle] = []
        failures = self._layout.failures
        for node, barriers in self.by_node.items():
            if node == failures and not self._layout.diverts:
                continue
            for partition, barrier in barriers.items():
                if node == failures:
                    until = of_all
                else:
                    workers = reaching.get((node, partition), ())
                    until = min([minimal, *[own[worker] for worker in workers]])
                if until > self.until[node, partition]:
                    self.until[node, partition] = until
                if barrier.held_items:
                    self._release(node, partition, barrier, until, bundles)
        return bundles

    def _release(
        self, node: int, partition: int, barrier: Barrier, until: Moment, bundles: list[Bundle]
    ) -> None:
        released = barrier.release(until)
        if released:
            name = ERRORS_SINK
            if node != self._layout.failures:
                name = self._layout.graph.nodes[node].name
            last = released[-1][0]
            bundles.append(Bundle(name, partition, GlobalTime(last[0], last[1]), released))

    def pass_time(self, elapsed: float) -> None:
        for barrier in self.all():
            barrier.pass_time(elapsed)
