"""The variables in which a function could keep state: those that outlive a call.

These are its closure, globals, default arguments, and the attributes of itself, of ``self`` and of
classes; also those of the user's functions that it calls. `changing` calls the function once more
and names the variables that changed: as good as watching it remember. `keeping` names those that
could change, for when the change has long happened. Neither proves that a function is impure: that
takes two different results.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import Any

from emberflow.errors import shortened
from emberflow.runners.verify.functions.comparison import NotComparableError, fingerprint

_PYTHON = tuple({sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"], "<frozen"})
_INSTALLED = tuple({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]})

#: Functions called through more helpers than this no longer explain anything.
_DEPTH_MAX = 3


def variables_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that outlive a call, by a description of each."""
    variables: dict[str, Any] = {}
    owner = getattr(function, "__self__", None)
    if owner is None and not isinstance(function, types.FunctionType | functools.partial | type):
        owner = function
    if owner is not None and not isinstance(owner, types.ModuleType):
        for name, value in getattr(owner, "__dict__", {}).items():
            if not (callable(value) or name.startswith("__")):
                variables[f"the attribute {name!r} of {type(owner).__name__}"] = value
    if isinstance(function, functools.partial):
        for number, value in enumerate((*function.args, *function.keywords.values())):
            variables[f"argument {number} of the partial"] = value
    for reached in reached_by(function):
        variables |= _variables_of_one(reached)
    return variables


def _variables_of_one(function: types.FunctionType) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    code = function.__code__
    of = "" if code.co_name == "<lambda>" else f" of {code.co_name}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables[f"the variable {name!r} that it closes over"] = cell.cell_contents
        except ValueError:  # not assigned yet
            variables[f"the variable {name!r} that it closes over"] = None
    defaults = function.__defaults__ or ()
    positional = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, value in (*zip(positional, defaults, strict=True), *_keyword_defaults(function)):
        variables[f"the default argument {name!r}{of}"] = value
    for name, value in function.__dict__.items():
        if name != "__wrapped__":
            variables[f"the attribute {name!r} of the function itself"] = value
    for name, value in globals_of(function).items():
        if isinstance(value, type) and not _is_library(value):
            for attribute, held in vars(value).items():
                if not (attribute.startswith("__") or callable(held) or hasattr(held, "__get__")):
                    variables[f"the attribute {attribute!r} of the class {name}"] = held
        elif not isinstance(value, types.ModuleType | type) and not callable(value):
            variables[f"the global variable {name!r}"] = value
    return variables


def changing(function: Callable[..., Any], call: Callable[[], Any]) -> list[str]:
    """Descriptions of the variables that have another value after a call."""
    before = {
        name: (_digest(value), shortened(value, 60))
        for name, value in variables_of(function).items()
    }
    call()
    changed = []
    for name, value in variables_of(function).items():
        digest, shown = before.get(name, ("", "nothing"))
        if _digest(value) != digest:
            now = shortened(value, 60)
            with_each = f": {shown}, then {now}" if shown != now else ""
            changed.append(f"{name} changes with a call{with_each}")
    return changed


def keeping(function: Callable[..., Any]) -> list[str]:
    """Descriptions of the variables that could change without an assignment."""
    mutable = (MutableMapping, MutableSequence, MutableSet, Iterator)
    return [
        f"{name} is a {type(value).__qualname__}, which can change"
        for name, value in variables_of(function).items()
        if isinstance(value, mutable)
    ]


def _digest(value: Any) -> str:
    try:
        return fingerprint(value)
    except NotComparableError:
        return ""


def reached_by(function: Callable[..., Any]) -> list[types.FunctionType]:
    """The function, and the user's functions that it calls by name, at any depth up to the limit."""
    found: dict[types.FunctionType, None] = {}
    ahead: list[tuple[Any, int]] = [(function, 0)]
    while ahead:
        reached, depth = ahead.pop(0)
        for _ in range(20):  # a cycle of __wrapped__ would otherwise hang
            if isinstance(reached, functools.partial):
                reached = reached.func
            elif hasattr(reached, "__wrapped__"):
                found |= {reached: None} if isinstance(reached, types.FunctionType) else {}
                reached = reached.__wrapped__
            else:
                break
        reached = getattr(reached, "__func__", reached)
        if not isinstance(reached, types.FunctionType | type):
            reached = vars(type(reached)).get("__call__")
        if not isinstance(reached, types.FunctionType) or reached in found:
            continue
        found[reached] = None
        if depth < _DEPTH_MAX:
            called = [*globals_of(reached).values(), *_cells(reached)]
            ahead += [(one, depth + 1) for one in called if callable(one) and not _is_library(one)]
    return list(found)


def names_in(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += names_in(constant)
    return names


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    known = function.__globals__
    return {
        name: known[name] for name in dict.fromkeys(names_in(function.__code__)) if name in known
    }


def _cells(function: types.FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            continue
    return cells


def _keyword_defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    return list((function.__kwdefaults__ or {}).items())


def _is_library(value: Any) -> bool:
    module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__":
        return False
    return file is None or file.startswith(_INSTALLED) or is_of_python(file)


def is_of_python(file: str) -> bool:
    """Whether a file is of the standard library, which may have installed packages below it."""
    return file.startswith(_PYTHON) and not file.startswith(_INSTALLED)
