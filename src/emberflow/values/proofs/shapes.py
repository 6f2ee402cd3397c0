"""Shapes: what is known of a value, and of a part of it.

- `KEY`: it is the key;
- `Keyed(f)`: a payload of which ``f`` makes the key;
- `Parts(...)`: a tuple, with a shape for each of its parts;
- `Several(shape)`: a tuple of any length above 0, or what a function gives one after the other, all of
  one shape;
- `Fields(...)`: a named tuple, with a shape for each of its fields;
- `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias


class Known(NamedTuple):
    """Of a value: that it is the key, or a constant."""

    what: str
    constant: Any = None


class Keyed(NamedTuple):
    """Of a value: that this function makes the key of it."""

    by: Callable[[Any], Any]


class Parts(NamedTuple):
    """Of a tuple: what is known of each of its parts."""

    of: tuple[Shape, ...]


class Several(NamedTuple):
    """Of values in a row: what is known of each."""

    each: Shape


class Fields(NamedTuple):
    """Of a named tuple: what is known of each of its fields, in their order."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]


Shape: TypeAlias = Known | Keyed | Parts | Several | Fields

UNKNOWN = Known("unknown")
KEY = Known("key")


def part_of(shape: Shape, index: Shape) -> Shape:
    """What is known of ``value[index]``."""
    if not (isinstance(index, Known) and index.what == "constant" and type(index.constant) is int):
        return UNKNOWN
    if isinstance(shape, Several):
        return shape.each
    parts = shape.of if isinstance(shape, Parts) else ()
    parts = shape.shapes if isinstance(shape, Fields) else parts
    if -len(parts) <= index.constant < len(parts):
        return parts[index.constant]
    return UNKNOWN


def field_of(shape: Shape, name: str) -> Shape:
    """What is known of ``value.name``."""
    if isinstance(shape, Fields) and name in shape.names:
        return shape.shapes[shape.names.index(name)]
    return UNKNOWN
