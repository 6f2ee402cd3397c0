"""Calls every function of the extension modules again and again, and looks for leaked references.

    python exercise.py FOLDER [--runs N] [--memory]

FOLDER holds the extension modules. This needs nothing but Python itself, so it runs on every Python
that the machine has, and with AddressSanitizer.

Each function gets good input, and the same input with one part replaced by something wrong: a number for a
list, a list for a place, a bucket without entries. It may refuse that with an exception or leave it to
Python; it must not end the process, raise SystemError (which tells of a misuse of Python's C API) or keep
what it was given. With ``--memory`` each function also meets a memory that is full: the first allocation
fails, then the second, and so on.

A leak is found in two ways. What a function made and did not release stays allocated: the number of
allocated blocks grows with the number of calls. What it was given and did not release has too many
references: those of some objects that all calls share are counted. A debug build of Python counts all.
"""

from __future__ import annotations

import argparse
import copy
import gc
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

MODULES = ("arenas", "columns", "loops", "rows", "trees", "versions")

#: What a function may raise if it is given something wrong.
REFUSALS = (
    TypeError,
    ValueError,
    OverflowError,
    IndexError,
    AttributeError,
    RuntimeError,
    MemoryError,
)

#: No call makes more allocations than this.
ALLOCATIONS_MAX = 60


class Row(NamedTuple):
    """As `emberflow.engine.cuts.cut.Row`, which cannot be imported where there is nothing but Python."""

    operation: str
    key_hash: int
    key: Any
    place: tuple[int, ...]
    payload: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class Thing:
    """A payload whose references are counted."""


class Absent:
    pass


class Restored:
    def __init__(self, key: Any) -> None:
        self.key = key


class At:
    pass


THING = Thing()
TEXT = "".join(["non-ASCII: ", "ä" * 30])
LATER = At()
NO_ABORTS: dict[Any, int] = {}
SHARED = [THING, TEXT, LATER, NO_ABORTS, Row, Thing, Absent, Restored, At]

#: What takes the place of a part of good input.
WRONG: list[Callable[[], Any]] = [
    *(
        lambda own=own: own
        for own in (None, True, 1.5, -1, 2**70, "text", "\ud800", b"bytes", (), Thing)
    ),
    lambda: (None,),
    list,
    lambda: [None],
    dict,
    lambda: set(),
]


