"""Aggregates: from the payloads of a key, or of a window, to one value.

`aggregate` says what an aggregate is, `catalogue` has those that come with Emberflow, and `several` makes
one of many, with the named tuples of `record`.
"""

from emberflow.dsl.operators.aggregates import catalogue
from emberflow.dsl.operators.aggregates.aggregate import Aggregate, aggregate
from emberflow.dsl.operators.aggregates.several import several

__all__ = ["Aggregate", "aggregate", "catalogue", "several"]
