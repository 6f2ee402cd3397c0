"""The flow that users see: the builder, and the ways to run what it builds.

The builder knows nothing of runners; they know the builder. This is the one place above both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberflow import flow as builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
