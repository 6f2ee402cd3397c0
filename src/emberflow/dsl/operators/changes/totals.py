"""Sums from which every number can be taken out again, exactly.

Guarantee: a total depends on the numbers that are in it, and not on those that were in it before. Sums
of floats do not keep that: ``0.1 + 1e20 - 1e20`` is 0. So floats are summed exactly, as multiples of the
smallest float, in an int. The result is the exact sum, rounded once. Infinities and NaN are counted.
Decimals are summed without rounding. Whatever else has ``+`` and ``-`` (fractions, durations) is trusted
to take out what was put in.
"""

from __future__ import annotations

import decimal
import math
import numbers
from fractions import Fraction
from typing import Any, NamedTuple

#: All floats are multiples of 2**-1074.
_SCALE_BITS = 1074
_EXACT = decimal.Context(prec=10_000, traps=[decimal.Inexact, decimal.InvalidOperation])


class Total(NamedTuple):
    """A sum: of ints, of floats, and of other things that can be added."""

    ints: int = 0
    int_count: int = 0
    #: In multiples of the smallest float.
    floats: int = 0
    float_count: int = 0
    #: How many are infinite, negatively infinite and no number.
    special: tuple[int, int, int] = (0, 0, 0)
    others: Any = None
    other_count: int = 0

    def plus(self, number: Any, sign: int = 1) -> Total:
        """With a number, or with ``sign=-1`` without it.

        >>> Total().plus(0.1).plus(1e20).plus(1e20, -1).value()
        0.1
        """
        if isinstance(number, int):
            return self._replace(ints=self.ints + sign * number, int_count=self.int_count + sign)
        if isinstance(number, float):
            return self._with_float(number, sign)
        if isinstance(number, numbers.Integral):
            return self.plus(int(number), sign)
        if isinstance(number, numbers.Real) and not isinstance(number, Fraction):
            return self._with_float(float(number), sign)
        return self._with_other(number, sign)

    def _with_float(self, number: float, sign: int) -> Total:
        count = self.float_count + sign
        if not math.isfinite(number):
            positive, negative, none = self.special
            special = (
                positive + sign * (number == math.inf),
                negative + sign * (number == -math.inf),
                none + sign * math.isnan(number),
            )
            return self._replace(special=special, float_count=count)
        over, under = number.as_integer_ratio()
        scaled = over << (_SCALE_BITS + 1 - under.bit_length())
        return self._replace(floats=self.floats + sign * scaled, float_count=count)

    def _with_other(self, number: Any, sign: int) -> Total:
        count = self.other_count + sign
        if not count:
            return self._replace(others=None, other_count=0)
        if self.others is None:
            others = number
        elif isinstance(number, decimal.Decimal) and isinstance(self.others, decimal.Decimal):
            others = (_EXACT.add if sign > 0 else _EXACT.subtract)(self.others, number)
        else:
            others = self.others + number if sign > 0 else self.others - number
        return self._replace(others=others, other_count=count)

    def value(self) -> Any:
        """The sum. Of nothing it is 0."""
        if self.other_count:
            others = self.others
            if self.int_count and isinstance(others, decimal.Decimal):
                others = _EXACT.add(others, decimal.Decimal(self.ints))
            elif self.int_count:
                others = others + self.ints
            return others + self._as_float(1) if self.float_count else others
        return self._as_float(1) if self.float_count else self.ints

    def mean(self) -> Any:
        """The sum divided by how many it is of."""
        count = self.int_count + self.float_count + self.other_count
        if self.other_count:
            return self.value() / count
        return self._as_float(count) if self.float_count else self.ints / count

    def _as_float(self, divisor: int) -> float:
        """The ints and floats, exactly, and rounded once."""
        positive, negative, none = self.special
        if none or (positive and negative):
            return math.nan
        if positive or negative:
            return math.inf if positive else -math.inf
        exact = self.floats + (self.ints << _SCALE_BITS)
        try:
            return exact / (divisor << _SCALE_BITS)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf
