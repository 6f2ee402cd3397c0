"""The encoding agrees with Python's equality, and neither it nor the hash ever changes.

Run as a program, this file prints the hashes of its golden keys: that is how the tests look at them
from processes with other hash seeds, where the classes below live in `__main__`.
"""

import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from emberflow.values.hashing import (
    HASH_MAX,
    HASH_MIN,
    WORKERS_MAX,
    HashRange,
    UnstableKey,
    _Encoders,
    encode_key,
    hash_ranges,
    key_hash,
    owner,
    stable_id,
    stable_id_of,
)
from tests.effort import examples


class Pair(NamedTuple):
    left: Any
    right: Any


Single = namedtuple("Single", ["only"])


class Color(Enum):
    RED = 1
    ROUGE = 1  # noqa: PIE796 (an alias)
    BLUE = 2


class Shade(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Half(float, Enum):
    ONE = 0.5
    TWO = 1.0


class Word(StrEnum):
    RED = "RED"
    ONE = "1"


class Raw(bytes, Enum):
    ONE = b"1"


class Corner(tuple, Enum):  # type: ignore[type-arg]
    ONE = (1,)
    TWO = (1, 2)


class Holiday(date, Enum):
    NEW_YEAR = 2024, 1, 1


class Bits(IntFlag):
    A = 1
    B = 2


class Permission(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class User:
    name: Any
    age: Any = 0
    note: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class One:
    name: Any


@dataclasses.dataclass(frozen=True)
class Nothing:
    pass


class Member(User):
    """No dataclass of its own; equal to other members only."""


class Shouting(str):
    """Has another ``str`` than the text that it equals."""

    def __str__(self) -> str:
        return self.upper()

    def encode(self, *_: Any) -> bytes:
        return b"!"


class Negated(int):
    def __int__(self) -> int:
        return -1

    def __index__(self) -> int:
        return -1


class Reversed(tuple):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return reversed(tuple(tuple.__iter__(self)))


class Clock(time):
    def __new__(cls, hour: int) -> "Clock":
        return time.__new__(cls, hour, 30)

    def isoformat(self, *_: Any) -> str:
        return "late"


class Moment(datetime):
    pass


class Nowhere(tzinfo):
    """A zone without offset, which makes a datetime naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


PARIS, NEW_YORK = ZoneInfo("Europe/Paris"), ZoneInfo("America/New_York")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)

# Keys that are easily mistaken for one another.
ATOMS: list[Any] = [
    *(None, "None", "", b"", (), "\x80", b"\x80", "\x00", "é", "é".encode(), "e\u0301"),
    *(False, 0, 0.0, -0.0, Permission(0), Bits(0), timedelta(0), "0", b"0", UUID(int=0)),
    *(True, 1, 1.0, Level.LOW, Half.TWO, Bits.A, Permission.READ, Color.RED, Color.ROUGE),
    *(Shade.RED, Word.RED, Word.ONE, Raw.ONE, "RED", "1", b"1", UUID(int=1), Negated(1), -1),
    *(Corner.ONE, Corner.TWO, (1,), (1, 2), (2, 1), Pair(1, 2), Reversed((1, 2)), Single(1)),
    *(2, Level.HIGH, Bits.A | Bits.B, 3, Permission.READ | Permission.WRITE, Color.BLUE),
    *(0.5, Half.ONE, -0.5, 5e-324, float("inf"), float("-inf"), "inf", 0.1 + 0.2, 0.3),
    *(n + d for n in (127, 255, 2**31, 2**53, 2**63, -(2**63), 2**64, 2**71) for d in (-1, 0, 1)),
    *(2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e300, int(1e300), int(1e300) + 1, -int(1e300)),
    *("\ud800\udc00", "\U00010000", "\ud800", "x" * 254, "x" * 255, "x" * 256, b"x" * 255),
    *(Shouting("red"), "red", Shouting("RED")),
    *(date(2024, 1, 1), Holiday.NEW_YEAR, datetime(2024, 1, 1), Moment(2024, 1, 1)),
    *(datetime(2024, 1, 1, tzinfo=Nowhere()), datetime(2024, 1, 2, tzinfo=Nowhere())),
    *(datetime(2024, 1, 1, fold=1), datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01", 738886),
    *(NOON, NOON.astimezone(PARIS), NOON.astimezone(NEW_YORK), NOON.replace(tzinfo=PARIS)),
    *(NOON.astimezone(timezone(timedelta(hours=5, microseconds=1))), NOON.replace(tzinfo=None)),
    *(Moment.fromtimestamp(NOON.timestamp(), NEW_YORK), NOON.astimezone(PARIS).replace(fold=1)),
    *(datetime.max.replace(tzinfo=NEW_YORK), datetime.max.replace(tzinfo=UTC), datetime.max),
    *(datetime.min.replace(tzinfo=PARIS), datetime.min, time.min, time.max, time(12, fold=1)),
    *(time(12), time(12, 30), Clock(12), time(12, 0, 0, 1), timedelta(1), timedelta(hours=24)),
    *(timedelta(microseconds=1), timedelta.max, timedelta.min, timedelta(-1), 86_400_000_000),
    *(User(1), User(1.0, note=2), User(1, 1), User("1"), Member(1), One(1), One(True), Nothing()),
    *(("User", 1, 0), (1, 0), (1, 0, None), User((1, 2)), User(Pair(1, 2)), User(User(1))),
    *(((),), ((), ()), (((),),), ("",), ("", ""), (None,), ("ab", "c"), ("a", "bc"), ("abc",)),
    *(("a", ("b", "c")), (("a", "b"), "c"), ("a", "b", "c"), ("x" * 255, ""), ("x" * 256,)),
]


def assert_agree(a: Any, b: Any) -> None:
    # Compared both ways: before Python 3.13 a subclass of date equals a datetime that does not
    # equal it.
    same = a == b and b == a
    assert (len({a: 0, b: 0}) == 1) == same, (a, b)
    assert (encode_key(a) == encode_key(b)) == same, (a, b)
    if same:
        assert key_hash(a) == key_hash(b)


def test_every_pair_of_lookalikes_is_one_key_to_a_dict_exactly_when_to_the_encoding() -> None:
    for a, b in itertools.combinations_with_replacement(ATOMS, 2):
        assert_agree(a, b)
        assert_agree((a, b), (b, a))


atoms = st.one_of(
    st.sampled_from(ATOMS),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(), max_size=3),  # surrogates too
    st.binary(max_size=3),
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-3))])),
    st.timedeltas(),
)
keys: st.SearchStrategy[Any] = st.recursive(
    atoms,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(tuple),
        st.builds(Pair, parts, parts),
        st.builds(User, parts, parts),
        st.builds(One, parts),
    ),
    max_leaves=6,
)


def lookalikes(key: Any) -> st.SearchStrategy[Any]:
    """Keys that equal this one, or almost do."""
    near = [st.just(key), st.sampled_from(ATOMS), st.just((key,)), st.just(One(key))]
    if isinstance(key, int | float) and abs(key) < 2**80:
        near += [st.sampled_from([float(key), int(key), int(key) + 1, bool(key), str(key)])]
        near += [st.sampled_from([e for e in (*Level, *Half) if e == key] or [key])]
    if isinstance(key, str):
        data = str.encode(key, "utf-8", "surrogatepass")
        near += [st.sampled_from([Shouting(key), data, key + "\0", (*str.__iter__(key),)])]
    if isinstance(key, datetime) and key.tzinfo is not None and 1 < key.year < 9999:
        near += [st.sampled_from([PARIS, NEW_YORK, UTC]).map(key.astimezone)]
        near += [st.just(key.replace(tzinfo=None)), st.just(key.replace(fold=1))]
    if isinstance(key, User):
        near += [st.builds(type(key), lookalikes(key.name), lookalikes(key.age), keys)]
        near += [st.just((key.name, key.age)), st.just(Member(key.name, key.age))]
    if type(key) in (tuple, Pair):
        twins = st.tuples(*map(lookalikes, key))
        near += [twins, st.just(key[:-1]), st.just((*key[:-1], key[-1:]))]
        near += [twins.map(Pair._make)] if len(key) == 2 else []
        flat = [part if isinstance(part, tuple) else (part,) for part in key]
        near += [st.just(tuple(itertools.chain(*flat)))]
    return st.one_of(near)


@settings(max_examples=examples(250), deadline=None)
@given(st.data())
def test_nested_keys_are_one_to_a_dict_exactly_when_to_the_encoding(data: st.DataObject) -> None:
    a = data.draw(keys)
    b = data.draw(lookalikes(a))
    try:
        encode_key(b)
    except UnstableKey as error:
        # Some instants fall into a clock change of the other zone.
        assume("a clock change?" not in error.reason)
        raise
    assert_agree(a, b)


@given(keys)
def test_the_hash_is_the_signed_xxh32_of_the_encoding(key: Any) -> None:
    expected = xxh32_intdigest(encode_key(key)).to_bytes(4, "big")
    assert key_hash(key) == int.from_bytes(expected, "big", signed=True)


# Stored cuts and sink partitions are laid out by these hashes. A failure here means that a change
# makes all of them unreadable: do not adjust the values, revert the change.
GOLDEN: list[tuple[Any, int]] = [
    (None, 767482102),
    ("", 46947589),
    ("ada", -18984734),
    # Found by search: the ends of the range, and the two sides of zero.
    ("ihl0ewol", HASH_MIN),
    ("y6ucechl", HASH_MAX),
    ("prw86e9k", -1),
    ("conrtd8p", 0),
    ("é\ud800", -46583050),
    (b"ada", 615016597),
    (True, -687627494),
    (-1, -1999690844),
    (2**64, 1673021799),
    (-0.5, -1106025479),
    (float("inf"), 1724134993),
    ((), -2063192863),
    (("ada", 7, (None, "x" * 300)), -997514590),
    (Pair("ada", 1.0), 1568860669),
    (Color.BLUE, 1229203345),
    (Permission.READ | Permission.WRITE, 1647969070),
    (User("ada", 36), -643408266),
    (date(2024, 2, 29), -522786873),
    (datetime(2024, 2, 29, 12, 30, 0, 5), 1162488475),
    (datetime(2024, 2, 29, 12, 30, tzinfo=NEW_YORK), -988960952),
    (time(23, 59, 59, 999_999), 1298063925),
    (timedelta(days=-1, microseconds=1), 1314030306),
    (UUID("12345678-1234-5678-1234-567812345678"), -160808247),
]


def test_the_hash_has_not_changed() -> None:
    assert [key_hash(key) for key, _ in GOLDEN] == [expected for _, expected in GOLDEN]


def test_stable_ids_have_not_changed() -> None:
    assert [stable_id("count"), stable_id("count", 7), stable_id(-1, "é")] == [
        18030602938207716242,
        2896312311032629264,
        17299602052085721800,
    ]


def test_the_hash_is_the_same_in_processes_with_other_hash_seeds_and_in_main() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (program.communicate()[0].split() for program in programs)
    (salted, *hashes), (salted_otherwise, *others) = first, second
    assert salted != salted_otherwise, "the seeds made no difference: nothing was tested"
    assert hashes == others == [str(expected) for _, expected in GOLDEN]


# --- What is refused ------------------------------------------------------------------------------


class Plain:
    pass


class Equal(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Unhashable(int):
    __hash__ = None  # type: ignore[assignment]


class Lonely(int, Enum):
    ONE = 1
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Odd(Enum):
    ONE = 1

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Enum.__hash__


@dataclasses.dataclass
class Thawed:
    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Identical:
    name: str


@dataclasses.dataclass(frozen=True)
class HandWritten:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HandWritten)


@dataclasses.dataclass(frozen=True)
class HashesMore:
    name: str
    age: int = dataclasses.field(default=0, compare=False, hash=True)


@dataclasses.dataclass(frozen=True)
class Text(str):
    """Equal to other texts by its field, and to a str by its letters."""

    name: str = ""


@dataclasses.dataclass(frozen=True)
class Unhashed:
    name: str

    __hash__ = None  # type: ignore[assignment]


class InheritsHandWritten(HandWritten):
    pass


class Skipping(tzinfo):
    """Like dateutil's zones: skips an hour, and its offsets do not depend on `fold`."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        return timedelta(hours=moment.replace(tzinfo=None) >= datetime(2024, 3, 31, 2))

    def dst(self, moment: datetime | None) -> timedelta:
        return self.utcoffset(moment)


class Unfinished(tzinfo):
    """Cannot convert back from UTC: it lacks `dst`."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)


REFUSED: list[tuple[Any, str, str]] = [
    ([1], "list", "tuple(x)"),
    ({1}, "set", "tuple(sorted(x))"),
    (frozenset({1}), "frozenset", "tuple(sorted(x))"),
    ({"a": 1}, "dict", "tuple(sorted(x.items()))"),
    (OrderedDict(a=1), "collections.OrderedDict", "tuple(sorted(x.items()))"),
    (bytearray(b"a"), "bytearray", "bytes(x)"),
    (Decimal(1), "decimal.Decimal", "str(x) or an int of"),
    (Fraction(1), "fractions.Fraction", "(x.numerator, x.denominator)"),
    (1j, "complex", "(x.real, x.imag)"),
    (float("nan"), "float", "None or a string"),
    (range(3), "range", "(x.start, x.stop, x.step)"),
    (len, "builtin_function_or_method", "a call forgotten?"),
    (lambda: 1, "function", "a call forgotten?"),
    (int, "type", "x.__qualname__"),
    (Plain(), "Plain", "the field that identifies it, or make its class a frozen dataclass"),
    (SimpleNamespace(), "types.SimpleNamespace", "the field that identifies it"),
    (..., "ellipsis", "the field that identifies it"),
    (Equal("a"), "Equal", "str(x)"),
    (Unhashable(1), "Unhashable", "int(x)"),
    (Lonely.ONE, "Lonely", "int(x)"),
    (Odd.ONE, "Odd", "x.name"),
    (Thawed("a"), "Thawed", "such as x.name, or declare it @dataclass(frozen=True)"),
    (Identical("a"), "Identical", "or drop eq=False"),
    (HandWritten("a"), "HandWritten", "what identifies it, such as x.name"),
    (InheritsHandWritten("a"), "InheritsHandWritten", "what identifies it, such as x.name"),
    (HashesMore("a"), "HashesMore", "what identifies it, such as x.name"),
    (Unhashed("a"), "Unhashed", "what identifies it, such as x.name"),
    (Text("a"), "Text", "str(x)"),
    (time(12, tzinfo=UTC), "datetime.time", "x.replace(tzinfo=None)"),
    # Repeated when summer time ends: Python calls the first equal to the second within the zone,
    # but neither equal to its instant elsewhere. Then: skipped when summer time begins, in two
    # ways.
    (datetime(2024, 10, 27, 2, 30, tzinfo=PARIS), "datetime.datetime", "x.astimezone("),
    (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=PARIS), "datetime.datetime", "x.astimezone("),
    (datetime(2024, 3, 31, 2, 30, tzinfo=PARIS), "datetime.datetime", "x.astimezone("),
    (datetime(2024, 3, 31, 2, 30, tzinfo=Skipping()), "datetime.datetime", "x.astimezone("),
    (datetime(2024, 1, 1, tzinfo=Unfinished()), "datetime.datetime", "x.astimezone("),
]


@pytest.mark.parametrize(("value", "kind", "advice"), REFUSED, ids=lambda x: type(x).__name__)
def test_what_is_refused_is_named_with_its_place_and_what_to_return(
    value: Any, kind: str, advice: str
) -> None:
    for key, path in [
        (value, "key"),
        ((1, value), "key[1]"),
        (("a", User("b", (One(value),)), "c"), "key[1].age[0].name"),
    ]:
        for refuses in (encode_key, key_hash):
            with pytest.raises(UnstableKey) as caught:
                refuses(key)
            error = pickle.loads(pickle.dumps(caught.value))
            assert error.path == path
            assert error.value_type.removeprefix(f"{__name__}.") == kind
            assert advice in error.advice
            assert str(error).startswith(f"{path} is a {error.value_type}, ")
            assert str(error).endswith(error.advice)


def test_numpy_values_are_refused_although_some_are_subclasses_of_str_and_float() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float64(1), numpy.int64(1), numpy.str_("a"), numpy.bytes_(b"a")):
        with pytest.raises(UnstableKey, match=r"numpy.* return x\.item\(\)$"):
            encode_key(value)
        assert encode_key(value.item())


def test_classes_made_in_a_loop_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = _Encoders()
    monkeypatch.setattr(_Encoders, "CLASSES_MAX", 10)
    for _ in range(25):
        assert encoders[type("Name", (str,), {})]("a") == b"a"
        assert encoders[type(None)](None) == encode_key(None)
    assert len(encoders) <= 10


# --- Ranges and ids -------------------------------------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 3000), st.integers(HASH_MIN, HASH_MAX))
@example(WORKERS_MAX, 0)
def test_ranges_cover_every_hash_once_and_the_owner_holds_it(workers: int, hash: int) -> None:
    ranges = hash_ranges(workers)
    assert len(ranges) == workers
    assert (ranges[0].low, ranges[-1].high) == (HASH_MIN, HASH_MAX)
    assert all(a.high + 1 == b.low for a, b in itertools.pairwise(ranges))
    assert all(owner(r.low, workers) == owner(r.high, workers) == i for i, r in enumerate(ranges))
    assert hash in ranges[owner(hash, workers)]
    sizes = {r.high - r.low for r in ranges}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1, True, 2.0, "2", None])
def test_a_number_of_workers_that_is_none_is_refused(workers: Any) -> None:
    with pytest.raises(ValueError, match=f"must be an int from 1 to 65536, got {workers!r}"):
        hash_ranges(workers)


def test_a_range_of_no_hashes_is_refused_when_made() -> None:
    for low, high in [(1, 0), (HASH_MIN - 1, 0), (0, HASH_MAX + 1)]:
        with pytest.raises(ValueError, match="needs -2147483648 <= low <= high <= 2147483647"):
            HashRange(low, high)


parts = st.lists(
    st.one_of(st.text("ab\x80", max_size=2), st.integers(-2, 300)), min_size=1, max_size=4
)


@given(parts, parts)
def test_stable_ids_differ_unless_all_parts_are_equal(a: list[Any], b: list[Any]) -> None:
    assert (stable_id(*a) == stable_id(*b)) == (a == b)
    assert 0 < stable_id(*a) < 2**64


@given(st.text(max_size=3), st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(), max_size=9))
def test_the_quick_way_to_a_stable_id_gives_the_same(name: str, numbers: list[int]) -> None:
    assert stable_id_of(name, tuple(numbers)) == stable_id(name, *numbers)


def test_a_stable_id_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberflow.values.hashing.xxh64_intdigest", lambda _: 0)
    assert stable_id("count") == 1


def test_a_stable_id_of_anything_but_text_and_integers_is_refused() -> None:
    for wrong in [(), (None,), ("a", 1.0), (("a", 1),)]:
        with pytest.raises(TypeError, match="one or more str or int"):
            stable_id(*wrong)


if __name__ == "__main__":
    print(hash("salted"), *(key_hash(key) for key, _ in GOLDEN))  # noqa: T201
