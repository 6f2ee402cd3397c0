"""Describe a user's function: its name, and the file and line that define it.

Errors and drawings name functions as the user wrote them. A step may consist of several functions
(``reduce`` of ``first`` and ``combine``), wrapped in callables of our own. ``UserFunction`` keeps
the user's function beside the callable that runs, and ``blamed`` finds which one a traceback points
to. Nothing of this costs time unless an error is raised.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from xxhash import xxh64

#: Stack frames of these files are not the user's. Operators enter their scopes through contextlib.
_OURS = (str(Path(__file__).parents[1]), contextlib.__file__)


@dataclass(frozen=True, slots=True)
class Where:
    """A line in the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{_relative(self.file)}:{self.line}"


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function that the user passed, and its role in the step (``key``, ``combine`` ...)."""

    role: str
    given: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.role}={described(self.given)}" if self.role else described(self.given)


def field_advice(given: object) -> str:
    """What to write if the name of a field was given in place of a function; empty for all else.

    >>> field_advice("price")
    " For a field write lambda payload: payload['price'], or payload.price."
    """
    if not isinstance(given, str) or not given.isidentifier():
        return ""
    return f" For a field write lambda payload: payload[{given!r}], or payload.{given}."


def itself(payload: Any) -> Any:
    """The identity function."""
    return payload


def caller() -> Where:
    """The nearest line of the stack that is not Emberflow's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(frame: FrameType) -> bool:
    # Methods that dataclasses generate have a module but no file.
    module = frame.f_globals.get("__name__", "")
    return frame.f_code.co_filename.startswith(_OURS) or module.partition(".")[0] == "emberflow"


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code object behind a function, a method, a partial or an object with ``__call__``."""
    seen = 0
    while seen < 20:  # decorators of decorators; a cycle of __wrapped__ would otherwise hang
        seen += 1
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return f"partial({name_of(function.func)})"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = name.replace("<locals>.", "")
    return "lambda" if name.endswith("<lambda>") else name


def described(function: Callable[..., Any]) -> str:
    """A function's name, with the file and line that define it if it is written in Python.

    >>> described(len)
    'len'
    """
    code = code_of(function)
    if code is None:
        return name_of(function)
    return f"{name_of(function)} ({Where(code.co_filename, code.co_firstlineno)})"


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of what a function does: of its code, its defaults and what it closes over.

    It does not depend on the function's name, file or lines. It tells versions of a function apart for
    people. It is not exact: functions that this one calls by a global name are not looked into, and
    another version of Python compiles the same function to other code.

    >>> code_digest(lambda n: n + 1) == code_digest(lambda n: n + 1)
    True
    >>> code_digest(lambda n: n + 1) == code_digest(lambda n: n + 2)
    False
    """
    digest = xxh64()
    for part in _parts_of(function, 0):
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return str(digest.hexdigest())


#: How deep functions within functions are looked into.
_DEPTH_MAX = 8


def _parts_of(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, functools.partial):
        yield "partial"
        for part in (value.func, *value.args, *value.keywords.items()):
            yield from _parts_of(part, depth + 1)
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield " ".join(value.co_names)
        for constant in value.co_consts:
            # A docstring and the qualified names of inner functions change nothing that it does.
            if constant is not _docstring_of(value) and constant not in _inner_names(value):
                yield from _parts_of(constant, depth + 1)
    elif isinstance(value, FunctionType):
        yield from _parts_of(value.__code__, depth + 1)
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()):
            yield from _parts_of(default, depth + 1)
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _parts_of(cell.cell_contents, depth + 1)
    elif isinstance(value, MethodType):
        yield from _parts_of(value.__func__, depth + 1)
    elif isinstance(value, str | bytes | int | float | bool | None):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple | list):
        yield type(value).__name__
        for part in value:
            yield from _parts_of(part, depth + 1)
    elif callable(value):
        yield name_of(value)  # a builtin, a class, or an object with __call__
        code = code_of(value)
        if code is not None:
            yield from _parts_of(code, depth + 1)
    else:
        yield type(value).__qualname__  # its value may have no stable form


def _docstring_of(code: CodeType) -> Any:
    """The docstring: the first constant of a function that has one. Lambdas and comprehensions have none."""
    if code.co_name.startswith("<") or not code.co_consts:
        return _NO_DOCSTRING
    if sys.version_info >= (3, 13) and not code.co_flags & _HAS_DOCSTRING:
        return _NO_DOCSTRING
    return code.co_consts[0] if isinstance(code.co_consts[0], str) else _NO_DOCSTRING


#: A flag of code objects, from Python 3.13 on.
_HAS_DOCSTRING = 0x4000000
_NO_DOCSTRING = object()


def _inner_names(code: CodeType) -> frozenset[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(each.co_qualname for each in inner)


def blamed(error: BaseException, functions: Sequence[UserFunction]) -> str:
    """Which of a step's functions an exception came from.

    The outermost frame that is not ours belongs to the function that we called. A builtin leaves no
    frame: then the answer names all functions of the step.
    """
    codes = {code_of(function.given): function for function in functions}
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code in codes:
            return f"{codes[code]}, raised in line {line}"
        if not code.co_filename.startswith(_OURS):
            return f"{code.co_qualname} ({Where(code.co_filename, line)})"
    theirs = [function for function in functions if not _is_code_of_ours(code_of(function.given))]
    return " or ".join(map(str, theirs)) or "a step of Emberflow's own"


def _is_code_of_ours(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(_OURS)


def _relative(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
