"""Which worker owns a key: the same answer in every process, on every machine, in every version.

Guarantees:

- `encode_key(a) == encode_key(b)` exactly when `a` and `b` are one key of a Python dict. Buckets
  are in dicts, while workers, sink partitions and the batch runner use the encoding. If the two
  disagreed, `1` and `1.0` would share a bucket on one worker and have two on two workers, and the
  output would depend on the number of workers.
- A key for which that cannot be guaranteed raises `UnstableKey`.
- `key_hash(key)` is xxh32 of the encoding as a signed 32-bit integer. It does not depend on
  PYTHONHASHSEED, memory addresses, module names or the Python version.
- `hash_ranges(workers)` covers the signed 32-bit integers without gap or overlap, and
  `owner(hash, workers)` is the index of the range that holds the hash.

Theory of operation. A str is encoded as its UTF-8 bytes and nothing else, so that any language can
compute the hash of the commonest key. Every other encoding begins with a tag between 0x80 and 0xBF,
with which no UTF-8 text can begin. Inside tuples and dataclasses each part is preceded by its
length, so parts can't run into each other. Numbers follow Python: True, 1 and 1.0 are one key,
hence one encoding.

The class of a value determines its encoding. A subclass is classified once, by the `__eq__` it
inherits, because the encoding has to reproduce equality: an IntEnum member equals its int and is
encoded as one, a named tuple as a tuple, a class with an `__eq__` of its own is refused. A
`__hash__` of its own is trusted to agree with `__eq__`, as Python requires.

NEVER change an encoding or the hash: they determine the layout of stored cuts and sink partitions,
and a changed one sends a key to a worker that does not hold its state. The golden values in the
tests fail on any change. If one is unavoidable, raise `KEY_ENCODING_VERSION`, which cuts can
record.
"""

import dataclasses
import struct
import types
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from xxhash import xxh32_intdigest, xxh64_intdigest

__all__ = [
    "ALL_HASHES",
    "KEY_ENCODING_VERSION",
    "WORKERS_MAX",
    "HashRange",
    "UnstableKey",
    "encode_key",
    "hash_ranges",
    "key_hash",
    "owner",
    "stable_id",
]

KEY_ENCODING_VERSION: Final = 1

HASH_MIN: Final = -(2**31)
HASH_MAX: Final = 2**31 - 1
WORKERS_MAX: Final = 2**16

_Encoder = Callable[[Any], bytes]

# Continuation bytes of UTF-8: no str begins with one, surrogates included.
_NONE: Final = b"\x80"
_INT: Final = 0x81
_BIG_INT: Final = b"\x82"
_FLOAT: Final = 0x83
_BYTES: Final = b"\x84"
_TUPLE: Final = b"\x85"
_ENUM: Final = b"\x86"
_FLAG: Final = b"\x87"
_DATACLASS: Final = b"\x88"
_DATE: Final = b"\x89"
_DATETIME_NAIVE: Final = b"\x8a"
_DATETIME_AWARE: Final = b"\x8b"
_TIME: Final = b"\x8c"
_TIMEDELTA: Final = b"\x8d"
_UUID: Final = b"\x8e"


class UnstableKey(TypeError):  # noqa: N818 (UnstableKeyError adds step and function to it)
    """A key, or a part of one, has no encoding that agrees with its equality.

    `path` leads to the part (`key[1].name`), `value_type` names its type and `advice` says what the
    key function should return in its place. All three are text, because a worker sends the error to
    a driver that may lack the class.

    >>> encode_key(("ada", [1, 2]))
    Traceback (most recent call last):
    emberflow.values.hashing.UnstableKey: key[1] is a list, which can change after it was hashed: \
instead of such an x return tuple(x)
    """

    def __init__(self, path: str, value_type: str, reason: str, advice: str) -> None:
        super().__init__(path, value_type, reason, advice)
        self.path = path
        self.value_type = value_type
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return (
            f"{self.path} is a {self.value_type}, {self.reason}: "
            f"instead of such an x return {self.advice}"
        )

    def inside(self, step: str) -> "UnstableKey":
        """The same error, as seen from the container that holds the key at `step`."""
        path = f"key{step}{self.path.removeprefix('key')}"
        return UnstableKey(path, self.value_type, self.reason, self.advice)


