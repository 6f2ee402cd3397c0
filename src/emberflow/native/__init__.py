"""The compiled twins of the hottest loops, in C. Where there is no compiler their twins in Python run."""

from __future__ import annotations

import importlib

_MODULES = ("_arenas", "_columns", "_loops", "_rows", "_versions")


def status() -> dict[str, str]:
    """Which twin runs, by module: ``compiled``, or ``python:`` and why the compiled one does not."""
    found = {}
    for name in _MODULES:
        try:
            importlib.import_module(f"{__name__}.{name}")
        except ImportError as error:
            found[name.removeprefix("_")] = f"python: {error}"
        else:
            found[name.removeprefix("_")] = "compiled"
    return found
