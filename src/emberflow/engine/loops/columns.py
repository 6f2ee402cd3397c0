"""Items and values by column: a frame takes half the bytes, and less than half the time of pickling its
items as they are.

What is guaranteed: what was packed is unpacked as it was, by the compiled module (``_columns``) and by
this one. Anything else is refused before memory is taken for it: the lengths of all columns are compared
with the count first.

Packing is worth it only where it is compiled; in Python it would take longer than pickling. So a worker
without the compiled module sends items as they are, and reads what others packed.
"""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

from emberflow import native
from emberflow.values.item import FlatItem

#: Values by column: 64-bit words if they are ints that fit, a tuple of columns if they are tuples of one
#: length, with their class ahead of the columns if they are named tuples. If they are of a few classes, of
#: which some are tuples, a dict of one entry: a byte for each value, which class it has, and the columns of the
#: classes. Else the list of them.
Column: TypeAlias = (
    "bytes | tuple[type | Column, ...] | dict[bytes, tuple[Column, ...]] | list[Any]"
)

#: Places by column, an int where all have the same one. If they differ in length, a list with the lengths, as
#: bytes, is ahead of them.
Places: TypeAlias = "tuple[list[bytes] | int | bytes, ...]"

#: How many items; their places; their marks, one int if all have the same one; their payloads.
Packed: TypeAlias = "tuple[int, Places, int | list[int], Column]"

#: No more columns are side by side, and no more tuples inside one another.
_COLUMNS_MAX = 64
_DEPTH_MAX = 3
_CLASSES_MAX = 8
_WORD = 8
#: What a class of named tuples may define to be pickled otherwise than as its fields.
_PICKLED_OTHERWISE = frozenset({"__reduce__", "__reduce_ex__", "__getstate__"})


def _pack(items: list[FlatItem]) -> Packed | None:
    """Items by column; None if their places do not fit."""
    return None


def _unpack(count: int, places: Places, marks: int | list[int], payloads: Column) -> list[FlatItem]:
    """The items again."""
    _check_kind("count", count, int)
    _check_kind("places", places, tuple)
    _check_count(count)
    _check_places(places, count)
    _check_marks(marks, count)
    values = _unpack_column(payloads, count)
    if not count:
        return []
    widths, of_places = _widths_and_columns(places)
    columns = [[one] * count if isinstance(one, int) else array("q", one) for one in of_places]
    whole = list(zip(*columns, strict=True)) or [()] * count
    if widths is not None:
        whole = [place[:width] for place, width in zip(whole, widths[0], strict=True)]
    of_all = [marks] * count if isinstance(marks, int) else marks
    return list(zip(whole, of_all, values, strict=True))


def _pack_column(values: list[Any]) -> Column:
    """Values by column."""
    return values


def _unpack_column(column: Column, count: int) -> list[Any]:
    """The values again."""
    _check_kind("count", count, int)
    _check_count(count)
    _check_column(column, count, 0)
    return _values(column)


def _values(column: Column) -> list[Any]:
    """The values of a column that has been checked."""
    if isinstance(column, bytes):
        return array("q", column).tolist()
    if isinstance(column, tuple):
        named, columns = _class_and_columns(column)
        values = zip(*map(_values, columns), strict=True)
        return list(values) if named is None else [tuple.__new__(named, value) for value in values]
    if isinstance(column, dict):
        ((which, of_classes),) = column.items()
        of_class = [iter(_values(part)) for part in of_classes]
        return [next(of_class[each]) for each in which]
    return column


def _class_and_columns(column: tuple[Any, ...]) -> tuple[type | None, tuple[Any, ...]]:
    if column and isinstance(column[0], type):
        return column[0], column[1:]
    return None, column


def _is_named(kind: type) -> bool:
    """Whether a class is one of named tuples that are nothing but their fields, and are pickled as these."""
    return (
        kind.__base__ is tuple
        and kind.__basicsize__ == tuple.__basicsize__
        and not kind.__dictoffset__
        and {"_fields", "_make"} <= kind.__dict__.keys()
        and not _PICKLED_OTHERWISE & kind.__dict__.keys()
    )


