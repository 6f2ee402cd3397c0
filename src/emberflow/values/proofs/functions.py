"""Where the key is in what a function returns, proven without calling it.

What is guaranteed: **`applied` says that a key is somewhere only if it is there for every payload.** It
reads the byte code of functions that neither branch nor loop, knows `operator.itemgetter`, and takes the
word of Emberflow's own functions (`declare`). Of all else it says that nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from types import FunctionType
from typing import Any

from emberflow.values.functions import itself
from emberflow.values.proofs.code import returned
from emberflow.values.proofs.sameness import indices_of, is_same
from emberflow.values.proofs.shapes import KEY, UNKNOWN, Keyed, Known, Shape, part_of

#: By function: from the shape of its argument to that of what it returns.
_DECLARED: dict[Any, Callable[[Shape], Shape]] = {}


def declare(function: Any, shape_of: Callable[[Shape], Shape]) -> None:
    """Say what one of Emberflow's own functions returns. A class speaks for its instances.

    A function that may also raise, or return what is refused, is right to leave that out.
    """
    _DECLARED[function] = shape_of


def applied(function: Callable[..., Any], argument: Shape) -> Shape:
    """The shape of what a function of one argument returns.

    >>> from emberflow.values.proofs.shapes import Parts
    >>> pair = Parts((KEY, UNKNOWN))
    >>> applied(lambda pair: pair[0], pair) == applied(itemgetter(0), pair) == KEY
    True
    >>> applied(lambda pair: (pair[0], -pair[1]), pair) == pair
    True
    >>> applied(lambda pair: pair[1], pair), applied(lambda pair: pair[0] or 1, pair)
    (Known(what='unknown', constant=None), Known(what='unknown', constant=None))
    """
    if isinstance(argument, Keyed) and is_same(function, argument.by):
        return KEY
    if function is itself:
        return argument
    declared = _DECLARED.get(function) if _is_hashable(function) else None
    declared = declared or _DECLARED.get(type(function))
    if declared is not None:
        return declared(argument)
    if type(function) is itemgetter:
        indices = indices_of(function)
        return part_of(argument, Known("constant", indices[0])) if len(indices) == 1 else UNKNOWN
    if type(function) is FunctionType:
        return returned(function, argument)
    return UNKNOWN


def _is_hashable(function: Any) -> bool:
    try:
        hash(function)
    except Exception:
        return False
    return True
