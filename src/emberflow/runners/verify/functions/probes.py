"""What is put in the place of a function: it records calls, checks them, or answers from memory.

`Checker` judges each call by itself, right where it happens:

1. the arguments are saved, the function is called, and the arguments must be what they were;
2. what the function returned the time before must still be what it was;
3. called again with fresh copies of the arguments it must give the same;
4. and so it must at the end of the run, when all calls are made once more, the last one first.

Each function is judged on its own arguments, so a wrong value that another one made upstream never
puts the blame here. A call whose arguments or result cannot be copied is let through and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from emberflow.runners.verify.functions.clues import Clue, Witness
from emberflow.runners.verify.functions.findings import (
    Finding,
    changed_argument,
    changed_result,
    different_results,
)
from emberflow.runners.verify.functions.results import (
    NotComparableError,
    fingerprint,
    fresh,
    same,
    saved,
)
from emberflow.runners.verify.functions.sites import Raised, Site, Watch, attempt, raised


class RecordedCall(NamedTuple):
    """A call: its site, and copies of its arguments and of its result."""

    site: int
    arguments: bytes
    result: bytes


class FoundError(BaseException):
    """Ends a run at the first finding. No ``except Exception`` of a runner may catch it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def recording(records: list[RecordedCall]) -> Watch:
    """Note every call that can be noted."""

    def watch(site: Site) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            before = _saved(arguments)
            try:
                result = site.call(arguments)
            except Exception as error:
                _note(records, site, before, raised(error))
                raise
            _note(records, site, before, result)
            return result

        return call

    return watch


def _note(records: list[RecordedCall], site: Site, arguments: bytes | None, result: Any) -> None:
    data = _saved(result)
    if arguments is not None and data is not None:
        records.append(RecordedCall(site.index, arguments, data))


def memoised(memory: dict[tuple[int, str], Any], *, but: int | None = None) -> Watch:
    """Answer equal arguments with the first answer: functions that are pure by force.

    The function of the site ``but`` is left as it is.
    """

    def watch(site: Site) -> Callable[..., Any]:
        if site.index == but:
            return lambda *arguments: site.call(arguments)

        def call(*arguments: Any) -> Any:
            key = (site.index, fingerprint(arguments))
            if key not in memory:
                try:
                    memory[key] = (saved(site.call(fresh(saved(arguments)))), None)
                except Exception as error:
                    memory[key] = (b"", error)
            data, failure = memory[key]
            if failure is not None:
                raise failure
            return fresh(data)

        return call

    return watch


class Checker:
    """Checks every call of a run. Raises `FoundError` where a function is not pure."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = sites
        self.records: list[RecordedCall] = []
        self.unchecked = 0
        #: By site: what the function was seen to call.
        self.clues: dict[int, dict[Clue, None]] = {site.index: {} for site in sites}
        self._returned: dict[int, tuple[Any, RecordedCall]] = {}

    def watch(self, site: Site) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            before = _saved(arguments)
            if before is None:
                self.unchecked += 1
                return site.call(arguments)
            error: Exception | None = None
            try:
                result = site.call(arguments)
            except Exception as failure:
                error = failure
                result = raised(failure)
            try:
                self._check(site, arguments, before, result)
            except NotComparableError:
                self.unchecked += 1
            if error is not None:
                raise error
            return result

        return call

    def _check(self, site: Site, arguments: tuple[Any, ...], before: bytes, result: Any) -> None:
        if _saved(arguments) != before:
            # Other bytes may still be the same value: a cached property, a set that was rebuilt.
            _raise_if(changed_argument(site, fresh(before), arguments))
        data = _saved(result)
        if data is None:
            self.unchecked += 1
            return
        self._check_returned(site)
        again = self._again(site, before)
        if not _is(data, again):
            results = (("first", fresh(data)), ("again", again))
            raise FoundError(
                different_results(site, before, results, self.clues[site.index], original=arguments)
            )
        record = RecordedCall(site.index, before, data)
        self.records.append(record)
        if not isinstance(result, Raised):
            self._returned[site.index] = (result, record)

    def _check_returned(self, site: Site) -> None:
        if site.index not in self._returned:
            return
        result, record = self._returned[site.index]
        if not _is(record.result, result):
            raise FoundError(changed_result(site, record.arguments, fresh(record.result), result))

    def _again(self, site: Site, arguments: bytes) -> Any:
        copies = fresh(arguments)
        with Witness() as witness:
            result = attempt(site, copies)
        self.clues[site.index] |= witness.clues
        return result

    def check_at_the_end(self) -> None:
        """Make all calls once more, the last one first."""
        for record in reversed(self.records):
            site = self.sites[record.site]
            try:
                result = self._again(site, record.arguments)
                if not _is(record.result, result):
                    results = (("first", fresh(record.result)), ("at the end of the run", result))
                    raise FoundError(
                        different_results(site, record.arguments, results, self.clues[site.index])
                    )
            except NotComparableError:
                continue


def conflict(
    sites: Sequence[Site], some: Iterable[RecordedCall], others: Iterable[RecordedCall]
) -> tuple[Site, RecordedCall, RecordedCall] | None:
    """The first site, in the order of the graph, whose recorded calls are no function."""
    known: dict[tuple[int, str], RecordedCall] = {}
    found: tuple[Site, RecordedCall, RecordedCall] | None = None
    for record in (*some, *others):
        if found is not None and record.site >= found[0].index:
            continue
        try:
            before = known.setdefault((record.site, fingerprint(fresh(record.arguments))), record)
            if before is not record and not are_same(before.result, record.result):
                found = (sites[record.site], before, record)
        except NotComparableError:
            continue
    return found


def are_same(one: bytes, other: bytes) -> bool:
    """Whether two saved values are the same; raises `NotComparableError` where that can't be told."""
    return one == other or same(fresh(one), fresh(other))


def agree(one: bytes | None, other: bytes | None) -> bool:
    """Whether two saved values are the same, as far as can be told."""
    try:
        return one is None or other is None or are_same(one, other)
    except NotComparableError:
        return True


def _is(data: bytes, value: Any) -> bool:
    return _saved(value) == data or same(fresh(data), value)


def _saved(value: Any) -> bytes | None:
    try:
        return saved(value)
    except Exception:
        return None


def _raise_if(finding: Finding | None) -> None:
    if finding is not None:
        raise FoundError(finding)
