"""Callables that replace a user's function: they record calls, check them, or memoise them.

`Checker` judges each call where it happens:

1. The arguments must be unchanged after the call.
2. The result of the previous call must be unchanged.
3. A second call with copies of the arguments must give the same result.
4. So must another call at the end of the run, when all calls are repeated in reverse order.

Each function is judged on its own arguments, so a wrong value made upstream never puts the blame on
it. A call whose arguments or result cannot be copied is not checked, but counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from emberflow.runners.verify.functions.clues import Clue, Witness
from emberflow.runners.verify.functions.comparison import (
    NotComparableError,
    fingerprint,
    fresh,
    same,
    saved,
)
from emberflow.runners.verify.functions.findings import (
    Finding,
    changed_argument,
    changed_result,
    different_results,
)
from emberflow.runners.verify.functions.sites import Raised, Site, Watch, attempt, raised


class RecordedCall(NamedTuple):
    """A call: its site, and saved copies of its arguments and result."""

    site: int
    arguments: bytes
    result: bytes


class FoundError(BaseException):
    """Ends a run at the first finding. No runner's ``except Exception`` may catch it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


def recording(records: list[RecordedCall]) -> Watch:
    """Record every call whose arguments and result can be copied."""

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
    """Return the first result again for equal arguments, which forces every function to be pure.

    The function of the site ``but`` is called each time.
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
        #: By site: the suspicious calls that were seen.
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
            # Other bytes may still be an equal value: a property was cached, a set was rebuilt.
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
        """Repeat all calls in reverse order."""
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
    """The first site, in graph order, that has two results for the same arguments."""
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
    """Whether two saved values are the same. Raises `NotComparableError` if it cannot be decided."""
    return one == other or same(fresh(one), fresh(other))


def agree(one: bytes | None, other: bytes | None) -> bool:
    """Whether two saved values are the same, or cannot be compared."""
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