def loaded(folder: Path) -> dict[str, Any]:
    """The extension modules in a folder."""
    modules = {}
    for name in MODULES:
        (path,) = (
            path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_{name}{suffix}").exists()
        )
        spec = spec_from_file_location(f"_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        modules[name] = module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    return modules


def itself(payload: Any) -> Any:
    return payload


def constant(payload: Any) -> Any:
    return THING


def images(payload: Any) -> Any:
    return (payload, THING)


def failing(*given: Any) -> Any:
    raise ValueError("a function of a user")


def scheduling(payload: Any) -> Any:
    return LATER


def added(before: Any, payload: Any) -> Any:
    return (THING, payload)


def holds(value: Any) -> Any:
    return [value]


class Case(NamedTuple):
    name: str
    function: Callable[..., Any]
    #: Makes the arguments anew for each call: functions change them.
    arguments: Callable[[], list[Any]]


def cases(modules: dict[str, Any]) -> list[Case]:
    return [
        *of_loops(modules["loops"]),
        *of_versions(modules["versions"]),
        *of_columns(modules),
        *of_trees(modules["trees"]),
    ]


def items() -> list[Any]:
    return [
        ((time, 0, time), 2 * time, key) for time, key in enumerate(["a", "b", TEXT, 2**40, "a"])
    ]


def of_loops(loops: Any) -> Iterator[Case]:
    def versions(key: Any) -> list[Any]:
        return [((time - 9, 0), 0, key, THING) for time in range(5)]

    def reducing(
        key_of: Any, combine: Any, with_key: bool, expires: int | None = None
    ) -> Callable[[], list[Any]]:
        return lambda: [
            items(), 0, [], key_of, combine, {"a": versions("a"), "b": [], TEXT: versions(TEXT)}, [],
            (0, 1), with_key, Absent, At, expires,
        ]  # fmt: skip

    def spreading(key_of: Any, hosts: list[int]) -> Callable[[], list[Any]]:
        marks = {mark: mark + 2**70 for mark in range(9)}
        return lambda: [
            items(),
            0,
            [[], []],
            key_of,
            {"a": 0, "b": 1},
            [marks, marks.copy()],
            hosts,
        ]

    def looking() -> list[Any]:
        given = [versions("a"), versions(TEXT), versions(Restored(TEXT)), [], versions((1,))]
        return [given, (-6, 0), (-9, 0), getattr_key, "count", Absent, Restored, True]

    def getattr_key(mapped: Any) -> Any:
        return mapped

    report = ((2**40, 1, 3), 1, THING)
    yield Case("prepare", loops.prepare, lambda: [Row, Restored])
    for with_key in (True, False):
        yield Case("reduce_in_order", loops.reduce_in_order, reducing(itself, added, with_key))
    for expires in (1, 2**62):
        given = reducing(itself, added, True, expires)
        yield Case("reduce_in_order, expiring", loops.reduce_in_order, given)
    yield Case("reduce_in_order, failing", loops.reduce_in_order, reducing(itself, failing, True))
    yield Case("reduce_in_order, no key", loops.reduce_in_order, reducing(failing, added, True))

    def triples(combine: Any, ticks_of: Any, expires: int | None = None) -> Callable[[], list[Any]]:
        return lambda: [
            [(place, mark, (payload, False, THING)) for place, mark, payload in items()], 0, 9, [],
            combine, {"a": versions("a"), "b": [], TEXT: versions(TEXT)}, [], (0, 1), Absent,
            expires, ticks_of, [],
        ]  # fmt: skip

    def ticks_behind(sent: Any) -> Any:
        return [At(2**40, sent)]

    def nothing(sent: Any) -> None:
        return None

    for ticks_of in (None, itself, failing, ticks_behind, nothing):
        for combine in (added, failing):
            name = "reduce_triples"
            yield Case(name, loops.reduce_triples, triples(combine, ticks_of))
        yield Case(name, loops.reduce_triples, triples(added, ticks_of, 1))
    yield Case("reduce_triples, no triples", loops.reduce_triples, lambda: [
        items(), 0, 9, [], added, {"a": versions("a")}, [], (0, 1), Absent, None, None, [],
    ])  # fmt: skip
    for hosts in ([0, 1, 0], []):
        yield Case("spread", loops.spread, spreading(itself, hosts))
        yield Case("spread, failing", loops.spread, spreading(failing, hosts))
    yield Case("closer_key", loops.closer_key, lambda: [report])
    yield Case("front_of", loops.front_of, lambda: [report])
    yield Case("extended", loops.extended, lambda: [items(), (4,)])
    yield Case("sort_by_place", loops.sort_by_place, lambda: [items()[::-1]])
    yield Case("sort_by_place, many", loops.sort_by_place, lambda: [many()[::-1]])
    yield from of_runs(loops)
    yield Case("reports", loops.reports, lambda: [items(), 1, 3])
    for function in (itself, constant, images, failing, scheduling):
        name = function.__name__
        yield Case(f"mapped, {name}", loops.mapped, lambda own=function: [items(), own, (0,), At])
        yield Case(
            f"mapped_with_time, {name}",
            loops.mapped_with_time,
            lambda own=function: [items(), lambda time, payload: own(payload), (0,), At],
        )
        yield Case(f"kept, {name}", loops.kept, lambda own=function: [items(), own, (0,)])
        yield Case(
            f"flat_mapped, {name}",
            loops.flat_mapped,
            lambda own=function: [items(), own, ((0,), (1,)), At],
        )
        yield Case(
            f"accesses, {name}",
            loops.accesses,
            lambda own=function: [items(), own, 3, 1, True, False],
        )
    yield Case("accesses, carried", loops.accesses, lambda: [carried(), itself, 3, 1, True, True])
    yield Case("last_accumulators", loops.last_accumulators, looking)
    yield Case(
        "trim_to_last",
        loops.trim_to_last,
        lambda: [
            [versions("a"), [], versions("b")] * 9, (-2, 0), (-8, 0), itself, Absent, Restored
        ],
    )  # fmt: skip
    seen = [THING, TEXT, THING, LATER]
    yield Case("fresh", loops.fresh, lambda: [seen * 99, [loops.Addresses() for _ in range(64)]])
    yield from of_histories(loops, reducing)
    for key in ("ascii", TEXT, "ä" * 999, "€" * 40, "\U0001f600" * 200, "\ud800", 7, 2**70):
        yield Case("hash_of_common", loops.hash_of_common, lambda own=key: [own])
        for count in (0, 9, 60):
            parts = (key, *range(count))
            yield Case("hash_of_composite", loops.hash_of_composite, lambda own=parts: [own])
    for key in (None, True, 0.5, 2.0**80, b"k" * 300, ((b"k" * 300,), "ä", ((),))):
        yield Case("hash_of_composite", loops.hash_of_composite, lambda own=key: [own])


def many() -> list[Any]:
    """Items of a few times, with places that are not all short, enough to be dealt out."""
    return [((time // 3, 0, time, *[2**40] * (time % 2)), 0, THING) for time in range(90)]


def of_runs(loops: Any) -> Iterator[Case]:
    """Runs that are empty, one, or so many that they are merged."""

    def held(count: int) -> Any:
        runs = loops.Runs()
        for time in range(count):
            runs.add([((-time, 0), 0, THING), ((50 - time, 0, 1, 2, 3, 4), 0, TEXT)])
        return runs

    def emptied(runs: Any) -> None:
        runs.take((-3, 0))
        runs.items()
        while runs.least() is not None:
            runs.take((runs.least()[0] + 9, 0))

    yield Case("Runs", loops.Runs, list)
    for count in (0, 1, 3, 60):
        runs = held(count)
        yield Case("Runs.least", runs.least, list)
        yield Case("Runs.items", runs.items, list)
        yield Case("Runs.moments_after", runs.moments_after, lambda: [(-2, 0), 5])
        yield Case("Runs.take", lambda moment, own=count: held(own).take(moment), lambda: [(-2, 0)])
        yield Case("Runs.add", lambda given, own=count: held(own).add(given), lambda: [many()])
        yield Case("Runs.add, in order", lambda given: held(3).add(given), lambda: [items()[:1]])
        yield Case("runs that are emptied", lambda own=count: emptied(held(own)), list)


def of_histories(loops: Any, reducing: Any) -> Iterator[Case]:
    """Histories of one version and of several, final or not, with keys of all kinds."""

    def version(time: int, key: Any) -> Any:
        return ((time, 0, 7), 0, key, (THING, time))

    def trimmed(history: Any, key_of: Any = None) -> Any:
        loops.trim_to_last([history], (90, 0), (-90, 0), key_of, Absent, Restored)
        return history

    def short(key: Any = TEXT) -> Any:
        return trimmed(loops.History(key, version(-30, key)))

    def half(key: Any = TEXT) -> Any:
        """One short version and one that is not."""
        history = short(key)
        history.append(version(-5, key))
        return history

    def long(key: Any = TEXT) -> Any:
        history = loops.History(key, version(-30, key))
        for time in range(-5, -2):
            history.append(version(time, key))
        return history

    def used(make: Any, use: Any) -> Callable[[], None]:
        return lambda: use(make())

    def put(history: Any) -> None:
        history[-1] = version(-1, "b")

    def cleared(history: Any) -> None:
        del history[:]
        trimmed(history)
        list(history)

    def cut(history: Any) -> None:
        history.insert(0, version(-40, "c"))
        history.pop(0)
        del history[:-1]

    yield Case("History", loops.History, lambda: [TEXT, version(1, TEXT)])
    restored = ((1, 0), 0, Restored(TEXT), THING)
    yield Case("History, restored", loops.History, lambda: [TEXT, restored])
    for make in (short, half, long, lambda: short((1,)), lambda: half(2**70)):
        for use in (
            list,
            len,
            put,
            cut,
            cleared,
            trimmed,
            lambda h: h[5:],
            lambda h: (h[0], h[-1]),
        ):
            yield Case("a history in use", used(make, use), list)
        yield Case(
            "trim_to_last, histories",
            loops.trim_to_last,
            lambda own=make: [[own(), own()], (-3, 0), (-8, 0), itself, Absent, Restored],
        )
        for packs in (False, True):
            yield Case(
                f"last_accumulators, histories, packs {packs}",
                loops.last_accumulators,
                lambda own=make, packs=packs: [
                    [own(), own()], (-4, 0), (-50, 0), itself, "count", Absent, Restored, packs
                ],
            )  # fmt: skip
        for expires in (None, 7):

            def arguments(own: Any = make, expires: int | None = expires) -> list[Any]:
                given: list[Any] = reducing(itself, added, True, expires)()
                given[5] = {"a": own("a") if own in (short, half, long) else own(), TEXT: own()}
                return given

            yield Case("reduce_in_order, histories", loops.reduce_in_order, arguments)


def carried() -> list[Any]:
    return [(place, mark, ("element", payload)) for place, mark, payload in items()]


def of_versions(versions: Any) -> Iterator[Case]:
    def bucket(key: Any, count: int) -> Any:
        made = versions.StateBucket(key, THING)
        made.entries.extend(
            ((time - 9, 0), 0, 0, 2, (THING, time), THING, (THING, time), None)
            for time in range(count)
        )
        return made

    def use(function: Any, check: Any, alone: bool) -> tuple[Any, ...]:
        return (function, check, alone, False, True, True, 3, 0, 1, 0, 1, -1, None, None)

    def accessing(*own: Any, expires: int | None = None, of: Any = None) -> Callable[[], list[Any]]:
        def arguments() -> list[Any]:
            accesses = [(place, mark, (key, 0, 2, (THING, key))) for place, mark, key in items()]
            buckets = {"a": bucket("a", 2), "b": bucket("b", 1), TEXT: bucket(TEXT, 3)}
            if of is not None:
                buckets = {key: of(key) for key in buckets}
            return [accesses, 0, [[], []], buckets, [use(*own)], [], {"c"}, {(7, 0)}, expires]

        return arguments

    def short(key: Any) -> Any:
        made = bucket(key, 1)
        versions.trim_accesses([made], (90, 0), (True,), [], (-90, 0))
        return made

    def on_short(looks: Any) -> Callable[[], None]:
        return lambda: looks(short(TEXT))

    def put(made: Any) -> None:
        made.entries = [made.entries[0]]
        made.noted, made.counts = True, False
        del made.value

    def buckets() -> list[Any]:
        return [short(key) for key in ("a", TEXT, (1,), 2**70)] + [
            bucket(key, count) for count in range(5) for key in ("a", TEXT, (1,), 2**70)
        ]

    def cycle() -> None:
        made = bucket("a", 1)
        made.value = [made.entries]
        made.value.append(made.value)

    def copied() -> None:
        made = bucket(TEXT, 2)
        reduced = made.__reduce__()
        again = reduced[0](*reduced[1])
        for name, value in reduced[2][1].items():
            setattr(again, name, value)
        copy.copy(made)
        pickle.dumps(made.entries[0][0])

    yield Case("prepare", versions.prepare, lambda: [Row, NO_ABORTS, At, (-1,), (-2,), (-3,)])
    yield Case("StateBucket", versions.StateBucket, lambda: [TEXT, THING])
    yield Case("StateBucket.__reduce__", versions.StateBucket.__reduce__, lambda: [bucket("a", 1)])
    yield Case("a bucket of a value that refers to itself", cycle, list)
    yield Case("a bucket that is copied", copied, list)
    for alone in (True, False):
        for own in ((added, holds), (added, None), (None, None), (failing, None), (added, failing)):
            yield Case("access_in_order", versions.access_in_order, accessing(*own, alone))
    for expires in (1, 2**62):
        given = accessing(added, holds, True, expires=expires)
        yield Case("access_in_order, expiring", versions.access_in_order, given)
        for expires in (None, 7):
            given = accessing(added, holds, alone, expires=expires, of=short)
            yield Case("access_in_order, short", versions.access_in_order, given)
    for looks in (lambda made: made.short, lambda made: made.entries, put, copy.copy):
        yield Case("a short bucket in use", on_short(looks), list)
    yield Case(
        "trim_accesses",
        versions.trim_accesses,
        lambda: [buckets(), (-6, 0), (True,), [], (-8, 0)],
    )
    for packs in (False, True):
        yield Case(
            f"last_versions, packs {packs}",
            versions.last_versions,
            lambda own=packs: [buckets(), (-6, 0), (-9, 0), (True,), "sum", own],
        )


def saved_pairs() -> list[Any]:
    return [Pair(number, (THING, TEXT)) for number in range(3)]


def of_columns(modules: dict[str, Any]) -> Iterator[Case]:
    columns, rows = modules["columns"], modules["rows"]
    packed = columns.pack(items())
    mixed = [(key, (number, (THING, number))) for number, key in enumerate(["a", "b", TEXT])]
    column = columns.pack_column(mixed)
    named = columns.pack_column(saved_pairs())
    saved = [
        Row("count", 7, key, (1, 0, 5), (1, "a", None, 1.5, b"c")) for key in (1, "b", (2, "c"))
    ]
    yield Case("pack", columns.pack, lambda: [items()])
    yield Case("pack_column", columns.pack_column, lambda: [list(mixed)])
    yield Case("unpack", columns.unpack, lambda: list(packed))
    yield Case("unpack_column", columns.unpack_column, lambda: [column, 3])
    yield Case("pack_column, named", columns.pack_column, lambda: [saved_pairs()])
    uneven = [((7,), 0, THING), *items(), ((8, 9, 10, 11), 2, TEXT)]
    yield Case("pack, places of several lengths", columns.pack, lambda: [list(uneven)])
    yield Case(
        "unpack, places of several lengths",
        columns.unpack,
        lambda: list(columns.pack(list(uneven))),
    )
    yield Case("unpack_column, named", columns.unpack_column, lambda: [named, 3])
    several = [None, (1, TEXT), saved_pairs()[0], None, 2**40]
    yield Case("pack_column, of several classes", columns.pack_column, lambda: [list(several)])
    yield Case(
        "unpack_column, of several classes",
        columns.unpack_column,
        lambda: [columns.pack_column(list(several)), 5],
    )
    yield Case("prepare", rows.prepare, lambda: [Row])
    yield Case("row_buffers", rows.row_buffers, lambda: [[tuple(row) for row in saved]])
    yield Case("row_buffers, rows", rows.row_buffers, lambda: [list(saved)])
    cold = [Row("count", 7 - each, key, (each, 0), each) for each, key in enumerate("abc")]
    yield Case("cold_buffers", rows.cold_buffers, lambda: [list(cold)])
    key, value = pickle.dumps("a", 5), pickle.dumps((1, 2.5), 5)
    record = struct.pack("=qqiII4x", 7, 0, -3, len(key), len(value)) + key + value
    chunks = [record * (each % 3) for each in range(9)]
    order = rows.packed_order(chunks, 9)
    yield Case("packed_order", rows.packed_order, lambda: [[*chunks], 9])
    yield Case("packed_columns", rows.packed_columns, lambda: [[*chunks], order, 2, 9])

    def columns_of(*others: Any) -> list[Any]:
        hashes, *columns = rows.cold_buffers([*cold, *others])
        return [hashes, *columns]

    def loads(data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except (pickle.UnpicklingError, EOFError, ImportError) as error:
            raise ValueError("no pickle") from error

    def read() -> list[Any]:
        return ["count", [5, 6, TEXT], [0, 1, 2], loads, *columns_of()[1:]]

    def found() -> list[Any]:
        hashes, *columns = columns_of()
        return [["a", TEXT, "c"], [2, 1, 0], hashes, bytes(3), loads, *columns]

    yield Case("cold_rows", rows.cold_rows, read)
    yield Case("cold_rows, damaged", rows.cold_rows, lambda: [*read()[:8], b"pickles" * 99])
    yield Case("cold_places", rows.cold_places, found)


def of_trees(trees: Any) -> Iterator[Case]:
    def node(key: Any, left: Any, right: Any) -> Any:
        height = max(tree[0] if tree else 0 for tree in (left, right)) + 1
        size = sum(tree[5] for tree in (left, right) if tree) + 1
        return height, key, THING, left, right, size

    def leaf(key: Any) -> Any:
        return node(key, None, None)

    # Lopsided by two: each way to balance it again is gone.
    left = node(60, node(20, leaf(10), node(40, leaf(30), None)), leaf(70))
    right = node(20, leaf(10), node(60, node(40, None, leaf(50)), leaf(70)))
    code = node(b"k", leaf(b"a"), leaf(b"z"))
    for tree in (left, right):
        for key in (5, 30, 35, 60, 75):
            yield Case("with_key", trees.with_key, lambda t=tree, k=key: [t, k, THING])
            yield Case("without_key", trees.without_key, lambda t=tree, k=key: [t, k])
            yield Case("above_key", trees.above_key, lambda t=tree, k=key: [t, k])
            yield Case("node_at", trees.node_at, lambda t=tree, k=key: [t, k])
    for function in (trees.without_key, trees.above_key, trees.node_at):
        yield Case("of bytes", function, lambda: [code, b"b"])
    yield Case("with_key, of bytes", trees.with_key, lambda: [code, b"b", THING])

    def versions(tree: Any) -> Any:
        made = trees.Versions()
        made._tree = tree
        return made

    def used(*given: Any) -> None:
        for tree in given:
            made = versions(tree)
            for key in (20, 33, "of another type"):
                for use in (
                    lambda m, k: m.set(k, THING).remove(k),
                    lambda m, k: m.including(k, THING),
                    lambda m, k: (m.get(k), k in m, bool(m), len(m)),
                    lambda m, k: m.above(k),
                    lambda m, k: m.set(k),
                    lambda m, k: m.including(k, THING, THING),
                ):
                    with suppress(TypeError, ValueError):
                        use(made, key)

    for given in ((left, right, None), ((1, 2), "no tree", (0, 20, THING, None, None, -1))):
        yield Case("Versions", used, lambda given=given: list(given))
    yield Case("Versions, unfilled", bool, lambda: [trees.Versions()])


Path_ = tuple[Any, ...]


def paths(value: Any, depth: int = 6) -> Iterator[Path_]:
    """The ways to all parts of an argument."""
    yield ()
    if not depth:
        return
    if type(value) in (list, tuple):
        # Of many alike the first two are enough.
        for number, part in enumerate(value[:2] if len(value) > 15 else value):
            yield from ((number, *path) for path in paths(part, depth - 1))
    elif type(value) is dict:
        for key, part in list(value.items())[:2]:
            yield from ((key, *path) for path in paths(part, depth - 1))
    elif type(value).__name__ == "StateBucket":
        for name in ("key", "entries", "aborts", "base", "value"):
            yield from ((name, *path) for path in paths(getattr(value, name), depth - 1))


def replaced(value: Any, path: Path_, wrong: Any) -> Any:
    """The same argument with another part."""
    if not path:
        return wrong
    step, *rest = path
    if type(value) is tuple:
        parts = list(value)
        parts[step] = replaced(value[step], tuple(rest), wrong)
        return tuple(parts)
    if type(value).__name__ == "StateBucket":
        setattr(value, step, replaced(getattr(value, step), tuple(rest), wrong))
    else:
        value[step] = replaced(value[step], tuple(rest), wrong)
    return value


def attempt(case: Case, arguments: list[Any]) -> None:
    with suppress(*REFUSALS):
        case.function(*arguments)


def on_good(case: Case) -> None:
    attempt(case, case.arguments())


def on_bad(case: Case) -> None:
    attempt(case, [])
    attempt(case, [*case.arguments(), None])
    for path in paths(case.arguments()):
        if path:
            for wrong in WRONG:
                attempt(case, replaced(case.arguments(), path, wrong()))


def without_memory(case: Case) -> None:
    """Let the first allocation fail, then the second, and so on. Only of functions in C: Python itself
    does not survive that everywhere."""
    import _testcapi

    if isinstance(case.function, FunctionType):
        return

    for number in range(ALLOCATIONS_MAX):
        arguments = case.arguments()
        _testcapi.set_nomemory(number, number + 1)
        try:
            case.function(*arguments)
        except REFUSALS:
            pass
        finally:
            _testcapi.remove_mem_hooks()


def allocated() -> int:
    gc.collect()
    return sys.gettotalrefcount() if hasattr(sys, "gettotalrefcount") else sys.getallocatedblocks()


def references() -> list[int]:
    return [sys.getrefcount(thing) for thing in SHARED]


def leaks(case: Case, way: Callable[[Case], None], runs: int) -> str | None:
    """What a case leaks; None if it leaks nothing."""
    way(case)  # what is made once, and kept for the next time
    found = None
    for _ in range(5 if runs else 0):  # a cache may grow, and does not grow for ever
        counts, blocks = references(), allocated()
        for _ in range(runs):
            way(case)
        grown = allocated() - blocks
        kept = [
            f"{now - before:+} references to {thing!r:.40}"
            for thing, before, now in zip(SHARED, counts, references(), strict=True)
            if abs(now - before) >= runs
        ]
        if grown < runs and not kept:
            return None
        found = ", ".join([f"{grown} blocks in {runs} runs", *kept])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Call every function of the extension modules.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=5, help="0: call all, and look for no leaks")
    parser.add_argument("--memory", action="store_true", help="also let memory be short")
    options = parser.parse_args()
    modules = loaded(options.folder)
    for module, arguments in (
        ("loops", [Row, Restored]),
        ("rows", [Row]),
        ("versions", [Row, NO_ABORTS, At, (-1,), (-2,), (-3,)]),
    ):
        modules[module].prepare(*arguments)
    ways = [on_good, on_bad, *([without_memory] if options.memory else [])]
    faults, calls = [], 0
    for way in ways:
        for case in cases(modules):
            calls += 1
            fault = leaks(case, way, options.runs)
            # A run on bad input may leave the module prepared otherwise.
            if case.name == "prepare":
                attempt(case, case.arguments())
            if fault is not None:
                faults.append(f"{case.name}, {way.__name__}: {fault}")
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    sys.stdout.write(f"Python {sys.version.split()[0]}: {calls} cases, {len(faults)} leak\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