def encode_key(key: object) -> bytes:
    """The canonical bytes of a key: equal for equal keys, different for different ones.

    >>> encode_key("ada")
    b'ada'
    >>> encode_key(1) == encode_key(1.0) == encode_key(True)
    True
    >>> encode_key(("ab", "c")) == encode_key(("a", "bc"))
    False
    """
    return _ENCODERS[type(key)](key)


def key_hash(key: Any) -> int:
    """The stable hash of a key: a signed 32-bit integer.

    >>> key_hash("ada"), key_hash(("ada", 7))
    (-18984734, -1971325118)
    """
    kind = type(key)
    try:
        # The encoders of the commonest types, inlined to save a call. Values that they can't encode
        # (a lone surrogate, an int beyond 64 bits) are too rare to test for beforehand.
        if kind is str:
            digest = xxh32_intdigest(key.encode())
        elif kind is int:
            digest = xxh32_intdigest(_pack_int(_INT, key))
        elif kind is bytes:
            digest = xxh32_intdigest(_BYTES + key)
        else:
            digest = xxh32_intdigest(_ENCODERS[kind](key))
    except (UnicodeEncodeError, struct.error):
        digest = xxh32_intdigest(_ENCODERS[kind](key))
    return digest if digest < 0x80000000 else digest - 0x100000000


