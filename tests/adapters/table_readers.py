"""Readers of Delta and Iceberg tables that share no code with the sinks or with what they write by.

They read the log of a Delta table, or the metadata and manifests of an Iceberg table, as the
specifications say, and the rows with DuckDB.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import duckdb
import fastavro

Row = dict[str, Any]


class DataFile(NamedTuple):
    """A file of a table, and the partition of the sink whose commit added it."""

    path: Path
    partition: int


def delta_files(folder: Path) -> list[DataFile]:
    """The files that the log of a table adds and does not remove, in its order."""
    found: dict[str, DataFile] = {}
    for entry in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        writers = [action["txn"]["appId"] for action in actions if "txn" in action]
        for action in actions:
            if "remove" in action:
                del found[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                path = action["add"]["path"]
                partition = int(writers[0].split("/")[1]) if writers else 0
                found[path] = DataFile(folder / unquote(path), partition)
    return list(found.values())


def delta_commits(folder: Path) -> int:
    """How many commits have changed data."""
    entries = sorted((folder / "_delta_log").glob("*.json"))
    return sum('"add"' in entry.read_text() for entry in entries)


def iceberg_metadata(database: Path, table: str) -> dict[str, Any]:
    namespace, _, name = table.rpartition(".")
    query = (
        "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
    )
    with sqlite3.connect(database) as connection:
        row = connection.execute(query, [namespace, name]).fetchone()
    connection.close()
    if row is None:
        return {}
    metadata: dict[str, Any] = json.loads(_path(row[0]).read_bytes())
    return metadata


def iceberg_files(metadata: dict[str, Any]) -> list[DataFile]:
    """The files of the current snapshot, in the order of their commits."""
    snapshots = {one["snapshot-id"]: one for one in metadata.get("snapshots", [])}
    current = snapshots.get(metadata.get("current-snapshot-id"))
    if current is None:
        return []
    found: list[tuple[int, DataFile]] = []
    for manifest in _avro(current["manifest-list"]):
        for entry in _avro(manifest["manifest_path"]):
            if entry["status"] != 2:
                snapshot = entry["snapshot_id"] or manifest["added_snapshot_id"]
                order = entry["sequence_number"] or manifest["sequence_number"]
                (key,) = (
                    key for key in snapshots[snapshot]["summary"] if key.startswith("emberflow.")
                )
                file = DataFile(_path(entry["data_file"]["file_path"]), int(key.split(".")[-1]))
                found.append((order, file))
    return [file for _, file in sorted(found, key=lambda one: one[0])]


def rows(files: Iterable[DataFile], partition: int | None = None) -> list[Row]:
    """The rows of files, of one partition of the sink or of all."""
    found: list[Row] = []
    with duckdb.connect() as connection:
        for file in files:
            if partition in (None, file.partition):
                result = connection.execute("SELECT * FROM read_parquet(?)", [str(file.path)])
                names = [column[0] for column in result.description or ()]
                found += [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    return found


def _path(place: str) -> Path:
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(place)


def _avro(place: str) -> list[dict[str, Any]]:
    with open(_path(place), "rb") as file:
        return list(fastavro.reader(file))  # type: ignore[arg-type]
