"""The names of the files of `sinks.Files`: each has the last global time of its bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from emberflow.errors import EmberflowError
from emberflow.values.item import GlobalTime

_TIME_DIGITS = 19
_FRONT_DIGITS = 10
#: Of fronts with a tie (`values.item.TIE`) too great for the other names.
_TIED_DIGITS = 19
_NAME = re.compile(
    rf"([np]\d{{{_TIME_DIGITS}}})-([np]\d{{{_FRONT_DIGITS}}}|q\d{{{_TIED_DIGITS}}})"
    rf"\.(jsonl|parquet|arrow)"
)


def partition_name(partition: int) -> str:
    return f"partition-{partition:04d}"


def name_of(last: GlobalTime) -> str:
    """The name of a file, without its ending: time and front, each with a sign and leading zeros.

    ``p`` is for numbers from 0 on. ``n`` is for negative numbers, which are written as their distance
    from the least number of so many digits. So names sort as numbers: ``n`` before ``p``, and a greater
    distance after a smaller one. ``q`` is for fronts of more digits: those of elements behind many others
    of the same time.

    >>> name_of(GlobalTime(12, 0))
    'p0000000000000000012-p0000000000'
    >>> name_of(GlobalTime(-1, -3))
    'n9999999999999999999-n9999999997'
    >>> name_of(GlobalTime(12, 5 * 2**32))
    'p0000000000000000012-q0000000021474836480'
    """
    time = _digits(last.time, _TIME_DIGITS)
    if last.front >= 10**_FRONT_DIGITS:
        return f"{time}-q{last.front:0{_TIED_DIGITS}d}"
    return f"{time}-{_digits(last.front, _FRONT_DIGITS)}"


def time_of(name: str) -> GlobalTime:
    """The last global time that a file is named after.

    >>> time_of("n9999999999999999999-n9999999997.jsonl")
    GlobalTime(time=-1, front=-3)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a bundle")
    return GlobalTime(_number(match[1]), _number(match[2]))


def _digits(number: int, digits: int) -> str:
    if not -(10**digits) <= number < 10**digits:
        raise EmberflowError(f"{number} does not fit into the name of a file.")
    sign, distance = ("p", number) if number >= 0 else ("n", number + 10**digits)
    return f"{sign}{distance:0{digits}d}"


def _number(text: str) -> int:
    number = int(text[1:])
    return number - 10 ** (len(text) - 1) if text[0] == "n" else number


def bundles_among(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if _NAME.fullmatch(name))
