"""Joins of two keyed streams: `join` as in SQL, `join_latest` and `enrich`."""

from emberflow.dsl.operators.joins.join import join
from emberflow.dsl.operators.joins.latest import enrich, join_latest
from emberflow.dsl.operators.joins.sides import KEEPS_KEY

__all__ = ["KEEPS_KEY", "enrich", "join", "join_latest"]
