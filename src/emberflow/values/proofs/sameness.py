"""Whether two functions are the same.

What is guaranteed: **functions that are called the same return the same for every argument**, since they are
pure. They have the same code and see the same values; what is in doubt is not the same.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions surely return the same for the same argument.

    >>> is_same(lambda n: n % 2, lambda m: m % 2), is_same(lambda n: n % 2, lambda n: n % 2.0)
    (True, False)
    """
    if one is other:
        return True
    if type(one) is itemgetter and type(other) is itemgetter:
        return _are_same_values(indices_of(one), indices_of(other))
    if type(one) is not FunctionType or type(other) is not FunctionType:
        return False
    return (
        one.__globals__ is other.__globals__
        and _is_same_code(one.__code__, other.__code__)
        and _are_same_values(one.__defaults__ or (), other.__defaults__ or ())
        and not one.__kwdefaults__
        and not other.__kwdefaults__
        and _are_same_values(_closure_of(one), _closure_of(other))
    )


def indices_of(getter: Any) -> tuple[Any, ...]:
    indices: tuple[Any, ...] = getter.__reduce__()[1]
    return indices


def _is_same_code(one: CodeType, other: CodeType) -> bool:
    """The names of local variables and the lines do not count."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_argcount == other.co_argcount
        and one.co_posonlyargcount == other.co_posonlyargcount
        and one.co_kwonlyargcount == other.co_kwonlyargcount
        and one.co_flags == other.co_flags
        and one.co_nlocals == other.co_nlocals
        and len(one.co_cellvars) == len(other.co_cellvars)
        and len(one.co_freevars) == len(other.co_freevars)
        and getattr(one, "co_exceptiontable", b"") == getattr(other, "co_exceptiontable", b"")
        and _are_same_values(one.co_consts, other.co_consts)
    )


def _closure_of(function: FunctionType) -> tuple[Any, ...]:
    try:
        return tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError:  # an empty cell
        return (object(),)


_PLAIN = (str, int, bytes, bool, type(None))


def _are_same_values(ones: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Values are the same if they are one object, or plain and equal. A float may be 0.0 or -0.0."""
    if len(ones) != len(others):
        return False
    for one, other in zip(ones, others, strict=True):
        if one is other:
            continue
        if type(one) is not type(other):
            return False
        if type(one) is tuple:
            if not _are_same_values(one, other):
                return False
        elif type(one) is CodeType:
            if not _is_same_code(one, other):
                return False
        elif type(one) is FunctionType:
            if not is_same(one, other):
                return False
        elif type(one) not in _PLAIN or one != other:
            return False
    return True
