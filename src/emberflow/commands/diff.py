"""``emberflow diff``: what a new version of a flow changes, compared with a flow or with a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberflow.checkpoint.cuts.backfills import planned
from emberflow.dsl.loading import load_flow
from emberflow.errors import InputError
from emberflow.extras import need
from emberflow.graph.comparison import compared, drawn
from emberflow.graph.description import Step, steps_of
from emberflow.graph.versions import Carry


def diff(old: str, new: str, carry: Carry) -> tuple[str, bool]:
    """The changes as text, and whether the new version can take over the state."""
    steps, at = _before(old)
    return compared(steps, load_flow(new).graph(), carry, at, planned)


def drawing_of(old: str, new: str) -> str:
    """The new version as a Mermaid flowchart, with what is new or changed marked."""
    return drawn(_before(old)[0], load_flow(new).graph())


def _before(old: str) -> tuple[Sequence[Step], tuple[int, int] | None]:
    """The steps of a flow, or of the flow whose state a checkpoint holds, and of which moment."""
    if "://" not in old and not Path(old).is_dir():
        return steps_of(load_flow(old).graph()), None
    need("pyarrow", extra="spark", what="emberflow diff of a checkpoint")
    from emberflow.checkpoint.cuts.store import CheckpointStore

    cut = CheckpointStore(old).latest()
    if cut is None:
        raise InputError(f"{old} holds no cut: a flow that starts there begins empty.")
    return cut.steps, cut.time
