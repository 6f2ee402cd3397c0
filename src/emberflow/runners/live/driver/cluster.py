"""The cluster: whether it can run the workers, and where workers reach the driver.

The driver counts the slots before it submits the job, in the way in which Spark will count them. A
barrier job whose stage needs more slots than there are does not fail at once: Spark retries 40 times,
every 15 seconds, and reports that only in its log. And if executors are other processes, the session
exists before they do. So if there are too few slots, the driver waits a while for executors; if that
does not help, the error says how many there are.

On Spark Connect there is no context to ask. By default the number of partitions of a range is the
number of slots, and the plan of a range shows it without running a job.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.wire.sockets import own_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long the driver waits for executors to register.
EXECUTORS_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.2
_LOOPBACK = "127.0.0.1"
_CONNECT_PORT = 15_002
#: With either of these set, the number of partitions of a range is not that of the slots.
_PARALLELISM = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")


class ClusterError(EmberflowError):
    """Spark, as it is configured, cannot run the workers of a live query."""


class CoordinatorAddress(NamedTuple):
    """Where the coordinator listens, and where workers reach it. Port 0 is any free port."""

    listens_on: str
    port: int
    reached_at: str


def context_of(spark: SparkSession) -> Any:
    """The session's context; None on Spark Connect, where it is in another process."""
    try:
        return spark.sparkContext
    except AttributeError:
        return None


def check_cluster(spark: SparkSession, workers: int) -> None:
    """Raises `ClusterError` if the cluster cannot run so many workers."""
    if str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        raise ClusterError(
            "dynamic allocation is on, and a barrier job cannot run with it. Start the session "
            "with spark.dynamicAllocation.enabled=false and as many executors as the query needs."
        )
    seconds = 0.0 if is_in_one_process(spark) else EXECUTORS_SECONDS_MAX
    slots = _slots_within(seconds, lambda: slots_of(spark), workers)
    if slots is not None and slots < workers:
        raise ClusterError(too_few(workers, slots, seconds))


def is_in_one_process(spark: SparkSession) -> bool:
    """Whether Spark runs tasks in the JVM of its driver, and has no executors besides."""
    return re.match(r"local(\[|$)", str(spark.conf.get("spark.master", ""))) is not None


def too_few(workers: int, slots: int, seconds: float = 0.0) -> str:
    waited = (
        f" after {seconds:g} s, in which executors could register: they have fewer cores than "
        f"that, or are not there"
        if seconds
        else ""
    )
    fewer = f"Set .option('workers', {slots}), or start" if slots else "Start"
    return (
        f"the query asks for {workers} workers, each of which takes a slot for as long as it "
        f"runs, and Spark has {slots}{waited}. {fewer} the session with more cores, such as "
        f"master('local[{workers}]'), or executors with {workers} cores in all."
    )


def _slots_within(seconds: float, slots: Callable[[], int | None], workers: int) -> int | None:
    deadline = time.monotonic() + seconds
    while True:
        found = slots()
        if found is None or found >= workers or time.monotonic() >= deadline:
            return found
        time.sleep(_LOOK_SECONDS)


def slots_of(spark: SparkSession) -> int | None:
    """How many tasks can run at once on the registered executors; None if unknown."""
    context = context_of(spark)
    if context is None:
        return _partitions_of_a_range(spark)
    try:
        # Spark's own check of a barrier stage uses this: it knows the resources of a task.
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    except Exception:  # it is not a public method, and may change
        return int(context.defaultParallelism)


def _partitions_of_a_range(spark: SparkSession) -> int | None:
    try:
        if any(spark.conf.get(name, None) for name in _PARALLELISM):
            return None
        ranged: Any = spark.range(1)  # its `_explain_string` is not public either
        plan = str(ranged._explain_string())
    except Exception:
        return None  # if there are too few, the job itself will fail
    found = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(found[1]) if found else None


def coordinator_address(spark: SparkSession, wanted: str | None = None) -> CoordinatorAddress:
    """Where workers can reach this process: the user's option, or the session's host."""
    if wanted is None:
        host, port = driver_host(spark), 0
    else:
        host, port = _parsed(wanted)
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise ClusterError(
            f"workers are to reach the driver at {host!r}, which this machine cannot resolve: "
            f"{error}. Set spark.driver.host, or .option('coordinatorHost', ...), to an "
            f"address of this machine that executors can reach."
        ) from error
    return CoordinatorAddress(address if _is_own(address) else "0.0.0.0", port, host)


def driver_host(spark: SparkSession) -> str:
    """Loopback if workers are on this machine, else the address that Spark has for it."""
    context = context_of(spark)
    if context is None:
        # The route to the server tells which of our addresses its side can reach.
        host = str(getattr(spark.client, "host", _LOOPBACK))
        return own_address(f"tcp://{host}:{_CONNECT_PORT}")
    if str(context.master).startswith("local"):
        return _LOOPBACK
    return str(context.getConf().get("spark.driver.host", _LOOPBACK))


def _parsed(wanted: str) -> tuple[str, int]:
    host, colon, port = wanted.partition(":")
    if not host or (colon and not (port.isdigit() and 0 < int(port) < 65_536)):
        raise InputError(
            f"option 'coordinatorHost' takes a host, or host:port, at which workers reach this "
            f"process, got {wanted!r}."
        )
    return host, int(port or 0)


def _is_own(address: str) -> bool:
    """Whether this machine has the address. Behind address translation it has not."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
