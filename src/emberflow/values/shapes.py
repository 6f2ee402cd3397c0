"""Where the key is in what a function returns, proven from the function's code.

What is guaranteed: **`applied` says that a key is somewhere only if it is there for every payload.** It
never calls the function. It reads the byte code of functions that neither branch nor loop, knows
`operator.itemgetter`, and takes the word of Emberflow's own functions (`declare`). Of all else it says
that nothing is known. Functions are pure, so two with the same code that see the same values are the same.

A *shape* tells what is known of a value:

- `KEY`: it is the key;
- `Keyed(f)`: a payload of which ``f`` makes the key;
- `Parts(...)`: a tuple, with a shape for each of its parts;
- `Several(shape)`: a tuple of any length above 0, or what a function gives one after the other, all of
  one shape;
- `Fields(...)`: a named tuple, with a shape for each of its fields;
- `UNKNOWN`.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from emberflow.values.functions import itself


class Known(NamedTuple):
    """Of a value: that it is the key, or a constant."""

    what: str
    constant: Any = None


class Keyed(NamedTuple):
    """Of a value: that this function makes the key of it."""

    by: Callable[[Any], Any]


class Parts(NamedTuple):
    """Of a tuple: what is known of each of its parts."""

    of: tuple[Any, ...]


class Several(NamedTuple):
    """Of values in a row: what is known of each."""

    each: Any


class Fields(NamedTuple):
    """Of a named tuple: what is known of each of its fields, in their order."""

    names: tuple[str, ...]
    shapes: tuple[Any, ...]


Shape: TypeAlias = Known | Keyed | Parts | Several | Fields

UNKNOWN = Known("unknown")
KEY = Known("key")

#: By function: from the shape of its argument to that of what it returns.
_DECLARED: dict[Any, Callable[[Shape], Shape]] = {}


def declare(function: Any, shape_of: Callable[[Shape], Shape]) -> None:
    """Say what one of Emberflow's own functions returns. A class speaks for its instances.

    A function that may also raise, or return what is refused, is right to leave that out.
    """
    _DECLARED[function] = shape_of


def applied(function: Callable[..., Any], argument: Shape) -> Shape:
    """The shape of what a function of one argument returns.

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
        indices = _indices_of(function)
        return part_of(argument, Known("constant", indices[0])) if len(indices) == 1 else UNKNOWN
    if type(function) is FunctionType:
        return _run(function, argument)
    return UNKNOWN


def part_of(shape: Shape, index: Shape) -> Shape:
    """What is known of ``value[index]``."""
    if not (isinstance(index, Known) and index.what == "constant" and type(index.constant) is int):
        return UNKNOWN
    if isinstance(shape, Several):
        return _shape(shape.each)
    parts = shape.of if isinstance(shape, Parts) else ()
    parts = shape.shapes if isinstance(shape, Fields) else parts
    if -len(parts) <= index.constant < len(parts):
        return _shape(parts[index.constant])
    return UNKNOWN


def field_of(shape: Shape, name: str) -> Shape:
    """What is known of ``value.name``."""
    if isinstance(shape, Fields) and name in shape.names:
        return _shape(shape.shapes[shape.names.index(name)])
    return UNKNOWN


def _shape(found: Any) -> Shape:
    return found if isinstance(found, Known | Keyed | Parts | Several | Fields) else UNKNOWN


def _is_hashable(function: Any) -> bool:
    try:
        hash(function)
    except Exception:
        return False
    return True


