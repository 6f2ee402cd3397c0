"""The data source ``emberflow``, as Spark sees it.

==============================================  ============================================
``df.writeStream.format("emberflow")``          feeds ``.option("front", name)`` (`stream_writer`)
``spark.readStream.format("emberflow")``        reads ``.option("sink", name)`` (`stream_reader`)
``spark.read.format("emberflow")``              reads ``.option("state", name)`` (`state`)
==============================================  ============================================

``.option("query", name)`` names the live query. A state can also come from a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)

from emberflow.errors import InputError
from emberflow.extras import need

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The methods import the modules that do the work: Spark imports this module in processes that need
# only the name of the source.


class EmberflowSource(DataSource):
    """Registered by Spark itself, by way of ``pyspark_emberflow``."""

    def __init__(self, options: dict[str, str]) -> None:
        # Not at the top: if this module could not be imported, Spark would find no data source at all.
        need("pyarrow", "zmq", extra="spark", what="the data source 'emberflow'")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "emberflow"

    def schema(self) -> StructType:
        """The columns of a read without ``.schema(...)``."""
        if "sink" in self.options:
            from emberflow.datasource.options import SourceOptions
            from emberflow.datasource.stream_reader import sink_schema

            return sink_schema(SourceOptions.of(self.options, "sink"))
        from emberflow.datasource.state import state_schema

        return state_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read: of a state."""
        from emberflow.datasource.state import state_reader

        return state_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write: into a front."""
        from emberflow.datasource.options import SourceOptions
        from emberflow.datasource.stream_writer import FrontWriter

        if overwrite:
            raise InputError(
                "a front takes what is new: use .outputMode('append'), and not 'complete'."
            )
        return FrontWriter(SourceOptions.of(self.options, "front"), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read: of a sink."""
        from emberflow.datasource.options import SourceOptions
        from emberflow.datasource.stream_reader import SinkReader

        return SinkReader(
            SourceOptions.of(self.options, "sink"), schema, self.options.get("maxBytesPerTrigger")
        )
