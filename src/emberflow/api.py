"""The flow that users see, and versions of it: the builder, and the ways to run what it builds.

The builder knows nothing of runners; they know the builder. This is the one place above both.

A flow is built, tested and drawn without Spark. So each method imports its runner when it is called,
and says which extra to install where the runner's packages are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emberflow.dsl import flow as builder
from emberflow.dsl import versions as described
from emberflow.errors import InputError
from emberflow.extras import need

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from emberflow.dsl.versions import When
    from emberflow.graph.versions import Carry
    from emberflow.runners.live.builder import LiveBuilder
    from emberflow.values.times import Time


class Flow(builder.Flow):
    __doc__ = builder.Flow.__doc__

    def live(self, spark: SparkSession) -> LiveBuilder:
        """Run the flow live on Spark: ``flow.live(spark).read(...).write(...).start()``.

        Its workers are the tasks of one barrier job, so the session needs a free slot for each.
        """
        need("pyspark", "pyarrow", "zmq", extra="spark", what="flow.live")
        from emberflow.runners.live.builder import LiveBuilder

        return LiveBuilder(self, spark)

    def batch(
        self,
        spark: SparkSession,
        /,
        *,
        schema: Any = None,
        partitions: int | None = None,
        raw: bool = False,
        ordered: bool = True,
        until: Time | None = None,
        **fronts: Any,
    ) -> dict[str, DataFrame]:
        """Run the flow on DataFrames: one for each front in, one for each sink out, lazily.

        A front takes a DataFrame, or `ef.rows(df, time=..., payload=...)`. ``schema`` gives the
        columns of the sinks (a dict by sink, or that of the only one); without it they are found out
        with the first rows of each front. ``partitions`` is the number of partitions of each shuffle,
        else Spark's own setting. ``raw=True`` gives payloads as bytes, for `ef.payloads`. Rows are in
        order within each partition of the DataFrame; ``ordered=False`` spares that sort. With
        ``until`` elements from that time on are left out, and what is scheduled for later.
        """
        need("pyspark", "numpy", "pyarrow", extra="spark", what="flow.batch")
        from emberflow.runners.batch.runner import batch

        return batch(
            self,
            spark,
            schema=schema,
            partitions=partitions,
            raw=raw,
            ordered=ordered,
            until=until,
            fronts=fronts,
        )

    def backfill(
        self,
        spark: SparkSession,
        /,
        *,
        until: When,
        checkpoint: str | os.PathLike[str],
        write: Mapping[str, Any] | None = None,
        positions: Mapping[str, Any] | None = None,
        schema: Any = None,
        partitions: int | None = None,
        raw: bool = False,
        ordered: bool = True,
        **fronts: Any,
    ) -> dict[str, DataFrame]:
        """Run the flow in batch up to a time, and leave a checkpoint that `live` goes on from.

        Fronts take DataFrames as in `batch`; their elements below the time ``until`` are run, and
        what they schedule for later is part of the checkpoint. ``until`` may also be a moment ``(time,
        front)``, such as `emberflow.last_moment` of a query that was stopped: a step of its next version
        can begin with the state here (`emberflow.Backfilled`). ``write`` has a sink of
        `emberflow.sinks` for each sink that is to be written, exactly once even if this is killed
        and called again; of all others the DataFrames are returned, as by `batch`. ``positions``
        says behind which position of its source a live front goes on (a dict by partition where
        there are several); without one, it passes over all that is below ``until``.
        """
        need("pyspark", "numpy", "pyarrow", extra="spark", what="flow.backfill")
        from emberflow.runners.batch.backfill.backfill import backfill

        return backfill(
            self,
            spark,
            until=until,
            checkpoint=checkpoint,
            write=write or {},
            positions=positions or {},
            schema=schema,
            partitions=partitions,
            raw=raw,
            ordered=ordered,
            fronts=fronts,
        )


class Versions(described.Versions):
    __doc__ = described.Versions.__doc__

    @classmethod
    def served(
        cls,
        checkpoint: str | os.PathLike[str],
        first: builder.Flow,
        /,
        *later: builder.Flow | tuple[builder.Flow, Carry | None],
    ) -> Versions:
        """The versions that a live query has served, each from the moment on that its checkpoint notes.

        ``Versions.served("checkpoint", v1, v2, (v3, {"new": "old"}))``: every version that the query has
        had, in order, with what it took over, as `LiveQuery.upgrade` was told. If one is missing, the
        error says which. `batch` over the fronts' logs, `run` and `verify` then repeat what was served.
        """
        from emberflow.runners.history import versions_served

        return cls(first, *versions_served(checkpoint, first, later))

    def batch(
        self,
        spark: SparkSession,
        /,
        *,
        schema: Any = None,
        partitions: int | None = None,
        raw: bool = False,
        ordered: bool = True,
        until: Time | None = None,
        **fronts: Any,
    ) -> dict[str, DataFrame]:
        """Run the versions on DataFrames, each on the elements of its interval of time, lazily.

        The arguments are those of `Flow.batch`, with a DataFrame for each front of any version. A sink
        has its rows of all versions that have it. The rows are those of `ef.run`, to the byte.
        """
        need("pyspark", "numpy", "pyarrow", extra="spark", what="Versions.batch")
        from emberflow.runners.batch.versions import batch_versions

        return batch_versions(
            self,
            spark,
            schema=schema,
            partitions=partitions,
            raw=raw,
            ordered=ordered,
            until=until,
            fronts=fronts,
        )

    def backfill(self, *_: Any, **__: Any) -> dict[str, DataFrame]:
        """A backfill is of one flow: this raises an error that says what to do instead."""
        raise InputError(
            "backfill() runs one version of a flow. Backfill the first version, start it live from that "
            "checkpoint, and let the next one take over: query.upgrade(flow, at=time). For output alone, "
            "batch() runs all versions."
        )
