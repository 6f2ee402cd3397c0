"""A part that is being written, and what a manifest says of it.

What is guaranteed: **a part is there whole and durably, or not at all.** Its file is made by the first rows, so a
worker without rows has none; and what was written before an error is dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import PartInfo
from emberflow.checkpoint.cuts.parts.writer import PartWriter
from emberflow.checkpoint.cuts.rows import Chunk
from emberflow.checkpoint.files import Location, Written

if TYPE_CHECKING:
    from types import TracebackType


class NewPart:
    """A part that is being written. It exists, durably, when the block ends without an error.

    Then ``info`` describes it; None if no rows were added, because then there is no file either.
    """

    def __init__(
        self,
        location: Location,
        cut: int,
        worker: int | str,
        incarnation: int,
        kind: str,
        lists: SavedLists,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self.info: PartInfo | None = None
        self._location = location
        self._cut, self._worker, self._kind = cut, str(worker), kind
        unique = uuid.uuid4().hex[:12]
        self._path = f"parts/{cut:010d}-{incarnation:06d}-{worker}-{kind}-{unique}.parquet"
        self._lists = lists
        self._pause = pause
        self._writer: PartWriter | None = None
        self._file: Written | None = None
        self._opened = ExitStack()

    def __enter__(self) -> NewPart:
        return self

    def add(self, chunk: Chunk) -> None:
        if not chunk:
            return
        if self._writer is None:
            self._file = self._opened.enter_context(self._location.new(self._path))
            self._writer = PartWriter(self._file, self._lists, pause=self._pause)
        self._writer.add(chunk)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        writer, file = self._writer, self._file
        if writer is None or file is None:
            return
        if error is not None:
            writer.abandon()
            self._opened.__exit__(kind, error, trace)
            return
        with self._opened:
            try:
                summary = writer.finish()
            except BaseException:
                writer.abandon()
                raise
        self.info = PartInfo(
            kind=self._kind,
            cut=self._cut,
            worker=self._worker,
            path=self._path,
            rows=summary.rows,
            bytes=file.bytes,
            checksum=file.checksum,
            low=summary.low,
            high=summary.high,
            block_bytes=file.block_bytes,
            blocks=file.blocks,
        )
