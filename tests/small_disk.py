"""A file system of its own, of some hundred KB: it is full, or read-only, whenever a test says so."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_BALLAST = "ballast"


class SmallDisk:
    """A mounted tmpfs. Its folder is the mount point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no room for a single block. Blocks that files have already can be written."""
        with contextlib.suppress(OSError), open(self.folder / _BALLAST, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.folder / _BALLAST).unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """No file can be opened for writing, made, renamed or removed. Open ones stay open."""
        _run("mount", "--bind", str(self.folder), str(self.folder))
        try:
            _run("mount", "-o", "remount,ro,bind", str(self.folder))
            yield
        finally:
            _run("umount", str(self.folder))


@contextlib.contextmanager
def mounted(folder: Path, kilobytes: int = 512) -> Iterator[SmallDisk]:
    folder.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small file system takes root and CAP_SYS_ADMIN: {error}")
    try:
        yield SmallDisk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
