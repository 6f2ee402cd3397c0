"""The barriers of a worker: output waits there until it is final, and leaves in order.

What is guaranteed: **a bundle holds only items below the minimal time**, so no tombstone can come for
any of them, and bundles of a partition leave in the order of global times. A worker holds the barriers
of the partitions that `routing.barrier_host` gives it; worker 0 holds the barrier of failures too.

**No output passes a failure that ends the run.** After the end a user mends the function, and the run goes
on from a cut below the failure. Output at or above it would be in the sinks by then, and would stay there,
though it lacks what the failed element causes. So a failure that is not taken back is in flight: worker 0
acks it as a frame that it sends to itself, which holds back all output. The acker has tables of their own for
failures, so it can tell when nothing else is under way that can take it back (`progress.acker`). Where keys have ranges of their own, output of other ranges
may have passed the failure before it was known (`worker.ranges`): a mended function changes nothing of that.

**The errors sink**, if errors are diverted, gets records from the keys of all workers. So it waits for all of
them.
"""

from __future__ import annotations

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

    def release(self, minimal: Moment, errors_until: Moment) -> list[Bundle]:
        """All that is below the minimal time; of the errors sink, what is below a time of its own."""
        bundles: list[Bundle] = []
        failures = self._layout.failures
        for node, barriers in self.by_node.items():
            if node != failures:
                name = self._layout.graph.nodes[node].name
                self._release(name, barriers, minimal, bundles)
        return bundles + self.release_errors(errors_until)

    def release_errors(self, until: Moment) -> list[Bundle]:
        """Of the errors sink, what is below a time. Errors come from the keys of all workers."""
        bundles: list[Bundle] = []
        if self._layout.diverts:
            self._release(ERRORS_SINK, self.by_node[self._layout.failures], until, bundles)
        return bundles

    def _release(
        self, name: str, barriers: dict[int, Barrier], until: Moment, bundles: list[Bundle]
    ) -> None:
        for partition, barrier in barriers.items():
            if barrier.held_items:
                released = barrier.release(until)
                if released:
                    last = released[-1][0]
                    bundles.append(Bundle(name, partition, GlobalTime(last[0], last[1]), released))

    def pass_time(self, elapsed: float) -> None:
        for barrier in self.all():
            barrier.pass_time(elapsed)
