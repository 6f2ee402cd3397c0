"""Load the flow that a command line names: ``module:attribute`` or ``path/to/file.py:attribute``.

The attribute is a `Flow` or a function without arguments that returns one; the default is ``flow``.
A file is imported under the name it has as a module, with its package if it is in one, and with that
package's folder on the path. So it can import the modules beside it, and its definitions can be
pickled by name. Every failure is a `LoadingError` that says what to do.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import Versions
from emberflow.errors import EmberflowError, MissingExtraError
from emberflow.extras import extra_of, install_command
from emberflow.values.functions import Where, described

_DEFAULT_ATTRIBUTE = "flow"
_FORMS = "Write module:attribute or path/to/file.py:attribute, as in shop.orders:flow"


class LoadingError(EmberflowError):
    """The requested flow does not exist, or building it failed."""


def load_attribute(target: str, *, default: str) -> Any:
    """The object that a target names. ``default`` is the attribute if the target names none."""
    source, attribute = _parsed(target, default)
    module = _module(source)
    if not hasattr(module, attribute):
        raise LoadingError(f"{source} has no {attribute!r}. Check the name.")
    return getattr(module, attribute)


def load_flow(target: str) -> Flow:
    """The flow that a target names. Modules of the current folder can be imported."""
    source, attribute = _parsed(target, _DEFAULT_ATTRIBUTE)
    module = _module(source)
    if not hasattr(module, attribute):
        raise LoadingError(
            f"{source} has no {attribute!r}. {_available_flows(source, module, attribute)}"
        )
    found = getattr(module, attribute)
    if isinstance(found, Flow):
        return found
    if isinstance(found, type) or not callable(found):
        raise LoadingError(
            f"{attribute!r} of {source} is {_kind(found)}, not a Flow nor a function that returns "
            f"one. {_available_flows(source, module, attribute)}"
        )
    return _made_by(found, source, attribute)


def load_flow_or_versions(target: str) -> Flow | Versions:
    """The flow, or the `Versions` of one, that a target names."""
    source, attribute = _parsed(target, _DEFAULT_ATTRIBUTE)
    found = getattr(_module(source), attribute, None)
    return found if isinstance(found, Versions) else load_flow(target)


def load_flow_anew(target: str, folder: Path) -> Flow:
    """The flow that a target names, from its files as they are now.

    Modules and packages of the folder are imported again. From then on their functions travel by value:
    workers may have imported the modules before, and would find the old functions under these names.
    """
    import cloudpickle

    folder = folder.resolve()
    known = {name: module for name, module in list(sys.modules.items()) if _is_in(name, folder)}
    for name in known:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        flow = load_flow(target)
    except BaseException:
        sys.modules.update(known)
        raise
    for name, module in list(sys.modules.items()):
        if _is_in(name, folder):
            cloudpickle.register_pickle_by_value(module)
    return flow


def folder_of(target: str) -> Path:
    """The folder that a target is imported from."""
    source, _ = _parsed(target, _DEFAULT_ATTRIBUTE)
    return _package_folder(Path(source).resolve())[0] if _is_file(source) else Path.cwd()


def lies_in(target: str, folder: Path) -> bool:
    """Whether a target names a file of a folder, or a module or package there. Nothing is imported."""
    source, _ = _parsed(target, _DEFAULT_ATTRIBUTE)
    if _is_file(source):
        path = Path(source).resolve()
        return path.is_file() and _package_folder(path)[0] == folder
    top = source.partition(".")[0]
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


def _is_in(name: str, folder: Path) -> bool:
    """Whether a module, or the package that it is in, lies in a folder."""
    origin = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    if name == "__main__" or origin is None:
        return False
    path = Path(origin).resolve()
    return folder == (path.parent.parent if path.stem == "__init__" else path.parent)


def _parsed(target: str, default: str) -> tuple[str, str]:
    # A drive letter has a colon too, so a target that ends in .py has no attribute.
    source, colon, attribute = (target, "", "") if _is_file(target) else target.rpartition(":")
    if not colon:
        source, attribute = target, default
    if not source or not attribute.isidentifier():
        wanted = "a flow" if default == _DEFAULT_ATTRIBUTE else default
        raise LoadingError(f"{target!r} does not name {wanted}. {_FORMS}.")
    return source, attribute


def _is_file(source: str) -> bool:
    return source.endswith(".py")


def _module(source: str) -> ModuleType:
    return _from_file(source) if _is_file(source) else _from_name(source)


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise LoadingError(f"{name!r} is neither a module nor a file that ends in .py. {_FORMS}.")
    _make_importable(Path.cwd())
    return _imported(name, name)


def _from_file(source: str) -> ModuleType:
    path = Path(source).resolve()
    if not path.is_file():
        raise LoadingError(f"there is no file {source!r} in {Path.cwd()}. Check the path.")
    _make_importable(Path.cwd())
    folder, names = _package_folder(path)
    name = ".".join(names)
    if not all(part.isidentifier() for part in names) or not names:
        raise LoadingError(
            f"{source!r} cannot be imported: {name!r} is no name of a module. "
            f"Rename it, with letters, digits and underscores only."
        )
    _make_importable(folder)
    module = _imported(name, source)
    origin = getattr(module, "__file__", None)
    if origin is None or Path(origin).resolve() != path:
        raise LoadingError(
            f"{source!r} cannot be imported, because Python has another module {name!r}, from "
            f"{origin or 'within itself'}. Rename the file."
        )
    return module


def _package_folder(path: Path) -> tuple[Path, list[str]]:
    """The folder that a file is imported from, and the parts of its name as a module."""
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if path.stem == "__init__":
        names.pop()
    return folder, names


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        # Otherwise Python would not see a file that was written since the last import.
        importlib.invalidate_caches()


def _imported(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise LoadingError(
                f"there is no module {name!r}: {error}. Run in the folder that has it (this is "
                f"{Path.cwd()}), install it here, or give the path of its file, as in "
                f"{name.replace('.', '/')}.py:{_DEFAULT_ATTRIBUTE}."
            ) from error
        extra = extra_of(error.name or "")
        command = f": {install_command(extra)}" if extra else ""
        raise LoadingError(
            f"importing {source} failed: {_failure(error)}. Install {error.name!r} in this "
            f"environment ({sys.executable}){command}, or fix the import."
        ) from error
    except MissingExtraError as error:
        raise LoadingError(f"importing {source} failed: {_failure(error)}") from error
    except SystemExit as error:
        raise LoadingError(
            f"importing {source} ended the program ({_failure(error)}). "
            f"Put what it runs under: if __name__ == '__main__':"
        ) from error
    except Exception as error:
        raise LoadingError(
            f"importing {source} failed: {_failure(error)}. Fix it and try again."
        ) from error


def _made_by(function: Callable[..., Any], source: str, attribute: str) -> Flow:
    required = _arguments(function)
    if required:
        raise LoadingError(
            f"{attribute!r} of {source} is {described(function)}, which takes arguments: "
            f"{', '.join(required)}. Give them defaults, or name a function without arguments."
        )
    try:
        made = function()
    except Exception as error:
        raise LoadingError(
            f"{attribute!r} of {source} failed: {_failure(error)}. Fix it and try again."
        ) from error
    if not isinstance(made, Flow):
        raise LoadingError(
            f"{attribute!r} of {source} is {described(function)}, and what it returned is "
            f"{_kind(made)}, not a Flow. Let it return the flow that it builds."
        )
    return made


def _arguments(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _available_flows(source: str, module: ModuleType, missed: str) -> str:
    """The flows of a module, and its functions that are annotated to return one."""
    flows = [
        name
        for name, value in vars(module).items()
        if not name.startswith("__")
        and name != missed
        and (isinstance(value, Flow) or _returns_a_flow(value))
    ]
    if not flows:
        return f"It has no flows: build one there, as in {missed} = ef.Flow('name')."
    return f"It has these flows: {', '.join(f'{source}:{name}' for name in flows)}."


def _returns_a_flow(value: object) -> bool:
    if not inspect.isfunction(value) or _arguments(value):
        return False
    returns = value.__annotations__.get("return")
    # It is a string if annotations are not evaluated: Flow, ef.Flow, emberflow.Flow.
    return (isinstance(returns, type) and issubclass(returns, Flow)) or (
        isinstance(returns, str) and returns.split(".")[-1] == "Flow"
    )


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__qualname__}"


def _failure(error: BaseException) -> str:
    """The exception, and the last line outside of Emberflow and Python's import system."""
    words = f"{type(error).__qualname__}: {error}".rstrip(".")
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__qualname__}: {error.msg} at {Where(error.filename, error.lineno)}"
    lines = [
        Where(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_OWN_FOLDER, _IMPORTING, "<frozen"))
    ]
    return f"{words}, raised from {lines[-1]}" if lines else words


_OWN_FOLDER = str(Path(__file__).parents[1])
_IMPORTING = str(Path(importlib.__file__).parent)