# Whether two functions are the same.


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions surely return the same for the same argument.

    >>> is_same(lambda n: n % 2, lambda m: m % 2), is_same(lambda n: n % 2, lambda n: n % 2.0)
    (True, False)
    """
    if one is other:
        return True
    if type(one) is itemgetter and type(other) is itemgetter:
        return _are_same_values(_indices_of(one), _indices_of(other))
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


def _indices_of(getter: Any) -> tuple[Any, ...]:
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


# Code that neither branches nor loops.

#: Nothing that has more instructions is looked into.
_INSTRUCTIONS_MAX = 64
#: What a generator, a coroutine, or a function that takes any number of arguments has among its flags.
_NOT_PLAIN = 0x04 | 0x08 | 0x20 | 0x80 | 0x200

_NOTHING = frozenset(("RESUME", "NOP", "CACHE", "PRECALL", "NOT_TAKEN", "COPY_FREE_VARS"))
_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_DOUBLE_LOADS = frozenset(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"))
#: What takes some values off the stack, and puts one on it of which nothing is known.
_OPAQUE = {
    "UNARY_NEGATIVE": 1,
    "UNARY_INVERT": 1,
    "UNARY_NOT": 1,
    "TO_BOOL": 1,
    "COMPARE_OP": 2,
    "IS_OP": 2,
    "CONTAINS_OP": 2,
    "BINARY_SLICE": 3,
}
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_DEREF"))


def _run(function: FunctionType, argument: Shape) -> Shape:
    """The shape of what a function returns, by its byte code. Nothing is known once anything is met that is
    not listed here. So another version of Python can only know less."""
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & _NOT_PLAIN:
        return UNKNOWN
    variables: dict[Any, Shape] = {code.co_varnames[0]: argument}
    stack: list[Shape] = []
    instructions = list(dis.get_instructions(code))
    if len(instructions) > _INSTRUCTIONS_MAX or code.co_cellvars:
        return UNKNOWN
    try:
        for instruction in instructions:
            name, value, text = instruction.opname, instruction.argval, instruction.argrepr
            if name in ("RETURN_VALUE", "RETURN_CONST"):
                return stack.pop() if name == "RETURN_VALUE" else UNKNOWN
            if not _step(name, value, text, instruction.arg, stack, variables):
                return UNKNOWN
    except (IndexError, KeyError):
        return UNKNOWN
    return UNKNOWN


def _step(
    name: str,
    value: Any,
    text: str,
    argument: int | None,
    stack: list[Shape],
    variables: dict[Any, Shape],
) -> bool:
    """One instruction; whether it is known."""
    if name in _NOTHING:
        pass
    elif name in _LOADS:
        stack.append(variables[value])
    elif name in _DOUBLE_LOADS:
        stack += [variables[each] for each in value]
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
        stack.append(Known("constant", value))
    elif name == "STORE_FAST":
        variables[value] = stack.pop()
    elif name == "STORE_FAST_STORE_FAST":
        for each in value:
            variables[each] = stack.pop()
    elif name == "STORE_FAST_LOAD_FAST":
        variables[value[0]] = stack.pop()
        stack.append(variables[value[1]])
    elif name == "UNPACK_SEQUENCE":
        _unpack(stack, value)
    elif name == "BUILD_TUPLE":
        assert argument is not None
        parts = tuple(stack[len(stack) - argument :])
        if len(parts) != argument:
            return False
        del stack[len(stack) - argument :]
        stack.append(Parts(parts))
    elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and text == "[]"):
        index = stack.pop()
        stack.append(part_of(stack.pop(), index))
    elif name == "BINARY_OP":
        _take(stack, 2)
    elif name in _OPAQUE:
        _take(stack, _OPAQUE[name])
    elif name == "LOAD_ATTR" and "NULL|" not in text:
        stack.append(field_of(stack.pop(), value))
    else:
        return _call(name, argument, text, stack)
    return True


def _call(name: str, argument: int | None, text: str, stack: list[Shape]) -> bool:
    """What calls a function needs. Nothing is known of what the function returns."""
    if name == "PUSH_NULL":
        stack.append(UNKNOWN)
    elif name in _GLOBALS:
        # A global that is called has a null beside it.
        stack += [UNKNOWN] * (1 + ("NULL + " in text or " + NULL" in text))
    elif name in ("LOAD_METHOD", "LOAD_ATTR"):
        stack.pop()
        stack += [UNKNOWN, UNKNOWN]
    elif name == "CALL":
        assert argument is not None
        _take(stack, argument + 2)
    elif name == "KW_NAMES":
        pass
    else:
        return False
    return True


def _take(stack: list[Shape], count: int) -> None:
    if len(stack) < count:
        raise IndexError
    del stack[len(stack) - count :]
    stack.append(UNKNOWN)


def _unpack(stack: list[Shape], count: int) -> None:
    shape = stack.pop()
    parts = [part_of(shape, Known("constant", index)) for index in range(count)]
    if len(getattr(shape, "of", getattr(shape, "shapes", range(count)))) != count:
        parts = [UNKNOWN] * count
    stack += reversed(parts)
