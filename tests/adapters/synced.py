"""Which files are synced, for tests of what survives a power loss."""

from __future__ import annotations

import os

import pytest


def synced_inodes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of all files and folders that are synced from now on."""
    synced: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    return synced
