"""What the byte code of a function says about what it returns.

Only code that neither branches nor loops is read. Nothing is known once anything is met that is not listed
here, so another version of Python can only know less.
"""

from __future__ import annotations

import dis
from types import FunctionType
from typing import Any

from emberflow.values.proofs.shapes import UNKNOWN, Known, Parts, Shape, field_of, part_of

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


def returned(function: FunctionType, argument: Shape) -> Shape:
    """The shape of what a function of one argument returns."""
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
