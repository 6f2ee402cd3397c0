"""The versions of a flow that a live query has served, as its checkpoint tells.

The manifest of a cut has a note of every version: its fingerprint, and the moment from which on it serves.
It has no functions: these are the user's, who gives the flow of each version. The notes say whether all of
them are given, and in the right order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from emberflow.checkpoint.cuts.manifest import VersionNote
from emberflow.dsl.flow import Flow
from emberflow.errors import FlowError, InputError
from emberflow.extras import need
from emberflow.graph.versions import Carry

#: A version, or a version and what it takes over.
Given: TypeAlias = Flow | tuple[Flow, Carry | None]


def versions_served(
    checkpoint: str | os.PathLike[str], first: Flow, later: Sequence[Given]
) -> Iterator[tuple[tuple[int, int], Flow, Carry | None]]:
    """Each version behind the first one, with the moment from which on it serves."""
    need("pyarrow", extra="spark", what="Versions.served")
    from emberflow.checkpoint.cuts.store import CheckpointStore

    given = [_checked(each) for each in (first, *later)]
    cut = CheckpointStore(checkpoint).latest()
    if cut is None:
        raise InputError(
            f"{os.fspath(checkpoint)} has no cut, so no version is known to have served."
        )
    notes = cut.versions or (VersionNote(1, cut.fingerprint),)
    left = list(given)
    missing = []
    for note in notes:
        if left and left[0][0].graph().fingerprint == note.fingerprint:
            flow, carry = left.pop(0)
            if note.begins is not None:
                yield note.begins, flow, carry
        else:
            missing.append(note)
    if missing or left:
        raise InputError(
            f"{os.fspath(checkpoint)} has served {_versions(len(notes))} of flow {cut.flow!r}, and "
            f"{_versions(len(given))} are given."
            + "".join(f"\n  - {_told(note)} is missing" for note in missing)
            + "".join(f"\n  - {flow!r} has not served next" for flow, _ in left[:1])
            + "\nGive the flow of every version, in order, each with the steps that it had then."
        )


def _checked(given: Any) -> tuple[Flow, Carry | None]:
    flow, carry = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(flow, Flow):
        raise FlowError(f"Versions.served() takes flows, or (flow, carry), got {given!r}.")
    return flow, carry


def _told(note: VersionNote) -> str:
    begins = "from the beginning on" if note.begins is None else f"from {note.begins} on"
    return f"version {note.number}, {begins}, of fingerprint {note.fingerprint:016x}"


def _versions(count: int) -> str:
    return f"{count} version" if count == 1 else f"{count} versions"
