"""The switch between the hottest loops in C and their twins in Python.

What is guaranteed: a process runs either all of the compiled modules or none of them, and `status`
tells which and why. Both ways give the same output to the byte, so the workers of one run may differ;
they differ in speed only. This is the one place that tries to import the extension modules. A module
with a twin in Python asks here which one to use.

Where there is no compiler the extension modules are not built, and the twins run. That is no fault, so
nothing is said. It is a fault if some of them load and others do not, or if they were built from other
sources than these: an upgrade was interrupted, or a working copy was not rebuilt. Then the twins run
too, and a warning says what to do.

The environment variable ``EMBERFLOW_NATIVE`` decides otherwise: ``0`` runs the twins in Python, to
compare or to look for a fault; ``1`` demands the compiled modules, and importing emberflow fails
without them. It is read once, when this module is first imported.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

#: The extension modules, by the names that `status` knows them by.
MODULES = ("arenas", "columns", "loops", "rows", "trees", "versions")

#: What these sources expect of the extension modules; `headers/arguments.h` has the same number. Raise both
#: whenever a function of theirs changes its arguments or its result.
INTERFACE = 12

VARIABLE = "EMBERFLOW_NATIVE"

COMPILED = "compiled"


def status() -> dict[str, str]:
    """How each module runs here: ``"compiled"``, or ``"python: "`` and why.

    >>> sorted(status())
    ['arenas', 'columns', 'loops', 'rows', 'trees', 'versions']
    """
    return dict(_status)


def is_compiled() -> bool:
    """Whether the compiled modules run in this process."""
    return all(how == COMPILED for how in _status.values())


def _loaded() -> tuple[dict[str, Any], dict[str, str]]:
    """The extension modules that load here, and why the others do not."""
    modules: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name in MODULES:
        try:
            module = import_module(f"{__name__}._{name}")
        except ModuleNotFoundError:
            faults[name] = "not built"
        except ImportError as error:
            faults[name] = f"cannot be loaded: {error}"
        else:
            interface = getattr(module, "INTERFACE", 1)
            if interface == INTERFACE:
                modules[name] = module
            else:
                faults[name] = (
                    f"built from other sources (interface {interface}, {INTERFACE} expected)"
                )
    return modules, faults


def _chosen(wish: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The extension modules to use, all or none, and the status of each."""
    if wish not in (None, "", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1 or not set, got {wish!r}")
    if wish == "0":
        return {}, dict.fromkeys(MODULES, f"python: turned off by {VARIABLE}=0")
    modules, faults = _loaded()
    if not faults:
        return modules, dict.fromkeys(MODULES, COMPILED)
    if wish == "1":
        raise ImportError(f"{VARIABLE}=1 demands the compiled modules. {_advice(faults)}")
    if set(faults.values()) != {"not built"} or modules:
        warnings.warn(
            f"emberflow runs its slower loops in Python. {_advice(faults)}",
            RuntimeWarning,
            stacklevel=2,
        )
    others = f"python: since {', '.join(f'_{name}' for name in faults)} cannot be used"
    return {}, {name: f"python: {faults[name]}" if name in faults else others for name in MODULES}


def _advice(faults: dict[str, str]) -> str:
    said = "; ".join(f"_{name}: {fault}" for name, fault in faults.items())
    return f"{said}. Install emberflow again, where there is a C compiler."


_modules, _status = _chosen(os.environ.get(VARIABLE))

# The extension modules themselves; None where their twins in Python run.
arenas: Any = _modules.get("arenas")
columns: Any = _modules.get("columns")
loops: Any = _modules.get("loops")
rows: Any = _modules.get("rows")
trees: Any = _modules.get("trees")
versions: Any = _modules.get("versions")
