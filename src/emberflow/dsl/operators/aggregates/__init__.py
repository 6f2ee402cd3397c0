"""Aggregates: from the payloads of a key, or of a window, to one value."""

from emberflow.dsl.operators.aggregates.catalogue import (
    Aggregation,
    aggregate,
    averaging,
    counting,
    greatest,
    leading,
    least,
    one_more,
    summing,
)

__all__ = [
    "Aggregation",
    "aggregate",
    "averaging",
    "counting",
    "greatest",
    "leading",
    "least",
    "one_more",
    "summing",
]
