"""Filters on the key, which Spark pushes down to the reader before it reads.

An accepted filter has two uses. It is a *test* of a key: if the key fails it, the reader skips the
rest of the row. And if the filters allow only certain keys (``=`` and ``in``), the *hashes* of these
keys tell which row groups, and which workers, can have them.

**The rule: an accepted filter gives exactly the answer that Spark would give**, because Spark does not
check it again. So the reader accepts a filter only if Python compares as Spark does. The type of the
column must be the one that the stored keys have by themselves (a schema with another type is followed,
but no filter is accepted). And it must be one of a few types whose order and equality are the same on
both sides. Strings are: Spark orders them by their UTF-8 bytes, which is the order of code points. The
reader leaves every other filter to Spark, which is slower but never wrong.

A key that is a tuple, a named tuple or a dataclass is a struct. Filters test its fields one by one; if
they limit each field to certain values, the keys are known and so are their hashes. All keys of a
state are assumed to be of one class, that of the sample.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql import types as sql

from emberflow.errors import InputError
from emberflow.rows.conditions import EQUAL, IS_NULL, KEYS_MAX, WITHIN, Condition, choices
from emberflow.rows.state_columns import KEY
from emberflow.values.hashing import UnstableKey, key_hash

_COMPARED: dict[type, str] = {
    spark.EqualTo: EQUAL,
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}
_OF_TEXT: dict[type, str] = {
    spark.StringStartsWith: "starts with",
    spark.StringEndsWith: "ends with",
    spark.StringContains: "contains",
}


@dataclass(frozen=True, slots=True)
class KeyFilters:
    """All accepted filters: a key has to pass each."""

    tests: tuple[Condition, ...] = ()
    #: The hashes of the only keys that can pass; None if they are not known.
    hashes: tuple[int, ...] | None = None

    def test(self) -> Callable[[Any], bool] | None:
        """The test of a key; None if every key passes."""
        if not self.tests:
            return None
        if len(self.tests) == 1:
            return self.tests[0]
        tests = self.tests
        return lambda key: all(test(key) for test in tests)

    def and_also(self, other: KeyFilters) -> KeyFilters:
        """The filters that pass what both pass."""
        tests = (*self.tests, *other.tests)
        if self.hashes is None or other.hashes is None:
            hashes = other.hashes if self.hashes is None else self.hashes
        else:
            hashes = _sorted(set(self.hashes) & set(other.hashes))
        return KeyFilters(tests, hashes)


def only_key(text: str, state: str, found: sql.DataType | None) -> KeyFilters:
    """The filter of ``.option("key", text)``; ``found`` is the type of the stored keys.

    >>> only_key("7", "counts", sql.LongType()).tests[0].value
    7
    """
    kind = sql.NullType() if found is None else found
    parse = _FROM_TEXT.get(type(kind))
    if parse is None:
        raise InputError(
            f"state {state!r}: .option('key', ...) is for keys that are strings, whole numbers or "
            f"dates, and these are {kind.simpleString()}. Filter the DataFrame."
        )
    try:
        value = parse(text)
    except ValueError:
        raise InputError(
            f"state {state!r}: .option('key', ...) takes a {kind.simpleString()}, the type of the "
            f"keys; got {text!r}."
        ) from None
    return KeyFilters((Condition(EQUAL, value),), (key_hash(value),))


_FROM_TEXT: dict[type[sql.DataType], Callable[[str], Any]] = {
    sql.StringType: str,
    sql.LongType: int,
    sql.DateType: datetime.date.fromisoformat,
}


def accepted(
    filters: Iterable[spark.Filter],
    declared: sql.DataType | None,
    found: sql.DataType | None,
    keys: Sequence[Any] = (),
) -> tuple[KeyFilters, list[spark.Filter]]:
    """The filters that the reader applies, and those that it leaves to Spark.

    ``declared`` is the type of the column ``key``, ``found`` that of the stored keys. If a sample of
    the ``keys`` is given, the hashes of keys with fields can be found too.
    """
    tests: list[Condition] = []
    refused: list[spark.Filter] = []
    usable = declared is not None and found is not None and _nameless(found) == _nameless(declared)
    for each in filters:
        test = _test_of(each, declared) if usable and declared is not None else None
        if test is None:
            refused.append(each)
        else:
            tests.append(test)
    return KeyFilters(tuple(tests), _hashes(tests, keys)), refused


def _nameless(kind: sql.DataType) -> Any:
    """A type without the names of its fields: a schema may name the fields of a tuple."""
    if isinstance(kind, sql.StructType):
        return tuple(_nameless(field.dataType) for field in kind.fields)
    return kind


def _test_of(pushed: spark.Filter, declared: sql.DataType) -> Condition | None:
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    field: tuple[str, int] | None = None
    kind = declared
    if len(path) == 2 and isinstance(declared, sql.StructType) and path[1] in declared.names:
        number = declared.names.index(path[1])
        field, kind = (path[1], number), declared.fields[number].dataType
    elif len(path) != 1:
        return None
    if path[0] != KEY:
        return None
    if isinstance(pushed, spark.IsNotNull):
        return Condition("is not null", None, field)
    if isinstance(pushed, spark.IsNull):
        return Condition(IS_NULL, None, field)
    if isinstance(pushed, spark.In):
        values = [value for value in pushed.value if value is not None]
        if all(_is_of(value, kind) for value in values):
            return Condition(WITHIN, frozenset(values), field)
        return None
    value = getattr(pushed, "value", None)
    compare = _COMPARED.get(type(pushed))
    if compare is not None and _is_of(value, kind):
        return Condition(compare, value, field)
    of_text = _OF_TEXT.get(type(pushed))
    if of_text is not None and kind == sql.StringType() and isinstance(value, str):
        return Condition(of_text, value, field)
    return None


#: The types whose equality and order are the same in Python and in Spark.
_PYTHON_TYPES: dict[type[sql.DataType], type] = {
    sql.LongType: int,
    sql.BooleanType: bool,
    sql.BinaryType: bytes,
    sql.DateType: datetime.date,
}


def _is_of(value: Any, kind: sql.DataType) -> bool:
    """Whether the value of a filter can be compared with keys of this type."""
    if isinstance(kind, sql.StringType):
        return kind == sql.StringType() and type(value) is str  # else it has a collation
    if isinstance(kind, sql.DoubleType):
        # In Spark NaN is greater than everything, in Python all comparisons with it are false.
        return type(value) in (int, float) and value == value
    if isinstance(kind, sql.TimestampType | sql.TimestampNTZType):
        zoned = isinstance(kind, sql.TimestampType)
        return type(value) is datetime.datetime and (value.tzinfo is not None) == zoned
    return _PYTHON_TYPES.get(type(kind)) is type(value)


def _hashes(tests: list[Condition], keys: Sequence[Any]) -> tuple[int, ...] | None:
    if not keys:
        return None
    allowed = choices(tests)
    try:
        if None in allowed:
            found = _limited([allowed[None]])
            return None if found is None else _sorted(key_hash(key) for (key,) in found)
        return _struct_hashes({field: own for field, own in allowed.items() if field}, keys)
    except UnstableKey:
        return None


def _struct_hashes(
    choices: dict[tuple[str, int], frozenset[Any]], keys: Sequence[Any]
) -> tuple[int, ...] | None:
    """The hashes of all keys that can be made of the allowed values of the fields."""
    by_name = {name: own for (name, _), own in choices.items()}
    by_number = {number: own for (_, number), own in choices.items()}
    hashes: set[int] = set()
    kinds = {type(key) for key in keys if key is not None}
    for kind in kinds:
        parts: list[Any]
        if issubclass(kind, tuple):
            parts = list(range(max(len(key) for key in keys if type(key) is kind)))
            own = [by_number.get(number) for number in parts]
        elif dataclasses.is_dataclass(kind):
            parts = [field.name for field in dataclasses.fields(kind) if field.compare]
            own = [by_name.get(name) for name in parts]
        else:
            return None
        found = _limited([each for each in own if each is not None]) if all(own) else None
        if found is None:
            return None
        for values in found:
            hashes.add(key_hash(values if issubclass(kind, tuple) else _made(kind, parts, values)))
    return _sorted(hashes) if kinds else None


def _limited(choices: list[frozenset[Any]]) -> list[tuple[Any, ...]] | None:
    """All combinations, unless they are too many."""
    count = 1
    for each in choices:
        count *= len(each)
    return list(itertools.product(*choices)) if count <= KEYS_MAX else None


def _made(kind: type, names: list[str], values: tuple[Any, ...]) -> Any:
    """An instance with the fields that its hash needs. Only `key_hash` sees it, so its `__init__` does
    not run."""
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _sorted(hashes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(hashes)))