def _check_kind(name: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"`{name}` must be of type {kind.__name__}, got {type(value).__name__}")


def _check_count(count: int) -> None:
    if count < 0:
        raise ValueError(f"`count` must not be negative, got {count}")


def _check_column(column: Any, count: int, depth: int) -> None:
    if type(column) is bytes:
        _check_words(column, count)
    elif type(column) is list:
        if len(column) != count:
            raise ValueError(f"a column has {len(column)} values, and {count} were sent")
    elif type(column) is tuple:
        if depth == _DEPTH_MAX:
            raise ValueError(f"columns are nested more than {_DEPTH_MAX} deep")
        named, columns = _class_and_columns(column)
        if named is not None and not _is_named(named):
            raise TypeError(f"a column must be of plain or named tuples, got {named.__name__}")
        _check_width(columns, count)
        for part in columns:
            _check_column(part, count, depth + 1)
    elif type(column) is dict:
        _check_mixed(column, count, depth)
    else:
        raise TypeError(
            f"a column must be bytes, a tuple, a dict or a list, got {type(column).__name__}"
        )


def _check_mixed(column: dict[Any, Any], count: int, depth: int) -> None:
    which, of_classes = next(iter(column.items()), (None, None))
    if (
        len(column) != 1
        or type(which) is not bytes
        or type(of_classes) is not tuple
        or len(of_classes) > _CLASSES_MAX
    ):
        raise TypeError(
            f"a column of several classes must be bytes and up to {_CLASSES_MAX} columns"
        )
    if len(which) != count:
        raise ValueError(f"a column has {len(which)} values, and {count} were sent")
    for each in which:
        if each >= len(of_classes):
            raise ValueError(f"a value has class {each} of {len(of_classes)}")
    for number, part in enumerate(of_classes):
        if type(part) is dict:
            raise ValueError("a column of one class is one of several classes")
        _check_column(part, which.count(number), depth)


def _check_words(column: bytes, count: int) -> None:
    if len(column) != count * _WORD:
        raise ValueError(f"a column has {len(column)} bytes, which are not {count} words")


def _check_width(columns: tuple[Any, ...], count: int) -> None:
    if len(columns) > _COLUMNS_MAX:
        raise ValueError(
            f"{len(columns)} columns are side by side, and {_COLUMNS_MAX} are the most"
        )
    if not columns and count:
        raise ValueError(f"there are no columns, and {count} values were sent")


def _widths_and_columns(places: tuple[Any, ...]) -> tuple[list[Any] | None, tuple[Any, ...]]:
    if places and type(places[0]) is list:
        return places[0], places[1:]
    return None, places


def _check_places(places: tuple[Any, ...], count: int) -> None:
    widths, columns = _widths_and_columns(places)
    _check_width(columns, count)
    if widths is not None:
        if len(widths) != 1 or type(widths[0]) is not bytes:
            raise TypeError("the lengths of places must be bytes in a list")
        if len(widths[0]) != count:
            raise ValueError(f"{len(widths[0])} lengths of places came, and {count} were sent")
        for width in widths[0]:
            if width > len(columns):
                raise ValueError(
                    f"a place has length {width}, and there are {len(columns)} columns"
                )
    for column in columns:
        if type(column) is bytes:
            _check_words(column, count)
        elif type(column) is not int:
            raise TypeError(
                f"a column of places must be an int or bytes, got {type(column).__name__}"
            )


def _check_marks(marks: Any, count: int) -> None:
    if type(marks) is list:
        if len(marks) != count:
            raise ValueError(f"{len(marks)} marks came for {count} items")
    elif type(marks) is not int:
        raise TypeError(f"marks must be an int or a list, got {type(marks).__name__}")


if native.columns is None:
    pack, unpack, pack_column, unpack_column = _pack, _unpack, _pack_column, _unpack_column
else:
    pack, unpack = native.columns.pack, native.columns.unpack
    pack_column, unpack_column = native.columns.pack_column, native.columns.unpack_column
