"""Ranges of hashes that belong together: those of a worker, or those that come to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberflow.values.hashing import HashRange

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Hashes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]


class Ranges:
    """Ranges of hashes, for many hashes at once."""

    def __init__(self, ranges: Sequence[HashRange]) -> None:
        import numpy as np

        ordered = sorted(ranges, key=lambda each: each.low)
        self._low_list = [each.low for each in ordered]
        self._high_list = [each.high for each in ordered]
        self._lows = np.array(self._low_list, np.int32)
        self._highs = np.array(self._high_list, np.int32)

    def those(self, hashes: Hashes) -> Flags | None:
        """Which of these hashes are in one of the ranges; None if all are."""
        import numpy as np

        if not len(self._lows):
            return np.zeros(len(hashes), np.bool_)
        number = np.searchsorted(self._lows, hashes, "right") - 1
        inside: Flags = (number >= 0) & (hashes <= self._highs[number])
        return None if inside.all() else inside

    def __contains__(self, hashed: object) -> bool:
        """Whether one of the ranges has a hash.

        >>> ranges = Ranges([HashRange(1, 5), HashRange(20, 30)])
        >>> [each for each in (0, 1, 5, 6, 19, 20, 30, 31) if each in ranges]
        [1, 5, 20, 30]
        """
        assert isinstance(hashed, int)
        number = bisect_right(self._low_list, hashed) - 1
        return number >= 0 and hashed <= self._high_list[number]

    def overlap(self, low: int, high: int) -> bool:
        """Whether one of the ranges has a hash from ``low`` to ``high``.

        >>> ranges = Ranges([HashRange(1, 5), HashRange(20, 30)])
        >>> [ranges.overlap(*pair) for pair in [(6, 19), (5, 7), (6, 40), (31, 40)]]
        [False, True, True, False]
        """
        begun = self._lows.searchsorted(high, "right")
        ended = self._highs.searchsorted(low, "left")
        return bool(begun > ended)