@dataclasses.dataclass(frozen=True, slots=True)
class HashRange:
    """The hashes from `low` to `high`, both included.

    >>> print(HashRange(-5, 5), 5 in HashRange(-5, 5), 6 in HashRange(-5, 5))
    [-5, 5] True False
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not HASH_MIN <= self.low <= self.high <= HASH_MAX:
            raise ValueError(
                f"a hash range needs {HASH_MIN} <= low <= high <= {HASH_MAX}, "
                f"got low={self.low!r}, high={self.high!r}"
            )

    def __contains__(self, hash: int) -> bool:
        return self.low <= hash <= self.high

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}]"


#: One range with all hashes in it.
ALL_HASHES: Final = (HashRange(HASH_MIN, HASH_MAX),)


def hash_ranges(workers: int) -> tuple[HashRange, ...]:
    """The range of each worker, in the order of the workers; their sizes differ by one at most.

    >>> print(*hash_ranges(3))
    [-2147483648, -715827883] [-715827882, 715827882] [715827883, 2147483647]
    """
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise ValueError(
            f"the number of workers must be an int from 1 to {WORKERS_MAX}, got {workers!r}"
        )
    # The least hash h with owner(h) == i is i * 2**32 / workers rounded up: -(-a // b).
    bounds = [-(-(i << 32) // workers) + HASH_MIN for i in range(workers + 1)]
    return tuple(HashRange(low, beyond - 1) for low, beyond in pairwise(bounds))


def owner(hash: int, workers: int) -> int:
    """The index of the range in `hash_ranges(workers)` that holds the hash.

    Senders call it for every item, so it checks nothing: `hash_ranges` checks the number of
    workers.

    >>> [owner(hash, 3) for hash in (-2147483648, -715827883, -715827882, 2147483647)]
    [0, 0, 1, 2]
    """
    return ((hash + 0x80000000) * workers) >> 32


def stable_id(*parts: str | int) -> int:
    """An unsigned 64-bit id, never 0, of the parts in this order.

    Used for the ids of physical operations, where 0 would vanish in the xor of a trace, and for the
    fingerprints of graphs.

    >>> stable_id("count", 0) != stable_id("count", 1)
    True
    >>> stable_id("a", "bc") != stable_id("ab", "c")
    True
    """
    if not parts or not all(isinstance(part, str | int) for part in parts):
        raise TypeError(f"a stable id is made of one or more str or int, got {parts!r}")
    return xxh64_intdigest(encode_key(parts)) or 1


def stable_id_of(name: str, numbers: tuple[int, ...]) -> int:
    """``stable_id(name, *numbers)``, in a fifth of the time.

    >>> stable_id_of("origin", (3, 0, -7)) == stable_id("origin", 3, 0, -7)
    True
    """
    try:
        packed = _int_packer(len(numbers))(
            *[part for each in numbers for part in (_INT_HEAD, each)]
        )
    except struct.error:  # an int beyond 64 bits
        return stable_id(name, *numbers)
    return xxh64_intdigest(_name_head(name) + packed) or 1


# --- Parts of an encoding -------------------------------------------------------------------------

_pack_int = struct.Struct(">Bq").pack
_pack_float = struct.Struct(">Bd").pack

#: Ahead of the eight bytes of an int that is a part: the length of its encoding, and its kind.
_INT_HEAD: Final = bytes((9, _INT))


@cache
def _int_packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(">" + "2sq" * count).pack


@cache
def _name_head(name: str) -> bytes:
    return encode_key((name,))


_SHORT: Final = tuple(bytes((length,)) for length in range(255))


def _length(encoded: bytes) -> bytes:
    """The length before a part: one byte below 255, else nine. No length is a prefix of another.

    >>> _length(b"ab"), _length(bytes(256))
    (b'\\x02', b'\\xff\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x00')
    """
    length = len(encoded)
    return _SHORT[length] if length < 255 else b"\xff" + length.to_bytes(8, "big")


def _refuse(value: object, reason: str, advice: str) -> NoReturn:
    raise UnstableKey("key", _type_name(type(value)), reason, advice)


def _type_name(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


# --- Encoders of exact types ----------------------------------------------------------------------


def _encode_none(_: None) -> bytes:
    return _NONE


def _encode_str(text: str) -> bytes:
    # A lone surrogate is a legal part of a str; it gets three bytes that no other text has.
    return text.encode("utf-8", "surrogatepass")


def _encode_bytes(data: bytes) -> bytes:
    return _BYTES + data


def _encode_int(number: int) -> bytes:
    try:
        return _pack_int(_INT, number)
    except struct.error:
        return _BIG_INT + number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _encode_float(number: float) -> bytes:
    if number.is_integer():
        return _encode_int(int(number))
    if number != number:
        _refuse(number, "here NaN, which does not equal itself", 'None or a string such as "nan"')
    return _pack_float(_FLOAT, number)


def _encode_parts(
    parts: tuple[Any, ...], head: bytes = _TUPLE, names: tuple[str, ...] = ()
) -> bytes:
    encoded = [head]
    try:
        for part in parts:
            code = _ENCODERS[type(part)](part)
            # `_length`, inlined: this loop is most of the cost of a composite key.
            encoded.append(_SHORT[len(code)] if len(code) < 255 else _length(code))
            encoded.append(code)
    except UnstableKey as problem:
        index = len(encoded) // 2
        raise problem.inside(f".{names[index]}" if names else f"[{index}]") from None
    return b"".join(encoded)


def _encode_date(day: date) -> bytes:
    return _DATE + _encode_int(day.toordinal())


_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


def _encode_datetime(when: datetime) -> bytes:
    zone = when.tzinfo
    wall_us = (when.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    if zone is None:
        return _DATETIME_NAIVE + _encode_int(wall_us)
    offset = when.utcoffset()
    if type(zone) is not timezone and not _is_one_instant(when):
        _refuse(
            when,
            "which its zone does not map to one instant and back (a clock change?)",
            "x.astimezone(datetime.UTC)",
        )
    if offset is None:
        # Python treats it as naive, and equal to the naive one.
        return _DATETIME_NAIVE + _encode_int(wall_us)
    # In integers, because the UTC instant of a sentinel like datetime.max may have no datetime.
    return _DATETIME_AWARE + _encode_int(wall_us - offset // _MICROSECOND)


def _is_one_instant(when: datetime) -> bool:
    """Whether equality of this aware datetime is equality of instants.

    Within one zone Python compares wall clocks and ignores `fold`; between zones it compares
    instants, except that a time whose offset depends on `fold` equals nothing (PEP 495). Both come
    to the same where wall clock and instant determine each other.
    """
    if when.utcoffset() != when.replace(fold=1 - when.fold).utcoffset():
        return False
    # ZoneInfo reveals a skipped time by its fold as well. Other zones may not, so
    # convert there and back.
    if type(when.tzinfo) is ZoneInfo or when.utcoffset() is None:
        return True
    try:
        back = when.astimezone(UTC).astimezone(when.tzinfo)
    except (ArithmeticError, ValueError, NotImplementedError):
        return False
    return back.replace(tzinfo=None) == when.replace(tzinfo=None)


def _encode_time(clock: time) -> bytes:
    if clock.tzinfo is not None:
        _refuse(
            clock,
            "with a zone but without the day that tells its offset",
            "x.replace(tzinfo=None) or a datetime",
        )
    return _TIME + clock.isoformat("microseconds").encode()


def _encode_timedelta(span: timedelta) -> bytes:
    return _TIMEDELTA + _encode_int(span // _MICROSECOND)


def _encode_uuid(identifier: UUID) -> bytes:
    return _UUID + identifier.int.to_bytes(16, "big")


_EXACT: Final[dict[type, _Encoder]] = {
    types.NoneType: _encode_none,
    bool: _encode_int,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    tuple: _encode_parts,
    date: _encode_date,
    datetime: _encode_datetime,
    time: _encode_time,
    timedelta: _encode_timedelta,
    UUID: _encode_uuid,
}

# --- Encoders of classes that inherit from them ---------------------------------------------------

# A subclass may override the methods that read it (`__int__`, `__iter__`, `encode`), which `__eq__`
# of the base ignores. So the base's own methods extract the plain value.
# Before Python 3.13 an instance of a subclass of date that is no datetime equals the datetimes of its
# day, which do not equal it. A dict keeps them apart by hash, and so do we.
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda data: bytes.__getitem__(data, slice(None)),
    tuple: lambda parts: tuple(tuple.__iter__(parts)),
    # Before date, of which it is a subclass.
    datetime: lambda when: datetime.combine(datetime.date(when), datetime.timetz(when)),
    date: lambda day: date.fromordinal(date.toordinal(day)),
    time: lambda clock: datetime.combine(_EPOCH, clock).timetz(),
    timedelta: timedelta.__pos__,
    UUID: lambda identifier: identifier,
}


class _Encoders(dict[type, _Encoder]):
    """A cache: the encoder of each class seen so far."""

    # A program that makes classes in a loop must not fill the memory with them.
    CLASSES_MAX: Final = 4096

    def __missing__(self, cls: type) -> _Encoder:
        if len(self) >= self.CLASSES_MAX:
            self.clear()
        encoder = self[cls] = _EXACT.get(cls) or _encoder_of(cls)
        return encoder


_ENCODERS: Final = _Encoders(_EXACT)


def _encoder_of(cls: type) -> _Encoder:
    base = next((base for base in _PLAIN if issubclass(cls, base)), None)
    if base is not None:
        if cls.__eq__ is not base.__eq__ or cls.__hash__ is None:
            return _refuser(*_own_equality(cls, base))
        plain, encode = _PLAIN[base], _EXACT[base]
        return lambda value: encode(plain(value))
    if issubclass(cls, Enum) and cls.__eq__ is object.__eq__:
        return _flag_encoder(cls) if issubclass(cls, Flag) else _enum_encoder(cls)
    if dataclasses.is_dataclass(cls):
        fault = _dataclass_fault(cls)
        return _refuser(*fault) if fault else _dataclass_encoder(cls)
    return _refuser(*_advice(cls))


def _refuser(reason: str, advice: str) -> _Encoder:
    return lambda value: _refuse(value, reason, advice)


def _head(tag: bytes, cls: type) -> bytes:
    # Without the module: a class of a script is in `__main__` on the driver and in a module of the
    # script's name where a worker imports it; both must encode it alike. Hence the keys of one step
    # must not mix two classes of the same qualified name: their instances would be encoded alike
    # without being equal.
    name = _encode_str(cls.__qualname__)
    return tag + _length(name) + name


def _enum_encoder(cls: type[Enum]) -> _Encoder:
    head = _head(_ENUM, cls)
    return lambda member: head + _encode_str(member._name_)


def _flag_encoder(cls: type[Flag]) -> _Encoder:
    # By value: combinations of flags need have no name.
    head = _head(_FLAG, cls)
    return lambda member: head + _encode_int(member._value_)


def _dataclass_encoder(cls: type) -> _Encoder:
    head = _head(_DATACLASS, cls)
    names = _compared(cls)
    if len(names) > 1:
        parts: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
    else:
        # Given one name, attrgetter would return no tuple.
        def parts(instance: Any) -> tuple[Any, ...]:
            return tuple(getattr(instance, name) for name in names)

    return lambda instance: _encode_parts(parts(instance), head, names)


def _compared(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.compare)


# --- What is refused, why, and what to return instead ---------------------------------------------


def _dataclass_fault(cls: Any) -> tuple[str, str] | None:
    fields = [f"x.{name}" for name in _compared(cls)]
    identity = fields[0] if len(fields) == 1 else f"({', '.join(fields)})"
    identity = f"what identifies it, such as {identity}"
    options = cls.__dataclass_params__
    if not options.eq:
        return (
            "a dataclass with eq=False, equal only to itself",
            f"{identity}, or drop eq=False",
        )
    if not options.frozen:
        return (
            "a dataclass that can change after it was hashed",
            f"{identity}, or declare it @dataclass(frozen=True)",
        )
    if not _has_generated_eq(cls):
        return "a dataclass with an __eq__ of its own, which no encoding can follow", identity
    if cls.__hash__ is None or any(f.hash and not f.compare for f in dataclasses.fields(cls)):
        return "a dataclass that hashes differently from how it compares", identity
    return None


def _has_generated_eq(cls: Any) -> bool:
    """Whether `__eq__` does what @dataclass generates for the fields of this class.

    Nothing marks a generated method, and @dataclass silently keeps a hand-written one. So we
    generate one for the same fields and compare the code.
    """
    twin = dataclasses.make_dataclass("Twin", _compared(cls), frozen=True)
    code = attrgetter("co_code", "co_consts", "co_names", "co_varnames")
    found = getattr(cls.__eq__, "__code__", None)
    return found is not None and bool(code(found) == code(twin.__eq__.__code__))


def _own_equality(cls: type, base: type) -> tuple[str, str]:
    if cls.__module__.partition(".")[0] == "numpy":
        return _NUMPY
    return (
        f"a subclass of {base.__name__} with an equality or hash of its own",
        _PLAIN_ADVICE.get(base, f"{base.__name__}(x)"),
    )


_PLAIN_ADVICE: Final[dict[type, str]] = {
    date: "a plain datetime.date",
    datetime: "a plain datetime.datetime (pandas: x.to_pydatetime(), or None for NaT)",
    time: "a plain datetime.time",
    timedelta: "a plain datetime.timedelta (pandas: x.to_pytimedelta())",
    UUID: "UUID(int=x.int)",
}
_NUMPY: Final = ("a numpy value, whose equality and hash are numpy's", "x.item()")
_CHANGES: Final = "which can change after it was hashed"
_CROSSES: Final = "which equals numbers of other types"

_ADVICE: Final[tuple[tuple[Any, str, str], ...]] = (
    ((list, deque), _CHANGES, "tuple(x)"),
    (set, _CHANGES, "tuple(sorted(x))"),
    (frozenset, "whose order differs from process to process", "tuple(sorted(x))"),
    ((dict, types.MappingProxyType), _CHANGES, "tuple(sorted(x.items()))"),
    ((bytearray, memoryview), _CHANGES, "bytes(x)"),
    (Decimal, _CROSSES, "str(x) or an int of the smallest unit, such as cents"),
    (Fraction, _CROSSES, "(x.numerator, x.denominator)"),
    (complex, _CROSSES, "(x.real, x.imag)"),
    (range, "which is a recipe rather than a value", "(x.start, x.stop, x.step)"),
    (type, "which is another object in every process", "x.__qualname__"),
    (
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType),
        "which is another object in every process",
        "what it returns (was a call forgotten?) or x.__qualname__",
    ),
    (Enum, "an Enum with an __eq__ of its own", "x.name"),
)


def _advice(cls: type) -> tuple[str, str]:
    if cls.__module__.partition(".")[0] == "numpy":
        return _NUMPY
    for kinds, reason, advice in _ADVICE:
        if issubclass(cls, kinds):
            return reason, advice
    return (
        "whose equality may depend on the process it lives in",
        "the field that identifies it, or make its class a frozen dataclass",
    )
