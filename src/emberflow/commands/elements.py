"""The elements that a command line names: in a module, or in files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberflow.dsl.loading import load_attribute
from emberflow.errors import InputError, shortened
from emberflow.runners.verify.trial import Elements
from emberflow.runners.verify.verification import PARAMETERS, Generate
from emberflow.values.functions import described

_JSON_LINES = (".jsonl", ".ndjson")


def load_elements(target: str | None, fronts: Sequence[str]) -> tuple[Elements, Generate | None]:
    """The elements by front, and what generates some: of a target and of ``NAME=PATH`` each."""
    elements: Elements = {}
    generate: Generate | None = None
    if target is not None:
        found = load_attribute(target, default="elements")
        if callable(found) and _arguments(found):
            generate = found
        else:
            elements = _by_front(target, _made_by(found) if callable(found) else found)
    for front in fronts:
        name, equals, path = front.partition("=")
        if not (name and equals and path):
            raise InputError(f"--front takes NAME=PATH, as in docs=docs.jsonl, got {front!r}.")
        if name in elements:
            raise InputError(f"front {name!r} is given twice.")
        elements[name] = _read(Path(path))
    for name in PARAMETERS:
        if name in elements:
            raise InputError(f"verify has a parameter {name!r}, so no front can have that name.")
    return elements, generate


def _made_by(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise InputError(
            f"{described(function)} raised {type(error).__qualname__}: {error}."
        ) from error


def _by_front(target: str, found: object) -> Elements:
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(
            f"{target} is not a dict from fronts to elements, nor a function that returns one, but "
            f"{shortened(found)}."
        )
    return {name: list(given) for name, given in found.items()}


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments a call must give: one asks for a `random.Random`."""
    parameters = inspect.signature(function).parameters.values()
    asked = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(asked) > 1:
        raise InputError(
            f"{described(function)} takes {len(asked)} arguments. A function of no argument returns "
            f"elements, one of a random.Random makes them."
        )
    return len(asked)


def _read(path: Path) -> list[Any]:
    try:
        with path.open(
            encoding="utf-8"
        ) as file:  # splitlines() knows ends of lines that JSON doesn't
            lines = [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if path.suffix.lower() not in _JSON_LINES:
        return lines
    elements = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            elements.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number} is not JSON: {error}.") from error
    return elements
