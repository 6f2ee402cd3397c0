"""Derived operators: each is composed of map, broadcast, merge and grouping, and of nothing else.

One idea a file. An operator is a function of streams that returns a stream; it opens a scope, so
that its steps carry its name. Operators have no state of their own: an operator that remembers
something keeps it in an accumulator that drifts with the stream (`dsl.operators.reduce`), and one
that waits schedules an item.
"""

from emberflow.dsl.operators.aggregates import Aggregate, aggregate, catalogue, several
from emberflow.dsl.operators.distinct import distinct
from emberflow.dsl.operators.join import enrich, join
from emberflow.dsl.operators.ranks import rank
from emberflow.dsl.operators.reduce import fold, reduce
from emberflow.dsl.operators.windows import GatheredWindows, over, window, window_updates

__all__ = [
    "Aggregate",
    "GatheredWindows",
    "aggregate",
    "catalogue",
    "distinct",
    "enrich",
    "fold",
    "join",
    "over",
    "rank",
    "reduce",
    "several",
    "window",
    "window_updates",
]
