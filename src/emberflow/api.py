"""The flow that users see: the builder, and the ways to run what it builds.

The builder knows nothing of runners; they know the builder. This is the one place above both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from emberflow import flow as builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from emberflow.runners.live import LiveBuilder


class Flow(builder.Flow):
    __doc__ = builder.Flow.__doc__

    def live(self, spark: SparkSession) -> LiveBuilder:
        """Run the flow live on Spark: ``flow.live(spark).read(...).write(...).start()``.

        Its workers are the tasks of one barrier job, so the session needs a free slot for each.
        """
        # Spark is an extra: a flow is built and tested without it.
        from emberflow.runners.live import LiveBuilder

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
        **fronts: Any,
    ) -> dict[str, DataFrame]:
        """Run the flow on DataFrames: one for each front in, one for each sink out, lazily.

        A front takes a DataFrame, or `ef.rows(df, time=..., payload=...)`. ``schema`` gives the
        columns of the sinks (a dict by sink, or that of the only one); without it they are found out
        with the first rows of each front. ``partitions`` is the number of partitions of each shuffle,
        else Spark's own setting. ``raw=True`` gives payloads as bytes, for `ef.payloads`. Rows are in
        order within each partition of the DataFrame; ``ordered=False`` spares that sort.
        """
        from emberflow.runners.batch import batch

        return batch(
            self,
            spark,
            schema=schema,
            partitions=partitions,
            raw=raw,
            ordered=ordered,
            fronts=fronts,
        )
