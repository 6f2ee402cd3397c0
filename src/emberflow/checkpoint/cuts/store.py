"""The store of cuts: any number of workers write parts, one driver makes cuts of them.

::

    <location>/
      incarnations/000003-8f0c2d11.claim.json     a life of the workers has begun ...
      incarnations/000003-8f0c2d11.base.json      ... from this cut
      parts/0000000042-000003-1-bucket-5a….parquet  cut, incarnation, worker, kind
      cuts/0000000042-000003.json                 the manifest, written last
      holds/0000000042-000003-1763204400000-9d.hold  a reader holds cut 42 until that time, in ms
      fronts/…                                    see `logs.front_log`

**A cut** is whole when its manifest is whole, and every file that the manifest names exists and has
the right checksum. `latest` looks from the newest on, warns of each that is not whole, and returns the
first that is.

**Two drivers.** The newest incarnation wins. `begin` claims the next number; from then on a driver
with an older one can neither commit nor prune: `FencedError`. On a local disk a lock makes the check
of the incarnation and the rename of the manifest one step. Elsewhere a slow driver can commit after
its check. So readers decide which cuts are valid: an incarnation records the cut it began from (its
*base*), its cuts continue from that number, and a cut of an older incarnation with a greater number is
void, whenever it appears. For the same reason `begin` claims first and then chooses the cut to
restore. And `commit` looks at the claims once more when the manifest is stored. So either the newer driver
sees the cut, or the older one hears of its successor before it tells anybody, a source for one, that it
has a cut. On an object store a claim has the name of its number alone, and one driver creates it. On
other file systems two drivers that claim the same number at the same time see each other's claim and take
the next; at most one finds itself alone. A driver that has begun an incarnation claims another one only
*after* its own: if anybody else has claimed since, it gets `FencedError` and does not take the location
back.

**Readers** outside of the run (SQL over state) *hold* the cut that they read. A hold is a lease: a
file that names the cut and the time until which `prune` keeps it. It expires by itself, and a reader
that needs longer renews it. If a reader may not write, or there is no lock and pruning was faster, the
files of its cut may be gone before it is done, and it gets an error.

**Unneeded files** are those of cuts that were abandoned or superseded. `prune` removes the files that
no kept manifest names, except for the parts of a cut in progress: those of the newest incarnation with
a number above that of its newest manifest.

A store is only a location, so it can be pickled and sent to workers.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.columns import ColumnRun, opened_columns, scheduled_columns
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest, PartInfo, checked_json, json_with_checksum
from emberflow.checkpoint.cuts.part_file import PartFile
from emberflow.checkpoint.cuts.parts.new_part import NewPart
from emberflow.checkpoint.cuts.rows import BUCKET, SCHEDULED, Chunk, Row
from emberflow.checkpoint.cuts.scan import ColumnPage, Counted, KeyTest, Wanted, scan
from emberflow.checkpoint.cuts.tables import Source, merged, united
from emberflow.checkpoint.errors import (
    CheckpointError,
    DamagedCutError,
    DamagedCutWarning,
    FencedError,
    TakenError,
)
from emberflow.checkpoint.files import (
    ObjectLocation,
    digest,
    location_of,
    write,
)
from emberflow.checkpoint.ranges import Ranges
from emberflow.values.hashing import HASH_MAX, HASH_MIN, HashRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_CLAIM = re.compile(r"(\d+)-([0-9a-f]+)\.claim\.json")
_BASE = re.compile(r"(\d+)-([0-9a-f]+)\.base\.json")
_MANIFEST = re.compile(r"(\d+)-(\d+)\.json")
_PART = re.compile(r"(\d+)-(\d+)-.*\.parquet")
_HOLD = re.compile(r"(\d+)-(\d+)-(\d+)-[0-9a-f]+\.hold")
_CLAIMS_MAX = 50
#: In the place of a claim's token, where one driver creates the claim of a number.
_ONLY_ONE = "00000000"
_CLAIM_PAUSE_S_MAX = 0.2


class Life(NamedTuple):
    """An incarnation that has begun, and the cut it begins from; None if it begins empty."""

    incarnation: int
    restored: Manifest | None

    @property
    def next_cut(self) -> int:
        """The number of its first cut. The following ones continue from there."""
        return 1 if self.restored is None else self.restored.number + 1


class _Named(NamedTuple):
    number: int
    incarnation: int
    path: str


class CheckpointStore:
    """The cuts at a location: a path, or a URI (`checkpoint.files.location_of`).

    >>> import tempfile
    >>> import emberflow as ef
    >>> flow = ef.Flow("count")
    >>> flow.front("words").key_by(str).count().sink("counts")
    >>> store = CheckpointStore(tempfile.mkdtemp())
    >>> life = store.begin()
    >>> rows = [("count", 5, "ada", (7, 0), 2), ("count", -3, "bob", (8, 0), 1)]
    >>> part = store.write_part(1, 0, [rows], incarnation=life.incarnation)
    >>> cut = Manifest.of(flow.graph(), number=1, incarnation=1, time=(9, 0), parts=[part])
    >>> store.commit(cut)
    >>> list(store.rows(store.latest(), 0, 2**31 - 1))
    [Row(operation='count', key_hash=5, key='ada', place=(7, 0), payload=2)]
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        filesystem: FileSystem | None = None,
        own_files: bool = False,
    ) -> None:
        self._arguments = (os.fspath(location), filesystem, own_files)
        self._location = location_of(location, filesystem, own_files=own_files)
        self._known: dict[str, bytes] = {}
        #: The cuts that were committed here and are not pruned yet, by path.
        self._committed: dict[str, Manifest] = {}

    def __reduce__(self) -> Any:
        return _reopened, self._arguments

    def __str__(self) -> str:
        return self._location.shown("")

    # Incarnations

    def begin(
        self,
        choose: Callable[[CheckpointStore], Manifest | None] | None = None,
        *,
        after: int | None = None,
    ) -> Life:
        """Begin the next incarnation from the latest cut, or from the one that ``choose`` returns.

        All cuts above that one are void from then on. A driver gives the incarnation that it began
        before as ``after``. Raises `FencedError` if that is not the newest, and `InputError` if the
        location is on an object store that cannot hold a checkpoint.
        """
        if isinstance(self._location, ObjectLocation):
            self._location.objects.check()
        incarnation, token = self._claim(after)
        restored = choose(self) if choose is not None else self.latest()
        base = None if restored is None else restored.number
        body = {"incarnation": incarnation, "base": base}
        self._write_json(f"incarnations/{incarnation:06d}-{token}.base.json", body)
        return Life(incarnation, restored)

    def incarnation(self) -> int:
        """The newest incarnation; 0 if there has been none."""
        return max((number for number, _ in self._claims()), default=0)

    def check_incarnation(self, incarnation: int) -> None:
        """Raises `FencedError` if this is not the newest."""
        newest = self.incarnation()
        if newest != incarnation:
            raise self._fenced(incarnation, newest)

    def check_not_followed(self, incarnation: int) -> None:
        """Raises `FencedError` if there is a newer one. This one may be still to be claimed."""
        newest = self.incarnation()
        if newest > incarnation:
            raise self._fenced(incarnation, newest)

    def _fenced(self, incarnation: int, newest: int, own: str | None = None) -> FencedError:
        return FencedError(
            f"{self}: incarnation {incarnation} was followed by incarnation {newest}, which "
            f"{self._claimant(newest, own)}, and may change nothing more. Does another driver use the "
            f"same checkpointLocation?"
        )

    def _claimant(self, incarnation: int, own: str | None) -> str:
        """Who began an incarnation, and when, as far as its claim tells."""
        for name in self._location.names("incarnations"):
            match = _CLAIM.fullmatch(name)
            if match is None or int(match[1]) != incarnation or match[2] == own:
                continue
            path = f"incarnations/{name}"
            try:
                claim = checked_json(self._location.read(path), self._location.shown(path))
                began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claim["time"]))
                return f"process {claim['pid']} on {claim.get('host', 'an unknown host')} began at {began}"
            except (OSError, DamagedCutError, KeyError, TypeError, ValueError):
                continue
        return "began at an unknown time"

    def _claim(self, after: int | None) -> tuple[int, str]:
        is_created = isinstance(self._location, ObjectLocation)
        for _ in range(_CLAIMS_MAX):
            token = _ONLY_ONE if is_created else uuid.uuid4().hex[:8]
            with self._location.lock():
                if after is not None:
                    self.check_incarnation(after)
                incarnation = self.incarnation() + 1
                path = f"incarnations/{incarnation:06d}-{token}.claim.json"
                claim = {
                    "incarnation": incarnation,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "time": time.time(),
                }
                try:
                    self._write_json(path, claim)
                except TakenError:
                    if after is not None:  # let the other driver
                        raise self._fenced(after, incarnation) from None
                    continue
            if is_created or [
                other for number, other in self._claims() if number == incarnation
            ] == [token]:
                return incarnation, token
            if after is not None:  # the other driver takes the next number: let it
                raise self._fenced(after, incarnation, own=token)
            time.sleep(random.uniform(0, _CLAIM_PAUSE_S_MAX))
        raise CheckpointError(f"{self}: other drivers have claimed {_CLAIMS_MAX} incarnations.")

    def _claims(self) -> list[tuple[int, str]]:
        names = map(_CLAIM.fullmatch, self._location.names("incarnations"))
        return [(int(match[1]), match[2]) for match in names if match]

    def _bases(self, only: int | None = None) -> dict[int, int]:
        """For each incarnation the number of the cut it began from; 0 if it began empty."""
        found = map(_BASE.fullmatch, self._location.names("incarnations"))
        paths = [
            f"incarnations/{match[0]}" for match in found if match and only in (None, int(match[1]))
        ]
        bodies = (
            checked_json(data, self._location.shown(path))
            for path, data in zip(paths, self._read_once(paths), strict=True)
        )
        return {body["incarnation"]: body["base"] or 0 for body in bodies}

    def _read_once(self, paths: list[str]) -> list[bytes]:
        """Files that never change. On an object store each is a request, so they are remembered there."""
        if not isinstance(self._location, ObjectLocation):
            return [self._location.read(path) for path in paths]
        missing = [path for path in paths if path not in self._known]
        self._known.update(zip(missing, self._location.objects.read_all(missing), strict=True))
        return [self._known[path] for path in paths]

    def _write_json(self, path: str, body: dict[str, Any]) -> None:
        self._write_once(path, json_with_checksum(body))

    def _write_once(self, path: str, data: bytes) -> None:
        """Write a file that has a name of its own. Where the store tells, raises `TakenError` if not."""
        if isinstance(self._location, ObjectLocation):
            self._location.create(path, data)
        else:
            write(self._location, path, data)

    # Writing

    def write_part(
        self,
        cut: int,
        worker: int | str,
        chunks: Iterable[Chunk],
        *,
        incarnation: int,
        kind: str = BUCKET,
        base: int | None = None,
        lists: SavedLists | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> PartInfo | None:
        """Store rows of one worker, durably; None if there are none.

        ``chunks`` are lists of some hundred rows, with the rows of a bucket next to each other; the
        calling thread iterates over them. In a full cut they are all rows, and ``base`` is None;
        otherwise they are those of the buckets that changed since the cut ``base``, whose manifest
        goes to `Manifest.of`. With the same ``lists`` at each cut, only the new elements of growing
        `PersistentList`s are stored. After the last chunk, ``pause`` is called between pieces of some
        milliseconds of work.
        """
        memory = lists if lists is not None else SavedLists()
        memory.begin(cut, base)
        with NewPart(self._location, cut, worker, incarnation, kind, memory, pause) as part:
            for chunk in chunks:
                part.add(chunk)
        return part.info

    def new_part(
        self, cut: int, worker: int | str, *, incarnation: int, kind: str = BUCKET
    ) -> NewPart:
        """The same for a full cut, for a caller that adds its chunks one by one."""
        lists = SavedLists()
        lists.begin(cut, None)
        return NewPart(self._location, cut, worker, incarnation, kind, lists)

    def commit(self, manifest: Manifest) -> None:
        """Make a cut by storing its manifest. Raises `FencedError` if a newer incarnation has begun."""
        data = manifest.to_json()
        with self._location.lock():
            self.check_incarnation(manifest.incarnation)
            base = self._bases(manifest.incarnation).get(manifest.incarnation)
            if base is None:
                raise CheckpointError(f"{self}: begin() of this incarnation has not returned.")
            numbers = [
                named.number for named in self._named() if named.incarnation == manifest.incarnation
            ]
            newest = max(numbers, default=base)
            if manifest.number <= newest:
                raise CheckpointError(
                    f"{self}: cut {manifest.number} comes after cut {newest}. Numbers go up."
                )
            path = f"cuts/{manifest.number:010d}-{manifest.incarnation:06d}.json"
            self._write_once(path, data)
            if not self._location.is_local:  # there is no lock
                self.check_incarnation(manifest.incarnation)
            self._committed[path] = manifest

    # Reading

    def cuts(self, *, again: bool = True) -> list[Manifest]:
        """The valid cuts whose manifests are readable, oldest first. It checks no other file.

        Without ``again``, the manifests that this store has committed are not read again.
        """
        read = self._manifest if again else self._remembered
        found = []
        for named in self._counting():
            try:
                found.append(read(named))
            except DamagedCutError as error:
                self._warn(error)
        return found

    def committed_at(self, manifest: Manifest) -> float | None:
        """When a cut was committed, in seconds since 1970, by the clock of its storage."""
        own = (manifest.number, manifest.incarnation)
        named = next((one for one in self._named() if one[:2] == own), None)
        return None if named is None else self._location.modified(named.path)

    def lives(self) -> list[tuple[int, int, float | None]]:
        """Every incarnation, the cut that it began from (0 if it began empty), and when."""
        found = []
        bases = self._bases()
        for name in self._location.names("incarnations"):
            match = _BASE.fullmatch(name)
            if match and int(match[1]) in bases:
                at = self._location.modified(f"incarnations/{name}")
                found.append((int(match[1]), bases[int(match[1])], at))
        return sorted(found)

    def latest(self) -> Manifest | None:
        """The newest cut that is whole; None if there has never been one.

        If there were cuts and none is whole it raises: beginning empty would contradict the sinks and
        front logs.
        """
        return self._newest(lambda manifest: True, self.check_whole)

    def as_of(self, time: tuple[int, int]) -> Manifest | None:
        """The newest whole cut at or below a global time."""
        return self._newest(lambda manifest: manifest.time <= time, self.check_whole)

    def check_whole(self, manifest: Manifest, known: Collection[str] = ()) -> None:
        """Raises `DamagedCutError` unless every file exists and has its checksum. The paths that are
        ``known`` have been checked before."""
        for part in manifest.parts:
            if part.path in known:
                continue
            shown = self._location.shown(part.path)
            try:
                length, checksum = digest(self._location, part.path)
            except OSError as error:
                raise DamagedCutError(
                    f"cut {manifest.number} needs {shown}, which cannot be read: {error}."
                ) from error
            if length != part.bytes:
                raise DamagedCutError(
                    f"cut {manifest.number} needs {shown} with {part.bytes} bytes; it has {length}."
                )
            if checksum != part.checksum:
                raise DamagedCutError(
                    f"cut {manifest.number} needs {shown} with the checksum {part.checksum}; it has "
                    f"{checksum}: its content has changed."
                )

    def rows(
        self,
        manifest: Manifest,
        low: int = HASH_MIN,
        high: int = HASH_MAX,
        *,
        kind: str = BUCKET,
        lists: SavedLists | None = None,
    ) -> Iterator[Row]:
        """The rows of a cut whose key hashes are from ``low`` to ``high``, a bucket at a time.

        They are ordered by operation and key hash. ``lists`` remembers the lists of the cut, so that
        the first cut of the next incarnation can already continue them: ``base=manifest.number``.
        """
        return self.rows_in(manifest, [HashRange(low, high)], kind=kind, lists=lists)

    def rows_in(
        self,
        manifest: Manifest,
        ranges: Iterable[HashRange],
        *,
        kind: str = BUCKET,
        lists: SavedLists | None = None,
        left_out: Collection[str] = (),
    ) -> Iterator[Row]:
        """The rows of a cut whose key hashes are in one of these ranges, but for those of the steps that are
        ``left_out``."""
        if lists is not None:
            lists.begin_restore(manifest.number)
        ranges = list(ranges)
        sources = self._sources(manifest, ranges, kind)
        if kind == SCHEDULED:
            return united(sources, Ranges(ranges), manifest.time)
        return merged(sources, Ranges(ranges), lists=lists, left_out=left_out)

    def newer_parts(
        self, manifest: Manifest, ranges: Sequence[HashRange], known: Collection[str]
    ) -> list[Source]:
        """The parts of a cut that may have buckets in ranges of hashes, oldest first, but for those with the paths
        that are ``known``. These are of an earlier cut of its chain."""
        return self._sources(manifest, ranges, without=known)

    def newer_scheduled(
        self, manifest: Manifest, ranges: Sequence[HashRange], known: Collection[str]
    ) -> Iterator[Row]:
        """What such parts have of scheduled items, each as a row with its origin for a key."""
        sources = self._sources(manifest, ranges, SCHEDULED, known)
        return united(sources, Ranges(ranges), manifest.time)

    def _sources(
        self,
        manifest: Manifest,
        ranges: Sequence[HashRange],
        kind: str = BUCKET,
        without: Collection[str] = (),
    ) -> list[Source]:
        """The parts of a cut that may have rows with hashes in one of these ranges, oldest first."""
        return [
            Source(part.cut, self._location.shown(part.path), self._opener(part))
            for part in manifest.parts
            if part.kind == kind
            and part.path not in without
            and any(part.low <= own.high and part.high >= own.low for own in ranges)
        ]

    def columns(
        self,
        manifest: Manifest,
        ranges: Sequence[HashRange],
        steps: Collection[str],
        *,
        without: Collection[str] = (),
    ) -> dict[str, list[ColumnRun]]:
        """The rows of steps by columns, for those steps that can be read like this; see `cuts.columns`. The
        parts with the paths ``without`` are left out."""
        return opened_columns(self._sources(manifest, ranges, without=without), ranges, steps)

    def scheduled(self, manifest: Manifest, ranges: Sequence[HashRange]) -> pa.Table:
        """What a cut has scheduled in ranges of hashes, by columns; see `cuts.columns`."""
        sources = self._sources(manifest, ranges, SCHEDULED)
        return scheduled_columns(sources, ranges, manifest.time)

    def pages(
        self,
        parts: Iterable[PartInfo],
        wanted: Wanted,
        *,
        test: KeyTest | None = None,
        counted: Counted | None = None,
    ) -> Iterator[ColumnPage]:
        """One step's rows of the parts of a cut, a page at a time; see `cuts.scan`."""
        sources = [
            Source(part.cut, self._location.shown(part.path), self._opener(part))
            for part in parts
            if part.kind != SCHEDULED and wanted.may_be_in(part.low, part.high)
        ]
        return scan(sources, wanted, test=test, counted=counted)

    # Readers

    def hold(
        self, seconds: float, choose: Callable[[Manifest], bool] = lambda manifest: True
    ) -> Manifest | None:
        """Hold the newest cut that ``choose`` accepts, for so long; None if there is none.

        It checks only that the files exist: a scan verifies what it reads.
        """
        if not self._location.names("cuts"):
            return None  # without a lock, which would make the folder of a checkpoint
        try:
            with self._location.lock():
                manifest = self._newest(choose, self._check_there)
                if manifest is not None and seconds > 0:
                    self._keep(manifest.number, manifest.incarnation, seconds)
                return manifest
        except OSError:  # the reader may lack permission to write
            return self._newest(choose, self._check_there)

    def renew(self, cut: int, incarnation: int, seconds: float) -> bool:
        """Hold a cut for so long from now; False if it is gone."""
        path = f"{cut:010d}-{incarnation:06d}.json"
        try:
            with self._location.lock():
                there = path in self._location.names("cuts")
                if there and seconds > 0:
                    self._keep(cut, incarnation, seconds)
                return there
        except OSError:
            return path in self._location.names("cuts")

    def _keep(self, cut: int, incarnation: int, seconds: float) -> None:
        now = time.time()
        # Avoid one file per query: a hold that lasts at least half as long is enough.
        if any(of == (cut, incarnation) and now + seconds / 2 < till for of, till in self._holds()):
            return
        name = (
            f"{cut:010d}-{incarnation:06d}-{round((now + seconds) * 1000)}-{uuid.uuid4().hex[:8]}"
        )
        write(self._location, f"holds/{name}.hold", b"")

    def _holds(self) -> list[tuple[tuple[int, int], float]]:
        """Which cuts are held, and until when."""
        matches = map(_HOLD.fullmatch, self._location.names("holds"))
        return [((int(m[1]), int(m[2])), int(m[3]) / 1000) for m in matches if m]

    def _check_there(self, manifest: Manifest) -> None:
        names = set(self._location.names("parts"))
        for part in manifest.parts:
            if part.path.rpartition("/")[2] not in names:
                raise DamagedCutError(
                    f"cut {manifest.number} needs {self._location.shown(part.path)}, which is not "
                    f"there."
                )

    def _opener(self, part: PartInfo) -> Callable[[], PartFile]:
        return lambda: PartFile(self._location.open(part.path), part)

    def _named(self) -> list[_Named]:
        """All manifests, by number and incarnation."""
        matches = map(_MANIFEST.fullmatch, self._location.names("cuts"))
        return sorted(_Named(int(m[1]), int(m[2]), f"cuts/{m[0]}") for m in matches if m)

    def _counting(self) -> list[_Named]:
        """The manifests that no later incarnation has voided, oldest first."""
        # Read manifests before bases: a cut that is committed after a base is read may be above it.
        named = self._named()
        limits: dict[int, int] = {}
        limit: int | None = None
        for incarnation, base in sorted(self._bases().items(), reverse=True):
            limits[incarnation] = limit if limit is not None else 2**63
            limit = base if limit is None else min(limit, base)
        for one in named:
            if one.incarnation not in limits:
                raise DamagedCutError(
                    f"{self}: incarnations/{one.incarnation:06d}-….base.json is missing. It says "
                    f"which cut that incarnation began from, and {one.path} needs it. Restore it "
                    f"from a backup."
                )
        return [one for one in named if one.number <= limits[one.incarnation]]

    def _manifest(self, named: _Named) -> Manifest:
        shown = self._location.shown(named.path)
        try:
            data = self._location.read(named.path)
        except OSError as error:
            raise DamagedCutError(f"{shown} cannot be read: {error}.") from error
        manifest = Manifest.from_json(data, shown)
        if (manifest.number, manifest.incarnation) != named[:2]:
            raise DamagedCutError(
                f"{shown} is the manifest of cut {manifest.number} of incarnation "
                f"{manifest.incarnation}."
            )
        return manifest

    def _remembered(self, named: _Named) -> Manifest:
        known = self._committed.get(named.path)
        return self._manifest(named) if known is None else known

    def _newest(
        self, wanted: Callable[[Manifest], bool], check: Callable[[Manifest], None]
    ) -> Manifest | None:
        faults = []
        for named in reversed(self._counting()):
            try:
                manifest = self._manifest(named)
                if not wanted(manifest):
                    continue
                check(manifest)
                return manifest
            except DamagedCutError as error:
                faults.append(str(error))
                self._warn(error)
        if faults:
            raise DamagedCutError(
                f"{self}: of the cuts there, none that could be used is whole:\n"
                + "\n".join(f"  - {fault}" for fault in faults)
                + "\nRestore the files from a backup, or begin empty at another location."
            )
        return None

    def _warn(self, error: DamagedCutError) -> None:
        warnings.warn(DamagedCutWarning(f"a damaged cut is left out: {error}"), stacklevel=4)

    # Removing

    def prune(self, keep: int, *, incarnation: int, abandoned: int | None = None) -> list[str]:
        """Remove all cuts but the newest ``keep`` and those that are held, and their unneeded files.

        Only the newest incarnation may prune. The parts of its cut ``abandoned``, and of those before,
        are not under way. Returns the removed paths.
        """
        if keep < 1:
            raise ValueError(f"prune(keep=) takes 1 or more, got {keep!r}")
        location = self._location
        with location.lock():
            # List the cuts before the fence is checked: a driver that begins after that sees at
            # least these cuts, and chooses none that is removed here.
            named = self._named()
            kept = self._counting()[-keep:]
            newest = max((one.number for one in kept), default=0)
            newest = newest if abandoned is None else max(newest, abandoned)
            now = time.time()
            held = {of for of, until in self._holds() if until > now}
            kept += [one for one in named if one[:2] in held and one not in kept]
            parts = [(name, f"parts/{name}") for name in location.names("parts")]
            parts += [
                (name[1:], f"parts/{name}") for name in location.names("parts", temporary=True)
            ]
            self.check_incarnation(incarnation)
            needed = set()
            for one in kept:
                try:
                    needed |= {part.path for part in self._remembered(one).parts}
                except DamagedCutError as error:
                    # Its files are unknown, so remove none that it could need.
                    self._warn(error)
                    return []
            removed = [one.path for one in named if one not in kept]
            for path in removed:
                self._committed.pop(path, None)
            for name, path in parts:
                match = _PART.match(name)
                if match is None or path in needed:
                    continue
                cut, of = int(match[1]), int(match[2])
                under_way = of > incarnation or (of == incarnation and cut > newest)
                if not under_way:
                    removed.append(path)
            for name in location.names("cuts", temporary=True):
                match = _MANIFEST.match(name[1:])
                if match is not None and int(match[2]) < incarnation:
                    removed.append(f"cuts/{name}")
            for name in location.names("holds"):
                match = _HOLD.fullmatch(name)
                if match is not None and int(match[3]) / 1000 <= now:
                    removed.append(f"holds/{name}")
            # Manifests first, so that none is left without its files.
            if isinstance(location, ObjectLocation):
                manifests = [path for path in removed if path.startswith("cuts/")]
                location.objects.remove(manifests)
                location.objects.remove(path for path in removed if path not in manifests)
            else:
                for path in removed:
                    location.remove(path)
            return removed


def _reopened(location: str, filesystem: FileSystem | None, own_files: bool) -> CheckpointStore:
    return CheckpointStore(location, filesystem=filesystem, own_files=own_files)
