"""Files of a table on a local disk: synced, because the libraries that write tables do not sync them.

On an object store a file is durable when its upload is acknowledged, and there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from emberflow.checkpoint.files import sync_folder


def local_path(place: str) -> Path | None:
    """The path of a place on a local disk; None if it is elsewhere.

    >>> local_path("file:///tmp/a%20b"), local_path("/tmp/a%20b"), local_path("s3://bucket/a")
    (PosixPath('/tmp/a b'), PosixPath('/tmp/a%20b'), None)
    """
    parts = urlsplit(place)
    if parts.scheme == "":
        return Path(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def sync_files(root: Path, files: Iterable[Path]) -> None:
    """Sync files below a folder, and all folders from that of each file up to the one above the root."""
    folders = set()
    for file in files:
        sync_folder(file)
        folders |= {file.parent, *file.parent.parents}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        if folder == root.parent or root in (folder, *folder.parents):
            sync_folder(folder)
