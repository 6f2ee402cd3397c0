"""Rescales: a query goes on with another number of workers, without stopping.

What is guaranteed: **at every global time each key has one owner, and all that the next owner begins with is
in one cut.** The owner table (`values.owners`) is the same on all workers of a life. A rescale is a takeover
by the same version of the flow in the next life, with the next table. It holds from the last moment T of the
life before on.

Who goes on and who leaves is `engine.staffing`'s: mostly the greatest numbers leave, but any worker can, and a
process may go on under another number.

1. *Before T nothing changes.* The workers that are added are a Spark job of their own, and meet the others in
   a life that is prepared (`lives.succession`). All of them read the state of slices that will come to them
   from a cut that counts (`cold.ahead`), and then what is new in each of the cuts after it, up to the one before
   the last (`driver.handover`). If they do not come, that life is given up, and the old one goes on as it was.
2. *At T* all fronts halt; what is below is final, is stored by the sinks, and is in the last cut of the old
   owners. That cut is stored, and does not count yet.
3. *Behind T* the next life is claimed. A worker that goes on keeps the buckets of its slices in memory. It
   drops all others, and has the state of slices that come to it from the cut at T: where it has read some
   before, it opens only the parts that are new (`engine.worker.succession`). So do workers that are added. A
   worker that leaves ends: all that it had is in the cut.
4. *The cut counts* when all workers have taken over, with the number of the next life, and before its fronts
   begin. If the driver or a worker is lost before, the cut never counts: the next life has the old number,
   begins from the cut before, and is asked for the rescale again. If one is lost afterwards, the next life has
   the new number, and begins from the cut at T.

Nothing that is stored says how many workers there are, and any number can restore any cut. So which number a
life has is no question of what is right: of two lives only one counts, as always (`checkpoint.cuts.store`).
"""

from __future__ import annotations

from collections import Counter

from emberflow.engine.staffing import Staffing
from emberflow.engine.worker.routing import front_host
from emberflow.errors import InputError
from emberflow.fronts.protocol import front_contract
from emberflow.runners.live.balance.ledger import Load
from emberflow.runners.live.balance.shares import shared
from emberflow.runners.live.driver.coordinator import WorkersMissingError
from emberflow.runners.live.life import Settings
from emberflow.runners.live.wire.plan import front_indices, weights_of
from emberflow.values.item import front_index
from emberflow.values.owners import SLICES

#: So many processor seconds a second have to be known of, for the owners to follow them.
_LOAD_MIN = 0.02


def rescaled(settings: Settings, staffing: Staffing, load: Load) -> Settings:
    """The settings with these workers. The owners of slices follow the load, if that is known; otherwise each
    worker has its part of them, and no more change their owners than must.

    Raises `InputError` if the query cannot go on with them.
    """
    check_rescale(settings, staffing)
    workers, owners = staffing.workers, staffing.renamed(settings.owners)
    if load.is_ripe and sum(load.slices.values()) >= _LOAD_MIN:
        besides = _besides(settings, load, workers)
        owners = owners.next(shared(owners.of_slice, load.slices, besides), workers)
    else:
        owners = owners.rescaled(weights_of(settings.graph, settings.fronts, workers))
    return settings._replace(workers=workers, owners=owners)


def _besides(settings: Settings, load: Load, workers: int) -> list[float]:
    """What each of so many workers will do for its fronts, if all partitions take as much."""
    indices = front_indices(settings.graph, settings.fronts)
    hosts = Counter(front_host(index, workers) for index in indices)
    fronts = sum(load.workers) - sum(load.keyed)
    return [fronts * hosts[worker] / len(indices) for worker in range(workers)]


def not_there(staffing: Staffing, seconds: float) -> WorkersMissingError:
    """The error of a rescale whose workers have not come in time."""
    added = ", ".join(map(str, staffing.added))
    missing = f"workers {added} have not come" if added else "the workers were not ready"
    return WorkersMissingError(
        f"{missing} within {seconds:.0f} s, so the query goes on with {staffing.before} workers. Are there "
        f"{staffing.workers} slots that no other job takes?"
    )


def check_number(workers: int) -> None:
    """Raises `InputError` if there cannot be so many workers."""
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= SLICES:
        raise InputError(
            f"rescale(workers=) takes a number of workers from 1 to {SLICES:,}, got {workers!r}."
        )


def check_rescale(settings: Settings, staffing: Staffing) -> None:
    """Raises `InputError` if the query cannot go on with these workers, or with other owners of its slices."""
    workers = staffing.workers
    if settings.checkpoint is None or settings.ordering != "time":
        raise InputError(
            "slices of keys move between workers at a cut by time: start the query with "
            ".option('checkpointLocation', ...), and leave ordering at 'time'."
        )
    if settings.place.port:
        raise InputError(
            f"the workers of the next number meet while the others work, and the driver has one port for "
            f"both, {settings.place.port}. Name no port in .option('coordinatorHost', ...); or stop the query, and "
            f"start it with .option('workers', {workers})."
        )
    for name, node in settings.graph.fronts.items():
        front = settings.fronts[name]
        if front_contract(front).replayable:
            continue
        for partition in range(front.partitions):
            index = front_index(node.index, len(settings.graph.fronts), partition)
            host = front_host(index, settings.workers)
            if staffing.stays.get(host) != front_host(index, workers):
                raise InputError(
                    f"front {name!r} cannot be read again, and with {workers} workers another process would "
                    f"have to read its partition {partition}. What is on its way would be lost. Stop the "
                    f"query, and start it with .option('workers', {workers})."
                )
